package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	secret     = "test-hook-secret"
	hooksPath  = "/api/v1/channels/webhook/"
	secretName = "HOOK_SECRET"
)

// world is one database, one broker and the processes around them.
type world struct {
	t      testing.TB
	dsn    harness.Secret
	store  *postgres.Store
	broker *broker
	logs   *lockedBuffer
	client *http.Client
}

func newWorld(t testing.TB) *world {
	t.Helper()
	dsn := postgrestest.DSN(t)
	store, err := postgres.Open(dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	w := &world{t: t, dsn: dsn, store: store, broker: newBroker(t), logs: &lockedBuffer{}, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	t.Cleanup(w.client.CloseIdleConnections)
	t.Cleanup(func() {
		if logs := w.logs.String(); strings.Contains(logs, secret) {
			t.Errorf("a secret is in the logs:\n%s", logs)
		}
	})
	w.exec(`INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('coder', 1, 'READY', 'd'), ('other', 1, 'READY', 'd')`)
	w.exec(`INSERT INTO agent_revisions (agent_name, revision, spec) VALUES ('coder', 1, '{"name": "coder"}')`)
	return w
}

// hook routes name to agent coder. Senders other than allowed, if any, are denied.
func (w *world) hook(name string, spec harness.ChannelSpec, allowed ...string) {
	w.t.Helper()
	if spec.Secret.Name == "" {
		spec.Secret = harness.SecretRef{Name: "hook", Key: "secret"}
	}
	spec.Type, spec.Account = harness.ChannelWebhook, name
	w.exec(`INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all, senders) VALUES ('WEBHOOK', $1, 'coder', $2, $3, $4)`,
		name, spec, len(allowed) == 0, append([]string{}, allowed...))
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.store.Pool().Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// query returns one value as text.
func (w *world) query(sql string, args ...any) string {
	w.t.Helper()
	var value *string
	if err := w.store.Pool().QueryRow(context.Background(), sql, args...).Scan(&value); err != nil {
		w.t.Fatal(err)
	}
	if value == nil {
		return ""
	}
	return *value
}

type process struct {
	*world
	url, metrics string
	stop         func() // SIGTERM, and waits for a clean exit
}

// start runs the real build on free ports.
func (w *world) start(serve string, env map[string]string) *process {
	w.t.Helper()
	vars := map[string]string{
		"SERVE": serve, "DATABASE_URL": w.dsn.Reveal(), "BROKER_URL": w.broker.server.URL, secretName: secret,
		"PORT": "0", "METRICS_PORT": "0", "CALLBACK_ALLOW_PRIVATE": "true",
	}
	maps.Copy(vars, env)
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan function.Addresses, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- function.Run(ctx, "webhook-ingest", func(name string) string { return vars[name] }, w.logs, build, func(a function.Addresses) { ready <- a })
	}()
	p := &process{world: w}
	p.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				w.t.Errorf("the process ended with %v", err)
			}
		case <-time.After(20 * time.Second):
			w.t.Error("the process did not end")
		}
	})
	w.t.Cleanup(p.stop)
	select {
	case a := <-ready:
		p.url, p.metrics = "http://"+strings.Replace(a.HTTP, "[::]", "127.0.0.1", 1), "http://"+strings.Replace(a.Metrics, "[::]", "127.0.0.1", 1)
	case err := <-ended:
		ended <- nil
		w.t.Fatalf("the process did not start: %v", err)
	}
	return p
}

// signature is computed here on its own, from the documentation.
func signature(key, timestamp, content string) string {
	mac := hmac.New(sha256.New, []byte(key))
	fmt.Fprintf(mac, "%s.%s", timestamp, content)
	return "v1=" + hex.EncodeToString(mac.Sum(nil))
}

func signed(method, url, content, key string, at time.Time) *http.Request {
	request, err := http.NewRequest(method, url, strings.NewReader(content))
	if err != nil {
		panic(err)
	}
	if method == http.MethodGet {
		content = request.URL.RequestURI()
	}
	timestamp := strconv.FormatInt(at.Unix(), 10)
	request.Header.Set("X-Tuluat-Timestamp", timestamp)
	request.Header.Set("X-Tuluat-Signature", signature(key, timestamp, content))
	return request
}

type answer struct {
	status  int
	body    string
	header  http.Header
	Session harness.SessionID `json:"session"`
	Message harness.MessageID `json:"message"`
	Dup     bool              `json:"duplicate"`
}

