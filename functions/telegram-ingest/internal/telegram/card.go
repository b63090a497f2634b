package telegram

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/channel/markup"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// editCard writes the outcome of a question below its card and takes the buttons
// away. Doing it again changes nothing. Nil without an error: the card cannot be
// edited (any more), and the outcome goes out as a message.
func (t *Transport) editCard(ctx context.Context, account *channel.Account, c *postgres.ReplyClaim, to address, begin func(context.Context) error) (*postgres.ReplyOutcome, error) {
	id, err := strconv.ParseInt(c.Card.ProviderID, 10, 64)
	if err != nil || c.Format == harness.FormatPlain || to.guest != "" {
		return nil, nil
	}
	_, outcome, _ := strings.Cut(c.Text, "\n") // its first line is the card's
	text := c.Card.Text + "\n\n" + outcome
	if !fits(text) {
		text = c.Text
	}
	edit := map[string]any{
		"chat_id": to.chat, "message_id": id, "text": markup.Telegram(text), "parse_mode": "HTML",
		"link_preview_options": map[string]any{"is_disabled": true}, "reply_markup": map[string]any{"inline_keyboard": []any{}},
	}
	if to.business != "" {
		edit["business_connection_id"] = to.business
	}
	if err := begin(ctx); err != nil {
		return nil, err
	}
	a, err := t.do(ctx, account.Key(channel.RoleBotToken), call{method: "editMessageText", parameters: edit})
	if err != nil {
		o := channel.Again(harness.ReplyPlanned, "Telegram's answer was lost; the card is edited again")
		return &o, nil
	}
	o := t.judge(account, c, to, a)
	switch {
	case a.ok:
		o.ProviderID = c.Card.ProviderID
	case a.code == http.StatusBadRequest:
		return &postgres.ReplyOutcome{State: harness.ReplyPlanned, Format: harness.FormatPlain, Code: a.code, Reason: o.Reason}, nil // as a message
	case a.code >= http.StatusInternalServerError:
		o.State, o.Final = harness.ReplyPlanned, false
	}
	return &o, nil
}
