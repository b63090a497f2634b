package postgres

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// ApprovalCursor is a place in the order of all approvals' events. Nothing comes
// in before a place that ApprovalHead or ApprovalFeed has returned.
type ApprovalCursor int64

// String is what ParseApprovalCursor reads.
func (c ApprovalCursor) String() string { return strconv.FormatInt(int64(c), 10) }

// ParseApprovalCursor reads what String wrote; false: it did not write that.
func ParseApprovalCursor(text string) (ApprovalCursor, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return ApprovalCursor(n), err == nil && n >= 0
}

// ApprovalEvent is an approval that was asked for or has ended, as it is now.
type ApprovalEvent struct {
	At       ApprovalCursor
	Approval view.Approval
}

// aloneSQL takes the lock that those share who write events. A statement behind it
// sees all that was written, and nothing that is being written.
const aloneSQL = `SELECT pg_try_advisory_xact_lock(hashtext('approval_events'))`

const (
	headTries = 100
	headPause = 20 * time.Millisecond
)

// ApprovalHead is the place behind all events so far. harness.Unavailable:
// approvals have been written all the while, for two seconds.
func (s *Store) ApprovalHead(ctx context.Context) (ApprovalCursor, error) {
	for range headTries {
		var alone bool
		var head ApprovalCursor
		b := &pgx.Batch{}
		b.Queue(aloneSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&alone) })
		b.Queue(`SELECT COALESCE(max(event_seq), 0) FROM approval_events`).QueryRow(func(row pgx.Row) error { return row.Scan(&head) })
		if err := s.batch(ctx, b, nil); err != nil || alone {
			return head, err
		}
		again := time.NewTimer(headPause)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return 0, translate(ctx.Err())
		}
	}
	return 0, harness.Errorf(harness.Unavailable, "approvals are being written all the while")
}

// ApprovalFeed returns up to limit events behind after, of agent or of all, in
// order. While a transaction is open that writes one, it returns none: they come
// with the next call.
func (s *Store) ApprovalFeed(ctx context.Context, agent harness.AgentName, after ApprovalCursor, limit int) ([]ApprovalEvent, error) {
	var alone bool
	var found []ApprovalEvent
	b := &pgx.Batch{}
	b.Queue(aloneSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&alone) })
	b.Queue(`SELECT e.event_seq, `+approvalColumns+`
		FROM (SELECT event_seq, approval_id FROM approval_events WHERE event_seq > $1 AND ($2 = '' OR agent_name = $2) ORDER BY event_seq LIMIT $3) e
		JOIN approvals a USING (approval_id) ORDER BY e.event_seq`, after, agent, limit).
		Query(each(func(row pgx.CollectableRow) error {
			var e ApprovalEvent
			var err error
			e.Approval, err = scanApproval(row, &e.At)
			found = append(found, e)
			return err
		}))
	if err := s.batch(ctx, b, nil); err != nil || !alone {
		return nil, err
	}
	return found, nil
}

// CountApprovals returns, by agent, what waits for a decision in time.
func (s *Store) CountApprovals(ctx context.Context) ([]view.ApprovalCount, error) {
	return list(ctx, s, `SELECT agent_name, count(*), min(created_at), min(expires_at) FROM approvals
		WHERE state = 'PENDING' AND (expires_at IS NULL OR expires_at > now()) GROUP BY agent_name ORDER BY agent_name`, nil, func(row pgx.CollectableRow) (view.ApprovalCount, error) {
		var c view.ApprovalCount
		err := row.Scan(&c.Agent, &c.Pending, &c.OldestRequestedAt, &c.NextExpiresAt)
		return c, err
	})
}
