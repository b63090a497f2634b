package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/functions/management-api/internal/api"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

type sseEvent struct {
	id, name string
	data     map[string]any
}

// connection is an open stream.
type connection struct {
	lines *bufio.Scanner
	close func()
}

// watch follows a session behind the event with the id last.
func (w *world) watch(session harness.SessionID, query, last string) *connection {
	w.T.Helper()
	return w.open("/api/v1/sessions/"+string(session)+"/events"+query, last)
}

// open opens the stream at path behind the event with the id last.
func (w *world) open(path, last string) *connection {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.address+path, nil)
	if err != nil {
		w.T.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer "+token(access.RoleViewer))
	if last != "" {
		q.Header.Set("Last-Event-ID", last)
	}
	response, err := w.client.Do(q)
	if err != nil {
		w.T.Fatal(err)
	}
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "text/event-stream" {
		w.T.Fatalf("%d %v", response.StatusCode, response.Header)
	}
	c := &connection{lines: bufio.NewScanner(response.Body), close: func() { cancel(); response.Body.Close() }}
	w.T.Cleanup(c.close)
	return c
}

func (c *connection) next() (sseEvent, bool) {
	var e sseEvent
	for c.lines.Scan() {
		field, value, _ := strings.Cut(c.lines.Text(), ": ")
		switch field {
		case "id":
			e.id = value
		case "event":
			e.name = value
		case "data":
			if err := json.Unmarshal([]byte(value), &e.data); err != nil {
				return e, false
			}
		case "":
			if e.name != "" {
				return e, true
			}
		}
	}
	return e, false
}

// A reader that is cut off 20 times while turns run, each time at another event,
// and whose server is replaced in between, has every event once and in order.
func TestStreamSurvivesCutsAndARestart(t *testing.T) {
	w := newWorld(t)
	const turns = 24
	session := w.say("coder", "turn 0").Session
	worked := make(chan struct{})
	go func() {
		defer close(worked)
		for n := range turns {
			call, e := w.command(session, fmt.Sprint("step ", n))
			w.Exec(`INSERT INTO execution_output (execution_id, stream, start_byte, data) VALUES ($1, 'stdout', 0, 'half ')`, e.ID)
			w.finish(session, call, e, "half done", fmt.Sprint("answer ", n))
			if n < turns-1 {
				w.arrive(session, n+1)
			}
		}
	}()
	var got []string
	last := ""
	cuts, restarts := 0, 0
	for len(got) < 4*turns && !t.Failed() {
		c := w.watch(session, "", last)
		for seen := 0; len(got) < 4*turns && (cuts == 20 || seen <= cuts%5); {
			e, ok := c.next()
			if !ok {
				break
			}
			if e.id == "" {
				continue
			}
			seen++
			last = e.id
			got = append(got, fmt.Sprintf("%v %s", e.data["seq"], e.name))
		}
		c.close()
		if cuts < 20 {
			cuts++
		}
		if cuts == 10 && restarts == 0 {
			address := w.address
			w.stop()
			w.start(address)
			restarts++
		}
	}
	<-worked
	var want []string
	for n := range 4 * turns {
		want = append(want, fmt.Sprintf("%d %s", n+1, []string{"turn", "tool_call", "tool_result", "reply"}[n%4]))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	t.Logf("%d events, %d cuts, %d restarts", len(got), cuts, restarts)
	if cuts != 20 || restarts != 1 {
		t.Error("that was not the test")
	}
}

// arrive sends the session's next message as the API does.
func (w *world) arrive(session harness.SessionID, n int) {
	w.T.Helper()
	q, err := http.NewRequest(http.MethodPost, "http://"+w.address+"/api/v1/sessions/"+string(session)+"/messages", strings.NewReader(fmt.Sprintf(`{"text":"turn %d"}`, n)))
	if err != nil {
		w.T.Error(err)
		return
	}
	q.Header.Set("Authorization", "Bearer "+token(access.RoleAdmin))
	q.Header.Set("Idempotency-Key", fmt.Sprint("turn ", n))
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		q := q.Clone(context.Background())
		q.Body, _ = q.GetBody()
		response, err := w.client.Do(q)
		if err != nil {
			continue // the server is being replaced
		}
		response.Body.Close()
		if response.StatusCode == http.StatusAccepted {
			return
		}
	}
	w.T.Errorf("message %d was not taken", n)
}

