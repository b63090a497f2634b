// Command migrate brings the database named by DATABASE_URL to this build's
// schema and exits 0. It needs a direct connection, not PgBouncer, and may be
// started many times at once.
//
// With LOGINS_DIR it also gives every function its login: a file per function,
// named like it, that holds the connection string the function will use.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

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
	wait, err := time.ParseDuration(cmp.Or(getenv("CONNECT_WAIT"), "0"))
	if err != nil || wait < 0 {
		return harness.Errorf(harness.Invalid, "CONNECT_WAIT is no duration: write it like 2m")
	}
	logins, err := readLogins(getenv("LOGINS_DIR"))
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := awaitServer(ctx, dsn, wait, log); err != nil {
		return err
	}
	if err := schema.Migrate(ctx, dsn, log); err != nil {
		return err
	}
	log.Info("the schema is up to date")
	if len(logins) == 0 {
		return nil
	}
	if err := applyLogins(ctx, dsn, logins); err != nil {
		return err
	}
	log.Info("every function has its login", "logins", len(logins))
	return nil
}
