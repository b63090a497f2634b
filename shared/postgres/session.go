package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// Claim is everything one step reads: what the session is, what its turn has
// used, and its history. Whoever holds it writes with Token.
type Claim struct {
	harness.Session
	Token       int64
	Attempts    int // claims since the last commit, this one included: a budget reserved before it is spent
	Phase       harness.AgentPhase
	Agent       *harness.Agent // nil: the agent never had a valid revision
	Refused     string         // without a revision: why, for its author
	Used        Used
	Spent       harness.Spending // by the session so far
	TraceParent string
	Origin      harness.Channel // on which the people are whom the session is for

	Workflow harness.WorkflowName // of a workflow run, which has no turns; empty: a conversation
	Parent   harness.VisitID      // of a conversation: the visit of a workflow's node that has it
	Triggers []ChannelTrigger     // that a message to the agent may start runs by

	Turns []TurnRecord // oldest first; the last is the running turn, or the next one to start
	Calls []CallRecord // every call of those turns, in order
	More  bool         // further messages wait behind the last turn

	Questions []TurnQuestion        // of the running turn itself, in their order
	Granted   []harness.BudgetGrant // on top of the limits of the turn and the session
	Summary   Summary               // of what was before Turns; zero: they are all there is, or HistoryTurns
	Asked     []AttemptRecord       // how the agent's models stand, oldest first
}

// Used is what the running turn has used of its agent's budget.
type Used struct {
	Steps, ToolCalls, Executions int
	Tokens                       int64
	Elapsed                      time.Duration
	Cost                         harness.Micros
	ExecutionTime                time.Duration // of commands that have ended
}

// TurnRecord is an inbound message and the steps that worked it.
type TurnRecord struct {
	Message       harness.MessageID
	Seq           int64
	State         harness.MessageState
	ChannelUserID string
	Text          string
	Metadata      json.RawMessage
	Files         []Attachment // that came with it
	Screened      bool         // a model may see it, as Shown and without HiddenFiles
	Shown         *string      // in the place of Text; nil: Text
	HiddenFiles   bool
	Steps         []StepRecord
}

// StepRecord is one committed answer of the model.
type StepRecord struct {
	ID    harness.StepID
	Text  string
	Carry string // the provider's own, to be sent back unchanged
}

// CallRecord is one tool call with its result, or with its execution so far.
type CallRecord struct {
	ID         harness.ToolCallID
	Step       harness.StepID
	ProviderID string
	Name       string
	Arguments  string
	State      harness.ToolCallState
	Result     string
	Execution  *ExecutionResult // of an open call that runs a command
	Approval   *ApprovalResult  // of an open call that a human is asked about

	Remote     *harness.RemoteTool // of a call that a step makes itself
	BegunToken *int64              // of the claim that made it; nil: none has
}

// ApprovalResult is how the question about a call stands.
type ApprovalResult struct {
	ID        harness.ApprovalID
	State     harness.ApprovalState
	Subject   harness.ApprovalSubject // what was asked, or what was approved instead
	Digest    string
	Changed   bool // whoever approved changed it
	OnTimeout harness.TimeoutAction
	DecidedBy string
	Reason    string
}

// Asking reports whether an answer of a human is open.
func (c *Claim) Asking() bool {
	return slices.ContainsFunc(c.Questions, func(q TurnQuestion) bool { return q.State == harness.ApprovalPending }) || slices.ContainsFunc(c.Calls, func(call CallRecord) bool {
		return call.Approval != nil && call.Approval.State == harness.ApprovalPending
	})
}

// ExecutionResult is what an execution came to, with at most OutputWindow bytes
// from each end of each stream.
type ExecutionResult struct {
	ID                       harness.ExecutionID
	State                    harness.ExecutionState
	Reason                   string
	ExitCode                 *int
	StdoutBytes, StderrBytes int64 // printed in all
	StdoutHead, StdoutTail   []byte
	StderrHead, StderrTail   []byte
	Files                    []string // that it made and that go with the answer, below /workspace
}

