package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/function/functiontest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const agentYAML = "apiVersion: tuluat.ai/v1alpha1\nkind: AiAgent\nmetadata: {name: coder}\n"

func bearer(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

// The whole process on one machine: nothing but health is open, a token opens the
// rest, a role only its part, and no token is in the log.
func TestProcess(t *testing.T) {
	const viewer = "a-viewers-token-0123456789"
	w, dir := functiontest.NewWorld(t, testToken, viewer), t.TempDir()
	tokens := filepath.Join(t.TempDir(), "tokens")
	for file, text := range map[string]string{filepath.Join(dir, "coder.yaml"): agentYAML, tokens: testToken + "\n" + viewer + " eve viewer\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := w.Start("management-api", build, map[string]string{"AGENTS_DIR": dir, "MANAGEMENT_TOKEN_FILE": tokens})
	for path, want := range map[string]int{
		"/healthz": 200, "/readyz": 200, "/": 401, "/events": 401, "/api/v1/agents": 401, "/api/v1/whoami": 401, "/api/v1/version": 401, "/openapi.json": 401, "/docs": 401, "/nothing": 401,
	} {
		if a := w.Send(http.MethodGet, p.URL+path, nil, ""); a.Status != want {
			t.Errorf("without a token %s answered %d, want %d", path, a.Status, want)
		}
	}
	for path, want := range map[string]int{"/api/v1/agents": 200, "/api/v1/whoami": 200, "/openapi.json": 200, "/docs": 200, "/nothing": 404} {
		if a := w.Send(http.MethodGet, p.URL+path, bearer(testToken), ""); a.Status != want || want == 200 && a.Body == "" {
			t.Errorf("with a token %s answered %d, want %d: %s", path, a.Status, want, a.Body)
		}
	}
	if a := w.Send(http.MethodGet, p.URL+"/api/v1/agents/coder", bearer(viewer), ""); a.Status != http.StatusOK || !strings.Contains(a.Body, `"coder"`) {
		t.Errorf("a viewer looks: %d %s", a.Status, a.Body)
	}
	header := bearer(viewer)
	header.Set("If-Match", "*")
	if a := w.Send(http.MethodDelete, p.URL+"/api/v1/agents/coder", header, ""); a.Status != http.StatusForbidden || !strings.Contains(a.Body, "delete aiagents.tuluat.ai") {
		t.Errorf("a viewer deletes: %d %s", a.Status, a.Body)
	}
	if _, err := os.Stat(filepath.Join(dir, "coder.yaml")); err != nil {
		t.Error(err)
	}
	p.Stop()
}

// With a key the console is there beside the API, and lets nobody in by itself.
func TestConsole(t *testing.T) {
	const key = "a-key-of-the-console-0123"
	w := functiontest.NewWorld(t, testToken, key)
	p := w.Start("management-api", build, map[string]string{"AGENTS_DIR": t.TempDir(), "MANAGEMENT_TOKEN": testToken, "CONSOLE_KEY": key})
	browser := http.Header{"Accept": {"text/html"}}
	for path, want := range map[string]string{"/console/sign-in": "Sign in", "/": "Sign in", "/console/": "Sign in"} {
		if a := w.Send(http.MethodGet, p.URL+path, browser, ""); !strings.Contains(a.Body, want) {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
	}
	if a := w.Send(http.MethodGet, p.URL+"/console/", bearer(testToken), ""); !strings.Contains(a.Body, "Sign in") {
		t.Errorf("a token that is no cookie opens the console: %d %s", a.Status, a.Body)
	}
	p.Stop()
	off := w.Start("management-api", build, map[string]string{"AGENTS_DIR": t.TempDir(), "MANAGEMENT_TOKEN": testToken})
	if a := w.Send(http.MethodGet, off.URL+"/console/", browser, ""); a.Status != http.StatusServiceUnavailable || !strings.Contains(a.Body, "CONSOLE_KEY") {
		t.Errorf("without a key: %d %s", a.Status, a.Body)
	}
	off.Stop()
}

// OPEN_DOCS opens the two documents and nothing else.
func TestOpenDocs(t *testing.T) {
	w := functiontest.NewWorld(t, testToken)
	p := w.Start("management-api", build, map[string]string{"AGENTS_DIR": t.TempDir(), "MANAGEMENT_TOKEN": testToken, "OPEN_DOCS": "true"})
	for path, want := range map[string]int{"/openapi.json": 200, "/docs": 200, "/api/v1/agents": 401} {
		if a := w.Send(http.MethodGet, p.URL+path, nil, ""); a.Status != want {
			t.Errorf("%s answered %d, want %d", path, a.Status, want)
		}
	}
}

// A process is ready while the API server is away, and lets nobody in meanwhile.
func TestStartsWithoutTheAPIServer(t *testing.T) {
	w := functiontest.NewWorld(t, testToken)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	const away = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	if err := os.WriteFile(file, []byte(away), 0o600); err != nil {
		t.Fatal(err)
	}
	p := w.Start("management-api", build, map[string]string{"ACCESS": "kubernetes", "AGENTS_SOURCE": "kubernetes", "KUBECONFIG": file})
	if a := w.Send(http.MethodGet, p.URL+"/readyz", nil, ""); a.Status != http.StatusOK {
		t.Errorf("ready: %d", a.Status)
	}
	if a := w.Send(http.MethodGet, p.URL+"/api/v1/sessions", bearer(testToken), ""); a.Status != http.StatusServiceUnavailable || strings.Contains(a.Body, testToken) {
		t.Errorf("a caller meanwhile: %d %s", a.Status, a.Body)
	}
}

func TestConfigurationSaysEverythingThatIsMissing(t *testing.T) {
	err := function.Run(t.Context(), "management-api", func(string) string { return "" }, io.Discard, build, nil)
	functiontest.Complains(t, err, "DATABASE_URL", "BROKER_URL", "AGENTS_DIR", "MANAGEMENT_TOKEN")
}
