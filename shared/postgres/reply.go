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
	InReplyTo     string               // what the provider calls the message it answers: on a channel with people its metadata says so
	Spec          *harness.ChannelSpec // nil: the agent has this account no more
	TraceParent   string
	At            time.Time // of the claim, by the database's clock: ours may be wrong

	Kind       harness.ReplyKind
	Format     harness.ReplyFormat // in which to send it
	Choices    []harness.Choice    // of kind CHOICES
	Attachment *Attachment         // of kind FILE
	Card       *SentCard           // of kind DECISION: the card it is about, where that was sent
	Drafted    bool                // a draft is kept whose place it takes
	Draft      *SentDraft          // nil: its chat shows none
	Callback   string              // the provider's own id of a tap that waits for an answer
	Code       string              // of kind CARD: what people type to decide it
	Address    string              // where it goes now
	WindowOpen bool                // the person wrote within the last 24 hours, or nobody knows when; a card then goes by template, where there is one
	Blocked    string              // why the chat takes nothing from us; empty: it does
}

// SentCard is a card as its chat shows it.
type SentCard struct {
	ProviderID string // what the provider calls it
	Text       string
}

// ReplyOutcome is what one attempt to send came to.
type ReplyOutcome struct {
	State      harness.ReplyState // SENT or FAILED; PLANNED (surely not sent) or UNKNOWN (perhaps sent): again after Retry
	ProviderID string             // what the provider calls it, when SENT
	Reason     string             // for people, when not SENT
	Retry      time.Duration

	Final   bool                // UNKNOWN for good: nobody sends it again, only evidence can settle it
	Code    int                 // the provider's error code, where it gave one
	Format  harness.ReplyFormat // of the next attempt; empty: as before
	Hold    time.Duration       // no reply to this chat before
	Blocked string              // the chat takes nothing from us any more, and why
	MovedTo string              // the chat has this address now
}

// ReplyLease is how a sender claims.
type ReplyLease struct {
	Lease
	Begins bool // the claim is already the beginning of the send: an attempt that ends without a mark may have arrived
}

// replyOpen is the condition of the partial indexes on replies, for the one that
// a statement calls by alias.
func replyOpen(alias string) string {
	return alias + `.state IN ('PLANNED', 'UNKNOWN') AND ` + alias + `.due_at IS NOT NULL`
}

// mailboxSQL makes every open part of session $1 SENT when its hook has no
// address to send to: the part waits where its reader fetches it.
var mailboxSQL = `
WITH sent AS (
    UPDATE replies r SET state = 'SENT', provider_id = r.reply_id, attempts = r.attempts + 1, updated_at = now(),
           lease_owner = NULL, lease_until = NULL, lease_token = r.lease_token + 1
    FROM sessions s JOIN channel_routes c USING (channel, account, agent_name)
    WHERE r.session_id = $1 AND ` + replyOpen("r") + ` AND s.session_id = r.session_id
      AND s.channel = 'WEBHOOK' AND COALESCE(c.spec->>'callbackURL', '') = ''
    RETURNING r.message_id
) DELETE FROM outbox USING sent WHERE outbox.subject = sent.message_id`

