package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"time"

	"tuluat.ai/harness/scripts/tuluat/internal/sse"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// errEnd ends a stream that has said that it is over.
var errEnd = errors.New("the session has ended")

// Follow hands every event of a session behind the event called after (empty:
// all) to each, once and in order, until the session has ended (nil), ctx ends,
// each fails, or the API cannot be reached for two minutes. The server ends a
// stream now and then, and a connection may be lost: then it is opened again
// behind the last event; lost is told of what failed.
func (c *Client) Follow(ctx context.Context, id harness.SessionID, after string, each func(sse.Event) error, lost func(error)) error {
	f := &follower{c: c, path: path("sessions", string(id), "events"), place: after, each: each, ends: map[printed]int64{}}
	return f.follow(ctx, lost)
}

// FollowApprovals hands every approval that waits, and then each that is asked for
// or ends, to each, in order, as it is by then; one may come again. It ends as
// Follow does, but for no session's end. agent empty: of all agents.
func (c *Client) FollowApprovals(ctx context.Context, agent string, each func(view.Approval) error, lost func(error)) error {
	f := &follower{c: c, path: path("approvals", "events"), query: query(map[string][]string{"agent": {agent}}), ends: map[printed]int64{}}
	f.each = func(e sse.Event) error {
		if e.Name != "approval" {
			return nil
		}
		var a view.Approval
		if err := json.Unmarshal(e.Data, &a); err != nil {
			return fmt.Errorf("event %s of the stream: %w", e.ID, err)
		}
		return each(a)
	}
	return f.follow(ctx, lost)
}

func (f *follower) follow(ctx context.Context, lost func(error)) error {
	c := f.c
	pause, since := c.firstPause, time.Now()
	for {
		before := f.place
		err := f.once(ctx, func() { since = time.Time{} })
		if f.place != before {
			pause = c.firstPause
		}
		switch {
		case errors.Is(err, errEnd):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case f.failed != nil:
			return f.failed
		case err != nil && refused(err):
			return err
		}
		if since.IsZero() {
			since = time.Now()
		}
		if err != nil {
			if time.Since(since) > c.giveUp {
				return fmt.Errorf("the stream is lost since %s: %w", c.giveUp, err)
			}
			lost(err)
		}
		wait := pause
		if p, ok := errors.AsType[*Problem](err); ok && p.RetryAfter > 0 {
			wait = min(p.RetryAfter, maxWait)
		}
		select {
		case <-time.After(wait):
			pause = min(2*pause, c.lastPause)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Passing reports whether err may pass: the system is away, or busy.
func Passing(err error) bool {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p.Status >= http.StatusInternalServerError || p.Status == http.StatusTooManyRequests
	}
	_, ok := errors.AsType[*url.Error](err)
	return ok
}

// refused reports whether opening a stream would be refused again.
func refused(err error) bool {
	_, answered := errors.AsType[*Problem](err)
	return answered && !Passing(err) || errors.Is(err, errForeign) || harness.KindOf(err) == harness.Invalid
}

// follower is one stream, over all its connections.
type follower struct {
	c      *Client
	path   string
	query  url.Values
	place  string // id of the last event
	each   func(sse.Event) error
	failed error             // of each
	ends   map[printed]int64 // where the output that was handed on ends
	upTo   map[printed]int64 // the same when this connection began: it may tell that much again
}

type printed struct {
	call   harness.ToolCallID
	stream string
}

// once is one connection.
func (f *follower) once(ctx context.Context, opened func()) error {
	f.upTo = maps.Clone(f.ends)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	dead := time.AfterFunc(max(f.c.idleTime, f.c.tryTime), func() { cancel(errors.New("nothing is heard, not even a heartbeat")) })
	defer dead.Stop()
	r := call{method: http.MethodGet, path: f.path, query: f.query, header: http.Header{"Accept": {"text/event-stream, application/problem+json"}}}
	if f.place != "" {
		r.header.Set("Last-Event-ID", f.place)
	}
	response, err := f.c.send(ctx, r)
	if err == nil {
		defer response.Body.Close()
		if response.Header.Get("Content-Type") != "text/event-stream" {
			return errForeign
		}
		opened()
		err = sse.Read(&watched{response.Body, dead, f.c.idleTime}, f.event)
	}
	if cause := context.Cause(ctx); cause != nil && err != nil {
		return cause
	}
	return err
}

// event hands on what is new.
func (f *follower) event(e sse.Event) error {
	if e.ID != "" && e.ID == f.place {
		return nil
	}
	if e.Name == "output" && f.again(&e) {
		return nil
	}
	if err := f.each(e); err != nil {
		f.failed = err
		return err
	}
	if e.ID != "" {
		f.place = e.ID
	}
	if e.Name == "tool_result" {
		for _, stream := range []string{"stdout", "stderr"} {
			delete(f.ends, printed{e.ToolCall, stream})
		}
	}
	if e.Name == "end" {
		return errEnd
	}
	return nil
}

// again reports whether all of an output event was handed on over an earlier
// connection, and cuts off what was: what a running command printed is told
// again to who comes back. Where the output is no text, offsets into it are not
// exact, so only what an earlier connection brought is compared.
func (f *follower) again(e *sse.Event) bool {
	at := printed{e.ToolCall, e.Stream}
	end, known := e.Offset+int64(len(e.Text)), f.upTo[at]
	if end <= known {
		return true
	}
	if e.Offset < known {
		e.Text, e.Offset = e.Text[known-e.Offset:], known
		data, err := json.Marshal(view.StreamOutput{ToolCall: e.ToolCall, Stream: e.Stream, Offset: e.Offset, Text: e.Text})
		if err == nil { // plain values always marshal
			e.Data = data
		}
	}
	delete(f.upTo, at)
	f.ends[at] = end
	return false
}

// watched is a body whose reader is given up on when nothing comes.
type watched struct {
	body interface{ Read([]byte) (int, error) }
	dead *time.Timer
	idle time.Duration
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.body.Read(p)
	w.dead.Reset(w.idle)
	return n, err
}
