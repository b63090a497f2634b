package console_test

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/functions/management-api/internal/console"
	"tuluat.ai/harness/shared/harness"
)

// Who is not signed in sees nothing but the sign-in, and comes back to where they
// wanted to go.
func TestSignIn(t *testing.T) {
	w := newWorld(t)
	b := w.browser()
	if a := b.get("/console/sessions?status=FAILED"); a.status != http.StatusSeeOther || a.header.Get("Location") != "/console/sign-in?next=%2Fconsole%2Fsessions%3Fstatus%3DFAILED" {
		t.Fatalf("without a sign-in: %d to %q", a.status, a.header.Get("Location"))
	}
	if a := b.do(http.MethodGet, "/console/home/needs", nil, map[string]string{"HX-Request": "true"}); a.status != http.StatusNoContent || !strings.HasPrefix(a.header.Get("HX-Redirect"), "/console/sign-in") || strings.Contains(a.header.Get("HX-Redirect"), "next") {
		t.Errorf("a part without a sign-in: %d %v", a.status, a.header)
	}
	page := b.see("/console/sign-in?next=/console/sessions").page(t)
	form := fields(t, page, "/console/sign-in")
	for wrong, want := range map[string]int{"": 422, "a-token-that-nobody-has-000": 401, "with \"quotes\" and spaces in it": 401, strings.Repeat("x", 20_000): 401} {
		form.Set("token", wrong)
		a := b.post("/console/sign-in", form)
		if a.status != want || len(a.header.Values("Set-Cookie")) != 0 || wrong != "" && strings.Contains(a.body, wrong) {
			t.Errorf("the token %.30q: %d %v", wrong, a.status, a.header)
		}
		if field := find(a.page(t), "input", func(n *html.Node) bool { return attr(n, "name") == "token" }); len(field) != 1 || attr(field[0], "aria-invalid") != "true" || !strings.Contains(attr(field[0], "aria-describedby"), "token-wrong") {
			t.Errorf("what is wrong with the token %.30q is not tied to its field", wrong)
		}
	}
	form.Set("token", " Bearer "+token(access.RoleViewer)+"\n")
	a := b.post("/console/sign-in", form)
	if a.status != http.StatusSeeOther || a.header.Get("Location") != "/console/sessions" {
		t.Fatalf("signed in: %d to %q", a.status, a.header.Get("Location"))
	}
	for _, c := range a.header.Values("Set-Cookie") {
		if strings.Contains(c, token(access.RoleViewer)) {
			t.Error("the cookie shows the token")
		}
	}
	if name := find(b.see("/console/").page(t), "span", func(n *html.Node) bool { return attr(n, "class") == "name" }); len(name) != 1 || text(name[0]) != "viewer" {
		t.Error("the page does not say who is signed in")
	}
	if strings.Contains(w.logs.String(), token(access.RoleViewer)) {
		t.Error("the token is in the log")
	}
	b.done("/console/sign-out", nil, "out")
	if a := b.get("/console/"); a.status != http.StatusSeeOther {
		t.Errorf("after the sign-out: %d", a.status)
	}
}

// next leads nowhere but into the console.
func TestNextIsOurs(t *testing.T) {
	w := newWorld(t)
	for _, next := range []string{"https://evil.example/", "//evil.example/console/", "/\\evil.example", "/console//evil.example", "javascript:alert(1)", "/api/v1/agents", "/console/../api/v1", "/console/\r\nSet-Cookie: a=b", "\t//evil.example", ""} {
		a := w.browser().post("/console/sign-in", url.Values{"token": {token(access.RoleViewer)}, "next": {next}})
		if a.status != http.StatusSeeOther || a.header.Get("Location") != "/console/" {
			t.Errorf("next %q: %d to %q, want /console/", next, a.status, a.header.Get("Location"))
		}
	}
}

