package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/functions/management-api/internal/api"
	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/archive"
	"tuluat.ai/harness/shared/archive/archivetest"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function/functiontest"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/resource"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// token is that of a role; nobody's has no rights.
func token(role string) string { return role + "-0123456789abcdefghijkl" }

const nobody = "nobody"

// rights are those of static tokens, and none for nobody.
type rights struct{ *access.Static }

func (r rights) Allow(ctx context.Context, c access.Caller, want access.Right) (bool, error) {
	if c.Name == nobody {
		return false, nil
	}
	return r.Static.Allow(ctx, c, want)
}

// world is the API over a real database and a folder of YAML.
type world struct {
	*functiontest.Database
	folder  string
	client  *http.Client
	logs    *functiontest.Logs
	bucket  *archivetest.Bucket
	objects *archive.Store

	address string
	mu      sync.Mutex
	told    []event.Event
	stop    func()
}

const agentYAML = `# why this agent is there
apiVersion: tuluat.ai/v1alpha1
kind: AiAgent
metadata:
  name: %s
spec:
  description: "runs things" # quoted, as its author likes it
  harness:
    # off for a while
    enabled: true
    type: CODE
    sandbox: {cpu: 500m}
`

const workflowYAML = `apiVersion: tuluat.ai/v1alpha1
kind: AiWorkflow
metadata:
  name: %s
spec:
  inputs:
    - {name: service, type: string, required: true}
  nodes:
    - {id: ask, type: AGENT, agent: coder, prompt: "about ${input.service}"}
    - {id: end, type: END}
  edges:
    - {from: ask, to: end}
`

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		Database: functiontest.NewDatabase(t), folder: t.TempDir(), logs: &functiontest.Logs{},
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}},
	}
	t.Cleanup(w.client.CloseIdleConnections)
	w.objects, w.bucket = archivetest.New(t)
	for _, name := range []string{"coder", "spare", "switched"} {
		w.file(name+".yaml", fmt.Sprintf(agentYAML, name))
	}
	w.file("flows.yaml", fmt.Sprintf(workflowYAML, "release")+"---\n"+fmt.Sprintf(workflowYAML, "spare"))
	texts := []postgres.AgentText{{Name: "broken", Reason: "spec.harness.type is wrong"}, {Name: "halted", Reason: "the same"}}
	for _, name := range []harness.AgentName{"coder", "spare", "switched"} {
		texts = append(texts, postgres.AgentText{Name: name, Agent: &harness.Agent{Name: name, Harness: harness.HarnessSpec{
			Enabled: true, Type: harness.HarnessCode, Sandbox: harness.DefaultSandbox(), MaxSandboxes: 1,
		}}})
	}
	if _, _, err := w.Store.PutAgents(t.Context(), texts, nil); err != nil {
		t.Fatal(err)
	}
	w.start("127.0.0.1:0")
	return w
}

func (w *world) file(name, text string) {
	w.T.Helper()
	if err := os.WriteFile(filepath.Join(w.folder, name), []byte(text), 0o644); err != nil {
		w.T.Fatal(err)
	}
}

// files are those of the folder by name.
func (w *world) files() map[string]string {
	w.T.Helper()
	entries, err := os.ReadDir(w.folder)
	if err != nil {
		w.T.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") { // the lock
			continue
		}
		text, err := os.ReadFile(filepath.Join(w.folder, e.Name()))
		if err != nil {
			w.T.Fatal(err)
		}
		all[e.Name()] = string(text)
	}
	return all
}

