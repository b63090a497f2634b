package postgres

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// Arrival is one message as an ingest function hands it in.
type Arrival struct {
	Account    string // our side: decides the agent
	ProviderID string // the provider's or caller's id: a repeat has the same
	Chat       string // their side: where replies go
	Message    harness.Message
}

// ArrivalOutcome is what became of an Arrival.
type ArrivalOutcome string

// The outcomes of an Arrival.
const (
	ArrivalAccepted  ArrivalOutcome = "ACCEPTED"
	ArrivalDuplicate ArrivalOutcome = "DUPLICATE" // known already: no effect
	ArrivalUnrouted  ArrivalOutcome = "UNROUTED"  // no agent has this account
	ArrivalDenied    ArrivalOutcome = "DENIED"    // the sender policy refuses the sender
)

// Accepted is the fate of one Arrival.
type Accepted struct {
	Outcome ArrivalOutcome
	Session harness.SessionID // of the first arrival, for a duplicate too
	Message harness.MessageID
}

// acceptSQL does it all in one statement: find the agent, apply the sender
// policy, drop repeats, find or open each conversation and mark it once, number
// and store the messages, and announce each session once. A conversation whose
// last turn was BLOCKED or FAILED is open: a new message gives it a new turn.
const acceptSQL = `
WITH arrival AS (
    SELECT a.*, r.agent_name, r.agent_name IS NULL AS unrouted,
           COALESCE(NOT (r.open_to_all OR a.channel_user_id = ANY (r.senders)), false) AS denied,
           COALESCE((r.spec->>'idleTTL')::bigint / 1000000000, 0)::int AS idle_seconds
    FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::jsonb[], $8::text[], $9::text[])
         WITH ORDINALITY AS a (account, provider_id, chat, channel_user_id, text, metadata, message_id, session_id, n)
    LEFT JOIN channel_routes r ON r.channel = $1 AND r.account = a.account
), fresh AS (
    INSERT INTO inbox (channel, account, provider_id, message_id)
    SELECT $1, account, provider_id, message_id FROM arrival WHERE NOT unrouted AND NOT denied ORDER BY account, provider_id, n
    ON CONFLICT DO NOTHING RETURNING message_id
), conversation AS (
    SELECT agent_name, account, chat, count(*) AS messages, max(idle_seconds) AS idle_seconds, min(session_id) AS session_id
    FROM arrival JOIN fresh USING (message_id) GROUP BY agent_name, account, chat
), session AS (
    INSERT INTO sessions AS s (session_id, agent_name, channel, account, chat, state, message_seq, due_at, idle_seconds, traceparent)
    SELECT session_id, agent_name, $1, account, chat, 'PENDING', messages, now(), idle_seconds, $10 FROM conversation ORDER BY agent_name, account, chat
    ON CONFLICT (agent_name, channel, account, chat) WHERE state NOT IN ('COMPLETED', 'CANCELLED') DO UPDATE
    SET message_seq = s.message_seq + EXCLUDED.message_seq, due_at = least(s.due_at, now()), updated_at = now(),
        state = CASE WHEN s.state IN ('IDLE', 'BLOCKED', 'FAILED') THEN 'PENDING' ELSE s.state END,
        idle_seconds = EXCLUDED.idle_seconds, traceparent = EXCLUDED.traceparent
    RETURNING session_id, agent_name, account, chat, message_seq
), message AS (
    INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, provider_id, text, metadata)
    SELECT a.message_id, s.session_id,
           s.message_seq - count(*) OVER (PARTITION BY s.session_id) + row_number() OVER (PARTITION BY s.session_id ORDER BY a.n),
           'INBOUND', 'PENDING', a.channel_user_id, a.provider_id, a.text, a.metadata
    FROM arrival a JOIN fresh USING (message_id) JOIN session s USING (agent_name, account, chat)
    RETURNING message_id, session_id, seq
), newest AS (
    SELECT DISTINCT ON (session_id) session_id, message_id FROM message ORDER BY session_id, seq DESC
), announced AS (
    INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, channel, payload, traceparent, due_at)
    SELECT 'message.received:' || n.message_id, $11, n.session_id, n.session_id, s.agent_name, $1,
           jsonb_build_object('session', n.session_id, 'message', n.message_id), $10, now() + interval '` + announceAgain + `'
    FROM newest n JOIN session s USING (session_id)
)
SELECT a.n, a.message_id, a.unrouted, a.denied, COALESCE(a.agent_name, ''), COALESCE(m.session_id, ''),
       m.message_id IS NOT NULL AND EXISTS (SELECT 1 FROM newest w WHERE w.message_id = a.message_id) AS wakes,
       COALESCE(k.message_id, ''), COALESCE(k.session_id, '')
FROM arrival a
LEFT JOIN message m ON m.message_id = a.message_id
LEFT JOIN LATERAL ( -- row by row: planned as a join it would read the whole inbox
    SELECT i.message_id, km.session_id FROM inbox i LEFT JOIN messages km ON km.message_id = i.message_id
    WHERE m.message_id IS NULL AND i.channel = $1 AND i.account = a.account AND i.provider_id = a.provider_id LIMIT 1
) k ON true
ORDER BY a.n`

