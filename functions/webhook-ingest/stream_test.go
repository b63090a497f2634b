package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

type sseEvent struct {
	id, name string
	data     map[string]any
}

func (e sseEvent) text(field string) string { s, _ := e.data[field].(string); return s }

// subscription is an open stream.
type subscription struct {
	t      testing.TB
	lines  *bufio.Scanner
	close  func()
	status int
}

func (p *process) subscribe(hook, query string, header ...string) *subscription {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	request := signed(http.MethodGet, p.URL+hooksPath+hook+"/stream?"+query, "", secret, time.Now()).WithContext(ctx)
	for n := 0; n+1 < len(header); n += 2 {
		request.Header.Set(header[n], header[n+1])
	}
	response, err := p.Client.Do(request)
	if err != nil {
		p.T.Fatal(err)
	}
	s := &subscription{t: p.T, lines: bufio.NewScanner(response.Body), status: response.StatusCode}
	s.lines.Buffer(nil, 4<<20)
	s.close = func() { response.Body.Close(); cancel() }
	p.T.Cleanup(s.close)
	return s
}

// next returns the next event, or false at the stream's end.
func (s *subscription) next() (sseEvent, bool) {
	var e sseEvent
	for s.lines.Scan() {
		field, value, _ := strings.Cut(s.lines.Text(), ": ")
		switch field {
		case "id":
			e.id = value
		case "event":
			e.name = value
		case "data":
			if err := json.Unmarshal([]byte(value), &e.data); err != nil {
				s.t.Fatalf("data %q: %v", value, err)
			}
		case "":
			if e.name != "" {
				return e, true
			}
		}
	}
	return e, false
}

func (s *subscription) want(name string) sseEvent {
	s.t.Helper()
	e, ok := s.next()
	if !ok || e.name != name {
		s.t.Fatalf("got %q %v (%v), want %q", e.name, e.data, ok, name)
	}
	return e
}

// all reads to the end.
func (s *subscription) all() string {
	s.t.Helper()
	var names []string
	for {
		e, ok := s.next()
		if !ok {
			return strings.Join(names, " ")
		}
		names = append(names, strings.TrimSuffix(e.name+":"+e.text("text"), ":"))
	}
}

// command lets the session's turn run a command and returns the call and the
// execution; print appends to its output, finish ends it and hands the result in.
type command struct {
	w         *world
	session   harness.SessionID
	call      harness.ToolCallID
	execution harness.ExecutionID
}

func (w *world) command(session harness.SessionID, text string) *command {
	w.T.Helper()
	ctx := context.Background()
	claim, err := w.Store.ClaimSession(ctx, session, postgres.Lease{Owner: "agent", For: time.Minute})
	if err != nil {
		w.T.Fatal(err)
	}
	c := &command{w: w, session: session, call: harness.NewToolCallID(time.Now()), execution: harness.NewExecutionID(time.Now())}
	arguments, _ := json.Marshal(map[string]string{"command": text})
	_, err = w.Store.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionAwaitingExecution, Start: true, Step: &postgres.NewStep{
		ID: harness.NewStepID(time.Now()), Calls: []postgres.NewCall{{
			CallOutcome: postgres.CallOutcome{ID: c.call, State: harness.ToolCallRunning}, ProviderID: "p", Name: harness.ToolExecuteShell, Arguments: string(arguments),
			Execution: &postgres.NewExecution{ID: c.execution, Command: text, Spec: harness.DefaultSandbox(), MaxSandboxes: 1, Nonce: "n"},
		}},
	}})
	if err != nil {
		w.T.Fatal(err)
	}
	return c
}

func (c *command) print(stream string, offset int, data string) {
	c.w.T.Helper()
	c.w.Exec(`INSERT INTO execution_output (execution_id, stream, start_byte, data) VALUES ($1, $2, $3, $4)`, c.execution, stream, offset, []byte(data))
}

func (c *command) finish(exit int, reply ...string) {
	c.w.T.Helper()
	ctx := context.Background()
	c.w.Exec(`UPDATE executions SET state = CASE WHEN $2 = 0 THEN 'COMPLETED' ELSE 'FAILED' END, exit_code = $2, ended_at = now() WHERE execution_id = $1`, c.execution, exit)
	c.w.Exec(`UPDATE sessions SET due_at = now() WHERE session_id = $1`, c.session)
	claim, err := c.w.Store.ClaimSession(ctx, c.session, postgres.Lease{Owner: "agent", For: time.Minute})
	if err != nil {
		c.w.T.Fatal(err)
	}
	if _, err := c.w.Store.CommitStep(ctx, postgres.StepCommit{
		Claim: claim, State: harness.SessionIdle, Reply: reply,
		Results: []postgres.CallOutcome{{ID: c.call, State: harness.ToolCallDone, Result: fmt.Sprint("exit code ", exit)}},
	}); err != nil {
		c.w.T.Fatal(err)
	}
}

