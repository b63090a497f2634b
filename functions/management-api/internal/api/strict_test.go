package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/functions/management-api/internal/api"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// A body that two readers would read differently decides nothing.
func TestADecisionIsSaidOnce(t *testing.T) {
	w := newWorld(t)
	session := w.say("coder", "x").Session
	id := string(w.asked(session))
	for body, want := range map[string]int{
		`{"decision":"REJECT","decision":"APPROVE"}`:                               http.StatusBadRequest,
		`{"decision":"APPROVE","decision":"REJECT"}`:                               http.StatusBadRequest,
		`{"decision":"REJECT","Decision":"APPROVE"}`:                               http.StatusUnprocessableEntity,
		`{"decision":"REJECT","DECISION":"bogus"}`:                                 http.StatusUnprocessableEntity,
		`{"decision":"REJECT","DECISION":""}`:                                      http.StatusUnprocessableEntity,
		`{"DECISION":"APPROVE"}`:                                                   http.StatusUnprocessableEntity,
		`{"decision":"approve"}`:                                                   http.StatusUnprocessableEntity,
		`{"decision":null}`:                                                        http.StatusUnprocessableEntity,
		`{}`:                                                                       http.StatusUnprocessableEntity,
		`{"decision":"REJECT","deci\u017fion":"APPROVE"}`:                          http.StatusUnprocessableEntity,
		`{"decision":"APPROVE","digest":"other","Digest":""}`:                      http.StatusUnprocessableEntity,
		`{"decision":"APPROVE","digest":"other","digest":"d1"}`:                    http.StatusBadRequest,
		`{"decision":` + strings.Repeat(`[`, 200) + strings.Repeat(`]`, 200) + `}`: http.StatusBadRequest,
		`{"` + strings.Repeat("k", 2000) + `":1}`:                                  http.StatusBadRequest,
	} {
		problem(t, w.post("/approvals/"+id+"/decision", body), want)
		if want == http.StatusBadRequest || strings.Contains(body, `"REJECT"`) {
			problem(t, w.post("/sessions/"+string(session)+"/approve", body), want)
		}
	}
	if state := w.Query(`SELECT state FROM approvals WHERE approval_id = $1`, id); state != "PENDING" {
		t.Errorf("it is %s", state)
	}
	problem(t, w.post("/sessions", `{"agent":"coder","text":"x","Text":"`+strings.Repeat("y", 70000)+`"}`), http.StatusUnprocessableEntity)
	problem(t, w.post("/agents", `{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiAgent","metadata":{"name":"a"},"spec":{"description":"x","description":"y"}}`), http.StatusBadRequest)
	problem(t, w.post("/agents", `{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiAgent","Kind":"AiWorkflow","metadata":{"name":"a"},"spec":{}}`), http.StatusUnprocessableEntity)
	two := fmt.Sprintf(agentYAML, "first") + "---\n" + fmt.Sprintf(agentYAML, "second")
	a := w.do(request{method: http.MethodPost, path: "/api/v1/agents", body: two, header: map[string]string{"Content-Type": "application/yaml"}})
	if problem(t, a, http.StatusUnprocessableEntity); w.get("/agents/first").status != http.StatusNotFound {
		t.Error("the first of two documents was created")
	}
}

// hanging lets its client hang up before the handler begins.
type hanging struct {
	access.Access
	hangUp context.CancelFunc
}

func (h *hanging) Allow(ctx context.Context, c access.Caller, r access.Right) (bool, error) {
	h.hangUp()
	<-ctx.Done()
	return h.Access.Allow(context.WithoutCancel(ctx), c, r)
}

