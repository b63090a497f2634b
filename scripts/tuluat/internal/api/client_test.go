package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tuluat.ai/harness/scripts/tuluat/internal/sse"
	"tuluat.ai/harness/shared/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dial is a client of a server that behaves as h, with short waits.
func dial(t *testing.T, h http.Handler) *Client {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	c, err := New(Options{URL: server.URL + "/", Token: func() (harness.Secret, error) { return "tok", nil }, UserAgent: "test"})
	if err != nil {
		t.Fatal(err)
	}
	c.firstPause, c.lastPause, c.idleTime, c.giveUp, c.tryTime = time.Millisecond, 5*time.Millisecond, 5*time.Second, time.Second, 5*time.Second
	t.Cleanup(c.Close)
	return c
}

func problem(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	io.WriteString(w, body)
}

func TestWhereTokensGo(t *testing.T) {
	for url, ok := range map[string]bool{
		"https://a.example": true, "http://127.0.0.1:1": true, "http://[::1]:1": true, "http://localhost": true, "http://x.localhost:3": true,
		"http://a.example": false, "http://10.0.0.1": false, "ftp://a": false, "a.example": false, "https://u:p@a": false, "https://a/?x=1": false, "http://127.0.0.1.a.example": false,
	} {
		if _, err := New(Options{URL: url}); (err == nil) != ok {
			t.Errorf("%s: %v", url, err)
		}
	}
	if _, err := New(Options{URL: "http://a.example", PlainHTTP: true}); err != nil {
		t.Error(err)
	}
	for _, file := range []string{filepath.Join(t.TempDir(), "none"), os.DevNull} {
		if _, err := New(Options{URL: "https://a", CA: file}); err == nil {
			t.Errorf("%s is taken for certificates", file)
		}
	}
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	c := dial(t, http.RedirectHandler(other.URL, http.StatusFound))
	_, err := c.WhoAmI(t.Context())
	if p, ok := errors.AsType[*Problem](err); !ok || p.Status != 302 || !strings.Contains(err.Error(), other.URL) || elsewhere.Load() > 0 {
		t.Errorf("a redirect: %v, followed %d times", err, elsewhere.Load())
	}
}

func TestRetries(t *testing.T) {
	for name, c := range map[string]struct {
		fail  func(w http.ResponseWriter)
		call  func(context.Context, *Client) error
		tries int64
	}{
		"get, busy":    {func(w http.ResponseWriter) { w.WriteHeader(503) }, whoAmI, 3},
		"get, cut off": {cut, whoAmI, 3},
		"get, refused": {func(w http.ResponseWriter) { problem(w, 404, `{"detail":"no"}`) }, whoAmI, 1},
		"get, broken":  {func(w http.ResponseWriter) { w.WriteHeader(500) }, whoAmI, 1},
		"create with a key, cut off": {cut, func(ctx context.Context, c *Client) error {
			_, err := c.Start(ctx, "a", "text", "", nil)
			return err
		}, 3},
		"agent, cut off": {cut, func(ctx context.Context, c *Client) error {
			_, err := c.Create(ctx, Agents, Document{"application/yaml", []byte("kind: AiAgent\n")}, false)
			return err
		}, 3},
		"update, cut off": {cut, update(false), 1},
		"update, busy":    {func(w http.ResponseWriter) { w.WriteHeader(503) }, update(false), 1},
		"update, too many": {func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(429)
		}, update(false), 2},
		"dry run, cut off": {cut, update(true), 3},
		"delete, cut off":  {cut, func(ctx context.Context, c *Client) error { return c.Delete(ctx, Agents, "a", `"1"`) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var tries atomic.Int64
			var mu sync.Mutex
			keys := map[string]bool{}
			client := dial(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				keys[r.Header.Get("Idempotency-Key")] = true
				mu.Unlock()
				if tries.Add(1) < c.tries || c.tries == 1 {
					c.fail(w)
					return
				}
				io.WriteString(w, `{"metadata":{"name":"a","resourceVersion":"2"}}`)
			}))
			err := c.call(t.Context(), client)
			if tries.Load() != c.tries || (err == nil) != (c.tries > 1) || len(keys) != 1 {
				t.Errorf("%d tries under %d keys, %v", tries.Load(), len(keys), err)
			}
		})
	}
}

func cut(http.ResponseWriter) { panic(http.ErrAbortHandler) }

func whoAmI(ctx context.Context, c *Client) error {
	_, err := c.WhoAmI(ctx)
	return err
}