func TestStreamOfATurn(t *testing.T) {
	w := newWorld(t)
	w.hook("hook", harness.ChannelSpec{})
	p := w.start("public", nil)
	s := p.subscribe("hook", "chat=room")
	a := p.post("hook", `{"messageId":"m1","channelUserId":"ann","chat":"room","text":"count\u001b[2J"}`)
	c := w.command(a.Session, "echo hi")
	turn := s.want("turn")
	if turn.text("message") != string(a.Message) || turn.text("messageId") != "m1" || turn.text("text") != "count\x1b[2J" || turn.id != string(a.Session)+"/1" {
		t.Errorf("turn %+v", turn)
	}
	call := s.want("tool_call")
	if call.text("name") != "executeShell" || call.text("arguments") != `{"command":"echo hi"}` || call.text("toolCall") != string(c.call) {
		t.Errorf("call %+v", call)
	}
	c.print("stdout", 0, "h\xc3")
	if o := s.want("output"); o.text("text") != "h" || o.data["offset"] != 0.0 || o.id != "" || o.text("toolCall") != string(c.call) {
		t.Errorf("output %+v", o)
	}
	c.print("stdout", 2, "\xa9llo\n") // the rest of a character
	if o := s.want("output"); o.text("text") != "éllo\n" || o.data["offset"] != 1.0 {
		t.Errorf("output %+v", o)
	}
	c.print("stderr", 0, "bad \xff\xe2\x82")
	if o := s.want("output"); o.text("text") != "bad \uFFFD" || o.text("stream") != "stderr" {
		t.Errorf("output %+v", o)
	}
	c.finish(3, "done", " and done")
	if o := s.want("output"); o.text("text") != "\uFFFD" || o.data["offset"] != 5.0 {
		t.Errorf("the rest of the output %+v", o)
	}
	result := s.want("tool_result")
	execution, _ := result.data["execution"].(map[string]any)
	if result.text("state") != "DONE" || execution["state"] != "FAILED" || execution["exitCode"] != 3.0 {
		t.Errorf("result %+v", result)
	}
	reply := s.want("reply")
	if reply.text("text") != "done and done" || reply.text("inReplyTo") != string(a.Message) {
		t.Errorf("reply %+v", reply)
	}
	w.Await("true", `SELECT bool_and(state = 'DELIVERED')::text FROM replies`)
	if n := w.Query(`SELECT count(*)::text FROM outbox WHERE event_type LIKE '%reply%'`); n != "0" {
		t.Errorf("%s announcements of a reply that was fetched", n)
	}
	s.close()

	// From the start without following: old output is not repeated.
	if got := p.subscribe("hook", "chat=room&follow=false").all(); got != "session turn:count\x1b[2J tool_call tool_result reply:done and done" {
		t.Errorf("history %q", got)
	}
	// Behind an event, by either way.
	if got := p.subscribe("hook", "chat=room&follow=false&after="+url.QueryEscape(call.id)).all(); got != "session output:héllo\n output:bad \uFFFD tool_result reply:done and done" {
		t.Errorf("after the call %q", got)
	}
	if got := p.subscribe("hook", "chat=room&follow=false&after="+url.QueryEscape(call.id), "Last-Event-ID", result.id).all(); got != "session reply:done and done" {
		t.Errorf("by Last-Event-ID %q", got)
	}
}

func TestStreamResumesACallThatRuns(t *testing.T) {
	w := newWorld(t)
	w.hook("hook", harness.ChannelSpec{})
	p := w.start("public", nil)
	a := p.say("hook", "ann", "m1", "go")
	c := w.command(a.Session, "sleep 1")
	c.print("stdout", 0, "begun")
	s := p.subscribe("hook", "chat=ann")
	s.want("session")
	s.want("turn")
	call := s.want("tool_call")
	if o := s.want("output"); o.text("text") != "begun" {
		t.Errorf("output %+v", o)
	}
	s.close()
	s = p.subscribe("hook", "chat=ann&after="+url.QueryEscape(call.id))
	s.want("session")
	if o := s.want("output"); o.text("text") != "begun" {
		t.Errorf("output on a new connection %+v", o)
	}
	c.print("stdout", 5, " ended")
	if o := s.want("output"); o.text("text") != " ended" || o.data["offset"] != 5.0 {
		t.Errorf("output %+v", o)
	}
	c.finish(0, "ok")
	s.want("tool_result")
	s.want("reply")
}

