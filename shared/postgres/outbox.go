package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// announceAgain is how long an announcement may go unheard before the sweep
// repeats it.
const announceAgain = "30 seconds"

// announcement is an outbox row: an event and the row it announces.
type announcement struct {
	event.Event
	subject string
}

// announce adds a to the batch. The row and the change it announces commit together.
func announce(b *pgx.Batch, a announcement) {
	b.Queue(`INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, channel, payload, traceparent, due_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now() + interval '`+announceAgain+`')
		ON CONFLICT (event_id) DO NOTHING`,
		a.ID, a.Type, a.subject, a.Session, a.Agent, a.Channel, a.Payload, a.TraceParent)
}

// Unheard is an announcement that nobody has heard in time.
type Unheard struct {
	event.Event
	Attempts int // announcements so far, this one included
}

// TakeUnheard returns up to limit announcements that are due and moves their
// next repeat on, doubling from 30 s to 10 min. A row whose subject is claimed
// meanwhile is simply gone. Concurrent callers get different rows.
func (s *Store) TakeUnheard(ctx context.Context, limit int) ([]Unheard, error) {
	rows, err := s.pool.Query(ctx, `
		UPDATE outbox o SET attempts = o.attempts + 1, due_at = now() + least(interval '10 minutes', interval '`+announceAgain+`' * 2 ^ least(o.attempts, 6))
		FROM (SELECT event_id FROM outbox WHERE due_at <= now() ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED) due
		WHERE o.event_id = due.event_id
		RETURNING o.event_id, o.event_type, o.session_id, o.agent_name, o.channel, o.payload, o.traceparent, o.attempts`, limit)
	if err != nil {
		return nil, translate(err)
	}
	unheard, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Unheard, error) {
		var u Unheard
		err := row.Scan(&u.ID, &u.Type, &u.Session, &u.Agent, &u.Channel, &u.Payload, &u.TraceParent, &u.Attempts)
		return u, err
	})
	return unheard, translate(err)
}

// sessionDue is the wake of a session, unique per claim: token is the lease
// token the session had when it was announced.
func sessionDue(session harness.SessionID, agent harness.AgentName, reason string) announcement {
	return announcement{
		Event: event.Event{
			ID: "session.due:" + string(session) + ":" + reason, Type: event.SessionDue, Session: session, Agent: agent,
			Payload: event.Payload{Session: session},
		},
		subject: string(session),
	}
}
