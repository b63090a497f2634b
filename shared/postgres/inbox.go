package postgres

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// acceptSQL does it all in one statement: find the agent, apply the sender
// policy, drop repeats, find or open each conversation and mark it once, number
// and store the messages, and announce each session once. A conversation whose
// last turn was BLOCKED or FAILED is open: a new message gives it a new turn.
// What is between the marks only channels with people on them need.
const acceptSQL = `
WITH arrival AS MATERIALIZED ( -- texts are taken from here at the end: they are heavy to sort
    SELECT a.n, a.account, a.provider_id, a.channel_user_id, a.text, a.metadata, a.message_id, a.session_id,
           /*people*/COALESCE(k.chat, a.chat)/*plain*/a.chat/*end*/ AS chat, r.agent_name, r.agent_name IS NULL AS unrouted,
           COALESCE(NOT (r.open_to_all OR a.channel_user_id = ANY (r.senders)/*people*/ OR x.other_id = ANY (r.senders)
               OR r.pairing AND (EXISTS (SELECT 1 FROM pairings p WHERE p.channel = $1 AND p.account = a.account AND p.chat = ` + personOf + `)
                  OR x.paired AND ` + pairingAllowed + `)/*end*/), false) AS denied,
           a.only_session <> '' AND NOT EXISTS (SELECT 1 FROM sessions o WHERE o.session_id = a.only_session AND o.agent_name = r.agent_name
               AND o.channel = $1 AND o.account = a.account AND o.chat = /*people*/COALESCE(k.chat, a.chat)/*plain*/a.chat/*end*/
               AND o.state NOT IN ('COMPLETED', 'CANCELLED')) AS ended,
           COALESCE((r.spec->>'idleTTL')::bigint / 1000000000, 0)::int AS idle_seconds/*people*/,
           x.address, x.sent_at, x.album, x.paired AND r.pairing AS paired, x.pace_millis, x.pace_burst/*end*/
    FROM unnest((SELECT $2::text[]), $3::text[], $4::text[], $5::text[], $6::text[], $7::jsonb[], $8::text[], $9::text[], $12::text[])
         WITH ORDINALITY AS a (account, provider_id, chat, channel_user_id, text, metadata, message_id, session_id, only_session, n)/*people*/
    JOIN unnest((SELECT $13::text[]), $14::text[], $15::timestamptz[], $16::text[], $17::bool[], $18::int[], $19::int[])
         WITH ORDINALITY AS x (other_id, address, sent_at, album, paired, pace_millis, pace_burst, n) USING (n)
    LEFT JOIN LATERAL ( -- row by row: planned as a join it would read every alias of the account
        SELECT k.chat FROM chat_aliases k WHERE k.channel = $1 AND k.account = a.account AND k.alias = a.chat LIMIT 1
    ) k ON true/*end*/
    LEFT JOIN channel_routes r ON r.channel = $1 AND r.account = a.account
), refused AS (
    INSERT INTO notices (channel, account, provider_id, kind, chat, channel_user_id)
    SELECT $1, account, provider_id, CASE WHEN unrouted THEN 'UNROUTED' ELSE 'DENIED' END, chat, channel_user_id FROM arrival WHERE unrouted OR denied
    ON CONFLICT DO NOTHING
), fresh AS (
    INSERT INTO inbox (channel, account, provider_id, message_id)
    SELECT $1, account, provider_id, message_id FROM arrival WHERE NOT unrouted AND NOT denied AND NOT ended ORDER BY account, provider_id, n
    ON CONFLICT DO NOTHING RETURNING message_id/*people*/
), pairing AS (
    INSERT INTO pairings (channel, account, chat)
    SELECT DISTINCT $1, account, chat FROM arrival JOIN fresh USING (message_id) WHERE paired
    ON CONFLICT DO NOTHING
), met AS (
    INSERT INTO chats AS c (channel, account, chat, address, last_inbound_at, pace_millis, pace_burst)
    SELECT DISTINCT ON (account, chat) $1, account, chat, address, least(sent_at, now()), pace_millis, pace_burst
    FROM arrival JOIN fresh USING (message_id) WHERE address <> '' ORDER BY account, chat, n DESC
    ON CONFLICT (channel, account, chat) DO UPDATE
    SET address = EXCLUDED.address, last_inbound_at = greatest(c.last_inbound_at, EXCLUDED.last_inbound_at), blocked_at = NULL, blocked_reason = '',
        pace_millis = EXCLUDED.pace_millis, pace_burst = EXCLUDED.pace_burst/*end*/
), said AS ( -- the arrivals of one album are said by the first of them
    SELECT a.n, a.account, a.chat, a.agent_name, a.message_id, a.session_id, a.idle_seconds/*people*/, a.album, first_value(a.message_id) OVER together AS said_by,
           string_agg(a.text, E'\n') FILTER (WHERE a.album <> '' AND NOT a.metadata ? '` + StandIn + `') OVER together AS words/*end*/
    FROM arrival a JOIN fresh USING (message_id)/*people*/
    WINDOW together AS (PARTITION BY a.account, a.chat, CASE WHEN a.album = '' THEN a.message_id ELSE a.album END ORDER BY a.n
                        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)/*end*/
), conversation AS (
    SELECT agent_name, account, chat, count(*) AS messages, max(idle_seconds) AS idle_seconds, min(session_id) AS session_id,
           now()/*people*/ + CASE WHEN bool_and(album <> '') THEN interval '` + albumSettles + `' ELSE interval '0' END/*end*/ AS due_at
    FROM said GROUP BY agent_name, account, chat
), session AS (
    INSERT INTO sessions AS s (session_id, agent_name, channel, account, chat, state, message_seq, due_at, idle_seconds, traceparent)
    SELECT session_id, agent_name, $1, account, chat, 'PENDING', messages, due_at, idle_seconds, $10 FROM conversation ORDER BY agent_name, account, chat
    ON CONFLICT (agent_name, channel, account, chat) WHERE state NOT IN ('COMPLETED', 'CANCELLED') DO UPDATE
    SET message_seq = s.message_seq + EXCLUDED.message_seq, due_at = least(s.due_at, EXCLUDED.due_at), updated_at = now(),
        state = CASE WHEN s.state IN ('IDLE', 'BLOCKED', 'FAILED') THEN 'PENDING' ELSE s.state END,
        idle_seconds = EXCLUDED.idle_seconds, traceparent = EXCLUDED.traceparent
    RETURNING session_id, agent_name, account, chat, message_seq
), numbered AS (
    SELECT a.*, s.session_id AS of_session,
           s.message_seq - count(*) OVER (PARTITION BY s.session_id) + row_number() OVER (PARTITION BY s.session_id ORDER BY a.n) AS seq
    FROM said a JOIN session s USING (agent_name, account, chat)
), message AS (
    INSERT INTO messages AS m (message_id, session_id, seq, direction, state, channel_user_id, provider_id, text, metadata/*people*/, album/*end*/)
    SELECT message_id, of_session, seq, 'INBOUND', 'PENDING', channel_user_id, provider_id, /*people*/
           COALESCE(words, text), CASE WHEN words IS NULL THEN metadata ELSE metadata - '` + StandIn + `' END, a.album
    FROM numbered a JOIN arrival USING (message_id) WHERE said_by = message_id
    ON CONFLICT (session_id, album) WHERE album <> '' AND state = 'PENDING' DO UPDATE
    SET text = CASE WHEN m.metadata ? '` + StandIn + `' THEN EXCLUDED.text WHEN EXCLUDED.metadata ? '` + StandIn + `' THEN m.text ELSE m.text || E'\n' || EXCLUDED.text END,
        metadata = CASE WHEN EXCLUDED.metadata ? '` + StandIn + `' THEN m.metadata ELSE m.metadata - '` + StandIn + `' END/*plain*/
           text, metadata
    FROM numbered JOIN arrival USING (message_id)/*end*/
    /*people*/RETURNING message_id, session_id, seq, album/*end*/
), kept AS (
    SELECT n, message_id AS arrival_id, message_id, of_session AS session_id, seq, agent_name FROM numbered/*people*/ WHERE album = ''
    UNION ALL -- the part of an album may have joined a message that waited already
    SELECT a.n, a.message_id, m.message_id, m.session_id, m.seq, a.agent_name
    FROM numbered a JOIN message m ON m.session_id = a.of_session AND m.album = a.album WHERE a.album <> '' AND m.album <> ''/*end*/
), /*people*/file AS (
    INSERT INTO attachments (attachment_id, session_id, message_id, direction, kind, provider_id, file_name, mime_type, size_bytes, path, state)
    SELECT f.attachment_id, k.session_id, k.message_id, 'INBOUND', f.kind, f.provider_id, f.file_name, f.mime_type, f.size_bytes, f.path, 'OFFERED'
    FROM unnest((SELECT $20::int[]), $21::text[], $22::text[], $23::text[], $24::text[], $25::text[], $26::bigint[], $27::text[])
         AS f (n, attachment_id, kind, provider_id, file_name, mime_type, size_bytes, path)
    JOIN kept k ON k.n = f.n
), /*end*/newest AS (
    SELECT DISTINCT ON (session_id) session_id, message_id, agent_name FROM kept ORDER BY session_id, seq DESC
), announced AS (
    INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, channel, payload, traceparent, due_at)
    SELECT 'message.received:' || n.message_id, $11, n.session_id, n.session_id, n.agent_name, $1,
           jsonb_build_object('session', n.session_id, 'message', n.message_id), $10, now() + interval '` + announceAgain + `'
    FROM newest n
    ON CONFLICT (event_id) DO NOTHING -- a later part of an album
)
SELECT a.n, a.unrouted, a.denied, a.ended, COALESCE(a.agent_name, ''), COALESCE(m.message_id, ''), COALESCE(m.session_id, ''),
       m.message_id IS NOT NULL AND EXISTS (SELECT 1 FROM newest w WHERE w.message_id = m.message_id) AS wakes,
       COALESCE(k.message_id, ''), COALESCE(k.session_id, '')
FROM arrival a
LEFT JOIN kept m ON m.arrival_id = a.message_id
LEFT JOIN LATERAL ( -- row by row: planned as a join it would read the whole inbox
    SELECT i.message_id, km.session_id FROM inbox i LEFT JOIN messages km ON km.message_id = i.message_id
    WHERE m.message_id IS NULL AND i.channel = $1 AND i.account = a.account AND i.provider_id = a.provider_id LIMIT 1
) k ON true
ORDER BY a.n`

