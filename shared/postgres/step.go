package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// StepCommit is everything one step decided. It commits as a whole under the
// claim's token, releases the lease, and returns the session's mark if work was
// added meanwhile.
type StepCommit struct {
	Claim  *Claim
	State  harness.SessionState
	Reason string // for people; empty when all is well

	Start   bool          // the last turn's message is PENDING and starts now
	Results []CallOutcome // calls that ended
	Runs    []CallRun     // calls that were approved and run now
	Step    *NewStep      // what the model answered
	Unkept  *NewStep      // what it answered and is not written, but counts in its turn
	Counted bool          // Step was Unkept before

	Approvals []NewApproval        // what humans are asked before it is done
	Grants    []harness.ApprovalID // of BUDGET that were given: what they grant holds from now on
	Consumed  []harness.ApprovalID // of GUARDRAIL that were decided: what follows is in this commit

	Reply    []string         // the answer, one row each: ends the turn; the files that its commands made go out behind it
	Choices  []harness.Choice // of the last row of Reply, to be tapped
	End      bool             // the conversation is COMPLETED, whatever State; messages that wait open a new one
	Again    bool             // there is more to do at once
	Look     time.Duration    // > 0: it waits for files, and is due when they are there, or after this long
	Fetch    bool             // images that came with the message of the turn are needed
	Retry    time.Duration    // > 0: nothing was achieved; look again after this long
	Run      *NewRun          // a workflow run that the turn started
	Lists    []NewExecution   // servers that are asked what they offer, before the model is
	Withhold bool             // files that the turn's commands made do not go out

	Screened []Screening  // messages that models may see from now on
	Verdicts []NewVerdict // of the step's guardrails
	Attempts []NewAttempt // questions to models, in order
	Summary  *Summary     // that a model has made, or that stands for one
	Logs     []harness.LogEntry

	Model      string           // that Spent is counted for
	Unanswered bool             // the model gave no answer
	Spent      harness.Spending // by this step, but for its commands, which count when they end
	Reserved   []Reservation    // for it: given back now, but for what its commands hold
}

// CallOutcome ends one tool call.
type CallOutcome struct {
	ID     harness.ToolCallID
	State  harness.ToolCallState
	Result string
}

// NewStep is a model's answer and the calls it asks for.
type NewStep struct {
	ID                        harness.StepID
	Text, Model, Carry        string
	InputTokens, OutputTokens int64
	CacheRead, CacheWrite     int64 // of InputTokens
	Calls                     []NewCall
}

// NewCall is one call: with an Execution it is RUNNING, with a Result it has
// ended already (a call that could not be started still has its one result), and
// else it is PENDING: a Remote one until a step makes it, and any that one of the
// step's Approvals names until a human has answered.
type NewCall struct {
	CallOutcome
	ProviderID, Name, Arguments string
	Execution                   *NewExecution
	Remote                      *harness.RemoteTool
}

// Command reports whether the call runs a command, or will once it is approved.
func (c NewCall) Command() bool {
	return c.Execution != nil || !c.State.Ended() && (c.Remote == nil || c.Remote.Program != "")
}

// NewExecution is a command to run.
type NewExecution struct {
	ID           harness.ExecutionID
	Command      string
	Spec         harness.SandboxSpec
	MaxSandboxes int
	Nonce        string
	Reserved     *Reservation // of its time limit; nil: its agent has no budget of a day
}

// CommitStep writes c in one round trip and returns the events to publish.
// ErrLeaseLost: somebody else has claimed the session since; nothing is written.
func (s *Store) CommitStep(ctx context.Context, c StepCommit) (pending []event.Event, err error) {
	err = again(func() error { // chats that it opens are locked in no order
		pending, err = s.commitStep(ctx, c)
		return err
	})
	return pending, err
}

