package postgres_test

import (
	"context"
	"fmt"
	"testing"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

func BenchmarkAccept(b *testing.B) {
	for _, size := range []int{1, 8, 32} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := postgrestest.New(b)
			ctx := context.Background()
			for _, sql := range []string{
				`INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('coder', 1, 'READY', 'd')`,
				`INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all) VALUES ('WEBHOOK', 'hook', 'coder', '{}', true)`,
			} {
				if _, err := s.Pool().Exec(ctx, sql); err != nil {
					b.Fatal(err)
				}
			}
			n := 0
			b.ResetTimer()
			for b.Loop() {
				var as []postgres.Arrival
				for range size {
					n++
					as = append(as, postgres.Arrival{Account: "hook", ProviderID: fmt.Sprint("m", n), Chat: fmt.Sprint("c", n%50), Message: harness.Message{ChannelUserID: "u", Text: "hello"}})
				}
				if _, _, err := s.Accept(ctx, "WEBHOOK", as, ""); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			var t float64
			s.Pool().QueryRow(ctx, `SELECT 1`).Scan(&t)
		})
	}
}
