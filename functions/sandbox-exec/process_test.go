//go:build local

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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

// process is the function as a whole, with a broker that takes everything.
type process struct {
	*testing.T
	store     *postgres.Store
	url       string
	published chan string // types of events
	ended     chan error
	stop      context.CancelFunc
}

func start(t *testing.T, dsn harness.Secret) *process {
	t.Helper()
	root, err := os.MkdirTemp("", "ts")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	runner, dir := filepath.Join(root, "runner"), filepath.Join(root, "s")
	compile := exec.Command("go", "build", "-o", runner, "./runner")
	compile.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("build the runner: %v: %s", err, out)
	}
	p := &process{T: t, published: make(chan string, 100), ended: make(chan error, 1)}
	broker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.published <- r.Header.Get("Ce-Type")
		w.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(broker.Close)
	values := map[string]string{
		"PORT": "0", "METRICS_PORT": "0", "DATABASE_URL": dsn.Reveal(), "BROKER_URL": broker.URL,
		"SANDBOX_DRIVER": "local", "SANDBOX_LOCAL_DIR": dir, "SANDBOX_LOCAL_RUNNER": runner,
	}
	t.Cleanup(func() { removeSandboxes(t, dir, runner) })
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	t.Cleanup(stop)
	ready := make(chan function.Addresses, 1)
	go func() {
		p.ended <- function.Run(ctx, "sandbox-exec", env(values), t.Output(), build, func(a function.Addresses) { ready <- a })
	}()
	select {
	case a := <-ready:
		_, port, _ := strings.Cut(a.HTTP, "]:")
		p.url = "http://127.0.0.1:" + port
	case err := <-p.ended:
		t.Fatal(err)
	}
	return p
}

func removeSandboxes(t *testing.T, dir, runner string) {
	d, err := local.New(local.Options{Dir: dir, Runner: runner})
	if err != nil {
		t.Error(err)
		return
	}
	found, err := d.List(context.Background())
	if err != nil {
		t.Error(err)
	}
	for _, f := range found {
		if err := d.Terminate(context.Background(), sandbox.Sandbox{Name: f.Name, UID: f.UID}); err != nil {
			t.Error(err)
		}
	}
}

// ask writes an execution and returns the request that announces it.
func (p *process) ask(command string) *http.Request {
	p.Helper()
	ctx := context.Background()
	spec := harness.DefaultSandbox()
	for _, statement := range []struct {
		sql  string
		args []any
	}{
		{sql: `INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('coder', 1, 'READY', 'd')`},
		{sql: `INSERT INTO sessions (session_id, agent_name, channel, account, chat, state) VALUES ('ses_a', 'coder', 'WEBHOOK', 'hook', 'c', 'AWAITING_EXECUTION')`},
		{
			sql: `INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce, due_at)
			VALUES ('exe_a', 'ses_a', 'coder', 'API', 'a', $1, $2, $3, 1, 'PENDING', 'nonce', now())`,
			args: []any{command, spec, spec.Digest()},
		},
	} {
		if _, err := p.store.Pool().Exec(ctx, statement.sql, statement.args...); err != nil {
			p.Fatal(err)
		}
	}
	return p.event()
}

func (p *process) event() *http.Request {
	body, err := json.Marshal(map[string]string{"session": "ses_a", "execution": "exe_a"})
	if err != nil {
		p.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, p.url+"/events", bytes.NewReader(body))
	r.RequestURI = ""
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Ce-Specversion": "1.0", "Ce-Id": "execution.requested:exe_a", "Ce-Source": "tuluat-harness",
		"Ce-Type": "ai.tuluat.execution.requested.v1", "Ce-Tuluatsession": "ses_a", "Ce-Tuluatagent": "coder",
	} {
		r.Header.Set(name, value)
	}
	return r
}

func (p *process) post(r *http.Request) int {
	p.Helper()
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		p.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || len(body) > 0 {
		p.Errorf("the answer has a body %q, %v", body, err)
	}
	return response.StatusCode
}

func (p *process) end() {
	p.Helper()
	p.stop()
	select {
	case err := <-p.ended:
		if err != nil {
			p.Errorf("the process ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		p.Fatal("the process does not end")
	}
}

func (p *process) execution() string {
	p.Helper()
	var state string
	if err := p.store.Pool().QueryRow(context.Background(), `SELECT concat_ws(' ', state, exit_code, lease_owner, due_at <= now()) FROM executions`).Scan(&state); err != nil {
		p.Fatal(err)
	}
	return state
}

func TestProcess(t *testing.T) {
	dsn := postgrestest.DSN(t)
	p := start(t, dsn)
	p.store = open(t, dsn)
	if status := p.post(p.ask("echo 42")); status != http.StatusAccepted {
		t.Errorf("answered %d", status)
	}
	if got := p.execution(); got != "COMPLETED 0" {
		t.Errorf("the execution is %q", got)
	}
	if got := <-p.published; got != "ai.tuluat.execution.finished.v1" {
		t.Errorf("published %s", got)
	}
	if status := p.post(p.event()); status != http.StatusAccepted {
		t.Errorf("a repeat is answered %d", status)
	}
	p.end()
}

func TestTheProcessEndsWhileACommandRuns(t *testing.T) {
	dsn := postgrestest.DSN(t)
	p := start(t, dsn)
	p.store = open(t, dsn)
	answered := make(chan int, 1)
	request := p.ask("echo begun; sleep 60")
	go func() { answered <- p.post(request) }()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var begun bool
		if err := p.store.Pool().QueryRow(t.Context(), `SELECT EXISTS (SELECT 1 FROM execution_output)`).Scan(&begun); err != nil {
			t.Fatal(err)
		}
		if begun {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the command prints nothing")
		}
	}
	p.end()
	if status := <-answered; status != http.StatusAccepted {
		t.Errorf("answered %d", status)
	}
	if got := p.execution(); got != "RUNNING t" {
		t.Errorf("the execution is %q, want it free and due", got)
	}
	if got := <-p.published; got != "ai.tuluat.execution.requested.v1" {
		t.Errorf("published %s", got)
	}
}

func TestReadyWithoutTheDatabase(t *testing.T) {
	p := start(t, "postgres://nobody:hidden@127.0.0.1:1/none")
	response, err := http.Get(p.url + "/readyz")
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatal(fmt.Sprint(response), err)
	}
	response.Body.Close()
	if status := p.post(p.event()); status != http.StatusServiceUnavailable {
		t.Errorf("answered %d", status)
	}
	p.end()
}

func open(t *testing.T, dsn harness.Secret) *postgres.Store {
	t.Helper()
	store, err := postgres.Open(dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}
