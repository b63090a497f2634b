package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// pauseSQL takes session $1 over for $2. A step that is being worked loses its
// lease and writes nothing: what it was about is due again.
const pauseSQL = `
UPDATE sessions SET paused_at = now(), paused_by = $2, due_at = CASE WHEN lease_owner IS NULL THEN due_at ELSE now() END,
    lease_owner = NULL, lease_until = NULL, lease_token = lease_token + 1
WHERE session_id = $1 AND state NOT IN ('COMPLETED', 'CANCELLED') AND paused_at IS NULL
RETURNING log_entry(agent_name, session_id, '', 'WARN', 'session taken over by ' || $2::text, '')`

// takeoverAudit is what the audit has of a session.
const takeoverAudit = `jsonb_build_object('agent', agent_name, 'state', state, 'pausedBy', `

// auditPauseSQL stores that session $1, which is locked, is about to be taken over
// by $2; auditUnpauseSQL that it is about to be handed back.
var (
	auditPauseSQL = auditSQL(3, `sessions`, `session_id`, takeoverAudit+`'')`, takeoverAudit+`$2::text)`) +
		` AND session_id = $1 AND state NOT IN ('COMPLETED', 'CANCELLED') AND paused_at IS NULL`
	auditUnpauseSQL = auditSQL(2, `sessions`, `session_id`, takeoverAudit+`paused_by)`, takeoverAudit+`'')`) +
		` AND session_id = $1 AND state NOT IN ('COMPLETED', 'CANCELLED') AND paused_at IS NOT NULL`
)

// PauseSession takes a session over for by: its agent keeps out of it, and
// messages wait, until UnpauseSession. A command that runs goes on. A session
// that is taken over ends as others do: by idling, or by being cancelled.
// harness.Conflict, with the session: it has ended, or somebody has it already.
func (s *Store) PauseSession(ctx context.Context, id harness.SessionID, by Audit) (view.Session, error) {
	return s.takeover(ctx, id, func(b *pgx.Batch, done func()) {
		actor := harness.CleanText(by.Actor)
		by.queue(b, auditPauseSQL, id, actor)
		b.Queue(pauseSQL, id, actor).Query(each(func(pgx.CollectableRow) error { done(); return nil }))
	}, func(v view.Session) error {
		return harness.Errorf(harness.Conflict, "the session is taken over already, by %s", v.PausedBy)
	})
}

// unpauseSQL hands session $1 back for $2. It is due when something waits in it.
// The time in which a person had it is none of a turn's.
const unpauseSQL = `
WITH back AS (
    UPDATE sessions s SET paused_at = NULL, paused_by = '', announced_at = NULL,
        due_at = CASE WHEN due_at IS NOT NULL OR EXISTS (SELECT 1 FROM messages m WHERE m.session_id = s.session_id AND m.state = 'PENDING') THEN now() END,
        turn_started_at = turn_started_at + greatest(now() - greatest(turn_started_at, paused_at), interval '0')
    WHERE session_id = $1 AND state NOT IN ('COMPLETED', 'CANCELLED') AND paused_at IS NOT NULL
    RETURNING session_id, agent_name, traceparent, lease_token, due_at IS NOT NULL AS due
), woken AS (
    INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, payload, traceparent, due_at)
    SELECT 'session.due:' || session_id || ':' || lease_token, $3, session_id, session_id, agent_name, jsonb_build_object('session', session_id), traceparent,
           now() + interval '` + announceAgain + `' FROM back WHERE due ON CONFLICT (event_id) DO NOTHING
)
SELECT agent_name, traceparent, lease_token, due, log_entry(agent_name, session_id, '', 'INFO', 'session handed back by ' || $2::text, '') FROM back`

// UnpauseSession hands a session back to its agent, which goes on with what waits,
// and returns it with the events to publish. harness.Conflict, with the session:
// it has ended, or nobody has taken it over.
func (s *Store) UnpauseSession(ctx context.Context, id harness.SessionID, by Audit) (view.Session, []event.Event, error) {
	var events []event.Event
	v, err := s.takeover(ctx, id, func(b *pgx.Batch, done func()) {
		by.queue(b, auditUnpauseSQL, id)
		b.Queue(unpauseSQL, id, harness.CleanText(by.Actor), event.SessionDue).Query(each(func(row pgx.CollectableRow) error {
			var agent harness.AgentName
			var traceparent string
			var token int64
			var due bool
			err := row.Scan(&agent, &traceparent, &token, &due, nil)
			if due {
				e := sessionDue(id, agent, fmt.Sprint(token)).Event
				e.TraceParent = traceparent
				events = append(events, e)
			}
			done()
			return err
		}))
	}, func(view.Session) error {
		return harness.Errorf(harness.Conflict, "the session is not taken over")
	})
	return v, events, err
}

