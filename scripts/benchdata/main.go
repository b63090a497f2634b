// Command benchdata fills a database of a private Postgres with a year's worth
// of rows and measures every list of the management API on it: at the first
// page and at the 1,000th (or the last one there is), with each filter, as the
// API's own store asks. Then it measures what the indexes of these lists cost a
// turn and a log entry, and what the function itself holds while all lists are
// read. It fails when a list's p99 is over its target, or the function grows. With
// -archive it measures the archive of the log instead: how fast the sweep fills
// it, in what memory, and lists that read both. With -sweep it measures passes of
// the sweep over a backlog that no pass can do whole, in a database of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/localpg"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/schema"
)

type options struct {
	sessions int
	logs     int
	runs     int           // of each list and page
	turns    int           // of each measurement of what indexes cost
	target   time.Duration // p99 of a page
	only     string        // measure just the lists whose names begin so
	rounds   int           // over all lists, in which the function may not grow
	busy     bool          // judge by the server's time on the CPU
	archive  bool          // measure the archive of logs, and nothing else
	sweep    bool          // measure a pass of the sweep, and nothing else
	dir      string        // kept, and used again; empty: made and removed
}

func main() {
	var o options
	flag.IntVar(&o.sessions, "sessions", 1_000_000, "sessions to make")
	flag.IntVar(&o.logs, "logs", 10_000_000, "log entries to make")
	flag.IntVar(&o.runs, "runs", 200, "runs of each list and page")
	flag.IntVar(&o.turns, "turns", 2000, "turns of each measurement of what indexes cost")
	flag.DurationVar(&o.target, "target", 50*time.Millisecond, "the p99 that no page may be over")
	flag.StringVar(&o.only, "only", "", "measure just the lists whose names begin so")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds over every list in which the function's memory is measured")
	flag.BoolVar(&o.busy, "busy", false, "the machine does other things meanwhile: judge by the server's time on the CPU")
	flag.BoolVar(&o.archive, "archive", false, "archive the log entries that are older than three days by the sweep, measure that and lists over both, and nothing else; a kept database has fewer rows afterwards")
	flag.BoolVar(&o.sweep, "sweep", false, "measure a pass of the sweep over 5,000 sandboxes, 100,000 sessions and 1,000,000 announcements, in a database of its own, and nothing else")
	flag.StringVar(&o.dir, "dir", "", "where the server's folder is kept, with its rows, for another run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchdata:", err)
		os.Exit(1)
	}
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

const database = "benchdata"

func run(ctx context.Context, o options) (err error) {
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "tuluat-benchdata-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	pg, err := localpg.Start(ctx, localpg.Options{Dir: filepath.Join(o.dir, "postgres"), Throwaway: true, Log: filepath.Join(o.dir, "log")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pg.Stop()) }()
	if o.sweep {
		return swept(ctx, pg, o)
	}
	if err := prepare(ctx, pg, o); err != nil {
		return err
	}
	if o.archive {
		return archived(ctx, pg.DSN(database), o)
	}
	// A machine that does other things meanwhile may take its time over a page.
	store, err := postgres.Open(harness.Secret(pg.DSN(database)+"&statement_timeout=0"), postgres.Options{MaxConns: 1})
	if err != nil {
		return err
	}
	defer store.Close()
	over, err := lists(ctx, store, o)
	if err != nil {
		return err
	}
	if err := costs(ctx, store, o); err != nil {
		return err
	}
	if err := memory(ctx, store, pg.DSN(database), o); err != nil {
		return err
	}
	if over > 0 {
		return fmt.Errorf("%d pages are over %s", over, o.target)
	}
	return nil
}

// prepare makes and fills the database, unless an earlier run has.
func prepare(ctx context.Context, pg *localpg.Server, o options) error {
	conn, err := pgx.Connect(ctx, pg.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var known bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)`, database).Scan(&known); err != nil {
		return err
	}
	if known {
		say("bringing the database of an earlier run to the newest schema")
		return schema.Migrate(ctx, harness.Secret(pg.DSN(database)), slog.New(slog.DiscardHandler))
	}
	const building = database + "_building"
	for _, sql := range []string{`DROP DATABASE IF EXISTS ` + building, `CREATE DATABASE ` + building} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	if err := schema.Migrate(ctx, harness.Secret(pg.DSN(building)), slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	say("making %d sessions and %d log entries", o.sessions, o.logs)
	if err := load(ctx, pg.DSN(building), o); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `ALTER DATABASE `+building+` RENAME TO `+database)
	return err
}
