package console

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"tuluat.ai/harness/functions/management-api/internal/loopback"
)

const (
	// paceTime is how soon a browser is told again that something has changed. What
	// happens meanwhile is in what it asks for then.
	paceTime  = 700 * time.Millisecond
	writeTime = 15 * time.Second // a browser that takes nothing for so long is gone
)

// follow tells the browser whenever path of the API's streams has something: event
// changed, and end when nothing follows. What it is the browser asks for as a part of
// its page.
func (p *page) follow(path string, query url.Values) error {
	l := &liveWriter{page: p, control: http.NewResponseController(p.w)}
	answer, err := loopback.Follow(p.r.Context(), p.API, loopback.Request{
		Method: http.MethodGet, Path: "/api/v1" + path, Query: query, Token: "Bearer " + p.token,
	}, p.w, l.see)
	if l.begun {
		return nil // the browser comes back
	}
	if err == nil && !answer.OK() {
		return refusedBy(answer)
	}
	return err
}

// liveWriter is the browser's end of a stream.
type liveWriter struct {
	*page
	control *http.ResponseController
	begun   bool
	told    time.Time
}

// see tells of a piece of the API's stream. It waits for its time, and meanwhile
// nothing else is read.
func (l *liveWriter) see(events []loopback.Event) error {
	text := ": still here\n\n"
	for _, e := range events {
		if e.Name == "end" {
			text = "event: changed\ndata: .\n\nevent: end\ndata: .\n\n"
			break
		}
		if e.Name != "" {
			text = "event: changed\ndata: .\n\n"
		}
	}
	if err := wait(l.r.Context(), paceTime-l.Now().Sub(l.told)); err != nil {
		return err
	}
	if !l.begun {
		h := l.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("X-Accel-Buffering", "no")
		l.begun = true
	}
	if err := l.control.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return err
	}
	if _, err := l.w.Write([]byte(text)); err != nil {
		return err
	}
	l.told = l.Now()
	return l.control.Flush()
}

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
