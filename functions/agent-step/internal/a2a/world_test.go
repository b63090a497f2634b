package a2a_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/a2aproject/a2a-go/a2a"
	"github.com/a2aproject/a2a-go/a2asrv"
	"github.com/a2aproject/a2a-go/a2asrv/eventqueue"

	"tuluat.ai/harness/functions/agent-step/internal/a2a"
	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
	"tuluat.ai/harness/shared/secret"
)

const token = "token-for-the-peer-1234"

// headers is where the token is kept.
var headers = harness.SecretRef{Name: "peer", Key: "headers"}

// world is an agent with peers, in a database of its own, and a model that says what
// the test says.
type world struct {
	t       *testing.T
	store   *postgres.Store
	agent   harness.Agent
	peers   *a2a.Peers
	step    *step.Stepper
	session harness.SessionID
	log     *strings.Builder

	mu      sync.Mutex
	answers []model.Response
	asked   []model.Request
}

func newWorld(t *testing.T, peers ...harness.Peer) *world {
	t.Helper()
	w := &world{t: t, store: postgrestest.New(t), log: &strings.Builder{}}
	w.agent = harness.Agent{
		Name: "coder", Budget: harness.DefaultBudget(), Model: harness.ModelSpec{MaxTokens: 1000}, Peers: peers,
		Harness: harness.HarnessSpec{Enabled: true, Type: harness.HarnessChannel, Sandbox: harness.DefaultSandbox()},
	}
	w.exec(`INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('coder', 1, 'READY', 'd')`)
	w.exec(`INSERT INTO agent_revisions (agent_name, revision, spec) VALUES ('coder', 1, $1)`, w.agent)
	w.exec(`INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all) VALUES ('WEBHOOK', 'hook', 'coder', '{}', true)`)
	w.build(a2a.Options{AllowPrivate: true, CardTime: 5 * time.Second, LookAfter: 20 * time.Millisecond})
	return w
}

func (w *world) build(o a2a.Options) {
	o.Store, o.Log = w.store, slog.New(slog.NewTextHandler(w.log, nil))
	o.Secrets = secret.Environment(func(name string) string {
		return map[string]string{"PEER_HEADERS": "Authorization: Bearer " + token, "PEER_BROKEN": "no header"}[name]
	})
	w.peers = a2a.New(o)
	w.t.Cleanup(w.peers.Close)
	w.step = step.New(step.Options{
		Store: w.store, Model: w, Log: slog.New(slog.DiscardHandler), ContextTokens: 100_000, Publish: func(context.Context, ...event.Event) {},
		Lease: postgres.Lease{Owner: "test", For: time.Minute}, Tools: []step.Tools{w.peers},
	})
}

// change makes the agent what changed says, as a new revision.
func (w *world) change(changed func(*harness.Agent)) {
	w.t.Helper()
	changed(&w.agent)
	w.exec(`INSERT INTO agent_revisions (agent_name, revision, spec) SELECT 'coder', max(revision) + 1, $1 FROM agent_revisions`, w.agent)
	w.exec(`UPDATE agents SET revision = revision + 1`)
}

func (w *world) Complete(_ context.Context, r model.Request) (model.Response, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, r)
	if len(w.answers) == 0 {
		return model.Response{Text: "no more", Stop: model.StopEnd}, nil
	}
	next := w.answers[0]
	w.answers = w.answers[1:]
	return next, nil
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.store.Pool().Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) text(sql string, args ...any) string {
	w.t.Helper()
	var text string
	if err := w.store.Pool().QueryRow(w.t.Context(), sql, args...).Scan(&text); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return text
}

func (w *world) say(text string) {
	w.t.Helper()
	accepted, _, err := w.store.Accept(w.t.Context(), harness.ChannelWebhook, postgres.Inbound{Arrivals: []postgres.Arrival{{
		Account: "hook", ProviderID: harness.NewID("m", time.Now()), Chat: "chat", Message: harness.Message{ChannelUserID: "user", Text: text},
	}}}, "")
	if err != nil {
		w.t.Fatal(err)
	}
	w.session = accepted[0].Session
}

func (w *world) wake() {
	w.t.Helper()
	if err := w.step.Session(w.t.Context(), event.Event{Payload: event.Payload{Session: w.session}}); err != nil {
		w.t.Fatal(err)
	}
}

// until wakes the session until it is in state with nothing due.
func (w *world) until(state string) {
	w.t.Helper()
	for range 20 {
		w.wake()
		if now := w.text(`SELECT state || ' ' || COALESCE(due_at <= now(), false) FROM sessions WHERE session_id = $1`, w.session); now == state+" false" {
			return
		}
	}
	w.t.Fatalf("the session is %s, want %s", w.text(`SELECT state FROM sessions WHERE session_id = $1`, w.session), state)
}

// asks has the model call a tool once and then answer, in one turn, and returns what
// came of the call.
func (w *world) asks(name string, arguments map[string]string) string {
	w.t.Helper()
	w.uses(name, arguments)
	w.say("go")
	w.until("IDLE")
	return w.result()
}

func (w *world) uses(name string, arguments map[string]string) {
	w.t.Helper()
	text, err := json.Marshal(arguments)
	if err != nil {
		w.t.Fatal(err)
	}
	w.answers = append(w.answers,
		model.Response{Stop: model.StopToolCalls, Calls: []model.Call{{ID: harness.NewID("c", time.Now()), Name: name, Arguments: string(text)}}},
		model.Response{Stop: model.StopEnd, Text: "Done."})
}

