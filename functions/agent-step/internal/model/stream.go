package model

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"
	"unicode"
)

// open passes req on, as send does, and returns its answer as it grows. Until the
// model has said something the limit is that of an answer that has not begun:
// some servers send their header at once and then think. A server that does not
// know of streams answers whole, and its answer is then in x.body.
func (x *exchange) open(req *http.Request, next func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	f := &flow{x: x, ctx: ctx, cancel: cancel, timer: time.AfterFunc(x.limits.Header, func() { cancel(errHeader) })}
	res, err := next(req.WithContext(ctx))
	if err != nil {
		failure := broken(ctxCause(ctx), err, x.names, x.redact)
		f.end()
		return nil, x.fail(failure)
	}
	x.status, x.header, f.from, x.flow = res.StatusCode, res.Header, res.Body, f
	if res.StatusCode < 200 || res.StatusCode > 299 {
		defer f.Close()
		f.idle()
		body, _ := io.ReadAll(f) // what there is of it is enough: the status has said the main thing
		return nil, x.fail(refused(res.StatusCode, res.Header, body, x.names, x.model, x.redact, x.now()))
	}
	body := bufio.NewReader(f)
	whole, err := isWhole(body)
	if err == nil && whole {
		defer f.Close()
		f.idle()
		var text []byte
		if text, err = io.ReadAll(body); err == nil && json.Valid(text) {
			x.body = text
		}
		res.Body = http.NoBody
	} else {
		res.Body = struct {
			io.Reader
			io.Closer
		}{body, f}
	}
	if err != nil || whole && x.body == nil {
		f.Close()
		if x.err == nil {
			x.err = x.notAnAnswer()
		}
		return nil, x.err
	}
	return res, nil
}

// isWhole reports whether what follows is one JSON object, and no events.
func isWhole(body *bufio.Reader) (bool, error) {
	for {
		next, err := body.ReadByte()
		if err != nil {
			return false, err
		}
		if !unicode.IsSpace(rune(next)) {
			return next == '{', body.UnreadByte()
		}
	}
}

// flow is the body of an answer that is read while it is written. What ends it
// early is in x.err.
type flow struct {
	x      *exchange
	ctx    context.Context
	cancel context.CancelCauseFunc
	from   io.ReadCloser
	timer  *time.Timer // ends the call; runs while bytes are awaited
	begun  bool
	size   int64
}

// Read implements io.Reader.
func (f *flow) Read(b []byte) (int, error) {
	n, err := f.from.Read(b)
	if f.size += int64(n); (err == nil || errors.Is(err, io.EOF)) && f.size > f.x.limits.ResponseBytes {
		err = errTooLarge
	}
	switch {
	case err != nil && !errors.Is(err, io.EOF) && f.x.err == nil:
		failure := broken(ctxCause(f.ctx), err, f.x.names, f.x.redact)
		failure.Status = f.x.status
		return n, f.x.fail(failure)
	case n > 0 && f.begun:
		f.timer.Reset(f.x.limits.IdleRead)
	}
	return n, err
}

// Close implements io.Closer.
func (f *flow) Close() error {
	f.end()
	return f.from.Close()
}

func (f *flow) end() {
	f.timer.Stop()
	f.cancel(nil)
}

// idle says that the answer has begun.
func (f *flow) idle() {
	f.begun = true
	f.timer.Reset(f.x.limits.IdleRead)
}

// said hands on what the model has said so far. What its receiver takes for it
// is no silence of the model.
func (x *exchange) said(text string) {
	x.flow.timer.Stop()
	x.partial(text)
	x.flow.idle()
}

// cutOff is a stream that ended before the answer did.
func (x *exchange) cutOff() error {
	if x.err != nil {
		return x.err
	}
	failure := broken(nil, io.ErrUnexpectedEOF, x.names, x.redact)
	failure.Status = x.status
	return x.fail(failure)
}

// interrupted translates an error that came in the place of the rest of an
// answer: its code is the status that it would have had, where it is one.
func (x *exchange) interrupted(said []byte) error {
	d, ok := parseDetail(said)
	if !ok {
		return x.fail(x.notAnAnswer())
	}
	status, err := strconv.Atoi(d.Code)
	if err != nil || status < 400 || status > 599 {
		status = typeStatus(d.Type)
	}
	return x.fail(refused(status, x.header, bytes.TrimSpace(said), x.names, x.model, x.redact, x.now()))
}

// typeStatus is the status that goes with an error's type, where a stream has begun
// with another.
func typeStatus(kind string) int {
	switch kind {
	case "rate_limit_error", "rate_limit_exceeded", "requests", "tokens":
		return http.StatusTooManyRequests
	case "authentication_error":
		return http.StatusUnauthorized
	case "permission_error":
		return http.StatusForbidden
	case "not_found_error":
		return http.StatusNotFound
	case "invalid_request_error":
		return http.StatusBadRequest
	case "overloaded_error":
		return 529
	case "timeout_error":
		return http.StatusRequestTimeout
	}
	return http.StatusBadGateway
}
