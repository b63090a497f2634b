package conformance

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hook is a small system under test: it stores what is rightly signed, and can
// be made to do it badly.
type hook struct {
	store          *postgres.Store
	loses, doubles bool
	slips          string // what it tells a caller
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	timestamp := r.Header.Get("X-Tuluat-Timestamp")
	if r.Header.Get("X-Tuluat-Signature") != "v1="+mac(hookSecret, append([]byte(timestamp+"."), body...)) {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	var in struct{ MessageID, ChannelUserID, Text string }
	if json.Unmarshal(body, &in) != nil || in.Text == "" {
		http.Error(w, h.slips, http.StatusBadRequest)
		return
	}
	ids := []string{in.MessageID}
	if h.loses {
		ids = nil
	}
	if h.doubles {
		ids = append(ids, in.MessageID+"-again")
	}
	for _, id := range ids {
		arrival := postgres.Arrival{
			Account: hookName, ProviderID: id, Chat: in.ChannelUserID,
			Message: harness.Message{Channel: harness.ChannelWebhook, ChannelUserID: in.ChannelUserID, Text: in.Text, Metadata: map[string]any{"messageId": id}},
		}
		if _, _, err := h.store.Accept(r.Context(), harness.ChannelWebhook, postgres.Inbound{Arrivals: []postgres.Arrival{arrival}}, ""); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
	}
	w.WriteHeader(http.StatusAccepted)
}

func testCase(t *testing.T, name, body, expect string) Case {
	t.Helper()
	return Case{Name: name, Body: []byte(body), Expect: outcome(t, expect)}
}

func TestAgainstATarget(t *testing.T) {
	const body = `{"messageId":"m1","channelUserId":"ann","text":"hello"}`
	const stored = `{"http_status":200,"messages":[{"channel":"WEBHOOK","channelUserId":"ann","text":"hello","metadata":{"messageId":"m1"}}]}`
	cases := []Case{
		testCase(t, "hook-1", body, stored),
		testCase(t, "hook-2", body, stored), // the same message: the database is empty again
		testCase(t, "hook-3", body, `{"http_status":401,"messages":[]}`),
		testCase(t, "hook-4", `{"messageId":"m1","text":"secret`, `{"http_status":400,"messages":[],"body_excludes":"secret"}`),
		testCase(t, "out-1", `{"channel":"TELEGRAM","reply":{"text":"x"}}`, `{"chunks":1}`),
	}
	cases[1].Request.Repeat, cases[1].Request.ConcurrentLast = 4, 3
	cases[2].Request.Sign = "none"
	for _, test := range []struct {
		name string
		hook hook
		want []string // the results, and the differences that there must be
	}{
		{"right", hook{}, []string{Passed, Passed, Passed, Passed, NotRun + " provider"}},
		{"loses", hook{loses: true}, []string{Differs + " the id", Differs + " the id", Passed, Passed, NotRun}},
		{"doubles", hook{doubles: true}, []string{Differs + " too many", Differs + " too many", Passed, Passed, NotRun}},
		{"tells", hook{slips: "cannot read secret"}, []string{Passed, Passed, Passed, Differs + " body_excludes", NotRun}},
		{"tells a secret", hook{slips: hookSecret}, []string{Passed, Passed, Passed, Differs + " holds the secret", NotRun}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dsn := postgrestest.DSN(t)
			store, err := postgres.Open(dsn, postgres.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			system := test.hook
			system.store = store
			server := httptest.NewServer(&system)
			defer server.Close()
			w, err := NewWorld(t.Context(), Options{Target: server.URL, DatabaseURL: dsn.Reveal(), known: time.Nanosecond}, cases)
			defer func() {
				if err := w.Close(); err != nil {
					t.Error(err)
				}
			}()
			if err != nil {
				t.Fatal(err)
			}
			results, err := w.Run(t.Context(), cases, false)
			if err != nil || len(results) != len(cases) {
				t.Fatalf("%d results, %v", len(results), err)
			}
			for i, r := range results {
				result, detail, _ := strings.Cut(test.want[i], " ")
				if strings.HasPrefix(test.want[i], NotRun) {
					result, detail = NotRun, ""
				}
				if r.Result != result || !strings.Contains(strings.Join(r.Details, "\n"), detail) {
					t.Errorf("%s: %s %q, want %q", r.Case, r.Result, r.Details, test.want[i])
				}
			}
		})
	}
}

// A database with agents of its own is left alone.
func TestForeignDatabase(t *testing.T) {
	dsn := postgrestest.DSN(t)
	store, err := postgres.Open(dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	agent := &harness.Agent{Name: "somebody"}
	if _, _, err := store.PutAgents(t.Context(), []postgres.AgentText{{Name: "somebody", Source: "x", Agent: agent}}, nil); err != nil {
		t.Fatal(err)
	}
	w, err := NewWorld(t.Context(), Options{Target: "http://127.0.0.1:1", DatabaseURL: dsn.Reveal()}, nil)
	if err == nil || !strings.Contains(err.Error(), "agents of its own") {
		t.Errorf("NewWorld: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

func TestProvider(t *testing.T) {
	p, err := startProvider("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	client := &http.Client{}
	post := func(path, body string) (int, string) {
		t.Helper()
		r, err := client.Post(p.URL+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(bytes.TrimSpace(text))
	}
	p.answerNext(429, []byte(`{"ok":false}`))
	if status, _ := post("/bot1:x/sendChatAction", `{"chat_id":1}`); status != 200 {
		t.Errorf("a chat action took the answer: %d", status)
	}
	if status, body := post("/bot1:x/sendMessage", `{"chat_id":1,"text":"a"}`); status != 429 || body != `{"ok":false}` {
		t.Errorf("scripted: %d %s", status, body)
	}
	if status, body := post("/v25.0/1/messages", `{"to":"2","text":{"body":"b"}}`); status != 200 || !strings.Contains(body, `"wamid.SENT-`) {
		t.Errorf("WhatsApp: %d %s", status, body)
	}
	if status, _ := post("/v25.0/1/messages", `{"status":"read","message_id":"m"}`); status != 200 {
		t.Errorf("read: %d", status)
	}
	sent := p.taken()
	if len(sent) != 2 || spoken(sent[0].Body) != "a" || spoken(sent[1].Body) != "b" || sent[0].Path != "/sendMessage" {
		t.Errorf("sent: %+v", sent)
	}

	asked := p.answerUpdates(200, []byte(`{"ok":true,"result":[{"update_id":6}]}`))
	if _, body := post("/bot1:x/getUpdates", `{"offset":0}`); !strings.Contains(body, `"update_id":6`) {
		t.Errorf("updates: %s", body)
	}
	select {
	case <-asked:
		t.Error("asked before it was")
	default:
	}
	post("/bot1:x/getUpdates", `{"offset":7,"timeout":0}`)
	<-asked
	if got := p.nextOffset(); got != 7 {
		t.Errorf("offset %d", got)
	}
}

func TestRecorder(t *testing.T) {
	b, err := startRecorder()
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	for _, kind := range []string{"ai.tuluat.message.received.v1", "ai.tuluat.message.status.v1"} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("{}"))
		r.Header.Set("Ce-Type", kind)
		r.Header.Set("Ce-Tuluatsession", "ses_1")
		b.ServeHTTP(httptest.NewRecorder(), r)
	}
	if got := b.take(); len(got) != 1 || got[0] != "ses_1" {
		t.Errorf("wakes %v", got)
	}
	if got := b.take(); got == nil || len(got) != 0 {
		t.Errorf("wakes again %v", got)
	}
}

func TestReadLog(t *testing.T) {
	p := &process{name: "x (public)", exited: make(chan struct{})}
	path := filepath.Join(t.TempDir(), "log")
	write := func(text string) {
		t.Helper()
		file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := io.WriteString(io.MultiWriter(file, &p.log), text); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"level":"ERROR","msg":"` + appSecret + `"}` + "\n")
	mark := p.log.len()
	write(`{"level":"INFO","msg":"a"}` + "\n" + `{"level":"ERROR","msg":"b"}` + "\n")
	logs := []functionLog{{p.name, &p.log, p.ended}, {path, logFile(path), func() bool { return false }}}
	for _, log := range logs {
		o := &Observed{}
		readLog(log, mark, o)
		if len(o.Faults) != 0 || len(o.Errors) != 1 || o.Errors[0] != "b" {
			t.Errorf("%s: %+v", log.name, o)
		}
	}
	write("panic: " + botToken)
	close(p.exited)
	for i, log := range logs {
		o := &Observed{}
		readLog(log, 0, o)
		if len(o.Faults) != 3-i { // only of a process is it known that it has ended
			t.Errorf("%s: %+v", log.name, o)
		}
	}
}
