package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/function"
)

func env(extra map[string]string) func(string) string {
	all := map[string]string{
		"PORT": "0", "METRICS_PORT": "0", "BROKER_URL": "http://127.0.0.1:1/", "MODEL_NAME": "m",
		"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none", "OPENAI_API_KEY": "key",
	}
	for k, v := range extra {
		all[k] = v
	}
	return func(name string) string { return all[name] }
}

// The process is ready while the database and the model are down, answers 503
// meanwhile with an empty body, and ends well.
func TestReadyWithoutTheWorld(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan function.Addresses, 1), make(chan error, 1)
	go func() {
		done <- function.Run(ctx, "agent-step", env(nil), io.Discard, build, func(a function.Addresses) { ready <- a })
	}()
	var address function.Addresses
	select {
	case address = <-ready:
	case err := <-done:
		t.Fatal(err)
	case <-time.After(10 * time.Second):
		t.Fatal("not ready")
	}
	request, err := http.NewRequest(http.MethodPost, "http://"+address.HTTP+"/events", strings.NewReader(`{"session": "ses_1"}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Ce-Specversion": "1.0", "Ce-Id": "1", "Ce-Source": "test", "Ce-Type": "ai.tuluat.session.due.v1", "Content-Type": "application/json",
	} {
		request.Header.Set(name, value)
	}
	for range 2 {
		request.Body, _ = request.GetBody()
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode != http.StatusServiceUnavailable || len(body) != 0 {
			t.Fatalf("status %d, body %q", response.StatusCode, body)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestConfigNamesEveryProblem(t *testing.T) {
	_, err := parseConfig(func(name string) string {
		return map[string]string{"LEASE": "soon", "MODEL_PROVIDER": "oracle"}[name]
	})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, name := range []string{"DATABASE_URL", "BROKER_URL", "MODEL_NAME", "MODEL_PROVIDER", "LEASE"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in %q", name, err)
		}
	}
}