// start serves on address as a process of its own does, with a store of its own.
func (w *world) start(address string, change ...func(*api.Options)) {
	w.T.Helper()
	var lines strings.Builder
	for _, role := range access.Roles() {
		fmt.Fprintln(&lines, token(role), role, role)
	}
	fmt.Fprintln(&lines, token(nobody), nobody, access.RoleViewer)
	static, err := access.NewStatic(harness.Secret(lines.String()))
	if err != nil {
		w.T.Fatal(err)
	}
	dsn, err := url.Parse(w.DSN.Reveal())
	if err != nil {
		w.T.Fatal(err)
	}
	query := dsn.Query()
	query.Set("role", "tuluat_management_api") // with what the function may, and no more
	dsn.RawQuery = query.Encode()
	store, err := postgres.Open(harness.Secret(dsn.String()), postgres.Options{MaxConns: 4})
	if err != nil {
		w.T.Fatal(err)
	}
	drain := make(chan struct{})
	o := api.Options{
		Store: store, Objects: w.objects, Resources: resource.Folder{Path: w.folder, Limits: v1alpha1.DefaultLimits()}, Access: rights{static},
		Limits: access.Limits{PerSecond: 1e6, Burst: 1e6}, Publish: w.publish, Log: slog.New(slog.NewJSONHandler(w.logs, nil)),
		Now: time.Now, Drain: drain, Version: "test",
	}
	for _, c := range change {
		c(&o)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		w.T.Fatal(err)
	}
	server := &http.Server{Handler: api.New(o), ReadHeaderTimeout: time.Second}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }()
	w.address = listener.Addr().String()
	w.stop = sync.OnceFunc(func() {
		close(drain)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			w.T.Errorf("the drain: %v", err)
			_ = server.Close()
		}
		<-served
		store.Close()
	})
	w.T.Cleanup(w.stop)
}

func (w *world) publish(_ context.Context, events ...event.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, events...)
}

// published returns the types of what was published since the last look.
func (w *world) published() []event.Type {
	w.mu.Lock()
	defer w.mu.Unlock()
	var types []event.Type
	for _, e := range w.told {
		types = append(types, e.Type)
	}
	w.told = nil
	return types
}

// answer is a whole response.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.body) }

// request is what to ask; the role admin's token unless it says otherwise.
type request struct {
	method, path, body string
	header             map[string]string
	role               string
}

func (w *world) do(r request) answer {
	w.T.Helper()
	q, err := http.NewRequestWithContext(w.T.Context(), r.method, "http://"+w.address+r.path, strings.NewReader(r.body))
	if err != nil {
		w.T.Fatal(err)
	}
	if r.role == "" {
		r.role = access.RoleAdmin
	}
	q.Header.Set("Authorization", "Bearer "+token(r.role))
	if r.body != "" {
		q.Header.Set("Content-Type", "application/json")
	}
	for name, value := range r.header {
		if q.Header.Set(name, value); value == "" {
			q.Header.Del(name)
		}
	}
	response, err := w.client.Do(q)
	if err != nil {
		w.T.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		w.T.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, string(body)}
}

func (w *world) get(path string) answer {
	w.T.Helper()
	return w.do(request{method: http.MethodGet, path: "/api/v1" + path})
}

func (w *world) post(path, body string) answer {
	w.T.Helper()
	return w.do(request{method: http.MethodPost, path: "/api/v1" + path, body: body})
}

// decode reads a body; another status than want is fatal.
func decode[T any](t testing.TB, a answer, want int) T {
	t.Helper()
	var v T
	if a.status != want {
		t.Fatalf("got %s, want %d", a, want)
	}
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Fatalf("%s: %v", a, err)
	}
	return v
}

// problem is what was refused; it must be whole.
func problem(t testing.TB, a answer, want int) view.Problem {
	t.Helper()
	p := decode[view.Problem](t, a, want)
	if a.header.Get("Content-Type") != "application/problem+json" || p.Status != want || p.Title == "" || p.Detail == "" || p.Type != "about:blank" ||
		p.RequestID == "" || p.RequestID != a.header.Get("X-Request-Id") {
		t.Errorf("not a whole problem: %v %s", a.header, a)
	}
	return p
}

type page[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next"`
}

type accepted struct {
	Session   harness.SessionID `json:"session"`
	Message   harness.MessageID `json:"message"`
	Duplicate bool              `json:"duplicate"`
}

// say starts a session by the API.
func (w *world) say(agent, text string) accepted {
	w.T.Helper()
	return decode[accepted](w.T, w.post("/sessions", fmt.Sprintf(`{"agent":%q,"text":%q}`, agent, text)), http.StatusAccepted)
}

var lease = postgres.Lease{Owner: "test", For: time.Minute}

