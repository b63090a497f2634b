package kubernetes_test

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/secret/kubernetes"
)

// A scripted API server that lists what it is given, over TLS with a CA of its own.
func TestOnlyWhatIsLabelledForTheAgent(t *testing.T) {
	item := func(name, label, value string) map[string]any {
		return map[string]any{
			"metadata": map[string]any{"name": name, "labels": map[string]string{kubernetes.Label: label}},
			"data":     map[string][]byte{"key": []byte(value)},
		}
	}
	items := []any{item("mine", "coder", "new,old\n"), item("anybodys", kubernetes.Any, "shared"), item("others", "other", "x")}
	asked, down := 0, false
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if down || r.URL.Path != "/api/v1/namespaces/agents/secrets" || r.URL.Query().Get("labelSelector") != kubernetes.Label || r.Header.Get("Authorization") != "Bearer the-token" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		if err := json.NewEncoder(w).Encode(map[string]any{"kind": "SecretList", "items": items}); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	folder := t.TempDir()
	for name, text := range map[string][]byte{
		"token": []byte("the-token\n"), "ca.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	source := kubernetes.New(server.URL, folder, "agents", func() time.Time { return now })
	values := func(name, key string) []harness.Secret {
		t.Helper()
		got, err := source.Values(t.Context(), "coder", harness.SecretRef{Name: name, Key: key})
		if err != nil {
			t.Fatalf("%s/%s: %v", name, key, err)
		}
		return got
	}
	for _, c := range []struct {
		name, key string
		want      []string
	}{
		{"mine", "key", []string{"new", "old"}},
		{"anybodys", "key", []string{"shared"}},
		{"others", "key", nil},
		{"mine", "other", nil},
		{"missing", "key", nil},
	} {
		got := values(c.name, c.key)
		if len(got) != len(c.want) {
			t.Fatalf("%s/%s: %d values", c.name, c.key, len(got))
		}
		for i := range got {
			if got[i].Reveal() != c.want[i] {
				t.Errorf("%s/%s: value %d is another", c.name, c.key, i)
			}
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	for _, c := range []struct {
		name, key string
		want      harness.SecretState
		reason    string
	}{
		{"mine", "key", harness.SecretAvailable, ""},
		{"anybodys", "key", harness.SecretAvailable, ""},
		{"others", "key", harness.SecretDenied, "the Secret others in agents is labelled for another agent: label one tuluat.ai/agent-access=coder, or name another"},
		{"mine", "other", harness.SecretEmpty, "the Secret mine in agents has no key other with a value: add it"},
		{"missing", "key", harness.SecretNotFound, "no Secret missing with the label tuluat.ai/agent-access=coder is in agents: create it with key key, or label it"},
	} {
		got, err := source.Check(t.Context(), "coder", harness.SecretRef{Name: c.name, Key: c.key})
		if err != nil || got.State != c.want || got.Reason != c.reason {
			t.Errorf("%s/%s: %+v, %v", c.name, c.key, got, err)
		}
	}
	now = now.Add(3 * time.Second)
	if _, err := source.Check(t.Context(), "coder", harness.SecretRef{Name: "mine", Key: "key"}); err != nil || asked != 2 {
		t.Errorf("a check three seconds later: %v, asked %d times", err, asked)
	}
	items[0], now = item("mine", "coder", "newest"), now.Add(31*time.Second)
	if got := values("mine", "key"); len(got) != 1 || got[0].Reveal() != "newest" {
		t.Errorf("after a rotation: %d values", len(got))
	}
	down, now = true, now.Add(time.Minute)
	if got := values("mine", "key"); len(got) != 1 {
		t.Errorf("while the API server is down: %d values", len(got))
	}
	now = now.Add(time.Hour)
	if _, err := source.Values(t.Context(), "coder", harness.SecretRef{Name: "mine", Key: "key"}); harness.KindOf(err) != harness.Unavailable {
		t.Errorf("after an hour without it: %v", err)
	}
}

func TestOutsideOfACluster(t *testing.T) {
	if _, err := kubernetes.InCluster("agents", func(string) string { return "" }, time.Now); harness.KindOf(err) != harness.Invalid {
		t.Error(err)
	}
}
