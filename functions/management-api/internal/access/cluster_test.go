package access_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "eyJhbGciOiJSUzI1NiJ9.a-token.that-nobody-may-see"

func ann() authenticationv1.UserInfo {
	return authenticationv1.UserInfo{
		Username: "system:serviceaccount:agents:ann", UID: "uid-1", Groups: []string{"system:serviceaccounts", "system:authenticated"},
		Extra: map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/credential-id": {"JTI=1"}},
	}
}

func TestCallersAreWhomTheAPIServerSays(t *testing.T) {
	s, now := newServer(t), newClock()
	s.users[token] = ann()
	s.roles[ann().Username] = []string{"list sessions", "patch aiagents/features", "get aiagents a"}
	c := newCluster(t, s.URL, now.Now)
	caller, err := c.Identify(t.Context(), token)
	if err != nil || caller.Name != ann().Username || caller.Static || !cmp.Equal(caller.Groups, ann().Groups) {
		t.Fatalf("%+v, %v", caller, err)
	}
	for right, want := range map[access.Right]bool{
		{Verb: access.List, Resource: access.Sessions}:         true,
		{Verb: access.Cancel, Resource: access.Sessions}:       false,
		{Verb: access.Patch, Resource: access.AgentFeatures}:   true,
		{Verb: access.Patch, Resource: access.Agents}:          false,
		{Verb: access.Get, Resource: access.Agents, Name: "a"}: true,
		{Verb: access.Get, Resource: access.Agents, Name: "b"}: false,
	} {
		if got, err := c.Allow(t.Context(), caller, right); err != nil || got != want {
			t.Errorf("%s %s: %v, %v", right, right.Name, got, err)
		}
	}
	// The authorizer is told everything that the authenticator said.
	want := authorizationv1.SubjectAccessReviewSpec{
		User: ann().Username, UID: "uid-1", Groups: ann().Groups,
		Extra: map[string]authorizationv1.ExtraValue{"authentication.kubernetes.io/credential-id": {"JTI=1"}},
	}
	for _, review := range s.accesses {
		review.Spec.ResourceAttributes = nil
		if diff := cmp.Diff(want, review.Spec); diff != "" {
			t.Error(diff)
		}
	}
	for _, nobody := range []access.Caller{{}, {Name: "local", Static: true}} {
		if ok, err := c.Allow(t.Context(), nobody, access.Right{Verb: access.List, Resource: access.Sessions}); ok || err != nil {
			t.Errorf("%+v is allowed: %v, %v", nobody, ok, err)
		}
	}
}

// What was answered holds for its time and no longer: a token that is revoked and
// a right that is taken away end, one that is given begins.
func TestAnswersEnd(t *testing.T) {
	s, now := newServer(t), newClock()
	s.users[token] = ann()
	s.roles[ann().Username] = []string{"list sessions"}
	c := newCluster(t, s.URL, now.Now)
	list := access.Right{Verb: access.List, Resource: access.Sessions}
	replay := access.Right{Verb: access.Replay, Resource: access.DeadLetters}
	look := func(known, mayList, mayReplay bool) {
		t.Helper()
		caller, err := c.Identify(t.Context(), token)
		if (err == nil) != known || err != nil && harness.KindOf(err) != harness.Denied {
			t.Fatalf("known %v: %+v, %v", known, caller, err)
		}
		if !known {
			return
		}
		for right, want := range map[access.Right]bool{list: mayList, replay: mayReplay} {
			if got, err := c.Allow(t.Context(), caller, right); err != nil || got != want {
				t.Errorf("%s: %v, %v", right, got, err)
			}
		}
	}
	look(true, true, false)
	s.change(func() { s.roles[ann().Username] = []string{"replay deadletters"} })
	now.pass(9 * time.Second)
	look(true, true, false)
	if tokens, accesses := s.asked(); tokens != 1 || accesses != 2 {
		t.Errorf("asked %d and %d times within the time", tokens, accesses)
	}
	now.pass(time.Second) // refusals are kept shorter
	look(true, true, true)
	now.pass(20 * time.Second)
	look(true, false, true)
	s.change(func() { delete(s.users, token) })
	now.pass(29 * time.Second)
	look(true, false, true)
	now.pass(time.Second)
	look(false, false, false)
	s.change(func() { s.users[token] = ann() })
	look(false, false, false)
	now.pass(10 * time.Second)
	look(true, false, true)
}

