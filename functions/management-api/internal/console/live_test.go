package console_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/functions/management-api/internal/access"
)

// follow reads the names of events at path until enough says so, and how long that took.
func (b *browser) follow(path string, enough func(names []string) bool) ([]string, time.Duration) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, b.server.URL+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	began := time.Now()
	response, err := b.client.Do(q)
	if err != nil {
		b.t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "text/event-stream" || response.Header.Get("Cache-Control") != "no-store" {
		b.t.Fatalf("%s: %d %v", path, response.StatusCode, response.Header)
	}
	var names []string
	for scanner := bufio.NewScanner(response.Body); scanner.Scan(); {
		if name, ok := strings.CutPrefix(scanner.Text(), "event: "); ok {
			if names = append(names, name); enough(names) {
				break
			}
		}
	}
	return names, time.Since(began)
}

// A page that shows a session is told when something is new, which is then in the part
// that it asks for, and told that nothing follows when the session has ended.
func TestSessionsAreLive(t *testing.T) {
	w := newWorld(t)
	session := w.say("coder", "hello")
	b, path := w.as(access.RoleViewer), "/console/live/sessions/"
	if names, _ := b.follow(path+string(session), func(names []string) bool { return len(names) == 1 }); len(names) != 1 || names[0] != "changed" {
		t.Fatalf("at the begin: %v", names)
	}
	changed := make(chan struct{})
	go func() {
		defer close(changed)
		call, e := w.command(session, "make")
		w.finish(session, call, e, "built it\n", "done")
		w.Exec(`UPDATE sessions SET state = 'CANCELLED', ended_at = now() WHERE session_id = $1`, session)
	}()
	names, _ := b.follow(path+string(session), func(names []string) bool { return names[len(names)-1] == "end" })
	<-changed
	if len(names) < 2 || names[len(names)-1] != "end" || names[len(names)-2] != "changed" {
		t.Errorf("to the end: %v", names)
	}
	part := b.do(http.MethodGet, "/console/sessions/"+string(session)+"/timeline", nil, map[string]string{"HX-Request": "true"})
	if part.status != http.StatusOK || strings.Contains(part.body, "<html") || !strings.Contains(part.body, "built it") || !strings.Contains(part.body, "cancelled") {
		t.Errorf("the part: %d %s", part.status, part.body)
	}
	if strings.Contains(b.see("/console/sessions/"+string(session)).body, "sse-connect") {
		t.Error("the page of a session that has ended waits for more")
	}
	if a := b.get(path + "ses_nothing"); a.status != http.StatusNotFound {
		t.Errorf("a session that there is not: %d", a.status)
	}
}

