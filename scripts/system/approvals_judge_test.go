//go:build system

package system_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// outcome is what the rows say of one approval.
type outcome struct {
	id, state, by, via  string
	at                  *time.Time
	end                 time.Time // when its time is over
	usedUp              bool
	call, result        string
	execution           string // its state; empty: there is none
	executions, entries int    // in the session's stream: asked, and decided
	grants              int
}

const outcomesSQL = `
SELECT a.approval_id, a.state, a.decided_by, a.decided_via, a.decided_at, a.expires_at, a.consumed_at IS NOT NULL, t.state, COALESCE(t.result, ''),
       COALESCE((SELECT min(e.state) FROM executions e WHERE e.cause_id = t.tool_call_id), ''),
       (SELECT count(*) FROM executions e WHERE e.cause_id = t.tool_call_id),
       (SELECT count(*) FROM session_events v WHERE v.kind = 'APPROVAL' AND v.ref = a.approval_id),
       (SELECT count(*) FROM approval_grants g WHERE g.approval_id = a.approval_id)
FROM approvals a JOIN tool_calls t USING (tool_call_id)`

func (w *world) outcomes() map[string]outcome {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), outcomesSQL)
	w.must(err)
	all := map[string]outcome{}
	_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
		var o outcome
		err := row.Scan(&o.id, &o.state, &o.by, &o.via, &o.at, &o.end, &o.usedUp, &o.call, &o.result, &o.execution, &o.executions, &o.entries, &o.grants)
		all[o.id] = o
		return struct{}{}, err
	})
	w.must(err)
	return all
}

// says who decided what and when, as losers are told.
func (o outcome) says() string {
	text := o.state
	if o.by != "" {
		text += " by " + o.by
	}
	if o.at != nil {
		text += " at " + o.at.UTC().Format("2006-01-02 15:04:05") + " UTC"
	}
	return text
}

// words of an outcome on a card.
func (o outcome) words() string {
	switch o.state {
	case "APPROVED":
		return "Approved by " + o.by
	case "REJECTED":
		return "Rejected by " + o.by
	}
	return "it is not done"
}

// shownCard is one card and the outcome that belongs to it, as the rows have them.
type shownCard struct {
	approval, channel, account, chat string
	state, providerID                string
	outcome, outcomeID, reason       string // state of the outcome's row and what the provider calls it
	attempts                         int    // to send the card
	asks                             bool   // it has buttons
}

func (w *world) shownCards() []shownCard {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), `SELECT c.approval_id, n.channel, n.account, n.chat, c.state, c.provider_id, COALESCE(d.state, ''), COALESCE(d.provider_id, ''), COALESCE(d.reason, ''), c.attempts, c.choices <> '[]'
		FROM replies c JOIN sessions n USING (session_id) LEFT JOIN replies d ON d.message_id = c.message_id || 'o' WHERE c.kind = 'CARD' AND n.channel <> 'API'`)
	w.must(err)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c shownCard, err error) {
		err = row.Scan(&c.approval, &c.channel, &c.account, &c.chat, &c.state, &c.providerID, &c.outcome, &c.outcomeID, &c.reason, &c.attempts, &c.asks)
		return c, err
	})
	w.must(err)
	return all
}

// approvalTable counts, and reports what breaks the rules.
type approvalTable struct {
	w      *world
	counts map[string]int
	faults int
}

func (t *approvalTable) count(what string) { t.counts[what]++ }

func (t *approvalTable) fault(format string, args ...any) {
	if t.faults++; t.faults <= 4*maxStories {
		t.w.t.Errorf(format, args...)
	}
}

// judgeApprovals compares what everybody did and saw with the rows, prints the
// table and reports every approval that breaks the rules.
func (w *world) judgeApprovals(all []*asked, k *approvalKiller) {
	w.t.Helper()
	t := &approvalTable{w: w, counts: map[string]int{}}
	outcomes, starts := w.outcomes(), w.readEvidence(startsFile)
	if len(outcomes) != len(all) {
		t.fault("%d approvals were asked for, want %d", len(outcomes), len(all))
	}
	byID := map[string]*asked{}
	for _, q := range all {
		byID[q.approval] = q
		t.decision(q, outcomes[q.approval])
		t.start(q, outcomes[q.approval], starts[q.id])
		delete(starts, q.id)
	}
	for id := range starts {
		t.fault("evidence of a command that nobody asked for: %s", id)
	}
	for _, c := range w.shownCards() {
		if q := byID[c.approval]; q != nil {
			t.card(q, c, outcomes[c.approval])
		}
	}
	t.losers(all, outcomes)
	t.print(k)
	if t.faults > 4*maxStories {
		w.t.Errorf("and %d more faults", t.faults-4*maxStories)
	}
}

