package telegram

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// The longest that one call may take, within the time of a sender's attempt.
// Files take theirs to be uploaded.
const (
	callTime   = 20 * time.Second
	uploadTime = 2 * time.Minute
)

// maxAnswer is more than the 4 MiB that getUpdates answers with at most.
const maxAnswer = 8 << 20

// Client calls the Bot API. The address of every call holds the bot's token: no
// error of it shows an address.
type Client struct {
	base string
	http *http.Client
}

// NewClient calls the Bot API at base, such as https://api.telegram.org.
func NewClient(base string) *Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 16
	// Shorter than servers keep theirs: a message written to a connection that is
	// being closed may have been sent or not.
	transport.IdleConnTimeout = 20 * time.Second
	return &Client{base: strings.TrimRight(base, "/"), http: &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close frees idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// answer is what Telegram said to a call.
type answer struct {
	code        int // its error_code, else the HTTP status; 200 when ok
	ok          bool
	result      json.RawMessage
	description string // for people; nothing depends on it
	retryAfter  time.Duration
	movedTo     int64 // the supergroup that the chat has become
}

// lostError says that a call has no answer.
type lostError struct {
	written bool // Telegram may have the request, and have done what it says
	err     error
}

func (l *lostError) Error() string { return l.err.Error() }
func (l *lostError) Unwrap() error { return l.err }

// maybeDone reports whether a call that came to err may have been carried out.
func maybeDone(err error) bool {
	lost, ok := errors.AsType[*lostError](err)
	return ok && lost.written
}

// call calls a method with parameters. An error says that there is no answer.
func (c *Client) call(ctx context.Context, token harness.Secret, method string, parameters map[string]any) (answer, error) {
	body, err := json.Marshal(parameters)
	if err != nil {
		return answer{}, &lostError{err: fmt.Errorf("%s: its parameters cannot be written as JSON", method)}
	}
	return c.post(ctx, token, method, bytes.NewReader(body), "application/json", int64(len(body)))
}

func (c *Client) post(ctx context.Context, token harness.Secret, method string, body io.Reader, contentType string, size int64) (answer, error) {
	var written atomic.Bool // set from the connection's goroutine
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { written.Store(true) }})
	lost := func(err error) error {
		return &lostError{written: written.Load(), err: fmt.Errorf("%s: %w", method, hide(err, token))}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/bot"+token.Reveal()+"/"+method, body)
	if err != nil {
		return answer{}, lost(err)
	}
	request.ContentLength = size
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("User-Agent", "tuluat-harness")
	response, err := c.http.Do(request)
	if err != nil {
		return answer{}, lost(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return answer{}, lost(err)
	}
	a, readable := readAnswer(response.StatusCode, text)
	if !readable {
		return answer{}, lost(fmt.Errorf("an answer of status %d that is not the Bot API's", response.StatusCode))
	}
	return a, nil
}

// readAnswer reads the envelope of an answer. One of a proxy in between counts
// by its status, unless that is a success.
func readAnswer(status int, text []byte) (answer, bool) {
	a := answer{code: status}
	var envelope map[string]json.RawMessage // exact keys, and the result as it came
	if json.Unmarshal(text, &envelope) != nil || envelope == nil {
		return a, status/100 != 2
	}
	a.ok = string(envelope["ok"]) == "true"
	a.result = envelope["result"]
	rest := object{}
	for _, key := range []string{"error_code", "description", "parameters"} {
		if value, err := decode(envelope[key]); err == nil {
			rest[key] = value
		}
	}
	if a.ok {
		a.code = http.StatusOK
		return a, status/100 == 2
	}
	if code := rest.int("error_code"); code >= 100 && code <= 999 {
		a.code = int(code)
	}
	a.description = shorten(harness.CleanText(rest.text("description")), maxName)
	parameters := rest.object("parameters")
	a.retryAfter = time.Duration(min(max(parameters.int("retry_after"), 0), int64(longestHold/time.Second))) * time.Second
	a.movedTo = parameters.int("migrate_to_chat_id")
	return a, a.code/100 != 2
}

// said is the answer for people.
func (a answer) said() string {
	if a.description == "" {
		return fmt.Sprintf("Telegram answered %d", a.code)
	}
	return fmt.Sprintf("Telegram answered %d (%s)", a.code, a.description)
}

// hide makes err safe to show: net/http puts the address of a request, and with
// it the token, into its errors.
func hide(err error, token harness.Secret) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if text := fmt.Sprint(err); harness.Redact(text, []harness.Secret{token}) != text {
		return errors.New("the request failed")
	}
	return err
}
