package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// BenchmarkAccept stores what providers send at once: one message, and the most
// that one request holds.
func BenchmarkAccept(b *testing.B) {
	for _, c := range []struct{ messages, people, bytes int }{{1, 1, 100}, {64, 64, 100}, {1000, 100, 2900}, {1000, 1000, 2900}} {
		b.Run(fmt.Sprintf("%d messages of %d people", c.messages, c.people), func(b *testing.B) {
			s := postgrestest.New(b)
			agent(b, s)
			if _, err := s.Pool().Exec(context.Background(), `INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all) VALUES ('WHATSAPP', 'number', 'coder', '{}', true)`); err != nil {
				b.Fatal(err)
			}
			sent := 0
			for b.Loop() {
				var in postgres.Inbound
				for i := range c.messages {
					sent++
					user := fmt.Sprint("user", i%c.people)
					in.Arrivals = append(in.Arrivals, postgres.Arrival{
						Account: "number", ProviderID: fmt.Sprint("wamid.", sent), Chat: user, Address: user, Aliases: []string{"US." + user, user}, OtherID: "US." + user,
						Pace:    postgres.Pace{Every: 6 * time.Second, Burst: 45},
						Message: harness.Message{Channel: harness.ChannelWhatsApp, ChannelUserID: user, Text: strings.Repeat("some words ", c.bytes/11), Metadata: map[string]any{"messageId": sent, "type": "text"}},
					})
				}
				if _, _, err := s.Accept(context.Background(), harness.ChannelWhatsApp, in, ""); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A scrape of a million sessions of 200 agents, 20,000 of whose changes are not
// folded yet, beside 100,000 announcements.
func BenchmarkFigures(b *testing.B) {
	ctx := context.Background()
	s := postgrestest.New(b)
	conn, err := s.Pool().Acquire(ctx)
	if err != nil {
		b.Fatal(err)
	}
	for _, sql := range []string{
		`SET session_replication_role = replica`, `SET statement_timeout = 0`,
		`INSERT INTO agents (agent_name, revision, phase, digest) SELECT 'agent-' || n, 1, 'READY', 'd' FROM generate_series(1, 200) n`,
		`INSERT INTO agent_revisions (agent_name, revision, spec) SELECT 'agent-' || n, 1, '{"model": {"name": "m"}}' FROM generate_series(1, 200) n`,
		`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state, due_at)
		SELECT 'ses_' || n, 'agent-' || (n % 200 + 1), 'WEBHOOK', 'a', n::text, (ARRAY['IDLE', 'COMPLETED', 'BLOCKED', 'FAILED', 'PENDING'])[n % 5 + 1], CASE WHEN n % 100 = 0 THEN now() END FROM generate_series(1, 1000000) n`,
		`INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text)
		SELECT 'msg_' || n, 'ses_' || n, 1, 'INBOUND', CASE WHEN n % 5 = 4 THEN 'PENDING' ELSE 'DONE' END, 'u', 't' FROM generate_series(1, 1000000) n`,
		`INSERT INTO outbox (event_id, event_type, subject, payload, due_at) SELECT 'e' || n, 't', 'ses_' || n, '{}', now() FROM generate_series(1, 100000) n`,
		`INSERT INTO figures SELECT 'SESSIONS', agent_name, state, '', count(*) FROM sessions GROUP BY agent_name, state`,
		`INSERT INTO figure_changes SELECT 'RUNS', 'agent-' || (n % 200 + 1), 'COMPLETED', '', 1 FROM generate_series(1, 20000) n`,
		`ANALYZE`, `RESET ALL`,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			b.Fatal(err)
		}
	}
	conn.Release()
	for b.Loop() {
		if _, err := s.Figures(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
