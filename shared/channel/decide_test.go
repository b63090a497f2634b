package channel

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// deciding is a store in which every tap but those with code 000000 decides.
type deciding struct {
	taps []postgres.Tap
	kept []string
}

func (d *deciding) DecideByTap(_ context.Context, t postgres.Tap) (postgres.TapOutcome, []event.Event, error) {
	d.taps = append(d.taps, t)
	if t.Code == "000000" {
		return postgres.TapNotAsked, nil, nil
	}
	return postgres.TapDecided, []event.Event{
		{ID: "decided:" + t.ProviderID, Type: event.ApprovalDecided},
		{ID: "outcome:" + t.ProviderID, Type: event.MessageReply, Payload: event.Payload{Message: harness.MessageID("card-" + t.ProviderID)}},
	}, nil
}

func (d *deciding) Accept(_ context.Context, _ harness.Channel, in postgres.Inbound, _ string) (accepted []postgres.Accepted, events []event.Event, err error) {
	for _, a := range in.Arrivals {
		d.kept = append(d.kept, a.ProviderID)
		accepted = append(accepted, postgres.Accepted{Outcome: postgres.ArrivalAccepted, Message: harness.MessageID(a.ProviderID)})
		events = append(events, event.Event{ID: "received:" + a.ProviderID, Type: event.MessageReceived, Payload: event.Payload{Message: harness.MessageID(a.ProviderID)}})
	}
	return accepted, events, nil
}

// What decisions announce is published with what the rest of a request does: who
// waits for them does not wait for the sweep.
func TestDecisionsAreAnnounced(t *testing.T) {
	store := &deciding{}
	desk := NewDesk(harness.ChannelWhatsApp, Decider{store}, slog.New(slog.DiscardHandler))
	said := func(id, text string, metadata map[string]any) postgres.Arrival {
		return postgres.Arrival{Account: "a", Chat: "c", ProviderID: id, Message: harness.Message{ChannelUserID: "p", Text: text, Metadata: metadata}}
	}
	accepted, events, err := desk.Accept(t.Context(), postgres.Inbound{Arrivals: []postgres.Arrival{
		said("1", "Approve", map[string]any{"selectionId": "apr_x.0123456789ab.a"}),
		said("2", "good morning", nil),
		said("3", "@bot reject 123456: not now", nil),
		said("4", "approve 000000", nil), // no card has it: a message like any other
		said("5", "approve of it", nil),
	}}, "")
	if err != nil {
		t.Fatal(err)
	}
	var fates, ids []string
	for _, a := range accepted {
		fates = append(fates, string(a.Outcome))
	}
	if got, want := fmt.Sprint(fates), "[DECISION ACCEPTED DECISION ACCEPTED ACCEPTED]"; got != want {
		t.Errorf("fates: got %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(store.kept), "[2 4 5]"; got != want {
		t.Errorf("messages: got %s, want %s", got, want)
	}
	for _, e := range events {
		ids = append(ids, e.ID)
	}
	if got, want := fmt.Sprint(ids), "[decided:1 outcome:1 decided:3 outcome:3 received:2 received:4 received:5]"; got != want {
		t.Errorf("events: got %s, want %s", got, want)
	}
	if tap := store.taps[1]; tap.Code != "123456" || tap.State != harness.ApprovalRejected || tap.Reason != "not now" {
		t.Errorf("in words: %+v", tap)
	}
	// A request of decisions alone writes nothing else.
	store.kept = nil
	if _, events, err := desk.Accept(t.Context(), postgres.Inbound{Arrivals: []postgres.Arrival{said("6", "approve 123456", nil)}}, ""); err != nil || len(events) != 2 || store.kept != nil {
		t.Errorf("a decision alone: %v, %v, stored %v", events, err, store.kept)
	}
}
