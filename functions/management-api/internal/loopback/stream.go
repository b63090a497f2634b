package loopback

import (
	"bytes"
	"context"
	"errors"
	"net/http"
)

// Event is one server-sent event.
type Event struct {
	ID, Name string
	Data     []byte // JSON on one line; empty of a comment, which says that the stream lives
}

// Follow asks api for a stream and hands see what each piece of it holds, in the
// goroutine of the caller: a piece is what the API has written at once, and while
// see works no other comes. It returns when the stream ends, or when see fails. An
// answer that is no stream is returned whole. w is the connection that the events
// are for: its deadlines are the stream's.
func Follow(ctx context.Context, api http.Handler, r Request, w http.ResponseWriter, see func([]Event) error) (Answer, error) {
	q, err := r.request(ctx)
	if err != nil {
		return Answer{}, err
	}
	f := &follower{recorder: recorder{header: http.Header{}}, to: w, see: see}
	api.ServeHTTP(f, q)
	return Answer{Status: f.status, Header: f.header, Body: bytes.TrimSpace(f.body.Bytes())}, f.err
}

// follower reads events out of what is written to it.
type follower struct {
	recorder
	to   http.ResponseWriter
	see  func([]Event) error
	rest []byte // of an event whose end has not come
	err  error
}

// Unwrap is for http.ResponseController: deadlines are those of the connection.
func (f *follower) Unwrap() http.ResponseWriter { return f.to }

// Flush implements http.Flusher: what was seen is sent by who saw it.
func (f *follower) Flush() {}

// maxEvent is far more than an event has.
const maxEvent = 4 << 20

func (f *follower) Write(p []byte) (int, error) {
	if f.header.Get("Content-Type") != "text/event-stream" {
		return f.recorder.Write(p)
	}
	f.WriteHeader(http.StatusOK)
	if f.err != nil {
		return 0, f.err
	}
	f.rest = append(f.rest, p...)
	var events []Event
	for {
		frame, rest, ok := bytes.Cut(f.rest, []byte("\n\n"))
		if !ok {
			break
		}
		f.rest = rest
		events = append(events, parse(frame))
	}
	if f.rest = bytes.Clone(f.rest); len(f.rest) > maxEvent {
		f.err = errTooLong
	} else if len(events) > 0 {
		f.err = f.see(events)
	}
	if f.err != nil {
		return 0, f.err
	}
	return len(p), nil
}

// errTooLong says that an event has no end.
var errTooLong = errors.New("an event of the API is longer than any")

func parse(frame []byte) Event {
	var e Event
	for line := range bytes.Lines(frame) {
		name, value, _ := bytes.Cut(bytes.TrimRight(line, "\n"), []byte(": "))
		switch string(name) {
		case "id":
			e.ID = string(value)
		case "event":
			e.Name = string(value)
		case "data":
			e.Data = bytes.Clone(value)
		}
	}
	return e
}

// Copy asks api and hands on what it answers to w as it comes, once begin has set the
// header. What was refused is returned whole, and w is not written to.
func Copy(ctx context.Context, api http.Handler, r Request, w http.ResponseWriter, begin func()) (Answer, error) {
	q, err := r.request(ctx)
	if err != nil {
		return Answer{}, err
	}
	c := &copier{recorder: recorder{header: http.Header{}}, to: w, begin: begin}
	api.ServeHTTP(c, q)
	return Answer{Status: c.status, Header: c.header, Body: bytes.TrimSpace(c.body.Bytes())}, nil
}

type copier struct {
	recorder
	to    http.ResponseWriter
	begin func()
	begun bool
}

// Unwrap is for http.ResponseController.
func (c *copier) Unwrap() http.ResponseWriter { return c.to }

func (c *copier) Write(p []byte) (int, error) {
	if c.WriteHeader(http.StatusOK); c.status != http.StatusOK {
		return c.recorder.Write(p)
	}
	if !c.begun {
		c.begun = true
		c.begin()
	}
	return c.to.Write(p)
}
