package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/functions/management-api/internal/api"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

type object struct {
	Metadata struct{ Name, ResourceVersion string }
	Spec     map[string]any
	Status   struct {
		Phase      harness.AgentPhase
		Conditions []struct{ Type, Status, Message string }
	}
}

func pointers(p view.Problem) []string {
	var all []string
	for _, e := range p.Errors {
		all = append(all, e.Pointer)
	}
	return all
}

// What is wrong inside of a resource is told with a pointer to each field, by
// every way of writing one.
func TestFieldsOfResources(t *testing.T) {
	w := newWorld(t)
	before := w.files()
	for name, c := range map[string]struct {
		body string
		want []string
	}{
		"unknown field":      {`{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiAgent","metadata":{"name":"coder"},"spec":{"colour":"red"}}`, []string{"#/spec/colour"}},
		"wrong type":         {`{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiAgent","metadata":{"name":"coder"},"spec":{"budget":{"maxSteps":"many"}}}`, []string{"#/spec/budget/maxSteps"}},
		"wrong value":        {`{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiAgent","metadata":{"name":"coder"},"spec":{"harness":{"type":"ALL"}}}`, []string{"#/spec/harness/type"}},
		"two":                {`{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiAgent","metadata":{"name":"coder"},"spec":{"harness":{"type":"CHANNEL","channels":[{"type":"WEBHOOK","name":"h","secretRef":{"name":"s"},"senders":{"policy":"open"}}]},"budget":{"maxSteps":-1}}}`, []string{"#/spec/harness/channels/0/secretRef/key", "#/spec/budget/maxSteps"}},
		"another kind":       {`{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiWorkflow","metadata":{"name":"coder"},"spec":{}}`, []string{"#/kind"}},
		"another name":       {`{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiAgent","metadata":{"name":"other"},"spec":{}}`, []string{"#/metadata/name"}},
		"apiVersion missing": {`{"kind":"AiAgent","metadata":{"name":"coder"},"spec":{}}`, []string{"#/apiVersion"}},
	} {
		a := w.do(request{method: http.MethodPut, path: "/api/v1/agents/coder", body: c.body, header: map[string]string{"If-Match": "*"}})
		if diff := cmp.Diff(c.want, pointers(problem(t, a, http.StatusUnprocessableEntity)), cmp.Transformer("set", func(l []string) map[string]bool {
			m := map[string]bool{}
			for _, s := range l {
				m[s] = true
			}
			return m
		})); diff != "" {
			t.Errorf("%s: %s\n%s", name, diff, a)
		}
	}
	for _, bad := range []string{"", "Coder", "a_b", "-a", "a/b", "../coder", strings.Repeat("a", 64)} {
		a := w.post("/agents", fmt.Sprintf(`{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiAgent","metadata":{"name":%q},"spec":{}}`, bad))
		if got := pointers(problem(t, a, http.StatusUnprocessableEntity)); !cmp.Equal(got, []string{"#/metadata/name"}) {
			t.Errorf("name %q: %s", bad, a)
		}
	}
	problem(t, w.post("/agents", `{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiAgent","metadata":{"name":"coder"},"spec":{}}`), http.StatusConflict)
	if diff := cmp.Diff(before, w.files()); diff != "" {
		t.Errorf("files changed:\n%s", diff)
	}
}

