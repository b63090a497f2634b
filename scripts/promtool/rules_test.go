// Package promtool holds the tests of what config/components/monitoring gives to
// Prometheus and Grafana. It is a module of its own: what Prometheus requires
// lifts no version under a function.
package promtool

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

const monitoring = "../../config/components/monitoring"

// promtool runs Prometheus' own tool.
func promtool(t *testing.T, arguments ...string) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"tool", "promtool"}, arguments...)...)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %v: %v\n%s", arguments, err, out)
	}
}

func TestRules(t *testing.T) {
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", filepath.Join(monitoring, "rules.yaml"))
	promtool(t, "test", "rules", "rules_test.yaml")
}

func TestScrapeConfig(t *testing.T) {
	promtool(t, "check", "config", "--syntax-only", filepath.Join(monitoring, "prometheus.yaml"))
}

// Every alert has a test in which it fires, and its line in the runbook.
func TestEveryAlertIsTested(t *testing.T) {
	groups, problems := rulefmt.ParseFile(filepath.Join(monitoring, "rules.yaml"), false, model.UTF8Validation)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	tests, err := os.ReadFile("rules_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	runbook, err := os.ReadFile(filepath.Join(monitoring, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	alerts := 0
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" {
				continue
			}
			alerts++
			if !bytes.Contains(tests, []byte("alertname: "+r.Alert+"\n        exp_alerts:\n")) {
				t.Errorf("%s: no test in which it fires", r.Alert)
			}
			if !bytes.Contains(runbook, []byte("\n| `"+r.Alert+"` |")) {
				t.Errorf("%s: no line in the runbook", r.Alert)
			}
			if r.Annotations["summary"] == "" || r.Annotations["runbook_url"] == "" || r.Labels["severity"] == "" {
				t.Errorf("%s: a summary, a runbook_url and a severity are needed", r.Alert)
			}
		}
	}
	if alerts == 0 {
		t.Error("no alerts")
	}
}

// What panels ask for is PromQL.
func TestDashboards(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(monitoring, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var dashboard struct {
			UID, Title string
			Panels     []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		if err := json.Unmarshal(text, &dashboard); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if dashboard.UID == "" || dashboard.Title == "" || len(dashboard.Panels) == 0 {
			t.Errorf("%s: no uid, title or panels", file)
		}
		for _, p := range dashboard.Panels {
			for _, target := range p.Targets {
				expr := string(bytes.ReplaceAll([]byte(target.Expr), []byte("$__rate_interval"), []byte("5m")))
				if _, err := parser.ParseExpr(expr); err != nil {
					t.Errorf("%s, %s: %v", filepath.Base(file), p.Title, err)
				}
			}
		}
	}
}
