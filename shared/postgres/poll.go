package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// PollClaim is the right to ask for the updates of one account.
type PollClaim struct {
	Token int64
	Next  int64 // the first update that nobody has stored; 0: none was ever read
}

// ClaimPoll takes the lease of an account's updates. ErrNothingDue: somebody
// else has it.
func (s *Store) ClaimPoll(ctx context.Context, channel harness.Channel, account string, lease Lease) (PollClaim, error) {
	var c PollClaim
	err := s.pool.QueryRow(ctx, `INSERT INTO polls AS p (channel, account, lease_owner, lease_token, lease_until) VALUES ($1, $2, $3, 1, now() + $4::interval)
		ON CONFLICT (channel, account) DO UPDATE SET lease_owner = $3, lease_token = p.lease_token + 1, lease_until = now() + $4::interval
		WHERE p.lease_owner IS NULL OR p.lease_until < now()
		RETURNING lease_token, next_offset`, channel, account, lease.Owner, lease.For).Scan(&c.Token, &c.Next)
	if err = translate(err); harness.KindOf(err) == harness.NotFound {
		return c, ErrNothingDue
	}
	return c, err
}

// ExtendPoll moves the end of the claim on. ErrLeaseLost when it is no longer ours.
func (s *Store) ExtendPoll(ctx context.Context, channel harness.Channel, account string, c PollClaim, lease Lease) error {
	return s.oneRow(ctx, `UPDATE polls SET lease_until = now() + $4::interval
		WHERE channel = $1 AND account = $2 AND lease_token = $3 AND lease_owner IS NOT NULL`, channel, account, c.Token, lease.For)
}

// ReleasePoll gives the claim back.
func (s *Store) ReleasePoll(ctx context.Context, channel harness.Channel, account string, c PollClaim) error {
	return s.oneRow(ctx, `UPDATE polls SET lease_owner = NULL, lease_until = NULL
		WHERE channel = $1 AND account = $2 AND lease_token = $3 AND lease_owner IS NOT NULL`, channel, account, c.Token)
}

// queueOffset writes how far an account has been read, first of all: a poller
// that lost its lease stores nothing.
func queueOffset(b *pgx.Batch, channel harness.Channel, o *PollOffset) {
	if o == nil {
		return
	}
	b.Queue(`SELECT fence_poll($1, $2, $3)`, channel, o.Account, o.Token)
	b.Queue(`UPDATE polls SET next_offset = $3 WHERE channel = $1 AND account = $2`, channel, o.Account, o.Next)
}
