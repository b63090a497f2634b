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
}

// requestExecutionSQL asks for command $3 as execution $2 in sandbox $1, once
// per key $4. It stands in line behind the commands of its session. What its
// agent may have of sandboxes at once is as the command before it had it.
const requestExecutionSQL = `
WITH placed AS (
    SELECT b.*, n.traceparent, COALESCE((SELECT e.max_sandboxes FROM executions e WHERE e.session_id = b.session_id ORDER BY e.execution_id DESC LIMIT 1), 1) AS max_sandboxes
    FROM sandboxes b JOIN sessions n USING (session_id) WHERE b.sandbox_id = $1 AND b.state = 'READY'
), made AS (
    INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce, due_at)
    SELECT $2, session_id, agent_name, 'API', $4, $3, spec, spec_digest, max_sandboxes, 'PENDING', $5, now() FROM placed
    ON CONFLICT (cause, cause_id, cause_attempt) DO NOTHING RETURNING execution_id, session_id, agent_name
), told AS (
    INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, payload, traceparent, due_at)
    SELECT '` + executionRequestedID + `' || m.execution_id, $6, m.execution_id, m.session_id, m.agent_name,
           jsonb_build_object('session', m.session_id, 'execution', m.execution_id), p.traceparent, now() + interval '` + announceAgain + `'
    FROM made m, placed p ON CONFLICT (event_id) DO NOTHING
)
SELECT m.session_id, m.agent_name, p.traceparent FROM made m, placed p`

// RequestExecution asks for a command and returns its execution, whether it is
// new, and the events to publish. harness.Conflict: the sandbox is not READY, or
// the key was given to another request.
func (s *Store) RequestExecution(ctx context.Context, r ExecutionRequest) (view.Execution, bool, []event.Event, error) {
	id := harness.NewExecutionID(s.now())
	var events []event.Event
	rows, err := s.pool.Query(ctx, requestExecutionSQL, r.Sandbox, id, harness.CleanText(r.Command), r.Key, rand.Text(), event.ExecutionRequested)
	if err == nil {
		err = each(func(row pgx.CollectableRow) error {
			e := event.Event{ID: executionRequestedID + string(id), Type: event.ExecutionRequested}
			err := row.Scan(&e.Session, &e.Agent, &e.TraceParent)
			e.Payload = event.Payload{Session: e.Session, Execution: id}
			events = append(events, e)
			return err
		})(rows)
	}
	if err != nil {
		return view.Execution{}, false, nil, translate(err)
	}
	if len(events) > 0 {
		made, err := s.GetExecution(ctx, id)
		return made, true, events, err
	}
	known, err := one(ctx, s, "execution", `SELECT `+executionColumns+` FROM executions e WHERE e.cause = 'API' AND e.cause_id = $1 AND e.cause_attempt = 1`, []any{r.Key}, readExecution)
	if err == nil {
		return known, false, nil, s.sameRequest(ctx, r, known)
	}
	if harness.KindOf(err) != harness.NotFound {
		return view.Execution{}, false, nil, err
	}
	sandbox, err := s.GetSandbox(ctx, r.Sandbox)
	if err == nil {
		err = harness.Errorf(harness.Conflict, "the sandbox takes no commands: it is %s", sandbox.State)
	}
	return view.Execution{}, false, nil, err
}

// sameRequest reports whether r asks for what its key has asked for before. The
// sandbox may have been replaced since by another one of its session.
func (s *Store) sameRequest(ctx context.Context, r ExecutionRequest, known view.Execution) error {
	sandbox, err := s.GetSandbox(ctx, r.Sandbox)
	if err != nil {
		return err
	}
	if sandbox.Session != known.Session || harness.CleanText(r.Command) != known.Command {
		return harness.Errorf(harness.Conflict, "the idempotency key belongs to another command")
	}
	return nil
}
