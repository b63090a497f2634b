package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// SweepClaim is the right to sweep: one pass at a time over all processes.
type SweepClaim struct {
	Token int64
	Age   *time.Duration // since the last full pass; nil: there was none yet
}

// Finding is what one item of a pass came to.
type Finding struct {
	Found int    `json:"found"`            // rows or objects that needed something
	Done  int    `json:"done"`             // of them, those that got it
	Left  int    `json:"left"`             // of them, those left to a later pass; more may wait behind them
	Error string `json:"reason,omitempty"` // why the item stopped
	Note  string `json:"note,omitempty"`   // why something is left, where that is no failure

	// Of those found, objects that no row knows and rows whose object is gone.
	Objects int `json:"objects,omitempty"`
	Rows    int `json:"rows,omitempty"`
}

// ClaimSweep takes the lease of the sweep. ErrNothingDue: somebody else has it.
func (s *Store) ClaimSweep(ctx context.Context, lease Lease) (SweepClaim, error) {
	var claim SweepClaim
	var seconds *float64
	err := s.pool.QueryRow(ctx, `UPDATE sweeps SET lease_owner = $1, lease_token = lease_token + 1, lease_until = now() + $2::interval
		WHERE sweep_name = 'main' AND (lease_owner IS NULL OR lease_until < now())
		RETURNING lease_token, extract(epoch FROM now() - completed_at)::float8`, lease.Owner, lease.For).Scan(&claim.Token, &seconds)
	if err = translate(err); harness.KindOf(err) == harness.NotFound {
		return claim, ErrNothingDue
	}
	if seconds != nil {
		age := time.Duration(*seconds * float64(time.Second))
		claim.Age = &age
	}
	return claim, err
}

// ExtendSweep moves the end of the claim on. ErrLeaseLost when it is no longer ours.
func (s *Store) ExtendSweep(ctx context.Context, c SweepClaim, lease Lease) error {
	return s.oneRow(ctx, `UPDATE sweeps SET lease_until = now() + $2::interval WHERE sweep_name = 'main' AND lease_token = $1 AND lease_owner IS NOT NULL`, c.Token, lease.For)
}

// ReleaseSweep gives the claim back.
func (s *Store) ReleaseSweep(ctx context.Context, c SweepClaim) error {
	return s.oneRow(ctx, `UPDATE sweeps SET lease_owner = NULL, lease_until = NULL WHERE sweep_name = 'main' AND lease_token = $1 AND lease_owner IS NOT NULL`, c.Token)
}

// oneRow runs a statement under a claim that must find its one row.
func (s *Store) oneRow(ctx context.Context, sql string, args ...any) error {
	tag, err := s.pool.Exec(ctx, sql, args...)
	if err == nil && tag.RowsAffected() == 0 {
		return ErrLeaseLost
	}
	return translate(err)
}

// ReportSweep stores what a pass found; full says that every item ran. The claim
// stays. ErrLeaseLost: somebody else sweeps meanwhile; nothing is written.
func (s *Store) ReportSweep(ctx context.Context, c SweepClaim, took time.Duration, findings map[string]Finding, full bool) error {
	return s.oneRow(ctx, `WITH ours AS (
			UPDATE sweeps SET completed_at = CASE WHEN $4 THEN now() ELSE completed_at END
			WHERE sweep_name = 'main' AND lease_token = $1 AND lease_owner IS NOT NULL RETURNING 1
		) INSERT INTO sweep_reports (started_at, findings) SELECT now() - $2::interval, $3 FROM ours`, c.Token, took, findings, full)
}

// announceSession is how long a session that is due may go unclaimed before the
// sweep wakes it (again). Shorter than announceAgain: waking a session costs one
// statement when there is nothing to do.
const announceSession = "interval '20 seconds'"

