package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/html"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/functions/management-api/internal/api"
	"tuluat.ai/harness/functions/management-api/internal/console"
	"tuluat.ai/harness/functions/management-api/internal/figures"
	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function/functiontest"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/resource"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// token is that of a role.
func token(role string) string { return role + "-0123456789abcdefghijkl" }

const key = "a-key-of-the-console-0123456789"

// world is the console over the API over a real database and a folder of YAML.
type world struct {
	*functiontest.Database
	t      *testing.T
	folder string
	server *httptest.Server
	logs   *functiontest.Logs
	store  *postgres.Store

	mu   sync.Mutex
	told []event.Event
}

const agentYAML = `# why this agent is there
apiVersion: tuluat.ai/v1alpha1
kind: AiAgent
metadata:
  name: %s
spec:
  description: "runs things" # quoted, as its author likes it
  guardrails: {enabled: false}
  harness:
    # off for a while
    enabled: true
    type: CODE
    sandbox: {cpu: 500m}
`

const workflowYAML = `apiVersion: tuluat.ai/v1alpha1
kind: AiWorkflow
metadata:
  name: release
spec:
  inputs:
    - {name: service, type: string, required: true}
  nodes:
    - {id: ask, type: AGENT, agent: coder, prompt: "about ${input.service}"}
    - {id: end, type: END}
  edges:
    - {from: ask, to: end}
`

func newWorld(t *testing.T, change ...func(*console.Options)) *world {
	t.Helper()
	w := &world{Database: functiontest.NewDatabase(t), t: t, folder: t.TempDir(), logs: &functiontest.Logs{}}
	w.file("coder.yaml", fmt.Sprintf(agentYAML, "coder"))
	w.file("flows.yaml", workflowYAML)
	if _, _, err := w.Store.PutAgents(t.Context(), []postgres.AgentText{{Name: "coder", Agent: &harness.Agent{Name: "coder", Harness: harness.HarnessSpec{
		Enabled: true, Type: harness.HarnessCode, Sandbox: harness.DefaultSandbox(), MaxSandboxes: 1,
	}}}}, nil); err != nil {
		t.Fatal(err)
	}
	dsn, err := url.Parse(w.DSN.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	query := dsn.Query()
	query.Set("role", "tuluat_management_api") // with what the function may, and no more
	dsn.RawQuery = query.Encode()
	if w.store, err = postgres.Open(harness.Secret(dsn.String()), postgres.Options{MaxConns: 4}); err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for _, role := range access.Roles() {
		fmt.Fprintln(&lines, token(role), role, role)
	}
	static, err := access.NewStatic(harness.Secret(lines.String()))
	if err != nil {
		t.Fatal(err)
	}
	drain, log := make(chan struct{}), slog.New(slog.NewJSONHandler(w.logs, nil))
	served := api.New(api.Options{
		Store: w.store, Resources: resource.Folder{Path: w.folder, Limits: v1alpha1.DefaultLimits()}, Access: static,
		Limits: access.Limits{PerSecond: 1e6, Burst: 1e6}, Publish: w.publish, Log: log, Now: time.Now, Drain: drain, Version: "test",
		Metrics: figures.New(w.store.Figures, log, time.Now).Handler(),
	})
	o := console.Options{API: served, Keys: []harness.Secret{key}, Log: log, Now: time.Now, Drain: drain}
	for _, c := range change {
		c(&o)
	}
	pages, err := console.New(o)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", console.Front(served))
	mux.Handle(console.Prefix, pages)
	w.server = httptest.NewServer(mux)
	t.Cleanup(func() {
		close(drain)
		w.server.Close()
		w.store.Close()
	})
	return w
}

func (w *world) file(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.folder, name), []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) publish(_ context.Context, events ...event.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, events...)
}

// browser is somebody's: it keeps cookies and shows where redirects lead.
type browser struct {
	*world
	client *http.Client
}

