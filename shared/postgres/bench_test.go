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