func (s *Store) commitStep(ctx context.Context, c StepCommit) ([]event.Event, error) {
	b := &pgx.Batch{}
	if c.Claim.Parent != "" {
		b.Queue(lockParentSQL, c.Claim.ID)
	}
	w := stepWriter{Batch: b, c: c, now: s.now()}
	w.lockApprovals()
	b.Queue(`SELECT fence_session($1, $2)`, c.Claim.ID, c.Claim.Token)
	w.turn()
	w.screen()
	w.fetch()
	w.run()
	w.asked()
	w.step()
	w.attempts()
	w.summary()
	w.verdicts()
	w.approvals()
	w.runs()
	w.lists()
	w.withhold()
	w.reply()
	w.logs()
	w.figures()
	w.release()
	var due bool
	var opened harness.SessionID
	w.session(&due)
	if c.End {
		w.handOver(&opened)
	}
	for _, a := range w.announcements {
		announce(b, a)
	}
	if c.Claim.Parent != "" && (len(c.Reply) > 0 || c.End) {
		markParent(b, c.Claim.ID, fmt.Sprintf("%s:%d", c.Claim.ID, c.Claim.Token), &w.announced)
	}
	w.countVerdicts()
	if err := s.batch(ctx, b, nil); err != nil {
		return nil, err
	}
	pending := w.announced
	for _, a := range w.announcements {
		pending = append(pending, a.Event)
	}
	if due {
		pending = append(pending, w.wake().Event)
	}
	if opened != "" {
		pending = append(pending, sessionDue(opened, c.Claim.Session.Agent, "opened").Event)
	}
	return pending, nil
}

// stepWriter queues a step's statements in the order they must run.
type stepWriter struct {
	*pgx.Batch
	c             StepCommit
	now           time.Time
	announcements []announcement
	announced     []event.Event // by functions of the database
	kinds, refs   []string      // session events
}

func (w *stepWriter) turn() {
	if w.c.Start {
		message := w.c.Claim.Turns[len(w.c.Claim.Turns)-1].Message
		w.Queue(`UPDATE messages SET state = 'RUNNING' WHERE message_id = $1 AND state = 'PENDING'`, message)
		w.tell("TURN", string(message))
	}
	for _, r := range w.c.Results {
		w.Queue(`UPDATE tool_calls SET state = $2, result = $3, ended_at = now() WHERE tool_call_id = $1 AND state IN ('PENDING', 'RUNNING')`, r.ID, r.State, r.Result)
		w.tell("TOOL_RESULT", string(r.ID))
	}
}

// run starts a workflow run, at most one per message.
func (w *stepWriter) run() {
	if w.c.Run == nil {
		return
	}
	w.Queue(startRunSQL, w.c.Run.args()...)
	w.announcements = append(w.announcements, w.c.Run.wake())
}

func (w *stepWriter) step() {
	step := w.c.Step
	if step == nil {
		return
	}
	claim := w.c.Claim
	w.Queue(`WITH s AS (UPDATE sessions SET step_seq = step_seq + 1 WHERE session_id = $2 RETURNING step_seq)
		INSERT INTO steps (step_id, session_id, message_id, seq, text, model, carry, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens)
		SELECT $1, $2, $3, step_seq, $4, $5, $6, $7, $8, $9, $10 FROM s`,
		step.ID, claim.ID, claim.Turns[len(claim.Turns)-1].Message, step.Text, step.Model, step.Carry, step.InputTokens, step.OutputTokens, step.CacheRead, step.CacheWrite)
	for i, call := range step.Calls {
		var result *string
		if call.State.Ended() {
			result = &call.Result
		}
		w.Queue(`INSERT INTO tool_calls (tool_call_id, step_id, session_id, seq, provider_id, name, arguments, state, result, ended_at, remote)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, CASE WHEN $9::text IS NOT NULL THEN now() END, $10)`,
			call.ID, step.ID, claim.ID, i, call.ProviderID, call.Name, call.Arguments, call.State, result, call.Remote)
		w.tell("TOOL_CALL", string(call.ID))
		if call.State.Ended() {
			w.tell("TOOL_RESULT", string(call.ID))
		}
		if x := call.Execution; x != nil {
			w.execution(harness.CauseToolCall, string(call.ID), x)
		}
	}
}

