// Command migrate brings the database named by DATABASE_URL to this build's
// schema and exits 0. It needs a direct connection, not PgBouncer, and may be
// started many times at once.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres/schema"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := run(ctx, os.Getenv)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "migrate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, getenv func(string) string) error {
	dsn := harness.Secret(getenv("DATABASE_URL"))
	if dsn == "" {
		return harness.Errorf(harness.Invalid, "DATABASE_URL is not set: the PostgreSQL connection string")
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := schema.Migrate(ctx, dsn, log); err != nil {
		return err
	}
	log.Info("the schema is up to date")
	return nil
}
