package channel

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// slowStore keeps every statement until it is let go, and cannot store an
// arrival whose text is "poison".
type slowStore struct{ arrived chan statement }

type statement struct {
	ids string
	let chan error
}

func (s *slowStore) Accept(_ context.Context, _ harness.Channel, in postgres.Inbound, traceparent string) ([]postgres.Accepted, []event.Event, error) {
	var ids []string
	var accepted []postgres.Accepted
	var events []event.Event
	poisoned := false
	for _, n := range in.Notices {
		ids = append(ids, string(n.Kind)+n.ProviderID)
	}
	for _, a := range in.Arrivals {
		ids = append(ids, a.ProviderID+traceparent)
		accepted = append(accepted, postgres.Accepted{Outcome: postgres.ArrivalAccepted, Message: harness.MessageID(a.ProviderID)})
		events = append(events, event.Event{Payload: event.Payload{Message: harness.MessageID(a.ProviderID)}})
		poisoned = poisoned || a.Message.Text == "poison"
	}
	st := statement{strings.Join(ids, "+"), make(chan error)}
	s.arrived <- st
	if err := <-st.let; err != nil {
		return nil, nil, err
	}
	if poisoned {
		return nil, nil, harness.Errorf(harness.Invalid, "a value cannot be stored")
	}
	return accepted, events, nil
}

// visit queues one arrival and waits until it stands where it should.
func visit(t *testing.T, d *Desk, done *sync.WaitGroup, id, text, trace string, check func([]postgres.Accepted, []event.Event, error)) {
	t.Helper()
	d.mu.Lock()
	before := d.serving + len(d.waiting)
	d.mu.Unlock()
	done.Go(func() {
		accepted, events, err := d.Accept(context.Background(), postgres.Inbound{Arrivals: []postgres.Arrival{{ProviderID: id, Message: harness.Message{Text: text}}}}, trace)
		check(accepted, events, err)
	})
	for deadline := time.Now().Add(10 * time.Second); ; {
		d.mu.Lock()
		now := d.serving + len(d.waiting)
		d.mu.Unlock()
		if now > before {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the visitor did not come in")
		}
	}
}

func TestDesk(t *testing.T) {
	s := &slowStore{arrived: make(chan statement)}
	d := NewDesk(harness.ChannelWebhook, s, slog.New(slog.DiscardHandler))
	var done sync.WaitGroup
	fill := func() (busy []statement) {
		for n := range atOnce {
			visit(t, d, &done, fmt.Sprint("first", n), "", "", func([]postgres.Accepted, []event.Event, error) {})
			busy = append(busy, <-s.arrived)
		}
		return busy
	}
	release := func(busy []statement) {
		for _, b := range busy {
			b.let <- nil
		}
	}
	busy := fill()
	good := func(id string) func([]postgres.Accepted, []event.Event, error) {
		return func(a []postgres.Accepted, events []event.Event, err error) {
			if err != nil || len(a) != 1 || string(a[0].Message) != id || len(events) != 1 || string(events[0].Payload.Message) != id {
				t.Errorf("%s got %+v %v %v", id, a, events, err)
			}
		}
	}
	visit(t, d, &done, "a", "", "", good("a"))
	visit(t, d, &done, "b", "", "-trace", good("b"))
	visit(t, d, &done, "c", "poison", "", func(a []postgres.Accepted, _ []event.Event, err error) {
		if err != nil || len(a) != 1 || a[0].Outcome != postgres.ArrivalDuplicate {
			t.Errorf("the poison got %v %v", a, err)
		}
	})
	visit(t, d, &done, "a", "", "", good("a")) // a repeat
	visit(t, d, &done, "d", "", "", good("d"))

	busy[0].let <- nil // its place goes to the queue's front
	var statements []string
	for range 7 {
		st := <-s.arrived
		statements = append(statements, st.ids)
		st.let <- nil
	}
	release(busy[1:])
	done.Wait()
	// Together they are refused, then each stands alone, and what cannot be stored
	// becomes a notice; a trace and a repeat do not share.
	if want := []string{"a+c+d", "a", "c", "MALFORMEDc", "d", "b-trace", "a"}; !slices.Equal(statements, want) {
		t.Errorf("statements %q, want %q", statements, want)
	}
	if d.serving != 0 || len(d.waiting) != 0 {
		t.Errorf("%d serve and %d wait after all is done", d.serving, len(d.waiting))
	}

	// While the database does not answer, all of a group are told at once.
	busy = fill()
	for _, id := range []string{"e", "f"} {
		visit(t, d, &done, id, "", "", func(_ []postgres.Accepted, _ []event.Event, err error) {
			if harness.KindOf(err) != harness.Unavailable {
				t.Errorf("%s got %v", id, err)
			}
		})
	}
	busy[0].let <- nil
	st := <-s.arrived
	if st.ids != "e+f" {
		t.Errorf("statement %q", st.ids)
	}
	st.let <- harness.Errorf(harness.Unavailable, "down")
	release(busy[1:])
	done.Wait()
}

// Of many elements of every kind only the one that cannot be stored is missing.
func TestKeepPassesPoison(t *testing.T) {
	var stored []string
	store := storeFunc(func(in postgres.Inbound) error {
		var ids []string
		for _, a := range in.Arrivals {
			if ids = append(ids, a.ProviderID); a.Message.Text == "poison" {
				return harness.Errorf(harness.Invalid, "a value cannot be stored")
			}
		}
		for _, n := range in.Notices {
			ids = append(ids, string(n.Kind)+n.ProviderID)
		}
		for _, s := range in.Statuses {
			ids = append(ids, "s"+s.ProviderID)
		}
		if in.Offset != nil {
			ids = append(ids, "offset")
		}
		stored = append(stored, ids...)
		return nil
	})
	var in postgres.Inbound
	for n := range 9 {
		text := "good"
		if n == 4 {
			text = "poison"
		}
		in.Arrivals = append(in.Arrivals, postgres.Arrival{ProviderID: fmt.Sprint(n), Message: harness.Message{Text: text}})
	}
	in.Notices = []postgres.Notice{{Kind: harness.NoticeEdit, ProviderID: "e"}}
	in.Statuses = []postgres.Status{{ProviderID: "x"}}
	in.Offset = &postgres.PollOffset{}
	accepted, _, err := Keep(t.Context(), store, harness.ChannelTelegram, in, "", slog.New(slog.DiscardHandler))
	if err != nil || len(accepted) != 9 {
		t.Fatalf("%d fates, %v", len(accepted), err)
	}
	slices.Sort(stored)
	if want := []string{"0", "1", "2", "3", "5", "6", "7", "8", "EDITe", "MALFORMED4", "offset", "sx"}; !slices.Equal(stored, want) {
		t.Errorf("stored %q, want %q", stored, want)
	}
}

type storeFunc func(in postgres.Inbound) error

func (f storeFunc) Accept(_ context.Context, _ harness.Channel, in postgres.Inbound, _ string) ([]postgres.Accepted, []event.Event, error) {
	return make([]postgres.Accepted, len(in.Arrivals)), nil, f(in)
}