// A client that hangs up loses neither the events of its write nor its record.
func TestWritesOutliveTheirClients(t *testing.T) {
	w := newWorld(t)
	cases := w.rows().cases()
	w.Exec(`DELETE FROM audit_log`)
	w.stop()
	h := &hanging{}
	w.start("127.0.0.1:0", func(o *api.Options) { h.Access, o.Access = o.Access, h })
	writes, events := 0, 0
	for _, o := range api.Operations() {
		if o.Method == http.MethodGet || o.ID == "resume" { // nobody waits for halt, without which it does nothing
			continue
		}
		v := cases[o.ID]
		writes, events = writes+1, events+len(v.says)
		ctx, cancel := context.WithCancel(t.Context())
		h.hangUp = cancel
		q, err := http.NewRequestWithContext(ctx, o.Method, "http://"+w.address+target(o.Path, v), strings.NewReader(v.body))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Authorization", "Bearer "+token(access.RoleAdmin))
		for name, value := range v.header {
			q.Header.Set(name, value)
		}
		if response, err := w.client.Do(q); err == nil {
			response.Body.Close()
			t.Errorf("%s: the client got an answer", o.ID)
		}
	}
	w.stop() // waits for who works
	if n := w.Query(`SELECT count(*)::text FROM audit_log`); n != fmt.Sprint(writes) {
		t.Errorf("%s of %d writes are in the audit: %s", n, writes, w.Query(`SELECT string_agg(action, ', ') FROM audit_log`))
	}
	if said := w.published(); len(said) != events {
		t.Errorf("said %v, want %d events", said, events)
	}
}

func TestAKeyIsOfOneMessage(t *testing.T) {
	w := newWorld(t)
	send := func(path, body, key string) answer {
		return w.do(request{method: http.MethodPost, path: "/api/v1" + path, body: body, header: map[string]string{"Idempotency-Key": key}})
	}
	first := decode[accepted](t, send("/sessions", `{"agent":"coder","text":"a","chat":"one"}`, "k"), http.StatusAccepted)
	if again := decode[accepted](t, send("/sessions", `{"agent":"coder","text":"a","chat":"one"}`, "k"), http.StatusAccepted); !again.Duplicate || again.Message != first.Message {
		t.Errorf("the same: %+v", again)
	}
	other := w.say("coder", "b").Session
	decode[accepted](t, send("/sessions/"+string(first.Session)+"/messages", `{"text":"c"}`, "k2"), http.StatusAccepted)
	for what, a := range map[string]answer{
		"another text":    send("/sessions", `{"agent":"coder","text":"b","chat":"one"}`, "k"),
		"another chat":    send("/sessions", `{"agent":"coder","text":"a","chat":"two"}`, "k"),
		"no chat":         send("/sessions", `{"agent":"coder","text":"a"}`, "k"),
		"another session": send("/sessions/"+string(other)+"/messages", `{"text":"c"}`, "k2"),
		"other words":     send("/sessions/"+string(first.Session)+"/messages", `{"text":"d"}`, "k2"),
	} {
		if p := problem(t, a, http.StatusConflict); !cmp.Equal(pointers(p), []string{"header/Idempotency-Key"}) {
			t.Errorf("%s: %+v", what, p)
		}
	}
}

// Two callers who call a conversation the same do not talk in one.
func TestAChatIsOfItsCaller(t *testing.T) {
	w := newWorld(t)
	start := func(role string) accepted {
		return decode[accepted](t, w.do(request{method: http.MethodPost, path: "/api/v1/sessions", body: `{"agent":"coder","text":"x","chat":"main"}`, role: role}), http.StatusAccepted)
	}
	mine, again, theirs := start(access.RoleAdmin), start(access.RoleAdmin), start(access.RoleOperator)
	if mine.Session != again.Session || mine.Session == theirs.Session {
		t.Errorf("sessions %s, %s and %s", mine.Session, again.Session, theirs.Session)
	}
	if s := decode[view.Session](t, w.get("/sessions/"+string(mine.Session)), http.StatusOK); !strings.HasSuffix(s.Chat, "/main") || len(s.Chat) != 16+len("/main") {
		t.Errorf("chat %q", s.Chat)
	}
}