// OutputWindow is how much of each end of a stream a model may see, in bytes.
const OutputWindow = 8 << 10

// HistoryTurns is how many turns that are in no summary a step reads at most: its
// cost does not grow with the age of its conversation.
const HistoryTurns = 30

var claimSessionSQL = `
WITH claimed AS (
    UPDATE sessions SET lease_owner = $2, lease_token = lease_token + 1, lease_until = now() + $3::interval,
           due_at = NULL, attempts = attempts + 1, updated_at = now(),
           turn_started_at = CASE WHEN EXISTS (SELECT 1 FROM messages WHERE session_id = $1 AND state = 'RUNNING') THEN turn_started_at
               WHEN attempts > 0 AND turn_started_at >= (SELECT created_at FROM messages WHERE session_id = $1 AND state = 'PENDING' ORDER BY seq LIMIT 1) THEN turn_started_at
               ELSE now() END
    WHERE session_id = $1 AND (due_at <= now() OR lease_owner IS NOT NULL) AND (lease_until IS NULL OR lease_until < now())
      AND (retry_at IS NULL OR retry_at <= now()) AND NOT ` + heldSQL("sessions") + `
    RETURNING *
), heard AS (
    DELETE FROM outbox WHERE subject = $1 AND EXISTS (SELECT 1 FROM claimed)
)
SELECT c.session_id, c.agent_name, c.channel, c.account, c.chat, c.state, c.lease_token, c.attempts, a.phase, r.spec, CASE WHEN r.spec IS NULL THEN a.reason ELSE '' END,
       c.turn_steps, c.turn_tool_calls, c.turn_executions, c.turn_tokens,
       COALESCE(extract(epoch FROM COALESCE(c.waiting_since, now()) - c.turn_started_at), 0)::float8, c.traceparent,
       COALESCE((SELECT o.channel FROM sessions o WHERE o.session_id = c.origin_session), c.channel), COALESCE(c.workflow_name, ''), COALESCE(c.parent_visit, ''),
       c.turn_cost, c.turn_execution_millis, ARRAY[c.used_steps, c.used_tool_calls, c.used_millis, c.used_tokens, c.used_cost, c.used_execution_millis]
FROM claimed c JOIN agents a USING (agent_name)
LEFT JOIN agent_revisions r ON r.agent_name = a.agent_name AND r.revision = a.revision`

// recentSQL names the turns a step reads: the running or next one and those
// before it. The model never sees messages that wait behind.
const recentSQL = `
WITH cur AS (
    SELECT COALESCE((SELECT seq FROM messages WHERE session_id = $1 AND state = 'RUNNING'),
                    (SELECT min(seq) FROM messages WHERE session_id = $1 AND state = 'PENDING')) AS seq
), recent AS (
    SELECT m.* FROM messages m, cur WHERE m.session_id = $1 AND m.direction = 'INBOUND'
      AND m.seq <= COALESCE(cur.seq, 9223372036854775807) AND m.seq > COALESCE((SELECT max(up_to) FROM summaries WHERE session_id = $1), 0) ORDER BY m.seq DESC LIMIT $2
)`

// windowSQL yields what is kept of stream of execution e: how much, its first
// two windows, and its last one when that is not among them. It reads only the
// pieces that hold them.
func windowSQL(stream string) string {
	const of = `FROM execution_output o WHERE o.execution_id = e.execution_id AND o.stream = `
	return strings.NewReplacer("FROM o", of+"'"+stream+"'", "$window", fmt.Sprint(OutputWindow)).Replace(`
		SELECT kept.n,
			(SELECT string_agg(substr(o.data, 1, (2 * $window - o.start_byte)::int), ''::bytea ORDER BY o.start_byte)
				FROM o AND o.start_byte < 2 * $window) AS head,
			(SELECT string_agg(substr(o.data, greatest(1, kept.n - $window - o.start_byte + 1)::int), ''::bytea ORDER BY o.start_byte)
				FROM o AND o.start_byte + length(o.data) > kept.n - $window AND kept.n > 2 * $window) AS tail
		FROM (SELECT COALESCE(max(o.start_byte + length(o.data)), 0) AS n FROM o) kept
		WHERE e.ended_at IS NOT NULL`)
}

