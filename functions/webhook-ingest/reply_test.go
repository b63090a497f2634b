package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// receiver is a system that gets replies: it checks every signature and keeps
// every POST, repeats too.
type receiver struct {
	vague  bool // says 200 to a question without naming the reply
	server *httptest.Server
	mu     sync.Mutex
	posts  []post
	asked  int // questions whether a reply arrived
	// answer decides about a POST; nil: 200. It may panic with http.ErrAbortHandler to lose the answer.
	answer func(w http.ResponseWriter, p post, n int)
	knows  func(reply string) int // status of the evidence; nil: 200 for what was POSTed, else 404
	bad    []string
}

type post struct {
	key, trace                     string
	MessageID, Session, Chat, Text string
	ChannelUserID, InReplyTo       string
	Part, Parts                    int
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{}
	r.server = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(r.server.Close)
	t.Cleanup(func() {
		if len(r.bad) > 0 {
			t.Errorf("the receiver was sent what it must not be sent: %q", r.bad)
		}
	})
	return r
}

func (r *receiver) serve(w http.ResponseWriter, request *http.Request) {
	body, _ := io.ReadAll(request.Body)
	content := "reply." + string(body)
	if request.Method == http.MethodGet {
		content = request.RequestURI
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if request.Header.Get("X-Tuluat-Signature") != signature(secret, request.Header.Get("X-Tuluat-Timestamp"), content) {
		r.bad = append(r.bad, "a request with a wrong signature")
	}
	if request.Method == http.MethodGet {
		r.asked++
		reply := request.URL.Query().Get("reply")
		status := r.evidence(reply)
		if status == http.StatusOK && !r.vague {
			w.Header().Set("X-Tuluat-Message-Id", reply)
		}
		w.WriteHeader(status)
		return
	}
	p := post{key: request.Header.Get("Idempotency-Key"), trace: request.Header.Get("Traceparent")}
	if err := json.Unmarshal(body, &p); err != nil || p.key != p.MessageID {
		r.bad = append(r.bad, string(body))
	}
	r.posts = append(r.posts, p)
	if r.answer != nil {
		r.answer(w, p, len(r.posts))
	}
}

func (r *receiver) evidence(reply string) int {
	if r.knows != nil {
		return r.knows(reply)
	}
	if slices.ContainsFunc(r.posts, func(p post) bool { return p.MessageID == reply }) {
		return http.StatusOK
	}
	return http.StatusNotFound
}

func (r *receiver) texts() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var texts []string
	for _, p := range r.posts {
		texts = append(texts, p.Text)
	}
	return strings.Join(texts, " ")
}

// turn lets the agent answer the session's next message with parts, through the
// store as a step does, and returns the announcement.
func (w *world) turn(session harness.SessionID, end bool, parts ...string) event.Event {
	w.T.Helper()
	ctx := context.Background()
	claim, err := w.Store.ClaimSession(ctx, session, postgres.Lease{Owner: "agent", For: time.Minute})
	if err != nil {
		w.T.Fatal(err)
	}
	events, err := w.Store.CommitStep(ctx, postgres.StepCommit{
		Claim: claim, State: harness.SessionIdle, Start: true, Reply: parts, End: end,
		Step: &postgres.NewStep{ID: harness.NewStepID(time.Now()), Text: strings.Join(parts, "")},
	})
	if err != nil {
		w.T.Fatal(err)
	}
	for _, e := range events {
		if e.Type == event.MessageReply {
			return e
		}
	}
	w.T.Fatalf("no reply among %v", events)
	return event.Event{}
}

// talk is a hook with a callback, a person's message and the agent's answer.
func talk(t *testing.T, callback string, env map[string]string, parts ...string) (*process, event.Event) {
	t.Helper()
	w := newWorld(t)
	w.hook("hook", harness.ChannelSpec{CallbackURL: callback})
	a := w.start("public", nil).say("hook", "ann", "m1", "hi")
	p := w.start("events", env)
	return p, p.turn(a.Session, false, parts...)
}

func (w *world) states() string {
	return w.Query(`SELECT string_agg(concat_ws('/', text, state, attempts), ' ' ORDER BY session_id, seq, part) FROM replies`)
}

