package channel

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// AcksOptions are what Acks needs.
type AcksOptions struct {
	Channel  harness.Channel
	Store    ReceivedStore
	Accounts AccountSource
	Presence Presence
	Log      *slog.Logger
	Drain    <-chan struct{}
}

// ReceivedStore is what Acks reads.
type ReceivedStore interface {
	Received(ctx context.Context, id harness.MessageID) (*postgres.Received, error)
}

// Acks shows people that they were heard, while their turn is worked. It hears
// message.received beside agent-step; what it does is best effort, and a lost or
// repeated event costs or doubles a sign, nothing else.
type Acks struct {
	AcksOptions

	mu   sync.Mutex
	stay map[harness.SessionID]bool // for whose turn a request stays
}

// staying is how many requests may stay for a turn at the same time. Replies
// come by the same way and must not wait behind signs: to the others a sign is
// shown once.
const staying = 8

// NewAcks returns Acks.
func NewAcks(o AcksOptions) *Acks {
	return &Acks{AcksOptions: o, stay: map[harness.SessionID]bool{}}
}

// Received shows the sign once, and again while the turn of the message runs.
func (a *Acks) Received(ctx context.Context, e event.Event) error {
	if e.Payload.Message == "" || e.Channel != a.Channel {
		return harness.Errorf(harness.Invalid, "message.received must name a message of the channel %s", a.Channel)
	}
	end := time.NewTimer(a.Presence.Longest())
	defer end.Stop()
	for look := 1; ; look++ {
		first := look == 1
		m, err := a.Store.Received(ctx, e.Payload.Message)
		if harness.KindOf(err) == harness.NotFound {
			return nil
		}
		if err != nil {
			return err
		}
		over := m.State == harness.MessageDone
		if m.Spec == nil || over && !first {
			return nil
		}
		if look > 2 && m.State == harness.MessagePending { // it waits behind another turn
			return nil
		}
		account, err := a.Accounts.Of(ctx, m.Session.Account, m.Session.Agent, *m.Spec)
		if err == nil {
			err = a.Presence.Show(ctx, account, m, first)
		}
		if err != nil {
			a.Log.Info("no sign was shown that a message was heard", "session", string(m.Session.ID), "agent", string(m.Session.Agent), "err", err)
			return nil
		}
		if first && !over {
			if !a.stays(m.Session.ID) {
				return nil
			}
			defer a.leaves(m.Session.ID)
		}
		if over || !a.wait(ctx, end) {
			return nil
		}
	}
}

// stays reports whether this request may stay for a turn of session: one does,
// and only some of all.
func (a *Acks) stays(session harness.SessionID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stay[session] || len(a.stay) == staying {
		return false
	}
	a.stay[session] = true
	return true
}

func (a *Acks) leaves(session harness.SessionID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.stay, session)
}

func (a *Acks) wait(ctx context.Context, end *time.Timer) bool {
	next := time.NewTimer(a.Presence.Every())
	defer next.Stop()
	select {
	case <-next.C:
		return true
	case <-end.C:
	case <-a.Drain:
	case <-ctx.Done():
	}
	return false
}