// decision: there is one, and who was told that it is theirs is who the row names.
func (t *approvalTable) decision(q *asked, o outcome) {
	t.count("decided: " + strings.TrimSpace(o.state+" "+o.via))
	if !slices.Contains([]string{"APPROVED", "REJECTED", "EXPIRED"}, o.state) || o.at == nil {
		t.fault("%s (%s) is not decided: %q", q.id, q.approval, o.state)
		return
	}
	if o.entries != 2 || o.grants != 0 {
		t.fault("%s: its stream says %d times that it was asked and decided, and it left %d grants", q.id, o.entries, o.grants)
	}
	racing := 0
	won := []string{}
	for _, who := range q.actors {
		if !who.acted {
			t.count("acts: the button was gone, or the card had not come")
			continue
		}
		racing++
		t.count("acts: " + strings.Fields(who.surface)[0])
		if user, ok := strings.CutPrefix(who.surface, "user "); ok {
			t.user(q, who, user, o)
			if who.status == http.StatusOK {
				won = append(won, who.surface)
			}
		}
	}
	t.count(fmt.Sprintf("raced for by %d", racing))
	if len(won) > 1 || len(won) == 1 && (o.via != "API" || "user "+o.by != won[0]) {
		t.fault("%s: %q were told that it is their decision; it is %s", q.id, won, o.says())
	}
	if o.via != "" && !slices.ContainsFunc(q.actors, func(who *actor) bool {
		return who.acted && q.names(who) == o.by && who.approve == (o.state == "APPROVED")
	}) {
		t.fault("%s is %s, which nobody said", q.id, o.says())
	}
}

// names is what the rows call an actor.
func (q *asked) names(who *actor) string {
	switch who.surface {
	case "WHATSAPP", "TELEGRAM":
		return strings.ToLower(who.surface) + " " + q.asker.chatOf(who.surface)
	}
	return strings.TrimPrefix(who.surface, "user ")
}

// user: whoever comes second by the API is told who was first.
func (t *approvalTable) user(q *asked, who *actor, user string, o outcome) {
	if who.lost > 0 {
		t.count("REST asked again for want of an answer")
	}
	if who.status == http.StatusOK {
		t.count("told by REST: decided")
		return
	}
	var p struct {
		Detail    string
		Approvals []struct{ State string }
	}
	err := json.Unmarshal([]byte(who.answer), &p)
	switch {
	case err == nil && who.status == http.StatusConflict && strings.Contains(p.Detail, "it is decided already: "+o.says()):
		t.count("told by REST: who decided what, and when")
		if o.by == user && o.via == "API" && who.lost == 0 {
			t.fault("%s: %s decided it and was told that it was decided already", q.id, user)
		}
	case err == nil && who.status == http.StatusConflict && !who.ended.Before(o.end) && strings.Contains(p.Detail, "its time is over"):
		t.count("told by REST: its time is over")
	default:
		t.fault("%s: it is %s, and %s was told %d %s", q.id, o.says(), user, who.status, who.answer)
	}
}

// start: what was approved starts at most once, what was not never does.
func (t *approvalTable) start(q *asked, o outcome, starts []string) {
	if n := len(starts); n > 1 || n > 0 && o.state != "APPROVED" {
		t.fault("%s is %s and left %d starts: %q", q.id, o.says(), n, starts)
	}
	if o.state != "APPROVED" {
		if o.executions != 0 || o.usedUp {
			t.fault("%s is %s and has %d executions", q.id, o.says(), o.executions)
		}
		t.count("not approved, call " + o.call)
		return
	}
	t.count(fmt.Sprintf("approved, execution %s, started %d times", o.execution, len(starts)))
	if o.executions != 1 || !o.usedUp {
		t.fault("%s is %s and has %d executions (used up: %t); call %s: %s", q.id, o.says(), o.executions, o.usedUp, o.call, o.result)
	}
	if o.execution == "COMPLETED" && len(starts) != 1 {
		t.fault("%s is COMPLETED and left %d starts", q.id, len(starts))
	}
}

