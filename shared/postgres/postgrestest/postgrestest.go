// Package postgrestest gives each test a private, migrated database on the real
// server named by TEST_DATABASE_URL (a superuser's connection string; `make
// test` starts one).
package postgrestest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/schema"
)

// New returns a store on a database of its own, cloned from a migrated template
// and dropped when the test ends.
func New(t testing.TB) *postgres.Store {
	t.Helper()
	store, err := postgres.Open(DSN(t), postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// DSN returns the connection string of a fresh migrated database.
func DSN(t testing.TB) harness.Secret {
	t.Helper()
	server := serverURL(t)
	name := fmt.Sprintf("test_%s", harness.NewID("db", time.Now())[3:])
	template := ensureTemplate(t, server)
	execute(t, server, fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s STRATEGY file_copy", name, template))
	t.Cleanup(func() { execute(t, server, fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", name)) })
	return harness.Secret(withDatabase(server, name))
}

// Empty returns the connection string of a fresh database without a schema.
func Empty(t testing.TB) harness.Secret {
	t.Helper()
	server := serverURL(t)
	name := fmt.Sprintf("test_%s", harness.NewID("db", time.Now())[3:])
	execute(t, server, "CREATE DATABASE "+name)
	t.Cleanup(func() { execute(t, server, fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", name)) })
	return harness.Secret(withDatabase(server, name))
}

func serverURL(t testing.TB) *url.URL {
	t.Helper()
	server, err := url.Parse(os.Getenv("TEST_DATABASE_URL"))
	if err != nil || server.Host == "" {
		t.Fatal("TEST_DATABASE_URL is not set: run the tests by `make test`, or under `go run ./scripts/testdb -- ...`")
	}
	return server
}

func withDatabase(server *url.URL, name string) string {
	u := *server
	u.Path = "/" + name
	return u.String()
}

var template struct {
	once sync.Once
	name string
	err  error
}

// ensureTemplate migrates one template per schema. Test processes share it: the
// first to take the lock makes it.
func ensureTemplate(t testing.TB, server *url.URL) string {
	t.Helper()
	template.once.Do(func() { template.name, template.err = makeTemplate(server) })
	if template.err != nil {
		t.Fatal("template database: ", template.err)
	}
	return template.name
}

func makeTemplate(server *url.URL) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	name, err := templateName()
	if err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, server.String())
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(7448211)"); err != nil {
		return "", err
	}
	var exists bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)", name).Scan(&exists); err != nil || exists {
		return name, err
	}
	building := name + "_building"
	if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+building); err != nil {
		return "", err
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+building); err != nil {
		return "", err
	}
	if err := schema.Migrate(ctx, harness.Secret(withDatabase(server, building)), slog.New(slog.DiscardHandler)); err != nil {
		return "", err
	}
	_, err = conn.Exec(ctx, fmt.Sprintf("ALTER DATABASE %s RENAME TO %s", building, name))
	return name, err
}

// templateName is derived from the migrations' content: another schema is
// another template.
func templateName() (string, error) {
	sum := sha256.New()
	err := fs.WalkDir(schema.Files(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(schema.Files(), path)
		sum.Write([]byte(path))
		sum.Write(content)
		return err
	})
	return "template_" + hex.EncodeToString(sum.Sum(nil)[:8]), err
}

func execute(t testing.TB, server *url.URL, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, server.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, sql); err != nil {
		t.Fatal(err)
	}
}
