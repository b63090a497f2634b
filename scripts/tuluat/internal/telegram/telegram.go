// Package telegram is the little of the Bot API that an operator needs.
package telegram

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// DefaultURL is the vendor's.
const DefaultURL = "https://api.telegram.org"

// Kinds are the kinds of updates that telegram-ingest handles.
func Kinds() []string {
	return []string{
		"message", "edited_message", "channel_post", "edited_channel_post", "callback_query", "message_reaction", "my_chat_member",
		"business_connection", "business_message", "edited_business_message", "deleted_business_messages", "guest_message",
	}
}

// onlyByName are the kinds that do not come by default (Bot API, setWebhook).
func onlyByName() []string {
	return []string{"chat_member", "message_reaction", "message_reaction_count"}
}

// Missing are the Kinds that a webhook with these allowed_updates does not get.
// An empty list is the vendor's default.
func Missing(allowed []string) []string {
	return slices.DeleteFunc(Kinds(), func(kind string) bool {
		if len(allowed) == 0 {
			return !slices.Contains(onlyByName(), kind)
		}
		return slices.Contains(allowed, kind)
	})
}

// Path is where a bot's updates go, below the public base URL.
func Path(bot string) string { return "/api/v1/channels/telegram/webhook/" + url.PathEscape(bot) }

// Base is base without an ending that is a beginning of the bot's Path, be it
// the whole or down to /api/v1: what Path adds is not there twice.
func Base(base, bot string) string {
	for path := Path(bot); strings.Count(path, "/") > 1; path = path[:strings.LastIndexByte(path, '/')] {
		if rest, ok := strings.CutSuffix(base, path); ok {
			return rest
		}
	}
	return base
}

// Client speaks for one bot.
type Client struct {
	base  string
	token harness.Secret
	http  *http.Client
}

// New returns a client of the API at base.
func New(base string, token harness.Secret) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, harness.Errorf(harness.Invalid, "the API's URL must be absolute, http or https")
	}
	return &Client{base: strings.TrimSuffix(base, "/"), token: token, http: &http.Client{
		Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the token is in the URL
	}}, nil
}

// Refusal is an answer of the API that is not a success.
type Refusal struct {
	Code        int    `json:"error_code"`
	Description string `json:"description"`
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("the Bot API answered %d: %s", r.Code, r.Description)
}

// call calls a method. No error holds the token.
func (c *Client) call(ctx context.Context, method string, params map[string]any, result any) (string, error) {
	body, err := json.Marshal(params)
	if err != nil {
		return "", err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/bot"+c.token.Reveal()+"/"+method, bytes.NewReader(body))
	if err != nil {
		return "", harness.Errorf(harness.Invalid, "the bot's token does not fit into a URL")
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		if in, ok := errors.AsType[*url.Error](err); ok {
			err = in.Err // without the URL
		}
		return "", fmt.Errorf("%s does not answer: %w", c.base, err)
	}
	defer response.Body.Close()
	var answer struct {
		Refusal
		OK     bool            `json:"ok"`
		Result json.RawMessage `json:"result"`
	}
	err = json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&answer)
	switch {
	case err != nil:
		return "", &Refusal{response.StatusCode, "no JSON: is this the Bot API?"}
	case !answer.OK:
		return "", &answer.Refusal
	case result == nil:
		return answer.Description, nil
	}
	return answer.Description, json.Unmarshal(answer.Result, result)
}

// Me returns the bot's username.
func (c *Client) Me(ctx context.Context) (string, error) {
	var me struct{ Username string }
	_, err := c.call(ctx, "getMe", nil, &me)
	return me.Username, err
}

// Webhook is what the API says of a bot's webhook.
type Webhook struct {
	URL            string   `json:"url"`
	Pending        int      `json:"pending_update_count"`
	LastErrorAt    int64    `json:"last_error_date,omitempty"` // Unix seconds
	LastError      string   `json:"last_error_message,omitempty"`
	MaxConnections int      `json:"max_connections,omitempty"`
	Allowed        []string `json:"allowed_updates,omitempty"`
}

// Webhook returns how the webhook stands.
func (c *Client) Webhook(ctx context.Context) (Webhook, error) {
	var w Webhook
	_, err := c.call(ctx, "getWebhookInfo", nil, &w)
	return w, err
}

// SetWebhook sets it. What waits is kept unless drop says otherwise. It returns
// what the API says.
func (c *Client) SetWebhook(ctx context.Context, to string, secret harness.Secret, connections int, drop bool) (string, error) {
	params := map[string]any{"url": to, "secret_token": secret.Reveal(), "allowed_updates": Kinds()}
	if connections > 0 {
		params["max_connections"] = connections
	}
	if drop {
		params["drop_pending_updates"] = true
	}
	return c.call(ctx, "setWebhook", params, nil)
}

// DeleteWebhook takes it away.
func (c *Client) DeleteWebhook(ctx context.Context, drop bool) (string, error) {
	params := map[string]any{}
	if drop {
		params["drop_pending_updates"] = true
	}
	return c.call(ctx, "deleteWebhook", params, nil)
}
