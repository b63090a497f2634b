//go:build local

package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function/functiontest"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/local"
)

// The whole process with real sandboxes: one that is past its life and one that
// no row knows are ended, a row without its sandbox is told GONE, and a session
// that waits is woken. A second tick does nothing.
func TestProcess(t *testing.T) {
	ctx := context.Background()
	dir, runner := functiontest.Sandboxes(t, "../sandbox-exec/runner")
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
	w := functiontest.NewWorld(t)
	w.Agents("coder")
	w.Exec(`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state, due_at) VALUES ('ses_a', 'coder', 'WEBHOOK', 'h', 'a', 'PENDING', now() - interval '1 hour'), ('ses_b', 'coder', 'WEBHOOK', 'h', 'b', 'IDLE', NULL)`)
	w.Exec(`INSERT INTO sandboxes (sandbox_id, sandbox_name, sandbox_uid, agent_name, session_id, spec, spec_digest, state, expires_at) VALUES
		('sbx_expired', 'expired', $1, 'coder', 'ses_a', '{"idleSeconds": 300}', 'd', 'READY', now() - interval '1 hour'), ('sbx_lost', 'lost', 'uid', 'coder', 'ses_b', '{"idleSeconds": 300}', 'd', 'READY', now() + interval '1 hour')`, uids["expired"])
	age(t, dir, "leaked")
	p := w.Start("reaper-cron", build, map[string]string{"STAY": "0", "SANDBOX_DRIVER": "local", "SANDBOX_LOCAL_DIR": dir, "SANDBOX_LOCAL_RUNNER": runner})
	p.DeliverTwice(event.Event{ID: "1", Type: event.Ping})
	if heard := w.Broker.Take(); len(heard) != 1 || heard[0].Get("Ce-Id") != "session.due:ses_a:0" {
		t.Errorf("published %v", heard)
	}
	if found, err := driver.List(ctx); err != nil || len(found) != 0 {
		t.Errorf("sandboxes left: %+v, %v", found, err)
	}
	if states := w.Query(`SELECT string_agg(sandbox_id || ' ' || state || ' ' || reason, ', ' ORDER BY sandbox_id) FROM sandboxes`); states != "sbx_expired GONE TTL, sbx_lost GONE LOST" {
		t.Errorf("rows: %s", states)
	}
	metrics := p.Metrics()
	for _, want := range []string{`tuluat_sweep_done_total{item="sandboxes"} 1`, `tuluat_sweep_done_total{item="leaks"} 2`, `tuluat_sweep_failures_total{item="leaks"} 0`, "tuluat_sweep_age_seconds "} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	if strings.Contains(metrics, "tuluat_sweep_age_seconds +Inf") {
		t.Error("the age of the last full pass is not known after one")
	}
	p.Stop()
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
