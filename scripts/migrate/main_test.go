package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// Ten processes at once on an empty database: all exit 0, and every version is
// there once.
func TestTenProcessesAtOnce(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "migrate")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	dsn := postgrestest.Empty(t)
	logins := newLogins(t, dsn)
	var starters []*exec.Cmd
	var outputs []*strings.Builder
	for range 10 {
		out := &strings.Builder{}
		cmd := exec.Command(binary)
		cmd.Env, cmd.Stderr = append(os.Environ(), "DATABASE_URL="+dsn.Reveal(), "LOGINS_DIR="+logins.dir, "CONNECT_WAIT=10s"), out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		starters, outputs = append(starters, cmd), append(outputs, out)
	}
	for i, cmd := range starters {
		if err := cmd.Wait(); err != nil {
			t.Errorf("starter %d: %v\n%s", i, err, outputs[i])
		}
		if strings.Contains(outputs[i].String(), secretWord) {
			t.Errorf("starter %d printed a password", i)
		}
	}
	conn, err := pgx.Connect(context.Background(), dsn.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var versions, distinct int
	if err := conn.QueryRow(context.Background(), `SELECT count(*), count(DISTINCT version_id) FROM goose_db_version`).Scan(&versions, &distinct); err != nil || versions < 2 || versions != distinct {
		t.Errorf("%d rows for %d versions, %v", versions, distinct, err)
	}
	logins.check(conn)
}

func TestFailuresAreSaid(t *testing.T) {
	for name, dsn := range map[string]string{"nothing": "", "not a DSN": "post gres://secret-word@", "nobody there": "postgres://u:secret-word@127.0.0.1:1/x?connect_timeout=1"} {
		err := run(t.Context(), func(name string) string { return map[string]string{"DATABASE_URL": dsn}[name] })
		if err == nil || strings.Contains(err.Error(), "secret-word") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