// A switch changes enabled and no other byte; a version that is not the newest
// changes nothing; a dry run neither.
func TestWritingResources(t *testing.T) {
	w := newWorld(t)
	before := w.files()
	got := w.get("/agents/coder")
	first := got.header.Get("ETag")
	features := func(match, body, query string) answer {
		return w.do(request{method: http.MethodPatch, path: "/api/v1/agents/coder/features" + query, body: body, header: map[string]string{"If-Match": match}})
	}
	if a := features(first, `{"harness":true}`, ""); a.status != http.StatusOK || a.header.Get("ETag") != first || w.files()["coder.yaml"] != before["coder.yaml"] {
		t.Errorf("switched to what it is: %s", a)
	}
	if a := features(first, `{"harness":false}`, "?dryRun=true"); a.status != http.StatusOK || !strings.Contains(a.body, `"enabled":false`) || w.files()["coder.yaml"] != before["coder.yaml"] {
		t.Errorf("dry run: %s\n%s", a, w.files()["coder.yaml"])
	}
	a := features(first, `{"harness":false,"a2a":false}`, "")
	if want := strings.Replace(before["coder.yaml"], "enabled: true", "enabled: false", 1); a.status != http.StatusOK || w.files()["coder.yaml"] != want {
		t.Errorf("switched: %s\n%s", a, cmp.Diff(want, w.files()["coder.yaml"]))
	}
	second := a.header.Get("ETag")
	if second == "" || second == first {
		t.Errorf("ETags %s and %s", first, second)
	}
	problem(t, features(first, `{"harness":true}`, ""), http.StatusPreconditionFailed)
	if p := problem(t, features(second, `{"guardrails":true}`, ""), http.StatusUnprocessableEntity); !cmp.Equal(pointers(p), []string{"#/guardrails"}) {
		t.Errorf("a block that is not there: %+v", p)
	}
	problem(t, features(second, `{"approvals":false}`, ""), http.StatusUnprocessableEntity)
	problem(t, features(second, `{"harness":"off"}`, ""), http.StatusUnprocessableEntity)
	problem(t, features(second, `{}`, ""), http.StatusUnprocessableEntity)

	// YAML keeps what its author wrote.
	text := "# replaced\n" + fmt.Sprintf(agentYAML, "coder")
	a = w.do(request{method: http.MethodPut, path: "/api/v1/agents/coder", body: text, header: map[string]string{"If-Match": second, "Content-Type": "application/yaml"}})
	if a.status != http.StatusOK || w.files()["coder.yaml"] != text {
		t.Errorf("YAML: %s\n%s", a, cmp.Diff(text, w.files()["coder.yaml"]))
	}
	if a := w.do(request{method: http.MethodGet, path: "/api/v1/agents/coder", header: map[string]string{"Accept": "application/yaml"}}); a.body != text || a.header.Get("Content-Type") != "application/yaml" {
		t.Errorf("as YAML: %v %s", a.header, a)
	}
	problem(t, w.do(request{method: http.MethodPut, path: "/api/v1/agents/coder", body: "a: b: c", header: map[string]string{"If-Match": "*", "Content-Type": "application/yaml"}}), http.StatusBadRequest)
	problem(t, w.do(request{method: http.MethodDelete, path: "/api/v1/agents/coder", header: map[string]string{"If-Match": first}}), http.StatusPreconditionFailed)
	if a := w.do(request{method: http.MethodDelete, path: "/api/v1/agents/coder?dryRun=true", header: map[string]string{"If-Match": "*"}}); a.status != http.StatusNoContent || w.files()["coder.yaml"] == "" {
		t.Errorf("dry run of a deletion: %s", a)
	}
}

func TestAgentsStandAsTheRowsSay(t *testing.T) {
	w := newWorld(t)
	w.file("broken.yaml", "apiVersion: tuluat.ai/v1alpha1\nkind: AiAgent\nmetadata: {name: broken}\nspec: {harness: {type: WRONG}}\n")
	w.file("new.yaml", fmt.Sprintf(agentYAML, "new"))
	names := func(query string) []string {
		t.Helper()
		var all []string
		for next := ""; ; {
			p := decode[page[object]](t, w.get("/agents?limit=1"+query+"&after="+next), http.StatusOK)
			for _, o := range p.Items {
				all = append(all, o.Metadata.Name+" "+string(o.Status.Phase))
			}
			if next = p.Next; next == "" {
				return all
			}
		}
	}
	if got := names(""); !cmp.Equal(got, []string{"broken INVALID", "coder READY", "new ", "spare READY", "switched READY"}) {
		t.Errorf("agents %q", got)
	}
	if got := names("&status=INVALID"); !cmp.Equal(got, []string{"broken INVALID"}) {
		t.Errorf("invalid ones %q", got)
	}
	if got := names("&status=INVALID&status=READY"); !cmp.Equal(got, []string{"broken INVALID", "coder READY", "spare READY", "switched READY"}) {
		t.Errorf("both %q", got)
	}
	o := decode[object](t, w.get("/agents/broken"), http.StatusOK)
	if len(o.Status.Conditions) != 2 || o.Status.Conditions[0].Status != "False" || o.Status.Conditions[0].Message != "spec.harness.type is wrong" {
		t.Errorf("why it is not READY: %+v", o.Status)
	}
}

