package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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
	appSecret   = "process-test-app-secret"
	verifyToken = "process-test-verify-token"
	accessToken = "process-test-access-token"
	number      = "100000000000001"
)

// world is that of functiontest, with a Graph API.
type world struct {
	*functiontest.World
	graph *graph
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{functiontest.NewWorld(t, appSecret, verifyToken, accessToken), newGraph(t)}
	w.Agents("coder")
	w.Route("coder", harness.ChannelSpec{
		Type: harness.ChannelWhatsApp, Account: number, AppSecret: harness.SecretRef{Name: "helper", Key: "app"}, VerifyToken: harness.SecretRef{Name: "helper", Key: "verify"},
	})
	return w
}

func (w *world) start(serve string, env map[string]string) *functiontest.Process {
	w.T.Helper()
	return w.Start("whatsapp-ingest", build, map[string]string{
		"SERVE": serve, "WHATSAPP_API_URL": w.graph.URL,
		"HELPER_APP": "newer-secret, " + appSecret, "HELPER_VERIFY": verifyToken, "WHATSAPP_ACCESS_TOKEN": accessToken,
	}, env)
}

// post signs and sends a webhook.
func (w *world) post(p *functiontest.Process, key, body string) functiontest.Answer {
	w.T.Helper()
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(body))
	return w.Send(http.MethodPost, p.URL+webhookPath, http.Header{"Content-Type": {"application/json"}, "X-Hub-Signature-256": {"sha256=" + hex.EncodeToString(mac.Sum(nil))}}, body)
}

func webhook(value string) string {
	return `{"object":"whatsapp_business_account","entry":[{"id":"2","changes":[{"field":"messages","value":{"metadata":{"display_phone_number":"15550009999","phone_number_id":"` + number + `"},` + value + `}}]}]}`
}

func message(id, text string) string {
	return webhook(fmt.Sprintf(`"messages":[{"from":"15550001111","from_user_id":"US.1","id":%q,"timestamp":"%d","type":"text","text":{"body":%q}}]`, id, time.Now().Unix(), text))
}

// graph is a Graph API that takes everything.
type graph struct {
	*httptest.Server
	mu    sync.Mutex
	calls []string // path and body
}

func newGraph(t *testing.T) *graph {
	g := &graph{}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		g.mu.Lock()
		defer g.mu.Unlock()
		if r.Header.Get("Authorization") != "Bearer "+accessToken {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		g.calls = append(g.calls, r.URL.Path+" "+string(body))
		_, _ = io.WriteString(w, `{"success":true,"messages":[{"id":"wamid.OUT"}]}`)
	}))
	t.Cleanup(g.Close)
	return g
}

func (g *graph) taken() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.calls)
}

func TestStartsWithoutTheWorldAndEndsCleanly(t *testing.T) {
	w := newWorld(t)
	down := map[string]string{"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none", "BROKER_URL": "http://127.0.0.1:1", "WHATSAPP_API_URL": "http://127.0.0.1:1"}
	for _, serve := range []string{"public", "events"} {
		p := w.start(serve, down)
		if a := w.Send(http.MethodGet, p.URL+"/readyz", nil, ""); a.Status != http.StatusOK {
			t.Errorf("%s: readyz answered %d", serve, a.Status)
		}
		if serve == "public" {
			a := w.post(p, appSecret, message("wamid.1", "hi"))
			if a.Status != http.StatusServiceUnavailable || a.Body != "" || a.Header.Get("Retry-After") == "" {
				t.Errorf("without a database: %d %q", a.Status, a.Body)
			}
			if a := w.Send(http.MethodPost, p.URL+webhookPath, nil, "{}"); a.Status != http.StatusUnauthorized {
				t.Errorf("unsigned, without a database: %d", a.Status)
			}
		}
		p.Stop()
	}
}