func update(dryRun bool) func(context.Context, *Client) error {
	return func(ctx context.Context, c *Client) error {
		_, err := c.Update(ctx, Agents, "a", `"1"`, Document{"application/yaml", []byte("kind: AiAgent\n")}, dryRun)
		return err
	}
}

func TestALongRetryAfterIsTheCallers(t *testing.T) {
	c := dial(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		problem(w, 429, `{"detail":"slow down","requestId":"r1"}`)
	}))
	began := time.Now()
	_, err := c.WhoAmI(t.Context())
	if p, ok := errors.AsType[*Problem](err); !ok || p.RetryAfter != time.Hour || p.RequestID != "r1" || time.Since(began) > 3*time.Second {
		t.Error(err)
	}
}

func TestWhatIsNoAPI(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"a page": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") },
		"a page that leads to itself": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `{"items":[],"next":"x"}`)
		},
	} {
		c := dial(t, h)
		if _, err := c.Channels(t.Context(), 0); !errors.Is(err, errForeign) || Passing(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := dial(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(502)
		io.WriteString(w, "<html>bad gateway")
	}))
	if _, err := c.Version(t.Context()); err == nil || err.Error() != "Bad Gateway (502)" {
		t.Error(err)
	}
}

func TestPages(t *testing.T) {
	var asked []string
	c := dial(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RawQuery)
		from, _ := strconv.Atoi(r.URL.Query().Get("after"))
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		items := []string{}
		for i := from; i < min(from+limit, 450); i++ {
			items = append(items, fmt.Sprintf(`{"id":"ses_%d","later":[1]}`, i))
		}
		next := ""
		if from+limit < 450 {
			next = fmt.Sprintf(`,"next":"%d"`, from+limit)
		}
		fmt.Fprintf(w, `{"items":[%s]%s}`, strings.Join(items, ","), next)
	}))
	l, err := c.Sessions(t.Context(), SessionFilter{Agent: "a&b", States: []string{"IDLE", "FAILED"}}, 0)
	if err != nil || len(l.Items) != 450 || l.More || l.Items[449].View.ID != "ses_449" || string(l.Items[0].Raw) != `{"id":"ses_0","later":[1]}` {
		t.Fatalf("%d items, %v, %v", len(l.Items), l.More, err)
	}
	want := []string{"agent=a%26b&limit=200&status=IDLE&status=FAILED", "after=200&agent=a%26b&limit=200&status=IDLE&status=FAILED", "after=400&agent=a%26b&limit=200&status=IDLE&status=FAILED"}
	if !slices.Equal(asked, want) {
		t.Errorf("asked %q", asked)
	}
	if l, err = c.Sessions(t.Context(), SessionFilter{}, 250); err != nil || len(l.Items) != 250 || !l.More || !strings.Contains(asked[len(asked)-1], "limit=50") {
		t.Errorf("%d items, %v, %v, %q", len(l.Items), l.More, err, asked)
	}
	if l, err = c.Sessions(t.Context(), SessionFilter{}, 450); err != nil || len(l.Items) != 450 || l.More {
		t.Errorf("%d items, %v, %v", len(l.Items), l.More, err)
	}
}

// events plays a session's events: a connection ends after every so many, and
// some are refused.
type events struct {
	mu          sync.Mutex
	all         []string
	connections int
	each        int // events of one connection
	refuse      func(connection int) int
}

func (e *events) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	e.connections++
	number := e.connections
	e.mu.Unlock()
	if status := e.refuse(number); status != 0 {
		problem(w, status, `{"detail":"not now"}`)
		return
	}
	from, _ := strconv.Atoi(strings.TrimPrefix(r.Header.Get("Last-Event-ID"), "ses_1/"))
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "event: session\ndata: {\"session\":\"ses_1\",\"state\":\"RUNNING\"}\n\n: heartbeat\n\n")
	for i := from; i < len(e.all) && i < from+e.each; i++ {
		fmt.Fprintf(w, "id: ses_1/%d\nevent: turn\ndata: {\"text\":%q}\n\n", i+1, e.all[i])
	}
	if from+e.each >= len(e.all) {
		io.WriteString(w, "event: end\ndata: {\"state\":\"COMPLETED\"}\n\n")
		return
	}
	io.WriteString(w, "id: ses_1/999\nevent: turn\ndata: {\"text\":\"cut o") // no event: it has no end
	w.(http.Flusher).Flush()
	if number%2 == 0 {
		panic(http.ErrAbortHandler)
	}
}

