package kubetest

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Server is one API server. Its namespaces are those it was made with.
type Server struct {
	t    testing.TB
	http *httptest.Server
	ca   []byte
	ctx  context.Context // ends with the server; lives, watches and execs end with it
	stop context.CancelFunc
	work sync.WaitGroup

	mu       sync.Mutex
	changed  chan struct{} // closed, and replaced, with every request and every event
	version  int64
	objects  map[string]map[string]object // by resource, then namespace/name
	events   []event
	oldest   int64 // a watch from before it is answered 410
	requests []*Request
	rules    []*rule
	lives    []Life
	pods     map[string]*Pod // by uid
	deletion time.Duration   // from the mark to the end of a Pod; negative: never
	scripts  map[string][]Script
	fallback Script
	spdy     []string // protocols
	conns    map[net.Conn]struct{}
	down     bool
}

// New starts a server for the test that has these namespaces. Its Pods run at
// once unless [Server.Lives] says otherwise, and every exec ends with exit code 0
// and no output unless [Server.Exec] does.
func New(t testing.TB, namespaces ...string) *Server {
	t.Helper()
	s := &Server{
		t: t, changed: make(chan struct{}), objects: map[string]map[string]object{}, pods: map[string]*Pod{},
		scripts: map[string][]Script{}, spdy: []string{"v5.channel.k8s.io", "v4.channel.k8s.io"}, conns: map[net.Conn]struct{}{},
		fallback: func(context.Context, *Exec) Ending { return Exit(0) },
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.http.EnableHTTP2 = true
	s.http.Config.ErrorLog = quiet()
	s.http.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, c)
	}
	s.http.Config.ConnState = s.connState
	s.http.StartTLS()
	s.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.http.Certificate().Raw})
	for _, name := range namespaces {
		s.Create("namespaces", newNamespace(name))
	}
	t.Cleanup(s.close)
	return s
}

// Config returns how clients reach the server. It has no limit of its own on
// requests per second.
func (s *Server) Config() *rest.Config {
	return &rest.Config{Host: s.http.URL, TLSClientConfig: rest.TLSClientConfig{CAData: s.ca}, QPS: -1}
}

// Host returns the server's host:port.
func (s *Server) Host() string { return s.http.Listener.Addr().String() }

func (s *Server) close() {
	s.stop()
	s.cut()
	s.work.Wait()
	s.http.Close()
}

// Restart ends every connection as a machine does that loses its power: with a
// reset and no farewell. For down, new ones end in the same way.
func (s *Server) Restart(down time.Duration) {
	s.mu.Lock()
	s.down = down > 0
	s.mu.Unlock()
	s.cut()
	if down > 0 {
		s.work.Go(func() {
			s.sleep(s.ctx, down)
			s.mu.Lock()
			s.down = false
			s.mu.Unlock()
		})
	}
}

func (s *Server) cut() {
	s.mu.Lock()
	conns := make([]net.Conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		reset(c)
	}
}

// connState follows every connection to its end, hijacked ones through
// [Server.hijacked].
func (s *Server) connState(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case http.StateNew:
		if s.down {
			go reset(c)
			return
		}
		s.conns[c] = struct{}{}
	case http.StateClosed:
		delete(s.conns, c)
	}
}

func (s *Server) hijacked(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

type connKey struct{}

// wire returns the connection under a request.
func wire(r *http.Request) net.Conn {
	c, _ := r.Context().Value(connKey{}).(net.Conn)
	return c
}

// bare returns the TCP connection below TLS.
func bare(c net.Conn) net.Conn {
	if t, ok := c.(*tls.Conn); ok {
		return t.NetConn()
	}
	return c
}

// reset ends a connection with a TCP reset.
func reset(c net.Conn) {
	if tcp, ok := bare(c).(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = bare(c).Close()
}

func (s *Server) sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	case <-s.ctx.Done():
		return false
	}
}

// wake tells everyone who waits that there is something new. s.mu is held.
func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Request is one request as the server got it.
type Request struct {
	Verb      string // of Kubernetes: get, list, watch, create, update, patch, delete, deletecollection
	Resource  string // "pods", "pods/exec", "resource/subresource"
	Namespace string
	Name      string // of a create: from its body
	Query     url.Values
	Header    http.Header
	Body      []byte   // as JSON
	Upgrade   string   // "websocket" or "SPDY/3.1" of an exec, in the client's own letters
	Argv      []string // of an exec
	Time      time.Time

	group, version string
}

