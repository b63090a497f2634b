package schema_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres/postgrestest"
	"tuluat.ai/harness/shared/postgres/schema"
)

// Ten starters at once on an empty database: all end well, each version runs
// once, and one more finds nothing to do.
func TestTenMigrationsAtOnce(t *testing.T) {
	ctx := context.Background()
	dsn := postgrestest.Empty(t)
	errs := make(chan error, 10)
	var running sync.WaitGroup
	for range 10 {
		running.Go(func() { errs <- schema.Migrate(ctx, dsn, slog.New(slog.DiscardHandler)) })
	}
	running.Wait()
	for range 10 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	versions := applied(t, dsn)
	if len(versions) < 2 {
		t.Fatalf("versions %v", versions)
	}
	for i, v := range versions {
		if v != int64(i) {
			t.Errorf("versions %v: each must be there once, in order", versions)
		}
	}
	if err := schema.Migrate(ctx, dsn, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(versions, applied(t, dsn)); diff != "" {
		t.Error("the same again changed versions:\n", diff)
	}
}

func applied(t *testing.T, dsn harness.Secret) []int64 {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), dsn.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	rows, err := conn.Query(context.Background(), `SELECT version_id FROM goose_db_version ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	versions, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	return versions
}