// claimReplySQL claims the first open part of a session if it is due and free;
// those behind it wait with it. Where its chat has a pace, the claim spends of
// it, and a part that comes too soon is made due when the pace allows it. No plan,
// whenever it was made, may walk all that is due or announced: the part is found by
// its key, and of claimed and held there is one at most.
var claimReplySQL = `
WITH next AS (
    SELECT r.reply_id, r.state AS was, c.chat, c.account, c.channel, c.pace_millis * interval '1 millisecond' AS every,
           CASE WHEN c.pace_millis > 0 AND r.state = 'PLANNED' THEN c.paced_until - greatest(c.pace_burst - 1, 0) * c.pace_millis * interval '1 millisecond' END AS allowed_at
    FROM replies r JOIN sessions s USING (session_id) LEFT JOIN chats c ON c.channel = s.channel AND c.account = s.account AND c.chat = s.chat
    WHERE r.session_id = $1 AND ` + replyOpen("r") + ` ORDER BY r.seq, r.part LIMIT 1
), claimed AS (
    UPDATE replies r SET lease_owner = $2, lease_token = lease_token + 1, lease_until = now() + $3::interval,
           attempts = attempts + 1, state = CASE WHEN $4 AND lease_owner IS NOT NULL THEN 'UNKNOWN' ELSE state END, updated_at = now()
    FROM next
    WHERE r.reply_id = next.reply_id AND r.state = next.was AND r.due_at <= now() AND (lease_until IS NULL OR lease_until < now())
      AND (next.allowed_at IS NULL OR next.allowed_at <= now())
      AND NOT EXISTS (SELECT 1 FROM messages o JOIN drafts d ON d.message_id = o.in_reply_to WHERE o.message_id = r.message_id AND d.lease_until > now())
    RETURNING r.*
), paced AS (
    UPDATE chats c SET paced_until = greatest(c.paced_until, now()) + next.every
    FROM next JOIN claimed USING (reply_id) WHERE c.channel = next.channel AND c.account = next.account AND c.chat = next.chat AND c.pace_millis > 0
), held AS (
    UPDATE replies r SET due_at = next.allowed_at FROM next
    WHERE r.reply_id = next.reply_id AND r.state = next.was AND next.allowed_at > now() AND next.allowed_at > r.due_at AND lease_owner IS NULL
    RETURNING r.message_id
), heard AS (
    DELETE FROM outbox WHERE subject = (SELECT message_id FROM claimed UNION ALL SELECT message_id FROM held)
)
SELECT c.reply_id, c.lease_token, c.attempts, c.state, c.message_id, c.text, c.part, c.parts, c.kind, c.format, c.choices,
       s.session_id, s.agent_name, s.channel, s.account, s.chat, s.state, s.traceparent,
       m.channel_user_id, COALESCE(CASE WHEN s.channel <> 'WEBHOOK' THEN q.metadata->>'messageId' END, q.provider_id, ''), r.spec,
       COALESCE(t.address, s.chat), COALESCE(t.last_inbound_at > now() - interval '24 hours', c.kind <> 'CARD' OR r.spec->'template' IS NULL), CASE WHEN t.blocked_at IS NULL THEN '' ELSE COALESCE(NULLIF(t.blocked_reason, ''), 'blocked') END,
       COALESCE(f.attachment_id, ''), COALESCE(f.kind, ''), COALESCE(f.file_name, ''), COALESCE(f.mime_type, ''), COALESCE(f.size_bytes, 0),
       COALESCE(f.state, ''), COALESCE(f.path, ''), COALESCE(f.object_key, ''),
       COALESCE(m.metadata->>'callbackQueryId', ''), COALESCE(card.provider_id, ''), COALESCE(card.text, ''),
       COALESCE((SELECT a.short_code FROM approvals a WHERE c.kind = 'CARD' AND a.approval_id = c.approval_id), ''),
       d.message_id IS NOT NULL, CASE WHEN d.state = 'SENT' THEN d.provider_id ELSE '' END, d.sent_at IS NOT NULL AND ` + draftLate + `, now()
FROM claimed c JOIN sessions s USING (session_id) JOIN messages m ON m.message_id = c.message_id
LEFT JOIN messages q ON q.message_id = m.in_reply_to
LEFT JOIN drafts d ON d.message_id = m.in_reply_to AND c.part = 1
LEFT JOIN channel_routes r ON r.channel = s.channel AND r.account = s.account AND r.agent_name = s.agent_name
LEFT JOIN chats t ON t.channel = s.channel AND t.account = s.account AND t.chat = s.chat
LEFT JOIN attachments f ON f.attachment_id = c.attachment_id
LEFT JOIN LATERAL (SELECT k.provider_id, k.text FROM replies k WHERE c.kind = 'DECISION' AND k.approval_id = c.approval_id AND k.session_id = c.session_id
    AND k.kind = 'CARD' AND k.provider_id <> '' AND k.message_id || 'o' = c.message_id LIMIT 1) card ON true`

// ClaimReply takes the lease of the first open part of the session, in one
// round trip. ErrNothingDue: none is open, or the first is held by another or
// waits for its next attempt: the replies of a session go out in order, one at
// a time. Parts for a webhook without a callback become SENT here and are never
// claimed.
func (s *Store) ClaimReply(ctx context.Context, session harness.SessionID, lease ReplyLease) (*ReplyClaim, error) {
	b := &pgx.Batch{}
	b.Queue(mailboxSQL, session)
	b.Queue(claimReplySQL, session, lease.Owner, lease.For, lease.Begins)
	return s.claimedReply(ctx, b, &lease)
}

