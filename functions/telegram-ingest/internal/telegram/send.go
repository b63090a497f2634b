package telegram

import (
	"context"
	"encoding/json"
	"html"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/channel/markup"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// The limits of one message.
const (
	maxUnits        = 4096     // UTF-16 code units, once tags and entities are gone
	maxMessageBytes = 32 << 10 // as it is sent
	maxCaption      = 1024     // UTF-16 code units
	maxButtons      = 100
	maxButtonData   = 64 // bytes
)

const (
	// longestHold caps what a flood limit may ask for: by then it is asked again.
	longestHold = time.Hour
	// tokenRetry is when a reply is tried again that waits for a bot's token.
	tokenRetry = time.Minute
)

// Transport is the way out.
type Transport struct {
	client  *Client
	objects channel.Objects // nil: files cannot be sent
	log     *slog.Logger

	mu      sync.Mutex
	refused map[string]bool // bots whose token Telegram refuses: said once
}

// NewTransport sends by client. Files are read from objects; nil: there are none.
func NewTransport(client *Client, objects channel.Objects, log *slog.Logger) *Transport {
	return &Transport{client: client, objects: objects, log: log, refused: map[string]bool{}}
}

// Split cuts a text so that each part fits as it is and once it is formatted.
func (t *Transport) Split(text string) []string {
	var parts []string
	for _, part := range markup.Split(text, fits) {
		if markup.Plain(part) != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

func fits(part string) bool {
	if markup.UTF16Len(part) > maxUnits || len(part) > maxMessageBytes {
		return false
	}
	formatted := markup.Telegram(part)
	return len(formatted) <= maxMessageBytes && markup.UTF16Len(visible(formatted)) <= maxUnits
}

// visible returns what Telegram counts of a text in its HTML.
func visible(formatted string) string {
	var text strings.Builder
	for formatted != "" {
		before, rest, _ := strings.Cut(formatted, "<")
		text.WriteString(before)
		_, formatted, _ = strings.Cut(rest, ">")
	}
	return html.UnescapeString(text.String())
}

// call is one prepared call of the Bot API.
type call struct {
	method     string
	parameters map[string]any
	file       *upload // sent with it, nil if none
}

// Send sends one part. A refused call has sent nothing: so that a topic that is
// gone does not cost the answer, it may be followed by one without the topic.
func (t *Transport) Send(ctx context.Context, account *channel.Account, c *postgres.ReplyClaim, begin func(context.Context) error) (postgres.ReplyOutcome, error) {
	token := account.Key(channel.RoleBotToken)
	if token == "" {
		return postgres.ReplyOutcome{State: harness.ReplyPlanned, Reason: "the bot's token is not set", Retry: tokenRetry}, nil
	}
	to, err := parseAddress(c.Address)
	if err != nil {
		return failed(harness.MessageOf(err)), nil
	}
	if c.Callback != "" { // best effort: without it the button shows for a while that something goes on
		_, _ = t.client.call(ctx, token, "answerCallbackQuery", map[string]any{"callback_query_id": c.Callback})
	}
	if c.Kind == harness.ReplyDecision && c.Card != nil {
		if done := t.editCard(ctx, account, c, to); done != nil {
			return *done, nil
		}
	}
	send, refusal := t.prepare(ctx, c, to)
	if refusal == nil && c.Draft != nil && send.file == nil {
		if done := t.endDraft(ctx, account, c, to, send); done != nil {
			return *done, nil
		}
	}
	if refusal != nil {
		return *refusal, nil
	}
	if send.file != nil {
		defer send.file.close()
	}
	if err := begin(ctx); err != nil {
		return postgres.ReplyOutcome{}, err
	}
	a, err := t.do(ctx, token, send)
	if err == nil && a.code == http.StatusBadRequest && a.movedTo == 0 && c.Format == harness.FormatPlain && to.topic != 0 && send.file == nil {
		delete(send.parameters, "message_thread_id")
		a, err = t.do(ctx, token, send)
	}
	if err != nil {
		return unanswered(err), nil
	}
	return t.judge(account, c, to, a), nil
}

// Settle leaves a part that may have been sent as it is: Telegram has neither an
// idempotency key nor a way to ask, and words said twice are worse than a reply
// shown as unknown.
func (t *Transport) Settle(context.Context, *channel.Account, *postgres.ReplyClaim) postgres.ReplyOutcome {
	return postgres.ReplyOutcome{State: harness.ReplyUnknown, Final: true, Reason: "Telegram's answer was lost; the message may have been sent and is not repeated"}
}

func failed(reason string) postgres.ReplyOutcome {
	return postgres.ReplyOutcome{State: harness.ReplyFailed, Reason: reason}
}

// prepare does what can be done before the part may have been sent.
func (t *Transport) prepare(ctx context.Context, c *postgres.ReplyClaim, to address) (call, *postgres.ReplyOutcome) {
	if c.Kind == harness.ReplyFile {
		return t.prepareFile(ctx, c, to)
	}
	text, rich := c.Text, c.Format != harness.FormatPlain
	keyboard := []any{}
	if c.Kind.Tappable() && len(c.Choices) > 0 {
		// A keyboard may be what was refused: plain text offers the choices in words.
		if keyboard = buttons(c.Choices); !rich || len(keyboard) == 0 {
			keyboard = nil
			if c.Kind == harness.ReplyChoices { // a card says itself what to write
				text = numbered(c.Text, c.Choices)
			}
		} else {
			text = described(c.Text, c.Choices)
		}
	}
	said := map[string]any{"link_preview_options": map[string]any{"is_disabled": true}}
	body := markup.Plain(text)
	shown := body
	if formatted := markup.Telegram(text); rich && strings.TrimSpace(visible(formatted)) != "" {
		body, shown = formatted, visible(formatted)
		said["parse_mode"] = "HTML"
	}
	if body == "" {
		outcome := failed("there is nothing to send")
		return call{}, &outcome
	}
	if markup.UTF16Len(shown) > maxUnits || len(body) > maxMessageBytes {
		outcome := failed("the text and its choices do not fit one message")
		return call{}, &outcome
	}
	if len(keyboard) > 0 {
		said["reply_markup"] = map[string]any{"inline_keyboard": keyboard}
	}
	if to.guest != "" {
		return guestAnswer(c, to, body, said)
	}
	said["text"] = body
	addressTo(said, c, to)
	return call{method: "sendMessage", parameters: said}, nil
}

// addressTo says where a message goes, and in a group what it answers.
func addressTo(said map[string]any, c *postgres.ReplyClaim, to address) {
	said["chat_id"] = to.chat
	if to.topic > generalTopic {
		said["message_thread_id"] = to.topic
	}
	if to.direct != 0 {
		said["direct_messages_topic_id"] = to.direct
	}
	if to.business != "" {
		said["business_connection_id"] = to.business
	}
	if id, err := strconv.ParseInt(c.InReplyTo, 10, 64); err == nil && id > 0 && to.group() && c.Part == 1 {
		said["reply_parameters"] = map[string]any{"message_id": id, "allow_sending_without_reply": true}
	}
}

// guestAnswer answers a guest query, which can be done once: the bot is no member
// of the chat and cannot write there otherwise.
func guestAnswer(c *postgres.ReplyClaim, to address, body string, said map[string]any) (call, *postgres.ReplyOutcome) {
	if c.Part > 1 {
		outcome := failed("Telegram takes one message in answer to a guest's question")
		return call{}, &outcome
	}
	result := map[string]any{"type": "article", "id": "1", "title": "Answer"}
	if keyboard, ok := said["reply_markup"]; ok {
		result["reply_markup"] = keyboard
		delete(said, "reply_markup")
	}
	said["message_text"] = body
	result["input_message_content"] = said
	return call{method: "answerGuestQuery", parameters: map[string]any{"guest_query_id": to.guest, "result": result}}, nil
}

func (t *Transport) do(ctx context.Context, token harness.Secret, send call) (answer, error) {
	limit := callTime
	if send.file != nil {
		limit = uploadTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if send.file != nil {
		return send.file.post(ctx, t.client, token, send)
	}
	return t.client.call(ctx, token, send.method, send.parameters)
}

// unanswered judges a call without an answer: only one that Telegram cannot have
// read is made again.
func unanswered(err error) postgres.ReplyOutcome {
	if !maybeDone(err) {
		return postgres.ReplyOutcome{State: harness.ReplyPlanned, Reason: "Telegram cannot be reached"}
	}
	return postgres.ReplyOutcome{State: harness.ReplyUnknown, Final: true, Reason: "Telegram's answer was lost; the message may have been sent and is not repeated"}
}

// judge reads an answer by its numbers; its words are for people.
func (t *Transport) judge(account *channel.Account, c *postgres.ReplyClaim, to address, a answer) postgres.ReplyOutcome {
	o := postgres.ReplyOutcome{State: harness.ReplyFailed, Code: a.code, Reason: a.said()}
	if a.ok {
		t.accepted(account.Name)
		return postgres.ReplyOutcome{State: harness.ReplySent, ProviderID: sentID(a.result)}
	}
	switch {
	case a.code == http.StatusTooManyRequests:
		o.State, o.Retry = harness.ReplyPlanned, max(a.retryAfter, time.Second)
		o.Hold = o.Retry
	case a.code == http.StatusBadRequest && a.movedTo != 0:
		to.chat = a.movedTo
		o.State, o.MovedTo = harness.ReplyPlanned, to.String()
	case (a.code == http.StatusBadRequest || a.code == http.StatusRequestEntityTooLarge) && c.Format != harness.FormatPlain:
		o.State, o.Format = harness.ReplyPlanned, harness.FormatPlain
	case a.code == http.StatusForbidden:
		o.Blocked = o.Reason
	case a.code == http.StatusUnauthorized || a.code == http.StatusNotFound:
		t.tokenRefused(account, a.code)
		o.Reason = "Telegram refuses the bot's token"
	case a.code >= http.StatusInternalServerError:
		o.State, o.Final = harness.ReplyUnknown, true
		o.Reason += "; the message may have been sent and is not repeated"
	}
	return o
}

// sentID returns what Telegram calls the message that was sent.
func sentID(result json.RawMessage) string {
	value, err := decode(result)
	if err != nil {
		return ""
	}
	o := asObject(value)
	if id, ok := o.id("message_id"); ok {
		return decimal(id)
	}
	return opaque(o, "inline_message_id")
}

// tokenRefused says once what to do: every reply of the bot fails until then.
func (t *Transport) tokenRefused(account *channel.Account, code int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refused[account.Name] {
		return
	}
	t.refused[account.Name] = true
	ref := account.Spec.BotToken
	t.log.Error("Telegram refuses the bot's token: get the current one from @BotFather and store it in the agent's botTokenSecretRef",
		"bot", account.Name, "agent", string(account.Agent), "secret", ref.Name, "key", ref.Key, "code", code)
}

func (t *Transport) accepted(bot string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.refused, bot)
}
