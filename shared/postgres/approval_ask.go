package postgres

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// NewApproval asks a human. It is written with the row that waits for the answer.
type NewApproval struct {
	ID      harness.ApprovalID
	Call    harness.ToolCallID // that waits for it; empty: Visit does, or the turn
	Visit   harness.VisitID    // of a workflow's node
	Node    string             // its id
	Title   string             // what is asked, in one line
	Subject harness.ApprovalSubject
	Terms   harness.ApprovalTerms
	Person  string         // whose message led to it, as their channel names them: who decides when Terms names nobody
	Context map[string]any // what else deciders are shown

	Kind     harness.ApprovalKind // BUDGET or GUARDRAIL: the turn itself waits; empty: Call or Visit does
	Message  harness.MessageID    // of that turn
	Proposal *Proposal            // of GUARDRAIL
}

// CallRun hands on what was approved: the call runs, and its approval is used up.
type CallRun struct {
	Call     harness.ToolCallID
	Approval harness.ApprovalID
	NewExecution
}

// Choices on a card: the verdict behind the last dot.
const (
	tapApprove = "a"
	tapSession = "s"
	tapReject  = "r"
)

// digestPart is how much of a digest a tap brings back: a card of what was
// changed since decides nothing.
const digestPart = 12

func cardChoices(id harness.ApprovalID, digest string, s harness.ApprovalSubject) []harness.Choice {
	tap := func(verdict, title string) harness.Choice {
		return harness.Choice{ID: fmt.Sprintf("%s.%s.%s", id, digest[:min(digestPart, len(digest))], verdict), Title: title}
	}
	if !s.Repeats() {
		return []harness.Choice{tap(tapApprove, "Approve"), tap(tapReject, "Reject")}
	}
	return []harness.Choice{tap(tapApprove, "Approve"), tap(tapSession, "Approve in session"), tap(tapReject, "Reject")}
}

// code is what somebody types who cannot tap: six digits, which mean something
// only in a chat that holds the card.
func code() string {
	n, err := rand.Int(rand.Reader, big.NewInt(1_000_000))
	if err != nil { // never fails since Go 1.24
		panic(err)
	}
	return fmt.Sprintf("%06d", n)
}

// surfaces are the people among approvers who are asked on a channel.
func surfaces(approvers []harness.Approver) (channels, people []string) {
	for _, by := range approvers {
		if by.Channel != "" {
			channels, people = append(channels, string(by.Channel)), append(people, by.ChannelUserID)
		}
	}
	return channels, people
}

// approvals queues the questions of a step. The sessions that hold their cards
// were locked by lockApprovals.
func (w *stepWriter) approvals() {
	for _, a := range w.c.Approvals {
		asker{w.Batch, w.now, &w.announced}.ask(a, w.c.Claim)
		w.tell("APPROVAL", string(a.ID))
	}
}

// lockApprovals locks, before all else, every session that the step writes to.
func (w *stepWriter) lockApprovals() {
	if len(w.c.Approvals) > 0 || w.c.Claim.Asking() && len(w.c.Reply) > 0 {
		lockChats(w.Batch, w.c.Claim.ID, w.c.Approvals)
	}
}

// lockChats locks session id, the conversation that its people are in, those that
// hold cards of its open questions, and those that are to hold cards of asked.
func lockChats(b *pgx.Batch, id harness.SessionID, asked []NewApproval) {
	channels, people := []string{""}, []string{""} // the session's own chat
	for _, a := range asked {
		c, p := surfaces(a.Terms.Approvers)
		channels, people = append(channels, c...), append(people, p...)
	}
	b.Queue(`SELECT lock_chats($1, $2, $3)`, id, channels, people)
}

// asker queues questions.
type asker struct {
	*pgx.Batch
	now       time.Time
	announced *[]event.Event
}

// ask writes approval a of the claimed session.
func (w asker) ask(a NewApproval, claim *Claim) {
	s, origin := claim.Session, claim.Origin
	approvers, own := a.Terms.Approvers, false
	if len(approvers) == 0 && origin != harness.ChannelAPI && a.Person != "" {
		approvers, own = []harness.Approver{{Channel: origin, ChannelUserID: a.Person}}, true
	}
	if approvers == nil {
		approvers = []harness.Approver{}
	}
	digest, number := a.Subject.Digest(), code()
	subject := a.Subject
	subject.Arguments = harness.CanonicalJSON(subject.Arguments)
	if a.Context == nil {
		a.Context = map[string]any{}
	}
	waits := a.Terms.OnTimeout == harness.TimeoutWait || a.Terms.Timeout == 0
	var call, visit, kind, message *string
	if a.Kind != "" {
		text, of := string(a.Kind), string(a.Message)
		kind, message = &text, &of
	}
	if a.Call != "" {
		text := string(a.Call)
		call = &text
	}
	if a.Visit != "" {
		text := string(a.Visit)
		visit = &text
	}
	w.Queue(`INSERT INTO approvals (approval_id, session_id, agent_name, node_id, tool_call_id, visit_id, title, input, digest, state, approvers, quorum, on_timeout,
			short_code, context, expires_at, reminders, escalate_at, escalation, due_at, kind, message_id, proposal)
		SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, 'PENDING', $10, $11, $12, $13, $14, t.expires_at, t.reminders, t.escalate_at, $18,
			least(t.expires_at, t.escalate_at, (SELECT min(r) FROM unnest(t.reminders) r)), $19, $20, $21
		FROM (SELECT CASE WHEN $15::interval > interval '0' THEN now() + $15::interval END AS expires_at,
			ARRAY(SELECT now() + r FROM unnest($16::interval[]) r WHERE $15::interval = interval '0' OR r < $15::interval) AS reminders,
			CASE WHEN $17::interval > interval '0' THEN now() + $17::interval END AS escalate_at) t`,
		a.ID, s.ID, s.Agent, a.Node, call, visit, harness.CleanText(a.Title), subject, digest, approvers, max(1, a.Terms.Quorum), orReject(a.Terms.OnTimeout),
		number, a.Context, timeoutOf(a.Terms, waits), a.Terms.Reminders, a.Terms.EscalateAfter, orNobody(a.Terms.EscalateTo), kind, message, a.Proposal)
	card := question{Title: a.Title, Subject: subject, Context: a.Context, Code: number, OnTimeout: a.Terms.OnTimeout}
	if !waits {
		until := w.now.Add(a.Terms.Timeout)
		card.Until = &until
	}
	body := card.text()
	if own {
		w.cards(a.ID, []string{""}, []string{a.Person}, body, cardChoices(a.ID, digest, subject))
		return
	}
	if channels, people := surfaces(approvers); len(channels) > 0 {
		w.cards(a.ID, channels, people, body, cardChoices(a.ID, digest, subject))
	}
	// Whoever wrote is told too, unless their chat is one of those: it holds the
	// card then, and this has no effect.
	w.cards(a.ID, []string{""}, []string{a.Person}, waitText(a, approvers), []harness.Choice{})
}

