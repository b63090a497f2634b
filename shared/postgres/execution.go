package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// ExecutionClaim is everything that is needed to run a command, or to go on
// with one. Whoever holds it writes with Token.
type ExecutionClaim struct {
	ID          harness.ExecutionID
	Session     harness.SessionID
	Agent       harness.AgentName
	Token       int64
	Attempts    int // claims without progress, this one included
	State       harness.ExecutionState
	Command     string
	Spec        harness.SandboxSpec
	Nonce       string
	TraceParent string

	// Sandbox is where a RUNNING execution runs. Of a PENDING one it is its
	// session's own ready sandbox, where it may run; nil when there is none.
	Sandbox *SandboxRecord
	// UID is what the sandbox was when the command was committed to it.
	UID string

	StdoutStored, StderrStored int64 // bytes of output stored so far

	Cancelled bool // it is to be ended
}

// OutputPiece is a piece of a command's output: bytes of "stdout" or "stderr"
// from byte Start of that stream.
type OutputPiece struct {
	Stream string
	Start  int64
	Data   []byte
}

// ExecutionOutcome is how a command ended.
type ExecutionOutcome struct {
	State                    harness.ExecutionState
	Reason                   string // for people; empty when the state says it all
	ExitCode                 *int
	StdoutBytes, StderrBytes int64 // printed, stored or not
	StdoutTail, StderrTail   []byte
	Output                   []OutputPiece // not stored yet
	Lost                     string        // why something it printed, or may have, was not read; empty: nothing is known to be lost
	EndSandbox               string        // why its sandbox takes no more commands; empty: it does
	Unusable                 string        // why its sandbox can start no command, in words; empty: it can
}

const executionRequestedID = "execution.requested:"

var claimExecutionSQL = `
WITH claimed AS (
    UPDATE executions SET lease_owner = $2, lease_token = lease_token + 1, lease_until = now() + $3::interval, due_at = NULL, attempts = attempts + 1
    WHERE execution_id = $1 AND ended_at IS NULL AND (due_at <= now() OR lease_owner IS NOT NULL) AND (lease_until IS NULL OR lease_until < now())
      AND NOT (state = 'PENDING' AND ` + haltedSQL("executions") + `)
    RETURNING *
), heard AS (
    DELETE FROM outbox o USING executions x WHERE o.subject = $1 AND x.execution_id = $1
      AND (EXISTS (SELECT 1 FROM claimed) OR x.ended_at IS NOT NULL OR x.due_at IS NULL AND x.lease_owner IS NULL OR x.state = 'PENDING' AND ` + haltedSQL("x") + `)
)
SELECT c.execution_id, c.session_id, c.agent_name, c.lease_token, c.attempts, c.state, c.command, c.spec, c.nonce, n.traceparent, c.sandbox_uid, c.cancelled_at IS NOT NULL,
       (SELECT COALESCE(max(start_byte + length(data)), 0) FROM execution_output o WHERE o.execution_id = c.execution_id AND o.stream = 'stdout'),
       (SELECT COALESCE(max(start_byte + length(data)), 0) FROM execution_output o WHERE o.execution_id = c.execution_id AND o.stream = 'stderr'),
       ` + sandboxColumns + `
FROM claimed c JOIN sessions n USING (session_id)
LEFT JOIN sandboxes s ON s.sandbox_id = CASE WHEN c.state = 'RUNNING' THEN c.sandbox_id
    ELSE (SELECT r.sandbox_id FROM sandboxes r WHERE r.session_id = c.session_id AND r.spec_digest = c.spec_digest AND r.state = 'READY') END`

