// Package schema holds the database's tables and roles and brings a database to
// them. Functions do not link it: migrations are run by a Job or a person,
// never at a function's start.
package schema

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"tuluat.ai/harness/shared/harness"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Files returns the migrations.
func Files() fs.FS { return migrations }

// Migrate brings the database at dsn to this build's schema. It needs a direct
// connection (not PgBouncer), holds a lock for the whole run, and is safe to
// start many times at once: every starter ends well, each version runs once.
func Migrate(ctx context.Context, dsn harness.Secret, log *slog.Logger) error {
	config, err := pgx.ParseConfig(dsn.Reveal())
	if err != nil {
		return harness.Errorf(harness.Invalid, "the connection string is not one of PostgreSQL")
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker))
	if err != nil {
		return err
	}
	applied, err := provider.Up(ctx)
	for _, m := range applied {
		log.Info("migration applied", "file", m.Source.Path, "took", m.Duration.Round(time.Millisecond))
	}
	if err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	return nil
}
