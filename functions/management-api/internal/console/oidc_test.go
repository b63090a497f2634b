package console_test

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/functions/management-api/internal/console"
)

// issuer is as much of an OpenID provider as a sign-in needs.
type issuer struct {
	*httptest.Server
	t      *testing.T
	key    *rsa.PrivateKey // that signs
	public *rsa.PublicKey  // that it shows

	mu      sync.Mutex
	asked   url.Values     // of the authorisation
	claims  map[string]any // that are other than they should be
	down    bool
	count   int // codes that were exchanged
	refused int // requests while it was down
}

func newIssuer(t *testing.T) *issuer {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{t: t, key: key, public: &key.PublicKey, claims: map[string]any{}}
	i.Server = httptest.NewServer(i)
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) change(do func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	do()
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.down {
		i.refused++
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	answer := map[string]any{}
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		answer = map[string]any{"issuer": i.URL, "authorization_endpoint": i.URL + "/authorize", "token_endpoint": i.URL + "/token", "jwks_uri": i.URL + "/keys", "id_token_signing_alg_values_supported": []string{"RS256"}}
	case "/keys":
		answer["keys"] = []any{map[string]any{"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "k", "n": encode(i.public.N.Bytes()), "e": encode(big.NewInt(int64(i.public.E)).Bytes())}}
	case "/token":
		i.count++
		_, secret, _ := r.BasicAuth()
		sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
		if encode(sum[:]) != i.asked.Get("code_challenge") || i.asked.Get("code_challenge_method") != "S256" || r.PostFormValue("code") != "the-code" || secret != "a-client-secret" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		answer = map[string]any{"access_token": "an-access-token", "token_type": "Bearer", "id_token": i.token()}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// token is an ID token of who has signed in.
func (i *issuer) token() string {
	claims := map[string]any{"iss": i.URL, "aud": "tuluat", "sub": "ada", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(), "nonce": i.asked.Get("nonce")}
	for name, v := range i.claims {
		claims[name] = v
	}
	head, _ := json.Marshal(map[string]string{"alg": "RS256", "kid": "k", "typ": "JWT"})
	body, _ := json.Marshal(claims)
	text := encode(head) + "." + encode(body)
	sum := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, i.key, crypto.SHA256, sum[:])
	if err != nil {
		i.t.Error(err)
	}
	return text + "." + encode(signature)
}

// known lets everybody whom the issuer has signed in be an admin.
type known struct{ http.Handler }

func (h known) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.Count(r.Header.Get("Authorization"), ".") == 2 {
		r.Header.Set("Authorization", "Bearer "+token(access.RoleAdmin))
	}
	h.Handler.ServeHTTP(w, r)
}

func oidcWorld(t *testing.T, change ...func(*console.Options)) (*world, *issuer) {
	i := newIssuer(t)
	return newWorld(t, append(change, func(o *console.Options) {
		o.API, o.Client = known{o.API}, i.Client()
		o.OIDC, o.URL = console.OIDC{Issuer: i.URL, ClientID: "tuluat", ClientSecret: "a-client-secret"}, "https://console.example.com"
	})...), i
}

// leave goes to the issuer, and returns what it was asked and the cookie that is kept
// meanwhile.
func (b *browser) leave(i *issuer, next string) (url.Values, string) {
	b.t.Helper()
	a := b.get("/console/oidc/start?next=" + url.QueryEscape(next))
	to, err := url.Parse(a.header.Get("Location"))
	if err != nil || a.status != http.StatusSeeOther || !strings.HasPrefix(to.String(), i.URL+"/authorize?") {
		b.t.Fatalf("%d to %s: %s", a.status, a.header.Get("Location"), alert(a.page(b.t)))
	}
	i.change(func() { i.asked = to.Query() })
	set := a.header.Get("Set-Cookie")
	for _, want := range []string{"__Host-tuluat-oidc=", "HttpOnly", "Secure", "SameSite=Lax", "Path=/", "Max-Age="} {
		if !strings.Contains(set, want) {
			b.t.Errorf("%q lacks %s", set, want)
		}
	}
	cookie, _, _ := strings.Cut(set, ";")
	return to.Query(), cookie
}

func (b *browser) comeBack(query url.Values, cookie string) answer {
	b.t.Helper()
	return b.browser().do(http.MethodGet, "/console/oidc/callback?"+query.Encode(), nil, map[string]string{"Cookie": cookie, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})
}

// Whom the issuer knows is signed in as long as the ID token holds.
func TestSingleSignOn(t *testing.T) {
	w, i := oidcWorld(t)
	b := w.browser()
	if !strings.Contains(b.see("/console/sign-in?next=/console/agents").body, `href="/console/oidc/start?next=%2fconsole%2fagents"`) {
		t.Error("the sign-in does not offer it")
	}
	asked, cookie := b.leave(i, "/console/agents")
	for name, want := range map[string]string{"response_type": "code", "client_id": "tuluat", "redirect_uri": "https://console.example.com/console/oidc/callback", "code_challenge_method": "S256"} {
		if asked.Get(name) != want {
			t.Errorf("%s is %q, want %q", name, asked.Get(name), want)
		}
	}
	if len(asked.Get("state")) < 22 || len(asked.Get("nonce")) < 22 || strings.Contains(cookie, asked.Get("state")) || !strings.Contains(asked.Get("scope"), "openid") {
		t.Errorf("asked %v with %s", asked, cookie)
	}
	a := b.comeBack(url.Values{"code": {"the-code"}, "state": {asked.Get("state")}}, cookie)
	cookies := strings.Join(a.header.Values("Set-Cookie"), "\n")
	if a.status != http.StatusOK || a.header.Get("Refresh") != "0; url=/console/agents" || !strings.Contains(cookies, "__Host-tuluat-session-0=") || !strings.Contains(cookies, "SameSite=Strict") || !strings.Contains(cookies, "__Host-tuluat-oidc=;") {
		t.Fatalf("back: %d %v: %s", a.status, a.header, alert(a.page(t)))
	}
	if !strings.Contains(cookies, "Max-Age=35") { // of the hour of the token, not eight
		t.Errorf("the sign-in holds for another time than its token: %s", cookies)
	}
	session := ""
	for _, c := range a.header.Values("Set-Cookie") {
		if strings.HasPrefix(c, "__Host-tuluat-session-0=") {
			session, _, _ = strings.Cut(c, ";")
		}
	}
	if a := b.do(http.MethodGet, "/console/", nil, map[string]string{"Cookie": session}); a.status != http.StatusOK {
		t.Errorf("the home page: %d", a.status)
	}
}

// What does not belong to this browser and this sign-in signs nobody in.
func TestSingleSignOnThatIsWrong(t *testing.T) {
	w, i := oidcWorld(t)
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	right := i.key
	for name, c := range map[string]struct {
		query  func(url.Values, url.Values)
		claims map[string]any
		cookie string
		key    *rsa.PrivateKey
		want   int
	}{
		"no cookie":        {cookie: "a=b", want: 400},
		"a cookie of ours": {cookie: "__Host-tuluat-oidc=abcd", want: 400},
		"another state":    {query: func(q, _ url.Values) { q.Set("state", "another") }, want: 400},
		"no state":         {query: func(q, _ url.Values) { q.Del("state") }, want: 400},
		"another code":     {query: func(q, _ url.Values) { q.Set("code", "another") }, want: 502},
		"refused":          {query: func(q, _ url.Values) { q.Set("error", "access_denied"); q.Set("error_description", "<b>no</b>") }, want: 403},
		"another nonce":    {claims: map[string]any{"nonce": "another"}, want: 502},
		"another client":   {claims: map[string]any{"aud": "another"}, want: 502},
		"another issuer":   {claims: map[string]any{"iss": "https://evil.example"}, want: 502},
		"over":             {claims: map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}, want: 502},
		"another key":      {key: other, want: 502},
	} {
		b := w.browser()
		asked, cookie := b.leave(i, "/console/")
		i.change(func() {
			i.claims, i.key = c.claims, right
			if c.key != nil {
				i.key = c.key
			}
		})
		query := url.Values{"code": {"the-code"}, "state": {asked.Get("state")}}
		if c.query != nil {
			c.query(query, asked)
		}
		if c.cookie != "" {
			cookie = c.cookie
		}
		a := b.comeBack(query, cookie)
		if a.status != c.want || strings.Contains(strings.Join(a.header.Values("Set-Cookie"), ""), "session") || alert(a.page(t)) == "" {
			t.Errorf("%s: %d, want %d: %v %s", name, a.status, c.want, a.header.Values("Set-Cookie"), alert(a.page(t)))
		}
		i.change(func() { i.key = right })
	}
}

// The console starts, and takes tokens, while the issuer is away.
func TestTheIssuerIsAway(t *testing.T) {
	var later atomic.Int64
	w, i := oidcWorld(t, func(o *console.Options) {
		o.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	})
	i.change(func() { i.down = true })
	b := w.browser()
	for range 3 {
		if a := b.get("/console/oidc/start?next=/console/agents"); a.status != http.StatusBadGateway || !strings.Contains(alert(a.page(t)), "does not answer") {
			t.Errorf("%d %s", a.status, alert(a.page(t)))
		}
	}
	if i.change(func() {}); i.refused != 1 {
		t.Errorf("who does not answer was asked %d times at once", i.refused)
	}
	if a := b.post("/console/sign-in", url.Values{"token": {token(access.RoleViewer)}}); a.status != http.StatusSeeOther {
		t.Errorf("a token meanwhile: %d", a.status)
	}
	i.change(func() { i.down = false })
	later.Store(int64(6 * time.Second))
	b.leave(i, "/console/")
}
