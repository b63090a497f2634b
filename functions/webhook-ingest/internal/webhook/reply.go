package webhook

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// transport sends replies to callbacks. A receiver can be asked what arrived, so
// that an attempt without an answer is settled there and, if it did not arrive,
// repeated under its one Idempotency-Key.
type transport struct{ callback *callback }

// NewSender returns the events side, and what closes it.
func NewSender(o Options) (*channel.Sender, func()) {
	t := transport{callback: newCallback(o.AllowPrivate)}
	return channel.NewSender(channel.SenderOptions{
		Channel: harness.ChannelWebhook, Store: o.Store, Transport: t, Begins: true, Owner: o.Owner, Log: o.Log, Metrics: o.Metrics, Drain: o.Drain,
		Accounts: channel.NewAccounts(channel.AccountsOptions{Channel: harness.ChannelWebhook, Store: o.Store, Secrets: o.Secrets, Checks: o.Checks, Log: o.Log, Now: o.Now}),
	}), t.callback.close
}

// Split leaves a text whole: JSON has no limit that a reply reaches.
func (transport) Split(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

// Send implements channel.Transport. The claim was the beginning.
func (t transport) Send(ctx context.Context, account *channel.Account, c *postgres.ReplyClaim, _ func(context.Context) error) (postgres.ReplyOutcome, error) {
	key := account.Key(channel.RoleSigning)
	if key == "" {
		return channel.Again(harness.ReplyPlanned, "the hook's secret is not set"), nil
	}
	return t.callback.post(ctx, c, key), nil
}

// Settle implements channel.Transport: it asks the receiver, and sends again
// what it does not know.
func (t transport) Settle(ctx context.Context, account *channel.Account, c *postgres.ReplyClaim) postgres.ReplyOutcome {
	key := account.Key(channel.RoleSigning)
	if key == "" {
		return channel.Again(harness.ReplyPlanned, "the hook's secret is not set")
	}
	if known, providerID := t.callback.has(ctx, c, key); known {
		return postgres.ReplyOutcome{State: harness.ReplySent, ProviderID: providerID}
	}
	return t.callback.post(ctx, c, key)
}

// lastRetry is the longest wait a receiver may ask for.
const lastRetry = 10 * time.Minute

// retryAfter reads a Retry-After of seconds or of a date, at most lastRetry.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := h.Get("Retry-After")
	if v == "" {
		return 0
	}
	wait := time.Duration(0)
	if seconds, err := strconv.ParseInt(v, 10, 32); err == nil {
		wait = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(v); err == nil {
		wait = at.Sub(now)
	}
	return min(max(wait, 0), lastRetry)
}
