package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// ApprovalsDue returns up to limit approvals whose reminder, escalation or end is
// due, longest due first.
func (s *Store) ApprovalsDue(ctx context.Context, limit int) ([]harness.ApprovalID, error) {
	return list(ctx, s, `SELECT approval_id FROM approvals WHERE state = 'PENDING' AND due_at <= now() ORDER BY due_at LIMIT $1`, []any{limit}, pgx.RowTo[harness.ApprovalID])
}

// The statements of a timer run in one transaction under lock_chats, in this order:
// each looks at what timedSQL, the last, then takes.
const (
	expireSQL = `UPDATE approvals SET state = 'EXPIRED', decided_at = now(), due_at = NULL WHERE approval_id = $1 AND state = 'PENDING' AND expires_at <= now()`
	remindSQL = `SELECT e.* FROM approvals a, LATERAL (SELECT DISTINCT ON (r.session_id) r.session_id, m.channel_user_id, m.message_id
		FROM replies r JOIN messages m USING (message_id) WHERE r.approval_id = a.approval_id AND r.kind = 'CARD' AND r.choices <> '[]' ORDER BY r.session_id) c,
		LATERAL tell(c.session_id, c.message_id || 'r' || extract(epoch FROM now())::bigint, c.channel_user_id, $2, 'TEXT', '[]', NULL) e
		WHERE a.approval_id = $1 AND a.state = 'PENDING' AND EXISTS (SELECT 1 FROM unnest(a.reminders) x WHERE x <= now())`
	escalateSQL = `SELECT e.* FROM approvals a, LATERAL send_cards(a.approval_id, $2, $3, $4, $5, $6, $7) e
		WHERE a.approval_id = $1 AND a.state = 'PENDING' AND a.escalate_at <= now()`
	timedSQL = `
UPDATE approvals a SET reminders = r.left, approvers = CASE WHEN r.escalates THEN approvers || escalation ELSE approvers END,
       escalate_at = CASE WHEN r.escalates THEN NULL ELSE escalate_at END,
       due_at = least(expires_at, CASE WHEN r.escalates THEN NULL ELSE escalate_at END, (SELECT min(x) FROM unnest(r.left) x))
FROM (SELECT o.approval_id, COALESCE(o.escalate_at <= now(), false) AS escalates, ARRAY(SELECT x FROM unnest(o.reminders) x WHERE x > now()) AS left
      FROM approvals o WHERE o.approval_id = $1) r
WHERE a.approval_id = r.approval_id AND a.state = 'PENDING' AND a.due_at <= now()`
)

// ApprovalTimer does what is due of one approval, as a whole: it reminds, asks
// further people, or ends it. It returns the events to publish. A decision that
// comes meanwhile wins.
func (s *Store) ApprovalTimer(ctx context.Context, id harness.ApprovalID) ([]event.Event, error) {
	a, err := s.GetApproval(ctx, id)
	if err != nil {
		return nil, err
	}
	card, err := questionOf(a)
	if err != nil {
		return nil, err
	}
	var escalation []harness.Approver
	if err := s.pool.QueryRow(ctx, `SELECT escalation FROM approvals WHERE approval_id = $1`, id).Scan(&escalation); err != nil {
		return nil, translate(err)
	}
	channels, people := surfaces(escalation)
	sessions, messages := freshIDs(s.now(), len(people))
	var events []event.Event
	err = again(func() error {
		events = nil
		b := &pgx.Batch{}
		b.Queue(`SELECT lock_chats((SELECT session_id FROM approvals WHERE approval_id = $1), $2, $3)`, id, orEmpty(channels), orEmpty(people))
		b.Queue(expireSQL, id)
		b.Queue(endedSQL, id).Query(collectAnnounced(&events))
		b.Queue(remindSQL, id, card.reminder(s.now())).Query(collectAnnounced(&events))
		if len(people) > 0 {
			b.Queue(escalateSQL, id, channels, people, sessions, messages, card.text(), cardChoices(id, a.Digest, card.Subject)).Query(collectAnnounced(&events))
		}
		b.Queue(timedSQL, id)
		return s.batch(ctx, b, nil)
	})
	return events, err
}
