// Package api is the client of the management API: typed, over HTTP, with
// problems as errors and streams that resume.
package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// Options say which API to speak to and as whom.
type Options struct {
	URL       string                         // of the system, without /api/v1
	Token     func() (harness.Secret, error) // asked before every request, since tokens in files are renewed
	CA        string                         // file with the certificates to trust beside the system's; empty: none
	PlainHTTP bool                           // a token may go unencrypted to another machine
	UserAgent string
}

// Client speaks to one API.
type Client struct {
	base      string
	token     func() (harness.Secret, error)
	userAgent string
	http      *http.Client

	// Waiting, which tests shorten.
	tryTime    time.Duration // of one request; a function that sleeps is started in it
	firstPause time.Duration
	lastPause  time.Duration
	idleTime   time.Duration // a stream with no heartbeat for so long is dead
	giveUp     time.Duration // a stream that cannot be opened for so long stays lost
}

const (
	tries      = 4
	maxBody    = 64 << 20
	maxWait    = 15 * time.Second // a longer Retry-After is the caller's to wait for
	tryTime    = 60 * time.Second
	firstPause = 200 * time.Millisecond
	lastPause  = 3 * time.Second
	idleTime   = 60 * time.Second
	GiveUp     = 2 * time.Minute // what follows gives up after so long without an answer
)

// ErrPlainHTTP says that a token would go unencrypted over a network.
var ErrPlainHTTP = &harness.Error{Kind: harness.Invalid, Message: "a token is not sent unencrypted to another machine: use https"}

// New returns a client; it speaks to nobody yet.
func New(o Options) (*Client, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, harness.Errorf(harness.Invalid, "the system's URL must be absolute, http or https, without user and query")
	}
	if u.Scheme == "http" && !loopback(u.Hostname()) && !o.PlainHTTP {
		return nil, ErrPlainHTTP
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if o.CA != "" {
		if transport.TLSClientConfig, err = trusting(o.CA); err != nil {
			return nil, err
		}
	}
	return &Client{
		base: strings.TrimSuffix(o.URL, "/"), token: o.Token, userAgent: o.UserAgent,
		http: &http.Client{
			Transport: transport,
			// A redirect would take the request elsewhere than the person said.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		tryTime: tryTime, firstPause: firstPause, lastPause: lastPause, idleTime: idleTime, giveUp: GiveUp,
	}, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || ip != nil && ip.IsLoopback()
}

func trusting(file string) (*tls.Config, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(text) {
		return nil, harness.Errorf(harness.Invalid, "%s holds no certificate", file)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// URL is where the system is.
func (c *Client) URL() string { return c.base }

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call is one request.
type call struct {
	method, path string // path from /api/v1
	query        url.Values
	header       http.Header
	body         any      // written as JSON
	document     Document // sent as it is
	repeatable   bool     // doing it twice is doing it once
}

// answer is a success.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// do asks until there is an answer that is worth having: what can be repeated is
// tried again when the connection or the server fails, and everything when the
// server says that it did nothing yet.
func (c *Client) do(ctx context.Context, r call) (answer, error) {
	pause := c.firstPause
	for try := 1; ; try++ {
		a, err := c.try(ctx, r)
		if err == nil || try == tries || ctx.Err() != nil || !again(err, r.repeatable) {
			return a, err
		}
		wait := pause
		if p, ok := errors.AsType[*Problem](err); ok && p.RetryAfter > 0 {
			if wait = p.RetryAfter; wait > maxWait {
				return a, err
			}
		}
		select {
		case <-time.After(wait):
			pause = min(2*pause, c.lastPause)
		case <-ctx.Done():
			return a, ctx.Err()
		}
	}
}

// again reports whether another try may help and cannot harm.
func again(err error, repeatable bool) bool {
	if p, ok := errors.AsType[*Problem](err); ok {
		switch p.Status {
		case http.StatusTooManyRequests: // refused before anything was done
			return true
		case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return repeatable
		}
		return false
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, errForeign) {
		return false
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return false
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return false
	}
	_, ok := errors.AsType[*url.Error](err)
	return ok && repeatable
}

// errForeign says that what answers is something else.
var errForeign = errors.New("what answers is not the management API: is the URL right?")

func (c *Client) try(ctx context.Context, r call) (answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.tryTime, fmt.Errorf("no answer within %s", c.tryTime))
	defer cancel()
	response, err := c.send(ctx, r)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w (%w)", cause, err)
		}
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody+1))
	if err != nil {
		return answer{}, &url.Error{Op: r.method, URL: c.base + r.path, Err: err}
	}
	if len(body) > maxBody {
		return answer{}, fmt.Errorf("the answer is larger than %d MiB: ask for less", maxBody>>20)
	}
	return answer{response.StatusCode, response.Header, body}, nil
}

// send does one request. The answer is a success; all else is a *Problem.
func (c *Client) send(ctx context.Context, r call) (*http.Response, error) {
	d := r.document
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		d = Document{"application/json", text}
	}
	address := c.base + prefix + r.path
	if len(r.query) > 0 {
		address += "?" + r.query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, r.method, address, bytes.NewReader(d.Text))
	if err != nil {
		return nil, err
	}
	for name, values := range r.header {
		request.Header[name] = values
	}
	if request.Header.Get("Accept") == "" {
		request.Header.Set("Accept", "application/json, application/problem+json")
	}
	if d.Type != "" {
		request.Header.Set("Content-Type", d.Type)
	}
	request.Header.Set("User-Agent", c.userAgent)
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token.Reveal())
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode/100 == 2 {
		return response, nil
	}
	defer response.Body.Close()
	return nil, readProblem(response)
}

const prefix = "/api/v1"

// decode reads a JSON answer.
func decode[T any](a answer, err error) (T, answer, error) {
	var into T
	if err != nil {
		return into, a, err
	}
	if err := json.Unmarshal(a.body, &into); err != nil {
		return into, a, fmt.Errorf("%w (%w)", errForeign, err)
	}
	return into, a, nil
}

// path joins segments, each as it is.
func path(segments ...string) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteString("/" + url.PathEscape(s))
	}
	return b.String()
}

// keyed is a header with a fresh idempotency key: a create whose answer was lost
// is repeated under it.
func keyed(now time.Time) http.Header {
	return http.Header{"Idempotency-Key": {harness.NewID("cli", now)}}
}