// A page's next leads on in the same list with the same filter, and nowhere else;
// every row is on one page.
func TestPages(t *testing.T) {
	w := newWorld(t)
	want := map[harness.SessionID]bool{}
	for n := range 5 {
		want[w.say("coder", fmt.Sprint(n)).Session] = true
	}
	w.say("spare", "x")
	got := map[harness.SessionID]bool{}
	next, pages := "", 0
	for {
		p := decode[page[view.Session]](t, w.get("/sessions?agent=coder&limit=2&after="+next), http.StatusOK)
		for _, s := range p.Items {
			got[s.ID] = true
		}
		pages++
		if p.Next == "" {
			break
		}
		next = p.Next
	}
	if diff := cmp.Diff(want, got); diff != "" || pages != 3 {
		t.Errorf("%d pages:\n%s", pages, diff)
	}
	for _, path := range []string{"/sessions?after=", "/sessions?agent=spare&after=", "/approvals?agent=coder&after=", "/agents/coder/logs?after=", "/sessions?agent=coder&status=IDLE&after="} {
		if p := problem(t, w.get(path+next), http.StatusBadRequest); !cmp.Equal(pointers(p), []string{"query/after"}) {
			t.Errorf("%s: %+v", path, p)
		}
	}
	if p := decode[page[view.Session]](t, w.get("/sessions?limit=200&agent=coder&after="+next), http.StatusOK); len(p.Items) != 1 {
		t.Errorf("the place with another limit: %+v", p)
	}
	decode[page[view.Session]](t, w.get("/sessions?since="+url.QueryEscape(time.Now().Add(-time.Hour).Format(time.RFC3339Nano))), http.StatusOK)
	if p := problem(t, w.get("/sessions?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z"), http.StatusUnprocessableEntity); !cmp.Equal(pointers(p), []string{"query/until"}) {
		t.Errorf("%+v", p)
	}
}

