package telegram

import (
	"context"
	"log/slog"
	"time"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// Presence shows "is typing", which lasts for at most five seconds.
type Presence struct {
	client *Client
	log    *slog.Logger
}

// NewPresence shows by client.
func NewPresence(client *Client, log *slog.Logger) *Presence {
	return &Presence{client: client, log: log}
}

// presenceTime bounds one call that shows something.
const presenceTime = 5 * time.Second

// Every is how often typing is shown anew.
func (p *Presence) Every() time.Duration { return 4500 * time.Millisecond }

// Longest is how long a turn is shown as typing.
func (p *Presence) Longest() time.Duration { return 2 * time.Minute }

// Show answers the press of a button, on which it shows as busy until then, and
// shows typing. There is no typing where the bot is a guest, and none in the
// direct messages of a channel.
func (p *Presence) Show(ctx context.Context, account *channel.Account, m *postgres.Received, first bool) error {
	token := account.Key(channel.RoleBotToken)
	at, err := parseAddress(m.Address)
	if err != nil {
		return err
	}
	if token == "" {
		return harness.Errorf(harness.Unavailable, "the bot's token is not set")
	}
	if first {
		meta, _ := decode(m.Metadata)
		if id := asObject(meta).raw("callbackQueryId"); id != "" {
			if err := p.show(ctx, token, "answerCallbackQuery", map[string]any{"callback_query_id": id}); err != nil {
				p.log.Info("the press of a button was not answered", "bot", account.Name, "session", string(m.Session.ID), "err", err)
			}
		}
	}
	if at.guest != "" || at.direct != 0 || m.State == harness.MessageDone {
		return nil
	}
	typing := map[string]any{"chat_id": at.chat, "action": "typing"}
	if at.topic > generalTopic {
		typing["message_thread_id"] = at.topic
	}
	if at.business != "" {
		typing["business_connection_id"] = at.business
	}
	return p.show(ctx, token, "sendChatAction", typing)
}

func (p *Presence) show(ctx context.Context, token harness.Secret, method string, parameters map[string]any) error {
	ctx, cancel := context.WithTimeout(ctx, presenceTime)
	defer cancel()
	a, err := p.client.call(ctx, token, method, parameters)
	if err != nil {
		return harness.Wrap(harness.Unavailable, err, "Telegram does not answer")
	}
	if !a.ok {
		return harness.Errorf(harness.Unavailable, "%s: %s", method, a.said())
	}
	return nil
}