// ClaimSession takes the session's lease and reads what a step needs, in one
// round trip. ErrNothingDue: somebody else has it, it is held, or nothing is due.
func (s *Store) ClaimSession(ctx context.Context, id harness.SessionID, lease Lease) (*Claim, error) {
	b := &pgx.Batch{}
	b.Queue(claimSessionSQL, id, lease.Owner, lease.For)
	b.Queue(recentSQL+` SELECT message_id, seq, state, channel_user_id, text, metadata, screened, shown_text, hidden_files FROM recent ORDER BY seq`, id, HistoryTurns)
	b.Queue(recentSQL+` SELECT st.step_id, st.message_id, st.text, st.carry FROM steps st JOIN recent USING (message_id) ORDER BY st.seq`, id, HistoryTurns)
	b.Queue(recentSQL+` SELECT a.message_id, `+attachmentColumns+` FROM attachments a JOIN recent USING (message_id) JOIN sessions s ON s.session_id = a.session_id
		WHERE a.direction = 'INBOUND' ORDER BY a.created_at, a.attachment_id`, id, HistoryTurns)
	b.Queue(recentSQL+` SELECT t.tool_call_id, t.step_id, t.provider_id, t.name, t.arguments, t.state, COALESCE(t.result, ''),
			e.execution_id, e.state, e.reason, e.exit_code, e.stdout_bytes, e.stderr_bytes,
			o.n, o.head, o.tail, e.stdout_tail, r.n, r.head, r.tail, e.stderr_tail,
			(SELECT array_agg(f.path ORDER BY f.path) FROM attachments f WHERE f.execution_id = e.execution_id),
			a.approval_id, a.state, a.input, a.digest, a.asked_input IS NOT NULL, a.on_timeout, a.decided_by, a.reason, t.remote, t.begun_token
		FROM tool_calls t JOIN steps st USING (step_id) JOIN recent USING (message_id)
		LEFT JOIN executions e ON t.state IN ('PENDING', 'RUNNING') AND e.cause = 'TOOL_CALL' AND e.cause_id = t.tool_call_id
		LEFT JOIN approvals a ON t.state IN ('PENDING', 'RUNNING') AND a.tool_call_id = t.tool_call_id
		LEFT JOIN LATERAL (`+windowSQL("stdout")+`) o ON true LEFT JOIN LATERAL (`+windowSQL("stderr")+`) r ON true
		ORDER BY st.seq, t.seq`, id, HistoryTurns)
	b.Queue(`SELECT count(*) > 1 OR (count(*) = 1 AND EXISTS (SELECT 1 FROM messages WHERE session_id = $1 AND state = 'RUNNING'))
		FROM (SELECT 1 FROM messages WHERE session_id = $1 AND state = 'PENDING' LIMIT 2) waiting`, id)
	b.Queue(channelTriggersSQL, id)
	b.Queue(turnQuestionsSQL, id)
	b.Queue(turnGrantsSQL, id)
	b.Queue(summarySQL, id)
	b.Queue(attemptsSQL, id)
	claim := &Claim{}
	err := s.batch(ctx, b, func(results pgx.BatchResults) error { return claim.read(results) })
	if err != nil {
		return nil, err
	}
	return claim, nil
}

func (c *Claim) read(results pgx.BatchResults) error {
	if err := c.readSession(results); err != nil {
		return err
	}
	if err := c.readTurns(results); err != nil {
		return err
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	if c.Calls, err = pgx.CollectRows(rows, readCall); err != nil {
		return err
	}
	if err := results.QueryRow().Scan(&c.More); err != nil {
		return err
	}
	if rows, err = results.Query(); err != nil {
		return err
	}
	if c.Triggers, err = pgx.CollectRows(rows, readChannelTrigger); err != nil {
		return err
	}
	if err := c.readAsked(results); err != nil {
		return err
	}
	return c.readModels(results)
}

func (c *Claim) readModels(results pgx.BatchResults) error {
	rows, err := results.Query()
	if err != nil {
		return err
	}
	found, err := pgx.CollectRows(rows, readSummary)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		c.Summary = found[0]
	}
	if rows, err = results.Query(); err != nil {
		return err
	}
	c.Asked, err = pgx.CollectRows(rows, readAttemptRecord)
	return err
}

