package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// visitsStatement is visitsSQL with the windows of what commands printed.
var visitsStatement = strings.NewReplacer("$stdout", windowSQL("stdout"), "$stderr", windowSQL("stderr")).Replace(visitsSQL)

// RunCommit is everything one step of a workflow run decided. It commits as a
// whole under the claim's token and releases the lease, as a StepCommit does.
type RunCommit struct {
	Claim  *Claim
	State  harness.SessionState
	Reason string     // for people; empty when all is well
	Ended  bool       // the run is over
	Due    *time.Time // when to look again, if nothing happens before; nil: then

	Visits     []VisitChange
	Children   []NewChild
	Executions []NewVisitExecution
	Approvals  []NewApproval
	Replies    []RunReply
	Origin     *harness.Session  // where Replies go; nil: they are kept in the run
	Cancel     []harness.VisitID // what these asked for ends
	Logs       []harness.LogEntry
}

// VisitChange is a visit that is new or has changed.
type VisitChange struct {
	ID       harness.VisitID
	Seq      int // its place in the run, from 1
	Node     string
	Number   int
	State    harness.VisitState
	Attempt  int
	Arrivals []harness.VisitID
	Output   json.RawMessage
	Reason   string
	Due      *time.Time
	Begins   bool   // an attempt begins
	Input    string // of it
}

// NewChild is a conversation of a visit with an agent.
type NewChild struct {
	Visit   harness.VisitID
	Attempt int
	Agent   harness.AgentName
	Session harness.SessionID
	Message harness.MessageID
	Text    string // the prompt
	Person  string // whom the run is for, as their channel names them; empty: nobody
}

// NewVisitExecution is a command of a visit.
type NewVisitExecution struct {
	Visit   harness.VisitID
	Attempt int
	Agent   harness.AgentName
	NewExecution
}

// RunReply is a text for whoever started the run.
type RunReply struct {
	Message harness.MessageID
	Reply   harness.ReplyID
	Text    string
}

// childIdle is when a conversation of a visit ends by itself that is answered.
const childIdle = 60 // seconds

// CommitRun writes c in one round trip and returns the events to publish.
// ErrLeaseLost: somebody else has claimed the run since; nothing is written.
func (s *Store) CommitRun(ctx context.Context, c RunCommit) ([]event.Event, error) {
	w := runWriter{Batch: &pgx.Batch{}, c: c, now: s.now()}
	w.locks()
	w.cancel() // it looks at what the visits had
	w.visits()
	for _, child := range c.Children {
		w.child(child)
	}
	for _, x := range c.Executions {
		w.execution(x)
	}
	for _, a := range c.Approvals {
		asker{w.Batch, w.now, &w.events}.ask(a, c.Claim)
		w.Queue(`WITH s AS (UPDATE sessions SET event_seq = event_seq + 1 WHERE session_id = $1 RETURNING event_seq)
			INSERT INTO session_events (session_id, seq, kind, ref) SELECT $1, event_seq, 'APPROVAL', $2 FROM s`, c.Claim.ID, a.ID)
	}
	for _, r := range c.Replies {
		w.reply(r)
	}
	for _, l := range c.Logs {
		w.Queue(`SELECT log_entry($1, $2, $3, $4, $5, $6)`, l.Agent, l.Session, l.Node, l.Level, l.Message, l.GuardrailResult)
	}
	w.session()
	if len(c.Cancel) > 0 {
		wake(w.Batch, c.Claim.Session.Agent, &w.events) // other agents' waiters are woken by the sweep
	}
	for _, a := range w.announcements {
		announce(w.Batch, a)
		w.events = append(w.events, a.Event)
	}
	if err := s.batch(ctx, w.Batch, nil); err != nil {
		return nil, err
	}
	return w.events, nil
}

// runWriter queues the statements of a run's step in the order they must run.
type runWriter struct {
	*pgx.Batch
	c             RunCommit
	now           time.Time
	announcements []announcement
	events        []event.Event
}