// now makes what waits due, as time would.
func (w *world) now() {
	w.Exec(`UPDATE replies SET due_at = now() - interval '1 second', lease_until = lease_until - interval '1 hour'`)
}

func TestRepliesGoOutOnceAndInOrder(t *testing.T) {
	r := newReceiver(t)
	r.answer = func(w http.ResponseWriter, p post, _ int) { w.Header().Set("X-Tuluat-Message-Id", "theirs-"+p.Text) }
	p, e := talk(t, r.server.URL+"/in?tenant=1", nil, "one", "two", "three")
	p.DeliverTwice(e)
	if got := r.texts(); got != "one two three" {
		t.Fatalf("received %s", got)
	}
	first := r.posts[0]
	if first.Parts != 3 || first.Part != 1 || first.InReplyTo != "m1" || first.ChannelUserID != "ann" || first.Chat != "ann" || first.Session != string(e.Session) {
		t.Errorf("the body is %+v", first)
	}
	if got := p.Query(`SELECT string_agg(state || provider_id, ' ' ORDER BY part) FROM replies`); got != "SENTtheirs-one SENTtheirs-two SENTtheirs-three" {
		t.Errorf("stored %s", got)
	}
	if n := p.Query(`SELECT count(*)::text FROM outbox WHERE event_type = $1`, event.MessageReply); n != "0" {
		t.Errorf("%s announcements left after they were heard", n)
	}
	if r.asked != 0 {
		t.Errorf("%d questions about first attempts", r.asked)
	}
}

func TestTwoSendersKeepTheOrder(t *testing.T) {
	r := newReceiver(t)
	var parts []string
	for n := range 20 {
		parts = append(parts, fmt.Sprint("p", n))
	}
	p, e := talk(t, r.server.URL, nil, parts...)
	other := p.start("events", nil)
	var running sync.WaitGroup
	for n := range 8 {
		to := []*process{p, other}[n%2]
		running.Go(func() { to.DeliverTwice(e) })
	}
	running.Wait()
	if got := r.texts(); got != strings.Join(parts, " ") {
		t.Errorf("received %s", got)
	}
}

// A sender that ends between the POST and its mark leaves one reply at the
// receiver: the second attempt asks first.
func TestCrashAfterThePostIsSettledByEvidence(t *testing.T) {
	r := newReceiver(t)
	p, e := talk(t, r.server.URL, nil, "once", "next")
	claim, err := p.Store.ClaimReply(context.Background(), e.Session, postgres.ReplyLease{Lease: postgres.Lease{Owner: "crashed", For: time.Minute}, Begins: true})
	if err != nil {
		t.Fatal(err)
	}
	r.posts = append(r.posts, post{MessageID: string(claim.ID), Text: claim.Text}) // its POST arrived
	p.DeliverTwice(e)
	if got := r.texts(); got != "once" {
		t.Fatalf("sent %s under another's lease", got)
	}
	p.now()
	p.DeliverTwice(e)
	if got := r.texts(); got != "once next" || r.asked != 1 {
		t.Errorf("received %s after %d questions", got, r.asked)
	}
	if got := p.states(); got != "once/SENT/2 next/SENT/1" {
		t.Errorf("states %s", got)
	}
	// The crashed one wakes up and must not write.
	if _, err := p.Store.MarkReply(context.Background(), claim, postgres.ReplyOutcome{State: harness.ReplyFailed}, nil); !errors.Is(err, postgres.ErrLeaseLost) {
		t.Errorf("a mark under a lost lease: %v", err)
	}
}

func TestCrashBeforeThePost(t *testing.T) {
	for name, c := range map[string]struct {
		evidence int
		want     string
	}{
		"the receiver says it has not":  {http.StatusNotFound, "late"},
		"the receiver cannot tell":      {http.StatusMethodNotAllowed, "late"},
		"the receiver is out of order":  {http.StatusInternalServerError, "late"},
		"the receiver says that it has": {http.StatusOK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReceiver(t)
			r.knows = func(string) int { return c.evidence }
			p, e := talk(t, r.server.URL, nil, "late")
			if _, err := p.Store.ClaimReply(context.Background(), e.Session, postgres.ReplyLease{Lease: postgres.Lease{Owner: "crashed", For: time.Minute}, Begins: true}); err != nil {
				t.Fatal(err)
			}
			p.now()
			p.DeliverTwice(e)
			if got := r.texts(); got != c.want || r.asked != 1 {
				t.Errorf("received %q after %d questions", got, r.asked)
			}
			if got := p.states(); got != "late/SENT/2" {
				t.Errorf("states %s", got)
			}
		})
	}
}

