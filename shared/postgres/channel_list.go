package postgres

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// recentSessions is how many of an account's newest sessions say when it was last
// heard or used.
const recentSessions = "20"

// channelsSQL lists the accounts behind ($1, $2), at most $3, and how each is
// doing. Those of channel API have nothing that could be out of order.
const channelsSQL = `
WITH listed AS (
    SELECT r.* FROM channel_routes r WHERE r.channel <> 'API' AND (r.channel, r.account) > ($1, $2) ORDER BY r.channel, r.account LIMIT $3
), waits AS (
    SELECT s.channel, s.account, count(*) AS n FROM replies p JOIN sessions s USING (session_id) WHERE p.state IN ('PLANNED', 'UNKNOWN') AND p.due_at IS NOT NULL GROUP BY 1, 2
), lost AS (
    SELECT s.channel, s.account, count(*) FILTER (WHERE p.state = 'FAILED') AS failed, count(*) FILTER (WHERE p.state = 'UNKNOWN') AS unknown
    FROM replies p JOIN sessions s USING (session_id) WHERE p.state IN ('FAILED', 'UNKNOWN') AND p.updated_at > now() - interval '24 hours' GROUP BY 1, 2
)
SELECT l.channel, l.account, l.agent_name, seen.inbound, seen.outbound, COALESCE(w.n, 0), COALESCE(f.failed, 0), COALESCE(f.unknown, 0),
       (SELECT COALESCE(jsonb_agg(jsonb_build_object('name', c.secret_name, 'key', c.secret_key, 'state', c.state, 'reason', c.reason) ORDER BY c.secret_name, c.secret_key), '[]')
        FROM secret_checks c WHERE c.agent_name = l.agent_name AND c.function_name = lower(l.channel) || '-ingest')
FROM listed l
LEFT JOIN waits w USING (channel, account) LEFT JOIN lost f USING (channel, account)
LEFT JOIN LATERAL (
    SELECT max(i.created_at) AS inbound, max(o.created_at) AS outbound
    FROM (SELECT s.session_id FROM sessions s WHERE s.channel = l.channel AND s.account = l.account ORDER BY s.session_id DESC LIMIT ` + recentSessions + `) s
    LEFT JOIN LATERAL (SELECT m.created_at FROM messages m WHERE m.session_id = s.session_id AND m.direction = 'INBOUND' ORDER BY m.seq DESC LIMIT 1) i ON true
    LEFT JOIN LATERAL (SELECT m.created_at FROM messages m WHERE m.session_id = s.session_id AND m.direction = 'OUTBOUND' ORDER BY m.seq DESC LIMIT 1) o ON true
) seen ON true
ORDER BY l.channel, l.account`

// ListChannels returns up to limit accounts behind after, which is CHANNEL/account,
// by name. When an account was last heard and used is as its 20 newest sessions
// say: exactly, unless an older one goes on beside so many newer ones.
func (s *Store) ListChannels(ctx context.Context, after string, limit int) ([]view.ChannelAccount, error) {
	channel, account, _ := strings.Cut(after, "/")
	return list(ctx, s, channelsSQL, []any{harness.Channel(channel), account, limit}, func(row pgx.CollectableRow) (view.ChannelAccount, error) {
		var v view.ChannelAccount
		var checks json.RawMessage
		if err := row.Scan(&v.Channel, &v.Account, &v.Agent, &v.LastInboundAt, &v.LastOutboundAt, &v.Waiting, &v.Failed, &v.Unknown, &checks); err != nil {
			return v, err
		}
		return v, json.Unmarshal(checks, &v.Secrets)
	})
}
