package postgres

import (
	"context"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// ApprovalCursor is a place in the order of all approvals' events: that of their
// transactions, and within one of their numbers. Nothing comes in behind a place
// that ApprovalFeed has returned.
type ApprovalCursor struct {
	Tx  uint64
	Seq int64
}

// String is what ParseApprovalCursor reads.
func (c ApprovalCursor) String() string {
	return strconv.FormatUint(c.Tx, 10) + "." + strconv.FormatInt(c.Seq, 10)
}

// ParseApprovalCursor reads what String wrote; false: it did not write that.
func ParseApprovalCursor(text string) (ApprovalCursor, bool) {
	tx, seq, ok := strings.Cut(text, ".")
	var c ApprovalCursor
	var errTx, errSeq error
	c.Tx, errTx = strconv.ParseUint(tx, 10, 64)
	c.Seq, errSeq = strconv.ParseInt(seq, 10, 64)
	return c, ok && errTx == nil && errSeq == nil && c.Seq >= 0
}

// ApprovalEvent is an approval that was asked for or has ended, as it is now.
type ApprovalEvent struct {
	At       ApprovalCursor
	Approval view.Approval
}

// ApprovalHead is the place behind which every event of a transaction comes that
// is not over yet. What the database shows from then on, or an event behind it,
// says of each approval how it is.
func (s *Store) ApprovalHead(ctx context.Context) (ApprovalCursor, error) {
	var tx string
	err := s.pool.QueryRow(ctx, `SELECT pg_snapshot_xmin(pg_current_snapshot())::text`).Scan(&tx)
	if err != nil {
		return ApprovalCursor{}, translate(err)
	}
	n, err := strconv.ParseUint(tx, 10, 64)
	if err != nil {
		return ApprovalCursor{}, harness.Wrap(harness.Internal, err, "the database names a transaction in another way")
	}
	return ApprovalCursor{Tx: n}, nil
}

// ApprovalFeed returns up to limit events behind after, of agent or of all, in
// order. It stays behind the oldest transaction that is open.
func (s *Store) ApprovalFeed(ctx context.Context, agent harness.AgentName, after ApprovalCursor, limit int) ([]ApprovalEvent, error) {
	return list(ctx, s, `SELECT e.tx::text, e.event_seq, `+approvalColumns+`
		FROM (SELECT tx, event_seq, approval_id FROM approval_events
			WHERE (tx, event_seq) > ($1::text::xid8, $2::bigint) AND tx < pg_snapshot_xmin(pg_current_snapshot()) AND ($3 = '' OR agent_name = $3)
			ORDER BY tx, event_seq LIMIT $4) e JOIN approvals a USING (approval_id) ORDER BY e.tx, e.event_seq`,
		[]any{strconv.FormatUint(after.Tx, 10), after.Seq, agent, limit}, func(row pgx.CollectableRow) (ApprovalEvent, error) {
			var e ApprovalEvent
			var tx string
			v, err := scanApproval(row, &tx, &e.At.Seq)
			if err != nil {
				return e, err
			}
			e.Approval = v
			e.At.Tx, err = strconv.ParseUint(tx, 10, 64)
			return e, err
		})
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
