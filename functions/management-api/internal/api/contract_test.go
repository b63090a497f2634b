package api_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/functions/management-api/internal/api"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// valid is one request that an operation does.
type valid struct {
	path   map[string]string
	query  string
	header map[string]string
	body   string
	says   []event.Type // that it publishes
}

// rows is what the operations are about.
type rows struct {
	session, ended, single, two harness.SessionID
	free, paused, taken         harness.SessionID
	approval                    harness.ApprovalID
	sandbox, dying              harness.SandboxID
	execution                   harness.ExecutionID
	replayed, discarded         string
	forget                      string
}

func (w *world) rows() rows {
	w.T.Helper()
	var r rows
	r.session = w.say("coder", "count to ten").Session
	call, e := w.command(r.session, "seq 10")
	r.sandbox, r.execution = e.Sandbox.ID, e.ID
	w.finish(r.session, call, e, "1\n2\n3\n", "I counted.")
	r.ended = w.say("coder", "stop me").Session
	w.command(r.ended, "sleep 9")
	r.single, r.two = w.say("coder", "ask").Session, w.say("spare", "ask twice").Session
	w.asked(r.single)
	w.asked(r.two)
	r.approval = w.asked(r.two)
	r.free, r.paused, r.taken = w.say("coder", "a person, please").Session, w.say("coder", "somebody?").Session, w.say("coder", "who is there?").Session
	w.Exec(`UPDATE sessions SET paused_at = now(), paused_by = 'ben' WHERE session_id IN ($1, $2)`, r.paused, r.taken)
	w.Exec(`UPDATE agents SET halted_at = now(), halted_by = 'ben', halt_reason = 'why' WHERE agent_name = 'halted'`)
	dying := w.say("switched", "work").Session
	_, e = w.command(dying, "sleep 9")
	r.dying = e.Sandbox.ID
	r.replayed, r.discarded = w.letter(w.say("coder", "late").Session), w.letter(w.say("coder", "later").Session)
	w.Exec(`INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all) VALUES ('WEBHOOK', 'hook', 'coder', '{}', true)`)
	r.forget = "fgt_1"
	w.Exec(`INSERT INTO forget_requests (forget_request_id, channel, channel_user_id, person_digest, state, requested_by) VALUES ($1, 'API', 'x', 'd', 'PENDING', 'ben')`, r.forget)
	w.published()
	return r
}