// BeginSend commits that from now on the part may have been sent: it is UNKNOWN
// until it is marked. ErrLeaseLost: somebody else has claimed it since, and it
// must not be sent.
func (s *Store) BeginSend(ctx context.Context, c *ReplyClaim) error {
	return s.oneRow(ctx, `UPDATE replies SET state = 'UNKNOWN', reason = 'the answer of the provider is not known', updated_at = now()
		WHERE reply_id = $1 AND lease_token = $2 AND lease_owner IS NOT NULL AND state = 'PLANNED'`, c.ID, c.Token)
}

// ExtendReply moves the end of the claim on. ErrLeaseLost when it is no longer ours.
func (s *Store) ExtendReply(ctx context.Context, c *ReplyClaim, lease Lease) error {
	return s.oneRow(ctx, `UPDATE replies SET lease_until = now() + $3::interval
		WHERE reply_id = $1 AND lease_token = $2 AND lease_owner IS NOT NULL`, c.ID, c.Token, lease.For)
}

// SplitReply makes parts of a claimed part that was never sent: the claim becomes
// that of the first, the others follow it. ErrLeaseLost: somebody else has
// claimed it since; nothing is written.
func (s *Store) SplitReply(ctx context.Context, c *ReplyClaim, parts []string) error {
	ids := make([]string, len(parts))
	for i := range parts {
		ids[i] = string(harness.NewReplyID(s.now()))
	}
	ids[0] = string(c.ID)
	b := &pgx.Batch{}
	b.Queue(`SELECT fence_reply($1, $2)`, c.ID, c.Token)
	// Those behind make room from the last on, as part is unique at every row.
	b.Queue(`UPDATE replies SET part = -(part + $3) WHERE message_id = $1 AND part > $2`, c.Message, c.Part, len(parts)-1)
	b.Queue(`UPDATE replies SET part = -part WHERE message_id = $1 AND part < 0`, c.Message)
	b.Queue(`UPDATE replies SET text = $2 WHERE reply_id = $1`, c.ID, parts[0])
	// Only the last part carries what can be tapped.
	b.Queue(`INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, kind, choices, approval_id)
		SELECT p.reply_id, r.message_id, r.session_id, r.seq, r.part + p.n - 1, r.parts, p.text, 'PLANNED',
		       CASE WHEN p.n = $4 THEN r.kind ELSE 'TEXT' END, CASE WHEN p.n = $4 THEN r.choices ELSE '[]' END, CASE WHEN p.n = $4 THEN r.approval_id END
		FROM replies r, unnest($2::text[], $3::text[]) WITH ORDINALITY AS p (reply_id, text, n) WHERE r.reply_id = $1 AND p.n > 1`, c.ID, ids, parts, len(parts))
	b.Queue(`UPDATE replies SET kind = 'TEXT', choices = '[]', approval_id = NULL WHERE reply_id = $1 AND $2 > 1`, c.ID, len(parts))
	b.Queue(`UPDATE replies SET parts = (SELECT count(*) FROM replies WHERE message_id = $1) WHERE message_id = $1`, c.Message)
	if err := s.batch(ctx, b, nil); err != nil {
		return err
	}
	c.Text, c.Parts = parts[0], c.Parts+len(parts)-1
	if len(parts) > 1 {
		c.Kind, c.Choices = harness.ReplyText, nil
	}
	return nil
}

// MarkReply writes what an attempt came to and, unless next is nil, claims the
// part behind it in the same round trip. Evidence of the provider that has come
// meanwhile wins. ErrNothingDue: it is marked, and there is nothing to claim.
// ErrLeaseLost: somebody else has claimed the part since; nothing is written.
func (s *Store) MarkReply(ctx context.Context, c *ReplyClaim, o ReplyOutcome, next *ReplyLease) (claim *ReplyClaim, err error) {
	err = again(func() error {
		claim, err = s.claimedReply(ctx, c.mark(o, next), next)
		return err
	})
	return claim, err
}

