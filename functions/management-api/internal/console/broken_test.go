package console_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/functions/management-api/internal/console"
	"tuluat.ai/harness/shared/harness"
)

// counting counts what the console asks of the API.
type counting struct {
	http.Handler
	asked map[string]int
}

func (c counting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.asked[r.URL.Path[strings.LastIndexByte(r.URL.Path, '/'):]]++
	c.Handler.ServeHTTP(w, r)
}

// A page of many commands asks the API a bounded number of questions: one that asked
// for each would be refused by the limit of its reader's requests, whole, for ever.
func TestManyCommands(t *testing.T) {
	asked := map[string]int{}
	w := newWorld(t, func(o *console.Options) { o.API = counting{o.API, asked} })
	session := w.say("coder", "hello")
	call, e := w.command(session, "make it")
	w.finish(session, call, e, "this was printed\n", "done")
	w.Exec(`INSERT INTO executions OVERRIDING USER VALUE SELECT r.* FROM executions e, generate_series(1, 150) n,
		LATERAL jsonb_populate_record(e, jsonb_build_object('execution_id', 'exe_many' || lpad(n::text, 10, '0'), 'cause_id', 'many' || n, 'created_at', e.created_at - n * interval '1 s',
			'stderr_bytes', 7)) r WHERE e.session_id = $1`, session)
	b, path := w.as(access.RoleViewer), "/console/sessions/"+string(session)
	page := b.see(path)
	if n := asked["/output"]; n == 0 || n > 30 {
		t.Errorf("%d questions for what 151 commands have printed", n)
	}
	if !strings.Contains(page.body, "this was printed") {
		t.Error("what the newest command has printed is not there")
	}
	// What is not shown is a link to where it is.
	links := find(page.page(t), "a", func(a *html.Node) bool { return text(a) == "Show it" })
	if len(links) < 100 {
		t.Fatalf("%d links to what other commands have printed", len(links))
	}
	clear(asked)
	if b.see(attr(links[0], "href")); asked["/output"] == 0 {
		t.Error("the link shows nothing")
	}
}

// Who reads a long session from its beginning is shown all of what is there, not the
// end of the session.
func TestAllOfAnEarlierText(t *testing.T) {
	w := newWorld(t)
	session := w.say("coder", strings.Repeat("long ", 2000)+"and its end")
	w.Exec(`INSERT INTO messages SELECT r.* FROM messages m, generate_series(1, 300) n,
		LATERAL jsonb_populate_record(m, jsonb_build_object('message_id', 'msg_many' || lpad(n::text, 10, '0'), 'seq', m.seq + n, 'text', 'number ' || n, 'created_at', m.created_at + n * interval '1 ms')) r WHERE m.session_id = $1`, session)
	b := w.as(access.RoleViewer)
	page := b.see("/console/sessions/" + string(session) + "?begin=1").page(t)
	links := find(page, "a", func(a *html.Node) bool { return text(a) == "Show all" })
	if len(links) != 1 {
		t.Fatalf("%d links", len(links))
	}
	if !strings.Contains(b.see(attr(links[0], "href")).body, "and its end") {
		t.Errorf("%s does not show all of it", attr(links[0], "href"))
	}
}

// What somebody typed for an hour is not lost because the sign-in ended meanwhile, or
// because the API cannot take it now.
func TestWhatWasTypedIsKept(t *testing.T) {
	w := newWorld(t)
	const typed = "spec: {description: \"<b>an hour's work</b>\"}"
	for path, back := range map[string]string{
		"/console/agents/coder/edit":          "/console/agents/coder/edit",
		"/console/agents/new":                 "/console/agents/new",
		"/console/sessions/ses_x/send":        "/console/sessions/ses_x",
		"/console/approvals/apr_x/decision":   "/console/approvals/apr_x",
		"/console/sessions":                   "/console/sessions",
		"/console/sessions/%2e%2e%2fx/cancel": "/console/",
	} {
		a := w.browser().post(path, url.Values{"yaml": {"\r\n" + typed + "\r\n"}})
		page := a.page(t)
		if a.status != http.StatusUnauthorized || !strings.Contains(words(page), "\n"+typed+"\n") {
			t.Errorf("%s without a sign-in: %d %s", path, a.status, text(page))
			continue
		}
		if next := fields(t, page, "/console/sign-in").Get("next"); next != back {
			t.Errorf("%s leads to %q, want %q", path, next, back)
		}
	}
	b := w.as(access.RoleAdmin)
	w.store.Close() // as if Postgres were down
	a := b.post("/console/sessions", url.Values{"agent": {"coder"}, "text": {"a long message"}})
	if a.status < 500 || !strings.Contains(words(a.page(t)), "a long message") || !strings.Contains(alert(a.page(t)), "cannot be done now") {
		t.Errorf("while there is no database: %d %s", a.status, a.body)
	}
	// Another site cannot make a page say what it likes.
	a = w.browser().do(http.MethodPost, "/console/agents/new", url.Values{"yaml": {typed}}, map[string]string{"Sec-Fetch-Site": "cross-site"})
	if a.status != http.StatusForbidden || strings.Contains(a.body, "an hour") {
		t.Errorf("from another site: %d %s", a.status, a.body)
	}
}

