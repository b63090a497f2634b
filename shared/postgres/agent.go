package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// AgentText is what a source says of one agent now.
type AgentText struct {
	Name   harness.AgentName
	Source string         // what defines it: a file of the folder
	Agent  *harness.Agent // nil: its text was refused
	Reason string         // why, for its author
	Off    bool           // of a refused text: it switches the harness off, which the older revision would have on

	// Channels are those of a refused text that are valid themselves: while the
	// agent has no revision, whoever writes to it there is told why.
	Channels   []harness.ChannelSpec
	Generation int64 // of the resource; 0: the source is none

	Skills []harness.SkillContent // what those of Agent hold, by their digests
}

// BrokenSource is a source that could not be read, or not to its end: agents it
// defined before are kept. With a Reason, for their authors, they are INVALID;
// without one they stay as they are.
type BrokenSource struct{ Source, Reason string }

// AgentStatus is how an agent stands.
type AgentStatus struct {
	Name     harness.AgentName
	Phase    harness.AgentPhase
	Revision int64  // in use; 0: none yet
	Reason   string // for people; empty when all is well
}

// agentLock serialises PutAgents over all processes (pg_advisory_xact_lock).
const agentLock = 7448212

// PutAgents makes the stored agents what their sources say: a valid text that
// differs from the revision in use is a new revision, an invalid one leaves the
// older revision in use, switched off if it says so: that is for emergencies. An
// agent that no source names is DELETED. Channel routes follow from the revisions
// in use and change with them. It is level-triggered: all agents every time, and
// what has not changed is not written.
//
// It returns the agents whose status changed and an event for each. Those
// events have no outbox row: nobody claims an agent, so nothing would ever
// acknowledge one. What must happen is in rows already: sessions that waited
// for the agent are marked due here, and the sweep wakes them if the event is
// lost.
func (s *Store) PutAgents(ctx context.Context, texts []AgentText, broken []BrokenSource) ([]AgentStatus, []event.Event, error) {
	var changed []AgentStatus
	var events []event.Event
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		stored, routes, at, err := readAgents(ctx, tx)
		if err != nil {
			return err
		}
		next, wanted := decideAgents(stored, cleanTexts(texts), cleanBroken(broken))
		w := &agentWriter{Batch: &pgx.Batch{}}
		for _, name := range slices.Sorted(maps.Keys(next)) {
			w.agent(stored[name], next[name])
		}
		w.routes(routes, wanted)
		w.wake()
		for _, row := range w.changed {
			changed = append(changed, row.AgentStatus)
			events = append(events, statusChanged(row.AgentStatus, at))
		}
		return tx.SendBatch(ctx, w.Batch).Close()
	})
	if err != nil {
		return nil, nil, translate(err)
	}
	return changed, events, nil
}

func statusChanged(a AgentStatus, at time.Time) event.Event {
	return event.Event{
		ID: fmt.Sprintf("agent.status.changed:%s:%d", a.Name, at.UnixMicro()), Type: event.AgentStatusChanged, Agent: a.Name,
		Payload: event.Payload{Agent: a.Name, Revision: a.Revision},
	}
}

// maxReason bounds what is kept of a reason, in bytes.
const maxReason = 8 << 10

func cleanReason(reason string) string {
	return harness.CleanText(reason[:min(len(reason), maxReason)])
}

func cleanTexts(texts []AgentText) []AgentText {
	cleaned := slices.Clone(texts)
	for i, t := range texts {
		cleaned[i].Source, cleaned[i].Reason = harness.CleanText(t.Source), cleanReason(t.Reason)
	}
	return cleaned
}

func cleanBroken(broken []BrokenSource) []BrokenSource {
	cleaned := slices.Clone(broken)
	for i, b := range broken {
		cleaned[i] = BrokenSource{Source: harness.CleanText(b.Source), Reason: cleanReason(b.Reason)}
	}
	return cleaned
}

// readAgents takes the lock and reads every agent, every route and the time.
func readAgents(ctx context.Context, tx pgx.Tx) (map[harness.AgentName]agentRow, map[routeKey]route, time.Time, error) {
	agents, routes := map[harness.AgentName]agentRow{}, map[routeKey]route{}
	var at time.Time
	b := &pgx.Batch{}
	b.Queue(`SELECT pg_advisory_xact_lock($1)`, agentLock)
	b.Queue(`SELECT clock_timestamp()`).QueryRow(func(row pgx.Row) error { return row.Scan(&at) })
	b.Queue(`SELECT a.agent_name, a.revision, a.phase, a.reason, a.digest, a.source, a.generation, a.sandbox_digest, a.created_at, r.spec
		FROM agents a LEFT JOIN agent_revisions r ON r.agent_name = a.agent_name AND r.revision = a.revision`).Query(func(rows pgx.Rows) error {
		var a agentRow
		_, err := pgx.ForEachRow(rows, []any{&a.Name, &a.Revision, &a.Phase, &a.Reason, &a.digest, &a.source, &a.generation, &a.sandboxDigest, &a.createdAt, &a.spec}, func() error {
			agents[a.Name] = a
			a = agentRow{}
			return nil
		})
		return err
	})
	b.Queue(`SELECT channel, account, agent_name, spec FROM channel_routes`).Query(func(rows pgx.Rows) error {
		var k routeKey
		var r route
		_, err := pgx.ForEachRow(rows, []any{&k.channel, &k.account, &r.agent, &r.spec}, func() error {
			routes[k] = r
			if holder, known := agents[r.agent]; known && holder.spec == nil {
				holder.channels = append(holder.channels, r.spec)
				agents[r.agent] = holder
			}
			r = route{}
			return nil
		})
		return err
	})
	err := tx.SendBatch(ctx, b).Close()
	return agents, routes, at, err
}

