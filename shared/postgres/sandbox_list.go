package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// SandboxFilter says which sandboxes a list holds. Zero fields: any.
type SandboxFilter struct {
	Agent   harness.AgentName
	Session harness.SessionID
	States  []harness.SandboxState
}

const sandboxViewColumns = `b.sandbox_id, b.sandbox_name, b.sandbox_uid, b.agent_name, b.session_id, b.state, b.reason, b.message, b.spec,
	b.created_at, b.last_activity_at, b.expires_at, b.ended_at`

func readSandboxView(row pgx.CollectableRow) (view.Sandbox, error) {
	var v view.Sandbox
	err := row.Scan(&v.ID, &v.Name, &v.UID, &v.Agent, &v.Session, &v.State, &v.Reason, &v.Message, &v.Spec,
		&v.CreatedAt, &v.LastActivityAt, &v.ExpiresAt, &v.EndedAt)
	return v, err
}

// ListSandboxes returns up to limit sandboxes behind after, newest first. One that
// is committed late may come behind a page that was read: the next walk has it.
func (s *Store) ListSandboxes(ctx context.Context, f SandboxFilter, after view.Place, limit int) ([]view.Sandbox, error) {
	q := &query{}
	q.behind("b.sandbox_id", after)
	q.equal("b.agent_name", string(f.Agent))
	q.equal("b.session_id", string(f.Session))
	if err := in(q, "b.state", f.States, harness.SandboxState.Known); err != nil {
		return nil, err
	}
	from := `sandboxes b`
	if live(f.States) { // few at any time: all of them, and then in order
		from = `(SELECT * FROM sandboxes WHERE state <> 'GONE' OFFSET 0) b`
	}
	return list(ctx, s, `SELECT `+sandboxViewColumns+` FROM `+from+` WHERE `+q.sql()+` ORDER BY b.sandbox_id DESC LIMIT `+q.arg(limit), q.args, readSandboxView)
}

func live(states []harness.SandboxState) bool {
	for _, state := range states {
		if state == harness.SandboxGone {
			return false
		}
	}
	return len(states) > 0
}

const sandboxSQL = `SELECT ` + sandboxViewColumns + ` FROM sandboxes b WHERE b.sandbox_id = $1`

// GetSandbox returns one sandbox. harness.NotFound: there is none.
func (s *Store) GetSandbox(ctx context.Context, id harness.SandboxID) (view.Sandbox, error) {
	return one(ctx, s, "sandbox", sandboxSQL, []any{id}, readSandboxView)
}

// terminateSQL ends sandbox $1, whose agent is locked, for $3: it begins to end,
// what waits for it by the API does not start, and what runs in it is to be ended.
// One that is ending already may still have such commands.
var terminateSQL = `
WITH was AS (
    SELECT sandbox_id AS id, agent_name AS agent, session_id AS session, spec_digest AS spec, state AS was_state, reason AS was_reason
    FROM sandboxes WHERE sandbox_id = $1 AND state <> 'GONE'
), begun AS (
    UPDATE sandboxes SET state = 'TERMINATING', reason = '` + SandboxOperator + `', updated_at = now()
    FROM was WHERE sandbox_id = id AND state IN ('CREATING', 'READY')
    RETURNING state, reason, log_entry(agent, session, '', 'WARN', 'sandbox ' || id || ' is ended by ' || $3::text, '')
), dropped AS (
    UPDATE executions e SET state = 'CANCELLED', reason = 'the sandbox was ended by ' || $3::text, due_at = NULL, ended_at = now()
    FROM was WHERE e.session_id = session AND e.spec_digest = was.spec AND e.cause = 'API' AND e.state = 'PENDING' RETURNING e.execution_id
), ` + cancelRunning(`e.sandbox_id = (SELECT id FROM was)`) + `, changed AS (
    SELECT was.*, COALESCE(b.state, was_state) AS state, COALESCE(b.reason, was_reason) AS reason, ended.executions
    FROM was LEFT JOIN begun b ON true, (SELECT jsonb_agg(execution_id ORDER BY execution_id) AS executions
        FROM (SELECT execution_id FROM dropped UNION ALL SELECT execution_id FROM marked) e) ended
    WHERE b.state IS NOT NULL OR ended.executions IS NOT NULL
), audited AS (
    ` + auditSQL(4, `changed`, `id`, `jsonb_build_object('agent', agent, 'session', session, 'state', was_state, 'reason', was_reason)`,
	`jsonb_strip_nulls(jsonb_build_object('agent', agent, 'session', session, 'state', state, 'reason', reason, 'executions', executions))`) + `
)` + cancelledSQL

// TerminateSandbox says that by wants the sandbox ended: it takes no more
// commands, the one that runs in it is to be cancelled, those that somebody
// asked for by the API and that wait for it are, and the sweep removes it. It
// returns the sandbox and the events to publish. To say so again has no effect.
// harness.Conflict, with the sandbox: it is GONE.
func (s *Store) TerminateSandbox(ctx context.Context, id harness.SandboxID, by Audit) (view.Sandbox, []event.Event, error) {
	sandbox, err := s.GetSandbox(ctx, id)
	if err != nil {
		return sandbox, nil, err
	}
	var events []event.Event
	b := &pgx.Batch{}
	b.Queue(lockAgentSQL, sandbox.Agent)
	b.Queue(terminateSQL, append([]any{id, event.ExecutionRequested, harness.CleanText(by.Actor)}, by.args()...)...).Query(collectCancelled(&events))
	wake(b, sandbox.Agent, &events)
	b.Queue(sandboxSQL, id).Query(into(&sandbox, readSandboxView))
	if err := s.batch(ctx, b, nil); err != nil {
		return sandbox, nil, err
	}
	if sandbox.State == harness.SandboxGone {
		return sandbox, nil, harness.Errorf(harness.Conflict, "the sandbox is gone")
	}
	return sandbox, events, nil
}
