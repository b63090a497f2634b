package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// ErrHeld says that nobody may work on the session now: its agent or the whole
// install is halted, or a person has taken it over. It stays due.
var ErrHeld = errors.New("the session is held")

// haltedSQL is the condition that nobody may work for the agent of a row, which a
// statement calls by alias: it, or the whole install, is halted.
func haltedSQL(alias string) string {
	return `(EXISTS (SELECT 1 FROM switches WHERE halted_at IS NOT NULL)
		OR ` + alias + `.agent_name IN (SELECT h.agent_name FROM agents h WHERE h.halted_at IS NOT NULL))`
}

// heldSQL is the condition that nobody may work on a session.
func heldSQL(alias string) string {
	return `(` + alias + `.paused_at IS NOT NULL OR ` + haltedSQL(alias) + `)`
}

// holdSQL deletes the announcements of session $1 while it is held: whoever lets
// it go wakes it. Where the halt keeps an answer from somebody in a chat, they are
// told so once per halt, by message $2 with reply $3 and text $4.
var holdSQL = `
WITH held AS (
    SELECT s.session_id, greatest(h.halted_at, w.halted_at) AS since
    FROM sessions s JOIN agents h USING (agent_name), switches w
    WHERE s.session_id = $1 AND ` + heldSQL("s") + `
), heard AS (
    DELETE FROM outbox USING held WHERE outbox.subject = held.session_id
), told AS (
    UPDATE sessions s SET halt_told_at = greatest(now(), h.since), message_seq = s.message_seq + 1, event_seq = s.event_seq + 1
    FROM held h
    WHERE s.session_id = h.session_id AND h.since IS NOT NULL AND s.paused_at IS NULL AND s.channel <> 'API'
      AND (s.halt_told_at IS NULL OR s.halt_told_at < h.since)
      AND s.state NOT IN ('COMPLETED', 'CANCELLED') AND (s.lease_until IS NULL OR s.lease_until < now())
      AND EXISTS (SELECT 1 FROM messages m WHERE m.session_id = s.session_id AND m.state IN ('PENDING', 'RUNNING'))
    RETURNING s.session_id, s.agent_name, s.channel, s.traceparent, s.message_seq, s.event_seq
), said AS (
    INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text)
    SELECT $2, t.session_id, t.message_seq, 'OUTBOUND', 'DONE',
           (SELECT m.channel_user_id FROM messages m WHERE m.session_id = t.session_id AND m.state IN ('PENDING', 'RUNNING') ORDER BY m.seq DESC LIMIT 1), $4
    FROM told t RETURNING message_id
), part AS (
    INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, due_at)
    SELECT $3, $2, session_id, message_seq, 1, 1, $4, 'PLANNED', now() FROM told
), streamed AS (
    INSERT INTO session_events (session_id, seq, kind, ref) SELECT session_id, event_seq, 'REPLY', $2 FROM told
), announced AS (
    INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, channel, payload, traceparent, due_at)
    SELECT 'message.reply:' || $2::text, $5, $2, session_id, agent_name, channel, jsonb_build_object('session', session_id, 'message', $2::text), traceparent,
           now() + interval '` + announceAgain + `' FROM told
)
SELECT agent_name, channel, traceparent FROM told, said`

// HoldSession is for whoever was woken for a session that is held: its
// announcements are deleted, so that nobody is woken for nothing, and whoever
// waits in a chat for a halted agent is told text, once per halt. It returns the
// events to publish.
func (s *Store) HoldSession(ctx context.Context, id harness.SessionID, text string) ([]event.Event, error) {
	message := harness.NewMessageID(s.now())
	var events []event.Event
	rows, err := s.pool.Query(ctx, holdSQL, id, message, harness.NewReplyID(s.now()), text, event.MessageReply)
	if err != nil {
		return nil, translate(err)
	}
	err = each(func(row pgx.CollectableRow) error {
		e := event.Event{ID: "message.reply:" + string(message), Type: event.MessageReply, Session: id, Payload: event.Payload{Session: id, Message: message}}
		err := row.Scan(&e.Agent, &e.Channel, &e.TraceParent)
		events = append(events, e)
		return err
	})(rows)
	return events, translate(err)
}

