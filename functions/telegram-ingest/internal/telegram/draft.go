package telegram

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/channel/markup"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

const (
	// growing ends a text that is still written.
	growing = " …"
	// draftCall bounds one call that shows a draft.
	draftCall = 6 * time.Second
)

// Draft shows what is written of an answer: as a message without marks, then in
// its place. A guest's question takes one answer, so nothing is shown there.
func (t *Transport) Draft(ctx context.Context, account *channel.Account, c *postgres.DraftClaim) postgres.DraftOutcome {
	token := account.Key(channel.RoleBotToken)
	to, err := parseAddress(c.Address)
	if err != nil || to.guest != "" {
		return postgres.DraftOutcome{State: harness.ReplyFailed}
	}
	shown := postgres.DraftOutcome{State: harness.ReplyPlanned}
	if c.ProviderID != "" {
		shown.State = harness.ReplySent
	}
	text, ok := drafted(c.Text)
	if token == "" || !ok {
		return shown
	}
	said := map[string]any{"text": text, "link_preview_options": map[string]any{"is_disabled": true}}
	method := "sendMessage"
	if c.ProviderID == "" {
		addressTo(said, &postgres.ReplyClaim{InReplyTo: c.InReplyTo, Part: 1}, to)
	} else if method, ok = "editMessageText", placed(said, c.ProviderID, to); !ok {
		return shown
	}
	ctx, cancel := context.WithTimeout(ctx, draftCall)
	defer cancel()
	a, err := t.client.call(ctx, token, method, said)
	switch {
	case err != nil && maybeDone(err) && c.ProviderID == "":
		return postgres.DraftOutcome{State: harness.ReplyUnknown}
	case err != nil:
		return shown
	case a.ok:
		t.accepted(account.Name)
		shown.State, shown.Shown = harness.ReplySent, true
		if c.ProviderID == "" {
			shown.ProviderID = sentID(a.result)
		}
	case a.code == http.StatusTooManyRequests:
		shown.Hold = max(a.retryAfter, time.Second)
	case c.ProviderID != "":
		shown.Shown = true // it is so already, or can be edited no more: what takes its place finds out
	case a.code >= http.StatusInternalServerError:
		shown.State = harness.ReplyUnknown
	default:
		shown.State = harness.ReplyFailed // the reply says why
	}
	return shown
}

// drafted is a text that is still written as its chat shows it: without marks, and
// what fits one message.
func drafted(text string) (string, bool) {
	text = strings.TrimSpace(visible(markup.Telegram(text)))
	if text == "" {
		return "", false
	}
	room := maxUnits - markup.UTF16Len(growing)
	for i, r := range text {
		if room -= markup.UTF16Len(string(r)); room < 0 {
			text = text[:i]
			break
		}
	}
	return text + growing, true
}

// placed says which message an edit is of, if it has a number.
func placed(said map[string]any, providerID string, to address) bool {
	id, err := strconv.ParseInt(providerID, 10, 64)
	if err != nil {
		return false
	}
	said["chat_id"], said["message_id"] = to.chat, id
	if to.business != "" {
		said["business_connection_id"] = to.business
	}
	return true
}

// endDraft puts a reply in the place of the draft that its chat shows. Doing it
// again changes nothing, so it needs no mark that it began. Nil: the reply goes out
// as a message, because the draft's is gone, or because something was sent
// behind it and the answer is to stand there; then the draft is taken away.
func (t *Transport) endDraft(ctx context.Context, account *channel.Account, c *postgres.ReplyClaim, to address, final call) *postgres.ReplyOutcome {
	token := account.Key(channel.RoleBotToken)
	said := map[string]any{}
	if to.guest != "" || !placed(said, c.Draft.ProviderID, to) {
		return nil
	}
	if c.Draft.Late {
		_, _ = t.client.call(ctx, token, "deleteMessage", said) // best effort: else what was written stays
		return nil
	}
	edit := func(text call) (answer, *postgres.ReplyOutcome) {
		for _, key := range []string{"text", "parse_mode", "link_preview_options"} {
			delete(said, key)
			if value, ok := text.parameters[key]; ok {
				said[key] = value
			}
		}
		if said["reply_markup"] = text.parameters["reply_markup"]; said["reply_markup"] == nil {
			said["reply_markup"] = map[string]any{"inline_keyboard": []any{}}
		}
		a, err := t.do(ctx, token, call{method: "editMessageText", parameters: said})
		if err != nil {
			return a, &postgres.ReplyOutcome{State: harness.ReplyPlanned, Reason: "Telegram's answer was lost; the draft is edited again"}
		}
		if a.code == http.StatusBadRequest && a.movedTo == 0 {
			return a, nil
		}
		o := t.judge(account, c, to, a)
		switch {
		case a.ok:
			o.ProviderID = c.Draft.ProviderID
		case a.code >= http.StatusInternalServerError:
			o.State, o.Final = harness.ReplyPlanned, false
		}
		return a, &o
	}
	if _, done := edit(final); done != nil {
		return done
	}
	// A message that says so already is refused like one that is gone, and like
	// marks that cannot be read. One more draft tells them apart.
	still, ok := drafted(c.Text)
	if !ok {
		return nil
	}
	if a, done := edit(call{parameters: map[string]any{"text": still, "link_preview_options": final.parameters["link_preview_options"]}}); done == nil || !a.ok {
		return done
	}
	if _, done := edit(final); done != nil {
		return done
	}
	plain := *c
	plain.Format = harness.FormatPlain
	without, refusal := t.prepare(ctx, &plain, to)
	if refusal != nil {
		return nil
	}
	_, done := edit(without)
	return done
}
