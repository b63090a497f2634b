package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// ReplyClaim is one part of an outbound message with all that sending it needs.
// Whoever holds it writes with Token.
type ReplyClaim struct {
	ID            harness.ReplyID
	Token         int64
	Attempts      int                // this one included
	State         harness.ReplyState // UNKNOWN: an earlier attempt may have arrived; ask the provider before sending again
	Message       harness.MessageID
	Session       harness.Session
	ChannelUserID string
	Text          string
	Part, Parts   int
	InReplyTo     string               // provider's id of the message it answers
	Spec          *harness.ChannelSpec // nil: the agent has this account no more
	TraceParent   string
}

// ReplyOutcome is what one attempt to send came to.
type ReplyOutcome struct {
	State      harness.ReplyState // SENT or FAILED; PLANNED (surely not sent) or UNKNOWN (perhaps sent): again after Retry
	ProviderID string             // what the provider calls it, when SENT
	Reason     string             // for people, when not SENT
	Retry      time.Duration
}

// replyOpen is the condition of the partial indexes on replies.
const replyOpen = `state IN ('PLANNED', 'UNKNOWN')`

// mailboxSQL makes every open part of session $1 SENT when its hook has no
// address to send to: the part waits where its reader fetches it.
const mailboxSQL = `
WITH sent AS (
    UPDATE replies r SET state = 'SENT', provider_id = r.reply_id, attempts = r.attempts + 1, updated_at = now(),
           lease_owner = NULL, lease_until = NULL, lease_token = r.lease_token + 1
    FROM sessions s JOIN channel_routes c USING (channel, account, agent_name)
    WHERE r.session_id = $1 AND r.` + replyOpen + ` AND s.session_id = r.session_id
      AND s.channel = 'WEBHOOK' AND COALESCE(c.spec->>'callbackURL', '') = ''
    RETURNING r.message_id
) DELETE FROM outbox USING sent WHERE outbox.subject = sent.message_id`

// claimReplySQL claims the first open part of a session if it is due and free;
// those behind it wait with it. A lease that ran out was never marked: that
// attempt may have arrived.
const claimReplySQL = `
WITH claimed AS (
    UPDATE replies SET lease_owner = $2, lease_token = lease_token + 1, lease_until = now() + $3::interval,
           attempts = attempts + 1, state = CASE WHEN lease_owner IS NULL THEN state ELSE 'UNKNOWN' END, updated_at = now()
    WHERE reply_id = (SELECT reply_id FROM replies WHERE session_id = $1 AND ` + replyOpen + ` ORDER BY seq, part LIMIT 1)
      AND ` + replyOpen + ` AND due_at <= now() AND (lease_until IS NULL OR lease_until < now())
    RETURNING *
), heard AS (
    DELETE FROM outbox USING claimed WHERE outbox.subject = claimed.message_id
)
SELECT c.reply_id, c.lease_token, c.attempts, c.state, c.message_id, c.text, c.part, c.parts,
       s.session_id, s.agent_name, s.channel, s.account, s.chat, s.state, s.traceparent,
       m.channel_user_id, COALESCE(q.provider_id, ''), r.spec
FROM claimed c JOIN sessions s USING (session_id) JOIN messages m ON m.message_id = c.message_id
LEFT JOIN messages q ON q.message_id = m.in_reply_to
LEFT JOIN channel_routes r ON r.channel = s.channel AND r.account = s.account AND r.agent_name = s.agent_name`

// ClaimReply takes the lease of the first open part of the session, in one
// round trip. ErrNothingDue: none is open, or the first is held by another or
// waits for its next attempt: the replies of a session go out in order, one at
// a time. Parts for a webhook without a callback become SENT here and are never
// claimed.
func (s *Store) ClaimReply(ctx context.Context, session harness.SessionID, lease Lease) (*ReplyClaim, error) {
	b := &pgx.Batch{}
	b.Queue(mailboxSQL, session)
	b.Queue(claimReplySQL, session, lease.Owner, lease.For)
	return s.claimedReply(ctx, b, &lease)
}

