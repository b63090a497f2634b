package postgres

import (
	"context"
	"strconv"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// DeadLetterFilter says which dead letters a list holds. Zero fields: any.
type DeadLetterFilter struct {
	States []DeadLetterState
	Type   string // of the event
}

// Known reports whether d is one of the states of a DeadLetter.
func (d DeadLetterState) Known() bool {
	switch d {
	case DeadLetterOpen, DeadLetterMoot, DeadLetterReplayed, DeadLetterDiscarded:
		return true
	}
	return false
}

const deadLetterColumns = `d.dead_letter_id, d.event_id, d.event_type, d.session_id, d.payload, d.destination, COALESCE(d.status_code, 0), d.cause, d.state,
	d.decided_by, d.times, d.received_at, d.updated_at`

func readDeadLetter(row pgx.CollectableRow) (view.DeadLetter, error) {
	var v view.DeadLetter
	err := row.Scan(&v.ID, &v.Event, &v.Type, &v.Session, &v.Payload, &v.Destination, &v.StatusCode, &v.Cause, &v.State,
		&v.DecidedBy, &v.Times, &v.ReceivedAt, &v.UpdatedAt)
	return v, err
}

// ListDeadLetters returns up to limit dead letters behind after, newest first.
// The ID of a place is the letter's in decimal.
func (s *Store) ListDeadLetters(ctx context.Context, f DeadLetterFilter, after view.Place, limit int) ([]view.DeadLetter, error) {
	q := &query{}
	if after.ID != "" {
		id, err := strconv.ParseInt(after.ID, 10, 64)
		if err != nil {
			return nil, harness.Errorf(harness.Invalid, "the place in this list is no number")
		}
		q.and("d.dead_letter_id < " + q.arg(id))
	}
	q.equal("d.event_type", f.Type)
	if err := in(q, "d.state", f.States, DeadLetterState.Known); err != nil {
		return nil, err
	}
	return list(ctx, s, `SELECT `+deadLetterColumns+` FROM dead_letters d WHERE `+q.sql()+` ORDER BY d.dead_letter_id DESC LIMIT `+q.arg(limit), q.args, readDeadLetter)
}

const deadLetterSQL = `SELECT ` + deadLetterColumns + ` FROM dead_letters d WHERE d.dead_letter_id = $1`

// GetDeadLetter returns one dead letter. harness.NotFound: there is none.
func (s *Store) GetDeadLetter(ctx context.Context, id int64) (view.DeadLetter, error) {
	return one(ctx, s, "dead letter", deadLetterSQL, []any{id}, readDeadLetter)
}

// renew makes the work of a row due at once, if it has any left. Who holds a
// claim on it goes on.
var renew = map[work]string{
	sessionWork: `UPDATE sessions SET due_at = CASE WHEN due_at IS NULL THEN NULL ELSE now() END, retry_at = NULL, announced_at = NULL, dead_lettered_at = NULL
		WHERE session_id = $1 AND state NOT IN ('COMPLETED', 'CANCELLED') AND (due_at IS NOT NULL OR lease_owner IS NOT NULL)`,
	executionWork: `UPDATE executions SET due_at = CASE WHEN due_at IS NULL THEN NULL ELSE now() END, attempts = 0, dead_lettered_at = NULL WHERE execution_id = $1 AND ended_at IS NULL`,
	replyWork:     `UPDATE replies SET due_at = now(), dead_lettered_at = NULL WHERE message_id = $1 AND ` + replyOpen("replies"),
}

// ReplayDeadLetter marks the work of a dead letter due, if it is not done, and
// returns the letter, REPLAYED by by, and its event to publish: with the id it
// had, so that consumers know a repeat. The event of work that is done has no
// effect. harness.Conflict, with the letter: it is DISCARDED, or of a source
// whose events announce nothing.
func (s *Store) ReplayDeadLetter(ctx context.Context, id int64, by string) (view.DeadLetter, event.Event, error) {
	letter, err := s.GetDeadLetter(ctx, id)
	if err != nil {
		return letter, event.Event{}, err
	}
	e, err := s.eventOf(ctx, id)
	if err != nil {
		return letter, e, err
	}
	if !e.Type.Ours() {
		return letter, e, harness.Errorf(harness.Conflict, "an event of a source announces nothing that could be done again")
	}
	b := &pgx.Batch{}
	replayed := false
	b.Queue(`UPDATE dead_letters SET state = 'REPLAYED', decided_by = $2, updated_at = now() WHERE dead_letter_id = $1 AND state <> 'DISCARDED' RETURNING true`, id, clip(by)).
		Query(each(func(row pgx.CollectableRow) error { return row.Scan(&replayed) }))
	kind, row := workOf(e)
	if sql, ok := renew[kind]; ok {
		b.Queue(sql+` AND EXISTS (SELECT 1 FROM dead_letters WHERE dead_letter_id = $2 AND state = 'REPLAYED')`, row, id)
	}
	b.Queue(deadLetterSQL, id).Query(into(&letter, readDeadLetter))
	if err := s.batch(ctx, b, nil); err != nil {
		return letter, e, err
	}
	if !replayed {
		return letter, e, harness.Errorf(harness.Conflict, "it is discarded")
	}
	return letter, e, nil
}

// eventOf is the event of a dead letter: what the letter does not have of it is
// its session's.
func (s *Store) eventOf(ctx context.Context, id int64) (event.Event, error) {
	var e event.Event
	err := s.pool.QueryRow(ctx, `SELECT d.event_id, d.event_type, d.session_id, d.payload, COALESCE(n.agent_name, d.payload->>'agent', ''), COALESCE(n.channel, ''), COALESCE(n.traceparent, '')
		FROM dead_letters d LEFT JOIN sessions n ON n.session_id = COALESCE(NULLIF(d.session_id, ''), d.payload->>'session') WHERE d.dead_letter_id = $1`, id).
		Scan(&e.ID, &e.Type, &e.Session, &e.Payload, &e.Agent, &e.Channel, &e.TraceParent)
	return e, translate(err)
}

// DiscardDeadLetter says that by wants the letter ignored, for good.
// harness.Conflict, with the letter: it is discarded already.
func (s *Store) DiscardDeadLetter(ctx context.Context, id int64, by string) (view.DeadLetter, error) {
	var letter view.DeadLetter
	discarded := false
	b := &pgx.Batch{}
	b.Queue(`UPDATE dead_letters SET state = 'DISCARDED', decided_by = $2, updated_at = now() WHERE dead_letter_id = $1 AND state <> 'DISCARDED' RETURNING true`, id, clip(by)).
		Query(each(func(row pgx.CollectableRow) error { return row.Scan(&discarded) }))
	b.Queue(deadLetterSQL, id).Query(into(&letter, readDeadLetter))
	err := s.batch(ctx, b, nil)
	switch {
	case err != nil:
		return view.DeadLetter{}, err
	case letter.ID == 0:
		return letter, harness.Errorf(harness.NotFound, "there is no such dead letter")
	case !discarded:
		return letter, harness.Errorf(harness.Conflict, "it is discarded already")
	}
	return letter, nil
}