// ClaimExecution takes the execution's lease and reads what is needed, in one
// round trip. The announcement is deleted also when there is nothing to do: an
// execution that ended, that waits for a sandbox, or that must not begin while its
// agent is halted. ErrNothingDue: that, or somebody else has it.
func (s *Store) ClaimExecution(ctx context.Context, id harness.ExecutionID, lease Lease) (*ExecutionClaim, error) {
	rows, err := s.pool.Query(ctx, claimExecutionSQL, id, lease.Owner, lease.For)
	if err != nil {
		return nil, translate(err)
	}
	claims, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*ExecutionClaim, error) {
		c := &ExecutionClaim{}
		var sandbox nullSandbox
		err := row.Scan(append([]any{
			&c.ID, &c.Session, &c.Agent, &c.Token, &c.Attempts, &c.State, &c.Command, &c.Spec, &c.Nonce, &c.TraceParent, &c.UID, &c.Cancelled,
			&c.StdoutStored, &c.StderrStored,
		}, sandbox.targets()...)...)
		c.Sandbox = sandbox.record()
		return c, err
	})
	if err != nil {
		return nil, translate(err)
	}
	if len(claims) == 0 {
		return nil, ErrNothingDue
	}
	return claims[0], nil
}

// ExtendExecution moves the end of the claim on. ErrLeaseLost when it is no longer ours.
func (s *Store) ExtendExecution(ctx context.Context, c *ExecutionClaim, lease Lease) error {
	tag, err := s.pool.Exec(ctx, `UPDATE executions SET lease_until = now() + $3::interval
		WHERE execution_id = $1 AND lease_token = $2 AND lease_owner IS NOT NULL`, c.ID, c.Token, lease.For)
	if err == nil && tag.RowsAffected() == 0 {
		return ErrLeaseLost
	}
	return translate(err)
}

// BeginExecution commits that the command runs in this sandbox and nowhere else:
// before it is handed to it. began is false when the sandbox takes no commands
// any more, or the agent is halted; AcquireSandbox finds another place, or none. ErrNothingDue: the execution was ended
// meanwhile; the sandbox is ready for others.
func (s *Store) BeginExecution(ctx context.Context, c *ExecutionClaim, sandbox harness.SandboxID, uid string) (began bool, err error) {
	b := &pgx.Batch{}
	b.Queue(lockAgentSQL, c.Agent)
	b.Queue(`SELECT fence_execution($1, $2)`, c.ID, c.Token)
	b.Queue(`UPDATE sandboxes SET state = 'READY', sandbox_uid = $2, updated_at = now(), last_activity_at = now() WHERE sandbox_id = $1 AND state = 'CREATING'`, sandbox, uid)
	var open bool
	b.Queue(`WITH ready AS (
			SELECT sandbox_id, sandbox_uid FROM sandboxes WHERE sandbox_id = $2 AND sandbox_uid = $3 AND state = 'READY'
		), begun AS (
			UPDATE executions e SET state = 'RUNNING', started_at = now(), sandbox_id = r.sandbox_id, sandbox_uid = r.sandbox_uid, attempts = 0
			FROM ready r WHERE e.execution_id = $1 AND e.state = 'PENDING' AND NOT `+haltedSQL("e")+` RETURNING 1
		) SELECT EXISTS (SELECT 1 FROM begun), ended_at IS NULL FROM executions WHERE execution_id = $1`, c.ID, sandbox, uid).
		QueryRow(func(row pgx.Row) error { return row.Scan(&began, &open) })
	if err := s.batch(ctx, b, nil); err != nil {
		return false, err
	}
	if !open {
		return false, ErrNothingDue
	}
	return began, nil
}

// StoreOutput stores what a command has printed so far. A piece that is stored
// already has no effect. ErrLeaseLost: nothing is written.
func (s *Store) StoreOutput(ctx context.Context, c *ExecutionClaim, pieces []OutputPiece) error {
	b := &pgx.Batch{}
	b.Queue(`SELECT fence_execution($1, $2)`, c.ID, c.Token)
	storeOutput(b, c.ID, pieces)
	return s.batch(ctx, b, nil)
}

func storeOutput(b *pgx.Batch, id harness.ExecutionID, pieces []OutputPiece) {
	for _, piece := range pieces {
		b.Queue(`INSERT INTO execution_output (execution_id, stream, start_byte, data) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`,
			id, piece.Stream, piece.Start, piece.Data)
	}
}

