package channel

import (
	"context"
	"regexp"
	"strings"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// DecisionStore is what a Decider reads and writes.
type DecisionStore interface {
	InboundStore
	DecideByTap(ctx context.Context, t postgres.Tap) (postgres.TapOutcome, []event.Event, error)
}

// Decider is an InboundStore that takes what people say to cards out of what came
// in: a decision does not wait behind the turn that waits for it. Everything else
// goes on as it came.
type Decider struct{ Store DecisionStore }

// Accept implements InboundStore. Each decision is committed before the rest; a
// repeat of the request finds it in the inbox and has no effect.
func (d Decider) Accept(ctx context.Context, channel harness.Channel, in postgres.Inbound, traceparent string) ([]postgres.Accepted, []event.Event, error) {
	fates := make([]postgres.Accepted, len(in.Arrivals))
	var events []event.Event
	var kept []int
	rest := in
	rest.Arrivals = nil
	for i, a := range in.Arrivals {
		decided := false
		if tap, ok := tapOf(channel, a); ok {
			outcome, told, err := d.Store.DecideByTap(ctx, tap)
			if err != nil {
				return nil, events, err
			}
			events, decided = append(events, told...), outcome != postgres.TapNotAsked
		}
		if decided {
			fates[i].Outcome = postgres.ArrivalDecision
			continue
		}
		kept, rest.Arrivals = append(kept, i), append(rest.Arrivals, a)
	}
	if len(kept) == 0 && len(in.Arrivals) > 0 && in.Offset == nil && len(in.Notices)+len(in.Statuses)+len(in.Renames)+len(in.Blocks) == 0 {
		return fates, events, nil
	}
	accepted, wakes, err := d.Store.Accept(ctx, channel, rest, traceparent)
	if err != nil {
		return nil, events, err
	}
	for n, i := range kept {
		fates[i] = accepted[n]
	}
	return fates, append(events, wakes...), nil
}

// typed is a decision in words: approve or reject, the code of the card, and
// behind it a reason; or show, for the card once more. In groups the bot may be
// named first, or as its commands are.
var typed = regexp.MustCompile(`(?is)^\s*(?:@\S+\s+)?/?(approve|reject|show)(?:@\S+)?[\s:#]+(\d{6})\b[\s:,.-]*(.*)$`)

// tapOf reads a as what somebody says to a card.
func tapOf(channel harness.Channel, a postgres.Arrival) (postgres.Tap, bool) {
	tap := postgres.Tap{Channel: channel, Account: a.Account, Chat: a.Chat, ProviderID: a.ProviderID, People: []string{a.Message.ChannelUserID}}
	if a.OtherID != "" {
		tap.People = append(tap.People, a.OtherID)
	}
	tap.Callback, _ = a.Message.Metadata["callbackQueryId"].(string)
	for _, key := range []string{"payload", "selectionId"} {
		if payload, _ := a.Message.Metadata[key].(string); postgres.IsTap(payload) {
			tap.Payload = payload
			return tap, true
		}
	}
	said := typed.FindStringSubmatch(a.Message.Text)
	if said == nil || len(a.Attachments) > 0 {
		return tap, false
	}
	tap.Code, tap.Reason = said[2], strings.TrimSpace(said[3])
	tap.Forwarded, _ = a.Message.Metadata["forwarded"].(bool)
	switch strings.ToLower(said[1]) {
	case "approve":
		tap.State = harness.ApprovalApproved
	case "reject":
		tap.State = harness.ApprovalRejected
	}
	return tap, true
}