// albumSettles is how long an album may take to come together before its turn
// begins, counted from its first part.
const albumSettles = "1500 milliseconds"

// personOf is the private chat of a sender: that of the lasting one of their ids,
// else of the other; without any it is called like them.
const personOf = `COALESCE((SELECT o.chat FROM chat_aliases o WHERE o.channel = $1 AND o.account = a.account
                            AND o.alias = CASE WHEN x.other_id <> '' THEN x.other_id ELSE a.channel_user_id END), a.channel_user_id)`

// guesses is how many messages, whatever they say, a sender who is refused may
// write within an hour; then the code is not taken either.
const guesses = 10

// pairingAllowed is false for a sender who has guessed too often.
const pairingAllowed = `(SELECT count(*) FROM notices d WHERE d.channel = $1 AND d.account = a.account AND d.channel_user_id = a.channel_user_id
                         AND d.kind = 'DENIED' AND d.received_at > now() - interval '1 hour') < 10`

var (
	acceptPlain  = variant(acceptSQL, false)
	acceptPeople = variant(acceptSQL, true)
)

// variant resolves the marks of a statement: what stands between people and end
// is in one variant only, and what follows plain in the other.
func variant(sql string, people bool) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(sql, "/*people*/")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		marked, after, _ := strings.Cut(rest, "/*end*/")
		with, without, _ := strings.Cut(marked, "/*plain*/")
		if people {
			out.WriteString(with)
		} else {
			out.WriteString(without)
		}
		sql = after
	}
}