// ReleaseExecution gives the claim back unfinished, with what was printed
// meanwhile; the next look is after the given time. With 0 the announcement is
// returned to be published at once, else the sweep makes it in time. progress
// says that the claim was worth it and forgets the attempts so far.
func (s *Store) ReleaseExecution(ctx context.Context, c *ExecutionClaim, after time.Duration, progress bool, output []OutputPiece) ([]event.Event, error) {
	e := executionRequested(c.ID, c.Session, c.Agent, c.Token, c.TraceParent)
	b := &pgx.Batch{}
	b.Queue(`SELECT fence_execution($1, $2)`, c.ID, c.Token)
	storeOutput(b, c.ID, output)
	b.Queue(`WITH released AS (
			UPDATE executions SET lease_owner = NULL, lease_until = NULL, due_at = now() + $2::interval, attempts = CASE WHEN $3 THEN 0 ELSE attempts END
			WHERE execution_id = $1 AND ended_at IS NULL RETURNING 1
		) INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, payload, traceparent, due_at)
		SELECT $4, $5, $1, $6, $7, $8, $9, now() + CASE WHEN $2::interval > interval '0' THEN $2::interval ELSE interval '`+announceAgain+`' END
		FROM released ON CONFLICT (event_id) DO NOTHING`,
		c.ID, after, progress, e.ID, e.Type, e.Session, e.Agent, e.Payload, e.TraceParent)
	if err := s.batch(ctx, b, nil); err != nil || after > 0 {
		return nil, err
	}
	return []event.Event{e}, nil
}

// finishSQL ends execution $1. A sandbox with a reason to end takes no more
// commands; else it is idle from now on.
const finishSQL = `
WITH ended AS (
    UPDATE executions SET state = $2, reason = concat_ws('; ', NULLIF($3, ''), NULLIF(reason, '')), exit_code = $4, stdout_bytes = $5, stderr_bytes = $6,
           output_lost = CASE WHEN $12 <> '' THEN jsonb_build_object('reason', $12::text, 'stdoutStart', o.stdout, 'stderrStart', o.stderr)
               || CASE WHEN $5 > o.stdout THEN jsonb_build_object('stdoutEnd', $5) ELSE '{}' END || CASE WHEN $6 > o.stderr THEN jsonb_build_object('stderrEnd', $6) ELSE '{}' END END,
           stdout_tail = $7, stderr_tail = $8, ended_at = now(), due_at = NULL, lease_owner = NULL, lease_until = NULL
    FROM (SELECT COALESCE(max(start_byte + length(data)) FILTER (WHERE stream = 'stdout'), 0) AS stdout, COALESCE(max(start_byte + length(data)) FILTER (WHERE stream = 'stderr'), 0) AS stderr
        FROM execution_output WHERE execution_id = $1) o
    WHERE execution_id = $1 AND ended_at IS NULL RETURNING executions.*
), place AS (
    UPDATE sandboxes s SET last_activity_at = now(), message = $11, state = CASE WHEN $9 <> '' THEN 'TERMINATING' ELSE s.state END,
           reason = CASE WHEN $9 <> '' THEN $9 ELSE s.reason END, updated_at = CASE WHEN $9 <> '' THEN now() ELSE s.updated_at END
    FROM ended e WHERE s.sandbox_id = e.sandbox_id AND s.state IN ('CREATING', 'READY')
), logged AS (
    SELECT log_entry(e.agent_name, e.session_id, COALESCE((SELECT st.seq::text FROM tool_calls t JOIN steps st USING (step_id)
               WHERE e.cause = 'TOOL_CALL' AND t.tool_call_id = e.cause_id),
               (SELECT v.node_id FROM node_visits v WHERE e.cause = 'NODE_VISIT' AND v.visit_id = e.cause_id), e.cause_id), CASE WHEN e.state = 'COMPLETED' THEN 'INFO' ELSE 'WARN' END,
           concat_ws('; ', concat_ws(' ', 'command', e.execution_id, 'ended as', e.state, 'exit code ' || e.exit_code, NULLIF('(' || e.reason || ')', '()')),
               'what it printed from byte ' || (e.output_lost->>'stdoutStart') || ' of stdout and ' || (e.output_lost->>'stderrStart') || ' of stderr on is lost: ' || (e.output_lost->>'reason')), '')
    FROM ended e
), marked AS (
    UPDATE sessions n SET due_at = least(n.due_at, now()) FROM ended e -- a request of the API is none of its turn
    WHERE n.session_id = e.session_id AND e.cause <> 'API' AND n.state NOT IN ('COMPLETED', 'CANCELLED') RETURNING n.session_id, n.agent_name, n.traceparent
), told AS (
    INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, payload, traceparent, due_at)
    SELECT 'execution.finished:' || $1, $10, session_id, session_id, agent_name,
           jsonb_build_object('session', session_id, 'execution', $1::text), traceparent, now() + interval '` + announceAgain + `'
    FROM marked ON CONFLICT (event_id) DO NOTHING
)
SELECT l.n, m.session_id, m.traceparent FROM (SELECT count(*) AS n FROM logged) l LEFT JOIN marked m ON true`

