package model

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// exchange is one request and its answer. It stands between an SDK and the
// network as a middleware, because what an SDK does there differs: one loses
// the status of an error whose body is not JSON, both refuse JSON that is not
// labelled so, neither bounds what it reads or notices a stalled body.
type exchange struct {
	limits  Limits
	names   names
	model   string
	redact  func(string) string
	now     func() time.Time
	partial func(text string) // not nil: the answer is read as it grows

	status int    // of the answer
	body   []byte // of a success
	header http.Header
	err    *Error // why there is no success
	flow   *flow  // of an answer that is read as it grows
}

// send passes req on and returns its answer whole, or fails with x.err set.
func (x *exchange) send(req *http.Request, next func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	if x.partial != nil {
		return x.open(req, next)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	defer cancel(nil)

	header := time.AfterFunc(x.limits.Header, func() { cancel(errHeader) })
	res, err := next(req.WithContext(ctx))
	header.Stop()
	if err != nil {
		return nil, x.fail(broken(ctxCause(ctx), err, x.names, x.redact))
	}
	defer res.Body.Close()
	x.status, x.header = res.StatusCode, res.Header

	idle := time.AfterFunc(x.limits.IdleRead, func() { cancel(errIdle) })
	body, err := readAll(&progress{from: res.Body, each: func() { idle.Reset(x.limits.IdleRead) }}, x.limits.ResponseBytes)
	idle.Stop()
	if res.StatusCode < 200 || res.StatusCode > 299 {
		// What there is of the body is enough: the status has said the main thing.
		return nil, x.fail(refused(res.StatusCode, res.Header, body, x.names, x.model, x.redact, x.now()))
	}
	if err != nil {
		failure := broken(ctxCause(ctx), err, x.names, x.redact)
		failure.Status = res.StatusCode
		return nil, x.fail(failure)
	}
	if !json.Valid(body) {
		return nil, x.fail(x.notAnAnswer())
	}
	x.body = body
	res.Body = io.NopCloser(bytes.NewReader(body))
	res.ContentLength = int64(len(body))
	res.Header = res.Header.Clone()
	res.Header.Set("Content-Type", "application/json")
	return res, nil
}

func (x *exchange) fail(e *Error) error {
	x.err = e
	return e
}

func (x *exchange) notAnAnswer() *Error {
	return &Error{
		Kind: harness.Unavailable, Reason: ReasonNotAnswer, Status: x.status,
		Message: "what the model server sent is not a model's answer: check " + x.names.baseURL,
	}
}

func ctxCause(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

// progress calls each after every read that brought something.
type progress struct {
	from io.Reader
	each func()
}

func (p *progress) Read(b []byte) (int, error) {
	n, err := p.from.Read(b)
	if n > 0 && err == nil {
		p.each()
	}
	return n, err
}

// readAll reads at most limit bytes; more is errTooLarge.
func readAll(from io.Reader, limit int64) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(from, limit+1))
	if err == nil && int64(len(body)) > limit {
		return body[:limit], errTooLarge
	}
	return body, err
}
