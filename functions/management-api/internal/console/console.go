// Package console is the management API as pages for people: another face of it.
//
// It keeps nothing and reads no store. What a page shows and does it asks of the API
// with the caller's own token (package loopback), so that who may what, the audit and
// the limits are those of the API. The token lives in a sealed cookie of the browser.
//
// Pages work without scripts: links and forms. htmx only renews parts of them, told
// by server-sent events. What agents, people and programs wrote is hostile: it is
// shown as text, by html/template and plain, and nothing marks it as anything else.
package console

import (
	"crypto/sha256"
	"log/slog"
	"net/http"
	"time"

	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
)

// Prefix is below what everything of the console is.
const Prefix = "/console/"

// Options say how the console is served.
type Options struct {
	API    http.Handler     // with its own access
	Keys   []harness.Secret // that seal cookies: the first seals, all open; none: the console is off
	OIDC   OIDC
	URL    string // of the outside, as in https://console.example.com; "": as the browser asked
	Hooks  string // where web hooks come in, as in https://hooks.example.com; "": nobody has said
	Entry  string // a file of one code that signs in once, and a token; "": there is none
	Log    *slog.Logger
	Now    func() time.Time
	Drain  <-chan struct{} // closed when the process ends
	Client *http.Client    // to the issuer; nil: one of its own
}

// console is what handlers share.
type console struct {
	Options
	seal    *sealer
	callers callers
	reports reports
	issuer  issuer
	public  bool // URL says https
}

// New returns the handler of everything below Prefix. It fails when a key is too
// short, or a template wrong.
func New(o Options) (http.Handler, error) {
	mux := http.NewServeMux()
	if len(o.Keys) == 0 {
		mux.HandleFunc("/", off)
		return guard(mux), nil
	}
	seal, err := newSealer(o.Keys, o.Now)
	if err != nil {
		return nil, err
	}
	c := &console{Options: o, seal: seal, public: isHTTPS(o.URL)}
	c.callers.now, c.reports.now = o.Now, o.Now
	c.open(mux)
	c.pages(mux)
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.plain(w, r, http.StatusForbidden, "The request came from another site", "Nothing was done. Open the console itself and try again there.")
	}))
	return guard(c.arrive(protection.Handler(mux))), nil
}

// open registers what needs no sign-in.
func (c *console) open(mux *http.ServeMux) {
	mux.HandleFunc("GET "+Prefix+"assets/{name}", serveAsset)
	mux.HandleFunc("GET "+Prefix+"sign-in", c.signInPage)
	mux.HandleFunc("POST "+Prefix+"sign-in", c.signIn)
	mux.HandleFunc("POST "+Prefix+"sign-out", c.signOut)
	mux.HandleFunc("GET "+Prefix+"enter", c.enter)
	mux.HandleFunc("POST "+Prefix+"enter", c.enter)
	mux.HandleFunc("GET "+Prefix+"oidc/start", c.oidcStart)
	mux.HandleFunc("GET "+Prefix+"oidc/callback", c.oidcCallback)
	mux.HandleFunc("POST "+Prefix+"csp-report", c.report)
	mux.HandleFunc("POST "+Prefix+"theme", c.setTheme)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		c.plain(w, r, http.StatusNotFound, "There is no such page", "The address may be of an older version, or mistyped.")
	})
}

// policy lets a page load and send to nothing but the console. Reports of what it
// kept from happening come back to us.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'; report-uri " + Prefix + "csp-report"

// maxForm is the longest form, in bytes: as much as the API takes, of which each byte
// is up to three in a form and each line's end six, and its other fields.
const maxForm = 6<<20 + 64<<10

// guard gives every answer the headers that keep pages apart from others.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		function.NameRequest(r.Context(), "console")
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		next.ServeHTTP(w, r)
	})
}

// arrive opens a page once more for who comes from another site: the strict cookie
// comes along only with what our own pages ask for.
func (c *console) arrive(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from := r.Header.Get("Sec-Fetch-Site")
		navigates := r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && (from == "cross-site" || from == "same-site")
		if navigates && r.URL.Path != Prefix+"oidc/callback" && r.URL.Path != Prefix+"enter" {
			c.onward(w, r, local(r.URL.RequestURI()))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// off says that nobody has given the console a key.
func off(w http.ResponseWriter, r *http.Request) {
	(&console{}).plain(w, r, http.StatusServiceUnavailable, "The console is off",
		"It needs a key to seal its cookies with: set CONSOLE_KEY of management-api to a random text of 22 characters or more. The API is at /api/v1.")
}

// digestOf stands for a token where the token itself is not to be kept.
func digestOf(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }
