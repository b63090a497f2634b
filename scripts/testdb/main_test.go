package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// The command gets a superuser's connection to a server that is there, its
// exit code comes through, and nothing is left.
func TestRun(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	note := filepath.Join(t.TempDir(), "dsn")
	result := make(chan int, 1)
	go func() {
		code, err := run([]string{"sh", "-c", `trap 'exit 7' TERM; echo "$TEST_DATABASE_URL" > ` + note + `.new; mv ` + note + `.new ` + note + `; while :; do sleep 0.05; done`})
		if err != nil {
			t.Error(err)
		}
		result <- code
	}()
	dsn := strings.TrimSpace(await(t, note))
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	var super, fsync string
	if err := conn.QueryRow(t.Context(), "SELECT current_setting('is_superuser'), current_setting('fsync')").Scan(&super, &fsync); err != nil || super != "on" || fsync != "off" {
		t.Errorf("is_superuser %s, fsync %s, %v", super, fsync, err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := <-result; code != 7 {
		t.Errorf("exit code %d, want the 7 of the command's own trap", code)
	}
	if _, err := pgx.Connect(context.Background(), dsn); err == nil {
		t.Error("the server still runs")
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestExitCode(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 3": 3, "kill -9 $$": 128 + 9} {
		if got, err := exitCode(exec.Command("sh", "-c", script).Run()); got != want || err != nil {
			t.Errorf("%s: %d, %v; want %d", script, got, err, want)
		}
	}
}

func await(t *testing.T, file string) string {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		if text, err := os.ReadFile(file); err == nil {
			return string(text)
		}
		if time.Now().After(deadline) {
			t.Fatal("the command did not start")
		}
		time.Sleep(10 * time.Millisecond)
	}
}