// lockRunAgentsSQL locks the agents of run $1, in order.
const lockRunAgentsSQL = `SELECT 1 FROM agents WHERE agent_name IN (
		SELECT agent_name FROM sessions WHERE session_id = $1
		UNION SELECT n->>'agent' FROM sessions s JOIN workflow_revisions r ON r.workflow_name = s.workflow_name AND r.revision = s.workflow_revision,
			jsonb_array_elements(r.spec->'nodes') n WHERE s.session_id = $1
	) ORDER BY agent_name FOR NO KEY UPDATE`

// openChildren are the conversations of the open visits of run $1.
const openChildren = `(SELECT v.child_session FROM node_visits v WHERE v.session_id = $1 AND v.state = 'RUNNING' AND v.child_session IS NOT NULL)`

// locks takes agents first, where capacity is freed, then sessions in the order
// of their ids: where the run came from, the run, its children.
func (w *runWriter) locks() {
	if len(w.c.Cancel) > 0 {
		w.Queue(lockRunAgentsSQL, w.c.Claim.ID)
	}
	if w.c.Origin != nil && len(w.c.Replies) > 0 || len(w.c.Approvals) > 0 || len(w.c.Cancel) > 0 {
		lockChats(w.Batch, w.c.Claim.ID, w.c.Approvals)
	}
	w.Queue(`SELECT fence_session($1, $2)`, w.c.Claim.ID, w.c.Claim.Token)
	if len(w.c.Cancel) > 0 {
		w.Queue(`SELECT 1 FROM sessions WHERE session_id IN `+openChildren+` ORDER BY session_id FOR NO KEY UPDATE`, w.c.Claim.ID)
	}
}

// cancel ends what visits asked for.
func (w *runWriter) cancel() {
	if len(w.c.Cancel) == 0 {
		return
	}
	const reason, by = "the workflow no longer waits for it", "workflow"
	w.Queue(`UPDATE executions SET state = 'CANCELLED', reason = $2, due_at = NULL, ended_at = now()
		WHERE cause = 'NODE_VISIT' AND cause_id = ANY ($1) AND state = 'PENDING'`, w.c.Cancel, reason)
	w.Queue(cancelRunningSQL("e.cause = 'NODE_VISIT' AND e.cause_id = ANY ($1)"), w.c.Cancel, event.ExecutionRequested).Query(collectCancelled(&w.events))
	w.Queue(`SELECT e.* FROM cancel_approvals(ARRAY(SELECT approval_id FROM approvals WHERE visit_id = ANY ($1) AND state = 'PENDING'), $2, $3) e`, w.c.Cancel, by, reason).
		Query(collectAnnounced(&w.events))
	const children = `IN (SELECT v.child_session FROM node_visits v WHERE v.visit_id = ANY ($1) AND v.child_session IS NOT NULL)`
	w.Queue(cancelSessionsSQL("session_id "+children), w.c.Cancel, reason).Query(collectEnded(&w.events, nil))
	w.Queue(cancelAskedSQL, by, reason).Query(collectAnnounced(&w.events))
	w.Queue(cancelRunningSQL("e.session_id "+children), w.c.Cancel, event.ExecutionRequested).Query(collectCancelled(&w.events))
}

func (w *runWriter) visits() {
	for _, v := range w.c.Visits {
		arrivals := make([]string, len(v.Arrivals))
		for i, id := range v.Arrivals {
			arrivals[i] = string(id)
		}
		w.Queue(`INSERT INTO node_visits AS v (visit_id, session_id, seq, node_id, visit, state, attempts, arrivals, input, output, reason, due_at, started_at, ended_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, CASE WHEN $13 THEN now() END, CASE WHEN $6 IN ('DONE', 'FAILED', 'CANCELLED') THEN now() END)
			ON CONFLICT (visit_id) DO UPDATE SET state = EXCLUDED.state, attempts = EXCLUDED.attempts, arrivals = EXCLUDED.arrivals,
				input = CASE WHEN $13 THEN EXCLUDED.input ELSE v.input END, output = EXCLUDED.output, reason = EXCLUDED.reason, due_at = EXCLUDED.due_at,
				started_at = CASE WHEN $13 THEN now() ELSE v.started_at END, ended_at = EXCLUDED.ended_at`,
			v.ID, w.c.Claim.ID, v.Seq, v.Node, v.Number, v.State, v.Attempt, arrivals, v.Input, v.Output, v.Reason, v.Due, v.Begins)
	}
}