// GetHalt returns whether an agent is halted by its own switch, or, without a
// name, the whole install. harness.NotFound: there is no such agent.
func (s *Store) GetHalt(ctx context.Context, agent harness.AgentName) (view.Halt, error) {
	return one(ctx, s, "agent", `SELECT halted_at, halted_by, halt_reason FROM agents WHERE agent_name = $1 AND phase <> 'DELETED'
		UNION ALL SELECT halted_at, halted_by, halt_reason FROM switches WHERE $1 = ''`, []any{agent}, readHalt)
}

func readHalt(row pgx.CollectableRow) (view.Halt, error) {
	var v view.Halt
	err := row.Scan(&v.HaltedAt, &v.HaltedBy, &v.Reason)
	v.Halted = v.HaltedAt != nil
	return v, err
}

// lockAgentsSQL takes the lock of the capacity of agent $1, or of all: whoever
// starts a command has started it by then, or sees the switch.
const lockAgentsSQL = `SELECT 1 FROM agents WHERE $1 IN ('', agent_name) ORDER BY agent_name FOR NO KEY UPDATE`

// switchSQL throws the switch of agent $1, or of the install. One that is thrown
// already stays so since when it was, with the newest words.
const switchSQL = `
WITH one AS (
    UPDATE agents SET halted_at = COALESCE(halted_at, now()), halted_by = $2, halt_reason = $3 WHERE agent_name = $1 AND phase <> 'DELETED'
    RETURNING halted_at, halted_by, halt_reason
), whole AS (
    UPDATE switches SET halted_at = COALESCE(halted_at, now()), halted_by = $2, halt_reason = $3 WHERE $1 = ''
    RETURNING halted_at, halted_by, halt_reason
) SELECT * FROM one UNION ALL SELECT * FROM whole`

// The switch of agent $1, or of the install, is locked for its audit.
const switchOf = `(
    WITH one AS (SELECT * FROM agents WHERE agent_name = $1 AND phase <> 'DELETED' FOR NO KEY UPDATE), whole AS (SELECT * FROM switches WHERE $1 = '' FOR NO KEY UPDATE)
    SELECT agent_name AS of, halted_at, halted_by, halt_reason FROM one UNION ALL SELECT switch_name, halted_at, halted_by, halt_reason FROM whole
) h`

const haltAudit = `jsonb_strip_nulls(jsonb_build_object('halted', halted_at IS NOT NULL, 'haltedAt', halted_at, 'haltedBy', NULLIF(halted_by, ''), 'reason', NULLIF(halt_reason, '')))`

// auditHaltSQL stores what switchSQL is about to change, auditResumeSQL what resume
// is.
var (
	auditHaltSQL = auditSQL(4, switchOf, `of`, haltAudit, `jsonb_build_object('halted', true, 'haltedAt', COALESCE(halted_at, now()), 'haltedBy', $2::text, 'reason', $3::text)`) +
		` AND (halted_at IS NULL OR (halted_by, halt_reason) <> ($2, $3))`
	auditResumeSQL = auditSQL(2, switchOf, `of`, haltAudit, `jsonb_build_object('halted', false)`) + ` AND halted_at IS NOT NULL`
)

// Halt stops an agent, or without a name the whole install, until Resume: no
// session is claimed, no command starts, and those that run are to be ended. The
// model's answer that is being waited for is stored, and nothing it asks for
// begins. It returns the events to publish. harness.NotFound: there is no such
// agent.
func (s *Store) Halt(ctx context.Context, agent harness.AgentName, by Audit, reason string) (view.Halt, []event.Event, error) {
	var halt view.Halt
	var events []event.Event
	actor, why := harness.CleanText(by.Actor), cleanReason(reason)
	err := again(func() error {
		halt, events = view.Halt{}, nil
		b := &pgx.Batch{}
		by.queue(b, auditHaltSQL, agent, actor, why)
		b.Queue(switchSQL, agent, actor, why).Query(into(&halt, readHalt))
		b.Queue(lockAgentsSQL, agent)
		b.Queue(cancelRunningSQL("$1 IN ('', e.agent_name) AND "+haltedSQL("e")), agent, event.ExecutionRequested).Query(collectCancelled(&events))
		return s.batch(ctx, b, nil)
	})
	if err == nil && !halt.Halted {
		err = harness.Errorf(harness.NotFound, "there is no such agent")
	}
	return halt, events, err
}

