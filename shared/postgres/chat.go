package postgres

import (
	"strings"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// renameSQL gives chats new ids, once per update of the provider: what was known
// by any of the old ones is known by the new ones now, and is answered at the
// first of them. Providers hand an old id out again, a phone number to another
// person: from now on it stands for a chat of its own.
const renameSQL = `
WITH told AS (
    SELECT * FROM unnest($2::int[], $3::text[], $4::text[], $5::text[], $6::int[], $7::text[], $8::bool[]) AS r (n, account, old, new, place, provider_id, lasting)
), fresh AS (
    INSERT INTO inbox (channel, account, provider_id, message_id)
    SELECT DISTINCT $1, account, 'rename:' || provider_id, '' FROM told ORDER BY 2, 3 ON CONFLICT DO NOTHING RETURNING account, provider_id
), renamed AS (
    SELECT r.n, r.account, r.old, r.new, r.provider_id, r.lasting, first_value(r.new) OVER (PARTITION BY r.n ORDER BY r.place) AS address,
           COALESCE((SELECT k.chat FROM chat_aliases k WHERE k.channel = $1 AND k.account = r.account AND k.alias = ANY (string_to_array(r.old, E'\n'))
                     ORDER BY array_position(string_to_array(r.old, E'\n'), k.alias) LIMIT 1), split_part(r.old, E'\n', 1)) AS chat
    FROM told r JOIN fresh f ON f.account = r.account AND f.provider_id = 'rename:' || r.provider_id
), left_behind AS (
    SELECT DISTINCT account, o.alias, provider_id FROM renamed, unnest(string_to_array(old, E'\n')) AS o (alias)
    WHERE NOT EXISTS (SELECT 1 FROM renamed r WHERE r.account = renamed.account AND r.new = o.alias)
), known AS (
    INSERT INTO chat_aliases (channel, account, alias, chat, lasting)
    SELECT DISTINCT ON (account, alias) $1, account, alias, chat, lasting FROM (
        SELECT n, account, new AS alias, chat, lasting FROM renamed
        UNION ALL SELECT -1, account, alias, alias || '#' || md5(provider_id), false FROM left_behind
    ) ids ORDER BY account, alias, n DESC
    ON CONFLICT (channel, account, alias) DO UPDATE SET chat = EXCLUDED.chat, lasting = EXCLUDED.lasting
)
INSERT INTO chats (channel, account, chat, address)
SELECT DISTINCT ON (account, chat) $1, account, chat, address FROM renamed ORDER BY account, chat, n DESC
ON CONFLICT (channel, account, chat) DO UPDATE SET address = EXCLUDED.address, blocked_at = NULL, blocked_reason = ''`

// aliasSQL notes every id of a person under the chat of the first one ever seen.
// Another lasting id on a known number is another person, who got that number:
// the number belongs to a chat of that person's own from now on.
const aliasSQL = `
WITH given AS (
    SELECT p.*, k.chat AS known, max(p.alias) FILTER (WHERE p.lasting) OVER (PARTITION BY p.n) AS person
    FROM unnest($2::int[], $3::text[], $4::text[], $5::text[], $6::bool[]) WITH ORDINALITY AS p (n, account, alias, chat, lasting, place)
    LEFT JOIN LATERAL ( -- row by row: planned as a join it would read every alias of the account
        SELECT k.chat FROM chat_aliases k WHERE k.channel = $1 AND k.account = p.account AND k.alias = p.alias LIMIT 1
    ) k ON true
), weighed AS (
    SELECT g.*, first_value(chat) OVER (PARTITION BY account, COALESCE(person, n::text) ORDER BY n, place) AS fresh_chat,
           max(known) FILTER (WHERE lasting) OVER (PARTITION BY n) AS of_person, max(known) FILTER (WHERE NOT lasting) OVER (PARTITION BY n) AS of_number
    FROM given g
), decided AS (
    SELECT n, account, alias, lasting, known, COALESCE(of_person, CASE WHEN person IS NOT NULL AND of_number IS NOT NULL AND EXISTS (
               SELECT 1 FROM chat_aliases o WHERE o.channel = $1 AND o.account = w.account AND o.chat = w.of_number AND o.lasting AND o.alias <> w.person)
           THEN fresh_chat || '#' || person ELSE COALESCE(of_number, fresh_chat) END) AS chat
    FROM weighed w
), handed_on AS ( -- what is still to be said to the former owner goes to them, not to the number
    UPDATE chats c SET address = o.alias
    FROM (SELECT DISTINCT account, alias, known FROM decided WHERE NOT lasting AND known <> chat) d
    JOIN chat_aliases o ON o.channel = $1 AND o.account = d.account AND o.chat = d.known AND o.lasting
    WHERE c.channel = $1 AND c.account = d.account AND c.chat = d.known AND c.address = d.alias
)
INSERT INTO chat_aliases (channel, account, alias, chat, lasting)
SELECT DISTINCT ON (account, alias) $1, account, alias, chat, lasting FROM decided WHERE known IS DISTINCT FROM chat
ORDER BY account, alias, n
ON CONFLICT (channel, account, alias) DO UPDATE SET chat = EXCLUDED.chat, lasting = EXCLUDED.lasting`

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
	var accounts, old, fresh, providerIDs []string
	var lasting []bool
	for i, r := range renames {
		for place, id := range r.To {
			n, places, accounts = append(n, i), append(places, place), append(accounts, r.Account)
			old, fresh, providerIDs = append(old, strings.Join(r.From, "\n")), append(fresh, id), append(providerIDs, r.ProviderID)
			lasting = append(lasting, id == r.Lasting)
		}
	}
	if len(n) > 0 {
		b.Queue(renameSQL, channel, n, accounts, old, fresh, places, providerIDs, lasting)
	}
}

func queueAliases(b *pgx.Batch, channel harness.Channel, arrivals []Arrival) {
	var n []int
	var accounts, aliases, chats []string
	var lasting []bool
	for i, a := range arrivals {
		for _, alias := range a.Aliases {
			n, accounts, aliases, chats = append(n, i), append(accounts, a.Account), append(aliases, alias), append(chats, a.Chat)
			lasting = append(lasting, alias == a.Lasting)
		}
	}
	if len(n) > 0 {
		b.Queue(aliasSQL, channel, n, accounts, aliases, chats, lasting)
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
