package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// cancellable is the condition of sessions that can be cancelled. A run that FAILED
// is over and stays so.
const cancellable = `state NOT IN ('COMPLETED', 'CANCELLED') AND (workflow_name IS NULL OR ended_at IS NULL)`

// cancelSessionsSQL ends the sessions of a condition on $1, for reason $2, and
// everything in them that has not begun but their questions; see
// cancelAskedSQL. A step that is being worked loses its lease and writes nothing.
func cancelSessionsSQL(of string) string {
	return `
WITH ended AS (
    UPDATE sessions SET state = 'CANCELLED', reason = $2, due_at = NULL, retry_at = NULL, lease_owner = NULL, lease_until = NULL, lease_token = lease_token + 1,
           updated_at = now(), ended_at = now(),
           event_seq = event_seq + (SELECT count(*) FROM tool_calls t WHERE t.session_id = sessions.session_id AND t.state IN ('PENDING', 'RUNNING'))
    WHERE (` + of + `) AND ` + cancellable + ` RETURNING *
), heard AS (
    DELETE FROM outbox USING ended WHERE subject = ended.session_id
), unread AS (
    UPDATE messages m SET state = 'DONE', run_state = CASE WHEN m.state = 'RUNNING' THEN 'CANCELLED' END FROM ended WHERE m.session_id = ended.session_id AND m.state IN ('PENDING', 'RUNNING')
), called AS (
    UPDATE tool_calls t SET state = 'FAILED', result = 'Interrupted: the session was cancelled; the outcome of this call is unknown.', ended_at = now()
    FROM ended WHERE t.session_id = ended.session_id AND t.state IN ('PENDING', 'RUNNING') RETURNING t.tool_call_id, t.session_id
), told AS (
    INSERT INTO session_events (session_id, seq, kind, ref)
    SELECT ended.session_id, ended.event_seq - count(*) OVER of_session + row_number() OVER (of_session ORDER BY tool_call_id), 'TOOL_RESULT', tool_call_id
    FROM called JOIN ended USING (session_id) WINDOW of_session AS (PARTITION BY ended.session_id)
), visited AS (
    UPDATE node_visits v SET state = 'CANCELLED', due_at = NULL, ended_at = now()
    FROM ended WHERE v.session_id = ended.session_id AND v.state IN ('PENDING', 'RUNNING', 'WAITING')
), waiting AS (
    UPDATE executions e SET state = 'CANCELLED', reason = $2, due_at = NULL, ended_at = now()
    FROM ended WHERE e.session_id = ended.session_id AND e.state = 'PENDING'
)
SELECT session_id, agent_name, lease_token, traceparent, channel, log_entry(agent_name, session_id, '', 'WARN', 'session ' || $2::text, '') FROM ended`
}

// collectEnded reads the rows of cancelSessionsSQL. ended, if not nil, is told
// whether the session with its id is among them.
func collectEnded(events *[]event.Event, ended map[harness.SessionID]bool) func(pgx.Rows) error {
	return each(func(row pgx.CollectableRow) error {
		var token int64
		e := event.Event{Type: event.SessionChanged}
		err := row.Scan(&e.Session, &e.Agent, &token, &e.TraceParent, &e.Channel, nil)
		e.ID, e.Payload = fmt.Sprintf("session.changed:%s:%d", e.Session, token), event.Payload{Session: e.Session}
		*events = append(*events, e)
		if ended != nil {
			ended[e.Session] = true
		}
		return err
	})
}

// cancelAskedSQL ends the open questions of the sessions that this transaction
// has ended, for $1 and reason $2.
const cancelAskedSQL = `SELECT e.* FROM cancel_approvals(ARRAY(SELECT a.approval_id FROM approvals a JOIN sessions n USING (session_id)
	WHERE a.state = 'PENDING' AND n.state = 'CANCELLED' AND n.ended_at = now()), $1, $2) e`

// lockCancelSQL locks, in order, session $1, the run that it is a part of, its
// open children, and the conversations that hold cards of their open questions.
const lockCancelSQL = `WITH of AS (
		SELECT $1::text AS session_id UNION SELECT v.session_id FROM sessions c JOIN node_visits v ON v.visit_id = c.parent_visit WHERE c.session_id = $1
		UNION SELECT s FROM unnest(ARRAY(` + openChildren + `)) s
	) SELECT 1 FROM sessions WHERE session_id IN (SELECT session_id FROM of UNION SELECT r.session_id FROM of JOIN approvals a USING (session_id) JOIN replies r USING (approval_id) WHERE a.state = 'PENDING')
	ORDER BY session_id FOR NO KEY UPDATE`

