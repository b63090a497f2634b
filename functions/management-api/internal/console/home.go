package console

import (
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"tuluat.ai/harness/shared/harness/view"
)

// homeBody is what needs somebody.
type homeBody struct {
	Halt      view.Halt
	Approvals list[view.Approval]
	Pending   int
	Agents    []agentShort
	Failed    list[view.Session]
	Letters   list[view.DeadLetter]
	Leaks     []view.Leaks // of the kinds of which something is leaked or lost
	Usage     bool         // it is known
	Cost      string
	Tokens    int64
	Asked     int64
}

// Halted reports whether the whole install is.
func (b homeBody) Halted() bool { return b.Halt.Halted }

// Quiet reports that nothing needs anybody.
func (b homeBody) Quiet() bool {
	return !b.Halted() && len(b.Approvals.Items)+len(b.Agents)+len(b.Failed.Items)+len(b.Letters.Items)+len(b.Leaks) == 0
}

// fact is a name and a value.
type fact struct{ Name, Value string }

// homeMost is how many of each kind the home page shows.
const homeMost = "10"

func (p *page) home() error {
	body, err := p.needs()
	if err != nil {
		return err
	}
	return p.show("home", "Home", body)
}

func (p *page) homeNeeds() error {
	body, err := p.needs()
	if err != nil {
		return err
	}
	return p.part("home", "needs", body)
}

// needs asks for what the caller may see of all that waits.
func (p *page) needs() (homeBody, error) {
	var b homeBody
	day := p.Now().UTC()
	var counts view.ApprovalCounts
	var agents list[json.RawMessage]
	var leaks list[view.Leaks]
	var usage list[view.ModelUsage]
	for _, ask := range []struct {
		path  string
		query url.Values
		into  any
		known *bool
	}{
		{"/halt", nil, &b.Halt, nil},
		{"/approvals", url.Values{"status": {"PENDING"}, "limit": {homeMost}}, &b.Approvals, nil},
		{"/approvals/counts", nil, &counts, nil},
		{"/agents", url.Values{"status": {"DEGRADED", "INVALID"}, "limit": {homeMost}}, &agents, nil},
		{"/sessions", url.Values{"status": {"FAILED", "BLOCKED"}, "limit": {homeMost}, "since": {day.Add(-24 * time.Hour).Format(time.RFC3339)}}, &b.Failed, nil},
		{"/deadletters", url.Values{"status": {"OPEN"}, "limit": {homeMost}}, &b.Letters, nil},
		{"/leaks", nil, &leaks, nil},
		{"/usage", url.Values{"since": {day.Truncate(24 * time.Hour).Format(time.RFC3339)}}, &usage, &b.Usage},
	} {
		known, err := p.optional(ask.path, ask.query, ask.into)
		if err != nil {
			return b, err
		}
		if ask.known != nil {
			*ask.known = known
		}
	}
	b.Pending = counts.Pending
	for _, a := range agents.Items {
		b.Agents = append(b.Agents, readAgent(a).agentShort)
	}
	for _, l := range leaks.Items {
		if l.Leaked+l.Lost > 0 {
			b.Leaks = append(b.Leaks, l)
		}
	}
	total := costs{}
	for _, u := range usage.Items {
		total.add(u)
	}
	b.Cost, b.Tokens, b.Asked = total.text(), total.tokens, total.asked
	return b, nil
}

func sortFacts(all []fact) {
	slices.SortFunc(all, func(a, b fact) int { return strings.Compare(a.Name, b.Name) })
}

// costs adds up what models have cost, exactly.
type costs struct {
	sum             big.Rat
	priced          bool
	asked, unpriced int64
	tokens          int64
}

func (c *costs) add(u view.ModelUsage) {
	if n, ok := new(big.Rat).SetString(u.Cost); ok && u.Cost != "" {
		c.sum.Add(&c.sum, n)
		c.priced = true
	}
	c.asked += u.Asked
	c.unpriced += u.Unpriced
	c.tokens += u.InputTokens + u.OutputTokens
}

func (c *costs) text() string {
	text := "no price is known"
	if c.priced {
		text = strings.TrimRight(strings.TrimRight(c.sum.FloatString(6), "0"), ".")
		if c.unpriced > 0 {
			text += fmt.Sprintf(", without %d questions of unknown price", c.unpriced)
		}
	} else if c.asked == 0 {
		text = "0"
	}
	return text
}

func (p *page) liveApprovals() error {
	return p.follow("/approvals/events", nil)
}

// cutPattern parts a pattern of pages.
func cutPattern(pattern string) (method, path string, ok bool) {
	method, path, ok = strings.Cut(pattern, " ")
	return method, path, ok && (method == http.MethodGet || method == http.MethodPost)
}
