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
	"tuluat.ai/harness/functions/agent-step/internal/steptest"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/secret"
)

const token = "token-for-the-peer-1234"

// headers is where the token is kept.
var headers = harness.SecretRef{Name: "peer", Key: "headers"}

// world is an agent with peers.
type world struct {
	*steptest.Bench
	peers *a2a.Peers
}

func newWorld(t *testing.T, peers ...harness.Peer) *world {
	t.Helper()
	agent := steptest.Coder(harness.HarnessChannel)
	agent.Peers = peers
	w := &world{Bench: steptest.New(t, agent)}
	w.Secret = token
	w.build(a2a.Options{AllowPrivate: true, CardTime: 5 * time.Second, LookAfter: 20 * time.Millisecond})
	return w
}

func (w *world) build(o a2a.Options) {
	o.Store, o.Log = w.Store, w.Logger()
	o.Secrets = secret.Environment(func(name string) string {
		return map[string]string{"PEER_HEADERS": "Authorization: Bearer " + token, "PEER_BROKEN": "no header"}[name]
	})
	w.peers = a2a.New(o)
	w.T.Cleanup(w.peers.Close)
	w.Build(w.peers)
}

// offered are the tools of peers in the newest question, by name.
func (w *world) offered() map[string]model.Tool {
	tools := map[string]model.Tool{}
	for _, t := range w.Offered() {
		tools[t.Name] = t
	}
	return tools
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