// takeover runs the statement that queue queues, which calls done if it has found
// the session as it must be, and returns the session. Of one that was otherwise,
// refuse says why.
func (s *Store) takeover(ctx context.Context, id harness.SessionID, queue func(b *pgx.Batch, done func()), refuse func(view.Session) error) (view.Session, error) {
	var v view.Session
	did := false
	b := &pgx.Batch{}
	b.Queue(lockSessionSQL, id)
	queue(b, func() { did = true })
	b.Queue(sessionSQL, id).Query(into(&v, readSession))
	err := s.batch(ctx, b, nil)
	switch {
	case err != nil || did:
	case v.ID == "":
		err = harness.Errorf(harness.NotFound, "there is no such session")
	case v.State.Ended():
		err = harness.Errorf(harness.Conflict, "the session has ended already (%s)", v.State)
	default:
		err = refuse(v)
	}
	return v, err
}

// PersonReply is what a person says in the place of an agent.
type PersonReply struct {
	Session harness.SessionID
	Text    string
	Author  string // who
	Key     string // names the request, unique over all callers: the same again is the same reply
	Audit   Audit
}

// personReplySQL answers what waits in session $1, which is taken over and locked,
// by step $2 and message $3 with reply $4, text $5 and author $6, once per key $7.
// Calls that are open get their one result. It all hangs on row said: where there is none, nothing is written.
const personReplySQL = `
WITH asked AS (
    SELECT message_id, channel_user_id, state FROM messages WHERE session_id = $1 AND direction = 'INBOUND' ORDER BY seq DESC LIMIT 1
), taken AS (
    SELECT s.session_id, s.agent_name, s.channel, a.message_id, a.channel_user_id, a.state <> 'DONE' AS answers,
           (SELECT count(*) FROM tool_calls t WHERE t.session_id = $1 AND t.state IN ('PENDING', 'RUNNING')) AS open
    FROM sessions s, asked a WHERE s.session_id = $1 AND s.paused_at IS NOT NULL AND s.state NOT IN ('COMPLETED', 'CANCELLED')
), keyed AS (
    INSERT INTO inbox (channel, account, provider_id, message_id) SELECT 'API', agent_name, $7, $3 FROM taken ON CONFLICT DO NOTHING RETURNING message_id
), said AS (
    UPDATE sessions s SET message_seq = message_seq + 1, step_seq = step_seq + 1, event_seq = event_seq + t.open + 1, state = 'IDLE', reason = '',
           due_at = NULL, retry_at = NULL, attempts = 0, updated_at = now()
    FROM taken t, keyed WHERE s.session_id = t.session_id
    RETURNING s.session_id, s.agent_name, s.channel, s.traceparent, s.message_seq, s.step_seq, s.event_seq, t.message_id, t.channel_user_id, t.answers
), heard AS (
    DELETE FROM outbox USING said WHERE outbox.subject = said.session_id
), read AS (
    UPDATE messages m SET state = 'DONE', run_state = CASE WHEN m.state = 'RUNNING' THEN 'CANCELLED' END FROM said WHERE m.session_id = said.session_id AND m.state IN ('PENDING', 'RUNNING')
), step AS (
    INSERT INTO steps (step_id, session_id, message_id, seq, text, author) SELECT $2, session_id, message_id, step_seq, $5, $6 FROM said
), message AS (
    INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text, in_reply_to, author)
    SELECT $3, session_id, message_seq, 'OUTBOUND', 'DONE', channel_user_id, $5, CASE WHEN answers THEN message_id END, $6 FROM said
), part AS (
    INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, due_at)
    SELECT $4, $3, session_id, message_seq, 1, 1, $5, CASE WHEN channel = 'API' THEN 'DELIVERED' ELSE 'PLANNED' END, CASE WHEN channel <> 'API' THEN now() END FROM said
), closed AS (
    UPDATE tool_calls t SET state = 'FAILED', result = 'Interrupted: a person answered instead of you; the outcome of this call is unknown.', ended_at = now()
    FROM said WHERE t.session_id = said.session_id AND t.state IN ('PENDING', 'RUNNING') RETURNING t.tool_call_id
), waiting AS (
    UPDATE executions e SET state = 'CANCELLED', reason = 'a person answered instead', due_at = NULL, ended_at = now()
    FROM said WHERE e.session_id = said.session_id AND e.state = 'PENDING' AND e.cause IN ('TOOL_CALL', 'TOOL_LIST')
), told AS (
    INSERT INTO session_events (session_id, seq, kind, ref)
    SELECT said.session_id, said.event_seq - 1 - count(*) OVER () + row_number() OVER (ORDER BY tool_call_id), 'TOOL_RESULT', tool_call_id FROM closed, said
    UNION ALL SELECT session_id, event_seq, 'REPLY', $3 FROM said
), announced AS (
    INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, channel, payload, traceparent, due_at)
    SELECT 'message.reply:' || $3::text, $8, $3, session_id, agent_name, channel, jsonb_build_object('session', session_id, 'message', $3::text), traceparent,
           now() + interval '` + announceAgain + `' FROM said WHERE channel <> 'API'
)
SELECT agent_name, channel, traceparent, log_entry(agent_name, session_id, '', 'INFO', 'answered by ' || $6::text, '') FROM said`