// resumeSQL makes everything due that waited for agent $1, or for the install,
// since $3. The time that was spent halted is none of a turn's.
const resumeSQL = `
WITH waiting AS (
    SELECT session_id FROM sessions WHERE $1 IN ('', agent_name) AND state IN ('PENDING', 'RUNNING', 'AWAITING_APPROVAL', 'AWAITING_EXECUTION')
    ORDER BY session_id FOR NO KEY UPDATE
)
UPDATE sessions s SET announced_at = NULL, due_at = CASE WHEN due_at IS NOT NULL THEN now() END,
    turn_started_at = turn_started_at + greatest(now() - greatest(turn_started_at, $2::timestamptz), interval '0')
FROM waiting w WHERE s.session_id = w.session_id`

// resumeExecutionsSQL announces the commands of agent $1, or of all, that wait.
const resumeExecutionsSQL = `
WITH due AS (
    UPDATE executions e SET due_at = now() FROM sessions n
    WHERE n.session_id = e.session_id AND $1 IN ('', e.agent_name) AND e.state = 'PENDING' AND e.lease_owner IS NULL
    RETURNING e.execution_id, e.session_id, e.agent_name, e.lease_token, n.traceparent, e.seq
), told AS (
    INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, payload, traceparent, due_at)
    SELECT '` + executionRequestedID + `' || execution_id || ':' || lease_token, $2, execution_id, session_id, agent_name,
           jsonb_build_object('session', session_id, 'execution', execution_id), traceparent, now() + interval '` + announceAgain + `'
    FROM due ON CONFLICT (event_id) DO NOTHING
)
SELECT execution_id, session_id, agent_name, lease_token, traceparent FROM due ORDER BY seq`

// resumeWakes is how many sessions are woken at once; the sweep wakes the rest.
const resumeWakes = 200

// Resume ends Halt: everything that waited is due, but for what another switch or
// a person still holds. It returns what the switch was, and the events to publish.
// harness.NotFound: there is no such agent.
func (s *Store) Resume(ctx context.Context, agent harness.AgentName, by Audit) (view.Halt, []event.Event, error) {
	before, err := s.GetHalt(ctx, agent)
	if err != nil || !before.Halted {
		return before, nil, err
	}
	var events []event.Event
	err = again(func() error {
		events = nil
		b := &pgx.Batch{}
		by.queue(b, auditResumeSQL, agent)
		resume(b, agent, before.HaltedAt, &events)
		return s.batch(ctx, b, nil)
	})
	return before, events, err
}

func resume(b *pgx.Batch, agent harness.AgentName, since *time.Time, events *[]event.Event) {
	b.Queue(`UPDATE agents SET halted_at = NULL, halted_by = '', halt_reason = '' WHERE agent_name = $1`, agent)
	b.Queue(`UPDATE switches SET halted_at = NULL, halted_by = '', halt_reason = '' WHERE $1 = ''`, agent)
	b.Queue(lockAgentsSQL, agent)
	b.Queue(resumeSQL, agent, since)
	b.Queue(resumeExecutionsSQL, agent, event.ExecutionRequested).Query(collectRequested(events))
	b.Queue(`SELECT session_id, agent_name, lease_token FROM sessions s WHERE $1 IN ('', agent_name) AND due_at <= now()
		AND (lease_until IS NULL OR lease_until < now()) AND (retry_at IS NULL OR retry_at <= now()) AND NOT `+heldSQL("s")+`
		ORDER BY due_at LIMIT $2`, agent, resumeWakes).Query(each(func(row pgx.CollectableRow) error {
		var id harness.SessionID
		var name harness.AgentName
		var token int64
		err := row.Scan(&id, &name, &token)
		*events = append(*events, sessionDue(id, name, fmt.Sprint(token)).Event)
		return err
	}))
}