// command lets a session's turn run a command and returns its call and its
// execution, which runs in a sandbox that is READY.
func (w *world) command(session harness.SessionID, text string) (harness.ToolCallID, *postgres.ExecutionClaim) {
	w.T.Helper()
	ctx := context.Background()
	claim, err := w.Store.ClaimSession(ctx, session, lease)
	if err != nil {
		w.T.Fatal(err)
	}
	call, id := harness.NewToolCallID(time.Now()), harness.NewExecutionID(time.Now())
	arguments, _ := json.Marshal(map[string]string{"command": text})
	if _, err = w.Store.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionAwaitingExecution, Start: true, Step: &postgres.NewStep{
		ID: harness.NewStepID(time.Now()), Calls: []postgres.NewCall{{
			CallOutcome: postgres.CallOutcome{ID: call, State: harness.ToolCallRunning}, ProviderID: "p", Name: harness.ToolExecuteShell, Arguments: string(arguments),
			Execution: &postgres.NewExecution{ID: id, Command: text, Spec: harness.DefaultSandbox(), MaxSandboxes: 9, Nonce: "n"},
		}},
	}}); err != nil {
		w.T.Fatal(err)
	}
	e, err := w.Store.ClaimExecution(ctx, id, lease)
	if err != nil {
		w.T.Fatal(err)
	}
	place, err := w.Store.AcquireSandbox(ctx, e)
	if err != nil || place.Sandbox == nil {
		w.T.Fatal(place, err)
	}
	if place.Kind != postgres.PlaceRun { // in a sandbox that is READY it has begun
		if began, err := w.Store.BeginExecution(ctx, e, place.Sandbox.ID, "uid-"+place.Sandbox.Name); err != nil || !began {
			w.T.Fatal(began, err)
		}
	}
	e.Sandbox = place.Sandbox
	return call, e
}

// finish ends a command, and its turn with a reply.
func (w *world) finish(session harness.SessionID, call harness.ToolCallID, e *postgres.ExecutionClaim, output, reply string) {
	w.T.Helper()
	ctx := context.Background()
	zero := 0
	if _, err := w.Store.FinishExecution(ctx, e, postgres.ExecutionOutcome{
		State: harness.ExecutionCompleted, ExitCode: &zero, StdoutBytes: int64(len(output)), Output: []postgres.OutputPiece{{Stream: "stdout", Data: []byte(output)}},
	}); err != nil {
		w.T.Fatal(err)
	}
	w.Exec(`UPDATE sessions SET due_at = now() WHERE session_id = $1`, session)
	claim, err := w.Store.ClaimSession(ctx, session, lease)
	if err != nil {
		w.T.Fatal(err)
	}
	if _, err := w.Store.CommitStep(ctx, postgres.StepCommit{
		Claim: claim, State: harness.SessionIdle, Reply: []string{reply}, Results: []postgres.CallOutcome{{ID: call, State: harness.ToolCallDone, Result: output}},
	}); err != nil {
		w.T.Fatal(err)
	}
}

// asked puts a pending approval into a session.
func (w *world) asked(session harness.SessionID) harness.ApprovalID {
	w.T.Helper()
	id := harness.NewApprovalID(time.Now())
	w.Exec(`INSERT INTO approvals (approval_id, session_id, agent_name, title, input, digest, state)
		SELECT $1, session_id, agent_name, 'run rm -r build', '{"command": "rm -r build"}', 'd1', 'PENDING' FROM sessions WHERE session_id = $2`, id, session)
	return id
}

// letter puts an open dead letter of a session.
func (w *world) letter(session harness.SessionID) string {
	w.T.Helper()
	e := event.Event{ID: "session.due:" + harness.NewID("x", time.Now()), Type: event.SessionDue, Session: session, Payload: event.Payload{Session: session}}
	if _, err := w.Store.PutDeadLetter(context.Background(), postgres.DeadLetter{Event: e, Destination: "http://agent-step", StatusCode: 503, Cause: "busy"}); err != nil {
		w.T.Fatal(err)
	}
	return w.Query(`SELECT max(dead_letter_id)::text FROM dead_letters`)
}