// child opens a conversation with an agent, whose first message is the prompt.
// Its chat names the attempt: there is never a second one. Whom it asks is asked
// where the run came from.
func (w *runWriter) child(c NewChild) {
	claim := w.c.Claim
	person := c.Person
	if person == "" {
		person = "workflow/" + claim.Account
	}
	w.Queue(`WITH opened AS (
			INSERT INTO sessions (session_id, agent_name, channel, account, chat, state, message_seq, due_at, idle_seconds, traceparent, parent_visit, origin_session)
			SELECT $1, $2, 'API', $2, $3::text || '/' || $4::int, 'PENDING', 1, now(), $5, $6, $3, r.origin_session FROM sessions r WHERE r.session_id = $10
			RETURNING session_id
		), asked AS (
			INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text)
			SELECT $7, session_id, 1, 'INBOUND', 'PENDING', $8, $9 FROM opened
		) UPDATE node_visits SET child_session = $1 WHERE visit_id = $3`,
		c.Session, c.Agent, c.Visit, c.Attempt, childIdle, claim.TraceParent, c.Message, person, c.Text, claim.ID)
	w.announcements = append(w.announcements, announcement{
		Event: event.Event{
			ID: "message.received:" + string(c.Message), Type: event.MessageReceived, Session: c.Session, Agent: c.Agent, Channel: harness.ChannelAPI,
			TraceParent: claim.TraceParent, Payload: event.Payload{Session: c.Session, Message: c.Message},
		},
		subject: string(c.Session),
	})
}

// execution asks for a command. Agents of one run that have the same sandbox
// spec have sandboxes of their own all the same: each counts against the cap of
// the agent it is of.
func (w *runWriter) execution(x NewVisitExecution) {
	claim := w.c.Claim
	digest := x.Spec.Digest()
	if x.Agent != claim.Session.Agent {
		sum := sha256.Sum256([]byte(string(x.Agent) + "/" + digest))
		digest = hex.EncodeToString(sum[:16])
	}
	w.Queue(`INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, cause_attempt, command, spec, spec_digest, max_sandboxes, state, nonce, due_at)
		VALUES ($1, $2, $3, 'NODE_VISIT', $4, $5, $6, $7, $8, $9, 'PENDING', $10, now())`,
		x.ID, claim.ID, x.Agent, x.Visit, x.Attempt, x.Command, x.Spec, digest, x.MaxSandboxes, x.Nonce)
	w.announcements = append(w.announcements, announcement{
		Event: event.Event{
			ID: executionRequestedID + string(x.ID), Type: event.ExecutionRequested, Session: claim.ID, Agent: x.Agent,
			TraceParent: claim.TraceParent, Payload: event.Payload{Session: claim.ID, Execution: x.ID},
		},
		subject: string(x.ID),
	})
}

// runReplySQL writes outbound message $1 into session $2, with one part $3. $5
// says that somebody has to send it. Channels send to the chat, whoever wrote
// there last.
const runReplySQL = `
WITH s AS (
    UPDATE sessions SET message_seq = message_seq + 1, event_seq = event_seq + 1 WHERE session_id = $2 RETURNING message_seq, event_seq
), m AS (
    INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text)
    SELECT $1, $2, message_seq, 'OUTBOUND', 'DONE',
           COALESCE((SELECT i.channel_user_id FROM messages i WHERE i.session_id = $2 AND i.direction = 'INBOUND' ORDER BY i.seq DESC LIMIT 1), ''), $4 FROM s
    RETURNING seq
), told AS (
    INSERT INTO session_events (session_id, seq, kind, ref) SELECT $2, event_seq, 'REPLY', $1 FROM s
)
INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, due_at)
SELECT $3, $1, $2, seq, 1, 1, $4, CASE WHEN $5 THEN 'PLANNED' ELSE 'DELIVERED' END, CASE WHEN $5 THEN now() END FROM m`

