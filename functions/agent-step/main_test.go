package main

import (
	"net/http"
	"testing"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function/functiontest"
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

func TestConfigNamesEveryProblem(t *testing.T) {
	_, err := parseConfig(func(name string) string {
		return map[string]string{"LEASE": "soon", "MODEL_PROVIDER": "oracle"}[name]
	})
	functiontest.Complains(t, err, "DATABASE_URL", "BROKER_URL", "MODEL_NAME", "MODEL_PROVIDER", "LEASE")
}
