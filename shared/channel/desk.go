package channel

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// Desk lets the requests of one process share statements: while atOnce are in
// flight, those that come meanwhile queue, and the first of them then stores
// the whole queue, itself included. Nobody works for others longer than one
// statement, and no goroutine is started.
type Desk struct {
	channel harness.Channel
	store   InboundStore
	log     *slog.Logger

	mu      sync.Mutex
	waiting []*visitor
	serving int
}

// InboundStore is what a Desk writes to.
type InboundStore interface {
	Accept(ctx context.Context, channel harness.Channel, in postgres.Inbound, traceparent string) ([]postgres.Accepted, []event.Event, error)
}

// NewDesk returns a Desk for one channel.
func NewDesk(channel harness.Channel, store InboundStore, log *slog.Logger) *Desk {
	return &Desk{channel: channel, store: store, log: log}
}

type visitor struct {
	in          postgres.Inbound
	traceparent string
	group       []*visitor    // whom it stores: set for the one who leads
	woken       chan struct{} // one signal: lead a group, or be told the outcome

	accepted []postgres.Accepted
	events   []event.Event
	err      error
}

const (
	atOnce     = 2  // so that one that waits for a row's lock does not hold up everybody
	together   = 64 // requests in one statement
	sharedRows = 256
	acceptTime = 10 * time.Second
)

// Accept stores what one request said and returns the fate of its arrivals,
// committed, with the events to publish.
func (d *Desk) Accept(ctx context.Context, in postgres.Inbound, traceparent string) ([]postgres.Accepted, []event.Event, error) {
	v := &visitor{in: in, traceparent: traceparent, woken: make(chan struct{}, 1)}
	if !d.enter(v) {
		<-v.woken
	}
	if v.group != nil {
		d.lead(ctx, v)
	}
	return v.accepted, v.events, v.err
}

// enter lets v serve itself at once, or queues it.
func (d *Desk) enter(v *visitor) bool {
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
func (d *Desk) lead(ctx context.Context, v *visitor) {
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
	if err == nil || harness.KindOf(err) == harness.Unavailable {
		return
	}
	for _, one := range v.group { // one of them cannot be stored and must not take the others with it
		one.accepted, one.events, one.err = Keep(ctx, d.store, d.channel, one.in, one.traceparent, d.log)
	}
}

// keep stores what the visitors of group bring in one statement and writes down
// each one's fate.
func (d *Desk) keep(ctx context.Context, group []*visitor) error {
	var in postgres.Inbound
	for _, v := range group {
		in.Arrivals, in.Notices, in.Statuses = append(in.Arrivals, v.in.Arrivals...), append(in.Notices, v.in.Notices...), append(in.Statuses, v.in.Statuses...)
		in.Renames, in.Blocks = append(in.Renames, v.in.Renames...), append(in.Blocks, v.in.Blocks...)
	}
	accepted, events, err := d.store.Accept(ctx, d.channel, in, group[0].traceparent)
	brought := make(map[harness.MessageID]*visitor, len(events))
	for _, v := range group {
		v.err, v.events, v.accepted = err, nil, nil
		if err != nil {
			continue
		}
		n := len(v.in.Arrivals)
		v.accepted, accepted = accepted[:n:n], accepted[n:]
		for _, a := range v.accepted {
			if a.Outcome == postgres.ArrivalAccepted && brought[a.Message] == nil {
				brought[a.Message] = v
			}
		}
	}
	for _, e := range events {
		v := brought[e.Payload.Message]
		if v == nil { // of no message that came in: what a decision leads to
			v = group[0]
		}
		v.events = append(v.events, e)
	}
	return err
}

// pass gives the lead to the first who waits, with those who may share its
// statement: a statement has one trace, and a repeat in it would not see the
// first's ids.
func (d *Desk) pass() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.waiting) == 0 {
		d.serving--
		return
	}
	next := d.waiting[0]
	var rest []*visitor
	seen := map[[2]string]bool{}
	rows := 0
	for _, v := range d.waiting {
		if len(next.group) > 0 && (len(next.group) == together || v.traceparent != next.traceparent || rows+len(v.in.Arrivals) > sharedRows || repeats(v.in, seen)) {
			rest = append(rest, v)
			continue
		}
		for _, a := range v.in.Arrivals {
			seen[[2]string{a.Account, a.ProviderID}] = true
		}
		rows += len(v.in.Arrivals)
		next.group = append(next.group, v)
	}
	d.waiting = rest
	next.woken <- struct{}{}
}