func TestStreamGoesOnInTheNextConversation(t *testing.T) {
	w := newWorld(t)
	w.hook("hook", harness.ChannelSpec{})
	p := w.start("public", nil)
	first := p.say("hook", "ann", "m1", "one")
	w.turn(first.Session, false, "a1")
	s := p.subscribe("hook", "chat=ann")
	if e := s.want("session"); e.data["turns"] != 1.0 || e.text("state") != "IDLE" || e.text("session") != string(first.Session) {
		t.Errorf("session %+v", e)
	}
	s.want("turn")
	place := s.want("reply").id
	p.say("hook", "ann", "m2", "/new")
	w.turn(first.Session, true, "new")
	second := p.say("hook", "ann", "m3", "/new")
	w.turn(second.Session, true, "new again")
	third := p.say("hook", "ann", "m4", "three")
	w.turn(third.Session, false, "a3")
	if first.Session == second.Session || second.Session == third.Session {
		t.Fatal("the conversations must differ")
	}
	for _, want := range []string{"/new", "new", "/new", "new again", "three", "a3"} {
		if e, _ := s.next(); e.text("text") != want {
			t.Fatalf("got %+v, want %s", e, want)
		}
	}
	if got := p.subscribe("hook", "chat=ann&follow=false&after="+url.QueryEscape(place)).all(); got != "session turn:/new reply:new turn:/new reply:new again turn:three reply:a3" {
		t.Errorf("after the first answer %q", got)
	}
	if got := p.subscribe("hook", "chat=ann&follow=false").all(); got != "session turn:three reply:a3" {
		t.Errorf("the newest %q", got)
	}
	if got := p.subscribe("hook", "chat=bob&follow=false&after="+url.QueryEscape(place)).all(); got != "" {
		t.Errorf("another chat's place shows %q", got)
	}
	w.Exec(`UPDATE channel_routes SET agent_name = 'other'`)
	if got := p.subscribe("hook", "chat=ann&follow=false&after="+url.QueryEscape(place)).all(); got != "" {
		t.Errorf("the next owner of the hook sees %q", got)
	}
}

func TestStreamOfManyEvents(t *testing.T) {
	w := newWorld(t)
	w.hook("hook", harness.ChannelSpec{})
	p := w.start("public", nil)
	a := p.say("hook", "ann", "m0", "0")
	w.turn(a.Session, false, "0")
	w.Exec(`INSERT INTO session_events (session_id, seq, kind, ref) SELECT $1, n, 'TURN', $2 FROM generate_series(3, 452) n`, a.Session, a.Message)
	got := p.subscribe("hook", "chat=ann&follow=false").all()
	if n := strings.Count(got, "turn:0"); n != 451 {
		t.Errorf("%d turns, want 451", n)
	}
}

func TestStreamEndsWhenTheProcessDoes(t *testing.T) {
	w := newWorld(t)
	w.hook("hook", harness.ChannelSpec{})
	p := w.start("public", nil)
	s := p.subscribe("hook", "chat=ann")
	began := time.Now()
	p.Stop()
	if got := s.all(); got != "" {
		t.Errorf("got %q", got)
	}
	if err := s.lines.Err(); err != nil {
		t.Errorf("not a clean end: %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the drain took %s", took)
	}
	p = w.start("public", map[string]string{"STREAM_TIME": "300ms"})
	if s := p.subscribe("hook", "chat=ann"); s.all() != "" || s.lines.Err() != nil {
		t.Errorf("a stream at the end of its time: %v", s.lines.Err())
	}
}

func TestBadStreams(t *testing.T) {
	w := newWorld(t)
	w.hook("hook", harness.ChannelSpec{})
	p := w.start("public", nil)
	path := p.URL + hooksPath
	for name, c := range map[string]struct {
		request *http.Request
		status  int
	}{
		"unsigned": {func() *http.Request {
			r, _ := http.NewRequest(http.MethodGet, path+"hook/stream?chat=a", nil)
			return r
		}(), 401},
		"other secret": {signed(http.MethodGet, path+"hook/stream?chat=a", "", "other", time.Now()), 401},
		"another chat": {func() *http.Request {
			r := signed(http.MethodGet, path+"hook/stream?chat=a", "", secret, time.Now())
			r.URL.RawQuery = "chat=b"
			return r
		}(), 401},
		"stale":        {signed(http.MethodGet, path+"hook/stream?chat=a", "", secret, time.Now().Add(-time.Hour)), 401},
		"unknown hook": {signed(http.MethodGet, path+"nope/stream?chat=a", "", secret, time.Now()), 404},
		"no chat":      {signed(http.MethodGet, path+"hook/stream", "", secret, time.Now()), 400},
		"bad place":    {signed(http.MethodGet, path+"hook/stream?chat=a&after=12", "", secret, time.Now()), 400},
		"NUL in place": {signed(http.MethodGet, path+"hook/stream?chat=a&after=ses%00/1", "", secret, time.Now()), 400},
		"method":       {signed(http.MethodPost, path+"hook/stream?chat=a", "", secret, time.Now()), 405},
	} {
		if a := p.do(c.request); a.Status != c.status || a.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %s, want %d", name, a.Status, a.Body, c.status)
		}
	}
}
