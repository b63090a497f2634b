package main

import (
	"io"
	"net/http"
	"testing"

	"go.uber.org/goleak"

	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/function/functiontest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The whole process takes an event as a broker sends it after giving up.
func TestProcess(t *testing.T) {
	w := functiontest.NewWorld(t)
	p := w.Start("dead-letter", build)
	tests := []struct {
		kind, data string
		status     int
	}{
		{"ai.tuluat.session.due.v1", `{"session": "ses_1"}`, http.StatusAccepted},
		{"ai.tuluat.session.due.v1", `{"session": "ses_1"}`, http.StatusAccepted},
		{"dev.knative.sources.ping", "whatever a source sends", http.StatusAccepted},
		{"ai.tuluat.session.due.v1", `{torn`, http.StatusBadRequest},
		{"com.example.stranger", `{}`, http.StatusBadRequest},
	}
	for _, test := range tests {
		a := w.Send(http.MethodPost, p.URL+"/events", http.Header{
			"Content-Type": {"application/json"}, "Ce-Specversion": {"1.0"}, "Ce-Id": {"1"}, "Ce-Source": {"test"}, "Ce-Type": {test.kind},
			"Ce-Knativeerrordest": {"http://agent-step"}, "Ce-Knativeerrorcode": {"500"}, "Ce-Knativeerrordata": {"b29wcw=="},
		}, test.data)
		if a.Status != test.status || a.Body != "" {
			t.Errorf("%s %s: %d %q, want %d and no body", test.kind, test.data, a.Status, a.Body, test.status)
		}
	}
	p.Stop()
	text := w.Query(`SELECT string_agg(concat_ws(' ', event_type, destination, status_code, cause, state, times), E'\n' ORDER BY event_type) FROM dead_letters`)
	if want := "ai.tuluat.session.due.v1 http://agent-step 500 oops OPEN 2\ndev.knative.sources.ping http://agent-step 500 oops MOOT 1"; text != want {
		t.Errorf("stored:\n%s\nwant:\n%s", text, want)
	}
}

func TestConfigurationSaysWhatIsMissing(t *testing.T) {
	err := function.Run(t.Context(), "dead-letter", func(string) string { return "" }, io.Discard, build, nil)
	functiontest.Complains(t, err, "DATABASE_URL")
}