// From the begin, from a seq, and at the end of a session that has ended.
func TestStreamOfASession(t *testing.T) {
	w := newWorld(t)
	session := w.say("coder", "hi").Session
	call, e := w.command(session, "seq 3")
	w.finish(session, call, e, "1\n2\n3\n", "done")
	all := func(query, last string) string {
		c := w.watch(session, query, last)
		var names []string
		for {
			e, ok := c.next()
			if !ok {
				return strings.Join(names, " ")
			}
			names = append(names, e.name)
		}
	}
	if got := all("?follow=false", ""); got != "session turn tool_call tool_result reply" {
		t.Errorf("all: %s", got)
	}
	if got := all("?follow=false&after=2", ""); got != "session output tool_result reply" {
		t.Errorf("behind the call: %s", got)
	}
	if got := all("?follow=false&after=1", string(session)+"/3"); got != "session reply" {
		t.Errorf("Last-Event-ID wins: %s", got)
	}
	c := w.watch(session, "?after=4", "")
	if e, _ := c.next(); e.data["state"] != "IDLE" {
		t.Errorf("begins with %+v", e)
	}
	w.post("/sessions/"+string(session)+"/cancel", "")
	for _, want := range []string{"session", "end"} {
		if e, ok := c.next(); !ok || e.name != want || e.data["state"] != "CANCELLED" {
			t.Errorf("got %+v, want %s", e, want)
		}
	}
	if e, ok := c.next(); ok {
		t.Errorf("behind the end: %+v", e)
	}
	if got := all("", string(session)+"/4"); got != "session end" {
		t.Errorf("of an ended session: %s", got)
	}
}

func TestStreamEndsWithTheProcess(t *testing.T) {
	w := newWorld(t)
	session := w.say("coder", "hi").Session
	c := w.watch(session, "", "")
	if e, _ := c.next(); e.name != "session" {
		t.Errorf("got %+v", e)
	}
	began := time.Now()
	w.stop()
	if _, ok := c.next(); ok || c.lines.Err() != nil || time.Since(began) > 5*time.Second {
		t.Errorf("not a clean end after %s: %v", time.Since(began), c.lines.Err())
	}
	w.start("127.0.0.1:0", func(o *api.Options) { o.StreamTime = 200 * time.Millisecond })
	c = w.watch(session, "", "")
	c.next()
	if _, ok := c.next(); ok || c.lines.Err() != nil {
		t.Errorf("not a clean end of its time: %v", c.lines.Err())
	}
}

// A reader sees an answer grow, by events without an id: one that comes back behind
// the last event it has misses and repeats nothing.
func TestStreamShowsDrafts(t *testing.T) {
	w := newWorld(t)
	session := w.say("coder", "a long question").Session
	claim, err := w.Store.ClaimSession(t.Context(), session, postgres.Lease{Owner: "test", For: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	keep := func(text string) {
		t.Helper()
		if err := w.Store.WriteDraft(t.Context(), claim, text); err != nil {
			t.Fatal(err)
		}
	}
	keep("One")
	next := func(c *connection, names ...string) sseEvent {
		t.Helper()
		for {
			e, ok := c.next()
			if !ok || !slices.Contains(names, e.name) {
				t.Fatalf("got %+v, want one of %q", e, names)
			}
			if e.name == names[0] {
				return e
			}
		}
	}
	c := w.watch(session, "", "")
	if e := next(c, "draft", "session"); e.id != "" || e.data["text"] != "One" || e.data["session"] != string(session) || e.data["inReplyTo"] != string(claim.Turns[0].Message) || e.data["revision"] != 1.0 {
		t.Errorf("got %+v", e)
	}
	keep("One two")
	if e := next(c, "draft"); e.data["text"] != "One two" {
		t.Errorf("got %+v", e)
	}
	back := w.watch(session, "", string(session)+"/0")
	if e := next(back, "draft", "session"); e.data["text"] != "One two" {
		t.Errorf("who comes back got %+v", e)
	}
	if a := w.get("/api/v1/sessions/" + string(session) + "/events?follow=false"); strings.Contains(a.body, "event: draft") {
		t.Errorf("what there is holds a draft: %s", a.body)
	}
	if _, err := w.Store.CommitStep(t.Context(), postgres.StepCommit{
		Claim: claim, State: harness.SessionIdle, Start: true, Step: &postgres.NewStep{ID: harness.NewStepID(time.Now()), Text: "One two three"}, Reply: []string{"One two three"},
	}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*connection{c, back} {
		if turn := next(c, "turn", "session"); turn.id != string(session)+"/1" {
			t.Errorf("got %+v", turn)
		}
		if reply := next(c, "reply", "session"); reply.id != string(session)+"/2" || reply.data["text"] != "One two three" {
			t.Errorf("got %+v", reply)
		}
	}
	if got := w.Query(`SELECT count(*)::text FROM drafts`); got != "0" {
		t.Errorf("%s drafts are left", got)
	}
}
