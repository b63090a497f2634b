package phone_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
	"tuluat.ai/harness/scripts/internal/fake/phone"
)

const (
	number = "100000000000001"
	ada    = "15550001111"
)

// world is a page and what it shows.
type world struct {
	t     *testing.T
	lines *person.Transcript
	clock *person.Clock
	end   context.CancelFunc // of the fake
	http  *httptest.Server
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ends, end := context.WithCancel(context.Background())
	w := &world{t: t, lines: person.NewTranscript(nil), clock: person.NewClock(nil, 0), end: end}
	w.http = httptest.NewServer(phone.Handler(phone.WhatsApp, w.lines, w.clock, ends.Done()))
	t.Cleanup(func() {
		end()
		w.http.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return w
}

func (w *world) add(account, chat, id, text string) {
	w.lines.Add(person.Line{Account: account, Chat: chat, ID: id, Text: text, Kind: "text", At: w.clock.Now()})
}

// stream follows the changes. next returns the next event that tells something.
func (w *world) stream(query string, header http.Header) (next func() (phone.News, error)) {
	w.t.Helper()
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.http.URL+"/phone/changes?"+query, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for name := range header {
		request.Header.Set(name, header.Get(name))
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { response.Body.Close() })
	if got := response.Header.Get("Content-Type"); got != "text/event-stream" {
		w.t.Fatalf("got %s of type %q", response.Status, got)
	}
	text := bufio.NewReader(response.Body)
	return func() (phone.News, error) {
		for {
			line, err := text.ReadString('\n')
			if err != nil {
				return phone.News{}, err
			}
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				var news phone.News
				return news, json.Unmarshal([]byte(data), &news)
			}
		}
	}
}

func texts(lines []person.Line) []string {
	all := []string{}
	for _, l := range lines {
		all = append(all, l.Text)
	}
	return all
}

// A page hears what stands in its chat, then each change once, and of other
// chats the newest line; one that was cut off goes on where it was.
func TestChangesAreTold(t *testing.T) {
	w := newWorld(t)
	w.add(number, ada, "1", "one")
	w.add(number, "15550002222", "2", "elsewhere")
	w.add("another number", ada, "3", "another's")
	w.add("", ada, "4", "everybody's")
	next := w.stream("account="+number+"&chat="+ada, nil)
	read := func() phone.News {
		t.Helper()
		news, err := next()
		if err != nil {
			t.Fatal(err)
		}
		return news
	}
	first := read()
	heads := texts(first.Heads)
	slices.Sort(heads)
	if got, want := fmt.Sprint(texts(first.Lines), heads), "[one everybody's] [elsewhere everybody's one]"; got != want {
		t.Errorf("at first: got %s, want %s", got, want)
	}
	w.lines.Tick(number, ada, "1", person.Read, "")
	if news := read(); len(news.Lines) != 1 || news.Lines[0].Ticks != person.Read || len(news.Heads) != 1 {
		t.Errorf("after a tick: got %+v", news)
	}
	w.lines.Typing(number, ada, w.clock.Now().Add(time.Hour))
	if news := read(); !news.Typing || len(news.Lines) != 0 {
		t.Errorf("while somebody types: got %+v", news)
	}
	before := w.clock.Now()
	w.clock.Jump(25 * time.Hour)
	news := read()
	if news.Typing || news.Now.Sub(before) < 25*time.Hour {
		t.Errorf("after a jump: got typing %t, a clock %s further", news.Typing, news.Now.Sub(before))
	}
	w.add(number, "15550002222", "5", "elsewhere too")
	if news := read(); len(news.Lines) != 0 || fmt.Sprint(texts(news.Heads)) != "[elsewhere too]" {
		t.Errorf("of another chat: got %+v", news)
	}
	again := w.stream("account="+number+"&chat="+ada, http.Header{"Last-Event-Id": {fmt.Sprint(first.Next)}})
	if news, err := again(); err != nil || fmt.Sprint(texts(news.Lines), texts(news.Heads)) != "[one] [one elsewhere too]" && fmt.Sprint(texts(news.Lines), texts(news.Heads)) != "[one] [elsewhere too one]" {
		t.Errorf("after it was cut off: got %v %v, %v", texts(news.Lines), texts(news.Heads), err)
	}
}

// A long chat begins with its newest lines, and a stream ends with its fake.
func TestAStreamIsCutAndEnds(t *testing.T) {
	w := newWorld(t)
	for i := range 250 {
		w.add(number, ada, fmt.Sprint(i), fmt.Sprint(i))
	}
	next := w.stream("account="+number+"&chat="+ada, nil)
	news, err := next()
	if err != nil || len(news.Lines) != 200 || !news.Cut || news.Lines[0].Text != "50" {
		t.Errorf("got %d lines, cut %t, %v", len(news.Lines), news.Cut, err)
	}
	w.end()
	if _, err := next(); err == nil {
		t.Error("the stream goes on after the fake has ended")
	}
}

// The page runs nobody's words, and is for this machine only.
func TestThePageIsGuarded(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		method, path string
		header       map[string]string
		want         int
	}{
		{http.MethodGet, "", nil, http.StatusOK},
		{http.MethodGet, "phone.js", nil, http.StatusOK},
		{http.MethodGet, "phone.css", nil, http.StatusOK},
		{http.MethodGet, "phone.go", nil, http.StatusNotFound},
		{http.MethodGet, "", map[string]string{"Host": "evil.example"}, http.StatusForbidden},
		{http.MethodGet, "changes", map[string]string{"Host": "evil.example:80"}, http.StatusForbidden},
		{http.MethodGet, "", map[string]string{"Origin": "https://evil.example"}, http.StatusForbidden},
		{http.MethodPost, "", map[string]string{"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:1"}, http.StatusForbidden},
		{http.MethodPost, "", map[string]string{"Origin": "http://localhost:3000"}, http.StatusForbidden},
	} {
		request, err := http.NewRequestWithContext(t.Context(), c.method, w.http.URL+"/phone/"+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range c.header {
			request.Header.Set(name, value)
			if name == "Host" {
				request.Host = value
			}
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != c.want {
			t.Errorf("%s %q %v: got %d, want %d", c.method, c.path, c.header, response.StatusCode, c.want)
		}
		if c.want != http.StatusOK {
			continue
		}
		if policy := response.Header.Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
			t.Errorf("%q: got the policy %q", c.path, policy)
		}
		for _, inline := range []string{"<script>", " onclick=", " style=", "innerHTML", "https://"} {
			if strings.Contains(string(text), inline) {
				t.Errorf("%q has %q in it", c.path, inline)
			}
		}
	}
}