func (w asker) cards(id harness.ApprovalID, channels, people []string, body string, choices []harness.Choice) {
	sessions, messages := freshIDs(w.now, len(people))
	w.Queue(`SELECT * FROM send_cards($1, $2, $3, $4, $5, $6, $7)`, id, channels, people, sessions, messages, body, choices).Query(collectAnnounced(w.announced))
}

// freshIDs names a session and a message for each of n people.
func freshIDs(now time.Time, n int) (sessions, messages []string) {
	for range n {
		sessions, messages = append(sessions, string(harness.NewSessionID(now))), append(messages, string(harness.NewMessageID(now)))
	}
	return sessions, messages
}

func timeoutOf(t harness.ApprovalTerms, waits bool) time.Duration {
	if waits {
		return 0
	}
	return t.Timeout
}

func orReject(a harness.TimeoutAction) harness.TimeoutAction {
	if a == "" {
		return harness.TimeoutReject
	}
	return a
}

func orNobody(list []harness.Approver) []harness.Approver {
	if list == nil {
		return []harness.Approver{}
	}
	return list
}

// question is what a card says.
type question struct {
	Title     string
	Subject   harness.ApprovalSubject
	Context   map[string]any
	Code      string
	Until     *time.Time // nil: it waits
	OnTimeout harness.TimeoutAction
}

// questionOf is what the card of an approval says.
func questionOf(a view.Approval) (question, error) {
	q := question{Title: a.Title, Context: a.Context, Code: a.Code, Until: a.ExpiresAt, OnTimeout: a.OnTimeout}
	if err := json.Unmarshal(a.Input, &q.Subject); err != nil {
		return q, harness.Wrap(harness.Internal, err, "an approval's input cannot be read")
	}
	return q, nil
}

// text is what an approver reads: exactly what is asked, then what it is about
// and until when.
func (q question) text() string {
	var text strings.Builder
	text.WriteString(q.Title)
	if asked := q.Subject.Text(); asked != q.Title {
		text.WriteString("\n" + asked)
	}
	for _, name := range slices.Sorted(maps.Keys(q.Context)) {
		fmt.Fprintf(&text, "\n%s: %v", name, q.Context[name])
	}
	if q.Until != nil {
		then := "not done"
		if q.OnTimeout == harness.TimeoutProceed {
			then = "done"
		}
		fmt.Fprintf(&text, "\nUntil %s UTC; then it is %s.", q.Until.UTC().Format("2006-01-02 15:04"), then)
	}
	fmt.Fprintf(&text, "\nTap, or write: approve %s, or: reject %s and why.", q.Code, q.Code)
	return text.String()
}

func (q question) reminder(now time.Time) string {
	text := "Reminder: " + q.Title + " still waits for a decision."
	if q.Until != nil {
		text += fmt.Sprintf(" Its time ends in %s.", q.Until.Sub(now).Round(time.Minute))
	}
	return text + fmt.Sprintf(" Tap on its card, or write: approve %s, or: reject %s and why.", q.Code, q.Code)
}

func waitText(a NewApproval, approvers []harness.Approver) string {
	names := make([]string, 0, len(approvers))
	for _, by := range approvers {
		names = append(names, by.String())
	}
	if len(names) == 0 {
		names = append(names, "an operator")
	}
	return a.Title + "\nI go on when this is approved by " + strings.Join(names, " or ") + "."
}

// collectAnnounced reads rows of type announced.
func collectAnnounced(events *[]event.Event) func(pgx.Rows) error {
	return each(func(row pgx.CollectableRow) error {
		var e event.Event
		err := row.Scan(&e.ID, &e.Type, &e.Session, &e.Agent, &e.Channel, &e.Payload.Message, &e.TraceParent)
		e.Payload.Session = e.Session
		*events = append(*events, e)
		return err
	})
}

// runs hands on what was approved. The approval is used up by the commit that
// starts the call, so that it starts once.
func (w *stepWriter) runs() {
	for _, r := range w.c.Runs {
		w.Queue(`UPDATE approvals SET consumed_at = now() WHERE approval_id = $1 AND consumed_at IS NULL`, r.Approval)
		w.Queue(`UPDATE tool_calls SET state = 'RUNNING' WHERE tool_call_id = $1 AND state = 'PENDING'`, r.Call)
		w.execution(harness.CauseToolCall, string(r.Call), &r.NewExecution)
	}
}
