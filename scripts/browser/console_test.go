//go:build browser

package browser_test

import (
	"net/http"
	"testing"

	"github.com/chromedp/chromedp"
)

// consoleRows are the console's pages: path, and a selector of what is there once
// the page is. A path may name what the system has: {session}, {approval}, {agent}.
var consoleRows = []struct{ name, path, ready string }{
	{"console-home", "/console/", "main"},
	{"console-agents", "/console/agents", "main"},
	{"console-agent", "/console/agents/{agent}", "main"},
	{"console-sessions", "/console/sessions", "main"},
	{"console-session", "/console/sessions/{session}", "main"},
	{"console-approvals", "/console/approvals", "main"},
	{"console-approval", "/console/approvals/{approval}", "main"},
	{"console-workflows", "/console/workflows", "main"},
	{"console-sandboxes", "/console/sandboxes", "main"},
	{"console-channels", "/console/channels", "main"},
	{"console-deadletters", "/console/deadletters", "main"},
	{"console-metrics", "/console/metrics", "main"},
}

// signInForm is how somebody signs in to the console with a token.
var signInForm = struct{ path, token, button, inside string }{"/console/login", "input[name=token]", "form button", "main"}

// hasConsole reports whether this system has a console.
func hasConsole(t testing.TB) bool {
	t.Helper()
	ctx := t.Context()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, dev.URL+"/console/", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return response.StatusCode != http.StatusNotFound
}

func consolePages(t *testing.T) []aPage {
	if !hasConsole(t) {
		return nil
	}
	var all []aPage
	for _, row := range consoleRows {
		all = append(all, aPage{name: row.name, url: func(t *testing.T) string { return dev.URL + fill(t, row.path) }, ready: row.ready, signed: true})
	}
	return all
}

// signIn signs in to the console with the token of this machine. A tab that is
// signed in stays so: the browser keeps the cookie for those after it.
func (b *tab) signIn() {
	b.t.Helper()
	b.do(chromedp.Navigate(dev.URL + signInForm.path))
	if !eval[bool](b, "document.querySelector('"+signInForm.token+"') !== null") {
		return
	}
	b.write(signInForm.token, dev.token)
	b.click(signInForm.button)
	b.until(oneStep, "document.querySelector('"+signInForm.token+"') === null && document.querySelector('"+signInForm.inside+"') !== null")
}
