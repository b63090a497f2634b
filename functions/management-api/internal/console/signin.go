package console

import (
	"crypto/subtle"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// signInBody is what the page of the sign-in shows.
type signInBody struct {
	Next      string
	OIDC      bool
	Unsealed  bool   // what is typed goes over the wire as it is
	Wrong     string // with the token
	Elsewhere string // that went wrong
	Kept      []kept // of a form that came too late
}

func (c *console) signInPage(w http.ResponseWriter, r *http.Request) {
	c.showSignIn(w, r, http.StatusOK, signInBody{Next: local(r.URL.Query().Get("next"))})
}

func (c *console) showSignIn(w http.ResponseWriter, r *http.Request, status int, body signInBody) {
	body.OIDC = c.OIDC.enabled()
	host := (&url.URL{Host: r.Host}).Hostname()
	body.Unsealed = !c.secure(r) && host != "localhost" && host != "127.0.0.1" && host != "::1"
	f := frame{page: &page{console: c, w: w, r: r}, Title: "Sign in", Theme: theme(r), Self: Prefix, Said: said[r.URL.Query().Get("said")], Body: body}
	if err := render(w, status, "signin", "layout", f); err != nil {
		c.Log.Error("the sign-in cannot be shown", "err", err)
		w.WriteHeader(http.StatusInternalServerError)
	}
}

// signIn takes a token. What it says is the API's to judge.
func (c *console) signIn(w http.ResponseWriter, r *http.Request) {
	next := local(r.PostFormValue("next"))
	token := strings.TrimPrefix(strings.TrimSpace(r.PostFormValue("token")), "Bearer ")
	if token == "" {
		c.showSignIn(w, r, http.StatusUnprocessableEntity, signInBody{Next: next, Wrong: "Paste a token."})
		return
	}
	if status, wrong := c.take(w, r, token, c.Now().Add(sessionTime)); wrong != "" {
		c.showSignIn(w, r, status, signInBody{Next: next, Wrong: wrong})
		return
	}
	http.Redirect(w, r, next, http.StatusSeeOther)
}

// take signs token in until ends, or says what is wrong with it.
func (c *console) take(w http.ResponseWriter, r *http.Request, token string, ends time.Time) (status int, wrong string) {
	who, err := c.identify(r.Context(), token)
	switch status := statusOf(err); {
	case err == nil:
	case status == http.StatusUnauthorized:
		return status, "The API does not know this token, or not any more."
	case status != 0:
		return status, "The API did not take it: " + plain(err.Error()) + "."
	default:
		return http.StatusInternalServerError, "The API could not be asked."
	}
	fits, err := c.keep(w, r, token, ends)
	if err != nil {
		c.Log.Error("a sign-in cannot be sealed", "err", err)
		return http.StatusInternalServerError, "The sign-in cannot be kept."
	}
	if !fits {
		return http.StatusRequestEntityTooLarge, "The token is too long to be kept by a browser: it may have about 8 KB. Ask for one with fewer groups or claims in it."
	}
	c.Log.Info("signed in", "caller", who.Name)
	return 0, ""
}

func (c *console) signOut(w http.ResponseWriter, r *http.Request) {
	c.forget(w, r)
	w.Header().Set("Clear-Site-Data", `"cache"`)
	http.Redirect(w, r, Prefix+"sign-in?said=out", http.StatusSeeOther)
}

// enter takes the one code of a file in place of its token: whoever started the
// system on this machine has it on the terminal, and need not copy a secret. A browser
// may fetch a link before anybody follows it, so that the page of the link only asks,
// and its button enters. The file is gone before the token is used: the code opens once.
func (c *console) enter(w http.ResponseWriter, r *http.Request) {
	const over = "The link opens once, and only where the system was started. Sign in with a token, or start the system again for a new link."
	code := r.FormValue("code")
	text, err := os.ReadFile(c.Entry)
	if c.Entry == "" || err != nil {
		c.plain(w, r, http.StatusGone, "This link has been used", over)
		return
	}
	want, token, ok := strings.Cut(strings.TrimSpace(string(text)), "\n")
	if !ok || len(want) < minKey || subtle.ConstantTimeCompare([]byte(code), []byte(want)) != 1 {
		c.plain(w, r, http.StatusForbidden, "This is not the link", over)
		return
	}
	if r.Method != http.MethodPost {
		c.outside(w, r, http.StatusOK, "enter", "Enter the console", code)
		return
	}
	if os.Remove(c.Entry) != nil { // somebody else was first
		c.plain(w, r, http.StatusGone, "This link has been used", over)
		return
	}
	if status, wrong := c.take(w, r, strings.TrimSpace(token), c.Now().Add(sessionTime)); wrong != "" {
		c.plain(w, r, status, "This link does not work", wrong)
		return
	}
	http.Redirect(w, r, Prefix, http.StatusSeeOther)
}