func TestMessageIsStoredOnce(t *testing.T) {
	w := newWorld(t)
	p := w.start("public", nil)
	for _, key := range []string{"", "x", appSecret + "x"} {
		if a := w.post(p, key, message("wamid.1", "forged")); a.Status != http.StatusUnauthorized || a.Body != "" {
			t.Errorf("forged: %d %q", a.Status, a.Body)
		}
	}
	if a := w.post(p, appSecret, `{"object":`); a.Status != http.StatusBadRequest || a.Body != "" {
		t.Errorf("torn: %d %q", a.Status, a.Body)
	}
	for _, key := range []string{appSecret, "newer-secret", appSecret} {
		if a := w.post(p, key, message("wamid.1", "hello")); a.Status != http.StatusOK || a.Body != "" {
			t.Fatalf("%d %q", a.Status, a.Body)
		}
	}
	if a := w.post(p, appSecret, webhook(`"messages":[{"id":"wamid.2","from":"15550001111","type":"reaction","reaction":{"message_id":"wamid.0","emoji":"x"}},7]`)); a.Status != http.StatusOK {
		t.Errorf("notices: %d", a.Status)
	}
	padded := message("wamid.3", "large")
	padded += strings.Repeat(" ", 2_900_000-len(padded))
	if a := w.post(p, appSecret, padded); a.Status != http.StatusOK {
		t.Errorf("2.9 MB: %d", a.Status)
	}
	if a := w.post(p, appSecret, padded+strings.Repeat(" ", maxBody)); a.Status != http.StatusRequestEntityTooLarge {
		t.Errorf("too large: %d", a.Status)
	}
	if got := w.Query(`SELECT string_agg(provider_id || ' ' || channel_user_id || ' ' || text, ',' ORDER BY seq) FROM messages`); got != "wamid.1 15550001111 hello,wamid.3 15550001111 large" {
		t.Errorf("messages %q", got)
	}
	if got := w.Query(`SELECT string_agg(kind, ',' ORDER BY kind) FROM notices`); got != "MALFORMED,REACTION" {
		t.Errorf("notices %q", got)
	}
	if got := w.Query(`SELECT address || ' ' || pace_millis || ' ' || pace_burst FROM chats`); got != "15550001111 6000 45" {
		t.Errorf("chats %q", got)
	}
	if heard := w.Broker.Take(); len(heard) != 2 {
		t.Errorf("%d events", len(heard))
	}
}

func TestHandshake(t *testing.T) {
	w := newWorld(t)
	p := w.start("public", nil)
	a := w.Send(http.MethodGet, p.URL+webhookPath+"?hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token="+verifyToken, nil, "")
	if a.Status != http.StatusOK || a.Body != "1158201444" || !strings.HasPrefix(a.Header.Get("Content-Type"), "text/plain") {
		t.Errorf("%d %q %v", a.Status, a.Body, a.Header)
	}
	if a := w.Send(http.MethodGet, p.URL+webhookPath+"?hub.mode=subscribe&hub.challenge=1&hub.verify_token=x", nil, ""); a.Status != http.StatusForbidden || a.Body != "" {
		t.Errorf("%d %q", a.Status, a.Body)
	}
}

func TestReplyIsSentAndSettled(t *testing.T) {
	w := newWorld(t)
	public, p := w.start("public", nil), w.start("events", nil)
	if a := w.post(public, appSecret, message("wamid.1", "hello")); a.Status != http.StatusOK {
		t.Fatalf("status %d", a.Status)
	}
	reply, in := w.PlanReply("it is **done**")
	p.DeliverTwice(reply)
	if got := w.Query(`SELECT state || ' ' || provider_id FROM replies`); got != "SENT wamid.OUT" {
		t.Errorf("the reply is %q", got)
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
	w.Exec(`INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, due_at) VALUES ('rpl_2', 'msg_out', $1, 2, 2, 2, 'y', 'UNKNOWN', NULL)`, reply.Session)
	w.post(public, appSecret, webhook(`"statuses":[{"id":"wamid.OUT","status":"read","biz_opaque_callback_data":"rpl_1"},{"id":"wamid.LOST","status":"delivered","biz_opaque_callback_data":"rpl_2"}]`))
	w.post(public, appSecret, webhook(`"statuses":[{"id":"wamid.OUT","status":"delivered","biz_opaque_callback_data":"rpl_1"}]`))
	if got := w.Query(`SELECT string_agg(state || ' ' || provider_id, ',' ORDER BY reply_id) FROM replies`); got != "READ wamid.OUT,DELIVERED wamid.LOST" {
		t.Errorf("the replies are %q", got)
	}
	heard := reply
	heard.ID, heard.Type, heard.Payload.Message = "e2", event.MessageReceived, in
	if a := p.Deliver(heard); a.Status != http.StatusAccepted {
		t.Errorf("the receipt answered %d", a.Status)
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
	functiontest.Complains(t, err,
		"DATABASE_URL", "DATABASE_MAX_CONNS", "BROKER_URL", "WHATSAPP_API_URL", "WHATSAPP_API_VERSION", "SECRETS", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
		"S3_ENDPOINT", "S3_PATH_STYLE", "MEDIA_MAX_BYTES")
	_, err = parseConfig(func(string) string { return "" })
	functiontest.Complains(t, err, "SERVE")
}

// Only the events side hears events, and only these.
func TestContract(t *testing.T) {
	w := newWorld(t)
	w.start("public", nil).Hears(harness.ChannelWhatsApp)
	w.start("events", nil).Hears(harness.ChannelWhatsApp, event.MessageReply, event.MessageReceived, event.MediaRequested, event.AgentStatusChanged)
}