func (c *ReplyClaim) mark(o ReplyOutcome, next *ReplyLease) *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(`SELECT fence_reply($1, $2)`, c.ID, c.Token)
	b.Queue(`UPDATE replies SET state = CASE WHEN `+replyOpen("replies")+` THEN $2 ELSE state END, reason = CASE WHEN `+replyOpen("replies")+` THEN $3 ELSE reason END,
			provider_id = CASE WHEN $4 <> '' THEN $4 ELSE provider_id END, provider_code = COALESCE(NULLIF($6, 0), provider_code),
			format = COALESCE(NULLIF($7, ''), format), due_at = CASE WHEN $8 THEN NULL ELSE now() + $5::interval END,
			lease_owner = NULL, lease_until = NULL, updated_at = now() WHERE reply_id = $1`,
		c.ID, o.State, o.Reason, o.ProviderID, o.Retry, o.Code, o.Format, o.Final)
	c.undraft(b, o)
	if o.MovedTo != "" { // aliases before chats, as arrivals take them
		b.Queue(`INSERT INTO chat_aliases (channel, account, alias, chat) VALUES ($1, $2, $3, $4)
			ON CONFLICT (channel, account, alias) DO UPDATE SET chat = EXCLUDED.chat`, c.Session.Channel, c.Session.Account, o.MovedTo, c.Session.Chat)
	}
	if o.Hold > 0 || o.Blocked != "" || o.MovedTo != "" {
		b.Queue(`INSERT INTO chats AS c (channel, account, chat, address, paced_until, blocked_at, blocked_reason)
			VALUES ($1, $2, $3, COALESCE(NULLIF($4, ''), $3), CASE WHEN $5::interval > interval '0' THEN now() + $5::interval END, CASE WHEN $6 <> '' THEN now() END, $6)
			ON CONFLICT (channel, account, chat) DO UPDATE SET address = COALESCE(NULLIF($4, ''), c.address),
				paced_until = CASE WHEN $5::interval > interval '0' THEN greatest(c.paced_until, now() + $5::interval + greatest(c.pace_burst - 1, 0) * c.pace_millis * interval '1 millisecond') ELSE c.paced_until END,
				blocked_at = COALESCE(EXCLUDED.blocked_at, c.blocked_at), blocked_reason = CASE WHEN $6 <> '' THEN $6 ELSE c.blocked_reason END`,
			c.Session.Channel, c.Session.Account, c.Session.Chat, o.MovedTo, o.Hold, o.Blocked)
	}
	if next != nil {
		b.Queue(claimReplySQL, c.Session.ID, next.Owner, next.For, next.Begins)
	}
	return b
}

// claimedReply runs b, whose last statement is the claim if lease is not nil.
func (s *Store) claimedReply(ctx context.Context, b *pgx.Batch, lease *ReplyLease) (*ReplyClaim, error) {
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
		f, card, draft := &Attachment{}, &SentCard{}, &SentDraft{}
		err := row.Scan(&c.ID, &c.Token, &c.Attempts, &c.State, &c.Message, &c.Text, &c.Part, &c.Parts, &c.Kind, &c.Format, &c.Choices,
			&c.Session.ID, &c.Session.Agent, &c.Session.Channel, &c.Session.Account, &c.Session.Chat, &c.Session.State, &c.TraceParent,
			&c.ChannelUserID, &c.InReplyTo, &c.Spec, &c.Address, &c.WindowOpen, &c.Blocked,
			&f.ID, &f.Kind, &f.FileName, &f.MimeType, &f.Bytes, &f.State, &f.Path, &f.ObjectKey,
			&c.Callback, &card.ProviderID, &card.Text, &c.Code, &c.Drafted, &draft.ProviderID, &draft.Late, &c.At)
		if card.ProviderID != "" {
			c.Card = card
		}
		if draft.ProviderID != "" {
			c.Draft = draft
		}
		if f.ID != "" {
			f.Session, f.Agent, f.Channel, f.Account = c.Session.ID, c.Session.Agent, c.Session.Channel, c.Session.Account
			c.Attachment = f
		}
		return struct{}{}, err
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
		WHERE `+replyOpen("r")+` AND r.due_at <= now() AND (r.lease_until IS NULL OR r.lease_until < now())
		  AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.subject = r.message_id)
		  AND NOT EXISTS (SELECT 1 FROM replies p WHERE p.session_id = r.session_id AND `+replyOpen("p")+` AND (p.seq, p.part) < (r.seq, r.part))
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
