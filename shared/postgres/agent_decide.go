package postgres

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// agentRow is an agent as it is stored, with the revision in use.
type agentRow struct {
	AgentStatus
	digest, source string
	generation     int64  // of the resource; 0: there is none
	sandboxDigest  string // of the sandbox of spec
	createdAt      time.Time
	spec           *harness.Agent         // of the revision in use; nil: none
	channels       []harness.ChannelSpec  // without a spec: where the refused text is answered
	fresh          bool                   // comes into being, or comes back, now
	skills         []harness.SkillContent // of a new revision
}

// reach is every way to the agent.
func (r agentRow) reach() []harness.ChannelSpec {
	switch {
	case r.Phase == harness.AgentDeleted:
		return nil
	case r.spec == nil:
		return r.channels
	case !r.spec.Harness.CanChat():
		return []harness.ChannelSpec{apiChannel(r.Name)}
	}
	return append([]harness.ChannelSpec{apiChannel(r.Name)}, r.spec.Harness.Channels...)
}

// apiIdleTTL is when a conversation ends by itself that was begun through the
// API: as the default of the other channels.
const apiIdleTTL = 24 * time.Hour

// apiChannel is the way to every agent that has a revision. Who may write to it
// is for the API to say.
func apiChannel(name harness.AgentName) harness.ChannelSpec {
	return harness.ChannelSpec{Type: harness.ChannelAPI, Account: string(name), Senders: harness.ChannelSenders{Policy: harness.SendersOpen}, IdleTTL: apiIdleTTL}
}

type routeKey struct {
	channel harness.Channel
	account string
}

// route is a row of channel_routes.
type route struct {
	agent harness.AgentName
	spec  harness.ChannelSpec
}

// decideAgents says how every agent stands after its source has been read, and
// which agent each channel account belongs to. It changes nothing it is given.
func decideAgents(stored map[harness.AgentName]agentRow, texts []AgentText, broken []BrokenSource) (map[harness.AgentName]agentRow, map[routeKey]route) {
	next := map[harness.AgentName]agentRow{}
	for name, several := range byName(texts) {
		text := several[0]
		if len(several) > 1 {
			text = AgentText{Name: name, Source: text.Source, Reason: "metadata.name is defined " + places(several) + ": keep one of them"}
		}
		row, known := stored[name]
		next[name] = put(row, known, text)
	}
	reasons := map[string]string{}
	for _, b := range broken {
		reasons[b.Source] = b.Reason
	}
	for name, row := range stored {
		if _, defined := next[name]; !defined {
			reason, isBroken := reasons[row.source]
			next[name] = keep(row, isBroken, reason)
		}
	}
	return next, assignRoutes(next)
}

func byName(texts []AgentText) map[harness.AgentName][]AgentText {
	named := map[harness.AgentName][]AgentText{}
	for _, t := range texts {
		named[t.Name] = append(named[t.Name], t)
	}
	return named
}

func places(texts []AgentText) string {
	var places []string
	for _, t := range texts {
		places = append(places, t.Source)
	}
	slices.Sort(places)
	return fmt.Sprintf("%d times (%s)", len(texts), strings.Join(places, ", "))
}

// put is the row of an agent that its source defines.
func put(row agentRow, known bool, text AgentText) agentRow {
	row.Name, row.source, row.Reason, row.generation, row.channels = text.Name, text.Source, "", text.Generation, text.Channels
	row.fresh = !known || row.Phase == harness.AgentDeleted
	if text.Agent == nil {
		row.Phase, row.Reason = harness.AgentInvalid, text.Reason
		if text.Off && row.spec != nil && row.spec.Harness.Enabled {
			off := *row.spec
			off.Harness.Enabled = false
			row.Revision, row.digest, row.spec = row.Revision+1, agentDigest(&off), &off
		}
		return row
	}
	row.Phase = harness.AgentReady
	if digest := agentDigest(text.Agent); row.Revision == 0 || row.digest != digest {
		row.Revision, row.digest, row.spec, row.skills = row.Revision+1, digest, text.Agent, text.Skills
	}
	row.sandboxDigest = text.Agent.Harness.Sandbox.Digest()
	return row
}

// keep is the row of an agent that no source defines now. One whose source
// could not be read stays in use; the others are gone.
func keep(row agentRow, broken bool, reason string) agentRow {
	switch {
	case row.Phase == harness.AgentDeleted:
	case !broken:
		row.Phase, row.Reason = harness.AgentDeleted, "its resource is gone"
	case reason != "":
		row.Phase, row.Reason = harness.AgentInvalid, reason
	}
	return row
}

func agentDigest(a *harness.Agent) string {
	text, err := json.Marshal(a)
	if err != nil { // a struct of plain values always marshals
		panic(err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// assignRoutes gives each channel account to the oldest agent that claims it by
// the revision in use; the others are told so in their reason. One that has no
// revision can only tell people what to mend: it gets what nobody else claims.
func assignRoutes(agents map[harness.AgentName]agentRow) map[routeKey]route {
	order := slices.SortedFunc(maps.Values(agents), func(a, b agentRow) int {
		if refused := a.spec == nil; refused != (b.spec == nil) {
			if refused {
				return 1
			}
			return -1
		}
		if a.fresh != b.fresh { // whoever was there before is older
			if b.fresh {
				return -1
			}
			return 1
		}
		if c := a.createdAt.Compare(b.createdAt); c != 0 && !a.fresh {
			return c
		}
		return cmp.Compare(a.Name, b.Name)
	})
	routes := map[routeKey]route{}
	for _, row := range order {
		row = withoutConflict(row)
		for _, channel := range row.reach() {
			key := routeKey{channel.Type, channel.Account}
			if holder, taken := routes[key]; taken && holder.agent != row.Name {
				older := "older "
				if row.spec == nil { // the holder may be younger
					older = ""
				}
				row.Reason = joinReason(row.Reason, fmt.Sprintf("%s%s %s belongs to the %sagent %s: name another account here, or remove that channel there", conflictMark, channel.Type, channel.Account, older, holder.agent))
				continue
			}
			routes[key] = route{agent: row.Name, spec: channel}
		}
		agents[row.Name] = row
	}
	return routes
}

const conflictMark = "RouteConflict: "

// Conflicts parts the reason of an agent: the channel accounts that are
// another's, and everything else.
func (a AgentStatus) Conflicts() (conflicts, others string) {
	for line := range strings.SplitSeq(a.Reason, "\n") {
		if conflict, ok := strings.CutPrefix(line, conflictMark); ok {
			conflicts = joinReason(conflicts, conflict)
		} else {
			others = joinReason(others, line)
		}
	}
	return conflicts, others
}

// withoutConflict drops an earlier pass's conflicts from the reason of an agent
// whose text was not read anew.
func withoutConflict(row agentRow) agentRow {
	parts := slices.DeleteFunc(strings.Split(row.Reason, "\n"), func(s string) bool { return strings.HasPrefix(s, conflictMark) })
	row.Reason = strings.Join(parts, "\n")
	return row
}

func joinReason(reason, more string) string {
	if reason == "" {
		return more
	}
	return reason + "\n" + more
}