func (w *runWriter) reply(r RunReply) {
	claim := w.c.Claim
	to := claim.Session
	if w.c.Origin != nil {
		to = *w.c.Origin
	}
	send := to.Channel != harness.ChannelAPI
	w.Queue(runReplySQL, r.Message, to.ID, r.Reply, r.Text, send)
	if !send {
		return // nobody sends it: whoever asks reads it where it is
	}
	w.announcements = append(w.announcements, announcement{
		Event: event.Event{
			ID: "message.reply:" + string(r.Message), Type: event.MessageReply, Session: to.ID, Agent: to.Agent, Channel: to.Channel,
			TraceParent: claim.TraceParent, Payload: event.Payload{Session: to.ID, Message: r.Message},
		},
		subject: string(r.Message),
	})
}

// session writes the run's state, releases the lease and says when it is due: at
// once where work was added meanwhile, or with the next of its timers, of which
// an announcement for that time makes a wake.
func (w *runWriter) session() {
	claim := w.c.Claim
	timer := sessionDue(claim.ID, claim.Session.Agent, fmt.Sprint(claim.Token))
	w.Queue(`WITH s AS (
			UPDATE sessions SET state = $2, reason = CASE WHEN ended_at IS NULL THEN $3 ELSE reason END, lease_owner = NULL, lease_until = NULL, attempts = 0, retry_at = NULL, updated_at = now(),
				due_at = CASE WHEN $4 THEN NULL ELSE least(due_at, $5) END, ended_at = CASE WHEN $4 THEN COALESCE(ended_at, now()) END
			WHERE session_id = $1 RETURNING session_id, agent_name, traceparent, due_at
		), woken AS (
			INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, payload, traceparent, due_at)
			SELECT $6, $7, session_id, session_id, agent_name, jsonb_build_object('session', session_id), traceparent,
			       greatest(due_at, CASE WHEN due_at <= now() THEN now() + interval '`+announceAgain+`' END)
			FROM s WHERE due_at IS NOT NULL ON CONFLICT (event_id) DO NOTHING
		) SELECT COALESCE(due_at <= now(), false) FROM s`,
		claim.ID, w.c.State, w.c.Reason, w.c.Ended, w.c.Due, timer.ID, event.SessionDue).QueryRow(func(row pgx.Row) error {
		var due bool
		err := row.Scan(&due)
		if due {
			w.events = append(w.events, timer.Event)
		}
		return err
	})
}

// markParentSQL makes the run due that conversation $1 is a part of, $2 being
// what tells the marks of one conversation apart.
const markParentSQL = `
WITH marked AS (
    UPDATE sessions p SET due_at = least(p.due_at, now())
    FROM sessions c JOIN node_visits v ON v.visit_id = c.parent_visit
    WHERE c.session_id = $1 AND p.session_id = v.session_id AND p.ended_at IS NULL RETURNING p.session_id, p.agent_name, p.traceparent
), told AS (
    INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, payload, traceparent, due_at)
    SELECT 'session.due:' || session_id || ':' || $2::text, $3, session_id, session_id, agent_name, jsonb_build_object('session', session_id), traceparent, now() + interval '` + announceAgain + `'
    FROM marked ON CONFLICT (event_id) DO NOTHING
) SELECT session_id, agent_name FROM marked`

// lockParentSQL locks the run that conversation $1 is a part of, if it is one: it
// is older, so it comes first.
const lockParentSQL = `SELECT 1 FROM sessions WHERE session_id = (
	SELECT v.session_id FROM sessions c JOIN node_visits v ON v.visit_id = c.parent_visit WHERE c.session_id = $1) FOR NO KEY UPDATE`

func markParent(b *pgx.Batch, child harness.SessionID, of string, events *[]event.Event) {
	b.Queue(markParentSQL, child, of, event.SessionDue).Query(each(func(row pgx.CollectableRow) error {
		var id harness.SessionID
		var agent harness.AgentName
		err := row.Scan(&id, &agent)
		*events = append(*events, sessionDue(id, agent, of).Event)
		return err
	}))
}