// Of those who decide at once one wins, and the others are told who.
func TestDecideOnce(t *testing.T) {
	w := newWorld(t)
	session := w.say("coder", "go").Session
	id := w.asked(session)
	if p := problem(t, w.post("/approvals/"+string(id)+"/decision", `{"decision":"APPROVE","digest":"another"}`), http.StatusConflict); !cmp.Equal(pointers(p), []string{"#/digest"}) || p.Approvals[0].State != harness.ApprovalPending {
		t.Errorf("another digest: %+v", p)
	}
	var mu sync.Mutex
	var won []view.Approval
	var lost []view.Problem
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			role := []string{access.RoleAdmin, access.RoleApprover}[n%2]
			a := w.do(request{method: http.MethodPost, path: "/api/v1/approvals/" + string(id) + "/decision", body: `{"decision":"` + []string{"APPROVE", "REJECT"}[n%2] + `"}`, role: role})
			mu.Lock()
			defer mu.Unlock()
			if a.status == http.StatusOK {
				won = append(won, decode[view.Approval](t, a, http.StatusOK))
			} else {
				lost = append(lost, problem(t, a, http.StatusConflict))
			}
		})
	}
	all.Wait()
	if len(won) != 1 || len(lost) != 7 {
		t.Fatalf("%d won, %d lost", len(won), len(lost))
	}
	for _, p := range lost {
		if len(p.Approvals) != 1 || p.Approvals[0].State != won[0].State || p.Approvals[0].DecidedBy != won[0].DecidedBy || won[0].DecidedBy == "" {
			t.Errorf("%+v does not say what %+v decided", p, won[0])
		}
	}
	first, second := w.asked(session), w.asked(session)
	p := problem(t, w.post("/sessions/"+string(session)+"/approve", ""), http.StatusConflict)
	if len(p.Approvals) != 2 {
		t.Errorf("two wait: %+v", p)
	}
	if a := decode[view.Approval](t, w.post("/sessions/"+string(session)+"/approve", `{"approval":"`+string(first)+`","decision":"REJECT"}`), http.StatusOK); a.State != harness.ApprovalRejected {
		t.Errorf("named: %+v", a)
	}
	if a := decode[view.Approval](t, w.post("/sessions/"+string(session)+"/approve", ""), http.StatusOK); a.ID != second || a.State != harness.ApprovalApproved {
		t.Errorf("the one that is left: %+v", a)
	}
	if p := problem(t, w.post("/sessions/"+string(session)+"/approve", ""), http.StatusConflict); len(p.Approvals) != 0 {
		t.Errorf("none waits: %+v", p)
	}
}

// A repeat under the same key has no effect and gets the same answer; another
// caller's same key is another key.
func TestIdempotency(t *testing.T) {
	w := newWorld(t)
	start := func(role string) accepted {
		t.Helper()
		return decode[accepted](t, w.do(request{
			method: http.MethodPost, path: "/api/v1/sessions", role: role, body: `{"agent":"coder","text":"once"}`, header: map[string]string{"Idempotency-Key": "k"},
		}), http.StatusAccepted)
	}
	first, again, other := start(access.RoleAdmin), start(access.RoleAdmin), start(access.RoleOperator)
	if first.Duplicate || !again.Duplicate || again.Session != first.Session || again.Message != first.Message || other.Duplicate || other.Session == first.Session {
		t.Errorf("%+v, %+v, %+v", first, again, other)
	}
	_, e := w.command(first.Session, "true")
	run := func(command string) answer {
		return w.do(request{
			method: http.MethodPost, path: "/api/v1/sandboxes/" + string(e.Sandbox.ID) + "/executions", body: `{"command":"` + command + `"}`, header: map[string]string{"Idempotency-Key": "k"},
		})
	}
	one, two := decode[view.Execution](t, run("ls"), http.StatusAccepted), decode[view.Execution](t, run("ls"), http.StatusAccepted)
	if one.ID != two.ID {
		t.Errorf("ran twice: %s, %s", one.ID, two.ID)
	}
	problem(t, run("rm"), http.StatusConflict)
	if n := w.Query(`SELECT count(*)::text FROM audit_log WHERE action = 'exec sandboxes.tuluat.ai'`); n != "1" {
		t.Errorf("%s entries in the audit", n)
	}
	if p := problem(t, w.post("/sessions", `{"agent":"missing","text":"x"}`), http.StatusUnprocessableEntity); !cmp.Equal(pointers(p), []string{"#/agent"}) {
		t.Errorf("no such agent: %+v", p)
	}
	if p := problem(t, w.post("/sessions", `{"agent":"coder","text":" "}`), http.StatusUnprocessableEntity); !cmp.Equal(pointers(p), []string{"#/text"}) {
		t.Errorf("no text: %+v", p)
	}
}

