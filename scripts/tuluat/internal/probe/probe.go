// Package probe asks a running system and the providers behind its channels
// whether they fit together. No probe starts a turn.
package probe

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"tuluat.ai/harness/scripts/tuluat/internal/telegram"
	"tuluat.ai/harness/shared/harness"
)

// WhatsAppPath is where WhatsApp's webhooks go, below the system's base URL.
const WhatsAppPath = "/api/v1/channels/whatsapp/webhook"

// Client makes probes.
type Client struct{ http *http.Client }

// answerTime bounds one probe: the system may have to start a process first.
const answerTime = 20 * time.Second

// New returns a client.
func New() *Client {
	return &Client{&http.Client{Timeout: answerTime, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// do makes a request and returns status and the first part of the body. Errors
// do not hold the URL: it may hold a token.
func (c *Client) do(ctx context.Context, method, to string, body []byte, header map[string]string) (int, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, to, bytes.NewReader(body))
	if err != nil {
		return 0, nil, harness.Errorf(harness.Invalid, "the URL cannot be used")
	}
	for name, value := range header {
		request.Header.Set(name, value)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		if in, ok := errors.AsType[*url.Error](err); ok {
			err = in.Err
		}
		return 0, nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	return response.StatusCode, text, err
}

// Reach reports whether anything answers at base.
func (c *Client) Reach(ctx context.Context, base string) error {
	_, _, err := c.do(ctx, http.MethodGet, base, nil, nil)
	return err
}

// sign is WhatsApp's signature.
func sign(secret harness.Secret, body []byte) string {
	mac := hmac.New(sha256.New, []byte(secret.Reveal()))
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// WhatsApp posts a webhook that holds nothing and returns the answer's status.
func (c *Client) WhatsApp(ctx context.Context, base string, secret harness.Secret) (int, error) {
	body := []byte(`{"object":"whatsapp_business_account","entry":[]}`)
	status, _, err := c.do(ctx, http.MethodPost, base+WhatsAppPath, body, map[string]string{"X-Hub-Signature-256": sign(secret, body)})
	return status, err
}

// Handshake asks for the challenge as Meta does when a webhook is registered.
func (c *Client) Handshake(ctx context.Context, base string, token harness.Secret) (int, error) {
	challenge := "1158201444"
	query := url.Values{"hub.mode": {"subscribe"}, "hub.challenge": {challenge}, "hub.verify_token": {token.Reveal()}}
	status, text, err := c.do(ctx, http.MethodGet, base+WhatsAppPath+"?"+query.Encode(), nil, nil)
	if err == nil && status == http.StatusOK && string(text) != challenge {
		return status, fmt.Errorf("the answer is not the challenge")
	}
	return status, err
}

// Telegram posts an update that holds nothing but its id.
func (c *Client) Telegram(ctx context.Context, base, bot string, secret harness.Secret) (int, error) {
	status, _, err := c.do(ctx, http.MethodPost, base+telegram.Path(bot), []byte(`{"update_id":0}`), map[string]string{"X-Telegram-Bot-Api-Secret-Token": secret.Reveal()})
	return status, err
}

// Forged is a secret that nobody has.
func Forged() harness.Secret { return harness.Secret("forged-" + rand.Text()) }

// Number is what the Graph API says of a phone number.
type Number struct {
	ID      string `json:"id"`
	Phone   string `json:"display_phone_number"`
	Webhook struct {
		Number string `json:"phone_number"`
	} `json:"webhook_configuration"`
}

// GraphError is an error of the Graph API.
type GraphError struct {
	Status  int
	Code    int
	Message string
}

func (e *GraphError) Error() string {
	return fmt.Sprintf("the Graph API answered %d, code %d: %s", e.Status, e.Code, e.Message)
}

// Graph asks the Graph API at base for a number.
func (c *Client) Graph(ctx context.Context, base, version, number string, token harness.Secret) (Number, error) {
	at := strings.TrimSuffix(base, "/") + "/" + version + "/" + url.PathEscape(number) + "?fields=id,display_phone_number,webhook_configuration"
	status, text, err := c.do(ctx, http.MethodGet, at, nil, map[string]string{"Authorization": "Bearer " + token.Reveal()})
	if err != nil {
		return Number{}, fmt.Errorf("%s does not answer: %w", base, err)
	}
	if status != http.StatusOK {
		var refused struct {
			Error struct {
				Code    int
				Message string
			}
		}
		_ = json.Unmarshal(text, &refused) // proxies answer in HTML; the status is enough
		return Number{}, &GraphError{status, refused.Error.Code, refused.Error.Message}
	}
	var n Number
	if err := json.Unmarshal(text, &n); err != nil {
		return n, &GraphError{Status: status, Message: "no JSON: is this the Graph API?"}
	}
	return n, nil
}
