package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/harness"
)

// full is a world in which everything is.
type full struct {
	*world
	session  harness.SessionID
	approval harness.ApprovalID
	letter   string
	sandbox  string
}

func (w *world) fill(words string) full {
	w.t.Helper()
	f := full{world: w, session: w.say("coder", words)}
	call, e := w.command(f.session, "printf '"+words+"'")
	w.finish(f.session, call, e, words, words)
	f.approval, f.letter, f.sandbox = w.asked(f.session, words), w.deadLetter(f.session, words), string(e.Sandbox.ID)
	w.Exec(`INSERT INTO agent_execution_logs (agent_name, session_id, node_id, level, message) VALUES ('coder', $1, '', 'WARN', $2)`, f.session, words)
	w.Exec(`UPDATE comparisons SET tally = jsonb_build_object('known', 7, 'leaked', 2, 'examples', jsonb_build_array($1::text)), compared_at = now(), reason = $1 WHERE kind = 'FILE'`, words)
	return f
}

// pages are all pages of a full world.
func (f full) pages() []string {
	s := string(f.session)
	return []string{
		"/console/", "/console/approvals", "/console/approvals?all=1&status=APPROVED", "/console/approvals/" + string(f.approval),
		"/console/sessions", "/console/sessions?status=IDLE&agent=coder&channel=API&since=2026-01-02T15:04", "/console/sessions/" + s, "/console/sessions/" + s + "?begin=1",
		"/console/agents", "/console/agents?status=READY", "/console/agents/coder", "/console/agents/coder/edit", "/console/agents/new",
		"/console/workflows", "/console/workflows/release", "/console/workflows/release/edit", "/console/workflows/new",
		"/console/sandboxes", "/console/sandboxes?status=READY", "/console/sandboxes/" + f.sandbox,
		"/console/channels", "/console/channels/set-up/whatsapp", "/console/channels/set-up/telegram", "/console/channels/set-up/webhook",
		"/console/deadletters", "/console/deadletters?status=OPEN", "/console/deadletters/" + f.letter,
		"/console/logs", "/console/logs?agent=coder&level=WARN&text=hello", "/console/usage", "/console/usage?agent=coder", "/console/metrics", "/console/halt",
	}
}

// Every page is there for an admin, under a policy that lets nothing else in, without
// anything inline, and as people with a screen reader need it.
func TestPages(t *testing.T) {
	f := newWorld(t).fill("hello there")
	b := f.as(access.RoleAdmin)
	for _, path := range f.pages() {
		a := b.see(path)
		policy := a.header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'", "connect-src 'self'", "report-uri /console/csp-report"} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: the policy lacks %s", path, want)
			}
		}
		if strings.Contains(policy, "unsafe") || a.header.Get("Cache-Control") != "no-store" || a.header.Get("Referrer-Policy") != "no-referrer" || a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", path, a.header)
		}
		accessible(t, path, a.page(t))
	}
	home := text(b.see("/console/").page(t))
	for _, want := range []string{"Waiting for a decision", "Dead letters", "file 2 leaked, 0 lost"} {
		if !strings.Contains(home, want) {
			t.Errorf("Home does not say %q: %q", want, home)
		}
	}
}

// accessible says what of a page keeps people out.
func accessible(t *testing.T, path string, page *html.Node) {
	t.Helper()
	ids := map[string]bool{}
	level := 0
	for n := range page.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		for _, a := range n.Attr {
			if strings.HasPrefix(a.Key, "on") || a.Key == "style" || strings.HasPrefix(a.Key, "hx-on") || strings.HasPrefix(a.Val, "javascript:") {
				t.Errorf("%s: <%s %s=%q> is code in the page", path, n.Data, a.Key, a.Val)
			}
			if a.Key == "id" && ids[a.Val] {
				t.Errorf("%s: two elements are called %s", path, a.Val)
			} else if a.Key == "id" {
				ids[a.Val] = true
			}
		}
		switch n.Data {
		case "script", "link":
			if n.Data == "script" && (attr(n, "src") == "" || n.FirstChild != nil) {
				t.Errorf("%s: a script is in the page", path)
			}
		case "style", "iframe", "object", "embed", "base":
			t.Errorf("%s: <%s>", path, n.Data)
		case "h1", "h2", "h3", "h4":
			if now := int(n.Data[1] - '0'); now > level+1 {
				t.Errorf("%s: %s %q comes behind h%d", path, n.Data, text(n), level)
			} else {
				level = now
			}
		case "th":
			if attr(n, "scope") == "" {
				t.Errorf("%s: the heading %q of a table says not of what", path, text(n))
			}
		}
	}
	if len(find(page, "main", nil)) != 1 || len(find(page, "h1", nil)) != 1 || len(find(page, "html", func(n *html.Node) bool { return attr(n, "lang") == "en" })) != 1 || len(find(page, "a", func(n *html.Node) bool { return attr(n, "href") == "#main" })) != 1 {
		t.Errorf("%s has not one main part, one heading, a language and a way past the menu", path)
	}
	labelled := map[string]bool{}
	for _, l := range find(page, "label", nil) {
		labelled[attr(l, "for")] = true
	}
	for _, name := range []string{"input", "select", "textarea"} {
		for _, n := range find(page, name, nil) {
			inLabel := n.Parent.Data == "label"
			if attr(n, "type") != "hidden" && !inLabel && !labelled[attr(n, "id")] {
				t.Errorf("%s: <%s name=%q> has no label", path, name, attr(n, "name"))
			}
		}
	}
	for _, n := range find(page, "button", nil) {
		if text(n) == "" {
			t.Errorf("%s: a button says nothing", path)
		}
	}
}

// What is not there is said as a page, with the API's status.
func TestWhatIsNotThere(t *testing.T) {
	b := newWorld(t).as(access.RoleAdmin)
	for path, want := range map[string]int{
		"/console/nothing": 404, "/console/sessions/ses_nothing": 404, "/console/approvals/apr_nothing": 404, "/console/agents/nothing": 404, "/console/workflows/nothing": 404, "/console/sandboxes/nothing": 404,
		"/console/deadletters/99": 404, "/console/sessions?status=NONE": 422, "/console/sessions?after=nonsense": 400, "/console/sessions/%00": 422, "/console/channels/set-up/fax": 404,
	} {
		a := b.get(path)
		if a.status != want || !strings.Contains(a.body, "</html>") || len(find(a.page(t), "h1", nil)) != 1 {
			t.Errorf("%s: %d, want %d: %s", path, a.status, want, alert(a.page(t)))
		}
	}
	if a := b.do(http.MethodGet, "/console/sessions/ses_nothing/timeline", url.Values{}, map[string]string{"HX-Request": "true"}); a.status != http.StatusNotFound || a.body != "" {
		t.Errorf("a part that is not there: %d %s", a.status, a.body)
	}
}
