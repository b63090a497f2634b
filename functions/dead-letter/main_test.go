package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The whole process takes an event as a broker sends it after giving up.
func TestProcess(t *testing.T) {
	dsn := postgrestest.DSN(t)
	env := map[string]string{"PORT": "0", "METRICS_PORT": "0", "DATABASE_URL": dsn.Reveal()}
	ctx, stop := context.WithCancel(t.Context())
	ready, ended := make(chan function.Addresses, 1), make(chan error, 1)
	go func() {
		ended <- function.Run(ctx, "dead-letter", func(k string) string { return env[k] }, io.Discard, build, func(a function.Addresses) { ready <- a })
	}()
	var at function.Addresses
	select {
	case at = <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
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
		request, err := http.NewRequest(http.MethodPost, "http://"+at.HTTP+"/events", strings.NewReader(test.data))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range map[string]string{
			"Content-Type": "application/json", "Ce-Specversion": "1.0", "Ce-Id": "1", "Ce-Source": "test", "Ce-Type": test.kind,
			"Ce-Knativeerrordest": "http://agent-step", "Ce-Knativeerrorcode": "500", "Ce-Knativeerrordata": "b29wcw==",
		} {
			request.Header.Set(k, v)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != test.status || len(body) != 0 {
			t.Errorf("%s %s: %d %q %v, want %d and no body", test.kind, test.data, response.StatusCode, body, err, test.status)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error("drain: ", err)
	}
	http.DefaultClient.CloseIdleConnections()
	store, err := postgres.Open(dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	var text string
	if err := store.Pool().QueryRow(context.Background(),
		`SELECT string_agg(concat_ws(' ', event_type, destination, status_code, cause, state, times), E'\n' ORDER BY event_type) FROM dead_letters`).Scan(&text); err != nil {
		t.Fatal(err)
	}
	if want := "ai.tuluat.session.due.v1 http://agent-step 500 oops OPEN 2\ndev.knative.sources.ping http://agent-step 500 oops MOOT 1"; text != want {
		t.Errorf("stored:\n%s\nwant:\n%s", text, want)
	}
}

func TestConfigurationSaysWhatIsMissing(t *testing.T) {
	err := function.Run(t.Context(), "dead-letter", func(string) string { return "" }, io.Discard, build, nil)
	if err == nil || !strings.Contains(err.Error(), "DATABASE_URL") {
		t.Errorf("got %v", err)
	}
}
