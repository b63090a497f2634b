package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/dial"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// callback speaks to the receivers of replies.
type callback struct {
	client *http.Client
}

// callTime bounds one request to a receiver.
const callTime = 10 * time.Second

// headerMessageID is how a receiver may say what it calls a reply.
const headerMessageID = "X-Tuluat-Message-Id"

// replyBody is what a receiver is POSTed.
type replyBody struct {
	MessageID     harness.ReplyID   `json:"messageId"` // of this part; repeated by a repeat
	Session       harness.SessionID `json:"session"`
	Chat          string            `json:"chat"`
	ChannelUserID string            `json:"channelUserId"`
	Text          string            `json:"text"`
	Part          int               `json:"part"`
	Parts         int               `json:"parts"`
	Choices       []harness.Choice  `json:"choices,omitempty"` // what the person may tap; a tap comes back as a message of that title, with the id as selectionId of its metadata
	InReplyTo     string            `json:"inReplyTo"`         // the messageId that it answers
}

// spoken is a part in words: this channel carries no files.
func spoken(r *postgres.ReplyClaim) string {
	if r.Kind == harness.ReplyFile && r.Attachment != nil {
		return "[The agent made the file " + r.Attachment.FileName + ", which this channel cannot carry.]"
	}
	return r.Text
}

func newCallback(allowPrivate bool) *callback {
	return &callback{client: &http.Client{
		Transport:     dial.Transport(callTime, allowPrivate),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (c *callback) close() { c.client.CloseIdleConnections() }

// post sends one part. Only a 2xx says that it arrived, and only an answer that
// refuses it, or no connection at all, that it did not.
func (c *callback) post(ctx context.Context, r *postgres.ReplyClaim, key harness.Secret) postgres.ReplyOutcome {
	body, err := json.Marshal(replyBody{
		MessageID: r.ID, Session: r.Session.ID, Chat: r.Session.Chat, ChannelUserID: r.ChannelUserID,
		Text: spoken(r), Part: r.Part, Parts: r.Parts, Choices: r.Choices, InReplyTo: r.InReplyTo,
	})
	if err != nil {
		return channel.Failed("the reply cannot be written as JSON")
	}
	target, err := callbackURL(r.Spec.CallbackURL)
	if err != nil {
		return channel.Failed(err.Error())
	}
	response, err := c.do(ctx, http.MethodPost, target, body, key, r) //nolint:bodyclose // do has read and closed it
	if err != nil {
		return unanswered(err)
	}
	switch status := response.StatusCode; {
	case status/100 == 2:
		return postgres.ReplyOutcome{State: harness.ReplySent, ProviderID: providerID(response.Header, r.ID)}
	case status == http.StatusTooManyRequests || status == http.StatusTooEarly:
		return postgres.ReplyOutcome{State: harness.ReplyPlanned, Reason: answered(status), Retry: retryAfter(response.Header, r.At)}
	case status/100 == 4 && status != http.StatusRequestTimeout:
		return channel.Failed(answered(status))
	default: // a gateway may say this after the receiver took it
		return postgres.ReplyOutcome{State: harness.ReplyUnknown, Reason: answered(status), Retry: retryAfter(response.Header, r.At)}
	}
}

// has asks the receiver whether an earlier attempt arrived. A 404 says no, and
// any other answer that it cannot tell: then the part is sent again under its
// one Idempotency-Key.
func (c *callback) has(ctx context.Context, r *postgres.ReplyClaim, key harness.Secret) (bool, string) {
	target, err := callbackURL(r.Spec.CallbackURL)
	if err != nil {
		return false, ""
	}
	query := target.Query()
	query.Set("reply", string(r.ID))
	target.RawQuery = query.Encode()
	response, err := c.do(ctx, http.MethodGet, target, nil, key, r) //nolint:bodyclose // do has read and closed it
	if err != nil || response.StatusCode != http.StatusOK || response.Header.Get(headerMessageID) == "" {
		return false, "" // many servers say 200 to anything: only one that names the reply knows it
	}
	return true, providerID(response.Header, r.ID)
}

// do sends one signed request and reads the answer's head; its body is
// discarded.
func (c *callback) do(ctx context.Context, method string, target *url.URL, body []byte, key harness.Secret, r *postgres.ReplyClaim) (*http.Response, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTime, fmt.Errorf("callback deadline of %s", callTime))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	// With a body it could read again, Go's client sends a request that has an
	// Idempotency-Key once more by itself when the connection breaks. Whether it
	// arrived is asked, never guessed.
	request.GetBody = nil
	signed := replyContent(body)
	if method == http.MethodGet {
		signed = []byte(target.RequestURI())
	}
	sign(request.Header, key, r.At, signed)
	request.Header.Set("User-Agent", "tuluat-harness")
	request.Header.Set("Idempotency-Key", string(r.ID))
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/json")
	}
	if r.TraceParent != "" {
		request.Header.Set("Traceparent", r.TraceParent)
	}
	response, err := c.client.Do(request)
	if err != nil {
		return nil, err
	}
	// The status is the answer. Reading a little of the body lets the connection
	// be used again; a longer one is cut.
	_, _ = io.CopyN(io.Discard, response.Body, 64<<10)
	return response, response.Body.Close()
}

func callbackURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, errors.New("the hook's callbackURL is not an absolute http or https address")
	}
	return u, nil
}

func answered(status int) string { return fmt.Sprintf("the receiver answered %d", status) }

func providerID(h http.Header, reply harness.ReplyID) string {
	id := h.Get(headerMessageID)
	if id == "" || len(id) > maxID || !utf8.ValidString(id) || strings.ContainsFunc(id, unicode.IsControl) {
		return string(reply)
	}
	return id
}

// unanswered judges a request without an answer. Where no connection came
// about, nothing was sent.
func unanswered(err error) postgres.ReplyOutcome {
	if errors.Is(err, dial.ErrPrivate) {
		return channel.Failed("the callback's address is not public: private, loopback and link-local addresses are refused")
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return channel.Again(harness.ReplyPlanned, "the receiver cannot be reached")
	}
	return channel.Again(harness.ReplyUnknown, "the receiver's answer was lost")
}
