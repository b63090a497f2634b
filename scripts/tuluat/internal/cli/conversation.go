package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"tuluat.ai/harness/scripts/tuluat/internal/hook"
	"tuluat.ai/harness/scripts/tuluat/internal/sse"
	"tuluat.ai/harness/shared/harness"
)

// conversation is one chat with an agent: what is said and what is heard.
type conversation struct {
	target  *target
	history sse.Event      // the newest conversation when we came; no Session: there was none
	events  chan sse.Event // what happens, in order
	broken  chan error     // the stream is refused: it does not come back
	last    sse.Event      // the newest answer before this chat joined; no Message: there is none
	lost    func(error)    // told when the connection is lost and tried again
	ended   chan struct{}
}

const (
	firstPause = 200 * time.Millisecond
	lastPause  = 3 * time.Second
	sendTries  = 4
)

// join reads where the chat stands and then follows it. It
// returns when the stream is open: nothing that is said from now on is missed.
func join(ctx context.Context, t *target, lost func(error)) (*conversation, error) {
	c := &conversation{target: t, events: make(chan sse.Event, 64), broken: make(chan error, 1), lost: lost, ended: make(chan struct{})}
	place := ""
	reading, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	err := t.client.Stream(reading, t.chat, "", false, nil, func(e sse.Event) error {
		switch e.Name {
		case "session":
			c.history = e
		case "reply":
			c.last = e
		}
		if e.ID != "" {
			place = e.ID
		}
		return nil
	})
	if err != nil {
		return nil, t.located(err)
	}
	opened := make(chan struct{})
	go c.follow(ctx, place, opened)
	select {
	case <-opened:
		return c, nil
	case err := <-c.broken:
		return nil, t.located(err)
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(t.timeout):
		return nil, &timeoutError{after: t.timeout}
	}
}

// goesOn reports whether an earlier conversation is still open.
func (c *conversation) goesOn() bool {
	return c.history.Session != "" && c.history.Turns > 0 && !harness.SessionState(c.history.State).Ended()
}

// follow keeps the stream open behind place until ctx ends: the server ends it
// now and then, and a connection may be lost.
func (c *conversation) follow(ctx context.Context, place string, opened chan struct{}) {
	defer close(c.ended)
	first := true
	pause := firstPause
	for ctx.Err() == nil {
		err := c.target.client.Stream(ctx, c.target.chat, place, true, func() {
			if first {
				close(opened)
				first = false
			}
			pause = firstPause
		}, func(e sse.Event) error {
			if e.ID != "" {
				place = e.ID
			}
			select {
			case c.events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		if p, ok := errors.AsType[*hook.Problem](err); ok && p.Status < http.StatusInternalServerError && p.Status != http.StatusTooManyRequests {
			c.broken <- err
			return
		}
		if err != nil && ctx.Err() == nil {
			c.lost(err)
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, lastPause)
		case <-ctx.Done():
		}
	}
}

// say hands text in. A try whose answer was lost is repeated under the same
// messageId, so that the message counts once.
func (c *conversation) say(ctx context.Context, text string) (hook.Receipt, error) {
	return c.hand(ctx, hook.Message{Text: text})
}

// press says the title of a choice. A decision is no message: it has no receipt.
func (c *conversation) press(ctx context.Context, choice harness.Choice) (hook.Receipt, error) {
	return c.hand(ctx, hook.Message{Text: choice.Title, Metadata: map[string]string{"selectionId": choice.ID}})
}

func (c *conversation) hand(ctx context.Context, m hook.Message) (hook.Receipt, error) {
	m.MessageID, m.ChannelUserID, m.Chat = harness.NewID("cli", time.Now()), c.target.user, c.target.chat
	pause := firstPause
	for try := 1; ; try++ {
		receipt, err := c.target.client.Send(ctx, m)
		p, refused := errors.AsType[*hook.Problem](err)
		if err == nil || try == sendTries || ctx.Err() != nil || refused && p.Status < http.StatusInternalServerError {
			return receipt, c.target.located(err)
		}
		select {
		case <-time.After(pause):
			pause *= 2
		case <-ctx.Done():
			return receipt, ctx.Err()
		}
	}
}

// await hands every event to each until the answer to message comes, or a
// question that is to be decided before it.
func (c *conversation) await(ctx context.Context, message harness.MessageID, each func(sse.Event)) (sse.Event, error) {
	timeout := time.NewTimer(c.target.timeout)
	defer timeout.Stop()
	for {
		select {
		case e := <-c.events:
			if e.Name == "reply" && (e.InReplyTo == message || decides(e.Choices)) {
				return e, nil
			}
			each(e)
		case err := <-c.broken:
			return sse.Event{}, c.target.located(err)
		case <-timeout.C:
			return sse.Event{}, &timeoutError{after: c.target.timeout}
		case <-ctx.Done():
			return sse.Event{}, ctx.Err()
		}
	}
}

// decides reports whether choices are those of a question that holds up an answer.
func decides(choices []harness.Choice) bool {
	return len(choices) > 0 && strings.HasPrefix(choices[0].ID, "apr_")
}

func turns(n int) string {
	if n == 1 {
		return "1 turn"
	}
	return fmt.Sprint(n, " turns")
}