// result is the newest call's.
func (w *world) result() string {
	w.t.Helper()
	return w.text(`SELECT state || ': ' || COALESCE(result, '') FROM tool_calls ORDER BY created_at DESC, seq DESC LIMIT 1`)
}

// offered are the tools of peers in the newest question, by name.
func (w *world) offered() map[string]model.Tool {
	tools := map[string]model.Tool{}
	for _, t := range w.asked[len(w.asked)-1].Tools {
		if t.Name != harness.ToolOfferChoices {
			tools[t.Name] = t
		}
	}
	return tools
}

func (w *world) same(what, got, want string) {
	w.t.Helper()
	if got != want {
		w.t.Fatalf("%s: got %q, want %q", what, got, want)
	}
}

func (w *world) says(what, got string, parts ...string) {
	w.t.Helper()
	for _, part := range parts {
		if !strings.Contains(got, part) {
			w.t.Errorf("%s: %.400q does not say %q", what, got, part)
		}
	}
	if strings.Contains(got, token) || strings.Contains(w.log.String(), token) {
		w.t.Errorf("%s: the token for the peer is in a result or a log", what)
	}
}

// far is a peer made with the official SDK's own handler. What its agent does is do.
type far struct {
	*httptest.Server
	card sdk.AgentCard
	do   func(f *far, r *a2asrv.RequestContext, say func(...sdk.Event))
	done chan struct{} // closed when the test is over

	mu       sync.Mutex
	methods  []string        // of the requests
	auths    map[string]bool // Authorization headers
	messages []*sdk.Message
}

// serve starts a peer at /agent.
func serve(t *testing.T, do func(f *far, r *a2asrv.RequestContext, say func(...sdk.Event))) *far {
	t.Helper()
	f := &far{do: do, auths: map[string]bool{}, done: make(chan struct{})}
	handler := a2asrv.NewJSONRPCHandler(a2asrv.NewHandler(f, a2asrv.WithLogger(slog.New(slog.DiscardHandler))))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /agent/.well-known/agent-card.json", func(rw http.ResponseWriter, r *http.Request) {
		f.note(r, "card")
		if err := json.NewEncoder(rw).Encode(f.card); err != nil {
			t.Error(err)
		}
	})
	mux.HandleFunc("POST /agent", func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var request struct{ Method string }
		if err != nil || json.Unmarshal(body, &request) != nil {
			t.Errorf("a request of %q, %v", body, err)
		}
		f.note(r, request.Method)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		rw.Header().Set("Content-Type", "application/json")
		handler.ServeHTTP(rw, r)
	})
	f.Server = httptest.NewServer(mux)
	f.card = sdk.AgentCard{
		Name: "far", Description: "Knows what is far.", URL: f.URL + "/agent", ProtocolVersion: "0.3.0", Version: "1", Skills: []sdk.AgentSkill{},
		SecuritySchemes: sdk.NamedSecuritySchemes{"bearer": sdk.HTTPAuthSecurityScheme{Scheme: "Bearer"}},
	}
	t.Cleanup(func() { close(f.done); f.CloseClientConnections(); f.Close() })
	return f
}

func (f *far) note(r *http.Request, method string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.methods = append(f.methods, method)
	f.auths[r.Header.Get("Authorization")] = true
}

// count is how often something was asked.
func (f *far) count(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(f.methods), func(m string) bool { return m != method }))
}

// peer is f for an agent that has a token for it.
func (f *far) peer() harness.Peer {
	return harness.Peer{Name: "far", URL: f.URL + "/agent", Headers: headers, TimeoutSeconds: 30}
}

// Execute implements a2asrv.AgentExecutor.
func (f *far) Execute(ctx context.Context, r *a2asrv.RequestContext, queue eventqueue.Queue) error {
	f.mu.Lock()
	f.messages = append(f.messages, r.Message)
	f.mu.Unlock()
	var failed error
	f.do(f, r, func(events ...sdk.Event) {
		for _, e := range events {
			if err := queue.Write(ctx, e); err != nil {
				failed = err
			}
		}
	})
	return failed
}

// Cancel implements a2asrv.AgentExecutor.
func (f *far) Cancel(ctx context.Context, r *a2asrv.RequestContext, queue eventqueue.Queue) error {
	return queue.Write(ctx, sdk.NewStatusUpdateEvent(r, sdk.TaskStateCanceled, nil))
}

// hang is what a peer does that does not end before the test.
func (f *far) hang(most time.Duration) {
	select {
	case <-time.After(most):
	case <-f.done:
	}
}

func textOf(m *sdk.Message) string { return m.Parts[0].(sdk.TextPart).Text }

// status is a last word on a task.
func status(r *a2asrv.RequestContext, state sdk.TaskState, words ...sdk.Part) *sdk.TaskStatusUpdateEvent {
	e := sdk.NewStatusUpdateEvent(r, state, nil)
	if len(words) > 0 {
		e.Status.Message = sdk.NewMessageForTask(sdk.MessageRoleAgent, r, words...)
	}
	e.Final = state.Terminal() || state == sdk.TaskStateInputRequired || state == sdk.TaskStateAuthRequired
	return e
}