func (c *Claim) readSession(results pgx.BatchResults) error {
	rows, err := results.Query()
	if err != nil {
		return err
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
		var seconds float64
		var millis int64
		var spent []int64
		err := row.Scan(&c.ID, &c.Session.Agent, &c.Channel, &c.Account, &c.Chat, &c.State, &c.Token, &c.Attempts, &c.Phase, &c.Agent, &c.Refused,
			&c.Used.Steps, &c.Used.ToolCalls, &c.Used.Executions, &c.Used.Tokens, &seconds, &c.TraceParent, &c.Origin, &c.Workflow, &c.Parent, &c.Used.Cost, &millis, &spent)
		if err != nil {
			return struct{}{}, err
		}
		c.Used.Elapsed, c.Used.ExecutionTime = time.Duration(seconds*float64(time.Second)), time.Duration(millis)*time.Millisecond
		c.Spent = harness.Spent(spent)
		return struct{}{}, nil
	})
	if err == nil && len(found) == 0 {
		return ErrNothingDue
	}
	return err
}

func (c *Claim) readTurns(results pgx.BatchResults) error {
	rows, err := results.Query()
	if err != nil {
		return err
	}
	if c.Turns, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (TurnRecord, error) {
		var t TurnRecord
		err := row.Scan(&t.Message, &t.Seq, &t.State, &t.ChannelUserID, &t.Text, &t.Metadata, &t.Screened, &t.Shown, &t.HiddenFiles)
		return t, err
	}); err != nil {
		return err
	}
	turn := make(map[harness.MessageID]*TurnRecord, len(c.Turns))
	for i := range c.Turns {
		turn[c.Turns[i].Message] = &c.Turns[i]
	}
	if rows, err = results.Query(); err != nil {
		return err
	}
	_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
		var step StepRecord
		var message harness.MessageID
		err := row.Scan(&step.ID, &message, &step.Text, &step.Carry)
		if t := turn[message]; t != nil {
			t.Steps = append(t.Steps, step)
		}
		return struct{}{}, err
	})
	if err != nil {
		return err
	}
	if rows, err = results.Query(); err != nil {
		return err
	}
	_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
		var file Attachment
		var message harness.MessageID
		err := row.Scan(append([]any{&message}, file.targets()...)...)
		if t := turn[message]; t != nil {
			t.Files = append(t.Files, file)
		}
		return struct{}{}, err
	})
	return err
}

func readCall(row pgx.CollectableRow) (CallRecord, error) {
	var c CallRecord
	var id *harness.ExecutionID
	var state *harness.ExecutionState
	var reason *string
	var e ExecutionResult
	var stdoutBytes, stderrBytes *int64
	var stdout, stderr kept
	var asked struct {
		id        *harness.ApprovalID
		state     *harness.ApprovalState
		subject   *harness.ApprovalSubject
		digest    *string
		changed   *bool
		onTimeout *harness.TimeoutAction
		by, why   *string
	}
	err := row.Scan(&c.ID, &c.Step, &c.ProviderID, &c.Name, &c.Arguments, &c.State, &c.Result,
		&id, &state, &reason, &e.ExitCode, &stdoutBytes, &stderrBytes,
		&stdout.bytes, &stdout.head, &stdout.tail, &stdout.printed, &stderr.bytes, &stderr.head, &stderr.tail, &stderr.printed, &e.Files,
		&asked.id, &asked.state, &asked.subject, &asked.digest, &asked.changed, &asked.onTimeout, &asked.by, &asked.why, &c.Remote, &c.BegunToken)
	if err == nil && asked.id != nil {
		c.Approval = &ApprovalResult{
			ID: *asked.id, State: *asked.state, Subject: *asked.subject, Digest: *asked.digest, Changed: *asked.changed, OnTimeout: *asked.onTimeout,
			DecidedBy: *asked.by, Reason: *asked.why,
		}
	}
	if err != nil || id == nil {
		return c, err
	}
	e.ID, e.State, e.Reason, e.StdoutBytes, e.StderrBytes = *id, *state, *reason, *stdoutBytes, *stderrBytes
	e.StdoutHead, e.StdoutTail = stdout.window(e.StdoutBytes)
	e.StderrHead, e.StderrTail = stderr.window(e.StderrBytes)
	c.Execution = &e
	return c, nil
}