// As much YAML as the API takes gets through a form, and more is refused with what was
// written still in the editor.
func TestLongYAML(t *testing.T) {
	b := newWorld(t).as(access.RoleAdmin)
	written := fmt.Sprintf(agentYAML, "coder") + strings.Repeat("# %%%%%%%%%%%%%%\n", 1<<16)
	for size, want := range map[int]int{1 << 20: http.StatusOK, 1<<20 + 1: http.StatusRequestEntityTooLarge} {
		text := written[:size]
		a := b.post("/console/agents/coder/edit", url.Values{"action": {"check"}, "etag": {"*"}, "yaml": {strings.ReplaceAll(text, "\n", "\r\n")}})
		kept := find(a.page(t), "textarea", func(n *html.Node) bool { return attr(n, "name") == "yaml" })
		if a.status != want || len(kept) != 1 || strings.TrimPrefix(kept[0].FirstChild.Data, "\n") != text {
			t.Errorf("%d bytes: %d %s, %d editors", size, a.status, alert(a.page(t)), len(kept))
		}
	}
	if a := b.post("/console/agents/coder/edit", url.Values{"yaml": {strings.Repeat("%", 3<<20)}}); a.status != http.StatusRequestEntityTooLarge || !strings.Contains(alert(a.page(t)), "the browser still has it") {
		t.Errorf("more than any form: %d %s", a.status, alert(a.page(t)))
	}
}

// mute is an API that knows everybody and breaks off before it says anything.
type mute struct{}

func (mute) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/api/v1/whoami" {
		_, _ = io.WriteString(w, `{"name": "someone", "rights": ["list logs.api.tuluat.ai"]}`)
	}
}

// An API that says nothing, as when its caller has left, is a page and no panic.
func TestTheAPISaysNothing(t *testing.T) {
	w := newWorld(t)
	pages, err := console.New(console.Options{API: mute{}, Keys: []harness.Secret{key}, Log: w.log(), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	a := w.browser().post("/console/sign-in", url.Values{"token": {token(access.RoleAdmin)}})
	cookie, _, _ := strings.Cut(a.header.Values("Set-Cookie")[0], ";")
	for _, path := range []string{"/console/live/approvals", "/console/live/logs", "/console/logs/download", "/console/sessions", "/console/agents/x"} {
		if got := w.serveOnce(pages, path, cookie); got != http.StatusServiceUnavailable {
			t.Errorf("%s: %d, want 503", path, got)
		}
	}
}

// halted counts what is halted.
const halted = `SELECT (SELECT count(*) FROM switches WHERE halted_at IS NOT NULL) + (SELECT count(*) FROM agents WHERE halted_at IS NOT NULL)`

// Names that paths do without are names of nothing.
func TestOddNames(t *testing.T) {
	w := newWorld(t)
	b := w.as(access.RoleAdmin)
	for _, kind := range []string{"agents", "workflows", "sessions", "sandboxes", "approvals", "deadletters"} {
		for _, name := range []string{"%2e%2e", "%2e", "%2e%2e%2fhalt", "%00", "%ff", "%25%30%30", strings.Repeat("9", 300), "-1", "99999999999999999999999", "%0d%0aX:%20y"} {
			if a := b.get("/console/" + kind + "/" + name); a.status < 400 || a.status > 422 {
				t.Errorf("%s %.40s: %d %s", kind, name, a.status, alert(a.page(t)))
			}
		}
	}
	for _, path := range []string{"/console/agents/%2e%2e/delete", "/console/agents/%2e%2e/halt", "/console/sandboxes/%2e%2e/terminate", "/console/sessions/%2e%2e%2f%2e%2e%2fhalt/cancel"} {
		if a := b.post(path, url.Values{"halt": {"true"}, "reason": {"x"}, "etag": {"*"}}); a.status < 400 || a.status > 422 {
			t.Errorf("%s: %d", path, a.status)
		}
	}
	if got := w.Query(halted); got != "0" {
		t.Errorf("%s halts", got)
	}
	for _, query := range []string{"after=x", "after=%00", "limit=-1", "limit=99999999999999999999", "agent=%ff", "status=x", "since=x", "text=%00", "full=%00", "said=%3Cb%3E", "after=", "limit=1&limit=2", "agent=%e2%80%ae"} {
		for _, path := range []string{"agents", "sessions", "approvals", "sandboxes", "logs", "deadletters", "channels", "usage", "workflows"} {
			if a := b.get("/console/" + path + "?" + query); a.status >= 500 || a.status >= 300 && a.status < 400 {
				t.Errorf("%s?%s: %d", path, query, a.status)
			}
		}
	}
}

// A form that does not say so lets nothing go on that somebody halted.
func TestAHaltIsNotLiftedByAccident(t *testing.T) {
	w := newWorld(t)
	b := w.as(access.RoleAdmin)
	b.done("/console/halt", url.Values{"halt": {"true"}, "reason": {"a fire"}}, "halted")
	b.done("/console/agents/coder/halt", url.Values{"halt": {"true"}, "reason": {"a fire"}}, "halted")
	for _, path := range []string{"/console/halt", "/console/agents/coder/halt"} {
		for _, form := range []url.Values{{}, {"halt": {""}}, {"halt": {"True"}}} {
			if a := b.post(path, form); a.status != http.StatusUnprocessableEntity {
				t.Errorf("%s %v: %d", path, form, a.status)
			}
		}
	}
	if got := w.Query(halted); got != "2" {
		t.Errorf("%s halts, want 2", got)
	}
}
