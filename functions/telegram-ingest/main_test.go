package main

import (
	"bytes"
	"context"
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
	token      = "7000000001:AAprocess-test-token"
	secretText = "process-test-secret"
	hookPath   = "/api/v1/channels/telegram/webhook/"
	bot        = "example_helper_bot"
)

// world is one database, one Bot API that also takes the events, and processes.
type world struct {
	t      *testing.T
	dsn    harness.Secret
	store  *postgres.Store
	api    *api
	logs   *lockedBuffer
	client *http.Client
}

func newWorld(t *testing.T, spec harness.ChannelSpec) *world {
	t.Helper()
	dsn := postgrestest.DSN(t)
	store, err := postgres.Open(dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	w := &world{t: t, dsn: dsn, store: store, api: newAPI(t), logs: &lockedBuffer{}, client: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(w.client.CloseIdleConnections)
	t.Cleanup(func() {
		if logs := w.logs.String(); strings.Contains(logs, token) || strings.Contains(logs, secretText) {
			t.Errorf("a secret is in the logs:\n%s", logs)
		}
	})
	spec.Type, spec.Account = harness.ChannelTelegram, bot
	spec.BotToken, spec.WebhookSecret = harness.SecretRef{Name: "helper", Key: "token"}, harness.SecretRef{Name: "helper", Key: "secret"}
	w.exec(`INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('coder', 1, 'READY', 'd')`)
	w.exec(`INSERT INTO agent_revisions (agent_name, revision, spec) VALUES ('coder', 1, '{"name": "coder"}')`)
	w.exec(`INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all, senders) VALUES ('TELEGRAM', $1, 'coder', $2, true, '{}')`, bot, spec)
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

// until waits for a row to become what is wanted.
func (w *world) until(want, sql string, args ...any) {
	w.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for w.query(sql, args...) != want {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: %q, never %q\n%s", sql, w.query(sql, args...), want, w.logs.String())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (w *world) environment(serve string, env map[string]string) map[string]string {
	vars := map[string]string{
		"SERVE": serve, "DATABASE_URL": w.dsn.Reveal(), "BROKER_URL": w.api.URL + "/broker", "TELEGRAM_API_URL": w.api.URL,
		"HELPER_TOKEN": token, "HELPER_SECRET": secretText, "PORT": "0", "METRICS_PORT": "0",
	}
	maps.Copy(vars, env)
	return vars
}

// start runs the real build on free ports and returns its address.
func (w *world) start(serve string, env map[string]string) (url string, stop func()) {
	w.t.Helper()
	vars := w.environment(serve, env)
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan function.Addresses, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- function.Run(ctx, "telegram-ingest", func(name string) string { return vars[name] }, w.logs, build, func(a function.Addresses) { ready <- a })
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

func update(id int, text string) string {
	return fmt.Sprintf(`{"update_id":%d,"message":{"message_id":%d,"date":%d,"from":{"id":5000000001,"is_bot":false,"first_name":"Ada"},"chat":{"id":5000000001,"type":"private"},"text":%q}}`,
		id, id+100, time.Now().Unix(), text)
}

// api is a Bot API: getUpdates hands out each answer once, everything else is done.
type api struct {
	*httptest.Server
	mu      sync.Mutex
	updates []string
	calls   []string // method and parameters
	events  int
}

func newAPI(t *testing.T) *api {
	a := &api{}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		a.mu.Lock()
		defer a.mu.Unlock()
		switch method, isBot := strings.CutPrefix(r.URL.Path, "/bot"+token+"/"); {
		case r.URL.Path == "/broker":
			a.events++
			w.WriteHeader(http.StatusAccepted)
		case !isBot:
			w.WriteHeader(http.StatusNotFound)
		case method == "getUpdates":
			answer := "[]"
			if len(a.updates) > 0 {
				answer, a.updates = a.updates[0], a.updates[1:]
			}
			fmt.Fprintf(w, `{"ok":true,"result":%s}`, answer)
		default:
			a.calls = append(a.calls, method+" "+string(body))
			_, _ = io.WriteString(w, `{"ok":true,"result":{"message_id":4711}}`)
		}
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *api) taken() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.calls)
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

func signed(secret string) http.Header {
	return http.Header{"Content-Type": {"application/json"}, "X-Telegram-Bot-Api-Secret-Token": {secret}}
}

func TestStartsWithoutTheWorldAndEndsCleanly(t *testing.T) {
	w := newWorld(t, harness.ChannelSpec{})
	down := map[string]string{"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none", "BROKER_URL": "http://127.0.0.1:1", "TELEGRAM_API_URL": "http://127.0.0.1:1"}
	for _, serve := range []string{"public", "events", "poll"} {
		url, stop := w.start(serve, down)
		if status, _, _ := w.do(http.MethodGet, url+"/readyz", nil, ""); status != http.StatusOK {
			t.Errorf("%s: readyz answered %d", serve, status)
		}
		if serve == "public" {
			status, header, body := w.do(http.MethodPost, url+hookPath+bot, signed(secretText), update(1, "hi"))
			if status != http.StatusServiceUnavailable || body != "" || header.Get("Retry-After") == "" {
				t.Errorf("without a database: %d %q", status, body)
			}
		}
		stop()
	}
}

func TestUpdateBecomesAMessage(t *testing.T) {
	w := newWorld(t, harness.ChannelSpec{})
	url, _ := w.start("public", nil)
	for _, c := range []struct {
		name, bot, secret, body string
		want                    int
	}{
		{"right", bot, secretText, update(1, "hello"), 200},
		{"again", bot, secretText, update(1, "hello"), 200},
		{"forged", bot, "guess", update(2, "forged"), 401},
		{"no secret", bot, "", update(2, "forged"), 401},
		{"unknown bot", "other_bot", secretText, update(2, "forged"), 401},
		{"torn", bot, secretText, update(3, "torn")[:40], 400},
		{"array", bot, secretText, "[1]", 200},
		{"too large", bot, secretText, strings.Repeat(" ", maxBody+1), 413},
	} {
		if status, _, body := w.do(http.MethodPost, url+hookPath+c.bot, signed(c.secret), c.body); status != c.want || body != "" {
			t.Errorf("%s: %d %q, want %d and nothing", c.name, status, body, c.want)
		}
	}
	if status, _, body := w.do(http.MethodGet, url+hookPath+bot, signed(secretText), ""); status != http.StatusMethodNotAllowed && status != http.StatusUnauthorized && status != http.StatusBadRequest || body != "" {
		t.Errorf("GET: %d %q", status, body)
	}
	if got := w.query(`SELECT string_agg(text, ',') FROM messages`); got != "hello" {
		t.Errorf("messages %q", got)
	}
	if got := w.query(`SELECT address || pace_millis FROM chats`); got != "50000000011000" {
		t.Errorf("chat %q", got)
	}
	if got := w.query(`SELECT string_agg(kind, ',') FROM notices`); got != "MALFORMED" {
		t.Errorf("notices %q", got)
	}
}

func TestReplyIsSentAndTypingShown(t *testing.T) {
	w := newWorld(t, harness.ChannelSpec{})
	public, _ := w.start("public", nil)
	url, _ := w.start("events", nil)
	group := strings.Replace(update(1, "@example_helper_bot hello"), `"chat":{"id":5000000001,"type":"private"}`,
		`"chat":{"id":-1001,"type":"supergroup"},"entities":[{"type":"mention","offset":0,"length":19}]`, 1)
	if status, _, _ := w.do(http.MethodPost, public+hookPath+bot, signed(secretText), group); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	session, message := w.query(`SELECT session_id FROM sessions`), w.query(`SELECT message_id FROM messages`)
	w.exec(`INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text, in_reply_to) VALUES ('msg_out', $1, 2, 'OUTBOUND', 'DONE', '5000000001', 'x', $2)`, session, message)
	w.exec(`INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, due_at) VALUES ('rpl_1', 'msg_out', $1, 2, 1, 1, 'it is **done**', 'PLANNED', now())`, session)
	w.exec(`UPDATE messages SET state = 'DONE' WHERE message_id = $1`, message)

	reply := event.Event{ID: "e1", Type: event.MessageReply, Session: harness.SessionID(session), Agent: "coder", Channel: harness.ChannelTelegram, Payload: event.Payload{Session: harness.SessionID(session), Message: "msg_out"}}
	for range 2 {
		if status, body := w.deliver(url, reply); status != http.StatusAccepted || body != "" {
			t.Fatalf("delivery answered %d %q\n%s", status, body, w.logs.String())
		}
	}
	if got := w.query(`SELECT state || ' ' || provider_id FROM replies`); got != "SENT 4711" {
		t.Errorf("the reply is %q\n%s", got, w.logs.String())
	}
	calls := w.api.taken()
	if len(calls) != 1 || !strings.HasPrefix(calls[0], "sendMessage ") {
		t.Fatalf("calls %q", calls)
	}
	var sent struct {
		ChatID int64  `json:"chat_id"`
		Text   string `json:"text"`
		Reply  struct {
			MessageID int64 `json:"message_id"`
		} `json:"reply_parameters"`
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(calls[0], "sendMessage ")), &sent); err != nil {
		t.Fatal(err)
	}
	if sent.ChatID != -1001 || sent.Text != "it is <b>done</b>" || sent.Reply.MessageID != 101 {
		t.Errorf("sent %+v", sent)
	}
	w.exec(`UPDATE messages SET state = 'RUNNING' WHERE message_id = $1`, message)
	typing := reply
	typing.ID, typing.Type, typing.Payload.Message = "e2", event.MessageReceived, harness.MessageID(message)
	done := make(chan int)
	go func() {
		status, _ := w.deliver(url, typing)
		done <- status
	}()
	for len(w.api.taken()) < 2 {
		time.Sleep(5 * time.Millisecond)
	}
	w.exec(`UPDATE messages SET state = 'DONE' WHERE message_id = $1`, message)
	if status := <-done; status != http.StatusAccepted {
		t.Errorf("typing answered %d", status)
	}
	if calls := w.api.taken(); !strings.HasPrefix(calls[1], "sendChatAction ") {
		t.Errorf("calls %q", calls)
	}
}

func TestPollsUnderALease(t *testing.T) {
	w := newWorld(t, harness.ChannelSpec{Transport: harness.TransportPoll})
	w.api.updates = []string{"[" + update(1, "one") + `,{"update_id":2,"message":[]},` + update(3, "two") + "]"}
	_, stop := w.start("poll", nil)
	w.until("one,two", `SELECT string_agg(text, ',' ORDER BY seq) FROM messages`)
	w.until("4", `SELECT next_offset::text FROM polls`)
	if got := w.query(`SELECT string_agg(kind || provider_id, ',') FROM notices`); got != "MALFORMED2" {
		t.Errorf("notices %q", got)
	}
	stop()
	if got := w.query(`SELECT COALESCE(lease_owner, 'free') FROM polls`); got != "free" {
		t.Errorf("the lease is held by %s", got)
	}
}

func TestConfigurationNamesEveryProblem(t *testing.T) {
	_, err := parseConfig(func(name string) string {
		return map[string]string{
			"SERVE": "events", "DATABASE_MAX_CONNS": "0", "TELEGRAM_API_URL": "api.telegram.org", "SECRETS": "vault", "S3_BUCKET": "b", "S3_ENDPOINT": "x", "S3_PATH_STYLE": "perhaps",
			"MEDIA_MAX_BYTES": "many",
		}[name]
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, name := range []string{
		"DATABASE_URL", "DATABASE_MAX_CONNS", "BROKER_URL", "TELEGRAM_API_URL", "SECRETS", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "S3_ENDPOINT", "S3_PATH_STYLE", "MEDIA_MAX_BYTES",
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
	w := newWorld(t, harness.ChannelSpec{})
	heard := map[event.Type]bool{event.MessageReply: true, event.MessageReceived: true, event.MediaRequested: true}
	for _, serve := range []string{"public", "poll", "events"} {
		url, stop := w.start(serve, nil)
		for _, kind := range event.Types() {
			e := event.Event{ID: "e", Type: kind, Session: "ses_none", Channel: harness.ChannelTelegram, Payload: event.Payload{Session: "ses_none", Message: "msg_none"}}
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
