package mcp_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"tuluat.ai/harness/functions/agent-step/internal/mcp"
	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
	"tuluat.ai/harness/shared/secret"
)

const token = "token-of-the-server-1234"

// world is an agent with MCP servers, in a database of its own, and a model that
// says what the test says.
type world struct {
	t       *testing.T
	store   *postgres.Store
	agent   harness.Agent
	servers *mcp.Servers
	step    *step.Stepper
	session harness.SessionID
	log     *strings.Builder

	mu      sync.Mutex
	answers []model.Response
	asked   []model.Request
}

func newWorld(t *testing.T, servers ...harness.MCPServer) *world {
	t.Helper()
	w := &world{t: t, store: postgrestest.New(t), log: &strings.Builder{}}
	w.agent = harness.Agent{
		Name: "coder", Budget: harness.DefaultBudget(), Model: harness.ModelSpec{MaxTokens: 1000}, MCPServers: servers,
		Harness: harness.HarnessSpec{Enabled: true, Type: harness.HarnessChannel, Sandbox: harness.DefaultSandbox()},
	}
	w.exec(`INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('coder', 1, 'READY', 'd')`)
	w.exec(`INSERT INTO agent_revisions (agent_name, revision, spec) VALUES ('coder', 1, $1)`, w.agent)
	w.exec(`INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all) VALUES ('WEBHOOK', 'hook', 'coder', '{}', true)`)
	w.build(mcp.Options{AllowPrivate: true, ListTime: 5 * time.Second})
	return w
}

func (w *world) build(o mcp.Options) {
	o.Store, o.Log = w.store, slog.New(slog.NewTextHandler(w.log, nil))
	o.Secrets = secret.Environment(func(name string) string {
		return map[string]string{"MCP_HEADERS": "Authorization: Bearer " + token, "MCP_BROKEN": "no header"}[name]
	})
	w.servers = mcp.New(o)
	w.t.Cleanup(w.servers.Close)
	w.step = step.New(step.Options{
		Store: w.store, Model: w, Log: slog.New(slog.DiscardHandler), ContextTokens: 100_000, Publish: func(context.Context, ...event.Event) {},
		Lease: postgres.Lease{Owner: "test", For: time.Minute}, Tools: []step.Tools{w.servers},
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

// uses has the model call a tool once and then answer.
func (w *world) uses(name string, arguments any) {
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

// offered are the names of the tools of the newest question.
func (w *world) offered() []string {
	var names []string
	for _, t := range w.asked[len(w.asked)-1].Tools {
		if t.Name != harness.ToolOfferChoices {
			names = append(names, t.Name)
		}
	}
	return names
}

// far is a real MCP server, of the Go SDK, that counts what it is asked.
type far struct {
	*httptest.Server
	mu    sync.Mutex
	lists int
	calls map[string]int
	auths map[string]bool // Authorization headers
	ids   map[string]bool // of sessions
	sdk   *sdk.Server
	done  chan struct{} // closed when the test is over
}

// hang is what a tool does that does not end.
func (f *far) hang(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-f.done:
	}
}

type said struct {
	Text string `json:"text"`
}

// serve starts a server with the tool echo.
func serve(t *testing.T, options *sdk.StreamableHTTPOptions) *far {
	t.Helper()
	f := &far{calls: map[string]int{}, auths: map[string]bool{}, ids: map[string]bool{}, done: make(chan struct{})}
	f.sdk = sdk.NewServer(&sdk.Implementation{Name: "far", Version: "1"}, &sdk.ServerOptions{PageSize: 100})
	sdk.AddTool(f.sdk, &sdk.Tool{Name: "echo", Description: "Says it again."}, func(_ context.Context, _ *sdk.CallToolRequest, in said) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "you said " + in.Text}}}, nil, nil
	})
	f.sdk.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
			f.mu.Lock()
			switch method {
			case "tools/list":
				f.lists++
			case "tools/call":
				f.calls[r.GetParams().(*sdk.CallToolParamsRaw).Name]++
			}
			f.mu.Unlock()
			return next(ctx, method, r)
		}
	})
	handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return f.sdk }, options)
	f.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.auths[r.Header.Get("Authorization")] = true
		if id := r.Header.Get("Mcp-Session-Id"); id != "" {
			f.ids[id] = true
		}
		f.mu.Unlock()
		handler.ServeHTTP(rw, r)
	}))
	t.Cleanup(func() { close(f.done); f.CloseClientConnections(); f.Close() })
	return f
}

func (f *far) tool(name string, do func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error)) {
	f.sdk.AddTool(&sdk.Tool{Name: name, InputSchema: map[string]any{"type": "object"}}, do)
}

func (f *far) called(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[name]
}

func (f *far) listed() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lists
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
			w.t.Errorf("%s: %.300q does not say %q", what, got, part)
		}
	}
	if strings.Contains(got, token) || strings.Contains(w.log.String(), token) {
		w.t.Errorf("%s: the token of the server is in a result or a log", what)
	}
}