// MarkReply writes what an attempt came to and, unless next is nil, claims the
// part behind it in the same round trip. ErrNothingDue: it is marked, and there
// is nothing to claim. ErrLeaseLost: somebody else has claimed the part since;
// nothing is written.
func (s *Store) MarkReply(ctx context.Context, c *ReplyClaim, o ReplyOutcome, next *Lease) (*ReplyClaim, error) {
	b := &pgx.Batch{}
	b.Queue(`SELECT fence_reply($1, $2)`, c.ID, c.Token)
	b.Queue(`UPDATE replies SET state = $2, reason = $3, provider_id = $4, due_at = now() + $5::interval,
		lease_owner = NULL, lease_until = NULL, updated_at = now() WHERE reply_id = $1`, c.ID, o.State, o.Reason, o.ProviderID, o.Retry)
	if next != nil {
		b.Queue(claimReplySQL, c.Session.ID, next.Owner, next.For)
	}
	return s.claimedReply(ctx, b, next)
}

// claimedReply runs b, whose last statement is the claim if lease is not nil.
func (s *Store) claimedReply(ctx context.Context, b *pgx.Batch, lease *Lease) (*ReplyClaim, error) {
	claim := &ReplyClaim{}
	before := b.Len()
	if lease != nil {
		before--
	}
	err := s.batch(ctx, b, func(results pgx.BatchResults) error {
		for range before {
			if _, err := results.Exec(); err != nil {
				return err
			}
		}
		if lease == nil {
			return ErrNothingDue
		}
		return claim.read(results)
	})
	if err != nil {
		return nil, err
	}
	return claim, nil
}

func (c *ReplyClaim) read(results pgx.BatchResults) error {
	rows, err := results.Query()
	if err != nil {
		return err
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
		return struct{}{}, row.Scan(&c.ID, &c.Token, &c.Attempts, &c.State, &c.Message, &c.Text, &c.Part, &c.Parts,
			&c.Session.ID, &c.Session.Agent, &c.Session.Channel, &c.Session.Account, &c.Session.Chat, &c.Session.State, &c.TraceParent,
			&c.ChannelUserID, &c.InReplyTo, &c.Spec)
	})
	if err == nil && len(found) == 0 {
		return ErrNothingDue
	}
	return err
}

// MarkFetched records that a reader of a webhook's mailbox was given these
// outbound messages of session: their parts are DELIVERED. Messages of a hook
// with a callback are left alone.
func (s *Store) MarkFetched(ctx context.Context, session harness.SessionID, messages []harness.MessageID) error {
	b := &pgx.Batch{}
	b.Queue(mailboxSQL, session)
	b.Queue(`UPDATE replies r SET state = 'DELIVERED', updated_at = now() FROM sessions s JOIN channel_routes c USING (channel, account, agent_name)
		WHERE r.session_id = $1 AND r.message_id = ANY ($2) AND r.state = 'SENT' AND s.session_id = r.session_id
		  AND s.channel = 'WEBHOOK' AND COALESCE(c.spec->>'callbackURL', '') = ''`, session, messages)
	return s.batch(ctx, b, nil)
}

// RepliesDue returns the wake of up to limit sessions, oldest first, whose next
// reply is due, held by nobody, and not announced by an outbox row any more: a
// backoff has passed, or a sender ended before it marked. Each wake has the id
// of the message's own announcement.
func (s *Store) RepliesDue(ctx context.Context, limit int) ([]event.Event, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT r.message_id, r.session_id, s.agent_name, s.channel, s.traceparent
		FROM replies r JOIN sessions s USING (session_id)
		WHERE r.`+replyOpen+` AND r.due_at <= now() AND (r.lease_until IS NULL OR r.lease_until < now())
		  AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.subject = r.message_id)
		  AND NOT EXISTS (SELECT 1 FROM replies p WHERE p.session_id = r.session_id AND p.`+replyOpen+` AND (p.seq, p.part) < (r.seq, r.part))
		ORDER BY r.due_at LIMIT $1`, limit)
	if err != nil {
		return nil, translate(err)
	}
	due, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (event.Event, error) {
		e := event.Event{Type: event.MessageReply}
		err := row.Scan(&e.Payload.Message, &e.Session, &e.Agent, &e.Channel, &e.TraceParent)
		e.ID, e.Payload.Session = "message.reply:"+string(e.Payload.Message), e.Session
		return e, err
	})
	return due, translate(err)
}
