package console

import (
	"cmp"
	"context"
	"crypto/subtle"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"tuluat.ai/harness/shared/harness"
)

// OIDC says who else people may sign in with. The ID token is then the bearer that
// the API checks, so the API server must know the issuer too.
type OIDC struct {
	Issuer, ClientID string
	ClientSecret     harness.Secret
}

func (o OIDC) enabled() bool { return o.Issuer != "" }

// issuer is what the issuer says of itself, once it has been reached: the console
// starts without it. One that did not answer is left alone for a while, so that nobody
// waits for what others have just waited for.
type issuer struct {
	mu    sync.Mutex
	known *oidc.Provider
	away  error
	until time.Time // it is not asked again
}

const (
	oidcName = "oidc"
	oidcTime = 10 * time.Minute // from leaving for the issuer to coming back
	askTime  = 10 * time.Second
	awayTime = 5 * time.Second
)

// leaving is what a browser keeps sealed while it is at the issuer.
type leaving struct {
	State    string `json:"state"`
	Nonce    string `json:"nonce"`
	Verifier string `json:"verifier"`
	Next     string `json:"next"`
}

func (c *console) client() *http.Client {
	return cmp.Or(c.Client, &http.Client{Timeout: askTime})
}

// provider asks the issuer what it is, unless it has said so.
func (c *console) provider(ctx context.Context) (*oidc.Provider, error) {
	i := &c.issuer
	i.mu.Lock()
	known, away := i.known, i.away
	asleep := c.Now().Before(i.until)
	i.mu.Unlock()
	switch {
	case known != nil:
		return known, nil
	case asleep:
		return nil, away
	}
	known, err := oidc.NewProvider(oidc.ClientContext(ctx, c.client()), c.OIDC.Issuer)
	i.mu.Lock()
	defer i.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil { // or it is the browser that has left
			i.away, i.until = err, c.Now().Add(awayTime)
		}
		return nil, err
	}
	i.known = known
	return known, nil
}

func (c *console) oauth(p *oidc.Provider) *oauth2.Config {
	return &oauth2.Config{
		ClientID: c.OIDC.ClientID, ClientSecret: c.OIDC.ClientSecret.Reveal(), Endpoint: p.Endpoint(),
		RedirectURL: c.URL + Prefix + "oidc/callback", Scopes: []string{oidc.ScopeOpenID, "profile", "email", "groups"},
	}
}

// oidcStart sends a browser to the issuer, by the code flow with PKCE.
func (c *console) oidcStart(w http.ResponseWriter, r *http.Request) {
	if !c.OIDC.enabled() {
		c.plain(w, r, http.StatusNotFound, "There is no single sign-on", "Sign in with a token.")
		return
	}
	provider, err := c.provider(r.Context())
	if err != nil {
		c.Log.Warn("the issuer of sign-ins does not answer", "err", err)
		c.showSignIn(w, r, http.StatusBadGateway, signInBody{Next: local(r.URL.Query().Get("next")), Elsewhere: "The sign-in service does not answer. Try again in some seconds, or use a token."})
		return
	}
	l := leaving{State: random(), Nonce: random(), Verifier: oauth2.GenerateVerifier(), Next: local(r.URL.Query().Get("next"))}
	text, err := c.seal.put(purposeOIDC, c.Now().Add(oidcTime), l)
	if err != nil {
		c.plain(w, r, http.StatusInternalServerError, "The sign-in cannot begin", "Try again, or use a token.")
		return
	}
	http.SetCookie(w, c.cookie(r, oidcName, text, oidcTime, http.SameSiteLaxMode)) // it comes back from another site
	http.Redirect(w, r, c.oauth(provider).AuthCodeURL(l.State, oidc.Nonce(l.Nonce), oauth2.S256ChallengeOption(l.Verifier)), http.StatusSeeOther)
}

// oidcCallback takes the browser back. What it brings is good once, and only where it
// left from.
func (c *console) oidcCallback(w http.ResponseWriter, r *http.Request) {
	var l leaving
	err := c.seal.get(purposeOIDC, c.cookieValue(r, oidcName), &l)
	http.SetCookie(w, c.cookie(r, oidcName, "", 0, http.SameSiteLaxMode))
	query := r.URL.Query()
	fail := func(status int, text string) {
		c.showSignIn(w, r, status, signInBody{Next: cmp.Or(l.Next, Prefix), Elsewhere: text})
	}
	switch {
	case !c.OIDC.enabled() || err != nil || subtle.ConstantTimeCompare([]byte(l.State), []byte(query.Get("state"))) != 1:
		fail(http.StatusBadRequest, "The sign-in did not begin in this browser, or took longer than ten minutes. Begin again.")
		return
	case query.Get("error") != "":
		fail(http.StatusForbidden, "The sign-in service refused: "+cell(query.Get("error")+" "+query.Get("error_description")))
		return
	}
	token, ends, err := c.exchange(r.Context(), query, l)
	if err != nil {
		c.Log.Warn("a sign-in failed", "kind", string(harness.KindOf(err)), "err", err)
		fail(http.StatusBadGateway, "The sign-in service's answer is not one that can be trusted, or it does not answer. Begin again, or use a token.")
		return
	}
	if status, wrong := c.take(w, r, token, ends); wrong != "" {
		fail(status, wrong+" The API must accept tokens of the sign-in service.")
		return
	}
	c.onward(w, r, local(l.Next))
}

// exchange returns the ID token for a code, and when a sign-in by it ends. Errors
// have no token in them.
func (c *console) exchange(ctx context.Context, query url.Values, l leaving) (token string, ends time.Time, err error) {
	provider, err := c.provider(ctx)
	if err != nil {
		return "", ends, harness.Wrap(harness.Unavailable, err, "the issuer does not answer")
	}
	ctx = oidc.ClientContext(ctx, c.client())
	answer, err := c.oauth(provider).Exchange(ctx, query.Get("code"), oauth2.VerifierOption(l.Verifier))
	if err != nil {
		return "", ends, harness.Errorf(harness.Denied, "the issuer gave no token for the code")
	}
	raw, ok := answer.Extra("id_token").(string)
	if !ok {
		return "", ends, harness.Errorf(harness.Denied, "the issuer gave no ID token")
	}
	id, err := provider.Verifier(&oidc.Config{ClientID: c.OIDC.ClientID, Now: c.Now}).Verify(ctx, raw)
	if err != nil {
		return "", ends, harness.Errorf(harness.Denied, "the ID token does not verify")
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(l.Nonce)) != 1 {
		return "", ends, harness.Errorf(harness.Denied, "the ID token is not of this sign-in")
	}
	if ends = c.Now().Add(sessionTime); id.Expiry.Before(ends) {
		ends = id.Expiry
	}
	return raw, ends, nil
}