func TestFollowGivesEveryEventOnce(t *testing.T) {
	e := &events{each: 3, refuse: func(n int) int { return map[int]int{2: 503, 5: 429, 6: 500}[n] }}
	for i := range 60 {
		e.all = append(e.all, fmt.Sprint("text ", i))
	}
	c := dial(t, e)
	var got []string
	lost := 0
	err := c.Follow(t.Context(), "ses_1", "", func(e sse.Event) error {
		if e.Name == "turn" {
			got = append(got, e.Text)
		}
		return nil
	}, func(error) { lost++ })
	if err != nil || !slices.Equal(got, e.all) || e.connections != 23 || lost < 12 {
		t.Errorf("%v after %d connections, %d lost: %q", err, e.connections, lost, got)
	}
	got = nil
	if err := c.Follow(t.Context(), "ses_1", "ses_1/58", func(e sse.Event) error { got = append(got, e.Name+e.Text); return nil }, func(error) {}); err != nil ||
		!slices.Equal(got, []string{"session", "turntext 58", "turntext 59", "end"}) {
		t.Errorf("%v %q", err, got)
	}
}

// What a running command printed is told again to who comes back, in other
// pieces; it is printed once.
func TestFollowPrintsOutputOnce(t *testing.T) {
	connections := 0
	c := dial(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		connections++
		w.Header().Set("Content-Type", "text/event-stream")
		output := func(stream string, offset int, text string) {
			data, _ := json.Marshal(map[string]any{"toolCall": "call_1", "stream": stream, "offset": offset, "text": text})
			fmt.Fprintf(w, "event: output\ndata: %s\n\n", data)
		}
		switch connections {
		case 1:
			output("stdout", 0, "one ")
			output("stderr", 0, "\ufffd") // one byte that is no text: offsets within a connection are the server's
			output("stderr", 1, "warning")
			output("stdout", 4, "two")
		case 2:
			output("stdout", 0, "one two three fo")
			output("stdout", 16, "ur")
		case 3:
			output("stdout", 0, "one two")
			output("stdout", 7, " three four")
			io.WriteString(w, "event: end\ndata: {}\n\n")
		}
	}))
	got := map[string]string{}
	err := c.Follow(t.Context(), "ses_1", "", func(e sse.Event) error {
		if e.Name == "output" {
			var data struct{ Text string }
			if err := json.Unmarshal(e.Data, &data); err != nil || data.Text != e.Text {
				t.Errorf("the data %s is of text %q", e.Data, e.Text)
			}
			got[e.Stream] += e.Text
		}
		return nil
	}, func(error) {})
	if err != nil || got["stdout"] != "one two three four" || got["stderr"] != "\ufffdwarning" {
		t.Errorf("%v %q", err, got)
	}
}

func TestFollowEnds(t *testing.T) {
	always := func(status int) http.Handler { return &events{refuse: func(int) int { return status }} }
	c := dial(t, always(503))
	c.giveUp = 30 * time.Millisecond
	if err := c.Follow(t.Context(), "ses_1", "", nil, func(error) {}); err == nil || !strings.Contains(err.Error(), "lost") {
		t.Errorf("a server that stays away: %v", err)
	}
	for _, status := range []int{401, 403, 404} {
		lost := 0
		err := dial(t, always(status)).Follow(t.Context(), "ses_1", "", nil, func(error) { lost++ })
		if p, ok := errors.AsType[*Problem](err); !ok || p.Status != status || lost > 0 {
			t.Errorf("%d: %v", status, err)
		}
	}
	mine := errors.New("enough")
	if err := dial(t, &events{all: []string{"a"}, each: 1, refuse: func(int) int { return 0 }}).Follow(t.Context(), "ses_1", "", func(sse.Event) error { return mine }, func(error) {}); !errors.Is(err, mine) {
		t.Error(err)
	}
	hang := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if err := dial(t, hang).Follow(ctx, "ses_1", "", nil, func(error) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	silent := dial(t, hang)
	silent.idleTime, silent.tryTime, silent.giveUp = 10*time.Millisecond, 10*time.Millisecond, time.Minute
	ctx, cancel = context.WithCancel(t.Context())
	lost := 0
	err := silent.Follow(ctx, "ses_1", "", nil, func(err error) {
		if lost++; lost == 3 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || lost != 3 {
		t.Errorf("a connection without heartbeats: %v, lost %d times", err, lost)
	}
}