func TestSessionsOfOtherChannels(t *testing.T) {
	w := newWorld(t)
	w.Exec(`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state) VALUES ('ses_w', 'coder', 'WHATSAPP', '1', '49', 'IDLE')`)
	problem(t, w.post("/sessions/ses_w/messages", `{"text":"as if I were them"}`), http.StatusConflict)
	session := w.say("coder", "x").Session
	decode[view.Session](t, w.post("/sessions/"+string(session)+"/cancel", ""), http.StatusOK)
	problem(t, w.post("/sessions/"+string(session)+"/cancel", ""), http.StatusConflict)
	problem(t, w.post("/sessions/"+string(session)+"/messages", `{"text":"more"}`), http.StatusConflict)
}

func TestUnknownPathsAndMethods(t *testing.T) {
	w := newWorld(t)
	problem(t, w.get("/nothing"), http.StatusNotFound)
	problem(t, w.do(request{method: http.MethodGet, path: "/"}), http.StatusNotFound)
	a := w.do(request{method: http.MethodDelete, path: "/api/v1/agents"})
	if problem(t, a, http.StatusMethodNotAllowed); a.header.Get("Allow") != "GET, POST" {
		t.Errorf("Allow: %s", a.header.Get("Allow"))
	}
}

// Without the database everything that needs it is answered 503, once in the log.
func TestWithoutTheDatabase(t *testing.T) {
	w := newWorld(t)
	w.stop()
	w.DSN = "postgres://nobody:secret-of-dsn@127.0.0.1:1/none"
	w.start("127.0.0.1:0")
	a := w.get("/sessions")
	problem(t, a, http.StatusServiceUnavailable)
	if a.header.Get("Retry-After") == "" || strings.Contains(a.body, "127.0.0.1") {
		t.Errorf("%v %s", a.header, a)
	}
	if logs := w.logs.String(); !strings.Contains(logs, "request failed") || strings.Contains(logs, "secret-of-dsn") {
		t.Errorf("logs: %s", logs)
	}
	decode[map[string]any](t, w.get("/whoami"), http.StatusOK)
}

// The documents are open only where that is said, and the page loads nothing.
func TestDocuments(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{"/docs", "/openapi.json"} {
		problem(t, w.do(request{method: http.MethodGet, path: path, header: map[string]string{"Authorization": ""}}), http.StatusUnauthorized)
	}
	w.stop()
	w.start("127.0.0.1:0", func(o *api.Options) { o.OpenDocs = true })
	a := w.do(request{method: http.MethodGet, path: "/docs", header: map[string]string{"Authorization": ""}})
	if policy := a.header.Get("Content-Security-Policy"); a.status != http.StatusOK || !strings.HasPrefix(policy, "default-src 'none'; style-src 'sha256-") {
		t.Fatalf("%d %v", a.status, a.header)
	}
	for _, o := range api.Operations() {
		if !strings.Contains(a.body, `id="`+o.ID+`"`) {
			t.Errorf("the page lacks %s", o.ID)
		}
	}
	for _, loads := range []string{"<script", "<link", "<img", "http://", "https://", "url(", "@import", "ZgotmplZ"} {
		if strings.Contains(a.body, loads) {
			t.Errorf("the page has %s", loads)
		}
	}
	problem(t, w.do(request{method: http.MethodGet, path: "/api/v1/whoami", header: map[string]string{"Authorization": ""}}), http.StatusUnauthorized)
}

// The table of operations names rights that a role can have, and every path once.
func TestOperations(t *testing.T) {
	seen := map[string]bool{}
	for _, o := range api.Operations() {
		if at := o.Method + " " + o.Path; seen[at] || seen[o.ID] {
			t.Errorf("%s twice", at)
		} else {
			seen[at], seen[o.ID] = true, true
		}
		if o.Right.Verb == "" && o.ID != "whoami" && o.ID != "version" {
			t.Errorf("%s is anybody's", o.ID)
		}
		if n := o.Right.Name; n != "" && !strings.Contains(o.Path, "{"+n+"}") {
			t.Errorf("%s names a right by %s, which its path does not have", o.ID, n)
		}
	}
	if _, err := json.Marshal(api.Operations()); err != nil {
		t.Error(err)
	}
}
