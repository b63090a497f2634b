package webhook

import (
	"context"
	"fmt"
	"sync"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// desk lets the requests of one process share statements: while atOnce are in
// flight, those that come meanwhile queue, and the first of them then stores
// the whole queue, itself included. Nobody works for others longer than one
// statement, and no goroutine is started.
type desk struct {
	store arrivalStore

	mu      sync.Mutex
	waiting []*visitor
	serving int
}

type arrivalStore interface {
	Accept(ctx context.Context, channel harness.Channel, arrivals []postgres.Arrival, traceparent string) ([]postgres.Accepted, []event.Event, error)
}

type visitor struct {
	arrival     postgres.Arrival
	traceparent string
	group       []*visitor    // whom it stores: set for the one who leads
	woken       chan struct{} // one signal: lead a group, or be told the outcome

	accepted postgres.Accepted
	events   []event.Event
	err      error
}

const (
	atOnce     = 2  // so that one that waits for a row's lock does not hold up everybody
	together   = 64 // arrivals in one statement
	acceptTime = 10 * time.Second
)

// accept stores one arrival and returns its fate, committed, with the events to
// publish.
func (d *desk) accept(ctx context.Context, arrival postgres.Arrival, traceparent string) (postgres.Accepted, []event.Event, error) {
	v := &visitor{arrival: arrival, traceparent: traceparent, woken: make(chan struct{}, 1)}
	if !d.enter(v) {
		<-v.woken
	}
	if v.group != nil {
		d.lead(ctx, v)
	}
	return v.accepted, v.events, v.err
}

// enter lets v serve itself at once, or queues it.
func (d *desk) enter(v *visitor) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.serving == atOnce {
		d.waiting = append(d.waiting, v)
		return false
	}
	d.serving++
	v.group = []*visitor{v}
	return true
}

// lead stores v's group, tells the others, and passes the lead on.
func (d *desk) lead(ctx context.Context, v *visitor) {
	defer func() {
		for _, other := range v.group {
			if other != v {
				other.woken <- struct{}{}
			}
		}
		d.pass()
	}()
	// Nobody's going away may cut what others wait for.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), acceptTime, fmt.Errorf("accept deadline of %s", acceptTime))
	defer cancel()
	err := d.keep(ctx, v.group)
	if err == nil || len(v.group) == 1 || harness.KindOf(err) == harness.Unavailable {
		return
	}
	for i := range v.group { // one of them cannot be stored and must not take the others with it
		_ = d.keep(ctx, v.group[i:i+1]) // kept in the visitor
	}
}

// keep stores the arrivals of group in one statement and writes down each one's
// fate.
func (d *desk) keep(ctx context.Context, group []*visitor) error {
	arrivals := make([]postgres.Arrival, len(group))
	for i, v := range group {
		arrivals[i] = v.arrival
	}
	accepted, events, err := d.store.Accept(ctx, harness.ChannelWebhook, arrivals, group[0].traceparent)
	for i, v := range group {
		v.err, v.events = err, nil
		if err != nil {
			continue
		}
		v.accepted = accepted[i]
		for _, e := range events {
			if e.Payload.Message == v.accepted.Message && v.accepted.Outcome == postgres.ArrivalAccepted {
				v.events = append(v.events, e)
			}
		}
	}
	return err
}

// pass gives the lead to the first who waits, with those who may share its
// statement: a statement has one trace, and a repeat in it would not see the
// first's ids.
func (d *desk) pass() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.waiting) == 0 {
		d.serving--
		return
	}
	next := d.waiting[0]
	var rest []*visitor
	seen := map[[2]string]bool{}
	for _, v := range d.waiting {
		id := [2]string{v.arrival.Account, v.arrival.ProviderID}
		if len(next.group) == together || v.traceparent != next.traceparent || seen[id] {
			rest = append(rest, v)
			continue
		}
		seen[id] = true
		next.group = append(next.group, v)
	}
	d.waiting = rest
	next.woken <- struct{}{}
}
