//go:build local

package main

import (
	"context"
	"net/http"
	"slices"
	"testing"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function/functiontest"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/local"
)

// process is the function as a whole, in its world, with real sandboxes.
type process struct {
	*functiontest.World
	*functiontest.Process
}

func start(t *testing.T, env map[string]string) *process {
	t.Helper()
	w := functiontest.NewWorld(t)
	dir, runner := functiontest.Sandboxes(t, "runner")
	t.Cleanup(func() { removeSandboxes(t, dir, runner) })
	return &process{w, w.Start("sandbox-exec", build, map[string]string{"SANDBOX_DRIVER": "local", "SANDBOX_LOCAL_DIR": dir, "SANDBOX_LOCAL_RUNNER": runner}, env)}
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

// requested announces the execution that ask writes.
var requested = event.Event{
	ID: "execution.requested:exe_a", Type: event.ExecutionRequested, Session: "ses_a", Agent: "coder", Payload: event.Payload{Session: "ses_a", Execution: "exe_a"},
}

// ask writes an execution.
func (p *process) ask(command string) {
	p.T.Helper()
	spec := harness.DefaultSandbox()
	p.Agents("coder")
	p.Exec(`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state) VALUES ('ses_a', 'coder', 'WEBHOOK', 'hook', 'c', 'AWAITING_EXECUTION')`)
	p.Exec(`INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce, due_at)
		VALUES ('exe_a', 'ses_a', 'coder', 'TOOL_CALL', 'a', $1, $2, $3, 1, 'PENDING', 'nonce', now())`, command, spec, spec.Digest())
}

// announce delivers requested and returns the status; a body is an error.
func (p *process) announce() int {
	p.T.Helper()
	a := p.Deliver(requested)
	if a.Body != "" {
		p.T.Errorf("the answer has a body %q", a.Body)
	}
	return a.Status
}

func (p *process) execution() string {
	p.T.Helper()
	return p.Query(`SELECT concat_ws(' ', state, exit_code, lease_owner, due_at <= now()) FROM executions`)
}

// published returns the types of the events since the last call, sorted: that a
// sandbox came up is said beside its command.
func (p *process) published() []string {
	p.T.Helper()
	var types []string
	for _, heard := range p.Broker.Take() {
		types = append(types, heard.Get("Ce-Type"))
	}
	slices.Sort(types)
	return types
}

func TestProcess(t *testing.T) {
	p := start(t, nil)
	p.ask("echo 42")
	if status := p.announce(); status != http.StatusAccepted {
		t.Errorf("answered %d", status)
	}
	if got := p.execution(); got != "COMPLETED 0" {
		t.Errorf("the execution is %q", got)
	}
	if got := p.published(); !slices.Equal(got, []string{"ai.tuluat.execution.finished.v1", "ai.tuluat.sandbox.changed.v1"}) {
		t.Errorf("published %s", got)
	}
	if status := p.announce(); status != http.StatusAccepted {
		t.Errorf("a repeat is answered %d", status)
	}
	p.Stop()
}

func TestTheProcessEndsWhileACommandRuns(t *testing.T) {
	p := start(t, nil)
	p.ask("echo begun; sleep 60")
	answered := make(chan int, 1)
	go func() { answered <- p.announce() }()
	p.Await("true", `SELECT EXISTS (SELECT 1 FROM execution_output)::text`)
	p.Stop()
	if status := <-answered; status != http.StatusAccepted {
		t.Errorf("answered %d", status)
	}
	if got := p.execution(); got != "RUNNING t" {
		t.Errorf("the execution is %q, want it free and due", got)
	}
	if got := p.published(); !slices.Equal(got, []string{"ai.tuluat.execution.requested.v1", "ai.tuluat.sandbox.changed.v1"}) {
		t.Errorf("published %s", got)
	}
}

func TestReadyWithoutTheDatabase(t *testing.T) {
	p := start(t, map[string]string{"DATABASE_URL": "postgres://nobody:hidden@127.0.0.1:1/none"})
	if a := p.Send(http.MethodGet, p.URL+"/readyz", nil, ""); a.Status != http.StatusOK {
		t.Fatalf("readyz answered %d", a.Status)
	}
	if status := p.announce(); status != http.StatusServiceUnavailable {
		t.Errorf("answered %d", status)
	}
	p.Stop()
}
