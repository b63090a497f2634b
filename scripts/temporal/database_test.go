package temporal_test

import (
	"context"
	"crypto/rand"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// database is a migrated database of its own on the server of TEST_DATABASE_URL.
// Nothing here is of our modules, whose versions a Temporal server does not take.
type database struct {
	t    *testing.T
	dsn  string
	pool *pgxpool.Pool
}

func newDatabase(t *testing.T) *database {
	t.Helper()
	ctx := context.Background()
	server := os.Getenv("TEST_DATABASE_URL")
	u, err := url.Parse(server)
	if err != nil || u.Host == "" {
		t.Fatal("TEST_DATABASE_URL is not set: run the test by `make test-temporal`")
	}
	name := "test_" + strings.ToLower(rand.Text())
	execute := func(sql string) {
		t.Helper()
		conn, err := pgx.Connect(ctx, server)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	execute("CREATE DATABASE " + name)
	t.Cleanup(func() { execute("DROP DATABASE " + name + " WITH (FORCE)") })
	u.Path = "/" + name
	d := &database{t: t, dsn: u.String()}
	migrate := exec.Command("go", "run", "./scripts/migrate")
	migrate.Dir = "../.."
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GOWORK=") && !strings.HasPrefix(v, "DATABASE_URL=") {
			migrate.Env = append(migrate.Env, v)
		}
	}
	migrate.Env = append(migrate.Env, "DATABASE_URL="+d.dsn)
	if out, err := migrate.CombinedOutput(); err != nil {
		t.Fatalf("migrate: %v\n%s", err, out)
	}
	if d.pool, err = pgxpool.New(ctx, d.dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.pool.Close)
	return d
}

func (d *database) exec(sql string, args ...any) {
	d.t.Helper()
	if _, err := d.pool.Exec(context.Background(), sql, args...); err != nil {
		d.t.Fatal(err)
	}
}

// query returns one value that the statement gives as text; NULL is "".
func (d *database) query(sql string, args ...any) string {
	d.t.Helper()
	var value *string
	if err := d.pool.QueryRow(context.Background(), sql, args...).Scan(&value); err != nil {
		d.t.Fatal(err)
	}
	if value == nil {
		return ""
	}
	return *value
}

// await repeats a query until it gives want.
func (d *database) await(want, sql string, args ...any) {
	d.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); d.query(sql, args...) != want; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			d.t.Fatalf("%s never gives %q", sql, want)
		}
	}
}