// SessionsUnheard returns wakes of up to limit sessions that are due, and of as many
// whose claim ran out, that nobody has claimed in time, and marks them announced:
// concurrent callers get different ones. Attempts is at least 3 when an earlier
// wake by this method led to no claim. The conditions are those of ClaimSession,
// checked on the locked row, so that a session somebody finishes meanwhile is
// left alone.
func (s *Store) SessionsUnheard(ctx context.Context, limit int) ([]Unheard, error) {
	// Each half walks its own index from the oldest on: a backlog of either costs a
	// batch no more than what was announced of it just before.
	const of = `SELECT session_id, COALESCE(announced_token = lease_token, false) AS unheard FROM sessions
			WHERE state NOT IN ('COMPLETED', 'CANCELLED') AND (lease_until IS NULL OR lease_until < now()) AND (retry_at IS NULL OR retry_at <= now())
			  AND (announced_at IS NULL OR announced_at < now() - ` + announceSession + `) AND `
	rows, err := s.pool.Query(ctx, `
		WITH due AS (`+of+`lease_owner IS NULL AND due_at <= now() AND (retry_at IS NOT NULL OR due_at < now() - `+announceSession+`) AND NOT `+heldSQL("sessions")+`
			ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
		), dead AS (`+of+`lease_owner IS NOT NULL AND NOT `+heldSQL("sessions")+`
			ORDER BY lease_until LIMIT $1 FOR UPDATE SKIP LOCKED
		)
		UPDATE sessions s SET announced_at = now(), announced_token = s.lease_token
		FROM (SELECT * FROM due UNION ALL SELECT * FROM dead) due
		WHERE s.session_id = due.session_id
		RETURNING s.session_id, s.agent_name, s.channel, s.traceparent, s.lease_token, due.unheard`, limit)
	if err != nil {
		return nil, translate(err)
	}
	unheard, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Unheard, error) {
		var id harness.SessionID
		var agent harness.AgentName
		var channel harness.Channel
		var traceparent string
		var token int64
		var again bool
		err := row.Scan(&id, &agent, &channel, &traceparent, &token, &again)
		u := Unheard{Event: sessionDue(id, agent, fmt.Sprint(token)).Event, Attempts: 2}
		u.Channel, u.TraceParent = channel, traceparent
		if again {
			u.Attempts = 3
		}
		return u, err
	})
	return unheard, translate(err)
}

// KeepAnnouncing gives each event an outbox row, unless it has one: from then on
// TakeUnheard repeats and counts it until the row it announces is claimed.
func (s *Store) KeepAnnouncing(ctx context.Context, events []event.Event) error {
	b := &pgx.Batch{}
	for _, e := range events {
		subject := string(e.Payload.Session)
		switch e.Type {
		case event.MessageReply:
			subject = string(e.Payload.Message)
		case event.ExecutionRequested:
			subject = string(e.Payload.Execution)
		case event.MediaRequested:
			subject = mediaSubject(e.Session)
		}
		announce(b, announcement{Event: e, subject: subject})
	}
	return s.batch(ctx, b, nil)
}

// CompleteIdle ends up to limit conversations that nobody has written to for
// their idle time, and returns how many. A message that arrives meanwhile wins.
func (s *Store) CompleteIdle(ctx context.Context, limit int) (int, error) {
	return s.count(ctx, `
		UPDATE sessions s SET state = 'COMPLETED', reason = 'idle', ended_at = now(), updated_at = now(), retry_at = NULL
		FROM (SELECT session_id FROM sessions n
			WHERE state IN ('IDLE', 'BLOCKED', 'FAILED') AND idle_seconds > 0 AND updated_at < now() - idle_seconds * interval '1 second'
			  AND due_at IS NULL AND lease_owner IS NULL
			  AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.session_id = n.session_id AND m.state = 'PENDING')
			ORDER BY updated_at LIMIT $1 FOR UPDATE SKIP LOCKED) idle
		WHERE s.session_id = idle.session_id`, limit)
}

// CreateLogPartitions makes the log partitions of today and the given number of
// days after it, moves what waits for one, and returns how many it made.
func (s *Store) CreateLogPartitions(ctx context.Context, days int) (int, error) {
	var made int
	err := s.pool.QueryRow(ctx, `SELECT create_log_partitions($1)`, days).Scan(&made)
	return made, translate(err)
}

// DeleteOldInbox deletes up to limit inbox rows older than keep, which must be
// longer than any provider repeats an update, and returns how many.
func (s *Store) DeleteOldInbox(ctx context.Context, keep time.Duration, limit int) (int, error) {
	return s.count(ctx, `DELETE FROM inbox WHERE ctid IN (SELECT ctid FROM inbox WHERE received_at < now() - $1::interval LIMIT $2)`, keep, limit)
}