// FinishExecution writes the outcome, marks the session, and wakes whoever waits
// for the place, in one round trip. It returns the events to publish.
// ErrLeaseLost: somebody else has claimed the execution since; nothing is
// written. An execution that was ended meanwhile stays as it is.
func (s *Store) FinishExecution(ctx context.Context, c *ExecutionClaim, o ExecutionOutcome) ([]event.Event, error) {
	var events []event.Event
	b := &pgx.Batch{}
	b.Queue(lockAgentSQL, c.Agent)
	b.Queue(`SELECT 1 FROM sessions WHERE session_id = $1 FOR NO KEY UPDATE`, c.Session)
	b.Queue(`SELECT fence_execution($1, $2)`, c.ID, c.Token)
	storeOutput(b, c.ID, o.Output)
	b.Queue(finishSQL, c.ID, o.State, harness.CleanText(o.Reason), o.ExitCode, o.StdoutBytes, o.StderrBytes, orNone(o.StdoutTail), orNone(o.StderrTail),
		o.EndSandbox, event.ExecutionFinished, cleanMessage(o.Unusable), cleanMessage(o.Lost)).Query(func(rows pgx.Rows) error {
		var logs int
		var session, traceparent *string
		_, err := pgx.ForEachRow(rows, []any{&logs, &session, &traceparent}, func() error {
			if session != nil {
				events = append(events, event.Event{
					ID: "execution.finished:" + string(c.ID), Type: event.ExecutionFinished, Session: c.Session, Agent: c.Agent,
					TraceParent: *traceparent, Payload: event.Payload{Session: c.Session, Execution: c.ID},
				})
			}
			return nil
		})
		return err
	})
	wake(b, c.Agent, &events)
	if err := s.batch(ctx, b, nil); err != nil {
		return nil, err
	}
	return events, nil
}

func orNone(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// executionRequested announces an execution, unique per claim: token is the
// lease token it has when it is announced.
func executionRequested(id harness.ExecutionID, session harness.SessionID, agent harness.AgentName, token int64, traceparent string) event.Event {
	return event.Event{
		ID: fmt.Sprintf("%s%s:%d", executionRequestedID, id, token), Type: event.ExecutionRequested, Session: session, Agent: agent,
		TraceParent: traceparent, Payload: event.Payload{Session: session, Execution: id},
	}
}

// collectRequested reads rows of execution, session, agent, token and traceparent.
func collectRequested(events *[]event.Event) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		requested, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (event.Event, error) {
			var id harness.ExecutionID
			var session harness.SessionID
			var agent harness.AgentName
			var token int64
			var traceparent string
			err := row.Scan(&id, &session, &agent, &token, &traceparent)
			return executionRequested(id, session, agent, token, traceparent), err
		})
		*events = append(*events, requested...)
		return err
	}
}

// WakeExecutions wakes those waiting executions of the agent that may move now,
// and returns their announcements.
func (s *Store) WakeExecutions(ctx context.Context, agent harness.AgentName) ([]event.Event, error) {
	var events []event.Event
	b := &pgx.Batch{}
	b.Queue(lockAgentSQL, agent)
	wake(b, agent, &events)
	return events, s.batch(ctx, b, nil)
}