func (w *stepWriter) execution(cause harness.ExecutionCause, id string, x *NewExecution) {
	claim := w.c.Claim
	w.Queue(`INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce, due_at, reserved_millis, budget_day, budget_user)
		VALUES ($1, $2, $3, $13, $4, $5, $6, $7, $8, 'PENDING', $9, now(), $10, $11, $12)`,
		append([]any{x.ID, claim.ID, claim.Session.Agent, id, x.Command, x.Spec, x.Spec.Digest(), x.MaxSandboxes, x.Nonce}, append(x.reserved(), cause)...)...)
	w.announcements = append(w.announcements, announcement{
		Event: event.Event{
			ID: "execution.requested:" + string(x.ID), Type: event.ExecutionRequested, Session: claim.ID, Agent: claim.Session.Agent,
			TraceParent: claim.TraceParent, Payload: event.Payload{Session: claim.ID, Execution: x.ID},
		},
		subject: string(x.ID),
	})
}

// replySQL writes outbound message $1 and a row for each of its texts. Files that
// commands of the turn made go out behind them, the newest of each path; from
// then on they belong to the message, and it takes the place of the draft. $9 says that somebody has to send them.
const replySQL = `
WITH s AS (
    UPDATE sessions SET message_seq = message_seq + 1 WHERE session_id = $2 RETURNING message_seq
), m AS (
    INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text, in_reply_to)
    SELECT $1, $2, message_seq, 'OUTBOUND', 'DONE', $3, $4, $5 FROM s RETURNING message_id, session_id, seq
), drafted AS (
    UPDATE drafts SET ended_at = now(), text = '', updated_at = now() WHERE message_id = $5 AND ended_at IS NULL
), made AS (
    UPDATE attachments SET message_id = $1, updated_at = now()
    WHERE session_id = $2 AND direction = 'OUTBOUND' AND state = 'STORED' AND message_id IS NULL
    RETURNING attachment_id, path, file_name, created_at
), file AS (
    SELECT attachment_id, file_name, row_number() OVER (ORDER BY created_at, attachment_id) AS n
    FROM (SELECT DISTINCT ON (path) * FROM made ORDER BY path, created_at DESC, attachment_id DESC) newest
), part AS (
    SELECT r.reply_id, r.text, r.n, CASE WHEN r.n = cardinality($6::text[]) AND $8::jsonb <> '[]' THEN 'CHOICES' ELSE 'TEXT' END AS kind, NULL AS attachment_id
    FROM unnest($6::text[], $7::text[]) WITH ORDINALITY AS r (reply_id, text, n)
    UNION ALL
    SELECT 'rpl' || substr(attachment_id, 4), file_name, cardinality($6::text[]) + n, 'FILE', attachment_id FROM file
)
INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, due_at, kind, choices, attachment_id)
SELECT p.reply_id, m.message_id, m.session_id, m.seq, p.n, (SELECT count(*) FROM part), p.text,
       CASE WHEN $9 THEN 'PLANNED' ELSE 'DELIVERED' END, CASE WHEN $9 THEN now() END, p.kind, CASE WHEN p.kind = 'CHOICES' THEN $8::jsonb ELSE '[]' END, p.attachment_id
FROM m, part p`

