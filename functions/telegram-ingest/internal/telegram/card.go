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

// editCard writes the outcome of a question in the place of how to decide it, and
// takes the buttons away. Doing it again changes nothing, so it needs no mark that
// it began. Nil: the card cannot be edited (any more), and the outcome goes out as
// a message.
func (t *Transport) editCard(ctx context.Context, account *channel.Account, c *postgres.ReplyClaim, to address) *postgres.ReplyOutcome {
	id, err := strconv.ParseInt(c.Card.ProviderID, 10, 64)
	if err != nil || c.Format == harness.FormatPlain || to.guest != "" {
		return nil
	}
	outcome := c.Text
	if c.Part == 1 { // its first line is the card's
		_, outcome, _ = strings.Cut(c.Text, "\n")
	}
	asked := c.Card.Text
	if i := strings.LastIndexByte(asked, '\n'); i >= 0 { // its last line says how to decide
		asked = asked[:i]
	}
	edit := map[string]any{
		"chat_id": to.chat, "message_id": id, "link_preview_options": map[string]any{"is_disabled": true},
		"reply_markup": map[string]any{"inline_keyboard": []any{}},
	}
	if to.business != "" {
		edit["business_connection_id"] = to.business
	}
	// A card that says so already is refused like one that is gone, and like one
	// whose marks cannot be read. Another spelling without marks tells them apart.
	for _, plain := range []bool{false, true} {
		text := asked + "\n\n" + outcome
		if plain {
			text = asked + "\n\nDecision: " + outcome
		}
		if !fits(text) {
			text = c.Text
		}
		edit["text"], edit["parse_mode"] = markup.Telegram(text), "HTML"
		if plain {
			edit["text"] = markup.Plain(text)
			delete(edit, "parse_mode")
		}
		a, err := t.do(ctx, account.Key(channel.RoleBotToken), call{method: "editMessageText", parameters: edit})
		if err != nil {
			return &postgres.ReplyOutcome{State: harness.ReplyPlanned, Reason: "Telegram's answer was lost; the card is edited again"}
		}
		if a.code == http.StatusBadRequest && a.movedTo == 0 {
			continue
		}
		o := t.judge(account, c, to, a)
		switch {
		case a.ok:
			o.ProviderID = c.Card.ProviderID
		case a.code >= http.StatusInternalServerError:
			o.State, o.Final = harness.ReplyPlanned, false
		}
		return &o
	}
	return nil
}
