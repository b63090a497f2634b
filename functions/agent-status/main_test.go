package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/function/functiontest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const agentYAML = "apiVersion: tuluat.ai/v1alpha1\nkind: AiAgent\nmetadata: {name: a}\n"

// The whole process: it starts, reconciles a folder on a ping, publishes once,
// and drains.
func TestProcess(t *testing.T) {
	w, dir := functiontest.NewWorld(t), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(agentYAML), 0o600); err != nil {
		t.Fatal(err)
	}
	p := w.Start("agent-status", build, map[string]string{"AGENTS_DIR": dir})
	p.DeliverTwice(event.Event{ID: "1", Type: event.Ping})
	if got := w.Broker.Take(); len(got) != 1 || got[0].Get("Ce-Type") != "ai.tuluat.agent.status.changed.v1" {
		t.Errorf("published %v", got)
	}
	if metrics := p.Metrics(); !strings.Contains(metrics, `tuluat_agent_status_changes_total{phase="READY"} 1`) {
		t.Errorf("metrics:\n%s", metrics)
	}
	p.Stop()
	if agents, err := w.Store.Agents(context.Background()); err != nil || len(agents) != 1 || agents[0].Phase != "READY" {
		t.Errorf("agents %+v, %v", agents, err)
	}
}

func TestConfigurationSaysEverythingThatIsMissing(t *testing.T) {
	err := function.Run(t.Context(), "agent-status", func(string) string { return "" }, io.Discard, build, nil)
	functiontest.Complains(t, err, "DATABASE_URL", "BROKER_URL", "AGENTS_DIR")
}
