package temporal_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

// world is a database, a Temporal server with workflows that wait for decisions,
// and the bridge as a process of its own.
type world struct {
	*database
	server  *server
	wire    *wire
	client  client.Client
	program string
	address string // of the bridge
	bridge  *exec.Cmd
	asked   int
}

func newWorld(t *testing.T) *world {
	w := &world{database: newDatabase(t), server: newServer(t), program: build(t)}
	w.server.start()
	w.wire = newWire(t, w.server.address)
	w.address = fmt.Sprintf("127.0.0.1:%d", freePorts(t, 1)[0])
	w.connect()
	w.exec(`INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('a', 1, 'READY', 'd')`)
	t.Cleanup(func() {
		if w.bridge != nil {
			w.kill()
		}
	})
	return w
}

// connect makes a client and a worker that waits.
func (w *world) connect() {
	w.t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		w.client, err = client.Dial(client.Options{HostPort: w.server.address, Namespace: namespace, Logger: quiet{}})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			w.t.Fatal("Temporal does not become ready: ", err)
		}
	}
	w.t.Cleanup(w.client.Close)
	works := worker.New(w.client, "decisions", worker.Options{})
	works.RegisterWorkflowWithOptions(await, workflow.RegisterOptions{Name: "await"})
	if err := works.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(works.Stop)
}

// await is a workflow that collects decisions until it is told to stop, or to go
// on in a new run.
func await(ctx workflow.Context, received []json.RawMessage) ([]json.RawMessage, error) {
	if err := workflow.SetQueryHandler(ctx, "received", func() ([]json.RawMessage, error) { return received, nil }); err != nil {
		return nil, err
	}
	var order string
	selector := workflow.NewSelector(ctx)
	selector.AddReceive(workflow.GetSignalChannel(ctx, "ApprovalSignal"), func(c workflow.ReceiveChannel, _ bool) {
		var decision json.RawMessage
		c.Receive(ctx, &decision)
		received = append(received, decision)
	})
	selector.AddReceive(workflow.GetSignalChannel(ctx, "order"), func(c workflow.ReceiveChannel, _ bool) { c.Receive(ctx, &order) })
	for order == "" {
		selector.Select(ctx)
	}
	if order == "again" {
		return nil, workflow.NewContinueAsNewError(ctx, "await", received)
	}
	return received, nil
}

// started starts workflow id and a session that names it, and returns the run.
func (w *world) started(id string) string {
	w.t.Helper()
	run, err := w.client.ExecuteWorkflow(context.Background(), client.StartWorkflowOptions{ID: id, TaskQueue: "decisions"}, "await", []json.RawMessage{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.session(id)
	return run.GetRunID()
}

func (w *world) session(workflow string) {
	w.t.Helper()
	w.exec(`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state, temporal) VALUES ($1, 'a', 'API', 'a', $1, 'IDLE', jsonb_build_object('workflowId', $2::text))`, "ses_"+workflow, workflow)
}

// order tells workflow id to stop or to go on in a new run, and waits until it has.
func (w *world) order(id, what string) {
	w.t.Helper()
	before, err := w.client.DescribeWorkflowExecution(context.Background(), id, "")
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.client.SignalWorkflow(context.Background(), id, "", "order", what); err != nil {
		w.t.Fatal(err)
	}
	w.until("workflow "+id+" to "+what, func() bool {
		now, err := w.client.DescribeWorkflowExecution(context.Background(), id, "")
		if err != nil {
			return false
		}
		return now.WorkflowExecutionInfo.Execution.RunId != before.WorkflowExecutionInfo.Execution.RunId || now.WorkflowExecutionInfo.CloseTime != nil
	})
}

// decided ends a new question in the session of a workflow, as whoever ends one
// does.
func (w *world) decided(workflow string) string {
	w.t.Helper()
	w.asked++
	id := fmt.Sprintf("apr_%03d", w.asked)
	w.exec(`INSERT INTO approvals (approval_id, session_id, agent_name, node_id, title, digest, state) VALUES ($1, $2, 'a', 'ask', 't', 'sha256:1', 'PENDING')`, id, "ses_"+workflow)
	w.exec(`UPDATE approvals SET state = 'REJECTED', decided_by = 'ann', decided_via = 'WHATSAPP', reason = 'not today', decided_at = now() WHERE approval_id = $1
		RETURNING plan_signal(approval_id)`, id)
	return id
}

// received is what workflow id has got so far, as its own code sees it.
func (w *world) received(id string) []string {
	w.t.Helper()
	var all []json.RawMessage
	w.until("workflow "+id+" to say what it has got", func() bool { // its worker may not be back yet
		value, err := w.client.QueryWorkflow(context.Background(), id, "", "received")
		return err == nil && value.Get(&all) == nil
	})
	texts := make([]string, len(all))
	for i, raw := range all {
		texts[i] = string(raw)
	}
	return texts
}

// build makes the bridge as an image has it.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "temporal-bridge")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", program, ".")
	cmd.Dir, cmd.Env = "../../functions/temporal-bridge", append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// start starts the bridge and waits until it takes requests.
func (w *world) start() {
	w.t.Helper()
	_, port, _ := strings.Cut(w.address, ":")
	w.bridge = exec.Command(w.program)
	w.bridge.Env = []string{
		"DATABASE_URL=" + w.dsn, "TEMPORAL_ADDRESS=" + w.wire.address, "TEMPORAL_NAMESPACE=" + namespace,
		"BIND_ADDRESS=127.0.0.1", "PORT=" + port, "METRICS_PORT=0",
	}
	w.bridge.Stderr = &lines{t: w.t}
	if err := w.bridge.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.until("the bridge to be ready", func() bool {
		response, err := http.Get("http://" + w.address + "/readyz")
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
}

// kill is kill -9.
func (w *world) kill() {
	w.t.Helper()
	if err := w.bridge.Process.Kill(); err != nil {
		w.t.Error(err)
	}
	_ = w.bridge.Wait()
	w.bridge = nil
}

// deliver tells the bridge of the session of a workflow, and returns the status;
// 0: it gave no answer.
func (w *world) deliver(workflow string) int {
	w.t.Helper()
	request, err := http.NewRequest(http.MethodPost, "http://"+w.address+"/events", strings.NewReader(`{"session":"ses_`+workflow+`"}`))
	if err != nil {
		w.t.Fatal(err)
	}
	request.Header = http.Header{
		"Content-Type": {"application/json"}, "Ce-Specversion": {"1.0"}, "Ce-Id": {"e"}, "Ce-Source": {"test"}, "Ce-Type": {"ai.tuluat.approval.decided.v1"},
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode
}

// later makes every backoff and lease a thing of the past.
func (w *world) later() {
	w.t.Helper()
	w.exec(`UPDATE temporal_signals SET due_at = now(), lease_until = now() - interval '1 second' WHERE state = 'PENDING'`)
}

func (w *world) until(what string, done func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatal("waited a minute for ", what)
		}
	}
}

// lines writes a process's log to the test's.
type lines struct {
	t  *testing.T
	mu sync.Mutex
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.t.Output().Write(p)
}

// quiet is the log of Temporal's client.
type quiet struct{}

func (quiet) Debug(string, ...any)     {}
func (quiet) Info(string, ...any)      {}
func (quiet) Warn(string, ...any)      {}
func (quiet) Error(string, ...any)     {}
func (q quiet) With(...any) log.Logger { return q }