func TestCookies(t *testing.T) {
	w := newWorld(t)
	form := url.Values{"token": {token(access.RoleAdmin)}}
	for name, c := range map[string]struct {
		header map[string]string
		want   []string
	}{
		"plain":      {nil, []string{"tuluat-session-0=", "Path=/", "HttpOnly", "SameSite=Strict", "Max-Age=28"}},
		"behind TLS": {map[string]string{"X-Forwarded-Proto": "https"}, []string{"__Host-tuluat-session-0=", "Path=/", "HttpOnly", "Secure", "SameSite=Strict", "Max-Age=28"}},
	} {
		a := w.browser().do(http.MethodPost, "/console/sign-in", form, c.header)
		cookies := a.header.Values("Set-Cookie")
		if len(cookies) != 3 {
			t.Fatalf("%s: %v", name, cookies)
		}
		for _, want := range c.want {
			if !strings.Contains(cookies[0], want) {
				t.Errorf("%s: %q lacks %s", name, cookies[0], want)
			}
		}
		if strings.Contains(cookies[0], "Domain") || name == "plain" && strings.Contains(cookies[0], "Secure") {
			t.Errorf("%s: %q", name, cookies[0])
		}
		if !strings.Contains(cookies[1], "Max-Age=0") || !strings.Contains(cookies[2], "Max-Age=0") {
			t.Errorf("%s: a short token needs one cookie: %v", name, cookies)
		}
	}
}

// A cookie opens by any of the keys, until its time is over, and not when a byte of it
// is another.
func TestSealedCookies(t *testing.T) {
	now := time.Now()
	old, second := harness.Secret(key), harness.Secret("another-key-0123456789-abcdef")
	w := newWorld(t)
	at := func(path string, keys []harness.Secret, cookie string) int {
		t.Helper()
		pages, err := console.New(console.Options{API: w.server.Config.Handler, Keys: keys, Log: w.log(), Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		return w.serveOnce(pages, path, cookie)
	}
	a := w.browser().post("/console/sign-in", url.Values{"token": {token(access.RoleAdmin)}})
	cookie, _, _ := strings.Cut(a.header.Values("Set-Cookie")[0], ";")
	if got := at("/console/", []harness.Secret{old}, cookie); got != http.StatusOK {
		t.Errorf("by its key: %d", got)
	}
	if got := at("/console/", []harness.Secret{second, old}, cookie); got != http.StatusOK {
		t.Errorf("by the second key: %d", got)
	}
	if got := at("/console/", []harness.Secret{second}, cookie); got != http.StatusSeeOther {
		t.Errorf("without its key: %d", got)
	}
	for i := len("tuluat-session-0="); i < len(cookie); i += 7 {
		changed := []byte(cookie)
		changed[i] ^= 1
		if got := at("/console/", []harness.Secret{old}, string(changed)); got != http.StatusSeeOther {
			t.Errorf("with byte %d changed: %d", i, got)
		}
	}
	if got := at("/console/", []harness.Secret{old}, "tuluat-oidc="+strings.TrimPrefix(cookie, "tuluat-session-0=")); got != http.StatusSeeOther {
		t.Errorf("under another name: %d", got)
	}
	now = time.Now().Add(8*time.Hour + time.Second)
	if got := at("/console/", []harness.Secret{old}, cookie); got != http.StatusSeeOther {
		t.Errorf("after its time: %d", got)
	}
	if _, err := console.New(console.Options{Keys: []harness.Secret{old, "short"}, Now: time.Now}); harness.KindOf(err) != harness.Invalid || strings.Contains(err.Error(), "short") {
		t.Errorf("a short key: %v", err)
	}
}

// A long token takes several cookies; one that no browser keeps is refused in words.
func TestLongTokens(t *testing.T) {
	const head, foot = "long.", ""
	fits, tooLong := head+strings.Repeat("a", 8000)+foot, head+strings.Repeat("b", 9000)+foot
	w := newWorld(t, func(o *console.Options) { o.API = anybody{o.API} })
	b := w.browser()
	a := b.post("/console/sign-in", url.Values{"token": {fits}})
	if a.status != http.StatusSeeOther {
		t.Fatalf("%d %s", a.status, alert(a.page(t)))
	}
	for _, c := range a.header.Values("Set-Cookie") {
		if len(c) > 4096 {
			t.Errorf("a cookie has %d bytes", len(c))
		}
	}
	b.see("/console/")
	a = w.browser().post("/console/sign-in", url.Values{"token": {tooLong}})
	if a.status != http.StatusRequestEntityTooLarge || len(a.header.Values("Set-Cookie")) != 0 || !strings.Contains(a.body, "too long to be kept by a browser") {
		t.Errorf("%d %s", a.status, alert(a.page(t)))
	}
}

// anybody lets every long token in as an admin's.
type anybody struct{ http.Handler }

func (h anybody) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.Header.Get("Authorization"), "Bearer long.") {
		r.Header.Set("Authorization", "Bearer "+token(access.RoleAdmin))
	}
	h.Handler.ServeHTTP(w, r)
}