// reply ends the turn: every call still open gets a result, so that the history
// stays well paired, and the answer's parts are planned.
func (w *stepWriter) reply() {
	if len(w.c.Reply) == 0 {
		return
	}
	claim := w.c.Claim
	turn := claim.Turns[len(claim.Turns)-1]
	id := harness.NewMessageID(w.now)
	var ids []string
	text := ""
	for _, part := range w.c.Reply {
		ids = append(ids, string(harness.NewReplyID(w.now)))
		text += part
	}
	w.Queue(`UPDATE executions SET state = 'CANCELLED', reason = 'the turn ended', ended_at = now()
		WHERE session_id = $1 AND state = 'PENDING' AND cause IN ('TOOL_CALL', 'TOOL_LIST')`, claim.ID)
	w.Queue(`UPDATE tool_calls SET state = 'FAILED', result = 'Interrupted: the turn ended before this call did; its outcome is unknown.', ended_at = now()
		WHERE session_id = $1 AND state IN ('PENDING', 'RUNNING')`, claim.ID)
	if claim.Asking() { // who was asked is told that it is not asked any more
		w.Queue(`SELECT e.* FROM cancel_approvals(ARRAY(SELECT approval_id FROM approvals WHERE session_id = $1 AND state = 'PENDING'), '', 'the turn ended') e`, claim.ID).Query(collectAnnounced(&w.announced))
	}
	w.Queue(`UPDATE messages SET state = 'DONE', run_state = $2 WHERE message_id = $1`, turn.Message, runState(w.c))
	choices := w.c.Choices
	if choices == nil {
		choices = []harness.Choice{}
	}
	w.Queue(replySQL, id, claim.ID, turn.ChannelUserID, text, turn.Message, ids, w.c.Reply, choices, claim.Channel != harness.ChannelAPI)
	// Its own statement, on the locked row: a chat may have begun to show it.
	w.Queue(`DELETE FROM drafts WHERE message_id = $1 AND state = 'PLANNED' AND ended_at IS NOT NULL`, turn.Message)
	w.tell("REPLY", string(id))
	if claim.Channel == harness.ChannelAPI {
		return // nobody sends it: whoever asks reads it where it is
	}
	w.announcements = append(w.announcements, announcement{
		Event: event.Event{
			ID: "message.reply:" + string(id), Type: event.MessageReply, Session: claim.ID, Agent: claim.Session.Agent, Channel: claim.Channel,
			TraceParent: claim.TraceParent, Payload: event.Payload{Session: claim.ID, Message: id},
		},
		subject: string(id),
	})
}

func (w *stepWriter) logs() {
	for _, l := range w.c.Logs {
		w.Queue(`SELECT log_entry($1, $2, $3, $4, $5, $6)`, l.Agent, l.Session, l.Node, l.Level, l.Message, l.GuardrailResult)
	}
}

// session writes the new state, releases the lease and says whether the session
// is due again: marked while it was worked, or with more messages to answer.
func (w *stepWriter) session(due *bool) {
	c, claim := w.c, w.c.Claim
	toolCalls, executions, tokens := 0, 0, int64(0)
	answers := count(c.Step != nil && !c.Counted) + count(c.Unkept != nil)
	if c.Unkept != nil {
		tokens = c.Unkept.InputTokens + c.Unkept.OutputTokens
	}
	if c.Step != nil && !c.Counted {
		toolCalls, tokens = len(c.Step.Calls), tokens+c.Step.InputTokens+c.Step.OutputTokens
		for _, call := range c.Step.Calls {
			if call.Command() {
				executions++
			}
		}
	}
	next := len(c.Reply) > 0 && claim.More && !c.End // the next message's turn
	w.Queue(`WITH s AS (
			UPDATE sessions SET state = CASE WHEN $10 THEN 'COMPLETED' WHEN $3 THEN 'PENDING' ELSE $2 END, reason = $4, lease_owner = NULL, lease_until = NULL, updated_at = now(),
				attempts = CASE WHEN $5::interval > interval '0' THEN attempts ELSE 0 END,
				due_at = CASE WHEN $10 THEN NULL WHEN $5::interval > interval '0' THEN now() + $5::interval WHEN $3 OR $16 THEN now() WHEN $19::interval > interval '0' THEN least(due_at, now() + $19::interval) ELSE due_at END,
				retry_at = CASE WHEN $5::interval > interval '0' THEN now() + $5::interval END,
				turn_steps = CASE WHEN $6 THEN 0 ELSE turn_steps END + $7,
				turn_tool_calls = CASE WHEN $6 THEN 0 ELSE turn_tool_calls END + $8,
				turn_executions = CASE WHEN $6 THEN 0 ELSE turn_executions END + $9,
				turn_tokens = CASE WHEN $6 THEN 0 ELSE turn_tokens END + $11,
				turn_started_at = turn_started_at + CASE WHEN $2 = 'AWAITING_APPROVAL' THEN interval '0' ELSE COALESCE(now() - waiting_since, interval '0') END,
				waiting_since = CASE WHEN $2 = 'AWAITING_APPROVAL' THEN COALESCE(waiting_since, now()) END,
				`+spentSQL+`,
				event_seq = event_seq + cardinality($12::text[]), ended_at = CASE WHEN $10 THEN now() END
			WHERE session_id = $1 RETURNING session_id, agent_name, event_seq, due_at <= now() AS due
		), told AS (
			INSERT INTO session_events (session_id, seq, kind, ref)
			SELECT s.session_id, s.event_seq - cardinality($12::text[]) + e.n, e.kind, e.ref
			FROM s, unnest($12::text[], $13::text[]) WITH ORDINALITY AS e (kind, ref, n)
		), settled AS (
			`+settleSQL+`
		), woken AS (
			INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, payload, due_at)
			SELECT $14, $15, s.session_id, s.session_id, s.agent_name, jsonb_build_object('session', s.session_id), now() + interval '`+announceAgain+`'
			FROM s WHERE s.due ON CONFLICT (event_id) DO NOTHING
		) SELECT COALESCE(due, false) FROM s`,
		claim.ID, c.State, next, c.Reason, c.Retry, c.Start, answers, toolCalls, executions, c.End, tokens,
		orEmpty(w.kinds), orEmpty(w.refs), w.wake().ID, event.SessionDue, c.Again,
		c.Spent.Values(), c.settlements(), c.Look).QueryRow(func(row pgx.Row) error { return row.Scan(due) })
}