// Whatever the API server does but answer, nobody is let in, and nothing that is
// said of it has the token in it.
func TestWithoutAnAnswerNobodyIsLetIn(t *testing.T) {
	status := func(code int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			reply(w, code, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "of the token " + token})
			return true
		}
	}
	text := func(code int, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
			return true
		}
	}
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"500": status(500), "503": status(503), "401": status(401), "403": status(403), "404": status(404), "422": status(422),
		"500 of a proxy": text(500, "<html>"+token), "not JSON": text(201, token), "torn": text(201, `{"status": {"authenticated": tr`),
		"no status": text(201, `{}`), "nobody": text(201, `{"status": {"authenticated": true, "user": {}}}`), "wrong type": text(201, `{"status": "`+token+`"}`),
		"cut": func(w http.ResponseWriter, _ *http.Request) bool {
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, now := newServer(t), newClock()
			s.users[token] = ann()
			s.roles[ann().Username] = []string{"list sessions"}
			c := newCluster(t, s.URL, now.Now)
			caller, err := c.Identify(t.Context(), token)
			if err != nil {
				t.Fatal(err)
			}
			now.pass(time.Minute)
			s.change(func() { s.answer = answer })
			if _, err := c.Identify(t.Context(), token); harness.KindOf(err) != harness.Unavailable {
				t.Errorf("identified, or not in the right way: %v", err)
			} else {
				noToken(t, token, err.Error(), fmt.Sprintf("%+v", err))
			}
			allowed, err := c.Allow(t.Context(), caller, access.Right{Verb: access.List, Resource: access.Sessions})
			if name != "nobody" && (allowed || harness.KindOf(err) != harness.Unavailable) {
				t.Errorf("allowed %v: %v", allowed, err)
			}
			if err != nil {
				noToken(t, token, err.Error())
			}
			// A failure is not remembered.
			s.change(func() { s.answer = nil })
			if _, err := c.Identify(t.Context(), token); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// An API server that is slow, or away, is not waited for for long.
func TestTheAPIServerIsNotWaitedForForLong(t *testing.T) {
	s, now := newServer(t), newClock()
	s.hold = make(chan struct{})
	c := newCluster(t, s.URL, now.Now)
	began := time.Now()
	_, err := c.Identify(t.Context(), token)
	if took := time.Since(began); harness.KindOf(err) != harness.Unavailable || took > 8*time.Second {
		t.Errorf("after %s: %v", took, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Identify(ctx, token); harness.KindOf(err) != harness.Unavailable {
		t.Errorf("a caller that leaves: %v", err)
	}
	close(s.hold)
	away := newCluster(t, "http://127.0.0.1:1", now.Now)
	if _, err := away.Identify(t.Context(), token); harness.KindOf(err) != harness.Unavailable {
		t.Errorf("away: %v", err)
	}
	noToken(t, token, err.Error())
}

// With audiences only tokens that were made for one of them are anybody's.
func TestAudiences(t *testing.T) {
	s, now := newServer(t), newClock()
	s.users[token] = ann()
	for _, c := range []struct {
		audiences []string
		known     bool
	}{{nil, true}, {[]string{"tuluat"}, true}, {[]string{"other", "tuluat"}, true}, {[]string{"other"}, false}} {
		_, err := newCluster(t, s.URL, now.Now, c.audiences...).Identify(t.Context(), token)
		if (err == nil) != c.known || err != nil && harness.KindOf(err) != harness.Denied {
			t.Errorf("%v: %v", c.audiences, err)
		}
	}
	// One that knows of no audiences says so of no token.
	s.answer = func(w http.ResponseWriter, _ *http.Request) bool {
		reply(w, http.StatusCreated, map[string]any{"status": map[string]any{"authenticated": true, "user": map[string]any{"username": "ann"}}})
		return true
	}
	if _, err := newCluster(t, s.URL, now.Now, "tuluat").Identify(t.Context(), token); harness.KindOf(err) != harness.Denied {
		t.Errorf("a token for nobody in particular: %v", err)
	}
}

// A flood of bad tokens costs no memory that stays, forgets no caller who is
// known, and asks once about each.
func TestAFloodOfBadTokens(t *testing.T) {
	now, asked := newClock(), 0
	server := roundTrip(func(r *http.Request) (*http.Response, error) {
		asked++
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		status := `{"status": {"authenticated": false}}`
		if bytes.Contains(body, []byte(token)) {
			status = `{"status": {"authenticated": true, "user": {"username": "ann"}}}`
		}
		return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(status)), Request: r}, nil
	})
	c, err := access.NewCluster(&rest.Config{Host: "http://server.test", Transport: server}, access.ClusterOptions{Namespace: namespace, Now: now.Now})
	if err != nil {
		t.Fatal(err)
	}
	access.SetAsking(c, 1e9)
	know := func(token string, kind harness.Kind, times int) {
		t.Helper()
		before := asked
		if _, err := c.Identify(t.Context(), token); harness.KindOf(err) != kind || asked-before != times {
			t.Fatalf("%.12s: %v, asked %d times, want %d", token, err, asked-before, times)
		}
	}
	know(token, "", 1)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	bad := func(i int) string { return fmt.Sprintf("bad-%06d-%s", i, strings.Repeat("x", 900)) }
	for i := range 5000 { // as many as are kept are kept by then
		know(bad(i), harness.Denied, 1)
	}
	before := heap()
	for i := range 10_000 {
		know(bad(5000+i), harness.Denied, 1)
	}
	after := heap()
	t.Logf("heap after 5,000 bad tokens %d KiB, after 15,000 %d KiB", before>>10, after>>10)
	if after > before+3<<20 { // the tokens alone would be 9 MiB
		t.Errorf("10,000 more bad tokens keep %d bytes", after-before)
	}
	know(token, "", 0)
	know(bad(14_999), harness.Denied, 0)
	know(bad(0), harness.Denied, 1)
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Above its rate the API server is not asked, and nobody is let in.
func TestReviewsHaveARate(t *testing.T) {
	s, now := newServer(t), newClock()
	c := newCluster(t, s.URL, now.Now)
	access.SetAsking(c, 1.0/60)
	if _, err := c.Identify(t.Context(), "one"); harness.KindOf(err) != harness.Denied {
		t.Error(err)
	}
	if _, err := c.Identify(t.Context(), "two"); harness.KindOf(err) != harness.Unavailable {
		t.Errorf("the second: %v", err)
	}
	if tokens, _ := s.asked(); tokens != 1 {
		t.Errorf("asked %d times", tokens)
	}
}

// Strangers who are many keep nobody waiting who is known: their tokens are
// renewed, and what they may do is asked.
func TestAFloodOfStrangersStarvesNobody(t *testing.T) {
	s, now := newServer(t), newClock()
	s.users[token] = ann()
	s.roles[ann().Username] = []string{"list sessions"}
	c := newCluster(t, s.URL, now.Now)
	caller, err := c.Identify(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	defer flood.Wait()
	defer stop()
	for i := range 400 {
		flood.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				_, _ = c.Identify(ctx, fmt.Sprint("bad-", i, "-", n))
			}
		})
	}
	for kind := harness.Denied; kind != harness.Unavailable; { // until strangers have to wait
		probe, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		_, err := c.Identify(probe, fmt.Sprint("probe-", time.Now()))
		kind = harness.KindOf(err)
		cancel()
	}
	for range 10 {
		now.pass(time.Hour) // nothing that was answered holds
		if _, err := c.Identify(ctx, token); err != nil {
			t.Fatalf("renewed: %v", err)
		}
		if ok, err := c.Allow(ctx, caller, access.Right{Verb: access.List, Resource: access.Sessions}); err != nil || !ok {
			t.Fatalf("allowed %v: %v", ok, err)
		}
	}
}
