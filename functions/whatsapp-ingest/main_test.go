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
	"slices"
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
	appSecret   = "process-test-app-secret"
	verifyToken = "process-test-verify-token"
	accessToken = "process-test-access-token"
	number      = "100000000000001"
)

// world is one database, one Graph API that also takes the events, and processes.
type world struct {
	t      *testing.T
	dsn    harness.Secret
	store  *postgres.Store
	graph  *graph
	logs   *lockedBuffer
	client *http.Client
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dsn := postgrestest.DSN(t)
	store, err := postgres.Open(dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	w := &world{t: t, dsn: dsn, store: store, graph: newGraph(t), logs: &lockedBuffer{}, client: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(w.client.CloseIdleConnections)
	t.Cleanup(func() {
		for _, secret := range []string{appSecret, verifyToken, accessToken} {
			if logs := w.logs.String(); strings.Contains(logs, secret) {
				t.Errorf("a secret is in the logs:\n%s", logs)
			}
		}
	})
	spec := harness.ChannelSpec{
		Type: harness.ChannelWhatsApp, Account: number, AppSecret: harness.SecretRef{Name: "helper", Key: "app"}, VerifyToken: harness.SecretRef{Name: "helper", Key: "verify"},
	}
	w.exec(`INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('coder', 1, 'READY', 'd')`)
	w.exec(`INSERT INTO agent_revisions (agent_name, revision, spec) VALUES ('coder', 1, '{"name": "coder"}')`)
	w.exec(`INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all, senders) VALUES ('WHATSAPP', $1, 'coder', $2, true, '{}')`, number, spec)
	return w
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.store.Pool().Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

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

// start runs the real build on free ports and returns its address.
func (w *world) start(serve string, env map[string]string) (url string, stop func()) {
	w.t.Helper()
	vars := map[string]string{
		"SERVE": serve, "DATABASE_URL": w.dsn.Reveal(), "BROKER_URL": w.graph.URL + "/broker", "WHATSAPP_API_URL": w.graph.URL,
		"HELPER_APP": "newer-secret, " + appSecret, "HELPER_VERIFY": verifyToken, "WHATSAPP_ACCESS_TOKEN": accessToken, "PORT": "0", "METRICS_PORT": "0",
	}
	maps.Copy(vars, env)
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan function.Addresses, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- function.Run(ctx, "whatsapp-ingest", func(name string) string { return vars[name] }, w.logs, build, func(a function.Addresses) { ready <- a })
	}()
	stop = sync.OnceFunc(func() {
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
	w.t.Cleanup(stop)
	select {
	case a := <-ready:
		return "http://" + strings.Replace(a.HTTP, "[::]", "127.0.0.1", 1), stop
	case err := <-ended:
		ended <- nil
		w.t.Fatalf("the process did not start: %v", err)
	}
	return "", stop
}

func (w *world) do(method, url string, header http.Header, body string) (int, http.Header, string) {
	w.t.Helper()
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	request.Header = header
	response, err := w.client.Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(text)
}

// post signs and sends a webhook.
func (w *world) post(url, key, body string) (int, http.Header, string) {
	w.t.Helper()
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(body))
	return w.do(http.MethodPost, url+webhookPath, http.Header{"Content-Type": {"application/json"}, "X-Hub-Signature-256": {"sha256=" + hex.EncodeToString(mac.Sum(nil))}}, body)
}

// deliver hands an event to a process, as a broker does.
func (w *world) deliver(url string, e event.Event) (int, string) {
	w.t.Helper()
	ce, err := event.Encode(e, time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	header := http.Header{"Content-Type": {"application/json"}, "Ce-Specversion": {"1.0"}, "Ce-Id": {ce.ID()}, "Ce-Source": {ce.Source()}, "Ce-Type": {ce.Type()}}
	for name, value := range ce.Extensions() {
		header.Set("Ce-"+name, fmt.Sprint(value))
	}
	status, _, body := w.do(http.MethodPost, url+"/events", header, string(ce.Data()))
	return status, body
}

func webhook(value string) string {
	return `{"object":"whatsapp_business_account","entry":[{"id":"2","changes":[{"field":"messages","value":{"metadata":{"display_phone_number":"15550009999","phone_number_id":"` + number + `"},` + value + `}}]}]}`
}

func message(id, text string) string {
	return webhook(fmt.Sprintf(`"messages":[{"from":"15550001111","from_user_id":"US.1","id":%q,"timestamp":"%d","type":"text","text":{"body":%q}}]`, id, time.Now().Unix(), text))
}

// graph is a Graph API that takes everything, and the broker.
type graph struct {
	*httptest.Server
	mu     sync.Mutex
	calls  []string // path and body
	events int
}

func newGraph(t *testing.T) *graph {
	g := &graph{}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		g.mu.Lock()
		defer g.mu.Unlock()
		switch {
		case r.URL.Path == "/broker":
			g.events++
			w.WriteHeader(http.StatusAccepted)
		case r.Header.Get("Authorization") != "Bearer "+accessToken:
			w.WriteHeader(http.StatusUnauthorized)
		default:
			g.calls = append(g.calls, r.URL.Path+" "+string(body))
			_, _ = io.WriteString(w, `{"success":true,"messages":[{"id":"wamid.OUT"}]}`)
		}
	}))
	t.Cleanup(g.Close)
	return g
}

func (g *graph) taken() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.calls)
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
	down := map[string]string{"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none", "BROKER_URL": "http://127.0.0.1:1", "WHATSAPP_API_URL": "http://127.0.0.1:1"}
	for _, serve := range []string{"public", "events"} {
		url, stop := w.start(serve, down)
		if status, _, _ := w.do(http.MethodGet, url+"/readyz", nil, ""); status != http.StatusOK {
			t.Errorf("%s: readyz answered %d", serve, status)
		}
		if serve == "public" {
			status, header, body := w.post(url, appSecret, message("wamid.1", "hi"))
			if status != http.StatusServiceUnavailable || body != "" || header.Get("Retry-After") == "" {
				t.Errorf("without a database: %d %q", status, body)
			}
			if status, _, _ := w.do(http.MethodPost, url+webhookPath, nil, "{}"); status != http.StatusUnauthorized {
				t.Errorf("unsigned, without a database: %d", status)
			}
		}
		stop()
	}
}