// What another site makes a browser send is not done.
func TestCrossSiteRequestsAreRefused(t *testing.T) {
	w := newWorld(t)
	session := w.say("coder", "hello")
	b := w.as(access.RoleAdmin)
	for _, path := range []string{"/console/sessions/" + string(session) + "/cancel", "/console/sign-in", "/console/sign-out", "/console/theme", "/console/halt"} {
		for name, header := range map[string]map[string]string{
			"cross-site": {"Sec-Fetch-Site": "cross-site"}, "same-site": {"Sec-Fetch-Site": "same-site"},
			"an old browser": {"Sec-Fetch-Site": "", "Origin": "https://evil.example"}, "no origin": {"Sec-Fetch-Site": "", "Origin": "null"},
		} {
			if a := b.do(http.MethodPost, path, url.Values{"token": {token(access.RoleAdmin)}, "halt": {"true"}, "reason": {"x"}}, header); a.status != http.StatusForbidden || len(a.header.Values("Set-Cookie")) > 0 {
				t.Errorf("%s %s: %d", name, path, a.status)
			}
		}
	}
	if state := w.Query(`SELECT state FROM sessions WHERE session_id = $1`, session); state != "PENDING" {
		t.Errorf("the session is %s", state)
	}
	// A link on another site opens a page of ours, which then asks with the cookie.
	a := b.do(http.MethodGet, "/console/sessions?agent=coder", nil, map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})
	if a.status != http.StatusOK || a.header.Get("Refresh") != "0; url=/console/sessions?agent=coder" || strings.Contains(a.body, string(session)) {
		t.Errorf("a link from another site: %d %v", a.status, a.header)
	}
}

// Who has no console is told why, and the API goes on.
func TestWithoutAKey(t *testing.T) {
	w := newWorld(t, func(o *console.Options) { o.Keys = nil })
	b := w.browser()
	if a := b.get("/console/"); a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, "CONSOLE_KEY") || a.header.Get("Content-Security-Policy") == "" {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := b.post("/console/sign-in", url.Values{"token": {token(access.RoleAdmin)}}); a.status != http.StatusServiceUnavailable || len(a.header.Values("Set-Cookie")) > 0 {
		t.Errorf("%d %v", a.status, a.header)
	}
	if a := b.get("/api/v1/agents"); a.status != http.StatusUnauthorized {
		t.Errorf("the API: %d", a.status)
	}
}

// A browser that asks for the address alone is sent to the console; nobody else is.
func TestFront(t *testing.T) {
	b := newWorld(t).browser()
	if a := b.do(http.MethodGet, "/", nil, map[string]string{"Accept": "text/html,*/*"}); a.status != http.StatusFound || a.header.Get("Location") != "/console/" {
		t.Errorf("a browser: %d to %q", a.status, a.header.Get("Location"))
	}
	if a := b.do(http.MethodGet, "/", nil, map[string]string{"Accept": "*/*"}); a.status != http.StatusUnauthorized {
		t.Errorf("a program: %d", a.status)
	}
}

