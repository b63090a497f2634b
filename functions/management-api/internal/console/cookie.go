package console

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// sessionTime is how long a sign-in holds, if its token does.
	sessionTime = 8 * time.Hour
	// cookiePart is how much of a sealed token one cookie takes: browsers keep 4,096
	// bytes of a name, its value and attributes.
	cookiePart = 3800
	// cookieParts is how many cookies a token may take: proxies take 16 KiB of
	// headers in all.
	cookieParts = 3
)

// isHTTPS reports whether address is one of TLS.
func isHTTPS(address string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Scheme == "https"
}

// secure reports whether the browser came by TLS, here or at a proxy in front.
func (c *console) secure(r *http.Request) bool {
	return c.public || r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
}

// cookie is one of ours. On TLS its name binds it to this host and to TLS.
func (c *console) cookie(r *http.Request, name, value string, age time.Duration, same http.SameSite) *http.Cookie {
	k := &http.Cookie{Name: "tuluat-" + name, Value: value, Path: "/", MaxAge: int(age / time.Second), HttpOnly: true, SameSite: same}
	if c.secure(r) {
		k.Name, k.Secure = "__Host-"+k.Name, true
	}
	if age <= 0 {
		k.MaxAge = -1
	}
	return k
}

func (c *console) cookieValue(r *http.Request, name string) string {
	k, err := r.Cookie(c.cookie(r, name, "", 0, 0).Name)
	if err != nil {
		return ""
	}
	return k.Value
}

// session is what the browser keeps sealed.
type session struct {
	Token string `json:"token"`
}

func part(i int) string { return "session-" + strconv.Itoa(i) }

// keep gives the browser a token until ends, or reports that it is too long for
// cookies.
func (c *console) keep(w http.ResponseWriter, r *http.Request, token string, ends time.Time) (fits bool, err error) {
	text, err := c.seal.put(purposeSession, ends, session{token})
	if err != nil {
		return false, err
	}
	if len(text) > cookiePart*cookieParts {
		return false, nil
	}
	age := ends.Sub(c.Now())
	for i := range cookieParts {
		n := min(len(text), cookiePart)
		if text[:n] == "" {
			age = 0 // of a longer token before
		}
		http.SetCookie(w, c.cookie(r, part(i), text[:n], age, http.SameSiteStrictMode))
		text = text[n:]
	}
	return true, nil
}

// token is that of the browser's sign-in, "" if there is none that holds.
func (c *console) token(r *http.Request) string {
	var text strings.Builder
	for i := range cookieParts {
		text.WriteString(c.cookieValue(r, part(i)))
	}
	var s session
	if text.Len() == 0 || c.seal.get(purposeSession, text.String(), &s) != nil {
		return ""
	}
	return s.Token
}

// forget takes the sign-in from the browser.
func (c *console) forget(w http.ResponseWriter, r *http.Request) {
	for i := range cookieParts {
		http.SetCookie(w, c.cookie(r, part(i), "", 0, http.SameSiteStrictMode))
	}
}

// local is where to go on in the console: address, if that is a page of it.
func local(address string) string {
	u, err := url.Parse(address)
	odd := strings.ContainsFunc(address, func(c rune) bool { return c <= ' ' || c == '\\' || c > '~' })
	if err != nil || odd || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(u.Path, Prefix) || strings.Contains(u.Path, "//") || strings.Contains(u.Path, "/../") {
		return Prefix
	}
	return address
}

// Themes. The page asks the browser which it prefers unless a person chose.
var themes = []string{"auto", "light", "dark"}

const themeCookie = "tuluat-theme" // no secret

func theme(r *http.Request) string {
	if k, err := r.Cookie(themeCookie); err == nil {
		for _, t := range themes {
			if k.Value == t {
				return t
			}
		}
	}
	return themes[0]
}

// setTheme keeps what a person chose, and goes back to where that was.
func (c *console) setTheme(w http.ResponseWriter, r *http.Request) {
	for _, t := range themes {
		if r.PostFormValue("theme") == t {
			http.SetCookie(w, &http.Cookie{Name: themeCookie, Value: t, Path: Prefix, MaxAge: 365 * 24 * 3600, HttpOnly: true, Secure: c.secure(r), SameSite: http.SameSiteLaxMode})
		}
	}
	http.Redirect(w, r, local(r.PostFormValue("next")), http.StatusSeeOther)
}
