package postgres

import (
	"strings"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// renameSQL gives chats new ids: what was known by any of the old ones is known
// by the new ones now, and is answered at the first of them. Providers hand an
// old id out again, a phone number to another person: from now on it stands for
// a chat of its own. That mark also makes a repeat do nothing.
const renameSQL = `
WITH renamed AS (
    SELECT r.n, r.account, r.old, r.new, first_value(r.new) OVER (PARTITION BY r.n ORDER BY r.place) AS address,
           COALESCE((SELECT k.chat FROM chat_aliases k WHERE k.channel = $1 AND k.account = r.account AND k.alias = ANY (string_to_array(r.old, E'\n'))
                     ORDER BY array_position(string_to_array(r.old, E'\n'), k.alias) LIMIT 1), split_part(r.old, E'\n', 1)) AS chat
    FROM unnest($2::int[], $3::text[], $4::text[], $5::text[], $6::int[]) AS r (n, account, old, new, place)
    WHERE NOT EXISTS (SELECT 1 FROM chat_aliases k WHERE k.channel = $1 AND k.account = r.account AND k.alias = ANY (string_to_array(r.old, E'\n')) AND k.chat LIKE '%#moved-%')
), left_behind AS (
    SELECT DISTINCT account, o.alias FROM renamed, unnest(string_to_array(old, E'\n')) AS o (alias)
    WHERE NOT EXISTS (SELECT 1 FROM renamed r WHERE r.account = renamed.account AND r.new = o.alias)
), known AS (
    INSERT INTO chat_aliases (channel, account, alias, chat)
    SELECT DISTINCT ON (account, alias) $1, account, alias, chat FROM (
        SELECT n, account, new AS alias, chat FROM renamed
        UNION ALL SELECT -1, account, alias, alias || '#moved-' || extract(epoch FROM now())::bigint FROM left_behind
    ) ids ORDER BY account, alias, n DESC
    ON CONFLICT (channel, account, alias) DO UPDATE SET chat = EXCLUDED.chat
)
INSERT INTO chats (channel, account, chat, address)
SELECT DISTINCT ON (account, chat) $1, account, chat, address FROM renamed ORDER BY account, chat, n DESC
ON CONFLICT (channel, account, chat) DO UPDATE SET address = EXCLUDED.address, blocked_at = NULL, blocked_reason = ''`

// aliasSQL notes every id of a person under the chat of the first one ever seen.
const aliasSQL = `
WITH person AS (
    SELECT p.n, p.account, p.alias, k.chat AS known, COALESCE(first_value(k.chat) OVER (PARTITION BY p.n ORDER BY k.chat IS NULL, p.place), p.chat) AS chat
    FROM unnest($2::int[], $3::text[], $4::text[], $5::text[]) WITH ORDINALITY AS p (n, account, alias, chat, place)
    LEFT JOIN LATERAL ( -- row by row: planned as a join it would read every alias of the account
        SELECT k.chat FROM chat_aliases k WHERE k.channel = $1 AND k.account = p.account AND k.alias = p.alias LIMIT 1
    ) k ON true
)
INSERT INTO chat_aliases (channel, account, alias, chat)
SELECT DISTINCT ON (account, alias) $1, account, alias, chat FROM person WHERE known IS DISTINCT FROM chat
ORDER BY account, alias, n
ON CONFLICT (channel, account, alias) DO UPDATE SET chat = EXCLUDED.chat`

// blockSQL marks chats that take nothing from us any more.
const blockSQL = `
INSERT INTO chats (channel, account, chat, address, blocked_at, blocked_reason)
SELECT DISTINCT ON (b.account, COALESCE(k.chat, b.chat)) $1, b.account, COALESCE(k.chat, b.chat), b.chat, now(), b.reason
FROM unnest($2::text[], $3::text[], $4::text[]) AS b (account, chat, reason)
LEFT JOIN chat_aliases k ON k.channel = $1 AND k.account = b.account AND k.alias = b.chat
ORDER BY b.account, COALESCE(k.chat, b.chat)
ON CONFLICT (channel, account, chat) DO UPDATE SET blocked_at = now(), blocked_reason = EXCLUDED.blocked_reason`

// queueRenames runs before the arrivals, so that they find the chats they belong to.
func queueRenames(b *pgx.Batch, channel harness.Channel, renames []Rename) {
	var n, places []int
	var accounts, old, fresh []string
	for i, r := range renames {
		for place, id := range r.To {
			n, places, accounts = append(n, i), append(places, place), append(accounts, r.Account)
			old, fresh = append(old, strings.Join(r.From, "\n")), append(fresh, id)
		}
	}
	if len(n) > 0 {
		b.Queue(renameSQL, channel, n, accounts, old, fresh, places)
	}
}

func queueAliases(b *pgx.Batch, channel harness.Channel, arrivals []Arrival) {
	var n []int
	var accounts, aliases, chats []string
	for i, a := range arrivals {
		for _, alias := range a.Aliases {
			n, accounts, aliases, chats = append(n, i), append(accounts, a.Account), append(aliases, alias), append(chats, a.Chat)
		}
	}
	if len(n) > 0 {
		b.Queue(aliasSQL, channel, n, accounts, aliases, chats)
	}
}

func queueBlocks(b *pgx.Batch, channel harness.Channel, blocks []Block) {
	var accounts, chats, reasons []string
	for _, block := range blocks {
		accounts, chats, reasons = append(accounts, block.Account), append(chats, block.Chat), append(reasons, block.Reason)
	}
	if len(accounts) > 0 {
		b.Queue(blockSQL, channel, accounts, chats, reasons)
	}
}
