package telegram

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// RegisteredStore is what Registered reads and writes.
type RegisteredStore interface {
	UnseenWebhooks(ctx context.Context, channel harness.Channel, limit int) ([]postgres.AccountRoute, error)
	WebhookSeen(ctx context.Context, channel harness.Channel, account, url string, agent harness.AgentName) error
}

// Registered looks where Telegram sends the updates of bots to, and keeps it: when
// no agent has a bot any more nobody here has its token either, and then only the
// row says that a webhook is still registered for it. Registering is a person's.
type Registered struct {
	Client   *Client
	Store    RegisteredStore
	Accounts Accounts
	Log      *slog.Logger
}

const (
	lookTime = 20 * time.Second // at all bots of one look
	lookMost = 50               // bots; the next look takes the others
)

// Look looks at those bots of which nothing was recorded for an hour. What fails is
// logged and looked at again when an agent changes: nothing else depends on it.
func (r *Registered) Look(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, lookTime, errors.New("look at webhooks"))
	defer cancel()
	if err := r.look(ctx); err != nil && ctx.Err() == nil {
		r.Log.Warn("where updates of bots are sent to is not known now", "err", err)
	}
}

func (r *Registered) look(ctx context.Context) error {
	bots, err := r.Store.UnseenWebhooks(ctx, harness.ChannelTelegram, lookMost)
	if err != nil || len(bots) == 0 {
		return err
	}
	accounts, err := r.Accounts.All(ctx)
	if err != nil {
		return err
	}
	var failures error
	for _, bot := range bots {
		account := accounts[bot.Account]
		if account == nil || account.Key(channel.RoleBotToken) == "" {
			continue
		}
		to, known, err := r.Client.webhook(ctx, account.Key(channel.RoleBotToken))
		if err == nil && known {
			err = r.Store.WebhookSeen(ctx, harness.ChannelTelegram, bot.Account, to, bot.Agent)
		}
		if failures = errors.Join(failures, err); ctx.Err() != nil {
			break
		}
	}
	return failures
}

// webhook returns where a bot's updates are sent to, empty for nowhere. known is
// false when Telegram does not say: the token is wrong, or it is asked too much.
func (c *Client) webhook(ctx context.Context, token harness.Secret) (to string, known bool, err error) {
	a, err := c.call(ctx, token, "getWebhookInfo", map[string]any{})
	if err != nil || !a.ok {
		return "", false, err
	}
	var info struct {
		URL string `json:"url"`
	}
	if err := json.Unmarshal(a.result, &info); err != nil {
		return "", false, harness.Wrap(harness.Unavailable, err, "the answer to getWebhookInfo cannot be read")
	}
	return info.URL, true, nil
}