// kept is what is stored of a stream, as windowSQL yields it, and the end of
// what was printed where not all was stored.
type kept struct {
	bytes               *int64
	head, tail, printed []byte
}

// window cuts it to its two ends: all of it as the head when it fits both
// windows, else the first and the last OutputWindow bytes of what was printed.
func (k kept) window(printed int64) (head, end []byte) {
	stored := int64(0)
	if k.bytes != nil {
		stored = *k.bytes
	}
	if stored >= printed && stored <= 2*OutputWindow {
		return k.head, nil
	}
	switch {
	case stored < printed && len(k.printed) > 0:
		end = k.printed
	case stored > 2*OutputWindow:
		end = k.tail
	default:
		end = k.head
	}
	return k.head[:min(len(k.head), OutputWindow)], end[max(0, len(end)-OutputWindow):]
}

// ExtendSession moves the end of the claim on. ErrLeaseLost when it is no longer ours.
func (s *Store) ExtendSession(ctx context.Context, id harness.SessionID, token int64, lease Lease) error {
	tag, err := s.pool.Exec(ctx, `UPDATE sessions SET lease_until = now() + $3::interval
		WHERE session_id = $1 AND lease_token = $2 AND lease_owner IS NOT NULL`, id, token, lease.For)
	if err == nil && tag.RowsAffected() == 0 {
		return ErrLeaseLost
	}
	return translate(err)
}

// DueIn returns how long it is until the session is due, negative when it is
// already. ok is false when it is not due at any time, when somebody works on
// it, or when it waits because a model or a limit said so. ErrHeld: it is held,
// due or not.
func (s *Store) DueIn(ctx context.Context, id harness.SessionID) (in time.Duration, ok bool, err error) {
	var held bool
	var seconds *float64
	err = s.pool.QueryRow(ctx, `SELECT `+heldSQL("s")+`, CASE WHEN (lease_until IS NULL OR lease_until < now()) AND (retry_at IS NULL OR retry_at <= now())
			THEN extract(epoch FROM due_at - now())::float8 END FROM sessions s WHERE session_id = $1`, id).Scan(&held, &seconds)
	switch err = translate(err); {
	case harness.KindOf(err) == harness.NotFound:
		return 0, false, nil
	case err == nil && held:
		return 0, false, ErrHeld
	case err != nil || seconds == nil:
		return 0, false, err
	}
	return time.Duration(*seconds * float64(time.Second)), true, nil
}

// DueSessions returns wakes for up to limit sessions of an agent that are due,
// not held, and that nobody works on.
func (s *Store) DueSessions(ctx context.Context, agent harness.AgentName, limit int) ([]event.Event, error) {
	rows, err := s.pool.Query(ctx, `SELECT session_id, lease_token FROM sessions s
		WHERE agent_name = $1 AND due_at <= now() AND (lease_until IS NULL OR lease_until < now()) AND (retry_at IS NULL OR retry_at <= now()) AND NOT `+heldSQL("s")+`
		ORDER BY session_id LIMIT $2`, agent, limit)
	if err != nil {
		return nil, translate(err)
	}
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (event.Event, error) {
		var id harness.SessionID
		var token int64
		err := row.Scan(&id, &token)
		return sessionDue(id, agent, fmt.Sprint(token)).Event, err
	})
	return events, translate(err)
}