// cases are a valid request of every operation.
func (r rows) cases() map[string]valid {
	agent := func(name string) string {
		return fmt.Sprintf(`{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiAgent","metadata":{"name":%q},"spec":{"description":"new"}}`, name)
	}
	workflow := func(name string) string {
		return fmt.Sprintf(`{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiWorkflow","metadata":{"name":%q},"spec":{"nodes":[{"id":"ask","type":"AGENT","agent":"coder","prompt":"p"},{"id":"end","type":"END"}],"edges":[{"from":"ask","to":"end"}]}}`, name)
	}
	anyVersion := map[string]string{"If-Match": "*"}
	name := func(n string) map[string]string { return map[string]string{"name": n} }
	id := func(i any) map[string]string { return map[string]string{"id": fmt.Sprint(i)} }
	return map[string]valid{
		"list-agents":           {query: "status=READY&status=INVALID&limit=2"},
		"create-agent":          {body: agent("fresh")},
		"get-agent":             {path: name("coder")},
		"replace-agent":         {path: name("coder"), header: anyVersion, body: agent("coder")},
		"delete-agent":          {path: name("spare"), header: anyVersion},
		"switch-agent-features": {path: name("switched"), header: anyVersion, body: `{"harness":false}`},
		"list-agent-logs":       {path: name("coder"), query: "limit=5&level=INFO&level=WARN"},
		"list-agent-sandboxes":  {path: name("coder"), query: "status=READY"},
		"list-workflows":        {},
		"create-workflow":       {body: workflow("fresh")},
		"get-workflow":          {path: name("release")},
		"replace-workflow":      {path: name("release"), header: anyVersion, body: strings.ReplaceAll(workflow("release"), `"end"`, `"last"`)},
		"delete-workflow":       {path: name("spare"), header: anyVersion},

		"list-sessions":         {query: "agent=coder&channel=API&limit=3"},
		"start-session":         {body: `{"agent":"coder","text":"hello","chat":"mine"}`, header: map[string]string{"Idempotency-Key": "k1"}, says: []event.Type{event.MessageReceived}},
		"get-session":           {path: id(r.session)},
		"list-session-messages": {path: id(r.session)},
		"send-session-message":  {path: id(r.session), body: `{"text":"and to twenty"}`, says: []event.Type{event.MessageReceived}},
		"list-session-timeline": {path: id(r.session)},
		"watch-session":         {path: id(r.session), query: "follow=false"},
		"pause-session":         {path: id(r.free)},
		"reply-in-session":      {path: id(r.paused), body: `{"text":"let me see"}`},
		"resume-session":        {path: id(r.taken), says: []event.Type{event.SessionDue}},
		"cancel-session":        {path: id(r.ended), says: []event.Type{event.SessionChanged, event.ExecutionRequested}},
		"approve-session":       {path: id(r.single), body: `{"reason":"fine"}`, says: []event.Type{event.ApprovalDecided}},

		"list-approvals":  {query: "status=PENDING"},
		"count-approvals": {},
		"watch-approvals": {query: "follow=false"},
		"get-approval":    {path: id(r.approval)},
		"decide-approval": {path: id(r.approval), body: `{"decision":"REJECT","reason":"no","digest":"d1"}`, says: []event.Type{event.ApprovalDecided}},

		"list-sandboxes":          {query: "agent=coder"},
		"get-sandbox":             {path: id(r.sandbox)},
		"terminate-sandbox":       {path: id(r.dying), says: []event.Type{event.ExecutionRequested}},
		"list-sandbox-executions": {path: id(r.sandbox)},
		"run-command":             {path: id(r.sandbox), body: `{"command":"ls"}`, says: []event.Type{event.ExecutionRequested}},
		"list-executions":         {query: "agent=coder&status=COMPLETED"},
		"get-execution":           {path: id(r.execution)},
		"read-output":             {path: id(r.execution), query: "stream=stdout&offset=2"},

		"list-dead-letters":   {query: "status=OPEN"},
		"get-dead-letter":     {path: id(r.replayed)},
		"replay-dead-letter":  {path: id(r.replayed), says: []event.Type{event.SessionDue}},
		"discard-dead-letter": {path: id(r.discarded)},
		"list-logs":           {query: "limit=10"},
		"watch-logs":          {query: "follow=false&agent=coder"},
		"export-logs":         {query: "level=INFO"},
		"check-archive":       {query: "limit=10"},
		"forget-person":       {body: `{"channel":"TELEGRAM","channelUserId":"4711"}`},
		"list-forgets":        {},
		"get-forget":          {path: id(r.forget)},
		"list-channels":       {},
		"list-leaks":          {},
		"get-sweep":           {},
		"record-webhook":      {body: `{"channel":"TELEGRAM","account":"helper_bot","url":"https://agents.example.com/api/v1/channels/telegram/webhook/helper_bot"}`},
		"list-audit":          {query: "actor=admin&limit=200"},
		"whoami":              {},
		"version":             {},

		"get-agent-halt":   {path: name("coder")},
		"halt-agent":       {path: name("broken"), body: `{"reason":"it loops"}`},
		"resume-agent":     {path: name("halted")},
		"list-agent-usage": {path: name("coder"), query: "since=2026-01-02T00:00:00Z"},
		"list-usage":       {query: "agent=coder&since=2026-01-02T00:00:00Z"},
		"get-halt":         {},
		"halt":             {body: `{"reason":"audit"}`},
		"resume":           {says: append([]event.Type{event.ExecutionRequested}, slices.Repeat([]event.Type{event.SessionDue}, 7)...)}, // whatever waits by now
	}
}

// contract walks the document against the running API.
type contract struct {
	*world
	document    document
	requests    int
	differences int
}

func (c *contract) differ(format string, args ...any) {
	c.T.Helper()
	c.differences++
	c.T.Errorf(format, args...)
}

