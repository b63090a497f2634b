package postgrestest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/postgres"
)

// Dump returns every row of the tables as JSON text, in a stable order, so that
// a test can compare the database before and after a repeat.
func Dump(t testing.TB, s *postgres.Store, tables ...string) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, table := range tables {
		rows, err := s.Pool().Query(context.Background(), "SELECT to_jsonb(t)::text FROM "+pgx.Identifier{table}.Sanitize()+" t ORDER BY 1")
		if err != nil {
			t.Fatal(err)
		}
		if all[table], err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			t.Fatal(err)
		}
	}
	return all
}