// Accept stores what one request of a provider said and returns the fate of each
// arrival in order, with the events to publish now that they are committed. It
// is one transaction in one round trip: all or nothing; on an error nothing is
// stored and the provider must be told to try again. ErrLeaseLost: in carries an
// offset, and somebody else polls the bot now.
//
// Renames and blocks, which are rare, are stored before the rest, each kind in a
// transaction of its own: together with arrivals they would take the same chats
// in opposite orders. What they did stays done if the rest fails, and is done
// once when the provider repeats it.
func (s *Store) Accept(ctx context.Context, channel harness.Channel, in Inbound, traceparent string) (accepted []Accepted, events []event.Event, err error) {
	for _, rare := range []Inbound{{Renames: in.Renames}, {Blocks: in.Blocks}} {
		if err := again(func() error { _, _, err := s.accept(ctx, channel, rare, ""); return err }); err != nil {
			return nil, nil, err
		}
	}
	in.Renames, in.Blocks = nil, nil
	err = again(func() error {
		accepted, events, err = s.accept(ctx, channel, in, traceparent)
		return err
	})
	return accepted, events, err
}

func (s *Store) accept(ctx context.Context, channel harness.Channel, in Inbound, traceparent string) ([]Accepted, []event.Event, error) {
	b := &pgx.Batch{}
	queueOffset(b, channel, in.Offset)
	queueStatuses(b, channel, in.Statuses) // replies before chats, as whoever sends takes them
	queueRenames(b, channel, in.Renames)
	queueAliases(b, channel, in.Arrivals)
	queueBlocks(b, channel, in.Blocks) // whoever wrote in the same request is no longer blocked
	queueOnly(b, in.Arrivals)
	before := b.Len()
	if len(in.Arrivals) > 0 {
		if err := s.queueArrivals(b, channel, in.Arrivals, traceparent, in.Audit); err != nil {
			return nil, nil, err
		}
	}
	if err := queueNotices(b, channel, in.Notices); err != nil {
		return nil, nil, err
	}
	if b.Len() == 0 {
		return nil, nil, nil
	}
	w := wakes{channel: channel, traceparent: traceparent, seen: map[harness.MessageID]bool{}}
	var accepted []Accepted
	err := s.batch(ctx, b, func(results pgx.BatchResults) error {
		for range before {
			if _, err := results.Exec(); err != nil {
				return err
			}
		}
		if len(in.Arrivals) == 0 {
			return nil
		}
		rows, err := results.Query()
		if err != nil {
			return err
		}
		accepted, err = pgx.CollectRows(rows, w.read)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return accepted, w.events, nil
}

// wakes collects the events of one Accept while its rows are read.
type wakes struct {
	channel     harness.Channel
	traceparent string
	seen        map[harness.MessageID]bool
	events      []event.Event
}

func (w *wakes) read(row pgx.CollectableRow) (Accepted, error) {
	var n int64
	var id, knownID harness.MessageID
	var session, knownSession harness.SessionID
	var agent harness.AgentName
	var unrouted, denied, ended, newest bool
	if err := row.Scan(&n, &unrouted, &denied, &ended, &agent, &id, &session, &newest, &knownID, &knownSession); err != nil {
		return Accepted{}, err
	}
	if newest && !w.seen[id] {
		w.seen[id] = true
		w.events = append(w.events, event.Event{
			ID: "message.received:" + string(id), Type: event.MessageReceived, Session: session, Agent: agent, Channel: w.channel,
			TraceParent: w.traceparent, Payload: event.Payload{Session: session, Message: id},
		})
	}
	switch {
	case unrouted:
		return Accepted{Outcome: ArrivalUnrouted}, nil
	case denied:
		return Accepted{Outcome: ArrivalDenied}, nil
	case ended && knownID == "":
		return Accepted{Outcome: ArrivalEnded}, nil
	case session == "":
		return Accepted{Outcome: ArrivalDuplicate, Session: knownSession, Message: knownID}, nil
	default:
		return Accepted{Outcome: ArrivalAccepted, Session: session, Message: id}, nil
	}
}

// queueOnly keeps the sessions that arrivals want and no other from being ended
// until these are stored.
func queueOnly(b *pgx.Batch, arrivals []Arrival) {
	var only []string
	for _, a := range arrivals {
		if a.Only != "" {
			only = append(only, string(a.Only))
		}
	}
	if len(only) > 0 {
		b.Queue(`SELECT 1 FROM sessions WHERE session_id = ANY ($1) ORDER BY session_id FOR NO KEY UPDATE`, only)
	}
}

// auditMessagesSQL stores an audit of each of messages $1 that is stored: one that
// was not accepted is not.
var auditMessagesSQL = auditSQL(2, `messages m JOIN sessions n USING (session_id)`, `session_id`, `NULL::jsonb`,
	`jsonb_build_object('session', session_id, 'agent', agent_name, 'message', message_id)`) + ` AND message_id = ANY ($1)`

func (s *Store) queueArrivals(b *pgx.Batch, channel harness.Channel, arrivals []Arrival, traceparent string, audit Audit) error {
	var accounts, providerIDs, chats, users, texts, messages, sessions, only []string
	metadata := make([]json.RawMessage, 0, len(arrivals))
	people := false
	for _, a := range arrivals {
		meta := json.RawMessage("{}")
		if len(a.Message.Metadata) > 0 {
			encoded, err := json.Marshal(a.Message.Metadata)
			if err != nil {
				return harness.Wrap(harness.Invalid, err, "metadata cannot be stored")
			}
			meta = encoded
		}
		accounts, providerIDs, chats = append(accounts, a.Account), append(providerIDs, a.ProviderID), append(chats, a.Chat)
		users, texts = append(users, a.Message.ChannelUserID), append(texts, a.Message.Text)
		metadata = append(metadata, meta)
		messages = append(messages, string(harness.NewMessageID(s.now())))
		sessions = append(sessions, string(harness.NewSessionID(s.now())))
		only = append(only, string(a.Only))
		people = people || a.Address != ""
	}
	args := []any{channel, accounts, providerIDs, chats, users, texts, metadata, messages, sessions, traceparent, event.MessageReceived, only}
	if people {
		b.Queue(acceptPeople, append(append(args, peopleArgs(arrivals, s.now())...), s.fileArgs(arrivals)...)...)
	} else {
		b.Queue(acceptPlain, args...)
		for i, a := range arrivals {
			if a.Temporal != nil {
				b.Queue(`SELECT link_session($1, $2)`, messages[i], a.Temporal)
			}
		}
	}
	audit.queue(b, auditMessagesSQL, messages)
	return nil
}

func peopleArgs(arrivals []Arrival, now time.Time) []any {
	var others, addresses, albums []string
	var sentAt []time.Time
	var paired []bool
	var every, burst []int
	tries := map[[2]string]int{} // one request may hold as many guesses as an hour
	for _, a := range arrivals {
		if a.SentAt.IsZero() {
			a.SentAt = now
		}
		others, addresses, albums = append(others, a.OtherID), append(addresses, a.Address), append(albums, a.Album)
		tries[[2]string{a.Account, a.Message.ChannelUserID}]++
		sentAt, paired = append(sentAt, a.SentAt), append(paired, a.Paired && tries[[2]string{a.Account, a.Message.ChannelUserID}] <= guesses)
		every, burst = append(every, int(a.Pace.Every.Milliseconds())), append(burst, a.Pace.Burst)
	}
	return []any{others, addresses, sentAt, albums, paired, every, burst}
}

func (s *Store) fileArgs(arrivals []Arrival) []any {
	n, bytes := []int{}, []int64{}
	ids, kinds, providerIDs, names, mimes, paths := []string{}, []string{}, []string{}, []string{}, []string{}, []string{}
	for i, a := range arrivals {
		for _, f := range a.Attachments {
			// Ids rise, so that files keep their order.
			id := string(harness.NewAttachmentID(s.now().Add(time.Duration(len(n)) * time.Millisecond)))
			n, ids, kinds, providerIDs = append(n, i+1), append(ids, id), append(kinds, string(f.Kind)), append(providerIDs, f.ProviderID)
			names, mimes, bytes = append(names, f.FileName), append(mimes, f.MimeType), append(bytes, max(f.Bytes, 0))
			paths = append(paths, "in/"+id[len(id)-6:]+"-"+harness.SafeFileName(fileName(f)))
		}
	}
	return []any{n, ids, kinds, providerIDs, names, mimes, bytes, paths}
}

// fileName is what a file is called in a workspace: its own name, else its kind.
func fileName(f harness.Attachment) string {
	if f.FileName != "" {
		return f.FileName
	}
	return strings.ToLower(string(f.Kind))
}