// ask sends r and compares the answer with what the document says of operation
// op at path, and its status with want.
func (c *contract) ask(what, path, method string, r request, want int) answer {
	c.T.Helper()
	c.requests++
	r.method = strings.ToUpper(method)
	a := c.do(r)
	if a.status != want {
		c.differ("%s: %s %s: got %s, want %d", what, r.method, r.path, a, want)
		return a
	}
	described := c.document.Paths[path][method]
	response, ok := described.Responses[fmt.Sprint(a.status)]
	if !ok {
		response = described.Responses["default"]
	}
	if a.status == http.StatusNoContent {
		if a.body != "" {
			c.differ("%s: a body with 204: %s", what, a.body)
		}
		return a
	}
	media, _, _ := mime.ParseMediaType(a.header.Get("Content-Type"))
	content, ok := response.Content[media]
	if !ok {
		c.differ("%s: %s %s: the document knows no %d with %s", what, r.method, r.path, a.status, media)
		return a
	}
	if media == "text/event-stream" || media == "application/x-ndjson" {
		return a
	}
	value, err := parse(a.body)
	if err != nil {
		c.differ("%s: %s %s: %v", what, r.method, r.path, err)
		return a
	}
	for _, wrong := range c.document.check("", content.Schema, value) {
		c.differ("%s: %s %s: the answer%s\n%s", what, r.method, r.path, wrong, a.body)
	}
	return a
}

func target(path string, v valid) string {
	for name, value := range v.path {
		path = strings.ReplaceAll(path, "{"+name+"}", value)
	}
	if v.query != "" {
		path += "?" + v.query
	}
	return path
}

var watchedTables = []string{"sessions", "messages", "steps", "tool_calls", "executions", "sandboxes", "approvals", "dead_letters", "audit_log", "outbox", "agents", "channel_routes"}

// Every operation of the document does what the document says: a valid request,
// each way of a wrong one, without and with a wrong token, without the right, and
// about something that is not there. What is refused changes nothing.
func TestContract(t *testing.T) {
	w := newWorld(t)
	c := &contract{world: w}
	if err := json.Unmarshal([]byte(w.do(request{method: http.MethodGet, path: "/openapi.json"}).body), &c.document); err != nil {
		t.Fatal(err)
	}
	cases := w.rows().cases()
	tables, files := postgrestest.Dump(t, w.Store, watchedTables...), w.files()
	operations := 0
	for _, path := range slices.Sorted(maps.Keys(c.document.Paths)) {
		for method, operation := range c.document.Paths[path] {
			operations++
			v, ok := cases[operation.OperationID]
			if !ok {
				c.differ("%s has no case", operation.OperationID)
				continue
			}
			c.refused(path, method, v)
		}
	}
	if diff := cmp.Diff(tables, postgrestest.Dump(t, w.Store, watchedTables...)); diff != "" {
		c.differ("what was refused changed rows:\n%s", diff)
	}
	if diff := cmp.Diff(files, w.files()); diff != "" {
		c.differ("what was refused changed files:\n%s", diff)
	}
	if said := w.published(); len(said) > 0 {
		c.differ("what was refused said %v", said)
	}
	for _, o := range api.Operations() {
		v := cases[o.ID]
		r := request{path: target(o.Path, v), header: v.header, body: v.body}
		a := c.ask(o.ID, o.Path, strings.ToLower(o.Method), r, o.Status)
		if o.Status == http.StatusCreated || o.Status == http.StatusAccepted {
			if where := a.header.Get("Location"); where == "" {
				c.differ("%s: no Location", o.ID)
			} else if found := w.do(request{method: http.MethodGet, path: where}); found.status != http.StatusOK {
				c.differ("%s: its Location %s answers %s", o.ID, where, found)
			}
		}
		if said := w.published(); !cmp.Equal(said, v.says) {
			c.differ("%s: published %v, want %v", o.ID, said, v.says)
		}
	}
	c.audited()
	t.Logf("contract: %d operations, %d requests, %d differences", operations, c.requests, c.differences)
	if operations != len(api.Operations()) || operations != len(cases) {
		t.Errorf("%d operations in the document, %d in the table, %d cases", operations, len(api.Operations()), len(cases))
	}
}