// handOver gives messages that wait behind the end of a conversation to the
// next one, opened here or by an arrival meanwhile.
func (w *stepWriter) handOver(opened *harness.SessionID) {
	w.Queue(`WITH waiting AS (
			SELECT message_id, seq FROM messages WHERE session_id = $1 AND state = 'PENDING'
		), opened AS (
			INSERT INTO sessions AS n (session_id, agent_name, channel, account, chat, state, message_seq, due_at, idle_seconds, traceparent)
			SELECT $2, agent_name, channel, account, chat, 'PENDING', (SELECT count(*) FROM waiting), now(), idle_seconds, traceparent
			FROM sessions WHERE session_id = $1 AND EXISTS (SELECT 1 FROM waiting)
			ON CONFLICT (agent_name, channel, account, chat) WHERE state NOT IN ('COMPLETED', 'CANCELLED') DO UPDATE
			SET message_seq = n.message_seq + EXCLUDED.message_seq, due_at = now()
			RETURNING session_id, agent_name, message_seq
		), moved AS (
			UPDATE messages m SET session_id = o.session_id, seq = o.message_seq - (SELECT count(*) FROM waiting) + r.n
			FROM opened o, (SELECT message_id, row_number() OVER (ORDER BY seq) AS n FROM waiting) r WHERE m.message_id = r.message_id
		), woken AS (
			INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, payload, due_at)
			SELECT 'session.due:' || session_id || ':opened', $3, session_id, session_id, agent_name, jsonb_build_object('session', session_id), now() + interval '`+announceAgain+`'
			FROM opened ON CONFLICT (event_id) DO NOTHING
		) SELECT COALESCE((SELECT session_id FROM opened), '')`, w.c.Claim.ID, harness.NewSessionID(w.now), event.SessionDue).
		QueryRow(func(row pgx.Row) error { return row.Scan(opened) })
}

func (w *stepWriter) wake() announcement {
	return sessionDue(w.c.Claim.ID, w.c.Claim.Session.Agent, fmt.Sprint(w.c.Claim.Token))
}

func (w *stepWriter) tell(kind, ref string) {
	w.kinds, w.refs = append(w.kinds, kind), append(w.refs, ref)
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
