//go:build browser

package browser_test

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

// consoleRows are the console's pages: path, and what a viewer may see of it. A
// path may name what the system has: {session}, {approval}, {agent}, {workflow},
// {sandbox}.
var consoleRows = []struct{ name, path string }{
	{"console-home", "/console/"},
	{"console-agents", "/console/agents"},
	{"console-agent", "/console/agents/{agent}"},
	{"console-agent-edit", "/console/agents/{agent}/edit"},
	{"console-agent-new", "/console/agents/new"},
	{"console-sessions", "/console/sessions"},
	{"console-session", "/console/sessions/{session}"},
	{"console-approvals", "/console/approvals"},
	{"console-approval", "/console/approvals/{approval}"},
	{"console-workflows", "/console/workflows"},
	{"console-workflow", "/console/workflows/{workflow}"},
	{"console-workflow-edit", "/console/workflows/{workflow}/edit"},
	{"console-sandboxes", "/console/sandboxes"},
	{"console-sandbox", "/console/sandboxes/{sandbox}"},
	{"console-channels", "/console/channels"},
	{"console-channel-whatsapp", "/console/channels/set-up/whatsapp"},
	{"console-deadletters", "/console/deadletters"},
	{"console-logs", "/console/logs"},
	{"console-usage", "/console/usage"},
	{"console-metrics", "/console/metrics"},
	{"console-halt", "/console/halt"},
}

// inside is there on every page of the console.
const inside = "main h1"

// signInForm is how somebody signs in to the console with a token.
var signInForm = struct{ path, token, button string }{"/console/sign-in", "input[name=token]", `form[action="/console/sign-in"] button`}

func consolePages(t *testing.T) []aPage {
	all := []aPage{
		{name: "console-sign-in", url: fixed(dev.URL + signInForm.path), ready: inside},
		{name: "console-enter", url: func(t *testing.T) string { link, _ := entry(t); return link }, ready: inside},
	}
	for _, row := range consoleRows {
		all = append(all, aPage{name: row.name, url: func(t *testing.T) string { return dev.URL + fill(t, row.path) }, ready: inside, signed: true})
	}
	return all
}

// entry makes the link that opens the console once, as the system has made one at its
// start, and returns it and the file that is there until then.
func entry(t testing.TB) (link, file string) {
	code, file := rand.Text(), filepath.Join(dev.home, "secrets", "console", "entry")
	if err := os.WriteFile(file, []byte(code+"\n"+dev.token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dev.URL + "/console/enter?code=" + code, file
}

// signIn signs in to the console with the token of this machine. The browser keeps
// the cookie, so that tabs after this one are signed in too.
func (b *tab) signIn() {
	b.t.Helper()
	b.signInWith(dev.token)
}

func (b *tab) signInWith(token string) {
	b.t.Helper()
	if signedIn == token {
		return
	}
	b.do(chromedp.Navigate(dev.URL+signInForm.path), chromedp.WaitVisible(chromedp.CSS(signInForm.token)))
	b.write(signInForm.token, token)
	b.click(signInForm.button)
	b.until(oneStep, "location.pathname !== '"+signInForm.path+"' && document.querySelector('"+inside+"') !== null")
	signedIn = token
}

// signedIn is the token that the browser's cookie is for.
var signedIn string

// A viewer sees no button that would be refused: every form of every page that
// changes something is either not there or disabled, or is taken.
func TestViewerHasNoButtonThatIsRefused(t *testing.T) {
	chatOnWhatsApp(t)
	chatOnTelegram(t)
	b := newTab(t, views[2])
	b.signInWith(dev.viewer)
	t.Cleanup(func() { signedIn = "" })
	seen := 0
	for _, row := range consoleRows {
		b.do(chromedp.Navigate(dev.URL + fill(t, row.path)))
		b.told() // a page that a viewer may not see at all answers 403, and says so
		seen++
		refused := eval[[]string](b, `Promise.all([...document.querySelectorAll('form[method=post]')]
			.filter((f) => !f.action.endsWith('/theme') && !f.action.endsWith('/sign-out'))
			.filter((f) => [...f.querySelectorAll('button, input[type=submit]')].some((e) => !e.disabled))
			.map((f) => fetch(f.action, {method: 'POST', body: new URLSearchParams(new FormData(f)), redirect: 'manual'}).then((r) => r.status === 403 ? f.action : null)))
			.then((all) => all.filter(Boolean))`)
		for _, action := range refused {
			t.Errorf("%s: a viewer's button for %s answers 403", row.path, action)
		}
		b.told()
	}
	if seen != len(consoleRows) {
		t.Errorf("%d of %d pages were seen", seen, len(consoleRows))
	}
}