// refused tries what is no valid request of an operation.
func (c *contract) refused(path, method string, v valid) {
	operation := c.document.Paths[path][method]
	good := request{path: target(path, v), header: v.header, body: v.body}
	with := func(change func(*request)) request {
		r := good
		r.header = maps.Clone(v.header)
		if r.header == nil {
			r.header = map[string]string{}
		}
		change(&r)
		return r
	}
	id := operation.OperationID
	for what, header := range map[string]string{"no token": "", "a wrong token": "Bearer nope-0123456789abcdefghij", "no bearer": "Basic YTpi"} {
		a := c.ask(id+" with "+what, path, method, with(func(r *request) { r.header["Authorization"] = header }), http.StatusUnauthorized)
		if a.header.Get("WWW-Authenticate") == "" {
			c.differ("%s with %s: no WWW-Authenticate", id, what)
		}
	}
	if operation.Right != "" {
		a := c.ask(id+" without the right", path, method, with(func(r *request) { r.role = nobody }), http.StatusForbidden)
		if !strings.Contains(a.body, operation.Right) {
			c.differ("%s: the refusal does not name %s: %s", id, operation.Right, a.body)
		}
	}
	c.pointed(id, path, method, with(func(r *request) { r.path = join(r.path, "colour=red") }), http.StatusUnprocessableEntity, "query/colour")
	for _, p := range operation.Parameters {
		switch {
		case p.In == "path" && p.Name == "name":
			c.pointed(id, path, method, with(func(r *request) { r.path = target(path, valid{path: map[string]string{"name": "No_Label"}}) }), http.StatusUnprocessableEntity, "path/name")
			c.missing(id, path, method, with(func(r *request) {
				r.path = strings.Replace(good.path, "/"+v.path["name"], "/not-there", 1)
				r.body = strings.Replace(r.body, `"name":"`+v.path["name"]+`"`, `"name":"not-there"`, 1)
			}))
		case p.In == "path":
			c.pointed(id, path, method, with(func(r *request) { r.path = target(path, valid{path: map[string]string{"id": "%00"}}) }), http.StatusUnprocessableEntity, "path/id")
			c.missing(id, path, method, with(func(r *request) { r.path = strings.Replace(good.path, "/"+v.path["id"], "/999999999", 1) }))
		case p.Name == "limit":
			for _, bad := range []string{"-1", "0", "201", "10000", "many", "1e2", "99999999999999999999"} {
				c.pointed(id, path, method, with(func(r *request) { r.path = target(path, valid{path: v.path, query: "limit=" + bad}) }), http.StatusUnprocessableEntity, "query/limit")
			}
		case p.Name == "after" && id == "watch-approvals":
			for _, bad := range []string{"x", "-1", "1.5", "ses_1%2f1", "99999999999999999999999"} {
				c.pointed(id, path, method, with(func(r *request) { r.path = target(path, valid{path: v.path, query: "after=" + bad}) }), http.StatusBadRequest, "query/after")
			}
		case p.Name == "after" && id != "watch-session":
			for _, bad := range []string{"x", "%2f", "eyJsaXN0IjoiMCIsImlkIjoiMSJ9", strings.Repeat("e", 300)} {
				c.pointed(id, path, method, with(func(r *request) { r.path = target(path, valid{path: v.path, query: "after=" + bad}) }), http.StatusBadRequest, "query/after")
			}
		case p.Name == "after":
			for _, bad := range []string{"-1", "x", "ses_other%2f1"} {
				c.pointed(id, path, method, with(func(r *request) { r.path = target(path, valid{path: v.path, query: "after=" + bad}) }), http.StatusBadRequest, "query/after")
			}
		case p.Name == "since":
			for _, bad := range []string{"yesterday", "2126-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "0001-01-01T01:00:00%2B01:00"} {
				c.pointed(id, path, method, with(func(r *request) { r.path = target(path, valid{path: v.path, query: "since=" + bad}) }), http.StatusUnprocessableEntity, "query/since")
			}
		case p.Name == "until":
			for _, bad := range []string{"yesterday", "0001-01-01T00:00:00.000Z", "2026-01-01T00:00:00Z&since=2026-01-01T00:00:01Z", "2026-01-01T00:00:00Z&since=2026-01-01T00:00:00Z"} {
				c.pointed(id, path, method, with(func(r *request) { r.path = target(path, valid{path: v.path, query: "until=" + bad}) }), http.StatusUnprocessableEntity, "query/until")
			}
		case p.Name == "mark":
			for _, bad := range []string{"x", "1.2", "0.0.0.0"} {
				c.pointed(id, path, method, with(func(r *request) { r.path = target(path, valid{path: v.path, query: "mark=" + bad}) }), http.StatusBadRequest, "query/mark")
			}
		case p.Name == "If-Match":
			c.pointed(id, path, method, with(func(r *request) { delete(r.header, "If-Match") }), http.StatusPreconditionRequired, "header/If-Match")
			c.pointed(id, path, method, with(func(r *request) { r.header["If-Match"] = "7" }), http.StatusUnprocessableEntity, "header/If-Match")
			c.ask(id+" of a version that was", path, method, with(func(r *request) { r.header["If-Match"] = `"7"` }), http.StatusPreconditionFailed)
			c.pointed(id, path, method, with(func(r *request) { r.header["If-Match"] = `W/"7"` }), http.StatusPreconditionFailed, "header/If-Match")
		case p.In == "query" && p.Schema["enum"] != nil, p.In == "query" && p.Schema["items"] != nil:
			a := c.ask(id+" with a wrong "+p.Name, path, method, with(func(r *request) { r.path = target(path, valid{path: v.path, query: p.Name + "=NOPE"}) }), http.StatusUnprocessableEntity)
			if !strings.Contains(a.body, `"query/`+p.Name) {
				c.differ("%s: no pointer to query/%s: %s", id, p.Name, a.body)
			}
		case p.In == "query" && (p.Schema["type"] == "boolean" || p.Schema["type"] == "integer"):
			c.pointed(id, path, method, with(func(r *request) { r.path = target(path, valid{path: v.path, query: p.Name + "=perhaps"}) }), http.StatusUnprocessableEntity, "query/"+p.Name)
		}
	}
	if operation.RequestBody == nil {
		return
	}
	for body, want := range map[string]int{"{": 400, "nonsense": 400, "[]": 422, `"text"`: 422, "7": 422, `{"colour":"red"}`: 422, v.body + v.body: 400} {
		a := c.ask(id+" with the body "+body, path, method, with(func(r *request) { r.body = body }), want)
		if !strings.Contains(a.body, `"pointer":"#`) {
			c.differ("%s with the body %s: no pointer: %s", id, body, a.body)
		}
	}
	c.ask(id+" with 10 MB", path, method, with(func(r *request) { r.body = `{"text":"` + strings.Repeat("x", 10<<20) + `"}` }), http.StatusRequestEntityTooLarge)
	for _, coding := range []string{"gzip", "identity, br", "x"} {
		c.pointed(id, path, method, with(func(r *request) { r.header["Content-Encoding"] = coding }), http.StatusUnsupportedMediaType, "header/Content-Encoding")
	}
	c.ask(id+" with text", path, method, with(func(r *request) { r.header["Content-Type"] = "text/plain" }), http.StatusUnsupportedMediaType)
}

