package main

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function/functiontest"
	"tuluat.ai/harness/shared/harness"
)

// The process is ready while the database and the model are down, answers 503
// meanwhile with an empty body, and ends well.
func TestReadyWithoutTheWorld(t *testing.T) {
	w := functiontest.NewWorld(t)
	p := w.Start("agent-step", build, map[string]string{
		"BROKER_URL": "http://127.0.0.1:1/", "MODEL_NAME": "m", "DATABASE_URL": "postgres://nobody@127.0.0.1:1/none", "OPENAI_API_KEY": "key",
	})
	for range 2 {
		if a := p.Deliver(event.Event{ID: "1", Type: event.SessionDue, Payload: event.Payload{Session: "ses_1"}}); a.Status != http.StatusServiceUnavailable || a.Body != "" {
			t.Fatalf("status %d, body %q", a.Status, a.Body)
		}
	}
	p.Stop()
}

func TestPrices(t *testing.T) {
	cached := harness.Micros(25_000)
	got, err := parsePrices(`{"a": {"input": "0.25", "output": "2"}, "b": {"input": "1", "output": "2", "cachedInput": "0.025"}}`)
	want := map[string]harness.Price{"a": {Input: 250_000, Output: 2_000_000}, "b": {Input: 1_000_000, Output: 2_000_000, CachedInput: &cached}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	tokens := harness.Tokens{Input: 1000, CacheRead: 400, CacheWrite: 100, Output: 10}
	for name, cost := range map[string]harness.Micros{"a": 270, "b": 630} { // b: 600 at 1, 400 at 0.025, 10 at 2
		if got := want[name].Of(tokens); got != cost {
			t.Errorf("%s costs %d, want %d", name, got, cost)
		}
		if most := want[name].Most(1000, 10); most < cost {
			t.Errorf("%s costs %d at most, and may cost %d", name, most, cost)
		}
	}
	for _, bad := range []string{`{"a": {"input": "1"}}`, `{"a": {"input": "1", "output": "2", "cachedInput": "x"}}`, `{"a": {"input": "1", "output": "2", "cached": "1"}}`} {
		if _, err := parsePrices(bad); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

func TestConfigNamesEveryProblem(t *testing.T) {
	_, err := parseConfig(func(name string) string {
		return map[string]string{"LEASE": "soon", "MODEL_PROVIDER": "oracle"}[name]
	})
	functiontest.Complains(t, err, "DATABASE_URL", "BROKER_URL", "MODEL_NAME", "MODEL_PROVIDER", "LEASE")
}
