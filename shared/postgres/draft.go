package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// Draft is what the model has written so far of an answer that it still writes.
type Draft struct {
	Session  harness.SessionID
	Message  harness.MessageID // that it answers
	Revision int64
	Text     string
}

// currentDraft is the condition of a draft that is still written, for a draft d
// and its session s: the claim that writes it has the session.
const currentDraft = `d.ended_at IS NULL AND d.text <> '' AND d.session_token = s.lease_token AND s.lease_owner IS NOT NULL`

// WriteDraft replaces the draft of the answer to the last turn's message of c.
// Drafts of earlier turns of the session that led to no answer go. ErrLeaseLost:
// somebody else has claimed the session since, or the turn is over; nothing is
// written.
func (s *Store) WriteDraft(ctx context.Context, c *Claim, text string) error {
	return s.oneRow(ctx, `WITH ours AS (
			SELECT session_id FROM sessions WHERE session_id = $1 AND lease_token = $2 AND lease_owner IS NOT NULL
		), past AS (
			DELETE FROM drafts d USING ours WHERE d.session_id = ours.session_id AND d.message_id <> $3 AND d.ended_at IS NULL
		)
		INSERT INTO drafts AS d (message_id, session_id, session_token, text) SELECT $3, session_id, $2, $4 FROM ours
		ON CONFLICT (message_id) DO UPDATE SET text = EXCLUDED.text, session_token = EXCLUDED.session_token, revision = d.revision + 1, updated_at = now()
		WHERE d.session_token <= EXCLUDED.session_token AND d.ended_at IS NULL`, c.ID, c.Token, c.Turns[len(c.Turns)-1].Message, text)
}

// Draft returns what is written now in a session. harness.NotFound: nothing.
func (s *Store) Draft(ctx context.Context, session harness.SessionID) (Draft, error) {
	return s.draft(ctx, `FROM drafts d JOIN sessions s USING (session_id) WHERE s.session_id = $1 AND `, session)
}

// ChatDraft returns what is written now in a chat, to whatever agent has its account.
// harness.NotFound: nothing.
func (s *Store) ChatDraft(ctx context.Context, channel harness.Channel, account, chat string) (Draft, error) {
	return s.draft(ctx, `FROM drafts d JOIN (`+conversationSQL+`) s USING (session_id) WHERE `, channel, account, chat)
}

func (s *Store) draft(ctx context.Context, from string, args ...any) (Draft, error) {
	var d Draft
	err := s.pool.QueryRow(ctx, `SELECT d.session_id, d.message_id, d.revision, d.text `+from+currentDraft+` ORDER BY d.updated_at DESC LIMIT 1`, args...).
		Scan(&d.Session, &d.Message, &d.Revision, &d.Text)
	return d, translate(err)
}

// DraftClaim is a draft that is to be shown in its chat. Whoever holds it writes
// with Token.
type DraftClaim struct {
	Message    harness.MessageID // that it answers
	Revision   int64
	Text       string
	Token      int64
	ProviderID string // of the message that shows the draft; empty: it is the first to be shown
	Session    harness.Session
	Address    string
	InReplyTo  string // what the provider calls the message
	Spec       *harness.ChannelSpec
}

// DraftOutcome is what showing a draft came to.
type DraftOutcome struct {
	State      harness.ReplyState // SENT; PLANNED: surely not sent, a later one may be; FAILED: none is shown; UNKNOWN: perhaps sent
	ProviderID string             // of what was sent
	Shown      bool               // the message shows this revision
	Hold       time.Duration      // none before
}

// draftLate is the condition of a draft d that something was sent behind in its
// conversation: what takes its place then would stand before that.
const draftLate = `EXISTS (SELECT 1 FROM messages o JOIN replies r ON r.message_id = o.message_id
	WHERE o.session_id = d.session_id AND o.seq > (SELECT q.seq FROM messages q WHERE q.message_id = d.message_id) AND o.in_reply_to IS DISTINCT FROM d.message_id
	AND r.updated_at > d.sent_at AND r.state IN ('SENT', 'DELIVERED', 'READ', 'UNKNOWN'))`

