package telegram

import (
	"context"
	"errors"
	"testing"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// The outcome of a question goes onto its card. Before that nothing is written
// down: an edit that is in doubt is made again, and never leaves buttons.
func TestOutcomeOnACard(t *testing.T) {
	outcome := func() *postgres.ReplyClaim {
		c := claim("Agent a asks.\nApproved by ann (2026-01-02 03:04 UTC)")
		c.Kind, c.Card = harness.ReplyDecision, &postgres.SentCard{ProviderID: "77", Text: "Agent a asks.\nls"}
		return c
	}
	for name, c := range map[string]struct {
		answer string
		state  harness.ReplyState
		id     string
	}{
		"edited":             {answer: `200 {"ok":true,"result":{"message_id":77}}`, state: harness.ReplySent, id: "77"},
		"no answer":          {answer: "CUT", state: harness.ReplyPlanned},
		"a fault of theirs":  {answer: `502 {"ok":false,"error_code":502,"description":"Bad Gateway"}`, state: harness.ReplyPlanned},
		"they have left us":  {answer: `403 {"ok":false,"error_code":403,"description":"Forbidden"}`, state: harness.ReplyFailed},
		"a moment too early": {answer: `429 {"ok":false,"error_code":429,"description":"x","parameters":{"retry_after":3}}`, state: harness.ReplyPlanned},
	} {
		w := newWire(t, c.answer)
		o, err := NewTransport(w.client, nil, w.log).Send(t.Context(), testAccount(), outcome(), func(context.Context) error {
			return errors.New("the send was written down as begun")
		})
		if err != nil || o.State != c.state || o.ProviderID != c.id || o.Format != "" || o.Final {
			t.Errorf("%s: %+v, %v", name, o, err)
		}
		if calls := w.taken(); len(calls) != 1 || calls[0].method != "editMessageText" {
			t.Errorf("%s: %+v", name, calls)
		}
	}
	// Refused in both spellings, the card cannot be edited: the outcome goes out as a
	// message, which is written down as begun first.
	refused := `400 {"ok":false,"error_code":400,"description":"Bad Request"}`
	w, begun := newWire(t, refused, refused, sentAnswer), 0
	o, err := NewTransport(w.client, nil, w.log).Send(t.Context(), testAccount(), outcome(), func(context.Context) error {
		if begun++; len(w.taken()) != 2 {
			t.Errorf("begun after %+v", w.taken())
		}
		return nil
	})
	calls := w.taken()
	if err != nil || o.State != harness.ReplySent || begun != 1 || len(calls) != 3 ||
		calls[0].method != "editMessageText" || calls[1].method != "editMessageText" || calls[2].method != "sendMessage" {
		t.Errorf("it cannot be: %+v, %v, begun %d times, %+v", o, err, begun, calls)
	}
	if calls[0].parameters["parse_mode"] != "HTML" || calls[1].parameters["parse_mode"] != nil || calls[0].parameters["text"] == calls[1].parameters["text"] {
		t.Errorf("both spellings are one: %+v", calls)
	}
	w = newWire(t, sentAnswer) // one that is plain already is not edited
	plain := outcome()
	plain.Format = harness.FormatPlain
	if o := w.send(t, plain); o.State != harness.ReplySent || w.taken()[0].method != "sendMessage" {
		t.Errorf("as a message: %+v %+v", o, w.taken())
	}
}