// The code of the file opens once, and leaves nothing behind.
func TestEnter(t *testing.T) {
	file := filepath.Join(t.TempDir(), "entry")
	w := newWorld(t, func(o *console.Options) { o.Entry = file })
	const code = "0123456789abcdefghijklmnop"
	if a := w.browser().get("/console/enter?code=" + code); a.status != http.StatusGone {
		t.Errorf("without a file: %d", a.status)
	}
	if err := os.WriteFile(file, []byte(code+"\n"+token(access.RoleAdmin)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if a := w.browser().get("/console/enter?code=" + code[1:]); a.status != http.StatusForbidden || len(a.header.Values("Set-Cookie")) > 0 {
		t.Errorf("with another code: %d", a.status)
	}
	for _, method := range []string{http.MethodHead, http.MethodGet, http.MethodGet} { // as who previews a link, or fetches it before it is followed
		if a := w.browser().do(method, "/console/enter?code="+code, nil, nil); a.status != http.StatusOK || len(a.header.Values("Set-Cookie")) > 0 {
			t.Errorf("%s of the link: %d", method, a.status)
		}
	}
	b := w.browser()
	form := fields(t, b.see("/console/enter?code="+code).page(t), "/console/enter")
	if a := b.do(http.MethodPost, "/console/enter", form, map[string]string{"Sec-Fetch-Site": "cross-site"}); a.status != http.StatusForbidden {
		t.Errorf("from another site: %d", a.status)
	}
	if a := b.post("/console/enter", form); a.status != http.StatusSeeOther || a.header.Get("Location") != "/console/" {
		t.Errorf("with the code: %d %v", a.status, a.header)
	}
	b.see("/console/")
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
	for _, a := range []answer{w.browser().get("/console/enter?code=" + code), w.browser().post("/console/enter", form)} {
		if a.status != http.StatusGone || len(a.header.Values("Set-Cookie")) > 0 {
			t.Errorf("a second time: %d", a.status)
		}
	}
}

// Reports of browsers are logged without what may be secret in an address, and a
// flood of them is not.
func TestPolicyReports(t *testing.T) {
	w := newWorld(t)
	b := w.browser()
	send := func(body string) answer {
		return b.do(http.MethodPost, "/console/csp-report", url.Values{body: nil}, map[string]string{"Content-Type": "application/csp-report"})
	}
	_ = send("x")
	for range 30 {
		q, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, w.server.URL+"/console/csp-report", strings.NewReader(`{"csp-report":{"document-uri":"http://h/console/sessions?secret=1","violated-directive":"script-src\u001b[31m","blocked-uri":"https://evil.example/x.js?secret=2"}}`))
		q.Header.Set("Content-Type", "application/csp-report")
		response, err := b.client.Do(q)
		if err != nil || response.StatusCode != http.StatusNoContent {
			t.Fatal(response, err)
		}
		_ = response.Body.Close()
	}
	logged := w.logs.String()
	if n := strings.Count(logged, "kept a page from something"); n != 20 {
		t.Errorf("%d reports are logged, want 20", n)
	}
	if strings.Contains(logged, "secret") || !strings.Contains(logged, "evil.example/x.js") {
		t.Errorf("the log: %.300s", logged)
	}
}

// Files that pages load have names of their content, are kept for good, and are all
// that pages load.
func TestAssets(t *testing.T) {
	w := newWorld(t)
	b := w.as(access.RoleViewer)
	page := b.see("/console/").page(t)
	var names []string
	for _, s := range find(page, "script", nil) {
		names = append(names, attr(s, "src"))
	}
	for _, l := range find(page, "link", nil) {
		if attr(l, "rel") == "stylesheet" {
			names = append(names, attr(l, "href"))
		}
	}
	if len(names) != 4 || slices.Contains(names, "") {
		t.Fatalf("the page loads %v", names)
	}
	for _, name := range names {
		a := w.browser().get(name)
		if a.status != http.StatusOK || !strings.Contains(a.header.Get("Cache-Control"), "immutable") || a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v", name, a.status, a.header)
		}
	}
	if a := b.get("/console/assets/console.js"); a.status != http.StatusNotFound {
		t.Errorf("a file without its digest: %d", a.status)
	}
}
