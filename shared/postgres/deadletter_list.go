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
// The ID of a place is the letter's in decimal. One that is committed late may come
// behind a page that was read: the next walk has it.
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

// lockLetterSQL lets nobody else decide what becomes of a letter.
const lockLetterSQL = `SELECT 1 FROM dead_letters WHERE dead_letter_id = $1 FOR NO KEY UPDATE`

// letterAudit records, for each row of from, what became of a letter that was_state
// and was_by: arguments n to n+2 are those of an Audit.
func letterAudit(n int, from string) string {
	return auditSQL(n, from, `id::text`, `jsonb_build_object('event', event_id, 'type', event_type, 'session', session_id, 'state', was_state, 'decidedBy', was_by)`,
		`jsonb_build_object('event', event_id, 'type', event_type, 'session', session_id, 'state', state, 'decidedBy', decided_by)`)
}

// discardSQL discards letter $1, which is locked, for $2.
var discardSQL = `
WITH was AS (
    SELECT dead_letter_id AS id, state AS was_state, decided_by AS was_by FROM dead_letters WHERE dead_letter_id = $1 AND state <> 'DISCARDED'
), discarded AS (
    UPDATE dead_letters SET state = 'DISCARDED', decided_by = $2, updated_at = now() FROM was WHERE dead_letter_id = id RETURNING *
), audited AS (
    ` + letterAudit(3, `discarded`) + `
)
SELECT true FROM discarded`

// renew makes the work of row $3 due at once, if it has any left and is not due as
// it is. Who holds a claim on it goes on.
var renew = map[work]string{
	sessionWork: `UPDATE sessions SET due_at = CASE WHEN due_at IS NULL THEN NULL ELSE now() END, retry_at = NULL, announced_at = NULL, dead_lettered_at = NULL
        WHERE session_id = $3 AND state NOT IN ('COMPLETED', 'CANCELLED') AND (due_at IS NOT NULL OR lease_owner IS NOT NULL)
          AND (due_at > now() OR retry_at IS NOT NULL OR announced_at IS NOT NULL OR dead_lettered_at IS NOT NULL)`,
	executionWork: `UPDATE executions SET due_at = CASE WHEN due_at IS NULL THEN NULL ELSE now() END, attempts = 0, dead_lettered_at = NULL
        WHERE execution_id = $3 AND ended_at IS NULL AND (due_at > now() OR attempts > 0 OR dead_lettered_at IS NOT NULL)`,
	replyWork: `UPDATE replies SET due_at = now(), dead_lettered_at = NULL
        WHERE message_id = $3 AND ` + replyOpen("replies") + ` AND (due_at > now() OR dead_lettered_at IS NOT NULL)`,
}

// replaySQL replays letter $1, which is locked and announces such work, for $2.
// One that is replayed already changes when its work does, or who replays it.
func replaySQL(of work) string {
	renewed := `SELECT 1 WHERE $3 = '' AND false`
	if update, ok := renew[of]; ok {
		renewed = update + ` AND EXISTS (SELECT 1 FROM was) RETURNING 1`
	}
	return `
WITH was AS (
    SELECT dead_letter_id AS id, state AS was_state, decided_by AS was_by FROM dead_letters WHERE dead_letter_id = $1 AND state <> 'DISCARDED'
), renewed AS (
    ` + renewed + `
), replayed AS (
    UPDATE dead_letters SET state = 'REPLAYED', decided_by = $2, updated_at = now()
    FROM was WHERE dead_letter_id = id AND (state <> 'REPLAYED' OR decided_by <> $2 OR EXISTS (SELECT 1 FROM renewed)) RETURNING *
), audited AS (
    ` + letterAudit(4, `replayed`) + `
)
SELECT true FROM was`
}

// ReplayDeadLetter marks the work of a dead letter due, if it is not done, and
// returns the letter, REPLAYED by by, and its event to publish: with the id it
// had, so that consumers know a repeat. The event of work that is done has no
// effect. harness.Conflict, with the letter: it is DISCARDED, or of a source
// whose events announce nothing.
func (s *Store) ReplayDeadLetter(ctx context.Context, id int64, by Audit) (view.DeadLetter, event.Event, error) {
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
	kind, row := workOf(e)
	b.Queue(lockLetterSQL, id)
	b.Queue(replaySQL(kind), append([]any{id, clip(by.Actor), row}, by.args()...)...).
		Query(each(func(row pgx.CollectableRow) error { return row.Scan(&replayed) }))
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
func (s *Store) DiscardDeadLetter(ctx context.Context, id int64, by Audit) (view.DeadLetter, error) {
	var letter view.DeadLetter
	discarded := false
	b := &pgx.Batch{}
	b.Queue(lockLetterSQL, id)
	b.Queue(discardSQL, append([]any{id, clip(by.Actor)}, by.args()...)...).
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
