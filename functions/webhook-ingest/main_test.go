package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tuluat.ai/harness/shared/function/functiontest"
	"tuluat.ai/harness/shared/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	secret     = "test-hook-secret"
	hooksPath  = "/api/v1/channels/webhook/"
	secretName = "HOOK_SECRET"
)

// world is that of functiontest, with hooks.
type world struct{ *functiontest.World }

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{functiontest.NewWorld(t, secret)}
	w.Agents("coder", "other")
	return w
}

// hook routes name to agent coder. Senders other than allowed, if any, are denied.
func (w *world) hook(name string, spec harness.ChannelSpec, allowed ...string) {
	w.T.Helper()
	if spec.Secret.Name == "" {
		spec.Secret = harness.SecretRef{Name: "hook", Key: "secret"}
	}
	spec.Type, spec.Account = harness.ChannelWebhook, name
	w.Route("coder", spec, allowed...)
}

type process struct {
	*world
	*functiontest.Process
}

func (w *world) start(serve string, env map[string]string) *process {
	w.T.Helper()
	return &process{w, w.Start("webhook-ingest", build, map[string]string{"SERVE": serve, secretName: secret, "CALLBACK_ALLOW_PRIVATE": "true"}, env)}
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
	functiontest.Answer `json:"-"`
	Session             harness.SessionID `json:"session"`
	Message             harness.MessageID `json:"message"`
	Dup                 bool              `json:"duplicate"`
}

func (w *world) do(request *http.Request) answer {
	w.T.Helper()
	a := answer{Answer: w.Do(request)}
	if a.Status == http.StatusAccepted && a.Body != "" {
		if err := json.Unmarshal([]byte(a.Body), &a); err != nil {
			w.T.Fatalf("answer %s: %v", a.Body, err)
		}
	}
	return a
}

func (p *process) post(hook, body string) answer {
	p.T.Helper()
	return p.do(signed(http.MethodPost, p.URL+hooksPath+hook, body, secret, time.Now()))
}

// say posts a plain message.
func (p *process) say(hook, user, id, text string) answer {
	p.T.Helper()
	body, _ := json.Marshal(map[string]any{"messageId": id, "channelUserId": user, "text": text})
	return p.post(hook, string(body))
}

func TestStartsWithoutTheWorldAndEndsCleanly(t *testing.T) {
	w := newWorld(t)
	p := w.start("public", map[string]string{"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none", "BROKER_URL": "http://127.0.0.1:1"})
	if a := p.do(signed(http.MethodGet, p.URL+"/readyz", "", "", time.Now())); a.Status != http.StatusOK {
		t.Fatalf("readyz answered %d", a.Status)
	}
	if a := p.say("hook", "u", "1", "hi"); a.Status != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
		t.Fatalf("without a database: %d %s", a.Status, a.Body)
	}
	if a := p.do(signed(http.MethodPost, p.URL+"/events", "{}", "", time.Now())); a.Status != http.StatusNotFound {
		t.Fatalf("the public side must not hear events, but answered %d", a.Status)
	}
	p.Stop()
}

func TestConfigurationNamesEveryProblem(t *testing.T) {
	_, err := parseConfig(func(name string) string {
		return map[string]string{"SERVE": "both", "DATABASE_MAX_CONNS": "0", "STREAM_TIME": "long", "CALLBACK_ALLOW_PRIVATE": "perhaps"}[name]
	})
	functiontest.Complains(t, err, "SERVE", "DATABASE_URL", "DATABASE_MAX_CONNS", "STREAM_TIME", "CALLBACK_ALLOW_PRIVATE")
	if got := (harness.SecretRef{Name: "python-coder.hook", Key: "secret"}).Variable(); got != "PYTHON_CODER_HOOK_SECRET" {
		t.Errorf("variable %s", got)
	}
}

func TestContract(t *testing.T) {
	for serve, want := range map[string]int{"public": 0, "events": 1} {
		w := newWorld(t)
		p := w.start(serve, nil)
		a := p.do(signed(http.MethodPost, p.URL+hooksPath+"hook", "{}", "", time.Now()))
		if hasHooks := a.Status != http.StatusNotFound || strings.Contains(a.Body, "hook"); hasHooks != (want == 0) {
			t.Errorf("SERVE=%s answers %d %s on the hooks' path", serve, a.Status, a.Body)
		}
	}
}
