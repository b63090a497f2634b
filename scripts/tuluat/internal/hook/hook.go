// Package hook is the client of a webhook channel: it signs and sends messages
// and follows the stream of a chat.
package hook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// Client speaks to one hook.
type Client struct {
	base   string
	secret harness.Secret
	http   *http.Client
	now    func() time.Time
}

// sendTime bounds one POST. A stream has no bound but its context.
const sendTime = 30 * time.Second

// New returns a client of the hook called name of the system at base.
func New(base, name string, secret harness.Secret, now func() time.Time) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, harness.Errorf(harness.Invalid, "the system's URL must be absolute, http or https")
	}
	return &Client{base: strings.TrimSuffix(base, "/") + "/api/v1/channels/webhook/" + url.PathEscape(name), secret: secret, http: &http.Client{}, now: now}, nil
}

// Problem is an answer that is not a success.
type Problem struct {
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

func (p *Problem) Error() string { return fmt.Sprintf("the hook answered %d: %s", p.Status, p.Detail) }

// Message is what a person says.
type Message struct {
	MessageID     string `json:"messageId"` // a repeat with the same id has no effect
	ChannelUserID string `json:"channelUserId"`
	Chat          string `json:"chat"`
	Text          string `json:"text"`

	Metadata map[string]string `json:"metadata,omitempty"` // selectionId: of the choice that the text is the title of
}

// Receipt says that a message is taken.
type Receipt struct {
	Session   harness.SessionID `json:"session"`
	Message   harness.MessageID `json:"message"`
	Duplicate bool              `json:"duplicate"`
}

// Send hands in m.
func (c *Client) Send(ctx context.Context, m Message) (Receipt, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return Receipt{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, sendTime, fmt.Errorf("no answer within %s", sendTime))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base, bytes.NewReader(body))
	if err != nil {
		return Receipt{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.do(request, body)
	if err != nil {
		return Receipt{}, err
	}
	defer response.Body.Close()
	var receipt Receipt
	err = json.NewDecoder(io.LimitReader(response.Body, 64<<10)).Decode(&receipt)
	if err == nil && receipt.Message == "" {
		err = fmt.Errorf("the answer names no message: is this a tuluat system?")
	}
	return receipt, err
}

// do signs and sends request; content is what the signature covers.
func (c *Client) do(request *http.Request, content []byte) (*http.Response, error) {
	timestamp := strconv.FormatInt(c.now().Unix(), 10)
	mac := hmac.New(sha256.New, []byte(c.secret.Reveal()))
	mac.Write([]byte(timestamp + "."))
	mac.Write(content)
	request.Header.Set("X-Tuluat-Timestamp", timestamp)
	request.Header.Set("X-Tuluat-Signature", "v1="+hex.EncodeToString(mac.Sum(nil)))
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode/100 == 2 {
		return response, nil
	}
	defer response.Body.Close()
	problem := &Problem{Detail: http.StatusText(response.StatusCode)}
	// Not every server in between answers with a problem; the status is enough.
	_ = json.NewDecoder(io.LimitReader(response.Body, 64<<10)).Decode(problem)
	problem.Status = response.StatusCode
	return nil, problem
}
