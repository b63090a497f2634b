package whatsapp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
)

// GraphOptions are what Graph needs.
type GraphOptions struct {
	BaseURL string // such as https://graph.facebook.com
	Version string // such as v25.0
	Objects channel.Objects
	Log     *slog.Logger
	// MaxMedia is the largest file that is fetched, in bytes.
	MaxMedia int64
}

// Graph speaks to the provider's Graph API: it sends, shows presence and
// fetches files.
type Graph struct {
	GraphOptions
	client *http.Client
}

var (
	_ channel.Transport  = (*Graph)(nil)
	_ channel.Presence   = (*Graph)(nil)
	_ channel.Downloader = (*Graph)(nil)
)

// The times of one call.
const (
	sendTime   = 15 * time.Second
	uploadTime = 2 * time.Minute  // of up to 100 MB
	headTime   = 45 * time.Second // from the end of a request to the head of its answer
)

// maxAnswer is how much of an answer is read, in bytes.
const maxAnswer = 64 << 10

// NewGraph makes no connection. Close it.
func NewGraph(o GraphOptions) *Graph {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 8
	transport.ResponseHeaderTimeout = headTime
	o.BaseURL = strings.TrimRight(o.BaseURL, "/")
	return &Graph{GraphOptions: o, client: &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // a redirect could carry the token away
	}}
}

// Close ends idle connections.
func (g *Graph) Close() { g.client.CloseIdleConnections() }

// reply is what came of one call. Neither it nor its error holds the token or an
// address.
type reply struct {
	status int
	body   []byte
	wrote  bool  // the request may have been received
	err    error // there was no answer
}

// post calls path below the account's number.
func (g *Graph) post(ctx context.Context, account *channel.Account, path, contentType string, body io.Reader, size int64, limit time.Duration) reply {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("whatsapp deadline of %s", limit))
	defer cancel()
	var wrote atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		// Headers are on their way when they are written, the body with them.
		WroteHeaders: func() { wrote.Store(true) },
		WroteRequest: func(httptrace.WroteRequestInfo) { wrote.Store(true) },
	})
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, g.address(account.Name, path), body)
	if err != nil {
		return reply{err: withoutURL(err)}
	}
	request.ContentLength = size
	request.Header.Set("Content-Type", contentType)
	g.authorize(request, account)
	response, err := g.client.Do(request)
	if err != nil {
		return reply{wrote: wrote.Load(), err: withoutURL(err)}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return reply{wrote: true, err: withoutURL(err)}
	}
	return reply{status: response.StatusCode, body: text, wrote: true}
}

func (g *Graph) postJSON(ctx context.Context, account *channel.Account, message outgoing) reply {
	message.Product = "whatsapp"
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(message); err != nil {
		return reply{err: err}
	}
	return g.post(ctx, account, "messages", "application/json", bytes.NewReader(body.Bytes()), int64(body.Len()), sendTime)
}

func (g *Graph) address(parts ...string) string {
	text := g.BaseURL + "/" + url.PathEscape(g.Version)
	for _, part := range parts {
		text += "/" + url.PathEscape(part)
	}
	return text
}

func (g *Graph) authorize(request *http.Request, account *channel.Account) {
	request.Header.Set("Authorization", "Bearer "+account.Key(channel.RoleAccessToken).Reveal())
	request.Header.Set("User-Agent", "tuluat-harness")
}

// withoutURL takes the address out of an error of the HTTP client: addresses of
// files open them.
func withoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// fault is an error as the provider tells it. code 0 with known false: the
// answer was none of its own, but an edge's or a proxy's.
type fault struct {
	known         bool
	code, subcode int
	transient     bool
	reason        string
}

func (r reply) fault() fault {
	if !json.Valid(r.body) {
		return fault{}
	}
	e := whole(r.body).get("error")
	if e.kind() != '{' {
		return fault{}
	}
	f := fault{known: !e.get("code").absent(), code: code(e.get("code")), subcode: code(e.get("error_subcode")), transient: e.get("is_transient").isTrue()}
	f.reason = line(e.get("error_data", "details").text(), maxLine)
	if f.reason == "" {
		f.reason = line(e.get("message").text(), maxLine)
	}
	return f
}

// errorKind is the class of a failed call for those who only need that.
func (r reply) errorKind() harness.Kind {
	switch {
	case r.err != nil, r.status >= 500, r.status == http.StatusTooManyRequests:
		return harness.Unavailable
	case r.status == http.StatusUnauthorized, r.status == http.StatusForbidden:
		return harness.Denied
	case r.status == http.StatusNotFound:
		return harness.NotFound
	}
	return harness.Invalid
}
