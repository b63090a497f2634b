package tour_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/dev/tour"
	"tuluat.ai/harness/scripts/internal/fake/person"
)

const (
	number  = "100000000000001"
	session = "ses_1"
)

// world is a tour, the chats and the API it looks at.
type world struct {
	t     *testing.T
	lines *person.Transcript
	tour  *tour.Tour
	page  *httptest.Server

	mu      sync.Mutex
	answers map[string]string // of the API, by path: the items
	asked   []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, lines: person.NewTranscript(nil), answers: map[string]string{}}
	api := httptest.NewServer(http.HandlerFunc(w.answer))
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("the-token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.say("0", "15550001111", "before the tour", person.Delivered)
	lines := func() *person.Transcript { return w.lines }
	w.tour = tour.New(tour.Options{
		URL: api.URL, TokenFile: token, Console: true, Log: slog.New(slog.DiscardHandler),
		WhatsApp: tour.Messenger{URL: "http://w.test", Agent: "python-coder", Account: number, Lines: lines},
		Telegram: tour.Messenger{URL: "http://t.test", Agent: "careful-shell", Account: "a_bot", Lines: lines},
	})
	w.page = httptest.NewServer(w.tour.Handler())
	t.Cleanup(func() {
		w.page.Close()
		api.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return w
}

func (w *world) answer(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.Header.Get("Authorization") != "Bearer the-token" {
		w.t.Errorf("%s was asked for with %q", r.URL, r.Header.Get("Authorization"))
	}
	w.asked = append(w.asked, r.URL.String())
	w.tour.Saw(r, http.StatusOK) // the tour's own requests pass the public entry too
	fmt.Fprintf(out, `{"items":[%s]}`, w.answers[r.URL.Path])
}

func (w *world) records(path, items string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers[path] = items
}

func (w *world) say(id, from, text string, ticks person.Ticks) {
	w.lines.Add(person.Line{Account: number, Chat: "15550001111", ID: id, From: from, Name: "Ada", Kind: "text", Text: text, Ticks: ticks})
}

// steps is what a page is told first.
func (w *world) steps() []tour.Step {
	w.t.Helper()
	response, err := http.Get(w.page.URL + "/progress")
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	line, err := bufio.NewReader(response.Body).ReadString('\n')
	if err != nil {
		w.t.Fatal(err)
	}
	var steps []tour.Step
	if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &steps); err != nil {
		w.t.Fatal(err)
	}
	return steps
}

// done is which steps are, as a word of their first letters.
func (w *world) done() string {
	w.t.Helper()
	word := ""
	for _, s := range w.steps() {
		if s.Done != (len(s.Proof) > 0) {
			w.t.Errorf("step %s is done: %t, with the proof %q", s.ID, s.Done, s.Proof)
		}
		if s.Done {
			word += s.ID[:1]
		}
	}
	return word
}

func (w *world) saw(method, path string, status int) {
	w.tour.Saw(httptest.NewRequest(method, path, nil), status)
}

// Each step is done when what it asks for has happened, and not for less.
func TestStepsProveThemselves(t *testing.T) {
	w := newWorld(t)
	want := func(when, want string) {
		t.Helper()
		if got := w.done(); got != want {
			t.Errorf("%s: got %q done, want %q", when, got, want)
		}
	}
	want("at first", "")
	w.lines.Tick(number, "15550001111", "0", person.Read, "")
	want("an older message is read", "")
	w.say("1", "15550001111", "run: uname -a", person.Sent)
	want("a message nobody has taken yet", "")
	w.lines.Tick(number, "15550001111", "1", person.Delivered, "")
	want("a message that was taken", "w")
	w.say("2", "", "Linux", person.Failed)
	w.records("/api/v1/executions", `{"id":"exe_1","session":"ses_0","state":"COMPLETED","command":"uname -a","sandbox":"sbx_1","startedAt":"2026-01-02T03:04:05Z","endedAt":"2026-01-02T03:04:06Z"}`)
	want("an answer that did not arrive", "w")
	w.say("3", "", "Linux", person.Read)
	want("an answer after a command", "wr")
	w.records("/api/v1/approvals", `{"id":"apr_1","session":"`+session+`","state":"PENDING","title":"date"}`)
	want("a question", "wra")
	w.saw(http.MethodGet, "/api/v1/agents/careful-shell/logs", http.StatusOK)
	want("a look at the log before there is an answer", "wra")
	w.records("/api/v1/approvals", `{"id":"apr_1","session":"`+session+`","state":"APPROVED","title":"date","decidedBy":"Ada","decidedVia":"TELEGRAM","decidedAt":"`+time.Now().UTC().Format(time.RFC3339Nano)+`"}`)
	w.records("/api/v1/agents/careful-shell/logs", `{"message":"model answered"},{"message":"approved by Ada: date"},{"message":"executeShell waits for an approval"}`)
	want("an answer", "wrad")
	w.saw(http.MethodGet, "/api/v1/agents/another/logs", http.StatusOK)
	w.saw(http.MethodGet, "/api/v1/agents/careful-shell/logs", http.StatusUnauthorized)
	w.saw(http.MethodPost, "/api/v1/agents/careful-shell/logs", http.StatusOK)
	want("a look at something else", "wrad")
	w.saw(http.MethodGet, "/console/sessions/"+session, http.StatusOK)
	want("a look", "wradl")
	if proof := w.steps()[4].Proof; len(proof) != 2 || proof[1] != "In it: approved by Ada: date" {
		t.Errorf("what was found is %q", proof)
	}
	for _, asked := range w.asked {
		if !strings.Contains(asked, "since=") {
			t.Errorf("what was before the tour counts: %s", asked)
		}
	}
}

// The page says the same without a script, takes orders from nobody else, and
// begins again.
func TestThePage(t *testing.T) {
	w := newWorld(t)
	w.say("1", "15550001111", "<script>alert(1)</script>", person.Delivered)
	read := func(request *http.Request, err error) (int, string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		if policy := response.Header.Get("Content-Security-Policy"); response.StatusCode == http.StatusOK && (!strings.Contains(policy, "script-src 'self'") || strings.Contains(policy, "unsafe")) {
			t.Errorf("got the policy %q", policy)
		}
		return response.StatusCode, string(text)
	}
	get := func() string {
		t.Helper()
		_, text := read(http.NewRequestWithContext(t.Context(), http.MethodGet, w.page.URL, nil))
		return text
	}
	if text := get(); strings.Count(text, "✓ done") != 1 || strings.Contains(text, "<script>alert") || !strings.Contains(text, "http://w.test/phone/?account="+number+"&amp;text=run%3A&#43;uname&#43;-a#15550001111") {
		t.Errorf("got %s", text)
	}
	elsewhere, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.page.URL+"/again", nil)
	if err == nil {
		elsewhere.Header.Set("Origin", "http://localhost:3000")
	}
	if status, _ := read(elsewhere, err); status != http.StatusForbidden || strings.Count(get(), "✓ done") != 1 {
		t.Errorf("another page's order: got %d, want 403", status)
	}
	if status, _ := read(http.NewRequestWithContext(t.Context(), http.MethodPost, w.page.URL+"/again", nil)); status != http.StatusOK || strings.Contains(get(), "✓ done") {
		t.Errorf("begun again: got %d, and something is done", status)
	}
}