// claimDraftSQL claims the draft of the answer to message $1, where it has grown.
// Replies go before it, and it takes of their pace only what they leave: half of
// it, where a chat takes little. What is sent for the first time is UNKNOWN until
// it is marked.
var claimDraftSQL = `
WITH next AS (
    SELECT d.message_id, c.channel, c.account, c.chat, COALESCE(c.pace_millis, 0) * interval '1 millisecond' AS every
    FROM drafts d JOIN sessions s USING (session_id) LEFT JOIN chats c ON c.channel = s.channel AND c.account = s.account AND c.chat = s.chat
    WHERE d.message_id = $1 AND ` + currentDraft + ` AND (c.paced_until IS NULL OR c.paced_until <= now()) AND c.blocked_at IS NULL
      AND NOT EXISTS (SELECT 1 FROM replies r WHERE r.session_id = d.session_id AND ` + replyOpen("r") + `) AND NOT ` + draftLate + `
), claimed AS (
    UPDATE drafts d SET lease_owner = $2, lease_token = d.lease_token + 1, lease_until = now() + $3::interval,
           sent_at = CASE WHEN d.state = 'PLANNED' THEN now() ELSE d.sent_at END, state = CASE WHEN d.state = 'PLANNED' THEN 'UNKNOWN' ELSE d.state END,
           due_at = now() + next.every * CASE WHEN next.every > interval '1 second' THEN 2 ELSE 1 END
    FROM next WHERE d.message_id = next.message_id AND d.state IN ('PLANNED', 'SENT') AND d.ended_at IS NULL AND d.revision > d.shown_revision
      AND d.due_at <= now() AND (d.lease_until IS NULL OR d.lease_until < now())
    RETURNING d.*
), paced AS (
    UPDATE chats c SET paced_until = now() + next.every
    FROM next JOIN claimed USING (message_id) WHERE c.channel = next.channel AND c.account = next.account AND c.chat = next.chat AND c.pace_millis > 0
)
SELECT d.message_id, d.revision, d.text, d.lease_token, d.provider_id, s.session_id, s.agent_name, s.channel, s.account, s.chat, s.state,
       COALESCE(c.address, s.chat), COALESCE(m.metadata->>'messageId', m.provider_id), r.spec
FROM claimed d JOIN sessions s USING (session_id) JOIN messages m ON m.message_id = d.message_id
LEFT JOIN chats c ON c.channel = s.channel AND c.account = s.account AND c.chat = s.chat
LEFT JOIN channel_routes r ON r.channel = s.channel AND r.account = s.account AND r.agent_name = s.agent_name`

// ClaimDraft takes the lease of the draft of the answer to a message. A reply that
// takes the draft's place waits until the lease is over. ErrNothingDue: there is
// nothing new to show, it is too soon, somebody else shows it, or it is left to the
// replies.
func (s *Store) ClaimDraft(ctx context.Context, message harness.MessageID, lease Lease) (*DraftClaim, error) {
	c := &DraftClaim{}
	err := s.pool.QueryRow(ctx, claimDraftSQL, message, lease.Owner, lease.For).Scan(&c.Message, &c.Revision, &c.Text, &c.Token, &c.ProviderID,
		&c.Session.ID, &c.Session.Agent, &c.Session.Channel, &c.Session.Account, &c.Session.Chat, &c.Session.State, &c.Address, &c.InReplyTo, &c.Spec)
	if err = translate(err); harness.KindOf(err) == harness.NotFound {
		return nil, ErrNothingDue
	}
	return c, err
}

// MarkDraft writes what showing c came to, and reports whether a reply waits to
// take its place. ErrLeaseLost: somebody else has claimed it since, or it is gone.
func (s *Store) MarkDraft(ctx context.Context, c *DraftClaim, o DraftOutcome) (waits bool, err error) {
	err = s.pool.QueryRow(ctx, `UPDATE drafts SET state = $3, provider_id = CASE WHEN $4 <> '' THEN $4 ELSE provider_id END,
			shown_revision = CASE WHEN $5 THEN $6 ELSE shown_revision END, due_at = greatest(due_at, now() + $7::interval),
			sent_at = CASE WHEN $3 = 'PLANNED' THEN NULL ELSE sent_at END, lease_owner = NULL, lease_until = NULL, updated_at = now()
		WHERE message_id = $1 AND lease_token = $2 AND lease_owner IS NOT NULL RETURNING EXISTS (SELECT 1 FROM messages m WHERE m.in_reply_to = drafts.message_id)`,
		c.Message, c.Token, o.State, o.ProviderID, o.Shown, c.Revision, o.Hold).Scan(&waits)
	if err = translate(err); harness.KindOf(err) == harness.NotFound {
		return false, ErrLeaseLost
	}
	return waits, err
}

// DeleteOldDrafts deletes up to limit drafts that nobody has written for keep, and
// returns how many: their turns ended without an answer, or it could not be sent.
func (s *Store) DeleteOldDrafts(ctx context.Context, keep time.Duration, limit int) (int, error) {
	return s.count(ctx, `DELETE FROM drafts WHERE message_id IN (SELECT message_id FROM drafts WHERE updated_at < now() - $1::interval LIMIT $2)`, keep, limit)
}

// undraft queues that the draft whose place c took is gone, once c is settled.
func (c *ReplyClaim) undraft(b *pgx.Batch, o ReplyOutcome) {
	if c.Drafted && (o.State == harness.ReplySent || o.State == harness.ReplyFailed || o.Final) {
		b.Queue(`DELETE FROM drafts d USING messages m WHERE m.message_id = $1 AND d.message_id = m.in_reply_to`, c.Message)
	}
}

// SentDraft is the message of a chat that shows the draft of a reply.
type SentDraft struct {
	ProviderID string
	Late       bool // something was sent behind it: the reply is to stand there
}