// agentWriter collects the statements that make one state of the agents another.
type agentWriter struct {
	*pgx.Batch
	changed []agentRow
	waiting []harness.AgentName // agents whose sessions may go on
}

func (w *agentWriter) agent(before, after agentRow) {
	if before.AgentStatus == after.AgentStatus && before.source == after.source && before.digest == after.digest &&
		before.generation == after.generation && before.sandboxDigest == after.sandboxDigest {
		return
	}
	w.Queue(`INSERT INTO agents (agent_name, revision, phase, reason, digest, source, generation, sandbox_digest) VALUES ($1, $2, $3, $4, $5, $6, $8, $9)
		ON CONFLICT (agent_name) DO UPDATE SET revision = EXCLUDED.revision, phase = EXCLUDED.phase, reason = EXCLUDED.reason,
			digest = EXCLUDED.digest, source = EXCLUDED.source, generation = EXCLUDED.generation, sandbox_digest = EXCLUDED.sandbox_digest,
			updated_at = now(), created_at = CASE WHEN $7 THEN now() ELSE agents.created_at END`,
		after.Name, after.Revision, after.Phase, after.Reason, after.digest, after.source, after.fresh, after.generation, after.sandboxDigest)
	if after.Revision != before.Revision {
		w.Queue(`INSERT INTO agent_revisions (agent_name, revision, spec) VALUES ($1, $2, $3)`, after.Name, after.Revision, after.spec)
		w.skills(after.skills)
	}
	if before.AgentStatus != after.AgentStatus {
		w.changed = append(w.changed, after)
	}
	if after.Revision != before.Revision || (after.Phase == harness.AgentReady && before.Phase != harness.AgentReady) {
		w.waiting = append(w.waiting, after.Name)
	}
}

func (w *agentWriter) routes(before, after map[routeKey]route) {
	for key := range before {
		if _, stays := after[key]; !stays {
			w.Queue(`DELETE FROM channel_routes WHERE channel = $1 AND account = $2`, key.channel, key.account)
		}
	}
	for key, r := range after {
		if old, known := before[key]; known && old.agent == r.agent && reflect.DeepEqual(asStored(r.spec), old.spec) {
			continue
		}
		w.Queue(`INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all, pairing, senders) VALUES ($1, $2, $3, $4, $5, $6, $7)
			ON CONFLICT (channel, account) DO UPDATE SET agent_name = EXCLUDED.agent_name, spec = EXCLUDED.spec,
				open_to_all = EXCLUDED.open_to_all, pairing = EXCLUDED.pairing, senders = EXCLUDED.senders`,
			key.channel, key.account, r.agent, r.spec, r.spec.Senders.Policy == harness.SendersOpen, r.spec.Senders.Policy == harness.SendersPairing, orEmpty(r.spec.Senders.Allow))
	}
}

// asStored is spec as it comes back from its row: an empty list as none.
func asStored(spec harness.ChannelSpec) harness.ChannelSpec {
	var stored harness.ChannelSpec
	text, err := json.Marshal(spec)
	if err == nil {
		err = json.Unmarshal(text, &stored)
	}
	if err != nil { // a struct of plain values always marshals
		panic(err)
	}
	return stored
}

// wake lets sessions that have work, and waited for their agent, go on at once.
// Sessions are taken in the order in which Accept takes them.
func (w *agentWriter) wake() {
	if len(w.waiting) == 0 {
		return
	}
	w.Queue(`UPDATE sessions s SET due_at = now(), retry_at = NULL, announced_at = NULL
		FROM (SELECT session_id FROM sessions WHERE agent_name = ANY($1) AND due_at IS NOT NULL AND state NOT IN ('COMPLETED', 'CANCELLED')
			ORDER BY agent_name, channel, account, chat FOR UPDATE) waiting
		WHERE s.session_id = waiting.session_id`, w.waiting)
}

// Agents returns how every agent stands, by name.
func (s *Store) Agents(ctx context.Context) ([]AgentStatus, error) {
	rows, err := s.pool.Query(ctx, `SELECT agent_name, phase, revision, reason FROM agents ORDER BY agent_name`)
	if err != nil {
		return nil, translate(err)
	}
	agents, err := pgx.CollectRows(rows, pgx.RowToStructByPos[AgentStatus])
	return agents, translate(err)
}
