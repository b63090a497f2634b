package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/harness/view"
)

// assistant is an MCP client with the token of a role.
type assistant struct {
	t *testing.T
	*mcp.ClientSession
}

type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	r.Host = "api.example.com" // behind a proxy it is not the address
	return b.next.RoundTrip(r)
}

func (w *world) connect(token string) (*mcp.ClientSession, error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	return client.Connect(w.T.Context(), &mcp.StreamableClientTransport{
		Endpoint: "http://" + w.address + "/mcp", HTTPClient: &http.Client{Transport: bearer{token, w.client.Transport}}, DisableStandaloneSSE: true, MaxRetries: -1,
	}, nil)
}

func (w *world) assistant(t *testing.T, role string) assistant {
	t.Helper()
	session, err := w.connect(token(role))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return assistant{t, session}
}

// call returns the one text of a result.
func (a assistant) call(name string, arguments any) (text string, isError bool) {
	a.t.Helper()
	r, err := a.CallTool(a.t.Context(), &mcp.CallToolParams{Name: name, Arguments: arguments})
	if err != nil {
		a.t.Fatal(err)
	}
	content, ok := r.Content[0].(*mcp.TextContent)
	if !ok || len(r.Content) != 1 {
		a.t.Fatalf("%s: %+v", name, r.Content)
	}
	return content.Text, r.IsError
}

// done is what a call that must succeed gives.
func done[T any](a assistant, name string, arguments any) T {
	a.t.Helper()
	text, isError := a.call(name, arguments)
	var v T
	if err := json.Unmarshal([]byte(text), &v); isError || err != nil {
		a.t.Fatalf("%s %v: %s, %v", name, arguments, text, err)
	}
	return v
}

// An assistant finds a session that waits, reads it, and decides: by the API's
// own rights, audit and problems.
func TestAssistantsUseTheAPI(t *testing.T) {
	w := newWorld(t)
	admin := w.assistant(t, access.RoleAdmin)
	tools, err := admin.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) != 13 {
		t.Fatalf("tools: %+v, %v", tools, err)
	}
	for _, tool := range tools.Tools {
		schema, _ := json.Marshal(tool.InputSchema)
		if tool.Description == "" || strings.Contains(string(schema), "components/schemas") || !strings.Contains(string(schema), `"type":"object"`) {
			t.Errorf("%s: %q %s", tool.Name, tool.Description, schema)
		}
		if reads := strings.HasPrefix(tool.Name, "list_") || strings.HasPrefix(tool.Name, "get_"); tool.Annotations.ReadOnlyHint != reads {
			t.Errorf("%s: read-only is %v", tool.Name, tool.Annotations.ReadOnlyHint)
		}
	}

	agents := done[page[map[string]any]](admin, "list_agents", map[string]any{"limit": 2, "status": []string{"READY", "INVALID"}})
	if len(agents.Items) == 0 {
		t.Error("no agents are listed")
	}
	begun := done[accepted](admin, "start_session", map[string]any{"agent": "coder", "text": "hello", "Idempotency-Key": "k1"})
	again := done[accepted](admin, "start_session", map[string]any{"agent": "coder", "text": "hello", "Idempotency-Key": "k1"})
	if begun.Session == "" || again.Message != begun.Message || !again.Duplicate {
		t.Errorf("begun %+v, again %+v", begun, again)
	}
	if types := w.published(); len(types) == 0 {
		t.Error("nobody was woken")
	}
	if messages := done[page[view.Message]](admin, "list_session_messages", map[string]any{"id": begun.Session}); len(messages.Items) != 1 || messages.Items[0].Text != "hello" {
		t.Errorf("messages: %+v", messages.Items)
	}

	id := w.asked(begun.Session)
	waiting := done[page[view.Approval]](admin, "list_approvals", map[string]any{"status": []string{"PENDING"}})
	if len(waiting.Items) != 1 || waiting.Items[0].ID != id {
		t.Fatalf("what waits: %+v", waiting.Items)
	}
	decision := map[string]any{"id": id, "decision": "APPROVE"}
	text, isError := w.assistant(t, access.RoleViewer).call("decide_approval", decision)
	if p := (view.Problem{}); !isError || json.Unmarshal([]byte(text), &p) != nil || p.Status != http.StatusForbidden || !strings.Contains(p.Detail, access.Decide) {
		t.Errorf("a viewer decides: %s", text)
	}
	if p := done[view.Approval](w.assistant(t, access.RoleApprover), "decide_approval", decision); p.State != "APPROVED" {
		t.Errorf("decided: %+v", p)
	}
	if got := w.Query(`SELECT actor || ' ' || action FROM audit_log WHERE object LIKE '%` + string(id) + `%'`); !strings.HasPrefix(got, access.RoleApprover+" ") {
		t.Errorf("the audit has %q", got)
	}
	if text, isError = admin.call("decide_approval", decision); !isError || !strings.Contains(text, `"status":409`) {
		t.Errorf("decided twice: %s", text)
	}
}