// Match says which requests are meant; what is empty matches everything.
type Match struct {
	Verb     string
	Resource string // "pods" does not match "pods/exec"
	Name     string
	Upgrade  string // of an exec: "websocket" or "SPDY"
	Op       string // of an exec: the runner's word, as in "run"
}

func (m Match) fits(r *Request) bool {
	return (m.Verb == "" || m.Verb == r.Verb) && (m.Resource == "" || m.Resource == r.Resource) && (m.Name == "" || m.Name == r.Name) &&
		strings.HasPrefix(strings.ToLower(r.Upgrade), strings.ToLower(m.Upgrade)) && (m.Op == "" || m.Op == operation(r.Argv))
}

// operation is the word after the runner's path.
func operation(argv []string) string {
	if len(argv) < 2 {
		return ""
	}
	return argv[1]
}

// Requests returns what was asked so far, in order of arrival.
func (s *Server) Requests(m Match) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []Request
	for _, r := range s.requests {
		if m.fits(r) {
			found = append(found, *r)
		}
	}
	return found
}

// Count returns how many requests there were.
func (s *Server) Count(m Match) int { return len(s.Requests(m)) }

// Await returns when there have been n such requests, and fails the test when
// that takes longer than ten seconds.
func (s *Server) Await(m Match, n int) {
	s.t.Helper()
	s.Until("requests that were awaited", func() bool { return s.Count(m) >= n })
}

// Until returns when done reports true, which it is asked after every request
// and every change; it fails the test when that takes longer than ten seconds.
func (s *Server) Until(what string, done func() bool) {
	s.t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if done() {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			s.t.Fatalf("%s: not within ten seconds; requests so far: %s", what, s.summary())
		}
	}
}

func (s *Server) summary() string {
	var b strings.Builder
	for _, r := range s.Requests(Match{}) {
		b.WriteString("\n  " + r.Verb + " " + r.Resource + " " + r.Name + " " + r.Upgrade + " " + operation(r.Argv))
	}
	return b.String()
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	if s.ctx.Err() != nil || s.down {
		s.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	s.work.Add(1)
	s.mu.Unlock()
	defer s.work.Done()
	req, ok := parse(r)
	if !ok {
		s.other(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	req.Body = body
	if o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil); err == nil {
		req.Body = mustJSON(o) // clients may speak protobuf
	}
	call := &Call{Request: req, server: s, w: w, r: r}
	if req.Verb == "create" && req.Name == "" {
		req.Name = nameIn(req.Body)
	}
	s.mu.Lock()
	s.requests = append(s.requests, req)
	answer := s.ruleFor(req)
	s.wake()
	s.mu.Unlock()
	if answer != nil {
		answer(call)
		return
	}
	call.Serve()
}

// parse reads a request's path and reports false when it is none of an object.
func parse(r *http.Request) (*Request, bool) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	req := &Request{Query: r.URL.Query(), Header: r.Header, Upgrade: r.Header.Get("Upgrade"), Time: time.Now()}
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		req.version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		req.group, req.version, parts = parts[1], parts[2], parts[3:]
	default:
		return nil, false
	}
	if parts[0] == "namespaces" && len(parts) > 2 && !slices.Contains([]string{"status", "finalize"}, parts[2]) {
		req.Namespace, parts = parts[1], parts[2:]
	}
	req.Resource = parts[0]
	if len(parts) > 1 {
		req.Name = parts[1]
	}
	if len(parts) > 2 {
		req.Resource += "/" + parts[2]
	}
	switch r.Method {
	case http.MethodGet:
		watch := req.Query.Get("watch")
		switch {
		case watch == "true" || watch == "1":
			req.Verb = "watch"
		case req.Name == "":
			req.Verb = "list"
		default:
			req.Verb = "get"
		}
	case http.MethodPost:
		req.Verb = "create"
	case http.MethodPut:
		req.Verb = "update"
	case http.MethodPatch:
		req.Verb = "patch"
	case http.MethodDelete:
		if req.Verb = "delete"; req.Name == "" {
			req.Verb = "deletecollection"
		}
	default:
		return nil, false
	}
	if req.Resource == "pods/exec" {
		req.Argv = req.Query["command"]
	}
	return req, true
}

// other answers what is not about an object.
func (s *Server) other(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/version":
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"major":"1","minor":"35","gitVersion":"v1.35.4"}`)
	case "/readyz", "/livez", "/healthz":
		_, _ = io.WriteString(w, "ok")
	default:
		writeStatus(w, notFoundPath())
	}
}