// What is said in a query is done or refused, never dropped.
func TestQueriesThatAreWrong(t *testing.T) {
	w := newWorld(t)
	w.say("coder", "x")
	for query, want := range map[string]string{
		"agent=%zz":               "query/agent",
		"agent=coder;limit=1":     "query/agent",
		"agent=%00":               "query/agent",
		"agent=co%00der":          "query/agent",
		"channelUserId=%ff":       "query/channelUserId",
		"agent=coder&agent=spare": "query/agent",
		"limit=1&limit=2":         "query/limit",
		"agent&limit=1":           "query/agent",
		"limit=":                  "query/limit",
		"%zz=1":                   "query/%zz",
	} {
		if p := problem(t, w.get("/sessions?"+query), http.StatusBadRequest); !cmp.Equal(pointers(p), []string{want}) {
			t.Errorf("%s: %v", query, pointers(p))
		}
	}
	for _, query := range []string{"dryRun", "dryRun=", "dryRun&x=1", "dryRun=true&dryRun=false"} {
		problem(t, w.do(request{method: http.MethodPost, path: "/api/v1/agents?" + query, body: `{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiAgent","metadata":{"name":"dry"},"spec":{}}`}), http.StatusBadRequest)
	}
	decode[json.RawMessage](t, w.do(request{method: http.MethodPost, path: "/api/v1/agents?&dry%52un=true&", body: `{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiAgent","metadata":{"name":"dry"},"spec":{}}`}), http.StatusCreated)
	if w.get("/agents/dry").status != http.StatusNotFound {
		t.Error("a dry run created it")
	}
	if p := decode[page[view.Session]](t, w.get("/sessions?status=IDLE&status=PENDING&after="), http.StatusOK); len(p.Items) != 1 {
		t.Errorf("a list of values: %+v", p)
	}
}

func TestTheAuditHasNoCommands(t *testing.T) {
	w := newWorld(t)
	session := w.say("coder", "x").Session
	_, e := w.command(session, "true")
	decode[view.Execution](t, w.post("/sandboxes/"+string(e.Sandbox.ID)+"/executions", `{"command":"curl -H SECRETSECRET http://x"}`), http.StatusAccepted)
	id := w.asked(session)
	decode[view.Approval](t, w.post("/approvals/"+string(id)+"/decision", `{"decision":"APPROVE","reason":"SECRETSECRET"}`), http.StatusOK)
	entries := w.Query(`SELECT string_agg(concat(action, object, before, after), E'\n') FROM audit_log WHERE action ~ '^(exec|decide)'`)
	for _, secret := range []string{"SECRETSECRET", "rm -r build"} {
		if strings.Contains(entries, secret) {
			t.Errorf("the audit has %s: %s", secret, entries)
		}
	}
	for _, kept := range []string{string(id), `"d1"`, `"APPROVED"`, `"PENDING"`, string(e.Sandbox.ID), string(session)} {
		if !strings.Contains(entries, kept) {
			t.Errorf("the audit lacks %s: %s", kept, entries)
		}
	}
}

func TestApprovalsThatWait(t *testing.T) {
	w := newWorld(t)
	session := w.say("coder", "x").Session
	old := w.asked(session)
	w.Exec(`UPDATE approvals SET expires_at = now() - interval '1 hour' WHERE approval_id = $1`, old)
	path := "/sessions/" + string(session) + "/approve"
	problem(t, w.post(path, ""), http.StatusConflict)
	live := w.asked(session)
	if a := decode[view.Approval](t, w.post(path, ""), http.StatusOK); a.ID != live {
		t.Errorf("decided %s, not the one that waits", a.ID)
	}
	problem(t, w.post(path, `{"approval":"`+string(old)+`"}`), http.StatusConflict)
	elsewhere := w.asked(w.say("spare", "y").Session)
	for _, id := range []harness.ApprovalID{elsewhere, "apr_none"} {
		if p := problem(t, w.post(path, `{"approval":"`+string(id)+`"}`), http.StatusConflict); !cmp.Equal(pointers(p), []string{"#/approval"}) {
			t.Errorf("%s: %+v", id, p)
		}
	}
	first := w.asked(session)
	for range 201 { // more than a page
		w.asked(session)
	}
	if a := decode[view.Approval](t, w.post(path, `{"approval":"`+string(first)+`"}`), http.StatusOK); a.ID != first {
		t.Errorf("decided %s", a.ID)
	}
}