func join(path, query string) string {
	if strings.Contains(path, "?") {
		return path + "&" + query
	}
	return path + "?" + query
}

// pointed asks what must be refused with a pointer.
func (c *contract) pointed(id, path, method string, r request, status int, pointer string) {
	a := c.ask(id, path, method, r, status)
	var p view.Problem
	if err := json.Unmarshal([]byte(a.body), &p); err != nil || !slices.ContainsFunc(p.Errors, func(f view.ProblemField) bool { return f.Pointer == pointer && f.Detail != "" }) {
		c.differ("%s: %s: no pointer to %s: %s", id, r.path, pointer, a.body)
	}
}

// missing asks for what is not there. A list about something that is kept
// elsewhere, like the logs of an agent that is gone, is empty instead.
func (c *contract) missing(id, path, method string, r request) {
	if id == "list-agent-logs" || id == "list-agent-sandboxes" {
		if a := c.ask(id, path, method, r, http.StatusOK); !strings.Contains(a.body, `"items":[]`) {
			c.differ("%s of nobody: %s", id, a.body)
		}
		return
	}
	c.ask(id+" of what is not there", path, method, r, http.StatusNotFound)
}

// audited looks for who wrote what in the audit.
func (c *contract) audited() {
	entries := decode[page[view.AuditEntry]](c.T, c.get("/audit?limit=200"), http.StatusOK)
	found := map[string]view.AuditEntry{}
	for _, e := range entries.Items {
		if e.Actor != access.RoleAdmin || e.RequestID == "" {
			c.differ("audit %+v", e)
		}
		found[e.Action+" "+e.Object] = e
	}
	for _, o := range api.Operations() {
		if o.Method == http.MethodGet {
			continue
		}
		right := o.Right
		right.Name = ""
		if !slices.ContainsFunc(entries.Items, func(e view.AuditEntry) bool { return e.Action == right.String() }) {
			c.differ("%s: nothing in the audit", o.ID)
		}
	}
	if e := found["patch aiagents/features.tuluat.ai switched"]; e.Before == nil || e.After == nil || cmp.Equal(e.Before, e.After) {
		c.differ("the audit of a switch has no before and after: %+v", e)
	}
}

func TestTheDocumentIsCommitted(t *testing.T) {
	want, err := api.Document()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../openapi.json")
	if err != nil || string(got) != string(want) {
		t.Errorf("functions/management-api/openapi.json is not what the code says (%v): run `make generate`", err)
	}
}