// However much happens, a browser is told in measure.
func TestChangesArePaced(t *testing.T) {
	w := newWorld(t)
	session := w.say("coder", "hello")
	b := w.as(access.RoleViewer)
	enough, done := make(chan struct{}), make(chan struct{})
	go func() { // until all was told: a busy machine looks at the log less often
		defer close(done)
		for i := 0; ; i++ {
			w.Exec(`INSERT INTO agent_execution_logs (agent_name, session_id, node_id, level, message) VALUES ('coder', $1, '', 'INFO', $2)`, session, fmt.Sprint(i))
			select {
			case <-enough:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	names, took := b.follow("/console/live/logs?agent=coder", func(names []string) bool { return len(names) == 3 })
	close(enough)
	<-done
	if took < 1300*time.Millisecond || took > 15*time.Second {
		t.Errorf("%v within %v", names, took)
	}
}

// An approval that is asked for is told to whoever looks at what waits.
func TestApprovalsAreLive(t *testing.T) {
	w := newWorld(t)
	session := w.say("coder", "hello")
	w.asked(session, "make")
	b := w.as(access.RoleApprover)
	names, _ := b.follow("/console/live/approvals", func(names []string) bool { return len(names) == 1 })
	if len(names) != 1 || names[0] != "changed" {
		t.Errorf("%v", names)
	}
	part := b.do(http.MethodGet, "/console/home/needs", nil, map[string]string{"HX-Request": "true"})
	if part.status != http.StatusOK || !strings.Contains(part.body, "run make") || strings.Contains(part.body, "<html") {
		t.Errorf("the part: %d %s", part.status, part.body)
	}
}

// Ten thousand sessions are a page like any other.
func TestManySessions(t *testing.T) {
	w := newWorld(t)
	session := w.say("coder", "hello")
	w.Exec(`INSERT INTO sessions SELECT r.* FROM sessions s, generate_series(1, 10000) n,
		LATERAL jsonb_populate_record(s, jsonb_build_object('session_id', 'ses_many' || lpad(n::text, 10, '0'), 'chat', 'many' || n, 'reason', repeat('x', 300))) r WHERE s.session_id = $1`, session)
	b := w.as(access.RoleViewer)
	began := time.Now()
	a := b.see("/console/sessions?limit=200")
	t.Logf("200 of 10,001 sessions: %d bytes in %s", len(a.body), time.Since(began))
	if len(a.body) > 300_000 {
		t.Errorf("the page has %d bytes", len(a.body))
	}
	if a = b.see("/console/sessions"); len(a.body) > 100_000 {
		t.Errorf("the page of 50 has %d bytes", len(a.body))
	}
	seen, next := map[string]bool{}, "/console/sessions?limit=200"
	for range 3 {
		page := b.see(next).page(t)
		next = ""
		for _, link := range find(page, "a", nil) {
			if href := attr(link, "href"); strings.HasPrefix(href, "/console/sessions/ses_") {
				seen[href] = true
			} else if attr(link, "rel") == "next" {
				next = href
			}
		}
	}
	if len(seen) != 600 || next == "" {
		t.Errorf("three pages have %d sessions, and then %q", len(seen), next)
	}
}

// A conversation of thousands of entries shows its end, live, and leads back to its
// begin and from there on.
func TestLongSessions(t *testing.T) {
	w := newWorld(t)
	session := w.say("coder", "the first")
	w.Exec(`INSERT INTO messages SELECT r.* FROM messages m, generate_series(1, 2900) n,
		LATERAL jsonb_populate_record(m, jsonb_build_object('message_id', 'msg_many' || lpad(n::text, 10, '0'), 'seq', m.seq + n, 'text', 'number ' || n, 'created_at', m.created_at + n * interval '1 ms')) r WHERE m.session_id = $1`, session)
	b := w.as(access.RoleViewer)
	newest := "/console/sessions/" + string(session)
	a := b.see(newest)
	if !strings.Contains(a.body, "number 2900<") || strings.Contains(a.body, "the first<") || len(a.body) > 300_000 || !strings.Contains(a.body, "sse-connect") {
		t.Errorf("the end: %d bytes", len(a.body))
	}
	if strings.Index(a.body, "number 2899<") > strings.Index(a.body, "number 2900<") {
		t.Error("the newest is not the last")
	}
	begin := newest + "?begin=1"
	a = b.see(begin)
	if !strings.Contains(a.body, "the first<") || strings.Contains(a.body, "number 2900<") || strings.Contains(a.body, "sse-connect") {
		t.Error("the begin has other entries")
	}
	for rel, path := range map[string]string{"prev": newest, "next": begin} {
		seen, pages := map[string]bool{}, 0
		for to := path; to != "" && pages < 20; pages++ {
			page := b.see(to).page(t)
			to = ""
			for _, e := range find(page, "li", nil) {
				if id := attr(e, "id"); strings.HasPrefix(id, "msg_") && seen[id] {
					t.Fatalf("%s of %s: %s twice", rel, path, id)
				} else if strings.HasPrefix(id, "msg_") {
					seen[id] = true
				}
			}
			for _, link := range find(page, "a", nil) {
				if attr(link, "rel") == rel {
					to = attr(link, "href")
				}
			}
		}
		if len(seen) != 2901 || pages != 15 {
			t.Errorf("%s from %s: %d entries on %d pages", rel, path, len(seen), pages)
		}
	}
}
