package reap

import (
	"context"
	"errors"
	"fmt"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/trace"
)

// deaf is the attempt from which an announcement goes straight to its
// subscriber: the broker has had it twice, and nobody has heard.
const deaf = 3

// wakeSessions wakes sessions that are due and that nobody has claimed in time.
func (r *Reaper) wakeSessions(ctx context.Context, b *box) error {
	return r.announce(ctx, b, func() ([]postgres.Unheard, error) { return r.Store.SessionsUnheard(ctx, r.Batch) })
}

// repeatAnnouncements repeats what nobody has acknowledged, and forgets that of
// which nothing can come.
func (r *Reaper) repeatAnnouncements(ctx context.Context, b *box) error {
	return r.announce(ctx, b, func() ([]postgres.Unheard, error) {
		moot, err := r.Store.DeleteMootAnnouncements(ctx, r.Batch)
		b.count(moot, moot)
		if err != nil {
			return nil, err
		}
		return r.Store.TakeUnheard(ctx, r.Batch)
	})
}

// wakeExecutions announces commands that are due and that nobody announces. The
// store writes their outbox rows.
func (r *Reaper) wakeExecutions(ctx context.Context, b *box) error {
	return r.announce(ctx, b, func() ([]postgres.Unheard, error) {
		events, err := r.Store.ExecutionsDue(ctx, r.Batch)
		return first(events), err
	})
}

// wakeReplies announces replies that are due and that nobody announces, and
// gives them outbox rows, so that they are repeated until somebody sends them.
func (r *Reaper) wakeReplies(ctx context.Context, b *box) error {
	return r.announce(ctx, b, func() ([]postgres.Unheard, error) {
		events, err := r.Store.RepliesDue(ctx, r.Batch)
		if err == nil && len(events) > 0 {
			err = r.Store.KeepAnnouncing(ctx, events)
		}
		return first(events), err
	})
}

// wakeMedia announces files that a command waits for and that nobody announces.
func (r *Reaper) wakeMedia(ctx context.Context, b *box) error {
	return r.announce(ctx, b, func() ([]postgres.Unheard, error) {
		events, err := r.Store.MediaDue(ctx, r.Batch)
		if err == nil && len(events) > 0 {
			err = r.Store.KeepAnnouncing(ctx, events)
		}
		return first(events), err
	})
}

// timeApprovals reminds of approvals, asks further people, and ends those whose
// time is over. What it announces has outbox rows already.
func (r *Reaper) timeApprovals(ctx context.Context, b *box) error {
	var failures error
	err := b.batches(func() (int, error) {
		due, err := r.Store.ApprovalsDue(ctx, r.Batch)
		if err != nil {
			return 0, err
		}
		failures = errors.Join(failures, each(b, due, func(id harness.ApprovalID) error {
			events, err := r.Store.ApprovalTimer(ctx, id)
			for _, e := range events {
				err = errors.Join(err, r.send(ctx, postgres.Unheard{Event: e, Attempts: 1}))
			}
			return err
		}))
		return len(due), nil
	})
	return errors.Join(err, failures)
}

// wakeSignals announces decisions that a Temporal workflow waits for and that
// nobody announces. The store writes their outbox rows.
func (r *Reaper) wakeSignals(ctx context.Context, b *box) error {
	return r.announce(ctx, b, func() ([]postgres.Unheard, error) {
		events, err := r.Store.SignalsDue(ctx, r.Batch)
		return first(events), err
	})
}

// freshenStatuses wakes whoever writes the statuses of agents, once, if one is
// behind: it finds all of them in the rows.
func (r *Reaper) freshenStatuses(ctx context.Context, b *box) error {
	behind, err := r.Store.StatusDirty(ctx, postgres.StatusEvery, r.Batch)
	if err != nil || len(behind) == 0 {
		return err
	}
	b.count(len(behind), 0)
	err = r.send(ctx, postgres.Unheard{Attempts: deaf, Event: event.Event{
		ID: fmt.Sprintf("session.changed:sweep:%d", r.Now().UnixMicro()), Type: event.SessionChanged,
	}})
	if err == nil {
		b.count(0, len(behind))
	}
	return err
}

func first(events []event.Event) []postgres.Unheard {
	unheard := make([]postgres.Unheard, len(events))
	for i, e := range events {
		unheard[i] = postgres.Unheard{Event: e, Attempts: 1}
	}
	return unheard
}

// announce takes batches of announcements and sends each. One that cannot be
// sent is not lost: its row says when it is due again.
func (r *Reaper) announce(ctx context.Context, b *box, take func() ([]postgres.Unheard, error)) error {
	var failures error
	err := b.batches(func() (int, error) {
		unheard, err := take()
		if err != nil {
			return 0, err
		}
		failures = errors.Join(failures, each(b, unheard, func(u postgres.Unheard) error { return r.send(ctx, u) }))
		return len(unheard), nil
	})
	return errors.Join(err, failures)
}

// send publishes u, or, when the broker has had it twice for nothing or refuses
// it, posts it to each of its subscribers. A subscriber works within the request, longer
// than we wait: no answer in time means that it was taken. A broker that does
// not answer in time may have taken it too; the next attempt will tell.
func (r *Reaper) send(ctx context.Context, u postgres.Unheard) (err error) {
	ctx, parent, end := trace.Resume(ctx, u.TraceParent, "announce", "tuluat.event", u.ID, "tuluat.session", string(u.Session))
	u.TraceParent = parent
	defer func() { end(err) }()
	sinks := r.Direct[Sink{u.Type, u.Channel}]
	if len(sinks) == 0 {
		sinks = r.Direct[Sink{Type: u.Type}]
	}
	direct := len(sinks) > 0
	if !direct || u.Attempts < deaf {
		err := r.Poster.Post(ctx, r.Poster.Broker(), u.Event)
		if err == nil || !direct || late(err) {
			return err
		}
		r.Log.Warn("the broker did not take an event; its subscriber gets it directly", "event", u.ID, "type", string(u.Type), "session", string(u.Session), "err", err)
	}
	r.metrics.direct.WithLabelValues(string(u.Type)).Inc()
	var failures error
	for _, sink := range sinks {
		if err := r.Poster.Post(ctx, sink, u.Event); !late(err) {
			failures = errors.Join(failures, err)
		}
	}
	return failures
}

func late(err error) bool { return errors.Is(err, context.DeadlineExceeded) }
