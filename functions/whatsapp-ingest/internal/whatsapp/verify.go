package whatsapp

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
)

// Accounts knows the numbers that are served. *channel.Accounts is one.
type Accounts interface {
	// All returns the accounts by name. harness.Unavailable: they cannot be read
	// and none are known from before.
	All(ctx context.Context) (map[string]*channel.Account, error)
}

// Adapter reads the webhooks of the WhatsApp Business Cloud API.
type Adapter struct {
	accounts Accounts
	now      func() time.Time
}

var _ channel.Adapter = (*Adapter)(nil)

// NewAdapter returns an Adapter. now bounds what the provider may call the time
// of a message.
func NewAdapter(accounts Accounts, now func() time.Time) *Adapter {
	return &Adapter{accounts: accounts, now: now}
}

// The provider also sends the older X-Hub-Signature with SHA-1. It is no proof.
const (
	signatureHeader = "X-Hub-Signature-256"
	signaturePrefix = "sha256="
)

// Admit implements channel.Admitter: without the form of a signature there is no
// need to read what it would be of.
func (a *Adapter) Admit(_ context.Context, r *http.Request) error {
	_, err := signature(r)
	return err
}

// signature is what the provider's header says.
func signature(r *http.Request) ([]byte, error) {
	header, ok := strings.CutPrefix(r.Header.Get(signatureHeader), signaturePrefix)
	if !ok || len(header) != hex.EncodedLen(sha256.Size) {
		return nil, errNotSigned
	}
	bytes, err := hex.DecodeString(header)
	if err != nil {
		return nil, errNotSigned
	}
	return bytes, nil
}

// Verify says which numbers the request may speak for: those whose app secret
// has signed the bytes of body, as they came. Without a signature, or without
// any app secret, it is nobody.
func (a *Adapter) Verify(ctx context.Context, r *http.Request, body []byte) (channel.Proof, error) {
	said, err := signature(r)
	if err != nil {
		return channel.Proof{}, err
	}
	accounts, err := a.accounts.All(ctx)
	if err != nil {
		return channel.Proof{}, err
	}
	tried := map[harness.Secret]bool{} // numbers of one app share its secret: each is computed once
	for _, account := range accounts {
		for _, key := range account.Keys[channel.RoleAppSecret] {
			if key == "" || tried[key] {
				continue
			}
			tried[key] = true
			mac := hmac.New(sha256.New, []byte(key.Reveal()))
			mac.Write(body)
			if hmac.Equal(mac.Sum(nil), said) {
				return proofOf(accounts, key), nil
			}
		}
	}
	return channel.Proof{}, errNotSigned
}

var errNotSigned = harness.Errorf(harness.Denied, "the request is not signed with the app secret of a number that is served here")

func proofOf(accounts map[string]*channel.Account, key harness.Secret) channel.Proof {
	proof := channel.Proof{Accounts: map[string]*channel.Account{}}
	for name, account := range accounts {
		if slices.Contains(account.Keys[channel.RoleAppSecret], key) {
			proof.Accounts[name] = account
		}
	}
	return proof
}

// maxChallenge is the longest challenge that is echoed, in bytes. The
// provider's are ten digits.
const maxChallenge = 200

// NewHandshake answers the GET by which the provider makes sure that the
// callback's address is ours: the challenge, byte for byte, if the verify token
// is that of any number; else 403. Such a GET is not signed.
func NewHandshake(accounts Accounts, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		token, challenge := query.Get("hub.verify_token"), query.Get("hub.challenge")
		if query.Get("hub.mode") != "subscribe" || token == "" || challenge == "" || len(challenge) > maxChallenge {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		known, err := accounts.All(r.Context())
		if err != nil {
			log.WarnContext(r.Context(), "handshake not answered", "err", err)
			w.Header().Set("Retry-After", "5")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if !tokenKnown(known, token) {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		// The caller chose the challenge: no browser may take it for a page.
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = io.WriteString(w, challenge)
	})
}

// tokenKnown looks at every account, found or not, and compares digests: the
// time it takes tells nothing of a token or its length.
func tokenKnown(accounts map[string]*channel.Account, token string) bool {
	found := false
	for _, account := range accounts {
		for _, key := range account.Keys[channel.RoleVerifyToken] {
			if key != "" && sameSecret(key, token) {
				found = true
			}
		}
	}
	return found
}

func sameSecret(key harness.Secret, text string) bool {
	a, b := sha256.Sum256([]byte(key.Reveal())), sha256.Sum256([]byte(text))
	return hmac.Equal(a[:], b[:])
}
