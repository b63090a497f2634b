package mcp_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"tuluat.ai/harness/functions/agent-step/internal/mcp"
	"tuluat.ai/harness/functions/agent-step/internal/steptest"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/secret"
)

const token = "token-of-the-server-1234"

// world is an agent with MCP servers.
type world struct {
	*steptest.Bench
	servers *mcp.Servers
}

func newWorld(t *testing.T, servers ...harness.MCPServer) *world {
	t.Helper()
	agent := steptest.Coder(harness.HarnessChannel)
	agent.MCPServers = servers
	w := &world{Bench: steptest.New(t, agent)}
	w.Secret = token
	w.build(mcp.Options{AllowPrivate: true, ListTime: 5 * time.Second})
	return w
}

func (w *world) build(o mcp.Options) {
	o.Store, o.Log = w.Store, w.Logger()
	o.Secrets = secret.Environment(func(name string) string {
		return map[string]string{"MCP_HEADERS": "Authorization: Bearer " + token, "MCP_BROKEN": "no header"}[name]
	})
	w.servers = mcp.New(o)
	w.T.Cleanup(w.servers.Close)
	w.Build(w.servers)
}

// offered are the names of the tools of the newest question.
func (w *world) offered() []string {
	var names []string
	for _, t := range w.Offered() {
		names = append(names, t.Name)
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
	t.Cleanup(func() {
		close(f.done)
		f.CloseClientConnections()
		f.Close()
		for session := range f.sdk.Sessions() { // whose client could not say that it ends
			_ = session.Close()
		}
	})
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