func (w *world) do(request *http.Request) answer {
	w.t.Helper()
	response, err := w.client.Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	a := answer{status: response.StatusCode, body: string(body), header: response.Header}
	if a.status == http.StatusAccepted && len(body) > 0 {
		if err := json.Unmarshal(body, &a); err != nil {
			w.t.Fatalf("answer %s: %v", body, err)
		}
	}
	return a
}

func (p *process) post(hook, body string) answer {
	p.t.Helper()
	return p.do(signed(http.MethodPost, p.url+hooksPath+hook, body, secret, time.Now()))
}

// say posts a plain message.
func (p *process) say(hook, user, id, text string) answer {
	p.t.Helper()
	body, _ := json.Marshal(map[string]any{"messageId": id, "channelUserId": user, "text": text})
	return p.post(hook, string(body))
}

// deliver hands an event to the process twice, as a broker may.
func (p *process) deliver(e event.Event) {
	p.t.Helper()
	for range 2 {
		if a := p.do(cloudEvent(p.t, p.url+"/events", e)); a.status != http.StatusAccepted || a.body != "" {
			p.t.Fatalf("delivery answered %d %q", a.status, a.body)
		}
	}
}

func cloudEvent(t testing.TB, url string, e event.Event) *http.Request {
	t.Helper()
	ce, err := event.Encode(e, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(ce.Data()))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	for name, value := range map[string]string{"specversion": "1.0", "id": ce.ID(), "source": ce.Source(), "type": ce.Type()} {
		request.Header.Set("Ce-"+name, value)
	}
	for name, value := range ce.Extensions() {
		request.Header.Set("Ce-"+name, fmt.Sprint(value))
	}
	return request
}

// broker records what is published.
type broker struct {
	server *httptest.Server
	mu     sync.Mutex
	heard  []http.Header
	status int
}

func newBroker(t testing.TB) *broker {
	b := &broker{status: http.StatusAccepted}
	b.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.heard = append(b.heard, r.Header.Clone())
		w.WriteHeader(b.status)
	}))
	t.Cleanup(b.server.Close)
	return b
}

func (b *broker) take() []http.Header {
	b.mu.Lock()
	defer b.mu.Unlock()
	heard := b.heard
	b.heard = nil
	return heard
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestStartsWithoutTheWorldAndEndsCleanly(t *testing.T) {
	w := newWorld(t)
	p := w.start("public", map[string]string{"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none", "BROKER_URL": "http://127.0.0.1:1"})
	if a := p.do(signed(http.MethodGet, p.url+"/readyz", "", "", time.Now())); a.status != http.StatusOK {
		t.Fatalf("readyz answered %d", a.status)
	}
	if a := p.say("hook", "u", "1", "hi"); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
		t.Fatalf("without a database: %d %s", a.status, a.body)
	}
	if a := p.do(signed(http.MethodPost, p.url+"/events", "{}", "", time.Now())); a.status != http.StatusNotFound {
		t.Fatalf("the public side must not hear events, but answered %d", a.status)
	}
	p.stop()
}

func TestConfigurationNamesEveryProblem(t *testing.T) {
	_, err := parseConfig(func(name string) string {
		return map[string]string{"SERVE": "both", "DATABASE_MAX_CONNS": "0", "STREAM_TIME": "long", "CALLBACK_ALLOW_PRIVATE": "perhaps"}[name]
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, name := range []string{"SERVE", "DATABASE_URL", "DATABASE_MAX_CONNS", "STREAM_TIME", "CALLBACK_ALLOW_PRIVATE"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in: %v", name, err)
		}
	}
	if got := (harness.SecretRef{Name: "python-coder.hook", Key: "secret"}).Variable(); got != "PYTHON_CODER_HOOK_SECRET" {
		t.Errorf("variable %s", got)
	}
}

func TestContract(t *testing.T) {
	for serve, want := range map[string]int{"public": 0, "events": 1} {
		w := newWorld(t)
		p := w.start(serve, nil)
		a := p.do(signed(http.MethodPost, p.url+hooksPath+"hook", "{}", "", time.Now()))
		if hasHooks := a.status != http.StatusNotFound || strings.Contains(a.body, "hook"); hasHooks != (want == 0) {
			t.Errorf("SERVE=%s answers %d %s on the hooks' path", serve, a.status, a.body)
		}
	}
}