// Accept stores what arrived on a channel and returns the fate of each arrival
// in order, with the events to publish now that they are committed. All or
// nothing; on an error nothing is stored and the provider must be told to try
// again.
func (s *Store) Accept(ctx context.Context, channel harness.Channel, arrivals []Arrival, traceparent string) ([]Accepted, []event.Event, error) {
	args, err := acceptArgs(arrivals, s)
	if err != nil {
		return nil, nil, err
	}
	rows, err := s.pool.Query(ctx, acceptSQL, append(append([]any{channel}, args...), traceparent, event.MessageReceived)...)
	if err != nil {
		return nil, nil, translate(err)
	}
	var events []event.Event
	accepted, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Accepted, error) {
		var n int64
		var id, knownID harness.MessageID
		var session, knownSession harness.SessionID
		var agent harness.AgentName
		var unrouted, denied, wakes bool
		if err := row.Scan(&n, &id, &unrouted, &denied, &agent, &session, &wakes, &knownID, &knownSession); err != nil {
			return Accepted{}, err
		}
		if wakes {
			events = append(events, event.Event{
				ID: "message.received:" + string(id), Type: event.MessageReceived, Session: session, Agent: agent, Channel: channel,
				TraceParent: traceparent, Payload: event.Payload{Session: session, Message: id},
			})
		}
		switch {
		case unrouted:
			return Accepted{Outcome: ArrivalUnrouted}, nil
		case denied:
			return Accepted{Outcome: ArrivalDenied}, nil
		case session == "":
			return Accepted{Outcome: ArrivalDuplicate, Session: knownSession, Message: knownID}, nil
		default:
			return Accepted{Outcome: ArrivalAccepted, Session: session, Message: id}, nil
		}
	})
	return accepted, events, translate(err)
}

func acceptArgs(arrivals []Arrival, s *Store) ([]any, error) {
	n := len(arrivals)
	var accounts, providerIDs, chats, users, texts, messages, sessions []string
	metadata := make([]json.RawMessage, 0, n)
	for _, a := range arrivals {
		meta := json.RawMessage("{}")
		if len(a.Message.Metadata) > 0 {
			encoded, err := json.Marshal(a.Message.Metadata)
			if err != nil {
				return nil, harness.Wrap(harness.Invalid, err, "metadata cannot be stored")
			}
			meta = encoded
		}
		accounts, providerIDs, chats = append(accounts, a.Account), append(providerIDs, a.ProviderID), append(chats, a.Chat)
		users, texts = append(users, a.Message.ChannelUserID), append(texts, a.Message.Text)
		metadata = append(metadata, meta)
		messages = append(messages, string(harness.NewMessageID(s.now())))
		sessions = append(sessions, string(harness.NewSessionID(s.now())))
	}
	return []any{accounts, providerIDs, chats, users, texts, metadata, messages, sessions}, nil
}
