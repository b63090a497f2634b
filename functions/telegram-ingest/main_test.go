package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function/functiontest"
	"tuluat.ai/harness/shared/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	token      = "7000000001:AAprocess-test-token"
	secretText = "process-test-secret"
	hookPath   = "/api/v1/channels/telegram/webhook/"
	bot        = "example_helper_bot"
)

// world is that of functiontest, with a Bot API.
type world struct {
	*functiontest.World
	api *api
}

func newWorld(t *testing.T, spec harness.ChannelSpec) *world {
	t.Helper()
	w := &world{functiontest.NewWorld(t, token, secretText), newAPI(t)}
	spec.Type, spec.Account = harness.ChannelTelegram, bot
	spec.BotToken, spec.WebhookSecret = harness.SecretRef{Name: "helper", Key: "token"}, harness.SecretRef{Name: "helper", Key: "secret"}
	w.Agents("coder")
	w.Route("coder", spec)
	return w
}

func (w *world) start(serve string, env map[string]string) *functiontest.Process {
	w.T.Helper()
	return w.Start("telegram-ingest", build, map[string]string{
		"SERVE": serve, "TELEGRAM_API_URL": w.api.URL, "HELPER_TOKEN": token, "HELPER_SECRET": secretText,
	}, env)
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
	refused map[string][]int
	hook    func(method string)
}

// during has each call run hook before it is answered.
func (a *api) during(hook func(method string)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hook = hook
}

// refuse makes the next calls of method answer with these codes.
func (a *api) refuse(method string, codes ...int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused = map[string][]int{method: codes}
}

// poll hands out updates once.
func (a *api) poll(updates string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.updates = append(a.updates, updates)
}

func newAPI(t *testing.T) *api {
	a := &api{}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		a.mu.Lock()
		hook := a.hook
		a.mu.Unlock()
		if hook != nil {
			hook(path.Base(r.URL.Path))
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		switch method, isBot := strings.CutPrefix(r.URL.Path, "/bot"+token+"/"); {
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
			if codes := a.refused[method]; len(codes) > 0 {
				if a.refused[method] = codes[1:]; codes[0] != http.StatusOK {
					w.WriteHeader(codes[0])
					fmt.Fprintf(w, `{"ok":false,"error_code":%d,"description":"refused"}`, codes[0])
					return
				}
			}
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

func signed(secret string) http.Header {
	return http.Header{"Content-Type": {"application/json"}, "X-Telegram-Bot-Api-Secret-Token": {secret}}
}

func TestStartsWithoutTheWorldAndEndsCleanly(t *testing.T) {
	w := newWorld(t, harness.ChannelSpec{})
	down := map[string]string{"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none", "BROKER_URL": "http://127.0.0.1:1", "TELEGRAM_API_URL": "http://127.0.0.1:1"}
	for _, serve := range []string{"public", "events", "poll"} {
		p := w.start(serve, down)
		if a := w.Send(http.MethodGet, p.URL+"/readyz", nil, ""); a.Status != http.StatusOK {
			t.Errorf("%s: readyz answered %d", serve, a.Status)
		}
		if serve == "public" {
			a := w.Send(http.MethodPost, p.URL+hookPath+bot, signed(secretText), update(1, "hi"))
			if a.Status != http.StatusServiceUnavailable || a.Body != "" || a.Header.Get("Retry-After") == "" {
				t.Errorf("without a database: %d %q", a.Status, a.Body)
			}
		}
		p.Stop()
	}
}

func TestUpdateBecomesAMessage(t *testing.T) {
	w := newWorld(t, harness.ChannelSpec{})
	p := w.start("public", nil)
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
		if a := w.Send(http.MethodPost, p.URL+hookPath+c.bot, signed(c.secret), c.body); a.Status != c.want || a.Body != "" {
			t.Errorf("%s: %d %q, want %d and nothing", c.name, a.Status, a.Body, c.want)
		}
	}
	if a := w.Send(http.MethodGet, p.URL+hookPath+bot, signed(secretText), ""); a.Status != http.StatusMethodNotAllowed && a.Status != http.StatusUnauthorized && a.Status != http.StatusBadRequest || a.Body != "" {
		t.Errorf("GET: %d %q", a.Status, a.Body)
	}
	if got := w.Query(`SELECT string_agg(text, ',') FROM messages`); got != "hello" {
		t.Errorf("messages %q", got)
	}
	if got := w.Query(`SELECT address || pace_millis FROM chats`); got != "50000000011000" {
		t.Errorf("chat %q", got)
	}
	if got := w.Query(`SELECT string_agg(kind, ',') FROM notices`); got != "MALFORMED" {
		t.Errorf("notices %q", got)
	}
}

func TestReplyIsSentAndTypingShown(t *testing.T) {
	w := newWorld(t, harness.ChannelSpec{})
	public, p := w.start("public", nil), w.start("events", nil)
	group := strings.Replace(update(1, "@example_helper_bot hello"), `"chat":{"id":5000000001,"type":"private"}`,
		`"chat":{"id":-1001,"type":"supergroup"},"entities":[{"type":"mention","offset":0,"length":19}]`, 1)
	if a := w.Send(http.MethodPost, public.URL+hookPath+bot, signed(secretText), group); a.Status != http.StatusOK {
		t.Fatalf("status %d", a.Status)
	}
	reply, message := w.PlanReply("it is **done**")
	p.DeliverTwice(reply)
	if got := w.Query(`SELECT state || ' ' || provider_id FROM replies`); got != "SENT 4711" {
		t.Errorf("the reply is %q", got)
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
	w.Exec(`UPDATE messages SET state = 'RUNNING' WHERE message_id = $1`, message)
	typing := reply
	typing.ID, typing.Type, typing.Payload.Message = "e2", event.MessageReceived, message
	done := make(chan int)
	go func() { done <- p.Deliver(typing).Status }()
	for len(w.api.taken()) < 2 {
		time.Sleep(5 * time.Millisecond)
	}
	w.Exec(`UPDATE messages SET state = 'DONE' WHERE message_id = $1`, message)
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
	p := w.start("poll", nil)
	w.Await("one,two", `SELECT string_agg(text, ',' ORDER BY seq) FROM messages`)
	w.Await("4", `SELECT next_offset::text FROM polls`)
	if got := w.Query(`SELECT string_agg(kind || provider_id, ',') FROM notices`); got != "MALFORMED2" {
		t.Errorf("notices %q", got)
	}
	p.Stop()
	if got := w.Query(`SELECT COALESCE(lease_owner, 'free') FROM polls`); got != "free" {
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
	functiontest.Complains(t, err,
		"DATABASE_URL", "DATABASE_MAX_CONNS", "BROKER_URL", "TELEGRAM_API_URL", "SECRETS", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "S3_ENDPOINT", "S3_PATH_STYLE", "MEDIA_MAX_BYTES")
	_, err = parseConfig(func(string) string { return "" })
	functiontest.Complains(t, err, "SERVE")
}

// Only the events side hears events, and only these.
func TestContract(t *testing.T) {
	w := newWorld(t, harness.ChannelSpec{})
	w.start("public", nil).Hears(harness.ChannelTelegram)
	w.start("poll", nil).Hears(harness.ChannelTelegram)
	w.start("events", nil).Hears(harness.ChannelTelegram, event.MessageReply, event.MessageDraft, event.MessageReceived, event.MediaRequested, event.AgentStatusChanged)
}
