package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const agentYAML = "apiVersion: tuluat.ai/v1alpha1\nkind: AiAgent\nmetadata: {name: a}\n"

// The whole process: it starts, reconciles a folder on a ping, publishes once,
// and drains.
func TestProcess(t *testing.T) {
	var published lockedList
	broker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		published.add(r.Header.Get("Ce-Type"))
		w.WriteHeader(http.StatusAccepted)
	}))
	defer broker.Close()
	dir, dsn := t.TempDir(), postgrestest.DSN(t)
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(agentYAML), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"PORT": "0", "METRICS_PORT": "0", "DATABASE_URL": dsn.Reveal(), "BROKER_URL": broker.URL, "AGENTS_DIR": dir}
	ctx, stop := context.WithCancel(t.Context())
	ready, ended := make(chan function.Addresses, 1), make(chan error, 1)
	go func() {
		ended <- function.Run(ctx, "agent-status", func(k string) string { return env[k] }, io.Discard, build, func(a function.Addresses) { ready <- a })
	}()
	var at function.Addresses
	select {
	case at = <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	for range 2 {
		if status, body := ping(t, "http://"+at.HTTP+"/events"); status != http.StatusAccepted || body != "" {
			t.Errorf("a ping was answered %d %q", status, body)
		}
	}
	if got := published.all(); len(got) != 1 || got[0] != "ai.tuluat.agent.status.changed.v1" {
		t.Errorf("published %v", got)
	}
	if metrics := get(t, "http://"+at.Metrics+"/metrics"); !strings.Contains(metrics, `tuluat_agent_status_changes_total{phase="READY"} 1`) {
		t.Errorf("metrics:\n%s", metrics)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error("drain: ", err)
	}
	store, err := postgres.Open(dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if agents, err := store.Agents(context.Background()); err != nil || len(agents) != 1 || agents[0].Phase != "READY" {
		t.Errorf("agents %+v, %v", agents, err)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestConfigurationSaysEverythingThatIsMissing(t *testing.T) {
	err := function.Run(t.Context(), "agent-status", func(string) string { return "" }, io.Discard, build, nil)
	for _, name := range []string{"DATABASE_URL", "BROKER_URL", "AGENTS_DIR"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named: %v", name, err)
		}
	}
}

func ping(t *testing.T, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequest(http.MethodPost, url, bytes.NewReader([]byte("{}")))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{
		"Content-Type": "application/json", "Ce-Specversion": "1.0", "Ce-Id": "1", "Ce-Source": "test", "Ce-Type": "dev.knative.sources.ping",
		"Ce-Time": time.Now().UTC().Format(time.RFC3339),
	} {
		request.Header.Set(k, v)
	}
	return do(t, request)
}

func get(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, body := do(t, request)
	return body
}

func do(t *testing.T, request *http.Request) (int, string) {
	t.Helper()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

type lockedList struct {
	mu   sync.Mutex
	list []string
}

func (l *lockedList) add(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, s)
}

func (l *lockedList) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.list...)
}
