package telegram

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
)

// secretHeader carries the secret that was given to setWebhook.
const secretHeader = "X-Telegram-Bot-Api-Secret-Token"

// Adapter is the way in.
type Adapter struct{ accounts Accounts }

// NewAdapter takes updates for the bots of accounts.
func NewAdapter(accounts Accounts) *Adapter { return &Adapter{accounts: accounts} }

// Admit implements channel.Admitter: the proof is in the header.
func (a *Adapter) Admit(ctx context.Context, r *http.Request) error {
	_, err := a.Verify(ctx, r, nil)
	return err
}

// Verify proves the bot of the path by the secret header, which is a bearer: any
// current webhook secret of that bot will do. A bot that nobody has, one without
// a secret and a wrong secret are told apart by nothing.
func (a *Adapter) Verify(ctx context.Context, r *http.Request, _ []byte) (channel.Proof, error) {
	all, err := a.accounts.All(ctx)
	if err != nil {
		return channel.Proof{}, err
	}
	account := all[accountName(r.PathValue("bot"))]
	var keys []harness.Secret
	if account != nil {
		keys = account.Keys[channel.RoleWebhookSecret]
	}
	if !oneOf(r.Header.Get(secretHeader), keys) {
		return channel.Proof{}, harness.Errorf(harness.Denied, "the webhook secret does not fit")
	}
	return channel.Proof{Accounts: map[string]*channel.Account{account.Name: account}}, nil
}

// accountName is a bot's username as accounts have it.
func accountName(bot string) string { return strings.ToLower(strings.TrimPrefix(bot, "@")) }

// oneOf reports whether given is one of keys, in a time that tells neither which
// nor how much of it fits. An empty key fits nothing.
func oneOf(given string, keys []harness.Secret) bool {
	digest := sha256.Sum256([]byte(given))
	fits := 0
	for _, key := range keys {
		want := sha256.Sum256([]byte(key.Reveal()))
		if key != "" {
			fits |= subtle.ConstantTimeCompare(digest[:], want[:])
		}
	}
	return fits == 1 && given != ""
}