// What is said about a request is bounded, however long the request is.
func TestProblemsAreBounded(t *testing.T) {
	w := newWorld(t)
	var fields strings.Builder
	for n := range 300 {
		fmt.Fprintf(&fields, `,"%s%d":1`, strings.Repeat("é", 200), n)
	}
	unknown := "{" + fields.String()[1:] + "}"
	for what, a := range map[string]answer{
		"a resource": w.post("/agents", `{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiAgent","metadata":{"name":"a"},"spec":`+unknown+`}`),
		"a body":     w.do(request{method: http.MethodPatch, path: "/api/v1/agents/coder/features", body: unknown, header: map[string]string{"If-Match": "*"}}),
	} {
		p := problem(t, a, http.StatusUnprocessableEntity)
		if len(p.Errors) != 101 || !strings.HasPrefix(p.Errors[100].Detail, "and ") || !strings.HasSuffix(p.Errors[100].Detail, " more") {
			t.Errorf("%s: %d errors, the last %+v", what, len(p.Errors), p.Errors[len(p.Errors)-1])
		}
		for _, e := range p.Errors {
			if len(e.Pointer) > 256 || len(e.Detail) > 256 || strings.ContainsRune(e.Pointer+e.Detail, '\uFFFD') {
				t.Fatalf("%s: %d and %d bytes: %+v", what, len(e.Pointer), len(e.Detail), e)
			}
		}
	}
}

// anybody is known by his token, and may do everything.
type anybody struct{}

func (anybody) Identify(_ context.Context, token string) (access.Caller, error) {
	return access.Caller{Name: token}, nil
}

func (anybody) Allow(context.Context, access.Caller, access.Right) (bool, error) { return true, nil }

func TestStreamsAreBounded(t *testing.T) {
	w := newWorld(t)
	session := w.say("coder", "x").Session
	began := time.Now()
	a := w.do(request{method: http.MethodHead, path: "/api/v1/sessions/" + string(session) + "/events"})
	if a.status != http.StatusOK || a.header.Get("Content-Type") != "text/event-stream" || time.Since(began) > 5*time.Second {
		t.Errorf("HEAD: %d %v after %s", a.status, a.header, time.Since(began))
	}
	w.stop()
	w.start("127.0.0.1:0", func(o *api.Options) { o.Access = anybody{} })
	open := func(caller string) (int, context.CancelFunc) {
		ctx, cancel := context.WithCancel(t.Context())
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.address+"/api/v1/sessions/"+string(session)+"/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Authorization", "Bearer "+caller)
		response, err := w.client.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cancel(); response.Body.Close() })
		if response.StatusCode != http.StatusOK && response.Header.Get("Retry-After") == "" {
			t.Errorf("%d without Retry-After", response.StatusCode)
		}
		return response.StatusCode, cancel
	}
	var last context.CancelFunc
	for caller := range 10 {
		for range 20 {
			status, cancel := open(fmt.Sprint("caller-", caller))
			if last = cancel; status != http.StatusOK {
				t.Fatalf("a stream of caller %d: %d", caller, status)
			}
		}
		if status, _ := open(fmt.Sprint("caller-", caller)); status != http.StatusTooManyRequests {
			t.Fatalf("one more of caller %d: %d", caller, status)
		}
	}
	if status, _ := open("another"); status != http.StatusServiceUnavailable {
		t.Errorf("one more of the process: %d", status)
	}
	last()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if status, _ := open("another"); status == http.StatusOK {
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("where one was closed: %d", status)
		}
	}
}