func TestMessageIsStoredOnce(t *testing.T) {
	w := newWorld(t)
	url, _ := w.start("public", nil)
	for _, key := range []string{"", "x", appSecret + "x"} {
		if status, _, body := w.post(url, key, message("wamid.1", "forged")); status != http.StatusUnauthorized || body != "" {
			t.Errorf("forged: %d %q", status, body)
		}
	}
	if status, _, body := w.post(url, appSecret, `{"object":`); status != http.StatusBadRequest || body != "" {
		t.Errorf("torn: %d %q", status, body)
	}
	for _, key := range []string{appSecret, "newer-secret", appSecret} {
		if status, _, body := w.post(url, key, message("wamid.1", "hello")); status != http.StatusOK || body != "" {
			t.Fatalf("%d %q\n%s", status, body, w.logs.String())
		}
	}
	if status, _, _ := w.post(url, appSecret, webhook(`"messages":[{"id":"wamid.2","from":"15550001111","type":"reaction","reaction":{"message_id":"wamid.0","emoji":"x"}},7]`)); status != http.StatusOK {
		t.Errorf("notices: %d", status)
	}
	padded := message("wamid.3", "large")
	padded += strings.Repeat(" ", 2_900_000-len(padded))
	if status, _, _ := w.post(url, appSecret, padded); status != http.StatusOK {
		t.Errorf("2.9 MB: %d", status)
	}
	if status, _, _ := w.post(url, appSecret, padded+strings.Repeat(" ", maxBody)); status != http.StatusRequestEntityTooLarge {
		t.Errorf("too large: %d", status)
	}
	if got := w.query(`SELECT string_agg(provider_id || ' ' || channel_user_id || ' ' || text, ',' ORDER BY seq) FROM messages`); got != "wamid.1 15550001111 hello,wamid.3 15550001111 large" {
		t.Errorf("messages %q", got)
	}
	if got := w.query(`SELECT string_agg(kind, ',' ORDER BY kind) FROM notices`); got != "MALFORMED,REACTION" {
		t.Errorf("notices %q", got)
	}
	if got := w.query(`SELECT address || ' ' || pace_millis || ' ' || pace_burst FROM chats`); got != "15550001111 6000 45" {
		t.Errorf("chats %q", got)
	}
	w.graph.mu.Lock()
	defer w.graph.mu.Unlock()
	if w.graph.events != 2 {
		t.Errorf("%d events", w.graph.events)
	}
}

func TestHandshake(t *testing.T) {
	w := newWorld(t)
	url, _ := w.start("public", nil)
	status, header, body := w.do(http.MethodGet, url+webhookPath+"?hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token="+verifyToken, nil, "")
	if status != http.StatusOK || body != "1158201444" || !strings.HasPrefix(header.Get("Content-Type"), "text/plain") {
		t.Errorf("%d %q %v", status, body, header)
	}
	if status, _, body := w.do(http.MethodGet, url+webhookPath+"?hub.mode=subscribe&hub.challenge=1&hub.verify_token=x", nil, ""); status != http.StatusForbidden || body != "" {
		t.Errorf("%d %q", status, body)
	}
}

