package letter_test

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"tuluat.ai/harness/functions/dead-letter/internal/letter"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

func keeper(store letter.Store) *letter.Keeper {
	return letter.New(letter.Options{Store: store, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
}

func TestALetterOfEveryType(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	k := keeper(s)
	for _, kind := range append(event.Types(), event.Ping, event.ResourceAdd, event.ResourceUpdate, event.ResourceDelete) {
		e := event.Event{ID: "id of " + string(kind), Type: kind, Session: "ses_1", Payload: event.Payload{Session: "ses_1", Message: "msg_1", Execution: "exe_1"}}
		for range 2 { // delivered twice
			if err := k.Keep(ctx, e); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		}
	}
	var rows, twice int
	if err := s.Pool().QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE times = 2) FROM dead_letters`).Scan(&rows, &twice); err != nil || rows != len(event.Types())+4 || twice != rows {
		t.Errorf("%d rows, %d counted twice, %v", rows, twice, err)
	}
}

// One delivery that ends in the sink twice: the same row, counted.
func TestDeliveredTwice(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	if _, _, err := s.PutAgents(ctx, []postgres.AgentText{{Name: "a", Agent: &harness.Agent{Name: "a", Harness: harness.HarnessSpec{
		Enabled: true, Type: harness.HarnessChannel, Channels: []harness.ChannelSpec{{Type: harness.ChannelWebhook, Account: "h", Senders: harness.ChannelSenders{Policy: harness.SendersOpen}}},
	}}}}, nil); err != nil {
		t.Fatal(err)
	}
	accepted, events, err := s.Accept(ctx, harness.ChannelWebhook, postgres.Inbound{Arrivals: []postgres.Arrival{{Account: "h", ProviderID: "1", Chat: "c", Message: harness.Message{ChannelUserID: "u", Text: "t"}}}}, "")
	if err != nil || len(events) != 1 {
		t.Fatal(accepted, events, err)
	}
	e := events[0]
	e.Extensions = map[string]string{"knativeerrordest": "http://agent-step", "knativeerrorcode": "503", "knativeerrordata": base64.StdEncoding.EncodeToString([]byte("b\xffu\x00sy"))}
	k := keeper(s)
	if err := k.Keep(ctx, e); err != nil {
		t.Fatal(err)
	}
	before := postgrestest.Dump(t, s, "sessions", "messages", "outbox")
	if err := k.Keep(ctx, e); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, postgrestest.Dump(t, s, "sessions", "messages", "outbox")); diff != "" {
		t.Errorf("the second delivery changed work:\n%s", diff)
	}
	var destination, cause, state, session string
	var code, times int
	if err := s.Pool().QueryRow(ctx, `SELECT destination, status_code, cause, state, times, session_id FROM dead_letters`).Scan(&destination, &code, &cause, &state, &times, &session); err != nil {
		t.Fatal(err)
	}
	got := []any{destination, code, cause, state, times, session}
	want := []any{"http://agent-step", 503, "b\uFFFDusy", "OPEN", 2, string(accepted[0].Session)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// one records the letter it is given.
type one struct {
	postgres.DeadLetter
	err error
}

func (o *one) PutDeadLetter(_ context.Context, d postgres.DeadLetter) (postgres.DeadLetterState, error) {
	o.DeadLetter = d
	return postgres.DeadLetterOpen, o.err
}

func TestExtensions(t *testing.T) {
	long := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("0123456789", 200)))
	for name, test := range map[string]struct {
		extensions map[string]string
		to         string
		code       int
		cause      string
	}{
		"none":              {nil, "unknown", 0, ""},
		"cut by the broker": {map[string]string{"knativeerrordata": long[:1024]}, "unknown", 0, strings.Repeat("0123456789", 200)[:768]},
		"cut inside a byte": {map[string]string{"knativeerrordata": long[:1021]}, "unknown", 0, strings.Repeat("0123456789", 200)[:765]},
		"padded":            {map[string]string{"knativeerrordata": "YQ=="}, "unknown", 0, "a"},
		"not base64":        {map[string]string{"knativeerrordata": "<html>\x00"}, "unknown", 0, "<html>"},
		"not a code":        {map[string]string{"knativeerrorcode": "-1", "knativeerrordest": "http://x"}, "http://x", 0, ""},
	} {
		store := &one{}
		if err := keeper(store).Keep(context.Background(), event.Event{ID: "1", Type: event.SessionDue, Extensions: test.extensions}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if store.Destination != test.to || store.StatusCode != test.code || store.Cause != test.cause {
			t.Errorf("%s: %q %d %q", name, store.Destination, store.StatusCode, store.Cause)
		}
	}
}

func TestAFailureIsNotSwallowed(t *testing.T) {
	down := harness.Wrap(harness.Unavailable, errors.New("refused"), "the database does not answer")
	if err := keeper(&one{err: down}).Keep(context.Background(), event.Event{}); !errors.Is(err, down) {
		t.Errorf("got %v", err)
	}
}
