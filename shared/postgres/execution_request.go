package postgres

import (
	"context"
	"crypto/rand"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// ExecutionRequest is a command that somebody wants run in a sandbox.
type ExecutionRequest struct {
	Sandbox harness.SandboxID
	Command string
	Key     string // names the request, unique over all callers: the same again is the same execution
	Audit   Audit
}

// requestExecutionSQL asks for command $3 as execution $2 in sandbox $1, once
// per key $4. It stands in line behind the commands of its session. What its
// agent may have of sandboxes at once is as the command before it had it. The audit
// has the digest of the command, which may have secrets and is kept for its own time.
var requestExecutionSQL = `
WITH placed AS (
    SELECT b.*, n.traceparent, COALESCE((SELECT e.max_sandboxes FROM executions e WHERE e.session_id = b.session_id ORDER BY e.execution_id DESC LIMIT 1), 1) AS max_sandboxes
    FROM sandboxes b JOIN sessions n USING (session_id) WHERE b.sandbox_id = $1 AND b.state = 'READY' AND n.state NOT IN ('COMPLETED', 'CANCELLED')
), made AS (
    INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce, due_at)
    SELECT $2, session_id, agent_name, 'API', $4, $3, spec, spec_digest, max_sandboxes, 'PENDING', $5, now() FROM placed
    ON CONFLICT (cause, cause_id, cause_attempt) DO NOTHING RETURNING execution_id, session_id, agent_name, state, command
), audited AS (
    ` + auditSQL(7, `made`, `$1`, `NULL::jsonb`, `jsonb_build_object('execution', execution_id, 'session', session_id, 'agent', agent_name, 'state', state, 'digest', encode(sha256(convert_to(command, 'UTF8')), 'hex'))`) + `
), told AS (
    INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, payload, traceparent, due_at)
    SELECT '` + executionRequestedID + `' || m.execution_id, $6, m.execution_id, m.session_id, m.agent_name,
           jsonb_build_object('session', m.session_id, 'execution', m.execution_id), p.traceparent, now() + interval '` + announceAgain + `'
    FROM made m, placed p ON CONFLICT (event_id) DO NOTHING
)
SELECT m.session_id, m.agent_name, p.traceparent FROM made m, placed p`

// RequestExecution asks for a command and returns its execution, whether it is
// new, and the events to publish. harness.Conflict: the sandbox is not READY, its
// session has ended, or the key was given to another request.
func (s *Store) RequestExecution(ctx context.Context, r ExecutionRequest) (view.Execution, bool, []event.Event, error) {
	id := harness.NewExecutionID(s.now())
	r.Command = harness.CleanText(r.Command)
	var events []event.Event
	var stored view.Execution
	var sandbox view.Sandbox
	b := &pgx.Batch{}
	// Nobody ends the sandbox or the session between the look and the row.
	b.Queue(`SELECT 1 FROM agents WHERE agent_name = (SELECT agent_name FROM sandboxes WHERE sandbox_id = $1) FOR NO KEY UPDATE`, r.Sandbox)
	b.Queue(`SELECT 1 FROM sessions WHERE session_id = (SELECT session_id FROM sandboxes WHERE sandbox_id = $1) FOR NO KEY UPDATE`, r.Sandbox)
	b.Queue(requestExecutionSQL, append([]any{r.Sandbox, id, r.Command, r.Key, rand.Text(), event.ExecutionRequested}, r.Audit.args()...)...).
		Query(each(func(row pgx.CollectableRow) error {
			e := event.Event{ID: executionRequestedID + string(id), Type: event.ExecutionRequested}
			err := row.Scan(&e.Session, &e.Agent, &e.TraceParent)
			e.Payload = event.Payload{Session: e.Session, Execution: id}
			events = append(events, e)
			return err
		}))
	b.Queue(`SELECT `+executionColumns+` FROM executions e WHERE e.cause = 'API' AND e.cause_id = $1 AND e.cause_attempt = 1`, r.Key).
		Query(into(&stored, readExecution))
	b.Queue(sandboxSQL, r.Sandbox).Query(into(&sandbox, readSandboxView))
	if err := s.batch(ctx, b, nil); err != nil {
		return view.Execution{}, false, nil, err
	}
	switch {
	case len(events) > 0:
		return stored, true, events, nil
	case sandbox.ID == "":
		return stored, false, nil, harness.Errorf(harness.NotFound, "there is no such sandbox")
	case stored.ID == "" && sandbox.State == harness.SandboxReady:
		return stored, false, nil, harness.Errorf(harness.Conflict, "the sandbox takes no commands: its session has ended")
	case stored.ID == "":
		return stored, false, nil, harness.Errorf(harness.Conflict, "the sandbox takes no commands: it is %s", sandbox.State)
	case sandbox.Session != stored.Session || r.Command != stored.Command: // another sandbox of its session is as good
		return stored, false, nil, harness.Errorf(harness.Conflict, "the idempotency key belongs to another command")
	}
	return stored, false, nil, nil
}