func TestAnswersOfTheReceiver(t *testing.T) {
	lost := func(http.ResponseWriter, post, int) { panic(http.ErrAbortHandler) }
	status := func(code int, header ...string) func(http.ResponseWriter, post, int) {
		return func(w http.ResponseWriter, _ post, _ int) {
			for n := 0; n+1 < len(header); n += 2 {
				w.Header().Set(header[n], header[n+1])
			}
			w.WriteHeader(code)
		}
	}
	for name, c := range map[string]struct {
		answer   func(http.ResponseWriter, post, int)
		state    string
		min, max time.Duration // until the next attempt
		reason   string
	}{
		"no content":      {status(204), "a/SENT/1 b/SENT/1", 0, 0, ""},
		"gone":            {status(410), "a/FAILED/1 b/FAILED/1", 0, 0, "410"},
		"unauthorized":    {status(401), "a/FAILED/1 b/FAILED/1", 0, 0, "401"},
		"too many":        {status(429, "Retry-After", "90"), "a/PLANNED/1 b/PLANNED/0", 80 * time.Second, 90 * time.Second, "429"},
		"too early":       {status(425), "a/PLANNED/1 b/PLANNED/0", -5 * time.Second, time.Second, "425"},
		"unavailable":     {status(503, "Retry-After", time.Now().Add(200*time.Second).UTC().Format(http.TimeFormat)), "a/UNKNOWN/1 b/PLANNED/0", 100 * time.Second, 200 * time.Second, "503"},
		"absurd wait":     {status(503, "Retry-After", "999999"), "a/UNKNOWN/1 b/PLANNED/0", 9 * time.Minute, 10 * time.Minute, "503"},
		"timeout":         {status(408), "a/UNKNOWN/1 b/PLANNED/0", -5 * time.Second, time.Second, "408"},
		"redirect":        {status(302, "Location", "http://127.0.0.1:1/"), "a/UNKNOWN/1 b/PLANNED/0", -5 * time.Second, time.Second, "302"},
		"the answer lost": {lost, "a/UNKNOWN/1 b/PLANNED/0", -5 * time.Second, time.Second, "lost"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t)
			r.answer = c.answer
			p, e := talk(t, r.server.URL, nil, "a", "b")
			if a := p.Deliver(e); a.Status != http.StatusAccepted {
				t.Fatalf("delivery: %d", a.Status)
			}
			if got := p.states(); got != c.state {
				t.Errorf("states %s, want %s", got, c.state)
			}
			if reason := p.Query(`SELECT reason FROM replies WHERE part = 1`); !strings.Contains(reason, c.reason) {
				t.Errorf("reason %q", reason)
			}
			if c.max == 0 {
				return
			}
			var wait time.Duration
			if err := p.Store.Pool().QueryRow(context.Background(), `SELECT due_at - now() FROM replies WHERE part = 1`).Scan(&wait); err != nil || wait < c.min || wait > c.max {
				t.Errorf("waits %s, want %s to %s, %v", wait, c.min, c.max, err)
			}
		})
	}
}

// On a connection that has been used before, Go's client takes a break for the
// receiver's idle timeout and sends again: a reply that arrived would arrive twice.
func TestABreakOfAUsedConnectionIsNotSentAgainUnasked(t *testing.T) {
	r := newReceiver(t)
	r.answer = func(_ http.ResponseWriter, _ post, n int) {
		if n == 2 {
			panic(http.ErrAbortHandler)
		}
	}
	p, e := talk(t, r.server.URL, nil, "one", "two", "three")
	p.DeliverTwice(e)
	if got := r.texts(); got != "one two" {
		t.Fatalf("received %s", got)
	}
	p.now()
	p.DeliverTwice(e)
	if got := r.texts(); got != "one two three" || r.asked != 1 {
		t.Errorf("received %s after %d questions", got, r.asked)
	}
	if got := p.states(); got != "one/SENT/1 two/SENT/2 three/SENT/1" {
		t.Errorf("states %s", got)
	}
}

