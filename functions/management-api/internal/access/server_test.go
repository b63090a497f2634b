package access_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
	kjson "sigs.k8s.io/json"

	"tuluat.ai/harness/functions/management-api/internal/access"
)

const namespace = "agents"

// server is as much of an API server as reviews need. It reads what comes by
// Kubernetes' own types, as strictly as they can be read.
type server struct {
	*httptest.Server
	t  *testing.T
	mu sync.Mutex

	users  map[string]authenticationv1.UserInfo // by token
	roles  map[string][]string                  // by user: "verb resource[/sub] [name]"
	answer func(w http.ResponseWriter, r *http.Request) bool
	hold   chan struct{} // answers wait for it, if there is one

	tokens   []authenticationv1.TokenReview
	accesses []authorizationv1.LocalSubjectAccessReview
}

func newServer(t *testing.T) *server {
	s := &server{t: t, users: map[string]authenticationv1.UserInfo{}, roles: map[string][]string{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// asked returns how many reviews of each kind there were.
func (s *server) asked() (tokens, accesses int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tokens), len(s.accesses)
}

// change does do under the server's lock.
func (s *server) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	hold, instead := s.hold, s.answer
	s.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-r.Context().Done():
			return
		}
	}
	if instead != nil && instead(w, r) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
		s.t.Errorf("%s %s of %q", r.Method, r.URL.Path, r.Header.Get("Content-Type"))
	}
	switch r.URL.Path {
	case "/apis/authentication.k8s.io/v1/tokenreviews":
		var review authenticationv1.TokenReview
		s.read(r, &review)
		s.tokens = append(s.tokens, review)
		if user, ok := s.users[review.Spec.Token]; ok {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: user}
			for _, a := range review.Spec.Audiences {
				if a == "tuluat" {
					review.Status.Audiences = append(review.Status.Audiences, a)
				}
			}
			if len(review.Spec.Audiences) > 0 && len(review.Status.Audiences) == 0 {
				review.Status = authenticationv1.TokenReviewStatus{Error: "token audiences are invalid for " + review.Spec.Token}
			}
		} else {
			review.Status.Error = "[invalid bearer token " + review.Spec.Token + "]"
		}
		reply(w, http.StatusCreated, review)
	case "/apis/authorization.k8s.io/v1/namespaces/" + namespace + "/localsubjectaccessreviews":
		var review authorizationv1.LocalSubjectAccessReview
		s.read(r, &review)
		a := review.Spec.ResourceAttributes
		if a == nil || a.Group != "tuluat.ai" || a.Namespace != namespace || review.Namespace != namespace {
			s.t.Errorf("a review of %+v in %q", a, review.Namespace)
			return
		}
		s.accesses = append(s.accesses, review)
		right := a.Verb + " " + a.Resource
		if a.Subresource != "" {
			right += "/" + a.Subresource
		}
		review.Status.Allowed = slices.Contains(s.roles[review.Spec.User], right) || slices.Contains(s.roles[review.Spec.User], right+" "+a.Name)
		reply(w, http.StatusCreated, review)
	default:
		s.t.Errorf("%s is nothing that may be asked", r.URL.Path)
	}
}

func (s *server) read(r *http.Request, into any) {
	var raw json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&raw); err != nil {
		s.t.Error(err)
		return
	}
	strict, err := kjson.UnmarshalStrict(raw, into)
	if err != nil || len(strict) > 0 {
		s.t.Errorf("%s: %v %v", raw, err, strict)
	}
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// clock is a time that tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Unix(1_700_000_000, 0)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newCluster(t *testing.T, url string, now func() time.Time, audiences ...string) *access.Cluster {
	t.Helper()
	c, err := access.NewCluster(&rest.Config{Host: url}, access.ClusterOptions{Namespace: namespace, Audiences: audiences, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// noToken fails when the token is in any text.
func noToken(t *testing.T, token string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(text, token) {
			t.Errorf("the token is in %q", text)
		}
	}
}
