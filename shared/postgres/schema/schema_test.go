package schema_test

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"

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

// Indexes are built outside of a transaction, so a build may end half way: the
// next run makes it whole.
func TestIndexesOfAFailedRunAreBuiltAgain(t *testing.T) {
	ctx := context.Background()
	dsn := postgrestest.Empty(t)
	migrateTo(t, dsn, 7)
	conn, err := pgx.Connect(ctx, dsn.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	for _, sql := range []string{
		`DELETE FROM goose_db_version WHERE version_id >= 7`,
		`UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'executions_agent'::regclass`,
		`DROP INDEX sessions_agent`,
		`DROP INDEX agent_execution_logs_newest`,
		`UPDATE agent_execution_logs SET log_id = 0`,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := schema.Migrate(ctx, dsn, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	var valid int
	if err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
		WHERE c.relname IN ('sessions_agent', 'executions_agent', 'messages_person', 'agent_execution_logs_newest') AND i.indisvalid`).Scan(&valid); err != nil || valid != 4 {
		t.Errorf("%d indexes can be used, %v", valid, err)
	}
}

// What an older build has written stays as it is, in the order in which it was
// asked for, also where the migration ends half way: the next run makes it whole.
func TestAuditAndApprovalsOfAnOlderBuild(t *testing.T) {
	ctx := context.Background()
	dsn := postgrestest.Empty(t)
	migrateTo(t, dsn, 11)
	conn, err := pgx.Connect(ctx, dsn.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	run := func(statements ...string) {
		t.Helper()
		for _, sql := range statements {
			if _, err := conn.Exec(ctx, sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
	}
	const ask = `INSERT INTO approvals (approval_id, session_id, agent_name, title, digest, state) VALUES `
	run(`INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('coder', 1, 'READY', 'd')`,
		`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state) VALUES ('ses_1', 'coder', 'API', 'coder', 'a', 'IDLE')`,
		ask+`('apr_1', 'ses_1', 'coder', 't', 'd', 'PENDING'), ('apr_2', 'ses_1', 'coder', 't', 'd', 'PENDING')`,
		`UPDATE approvals SET reason = 'moved behind the other' WHERE approval_id = 'apr_1'`,
		`INSERT INTO audit_log (actor, action, object) VALUES ('ann', 'cancel sessions', 'ses_1')`)
	stands := func(when, want string) {
		t.Helper()
		var got string
		if err := conn.QueryRow(ctx, `SELECT (SELECT string_agg(approval_id, ' ' ORDER BY seq) FROM approvals) || ', ' || (SELECT count(*) FROM approval_events) || ' told, audit '
			|| (SELECT string_agg(concat_ws(' ', actor, state, reason, idempotency_key), ', ') FROM audit_log) || ', indexes '
			|| (SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relname IN ('audit_log_once', 'executions_order', 'approvals_order') AND i.indisvalid)`).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", when, got, err, want)
		}
	}
	migrateTo(t, dsn, 12)
	stands("from an older build", "apr_1 apr_2, 2 told, audit ann DONE , indexes 3")
	run(ask+`('apr_0', 'ses_1', 'coder', 't', 'd', 'PENDING')`, // by a clock that was set
		`DELETE FROM goose_db_version WHERE version_id >= 12`, `DROP INDEX approvals_order`, `UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'audit_log_once'::regclass`)
	migrateTo(t, dsn, 12)
	stands("after a run that ended half way", "apr_1 apr_2 apr_0, 3 told, audit ann DONE , indexes 3")
}

// A table that somebody keeps locked: the migration ends soon and leaves
// nothing, and the next run succeeds.
func TestAMigrationDoesNotWaitLongForALock(t *testing.T) {
	ctx := context.Background()
	dsn := postgrestest.Empty(t)
	migrateTo(t, dsn, 3)
	conn, err := pgx.Connect(ctx, dsn.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `BEGIN; SELECT FROM agents`); err != nil {
		t.Fatal(err)
	}
	var refused *pgconn.PgError
	if err := schema.Migrate(ctx, dsn, slog.New(slog.DiscardHandler)); !errors.As(err, &refused) || refused.Code != "55P03" {
		t.Errorf("behind a lock: %v", err)
	}
	if diff := cmp.Diff([]int64{0, 1, 2, 3}, applied(t, dsn)); diff != "" {
		t.Error(diff)
	}
	if _, err := conn.Exec(ctx, `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	if err := schema.Migrate(ctx, dsn, slog.New(slog.DiscardHandler)); err != nil {
		t.Errorf("once it is free: %v", err)
	}
}

// migrateTo brings a database to an older build's schema.
func migrateTo(t *testing.T, dsn harness.Secret, version int64) {
	t.Helper()
	db, err := sql.Open("pgx", dsn.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	files, err := fs.Sub(schema.Files(), "migrations")
	if err != nil {
		t.Fatal(err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.UpTo(context.Background(), version); err != nil {
		t.Fatal(err)
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
