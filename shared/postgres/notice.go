package postgres

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

func queueNotices(b *pgx.Batch, channel harness.Channel, notices []Notice) error {
	var accounts, providerIDs, kinds, chats, users, refs []string
	var data []json.RawMessage
	for _, n := range notices {
		text := json.RawMessage("{}")
		if len(n.Data) > 0 {
			encoded, err := json.Marshal(n.Data)
			if err != nil {
				return harness.Wrap(harness.Invalid, err, "a notice cannot be stored")
			}
			text = encoded
		}
		accounts, providerIDs, kinds = append(accounts, n.Account), append(providerIDs, n.ProviderID), append(kinds, string(n.Kind))
		chats, users, refs, data = append(chats, n.Chat), append(users, n.ChannelUserID), append(refs, n.Ref), append(data, text)
	}
	if len(accounts) > 0 {
		b.Queue(`INSERT INTO notices (channel, account, provider_id, kind, chat, channel_user_id, ref, data)
			SELECT $1, n.* FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::jsonb[]) AS n
			ORDER BY 2, 3, 4 ON CONFLICT DO NOTHING`, channel, accounts, providerIDs, kinds, chats, users, refs, data)
	}
	return nil
}

// DeleteOldNotices deletes up to limit notices older than keep and returns how
// many.
func (s *Store) DeleteOldNotices(ctx context.Context, keep time.Duration, limit int) (int, error) {
	return s.count(ctx, `DELETE FROM notices WHERE ctid IN (SELECT ctid FROM notices WHERE received_at < now() - $1::interval LIMIT $2)`, keep, limit)
}