// What is wrong with a call is said in words, and nothing is changed by it.
func TestAssistantsAskWrongly(t *testing.T) {
	w := newWorld(t)
	if session, err := w.connect("nobody-knows-this-token"); err == nil {
		t.Errorf("a stranger is connected: %v", session.ID())
	}
	admin := w.assistant(t, access.RoleAdmin)
	before := w.Query(`SELECT count(*)::text FROM audit_log`)
	for name, c := range map[string]struct {
		tool      string
		arguments any
		want      string
	}{
		"an unknown argument":        {"list_agents", map[string]any{"page": 2}, `no argument \"page\"`},
		"another case":               {"list_agents", map[string]any{"Limit": 2}, `no argument \"Limit\"`},
		"a missing one":              {"get_session", map[string]any{}, `\"id\" is missing`},
		"an object for a text":       {"get_session", map[string]any{"id": map[string]any{}}, `\"id\" is not of the type`},
		"null for a text":            {"get_session", map[string]any{"id": nil}, `\"id\" is not of the type`},
		"two texts for one":          {"get_session", map[string]any{"id": []string{"a", "b"}}, `\"id\" is not of the type`},
		"a limit out of range":       {"list_agents", map[string]any{"limit": -1}, `"status":422`},
		"a path for an id":           {"get_session", map[string]any{"id": "../agents/coder"}, `"status":4`},
		"a query in an id":           {"get_session", map[string]any{"id": "x?limit=1"}, `"status":4`},
		"dots for a name":            {"get_agent", map[string]any{"name": ".."}, `\"name\" is not of the type`},
		"nothing for a name":         {"get_agent", map[string]any{"name": ""}, `"status":4`},
		"a line break in a header":   {"start_session", map[string]any{"agent": "coder", "text": "x", "Idempotency-Key": "a\r\nX-Evil: 1"}, `\"Idempotency-Key\" is not of the type`},
		"a body's field of no type":  {"start_session", map[string]any{"agent": 7, "text": "x"}, `"status":422`},
		"a body without its fields":  {"decide_approval", map[string]any{"id": "apr_1"}, `"status":422`},
		"a session that is not here": {"get_session", map[string]any{"id": "ses_none"}, `"status":404`},
	} {
		text, isError := admin.call(c.tool, c.arguments)
		if quoted, _ := json.Marshal(text); !isError || !strings.Contains(text, c.want) && !strings.Contains(string(quoted), c.want) {
			t.Errorf("%s: %v %s, want %s", name, isError, text, c.want)
		}
	}
	if after := w.Query(`SELECT count(*)::text FROM audit_log`); after != before {
		t.Errorf("%s entries of the audit became %s", before, after)
	}
	for method, want := range map[string]int{http.MethodGet: http.StatusMethodNotAllowed, http.MethodDelete: http.StatusMethodNotAllowed} {
		if p := problem(t, w.do(request{method: method, path: "/mcp"}), want); p.Status != want {
			t.Errorf("%s: %+v", method, p)
		}
	}
	if a := w.do(request{method: http.MethodPost, path: "/mcp", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_command","arguments":{}}}`, header: map[string]string{"Accept": "application/json, text/event-stream"}}); !strings.Contains(a.body, `"error"`) {
		t.Errorf("a tool that is none: %s", a)
	}
}