func TestARetryHoldsTheOrderUntilItFails(t *testing.T) {
	r := newReceiver(t)
	r.answer = func(w http.ResponseWriter, p post, _ int) {
		if p.Text == "bad" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
	r.knows = func(string) int { return http.StatusNotFound }
	p, e := talk(t, r.server.URL, nil, "bad", "good")
	p.DeliverTwice(e)
	for tries := 0; p.Query(`SELECT count(*)::text FROM replies WHERE state = 'SENT'`) == "0"; tries++ {
		if tries == 30 {
			t.Fatalf("after 30 sweeps: %s", p.states())
		}
		p.now()
		due, err := p.Store.RepliesDue(context.Background(), 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, again := range due {
			if again.ID != e.ID || again.Channel != harness.ChannelWebhook || !reflect.DeepEqual(again.Payload, e.Payload) {
				t.Fatalf("the sweep would say %+v, the first was %+v", again, e)
			}
			if a := p.Deliver(again); a.Status != http.StatusAccepted {
				t.Fatalf("delivery: %d", a.Status)
			}
		}
	}
	if got, want := r.texts(), strings.Repeat("bad ", 20)+"good"; got != want {
		t.Errorf("received %s", got)
	}
	if got := p.states(); got != "bad/FAILED/20 good/SENT/1" {
		t.Errorf("states %s", got)
	}
	if reason := p.Query(`SELECT reason FROM replies WHERE part = 1`); !strings.Contains(reason, "given up after 20 attempts") {
		t.Errorf("reason %q", reason)
	}
}

func TestUnreachableReceiver(t *testing.T) {
	p, e := talk(t, "http://127.0.0.1:1/", nil, "a")
	p.DeliverTwice(e)
	if got := p.Query(`SELECT concat(state, attempts, reason) FROM replies`); got != "PLANNED1the receiver cannot be reached" {
		t.Errorf("stored %s", got)
	}
}

func TestPrivateAddressesAreRefused(t *testing.T) {
	r := newReceiver(t)
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]"} {
		t.Run(host, func(t *testing.T) {
			target := strings.Replace(r.server.URL, "127.0.0.1", host, 1)
			p, e := talk(t, target, map[string]string{"CALLBACK_ALLOW_PRIVATE": ""}, "secret text")
			p.DeliverTwice(e)
			if got := p.Query(`SELECT concat_ws(' ', state, reason) FROM replies`); !strings.HasPrefix(got, "FAILED") || !strings.Contains(got, "refused") {
				t.Errorf("stored %s", got)
			}
			if got := r.texts(); got != "" {
				t.Errorf("received %s", got)
			}
		})
	}
}

func TestMailbox(t *testing.T) {
	p, e := talk(t, "", nil, "one", "two")
	p.DeliverTwice(e)
	if got := p.states(); got != "one/SENT/1 two/SENT/1" {
		t.Errorf("states %s", got)
	}
	if n := p.Query(`SELECT count(*)::text FROM outbox WHERE event_type = $1`, event.MessageReply); n != "0" {
		t.Errorf("%s announcements left", n)
	}
}

func TestReplyOfAHookThatIsGone(t *testing.T) {
	p, e := talk(t, "http://127.0.0.1:1/", nil, "a")
	p.Exec(`UPDATE channel_routes SET agent_name = 'other'`)
	p.DeliverTwice(e)
	if got := p.states(); got != "a/FAILED/1" {
		t.Errorf("states %s", got)
	}
}

func TestEventsOfOthersAreRefused(t *testing.T) {
	p, e := talk(t, "http://127.0.0.1:1/", nil, "a")
	for _, change := range []func(*event.Event){
		func(e *event.Event) { e.Channel = harness.ChannelWhatsApp },
		func(e *event.Event) { e.Session = "" },
		func(e *event.Event) { e.Type = event.MessageReceived },
	} {
		other := e
		change(&other)
		if a := p.Deliver(other); a.Status != http.StatusBadRequest || a.Body != "" {
			t.Errorf("%+v: %d %s", other, a.Status, a.Body)
		}
	}
	if got := p.states(); got != "a/PLANNED/0" {
		t.Errorf("states %s", got)
	}
}
