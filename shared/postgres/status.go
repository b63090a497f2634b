package postgres

import (
	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// statusSQL settles replies by the provider's own word. Statuses come late,
// doubled and out of order: a reply only moves forward, and of several words in
// one request the furthest counts. A failure that a template may get around
// makes the part PLANNED again, as one.
var statusSQL = `
WITH word AS (
    SELECT * FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::int[], $7::text[], $8::bool[])
         AS w (account, provider_id, ours, state, code, reason, template)
), meant AS (
    SELECT r.reply_id, r.session_id, w.* FROM word w JOIN replies r ON r.reply_id = w.ours WHERE w.ours <> ''
    UNION ALL
    SELECT r.reply_id, r.session_id, w.* FROM word w JOIN replies r ON r.provider_id = w.provider_id WHERE w.ours = '' AND w.provider_id <> ''
), furthest AS (
    SELECT DISTINCT ON (m.reply_id) m.reply_id, m.provider_id, m.state, m.code, m.reason, m.template AND c.spec ? 'template' AS template
    FROM meant m JOIN sessions s USING (session_id)
    LEFT JOIN channel_routes c ON c.channel = s.channel AND c.account = s.account AND c.agent_name = s.agent_name
    WHERE s.channel = $1 AND s.account = m.account
    ORDER BY m.reply_id, CASE m.state WHEN 'READ' THEN 4 WHEN 'DELIVERED' THEN 3 WHEN 'FAILED' THEN 2 ELSE 1 END DESC
), held AS ( -- in the order of their ids, as others who settle several
    SELECT reply_id FROM replies WHERE reply_id IN (SELECT reply_id FROM furthest) ORDER BY reply_id FOR UPDATE
)
, settled AS (
UPDATE replies r SET updated_at = now(), lease_owner = CASE WHEN r.lease_until < now() THEN NULL ELSE r.lease_owner END,
    state = CASE WHEN f.state = 'FAILED' AND f.template AND r.format <> 'TEMPLATE' THEN 'PLANNED' ELSE f.state END,
    format = CASE WHEN f.state = 'FAILED' AND f.template THEN 'TEMPLATE' ELSE r.format END,
    due_at = CASE WHEN f.state = 'FAILED' AND f.template AND r.format <> 'TEMPLATE' THEN now() ELSE r.due_at END,
    provider_id = CASE WHEN r.provider_id = '' THEN f.provider_id ELSE r.provider_id END,
    provider_code = COALESCE(NULLIF(f.code, 0), r.provider_code),
    reason = CASE WHEN f.state = 'FAILED' THEN f.reason ELSE '' END
FROM furthest f JOIN held USING (reply_id)
WHERE r.reply_id = f.reply_id AND CASE r.state
    WHEN 'UNKNOWN' THEN true
    WHEN 'PLANNED' THEN r.attempts > 0 AND f.state <> 'FAILED' -- it was thought not to have gone out, and did
    WHEN 'SENT' THEN f.state IN ('DELIVERED', 'READ', 'FAILED')
    WHEN 'DELIVERED' THEN f.state = 'READ'
    ELSE false END
RETURNING r.reply_id, r.message_id, r.state
) -- nobody needs to hear of a message that has no open part left
DELETE FROM outbox WHERE subject IN (SELECT s.message_id FROM settled s WHERE s.state <> 'PLANNED' AND NOT EXISTS (
    SELECT 1 FROM replies o WHERE o.message_id = s.message_id AND ` + replyOpen("o") + ` AND o.reply_id NOT IN (SELECT reply_id FROM settled)))`

func queueStatuses(b *pgx.Batch, channel harness.Channel, statuses []Status) {
	var accounts, providerIDs, replies, states, reasons []string
	var codes []int
	var templates []bool
	for _, s := range statuses {
		accounts, providerIDs, replies = append(accounts, s.Account), append(providerIDs, s.ProviderID), append(replies, string(s.Reply))
		states, codes, reasons, templates = append(states, string(s.State)), append(codes, s.Code), append(reasons, s.Reason), append(templates, s.Template)
	}
	if len(accounts) > 0 {
		b.Queue(statusSQL, channel, accounts, providerIDs, replies, states, codes, reasons, templates)
	}
}
