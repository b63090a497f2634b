package postgres_test

import (
	"fmt"
	"testing"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// PostgreSQL plans a prepared statement anew for its first five executions and
// then as long as that looks cheaper than one plan for all. Planning this one costs
// more than carrying it out.
func TestArrivalsArePlannedOncePerConnection(t *testing.T) {
	for _, channel := range []harness.Channel{harness.ChannelWebhook, harness.ChannelWhatsApp} {
		t.Run(string(channel), func(t *testing.T) {
			s := postgrestest.New(t)
			agent(t, s)
			if _, err := s.Pool().Exec(t.Context(), `INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all) VALUES ('WHATSAPP', 'hook', 'coder', '{}', true)`); err != nil {
				t.Fatal(err)
			}
			accept := func(messages int, run string) {
				var in postgres.Inbound
				for i := range messages {
					user := fmt.Sprint("user", i)
					a := postgres.Arrival{Account: "hook", ProviderID: fmt.Sprint(run, "-", i), Chat: user, Message: harness.Message{Channel: channel, ChannelUserID: user, Text: "hello"}}
					if channel == harness.ChannelWhatsApp {
						a.Address, a.Aliases = user, []string{user}
					}
					in.Arrivals = append(in.Arrivals, a)
				}
				if _, _, err := s.Accept(t.Context(), channel, in, ""); err != nil {
					t.Fatal(err)
				}
			}
			accept(1000, "many") // tables have rows, and the server knows
			if _, err := s.Pool().Exec(t.Context(), "ANALYZE"); err != nil {
				t.Fatal(err)
			}
			for n := range 20 {
				accept(1, fmt.Sprint("one-", n))
			}
			var custom, generic int
			if err := s.Pool().QueryRow(t.Context(), `SELECT max(custom_plans), max(generic_plans) FROM pg_prepared_statements WHERE statement LIKE '%WITH arrival AS%'`).Scan(&custom, &generic); err != nil {
				t.Fatal(err)
			}
			if custom > 6 || generic < 10 {
				t.Errorf("of 21 executions %d were planned for themselves and %d had the one plan: want at most 6, and the rest", custom, generic)
			}
		})
	}
}