// card: what stands on the phone is the outcome, and nothing can be tapped.
func (t *approvalTable) card(q *asked, c shownCard, o outcome) {
	kind := c.channel + " notices"
	if c.asks {
		kind = c.channel + " cards"
	}
	lines := t.w.linesOf(q.asker, c.channel)
	find := func(id string) (person.Line, bool) {
		at := slices.IndexFunc(lines, func(l person.Line) bool { return id != "" && l.ID == id })
		if at < 0 {
			return person.Line{}, false
		}
		return lines[at], true
	}
	said, _ := find(c.outcomeID)
	shown, stands := find(c.providerID)
	switch {
	case c.state == "UNKNOWN":
		t.count(kind + ": in doubt (their sender died)")
	case !stands:
		t.fault("%s: its card (%s, %q) is not on the phone", q.id, c.state, c.providerID)
		return
	}
	switch {
	case c.outcome == "UNKNOWN":
		t.count(kind + ": the outcome is in doubt (its sender died)")
		if c.channel == "TELEGRAM" && stands {
			t.fault("%s: its card could have been edited again: %s", q.id, c.reason)
		}
	case c.outcome != "SENT" && c.outcome != "DELIVERED" && c.outcome != "READ":
		t.fault("%s: the outcome on its card in %s is %q: %s", q.id, c.chat, c.outcome, c.reason)
	case c.channel == "TELEGRAM" && stands && shown.Edited:
		if len(shown.Choices) > 0 || !strings.Contains(shown.Text, o.words()) {
			t.fault("%s: its card has %d buttons and says %q; it is %s", q.id, len(shown.Choices), shown.Text, o.says())
			return
		}
		t.count(kind + ": edited to the outcome, no buttons left")
	case c.channel == "TELEGRAM" && stands:
		t.fault("%s: its card was not edited: %q", q.id, shown.Text)
	case !strings.Contains(said.Text, o.words()):
		t.fault("%s: its outcome says %q; it is %s", q.id, said.Text, o.says())
	case stands && said.ReplyTo == "" && c.attempts > 1: // what it is called came as evidence, once the outcome was out
		t.count(kind + ": the outcome said, when nobody knew yet what the card is called")
	case stands && said.ReplyTo != c.providerID:
		t.fault("%s: its outcome is said in answer to %q, not to its card", q.id, said.ReplyTo)
	default:
		t.count(kind + ": the outcome said in answer")
	}
}

// unsaid is what a tap that did not count wants to be told.
type unsaid struct {
	account, chat, text string
	end                 time.Time // from then on its time being over is an answer, too
}

// losers: every tap that did not count left words in its chat that say who decided
// what, and when. Who taps behind the end, while one that came before it is still
// on its way, learns that the time is over.
func (t *approvalTable) losers(all []*asked, outcomes map[string]outcome) {
	var open []unsaid
	for _, q := range all {
		o := outcomes[q.approval]
		for _, who := range q.actors {
			if !who.acted || who.surface != "WHATSAPP" && who.surface != "TELEGRAM" || q.names(who) == o.by {
				continue
			}
			account := q.asker.number
			if who.surface == "TELEGRAM" {
				account = q.asker.bot
			}
			open = append(open, unsaid{account, q.asker.chatOf(who.surface), "Nothing was done: it is decided already: " + o.says() + ".", o.end})
		}
	}
	slices.SortFunc(open, func(a, b unsaid) int { return b.end.Compare(a.end) }) // of two that want the same, one may have another answer yet
	rows, err := t.w.db.Query(t.w.t.Context(), `SELECT n.account, n.chat, r.text, m.created_at, r.state FROM replies r JOIN messages m USING (message_id) JOIN sessions n ON n.session_id = r.session_id
		WHERE r.text LIKE 'Nothing was done: %' ORDER BY m.created_at`)
	t.w.must(err)
	var told unsaid // end: when
	var state string
	var late []unsaid
	said := func(wants func(unsaid) bool) bool {
		i := slices.IndexFunc(open, func(u unsaid) bool { return u.account == told.account && u.chat == told.chat && wants(u) })
		if i >= 0 {
			open = slices.Delete(open, i, i+1)
		}
		return i >= 0
	}
	_, err = pgx.ForEachRow(rows, []any{&told.account, &told.chat, &told.text, &told.end, &state}, func() error {
		if said(func(u unsaid) bool { return u.text == told.text }) {
			t.count("told by tap: who decided what, and when")
		} else {
			late = append(late, told)
		}
		if state == "UNKNOWN" {
			t.count("told by tap: in doubt (its sender died)")
		} else if state != "SENT" && state != "DELIVERED" && state != "READ" {
			t.fault("%s in chat %s: told %q, which is %s", told.account, told.chat, told.text, state)
		}
		return nil
	})
	t.w.must(err)
	for _, told = range late { // these words do not say what they are about
		if told.text == "Nothing was done: its time is over." && said(func(u unsaid) bool { return !told.end.Before(u.end) }) {
			t.count("told by tap: its time is over")
			continue
		}
		t.fault("%s in chat %s: told %q, which nobody was to be told", told.account, told.chat, told.text)
	}
	for _, u := range open {
		t.fault("%s in chat %s: nobody was told %q", u.account, u.chat, u.text)
	}
}

func (t *approvalTable) print(k *approvalKiller) {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, what := range slices.Sorted(maps.Keys(t.counts)) {
		fmt.Fprintf(table, "  %s\t%d\n", what, t.counts[what])
	}
	fmt.Fprintf(table, "  faults\t%d\n  functions killed\t%d\n  processes that died of it\t%d\n", t.faults, k.deaths, k.died)
	for _, at := range slices.Sorted(maps.Keys(k.done)) {
		fmt.Fprintf(table, "    %s\t%d\n", at, k.done[at])
	}
	c := t.w.cluster.Counts()
	fmt.Fprintf(table, "  processes started\t%d\n  processes that ended by themselves\t%d\n", sum(c.Starts), sum(c.Crashes))
	_ = table.Flush() // to memory
	t.w.t.Logf("counts\n%s", b.String())
}