// Reply sends what a person says in a session that they have taken over: to the
// agent it is an answer of its own, later. Messages that wait are answered by it,
// and what the agent had begun is given up: open calls get their result, approvals
// are CANCELLED, commands are to be ended. It returns the outbound message, whether
// it is new, and the events to publish. harness.Conflict: the session has ended or
// is not taken over, nobody has written in it yet, or the key belongs to another
// message.
func (s *Store) Reply(ctx context.Context, r PersonReply) (view.Message, bool, []event.Event, error) {
	session, err := s.GetSession(ctx, r.Session)
	if err != nil {
		return view.Message{}, false, nil, err
	}
	id := harness.NewMessageID(s.now())
	author, text := harness.CleanText(r.Author), harness.CleanText(r.Text)
	var events []event.Event
	var stored view.Message
	did := false
	b := &pgx.Batch{}
	b.Queue(lockAgentSQL, session.Agent)
	b.Queue(`SELECT lock_chats($1, '{}', '{}')`, r.Session)
	b.Queue(personReplySQL, r.Session, harness.NewStepID(s.now()), id, harness.NewReplyID(s.now()), text, author, r.Key, event.MessageReply).
		Query(each(func(row pgx.CollectableRow) error {
			did = true
			e := event.Event{ID: "message.reply:" + string(id), Type: event.MessageReply, Session: r.Session, Payload: event.Payload{Session: r.Session, Message: id}}
			err := row.Scan(&e.Agent, &e.Channel, &e.TraceParent, nil)
			if e.Channel != harness.ChannelAPI {
				events = append(events, e)
			}
			return err
		}))
	r.Audit.queue(b, auditMessagesSQL, []string{string(id)})
	b.Queue(`SELECT e.* FROM cancel_approvals(ARRAY(SELECT a.approval_id FROM messages m JOIN approvals a USING (session_id) WHERE m.message_id = $1 AND a.state = 'PENDING'), $2, 'a person answered instead') e`, id, author).
		Query(collectAnnounced(&events))
	b.Queue(cancelRunningSQL(`e.cause IN ('TOOL_CALL', 'TOOL_LIST') AND e.session_id = (SELECT m.session_id FROM messages m WHERE m.message_id = $1)`), id, event.ExecutionRequested).
		Query(collectCancelled(&events))
	wake(b, session.Agent, &events)
	b.Queue(`SELECT `+messageColumns+` FROM inbox i JOIN messages m USING (message_id) WHERE i.channel = 'API' AND i.account = $1 AND i.provider_id = $2`,
		session.Agent, r.Key).Query(into(&stored, readMessage))
	b.Queue(sessionSQL, r.Session).Query(into(&session, readSession))
	if err := s.batch(ctx, b, nil); err != nil {
		return stored, false, nil, err
	}
	switch {
	case did:
		return stored, true, events, nil
	case stored.ID != "" && stored.Session == r.Session && stored.Text == text && stored.Author == author:
		return stored, false, nil, nil
	case stored.ID != "":
		err = harness.Errorf(harness.Conflict, "the idempotency key belongs to another message")
	case session.State.Ended():
		err = harness.Errorf(harness.Conflict, "the session has ended already (%s)", session.State)
	case session.PausedAt == nil:
		err = harness.Errorf(harness.Conflict, "the session is not taken over: pause it first")
	default:
		err = harness.Errorf(harness.Conflict, "nobody has written in this session yet")
	}
	return view.Message{}, false, nil, err
}