// DeleteOldReports deletes up to limit sweep reports older than keep and returns
// how many.
func (s *Store) DeleteOldReports(ctx context.Context, keep time.Duration, limit int) (int, error) {
	return s.count(ctx, `DELETE FROM sweep_reports WHERE sweep_report_id IN (
		SELECT sweep_report_id FROM sweep_reports WHERE completed_at < now() - $1::interval ORDER BY sweep_report_id LIMIT $2)`, keep, limit)
}

// DeleteMootAnnouncements looks at the limit outbox rows that are due first and
// deletes those, older than ten minutes, of which nothing can come: their session
// ended or has nothing to do, their execution ended, their replies or signals are
// sent, or nobody knew their subject for a day. It returns how many. Every row
// falls due at least every ten minutes, so that each is looked at, and never more
// of them at a time. A claim deletes the announcements it sees; one that is
// committed at that very moment is left behind, and nobody would claim again
// because of it.
func (s *Store) DeleteMootAnnouncements(ctx context.Context, limit int) (int, error) {
	return s.count(ctx, `DELETE FROM outbox WHERE event_id = ANY (ARRAY(
		SELECT o.event_id FROM (SELECT event_id, subject, created_at FROM outbox WHERE due_at <= now() ORDER BY due_at LIMIT $1) o
		LEFT JOIN sessions s ON s.session_id = o.subject LEFT JOIN executions e ON e.execution_id = o.subject LEFT JOIN messages m ON m.message_id = o.subject
		LEFT JOIN temporal_signals g ON g.temporal_signal_id = o.subject
		WHERE o.created_at < now() - interval '10 minutes' AND CASE
			WHEN s.session_id IS NOT NULL THEN s.state IN ('COMPLETED', 'CANCELLED') OR (s.due_at IS NULL AND s.lease_owner IS NULL)
			WHEN e.execution_id IS NOT NULL THEN e.ended_at IS NOT NULL
			WHEN m.message_id IS NOT NULL THEN NOT EXISTS (SELECT 1 FROM replies r WHERE r.message_id = m.message_id AND `+replyOpen("r")+`)
			WHEN g.temporal_signal_id IS NOT NULL THEN g.state <> 'PENDING'
			ELSE o.created_at < now() - interval '1 day' END))`, limit)
}

func (s *Store) count(ctx context.Context, sql string, args ...any) (int, error) {
	tag, err := s.pool.Exec(ctx, sql, args...)
	return int(tag.RowsAffected()), translate(err)
}

// NextDue returns how long it is until the next row falls due for the sweep, if
// that is within the given time: a session's or reply's or command's timer, or
// the repeat of an announcement. What is due already counts as now.
func (s *Store) NextDue(ctx context.Context, within time.Duration) (time.Duration, bool, error) {
	var seconds *float64
	err := s.pool.QueryRow(ctx, `SELECT extract(epoch FROM min(due) - now())::float8 FROM (
			SELECT min(due_at) AS due FROM outbox
			UNION ALL SELECT min(due_at) FROM replies WHERE `+replyOpen("replies")+` AND due_at > now()
			UNION ALL SELECT min(due_at) FROM approvals WHERE state = 'PENDING' AND due_at > now()
			UNION ALL SELECT min(due_at) FROM attachments WHERE state = 'REQUESTED' AND due_at > now()
			UNION ALL SELECT min(greatest(due_at, lease_until)) FROM temporal_signals WHERE state = 'PENDING' AND greatest(due_at, lease_until) > now()
			UNION ALL SELECT min(due_at) FROM executions WHERE state IN ('PENDING', 'RUNNING') AND due_at > now()
			UNION ALL SELECT min(greatest(due_at + CASE WHEN retry_at IS NULL THEN `+announceSession+` ELSE interval '0' END, retry_at, lease_until, announced_at + `+announceSession+`))
				FROM sessions WHERE due_at IS NOT NULL AND state NOT IN ('COMPLETED', 'CANCELLED') AND NOT `+heldSQL("sessions")+`
		) timers`).Scan(&seconds)
	if err != nil || seconds == nil {
		return 0, false, translate(err)
	}
	next := max(0, time.Duration(*seconds*float64(time.Second)))
	return next, next <= within, nil
}