func TestReplyIsSentAndSettled(t *testing.T) {
	w := newWorld(t)
	public, _ := w.start("public", nil)
	url, _ := w.start("events", nil)
	if status, _, _ := w.post(public, appSecret, message("wamid.1", "hello")); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	session, in := w.query(`SELECT session_id FROM sessions`), w.query(`SELECT message_id FROM messages`)
	w.exec(`INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text, in_reply_to) VALUES ('msg_out', $1, 2, 'OUTBOUND', 'DONE', '15550001111', 'x', $2)`, session, in)
	w.exec(`INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, due_at) VALUES ('rpl_1', 'msg_out', $1, 2, 1, 1, 'it is **done**', 'PLANNED', now())`, session)
	w.exec(`UPDATE messages SET state = 'DONE' WHERE message_id = $1`, in)

	reply := event.Event{ID: "e1", Type: event.MessageReply, Session: harness.SessionID(session), Agent: "coder", Channel: harness.ChannelWhatsApp, Payload: event.Payload{Session: harness.SessionID(session), Message: "msg_out"}}
	for range 2 {
		if status, body := w.deliver(url, reply); status != http.StatusAccepted || body != "" {
			t.Fatalf("delivery answered %d %q\n%s", status, body, w.logs.String())
		}
	}
	if got := w.query(`SELECT state || ' ' || provider_id FROM replies`); got != "SENT wamid.OUT" {
		t.Errorf("the reply is %q\n%s", got, w.logs.String())
	}
	calls := w.graph.taken()
	path, body, _ := strings.Cut(strings.Join(calls, "\n"), " ")
	var sent struct {
		To     string
		Opaque string `json:"biz_opaque_callback_data"`
		Text   struct{ Body string }
	}
	if err := json.Unmarshal([]byte(body), &sent); err != nil || len(calls) != 1 || path != "/v25.0/"+number+"/messages" {
		t.Fatalf("%v, calls %q", err, calls)
	}
	if sent.To != "15550001111" || sent.Opaque != "rpl_1" || sent.Text.Body != "it is *done*" {
		t.Errorf("sent %+v", sent)
	}
	// A read that overtakes the delivery, and a reply whose answer was lost.
	w.exec(`INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, due_at) VALUES ('rpl_2', 'msg_out', $1, 2, 2, 2, 'y', 'UNKNOWN', NULL)`, session)
	w.post(public, appSecret, webhook(`"statuses":[{"id":"wamid.OUT","status":"read","biz_opaque_callback_data":"rpl_1"},{"id":"wamid.LOST","status":"delivered","biz_opaque_callback_data":"rpl_2"}]`))
	w.post(public, appSecret, webhook(`"statuses":[{"id":"wamid.OUT","status":"delivered","biz_opaque_callback_data":"rpl_1"}]`))
	if got := w.query(`SELECT string_agg(state || ' ' || provider_id, ',' ORDER BY reply_id) FROM replies`); got != "READ wamid.OUT,DELIVERED wamid.LOST" {
		t.Errorf("the replies are %q", got)
	}
	heard := reply
	heard.ID, heard.Type, heard.Payload.Message = "e2", event.MessageReceived, harness.MessageID(in)
	if status, _ := w.deliver(url, heard); status != http.StatusAccepted {
		t.Errorf("the receipt answered %d", status)
	}
	if calls := w.graph.taken(); len(calls) != 2 || !strings.Contains(calls[1], `"message_id":"wamid.1"`) || !strings.Contains(calls[1], "typing_indicator") {
		t.Errorf("calls %q", calls)
	}
}

func TestConfigurationNamesEveryProblem(t *testing.T) {
	_, err := parseConfig(func(name string) string {
		return map[string]string{
			"SERVE": "events", "DATABASE_MAX_CONNS": "0", "WHATSAPP_API_URL": "graph.facebook.com", "WHATSAPP_API_VERSION": "25", "SECRETS": "vault",
			"S3_BUCKET": "b", "S3_ENDPOINT": "x", "S3_PATH_STYLE": "perhaps", "MEDIA_MAX_BYTES": "many",
		}[name]
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, name := range []string{
		"DATABASE_URL", "DATABASE_MAX_CONNS", "BROKER_URL", "WHATSAPP_API_URL", "WHATSAPP_API_VERSION", "SECRETS", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
		"S3_ENDPOINT", "S3_PATH_STYLE", "MEDIA_MAX_BYTES",
	} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in: %v", name, err)
		}
	}
	if _, err := parseConfig(func(string) string { return "" }); err == nil || !strings.Contains(err.Error(), "SERVE") {
		t.Errorf("SERVE is not asked for: %v", err)
	}
}

// Only the events side hears events, and only these.
func TestContract(t *testing.T) {
	w := newWorld(t)
	heard := map[event.Type]bool{event.MessageReply: true, event.MessageReceived: true, event.MediaRequested: true}
	for _, serve := range []string{"public", "events"} {
		url, stop := w.start(serve, nil)
		for _, kind := range event.Types() {
			e := event.Event{ID: "e", Type: kind, Session: "ses_none", Channel: harness.ChannelWhatsApp, Payload: event.Payload{Session: "ses_none", Message: "msg_none"}}
			want := http.StatusNotFound
			if serve == "events" && heard[kind] {
				want = http.StatusAccepted
			} else if serve == "events" {
				want = http.StatusBadRequest
			}
			if status, _ := w.deliver(url, e); status != want {
				t.Errorf("SERVE=%s answers %d to %s, want %d", serve, status, kind, want)
			}
		}
		stop()
	}
}
