//go:build local

package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/local"
)

// The whole process with real sandboxes: one that is past its life and one that
// no row knows are ended, a row without its sandbox is told GONE, and a session
// that waits is woken. A second tick does nothing.
func TestProcess(t *testing.T) {
	ctx := context.Background()
	dir, runner := place(t)
	driver, err := local.New(local.Options{Dir: dir, Runner: runner})
	if err != nil {
		t.Fatal(err)
	}
	uids := map[string]string{}
	for _, name := range []string{"expired", "leaked"} {
		sb := sandbox.Sandbox{ID: harness.SandboxID("sbx_" + name), Name: name, Spec: harness.DefaultSandbox(), ExpiresAt: time.Now().Add(time.Hour)}
		if uids[name], err = driver.Start(ctx, sb); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := driver.Terminate(ctx, sandbox.Sandbox{Name: name}); err != nil {
				t.Error(err)
			}
		})
	}
	dsn := postgrestest.DSN(t)
	store, err := postgres.Open(dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for _, sql := range []string{
		`INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('coder', 1, 'READY', 'd')`,
		`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state, due_at) VALUES ('ses_a', 'coder', 'WEBHOOK', 'h', 'a', 'PENDING', now() - interval '1 hour'), ('ses_b', 'coder', 'WEBHOOK', 'h', 'b', 'IDLE', NULL)`,
		`INSERT INTO sandboxes (sandbox_id, sandbox_name, sandbox_uid, agent_name, session_id, spec, spec_digest, state, expires_at) VALUES
			('sbx_expired', 'expired', '` + uids["expired"] + `', 'coder', 'ses_a', '{"idleSeconds": 300}', 'd', 'READY', now() - interval '1 hour'), ('sbx_lost', 'lost', 'uid', 'coder', 'ses_b', '{"idleSeconds": 300}', 'd', 'READY', now() + interval '1 hour')`,
	} {
		if _, err := store.Pool().Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	age(t, dir, "leaked")
	published := make(chan string, 100)
	broker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		published <- r.Header.Get("Ce-Id")
		w.WriteHeader(http.StatusAccepted)
	}))
	defer broker.Close()
	running, stop := context.WithCancel(ctx)
	defer stop()
	ready, ended := make(chan function.Addresses, 1), make(chan error, 1)
	go func() {
		ended <- function.Run(running, "reaper-cron", env(map[string]string{
			"PORT": "0", "METRICS_PORT": "0", "DATABASE_URL": dsn.Reveal(), "BROKER_URL": broker.URL, "STAY": "0",
			"SANDBOX_DRIVER": "local", "SANDBOX_LOCAL_DIR": dir, "SANDBOX_LOCAL_RUNNER": runner,
		}), t.Output(), build, func(a function.Addresses) { ready <- a })
	}()
	var at function.Addresses
	select {
	case at = <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	for range 2 {
		if status, body := ping(t, "http://"+at.HTTP+"/events"); status != http.StatusAccepted || body != "" {
			t.Errorf("a tick was answered %d %q", status, body)
		}
	}
	if n := len(published); n != 1 || <-published != "session.due:ses_a:0" {
		t.Errorf("%d events published", n)
	}
	if found, err := driver.List(ctx); err != nil || len(found) != 0 {
		t.Errorf("sandboxes left: %+v, %v", found, err)
	}
	var states string
	if err := store.Pool().QueryRow(ctx, `SELECT string_agg(sandbox_id || ' ' || state || ' ' || reason, ', ' ORDER BY sandbox_id) FROM sandboxes`).Scan(&states); err != nil || states != "sbx_expired GONE TTL, sbx_lost GONE LOST" {
		t.Errorf("rows: %s, %v", states, err)
	}
	metrics := get(t, "http://"+at.Metrics+"/metrics")
	for _, want := range []string{`tuluat_sweep_done_total{item="sandboxes"} 1`, `tuluat_sweep_done_total{item="leaks"} 2`, `tuluat_sweep_failures_total{item="leaks"} 0`, "tuluat_sweep_age_seconds "} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	if strings.Contains(metrics, "tuluat_sweep_age_seconds +Inf") {
		t.Error("the age of the last full pass is not known after one")
	}
	stop()
	if err := <-ended; err != nil {
		t.Error("drain: ", err)
	}
}

// place returns a folder for sandboxes and the runner's binary.
func place(t *testing.T) (dir, runner string) {
	t.Helper()
	root, err := os.MkdirTemp("", "tr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	runner = filepath.Join(root, "runner")
	compile := exec.Command("go", "build", "-o", runner, "./runner")
	compile.Dir, compile.Env = "../sandbox-exec", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("build the runner: %v: %s", err, out)
	}
	return filepath.Join(root, "s"), runner
}

// age makes a sandbox an hour old in its driver's own books.
func age(t *testing.T, dir, name string) {
	t.Helper()
	path := filepath.Join(dir, name, "state.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var state map[string]any
	if err := json.Unmarshal(text, &state); err != nil || state["createdAt"] == nil {
		t.Fatalf("%s, %v", text, err)
	}
	state["createdAt"] = time.Now().Add(-time.Hour).UTC()
	if text, err = json.Marshal(state); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func ping(t *testing.T, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequest(http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Content-Type": "application/json", "Ce-Specversion": "1.0", "Ce-Id": "1", "Ce-Source": "test", "Ce-Type": "dev.knative.sources.ping"} {
		request.Header.Set(k, v)
	}
	return do(t, request)
}

func get(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, body := do(t, request)
	return body
}

func do(t *testing.T, request *http.Request) (int, string) {
	t.Helper()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}