// cancelRunning are the parts of a statement that mark the RUNNING executions e of
// a condition, $2 being the type of their event: whoever hears it ends the command,
// also while another waits for it. Its announcement stays until the execution has
// ended. cancelledSQL reads what they have marked.
func cancelRunning(of string) string {
	return `marked AS (
    UPDATE executions e SET cancelled_at = now(), due_at = CASE WHEN e.lease_owner IS NULL THEN now() ELSE e.due_at END
    WHERE e.state = 'RUNNING' AND e.cancelled_at IS NULL AND ` + of + ` RETURNING e.execution_id, e.session_id, e.agent_name
), told AS (
    INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, payload, traceparent, due_at)
    SELECT '` + executionRequestedID + `' || m.execution_id || ':cancel', $2, m.execution_id, m.session_id, m.agent_name,
           jsonb_build_object('session', m.session_id, 'execution', m.execution_id), n.traceparent, now() + interval '` + announceAgain + `'
    FROM marked m JOIN sessions n USING (session_id) ON CONFLICT (event_id) DO NOTHING
)`
}

const cancelledSQL = `
SELECT m.execution_id, m.session_id, m.agent_name, n.traceparent FROM marked m JOIN sessions n USING (session_id)`

func cancelRunningSQL(of string) string {
	return `
WITH ` + cancelRunning(of) + cancelledSQL
}

// auditCancelSQL stores that session $1, which is locked, is about to be CANCELLED
// for reason $2. What ends with it has no row of its own.
var auditCancelSQL = auditSQL(3, `sessions`, `session_id`, `jsonb_build_object('agent', agent_name, 'state', state, 'reason', reason)`,
	`jsonb_build_object('agent', agent_name, 'reason', $2::text, 'state', 'CANCELLED')`) + ` AND session_id = $1 AND ` + cancellable

func collectCancelled(events *[]event.Event) func(pgx.Rows) error {
	return each(func(row pgx.CollectableRow) error {
		e := event.Event{Type: event.ExecutionRequested}
		err := row.Scan(&e.Payload.Execution, &e.Session, &e.Agent, &e.TraceParent)
		e.ID, e.Payload.Session = executionRequestedID+string(e.Payload.Execution)+":cancel", e.Session
		*events = append(*events, e)
		return err
	})
}

// CancelSession ends a session for by and returns it with the events to publish.
// Messages that wait get no answer, open calls and questions get none either,
// commands that wait never start, and one that runs is to be ended. What was
// answered before still goes out. harness.Conflict, with the session: it has
// ended already.
func (s *Store) CancelSession(ctx context.Context, id harness.SessionID, by Audit) (view.Session, []event.Event, error) {
	session, err := s.GetSession(ctx, id)
	if err != nil {
		return session, nil, err
	}
	var events []event.Event
	var ended map[harness.SessionID]bool
	actor := harness.CleanText(by.Actor)
	if err := again(func() error {
		events, ended = nil, map[harness.SessionID]bool{}
		b := &pgx.Batch{}
		b.Queue(lockRunAgentsSQL, id)
		b.Queue(lockCancelSQL, id)
		by.queue(b, auditCancelSQL, id, "cancelled by "+actor)
		// Its children first, while its visits say which they are.
		b.Queue(cancelSessionsSQL("session_id IN "+openChildren+" AND EXISTS (SELECT 1 FROM sessions n WHERE n.session_id = $1 AND n.state NOT IN ('COMPLETED', 'CANCELLED') AND n.ended_at IS NULL)"),
			id, "cancelled by "+actor).Query(collectEnded(&events, nil))
		b.Queue(cancelSessionsSQL("session_id = $1"), id, "cancelled by "+actor).Query(collectEnded(&events, ended))
		b.Queue(cancelAskedSQL, actor, "cancelled by "+actor).Query(collectAnnounced(&events))
		const open = "AND EXISTS (SELECT 1 FROM sessions n WHERE n.session_id = e.session_id AND n.state = 'CANCELLED')"
		b.Queue(cancelRunningSQL("(e.session_id = $1 OR e.session_id IN (SELECT v.child_session FROM node_visits v WHERE v.session_id = $1)) "+open), id, event.ExecutionRequested).
			Query(collectCancelled(&events))
		markParent(b, id, string(id)+":cancelled", &events)
		wake(b, session.Agent, &events)
		b.Queue(sessionSQL, id).Query(into(&session, readSession))
		return s.batch(ctx, b, nil)
	}); err != nil {
		return session, nil, err
	}
	if !ended[id] {
		return session, events, harness.Errorf(harness.Conflict, "the session has ended already (%s)", session.State)
	}
	return session, events, nil
}

// Cancelled returns a RUNNING execution that is to be ended while somebody else
// holds its claim: who ends it needs no more than this. harness.NotFound: there
// is none.
func (s *Store) Cancelled(ctx context.Context, id harness.ExecutionID) (*ExecutionClaim, error) {
	c := &ExecutionClaim{ID: id, State: harness.ExecutionRunning, Cancelled: true, Sandbox: &SandboxRecord{}}
	err := s.pool.QueryRow(ctx, `SELECT e.session_id, e.agent_name, e.nonce, e.sandbox_uid, `+sandboxColumns+`
		FROM executions e JOIN sandboxes s USING (sandbox_id) WHERE e.execution_id = $1 AND e.state = 'RUNNING' AND e.cancelled_at IS NOT NULL`, id).
		Scan(append([]any{&c.Session, &c.Agent, &c.Nonce, &c.UID}, c.Sandbox.targets()...)...)
	return c, translate(err)
}