func (w *world) browser() *browser {
	w.t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	transport := &http.Transport{}
	w.t.Cleanup(transport.CloseIdleConnections)
	return &browser{w, &http.Client{Jar: jar, Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// as is a browser that is signed in with the token of a role.
func (w *world) as(role string) *browser {
	w.t.Helper()
	b := w.browser()
	if a := b.post("/console/sign-in", url.Values{"token": {token(role)}}); a.status != http.StatusSeeOther {
		w.t.Fatalf("%s signs in: %d %s", role, a.status, a.body)
	}
	return b
}

// answer is a whole response.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) page(t testing.TB) *html.Node {
	t.Helper()
	root, err := html.Parse(strings.NewReader(a.body))
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func (b *browser) do(method, path string, form url.Values, header map[string]string) answer {
	b.t.Helper()
	q, err := http.NewRequestWithContext(b.t.Context(), method, b.server.URL+path, strings.NewReader(form.Encode()))
	if err != nil {
		b.t.Fatal(err)
	}
	q.Header.Set("Sec-Fetch-Site", "same-origin")
	if method == http.MethodPost {
		q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, value := range header {
		if q.Header.Set(name, value); value == "" {
			q.Header.Del(name)
		}
	}
	response, err := b.client.Do(q)
	if err != nil {
		b.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, string(body)}
}

func (b *browser) get(path string) answer {
	b.t.Helper()
	return b.do(http.MethodGet, path, nil, nil)
}

func (b *browser) post(path string, form url.Values) answer {
	b.t.Helper()
	return b.do(http.MethodPost, path, form, nil)
}

// see is get of a page that must be there.
func (b *browser) see(path string) answer {
	b.t.Helper()
	a := b.get(path)
	if a.status != http.StatusOK || !strings.Contains(a.body, "</html>") {
		b.t.Fatalf("%s: %d %s, %.2000s", path, a.status, alert(a.page(b.t)), b.logs.String())
	}
	return a
}

// alert is what a page says is wrong.
func alert(n *html.Node) string {
	var all []string
	for d := range n.Descendants() {
		if d.Type == html.ElementNode && attr(d, "role") == "alert" {
			all = append(all, text(d))
		}
	}
	return strings.Join(all, " ")
}

// done is post that must lead on to a page which says so.
func (b *browser) done(path string, form url.Values, said string) string {
	b.t.Helper()
	a := b.post(path, form)
	to := a.header.Get("Location")
	if a.status != http.StatusSeeOther || !strings.Contains(to, "said="+said) {
		b.t.Fatalf("%s of %v: %d to %q, want said=%s: %s", path, form, a.status, to, said, alert(a.page(b.t)))
	}
	return to
}

// say starts a session by the API, with the admin's token.
func (w *world) say(agent, words string) harness.SessionID {
	w.t.Helper()
	b := w.as(access.RoleAdmin)
	to := b.done("/console/sessions", url.Values{"agent": {agent}, "text": {words}}, "sent")
	return harness.SessionID(strings.Split(strings.TrimPrefix(to, "/console/sessions/"), "?")[0])
}

var lease = postgres.Lease{Owner: "test", For: time.Minute}

// command lets a session's turn run a command, which runs in a sandbox that is READY.
func (w *world) command(session harness.SessionID, command string) (harness.ToolCallID, *postgres.ExecutionClaim) {
	w.t.Helper()
	ctx := context.Background()
	claim, err := w.Store.ClaimSession(ctx, session, lease)
	if err != nil {
		w.t.Fatal(err)
	}
	call, id := harness.NewToolCallID(time.Now()), harness.NewExecutionID(time.Now())
	arguments, _ := json.Marshal(map[string]string{"command": command})
	if _, err = w.Store.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionAwaitingExecution, Start: true, Step: &postgres.NewStep{
		ID: harness.NewStepID(time.Now()), Calls: []postgres.NewCall{{
			CallOutcome: postgres.CallOutcome{ID: call, State: harness.ToolCallRunning}, ProviderID: "p", Name: harness.ToolExecuteShell, Arguments: string(arguments),
			Execution: &postgres.NewExecution{ID: id, Command: command, Spec: harness.DefaultSandbox(), MaxSandboxes: 9, Nonce: "n"},
		}},
	}}); err != nil {
		w.t.Fatal(err)
	}
	e, err := w.Store.ClaimExecution(ctx, id, lease)
	if err != nil {
		w.t.Fatal(err)
	}
	place, err := w.Store.AcquireSandbox(ctx, e)
	if err != nil || place.Sandbox == nil {
		w.t.Fatal(place, err)
	}
	if place.Kind != postgres.PlaceRun {
		if began, err := w.Store.BeginExecution(ctx, e, place.Sandbox.ID, "uid-"+place.Sandbox.Name); err != nil || !began {
			w.t.Fatal(began, err)
		}
	}
	e.Sandbox = place.Sandbox
	return call, e
}

// finish ends a command, and its turn with a reply.
func (w *world) finish(session harness.SessionID, call harness.ToolCallID, e *postgres.ExecutionClaim, output, reply string) {
	w.t.Helper()
	ctx, zero := context.Background(), 0
	if _, err := w.Store.FinishExecution(ctx, e, postgres.ExecutionOutcome{
		State: harness.ExecutionCompleted, ExitCode: &zero, StdoutBytes: int64(len(output)), Output: []postgres.OutputPiece{{Stream: "stdout", Data: []byte(output)}},
	}); err != nil {
		w.t.Fatal(err)
	}
	w.Exec(`UPDATE sessions SET due_at = now() WHERE session_id = $1`, session)
	claim, err := w.Store.ClaimSession(ctx, session, lease)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.Store.CommitStep(ctx, postgres.StepCommit{
		Claim: claim, State: harness.SessionIdle, Reply: []string{reply}, Results: []postgres.CallOutcome{{ID: call, State: harness.ToolCallDone, Result: harness.CleanText(output)}},
	}); err != nil {
		w.t.Fatal(err)
	}
}

// asked puts a pending approval of command into a session.
func (w *world) asked(session harness.SessionID, command string) harness.ApprovalID {
	w.t.Helper()
	spec := harness.DefaultSandbox()
	arguments, _ := json.Marshal(map[string]string{"command": command})
	subject := harness.ApprovalSubject{Agent: "coder", Tool: harness.ToolExecuteShell, Arguments: arguments, Sandbox: &spec}
	input, err := json.Marshal(subject)
	if err != nil {
		w.t.Fatal(err)
	}
	id := harness.NewApprovalID(time.Now())
	w.Exec(`INSERT INTO approvals (approval_id, session_id, agent_name, title, input, digest, state)
		SELECT $1, session_id, agent_name, $3, $4, $5, 'PENDING' FROM sessions WHERE session_id = $2`, id, session, "run "+command, input, subject.Digest())
	return id
}

// deadLetter puts an open dead letter of a session.
func (w *world) deadLetter(session harness.SessionID, cause string) string {
	w.t.Helper()
	e := event.Event{ID: "session.due:" + harness.NewID("x", time.Now()), Type: event.SessionDue, Session: session, Payload: event.Payload{Session: session}}
	if _, err := w.Store.PutDeadLetter(context.Background(), postgres.DeadLetter{Event: e, Destination: "http://agent-step", StatusCode: 503, Cause: cause}); err != nil {
		w.t.Fatal(err)
	}
	return w.Query(`SELECT max(dead_letter_id)::text FROM dead_letters`)
}

// text is all that a person reads of n.
func text(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data)
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// find returns the elements of a page with this name that match says.
func find(n *html.Node, name string, match func(*html.Node) bool) []*html.Node {
	var found []*html.Node
	for d := range n.Descendants() {
		if d.Type == html.ElementNode && d.Data == name && (match == nil || match(d)) {
			found = append(found, d)
		}
	}
	return found
}

func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// fields are what a form of the page sends that begins with action.
func fields(t testing.TB, page *html.Node, action string) url.Values {
	t.Helper()
	forms := find(page, "form", func(f *html.Node) bool { return attr(f, "action") == action && attr(f, "method") == "post" })
	if len(forms) == 0 {
		t.Fatalf("the page has no form for %s: %s", action, text(page))
	}
	form := url.Values{}
	for _, i := range find(forms[0], "input", func(i *html.Node) bool { return attr(i, "type") == "hidden" }) {
		form.Add(attr(i, "name"), attr(i, "value"))
	}
	return form
}

func (w *world) log() *slog.Logger { return slog.New(slog.NewJSONHandler(w.logs, nil)) }

// serveOnce asks pages for path with a cookie.
func (w *world) serveOnce(pages http.Handler, path, cookie string) int {
	w.t.Helper()
	q := httptest.NewRequestWithContext(w.t.Context(), http.MethodGet, path, nil)
	q.Header.Set("Cookie", cookie)
	recorder := httptest.NewRecorder()
	pages.ServeHTTP(recorder, q)
	return recorder.Code
}