// ExecutionsDue returns the announcements of up to limit executions that are due
// or whose claim ran out and that nobody announces, and of those that wait
// although they may move: what a crash between any two steps leaves behind.
func (s *Store) ExecutionsDue(ctx context.Context, limit int) ([]event.Event, error) {
	var events []event.Event
	rows, err := s.pool.Query(ctx, `WITH due AS (
			SELECT e.*, n.traceparent FROM executions e JOIN sessions n USING (session_id)
			WHERE e.state IN ('PENDING', 'RUNNING') AND NOT (e.state = 'PENDING' AND `+haltedSQL("e")+`) AND (CASE WHEN e.lease_owner IS NULL THEN e.due_at <= now() ELSE e.lease_until < now() END)
			  AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.subject = e.execution_id)
			ORDER BY e.seq LIMIT $1
		), told AS (
			INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, payload, traceparent, due_at)
			SELECT '`+executionRequestedID+`' || execution_id || ':' || lease_token, $2, execution_id, session_id, agent_name,
			       jsonb_build_object('session', session_id, 'execution', execution_id), traceparent, now() + interval '`+announceAgain+`'
			FROM due ON CONFLICT (event_id) DO NOTHING
		) SELECT execution_id, session_id, agent_name, lease_token, traceparent FROM due ORDER BY seq`, limit, event.ExecutionRequested)
	if err != nil {
		return nil, translate(err)
	}
	if err := collectRequested(&events)(rows); err != nil {
		return nil, translate(err)
	}
	if rows, err = s.pool.Query(ctx, `SELECT DISTINCT agent_name FROM executions e
		WHERE state = 'PENDING' AND due_at IS NULL AND lease_owner IS NULL AND NOT `+haltedSQL("e")+` ORDER BY agent_name LIMIT $1`, limit); err != nil {
		return events, translate(err)
	}
	waiting, err := pgx.CollectRows(rows, pgx.RowTo[harness.AgentName])
	if err != nil {
		return events, translate(err)
	}
	for _, agent := range waiting {
		woken, err := s.WakeExecutions(ctx, agent)
		if err != nil {
			return events, err
		}
		events = append(events, woken...)
	}
	return events, nil
}

// EndOrphans ends up to limit RUNNING executions whose sandbox is GONE and that
// nobody holds: SANDBOX_GONE when output proves that the command had begun, else
// UNKNOWN; never a second start. lease is the sweep's. It returns the events to
// publish.
func (s *Store) EndOrphans(ctx context.Context, lease Lease, limit int) ([]event.Event, error) {
	rows, err := s.pool.Query(ctx, `SELECT e.execution_id FROM executions e JOIN sandboxes s USING (sandbox_id)
		WHERE e.state = 'RUNNING' AND s.state = 'GONE' AND (e.lease_until IS NULL OR e.lease_until < now()) ORDER BY e.seq LIMIT $1`, limit)
	if err != nil {
		return nil, translate(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[harness.ExecutionID])
	if err != nil {
		return nil, translate(err)
	}
	var events []event.Event
	for _, id := range ids {
		claim, err := s.ClaimExecution(ctx, id, lease)
		if errors.Is(err, ErrNothingDue) {
			continue
		}
		if err != nil {
			return events, err
		}
		finished, err := s.FinishExecution(ctx, claim, claim.SandboxGone())
		if err != nil {
			return events, err
		}
		events = append(events, finished...)
	}
	return events, nil
}

// SandboxGone is the outcome of a RUNNING execution whose sandbox is gone, as
// far as the rows prove it: stored output proves that the command had begun.
func (c *ExecutionClaim) SandboxGone() ExecutionOutcome {
	o := ExecutionOutcome{State: harness.ExecutionUnknown, StdoutBytes: c.StdoutStored, StderrBytes: c.StderrStored, EndSandbox: SandboxLost}
	if c.StdoutStored+c.StderrStored > 0 {
		o.State = harness.ExecutionSandboxGone
	}
	if c.Sandbox != nil && c.Sandbox.Reason != "" {
		o.Reason = "the sandbox ended (" + c.Sandbox.Reason + ")"
	}
	o.Lost = cmp.Or(o.Reason, "the sandbox is gone")
	return o
}
