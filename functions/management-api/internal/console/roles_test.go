package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"tuluat.ai/harness/functions/management-api/internal/access"
)

// No role sees a button that would be refused for want of a right: every form and
// every link of every page of every role is tried.
func TestNoButtonIsRefused(t *testing.T) {
	f := newWorld(t).fill("hello")
	want := map[string]map[string]bool{ // what each role must find somewhere
		access.RoleViewer:   {},
		access.RoleApprover: {"/decision": true},
		access.RoleOperator: {"/cancel": true, "/send": true, "/pause": true, "/features": true, "/halt": true, "/terminate": true, "/commands": true, "/replay": true, "/discard": true, "/runs": true},
		access.RoleAdmin: {
			"/decision": true, "/cancel": true, "/send": true, "/pause": true, "/features": true, "/halt": true, "/delete": true, "/edit": true, "/terminate": true, "/commands": true,
			"/replay": true, "/discard": true, "/runs": true,
		},
	}
	for role, must := range want {
		t.Run(role, func(t *testing.T) {
			b := f.as(role)
			seen := map[string]bool{}
			for _, path := range f.pages() {
				a := b.get(path)
				if a.status == http.StatusForbidden {
					continue // nothing leads there: below
				}
				page := a.page(t)
				for _, form := range find(page, "form", func(n *html.Node) bool { return attr(n, "method") == "post" }) {
					action := attr(form, "action")
					if action == "/console/sign-out" || action == "/console/theme" {
						continue
					}
					for end := range want[access.RoleAdmin] {
						if strings.HasSuffix(action, end) {
							seen[end] = true
						}
					}
					refuses(t, b, path, form)
				}
				for _, link := range find(page, "a", nil) {
					href := attr(link, "href")
					if !strings.HasPrefix(href, "/console/") || seen[href] {
						continue
					}
					seen[href] = true
					if a := b.get(href); a.status == http.StatusForbidden || a.status == http.StatusNotFound {
						t.Errorf("%s leads to %s: %d", path, href, a.status)
					}
				}
				for _, part := range find(page, "div", func(n *html.Node) bool { return attr(n, "hx-get") != "" }) {
					if a := b.do(http.MethodGet, attr(part, "hx-get"), nil, map[string]string{"HX-Request": "true"}); a.status != http.StatusOK {
						t.Errorf("%s renews itself by %s: %d", path, attr(part, "hx-get"), a.status)
					}
				}
			}
			for end := range want[access.RoleAdmin] {
				if seen[end] != must[end] {
					t.Errorf("a form to …%s: %v, want %v", end, seen[end], must[end])
				}
			}
			if role == access.RoleViewer && seen["/console/agents/coder/edit"] {
				t.Error("a viewer is offered to edit")
			}
		})
	}
}

// refuses sends what a form would, so broken that nothing is done, and asks whether the
// API missed a right.
func refuses(t *testing.T, b *browser, path string, form *html.Node) {
	t.Helper()
	send := url.Values{"digest": {"of nothing"}, "etag": {`"of nothing"`}, "decision": {"APPROVE"}, "text": {" "}, "command": {" "}, "reason": {""}, "input": {"[]"}, "yaml": {"a: ["}, "halt": {"true"}, "feature": {"none"}, "on": {"true"}}
	action := attr(form, "action")
	for _, end := range []string{"/cancel", "/pause", "/resume", "/terminate", "/replay", "/discard"} {
		if strings.HasSuffix(action, end) {
			action = strings.Replace(action, "/console/", "/console/", 1)
			parts := strings.Split(action, "/")
			parts[len(parts)-2] = map[string]string{"deadletters": "99999999"}[parts[2]]
			if parts[len(parts)-2] == "" {
				parts[len(parts)-2] = "nothing-of-that-name"
			}
			action = strings.Join(parts, "/")
		}
	}
	a := b.post(action, send)
	if a.status == http.StatusForbidden {
		t.Errorf("%s offers %s, which is refused: %s", path, attr(form, "action"), alert(a.page(t)))
	}
	if a.status < 400 {
		t.Errorf("%s: %s of nothing was done: %d", path, action, a.status)
	}
}

// What a role may not do is refused also to who sends the form by hand.
func TestFormsAreTheAPIs(t *testing.T) {
	f := newWorld(t).fill("hello")
	b, s := f.as(access.RoleViewer), string(f.session)
	for path, form := range map[string]url.Values{
		"/console/sessions": {"agent": {"coder"}, "text": {"x"}}, "/console/sessions/" + s + "/send": {"text": {"x"}}, "/console/sessions/" + s + "/reply": {"text": {"x"}},
		"/console/sessions/" + s + "/cancel": nil, "/console/sessions/" + s + "/pause": nil, "/console/sessions/" + s + "/resume": nil,
		"/console/approvals/" + string(f.approval) + "/decision": {"decision": {"APPROVE"}}, "/console/agents/coder/features": {"feature": {"harness"}, "on": {"false"}, "etag": {"*"}},
		"/console/agents/coder/halt": {"halt": {"true"}, "reason": {"x"}}, "/console/halt": {"halt": {"true"}, "reason": {"x"}}, "/console/agents/coder/delete": {"etag": {"*"}},
		"/console/agents/coder/edit": {"action": {"save"}, "etag": {"*"}, "yaml": {fmt.Sprintf(agentYAML, "coder")}}, "/console/agents/new": {"action": {"save"}, "yaml": {fmt.Sprintf(agentYAML, "new")}},
		"/console/workflows/release/runs": {"input": {"{}"}}, "/console/workflows/release/delete": {"etag": {"*"}}, "/console/sandboxes/" + f.sandbox + "/terminate": nil,
		"/console/sandboxes/" + f.sandbox + "/commands": {"command": {"x"}}, "/console/deadletters/" + f.letter + "/replay": nil, "/console/deadletters/" + f.letter + "/discard": nil,
	} {
		if a := b.post(path, form); a.status != http.StatusForbidden || !strings.Contains(a.body, "You may not do this") {
			t.Errorf("%s: %d", path, a.status)
		}
	}
	if got := f.Query(`SELECT count(*) FROM audit_log WHERE actor = 'viewer'`); got != "0" {
		t.Errorf("the viewer wrote %s times", got)
	}
}
