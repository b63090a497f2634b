package main

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"tuluat.ai/harness/shared/function/functiontest"
)

// Every metric that a rule or a panel names is there when this process is scraped,
// at its second port; at its first one only for whoever may list sessions.
func TestMetrics(t *testing.T) {
	const approver = "an-approvers-token-0123456789"
	w, tokens := functiontest.NewWorld(t, testToken), filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte(testToken+" eve viewer\n"+approver+" bob approver\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Agents("coder")
	w.Exec(`UPDATE agent_revisions SET spec = '{"name": "coder", "model": {"name": "m"}, "guardrails": {"input": [{"name": "g", "type": "PII", "action": "block"}]}}'`)
	w.Exec(`INSERT INTO sweep_reports (started_at, findings) VALUES (now(), '{"leaks": {"found": 0, "done": 0, "left": 0}}')`)
	w.Exec(`UPDATE comparisons SET compared_at = now()`)
	p := w.Start("management-api", build, map[string]string{"AGENTS_DIR": t.TempDir(), "MANAGEMENT_TOKEN_FILE": tokens})
	if a := w.Send(http.MethodGet, p.URL+"/api/v1/metrics", nil, ""); a.Status != http.StatusUnauthorized {
		t.Errorf("without a token: %d", a.Status)
	}
	a := w.Send(http.MethodGet, p.URL+"/api/v1/metrics", bearer(testToken), "")
	if a.Status != http.StatusOK || !strings.Contains(a.Body, "tuluat_figures_up 1\n") || strings.Contains(a.Body, "tuluat_requests_total") {
		t.Errorf("a viewer scrapes: %d %s", a.Status, a.Body)
	}
	scraped := p.Metrics()
	for _, want := range []string{
		`tuluat_requests_total{function="management-api",outcome="ok",request="get-metrics"} 1`, `tuluat_requests_total{function="management-api",outcome="refused",request="unmatched"} 1`, "tuluat_figures_up 1",
	} {
		if !strings.Contains(scraped, want) {
			t.Errorf("no %s", want)
		}
	}
	files, err := filepath.Glob("../../config/components/monitoring/*")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	named, found := regexp.MustCompile(`\btuluat_[a-z_]+`), 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		start := `(?m)^`
		if filepath.Ext(file) == ".md" { // people are told of a histogram, not of its series
			start += `(# TYPE )?`
		}
		for _, name := range named.FindAllString(string(text), -1) {
			found++
			if !regexp.MustCompile(start + name + `[ {]`).MatchString(scraped) {
				t.Errorf("%s names %s, which nothing has", filepath.Base(file), name)
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d names found", found)
	}
	p.Stop()
}