func repeats(in postgres.Inbound, seen map[[2]string]bool) bool {
	for _, a := range in.Arrivals {
		if seen[[2]string{a.Account, a.ProviderID}] {
			return true
		}
	}
	return false
}

// Keep stores in, and where one element of it cannot be stored at all, everything
// but that: a provider that sends it again for days would not make it better. The
// element becomes a notice of kind MALFORMED. Of an inbound with an offset, the
// offset is stored with the last of its pieces.
func Keep(ctx context.Context, store InboundStore, channel harness.Channel, in postgres.Inbound, traceparent string, log *slog.Logger) ([]postgres.Accepted, []event.Event, error) {
	accepted, events, err := store.Accept(ctx, channel, in, traceparent)
	if err == nil || harness.KindOf(err) != harness.Invalid {
		return accepted, events, err
	}
	first, second, ok := halves(in)
	if !ok {
		return give(ctx, store, channel, in, traceparent, log, err)
	}
	accepted, events, err = Keep(ctx, store, channel, first, traceparent, log)
	if err != nil {
		return nil, nil, err
	}
	more, later, err := Keep(ctx, store, channel, second, traceparent, log)
	if err != nil { // what is stored stays stored, and is a duplicate when it comes again
		return nil, events, err
	}
	return append(accepted, more...), append(events, later...), nil
}

// halves cuts in in two; false: it is one element.
func halves(in postgres.Inbound) (first, second postgres.Inbound, ok bool) {
	n := 0
	first.Arrivals, second.Arrivals = half(in.Arrivals, &n)
	first.Notices, second.Notices = half(in.Notices, &n)
	first.Statuses, second.Statuses = half(in.Statuses, &n)
	first.Renames, second.Renames = half(in.Renames, &n)
	first.Blocks, second.Blocks = half(in.Blocks, &n)
	second.Offset = in.Offset
	return first, second, n > 1
}

// half cuts items in the middle. The odd one goes to alternating sides, so that
// two kinds of one element each part too.
func half[T any](items []T, n *int) (first, second []T) {
	at := (len(items) + *n%2) / 2
	*n += len(items)
	return items[:at], items[at:]
}

// give replaces the one element of in that cannot be stored by a notice.
func give(ctx context.Context, store InboundStore, channel harness.Channel, in postgres.Inbound, traceparent string, log *slog.Logger, cause error) ([]postgres.Accepted, []event.Event, error) {
	notice := postgres.Notice{Kind: harness.NoticeMalformed}
	kept := postgres.Inbound{Offset: in.Offset}
	var fate []postgres.Accepted
	switch {
	case len(in.Arrivals) == 1:
		notice.Account, notice.ProviderID = harness.CleanText(in.Arrivals[0].Account), harness.CleanText(in.Arrivals[0].ProviderID)
		fate = []postgres.Accepted{{Outcome: postgres.ArrivalDuplicate}}
	case len(in.Notices) == 1:
		notice.Account, notice.ProviderID = harness.CleanText(in.Notices[0].Account), harness.CleanText(in.Notices[0].ProviderID)
	default:
		return nil, nil, cause
	}
	log.Error("an update cannot be stored and is passed", "channel", string(channel), "account", notice.Account, "err", cause)
	kept.Notices = []postgres.Notice{notice}
	_, _, err := store.Accept(ctx, channel, kept, traceparent)
	return fate, nil, err
}
