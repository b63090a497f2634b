//go:build system

package system_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"tuluat.ai/harness/shared/harness"
)

// agent is one AiAgent of a test, with one hook of its name.
type agent struct {
	name     string
	key      harness.Secret    // signs what goes through its hook
	commands int               // that one message may have run
	budget   string            // more of its budget, and of its spec behind that, as YAML
	files    map[string]string // beside its YAML
}

func newAgents(n int) []agent {
	var all []agent
	for i := range n {
		name := fmt.Sprintf("chaos-%d", i)
		a := agent{name: name, key: harness.Secret("signing-key-of-" + name), commands: 10}
		if i == 0 { // what it may not run must be told as well
			a.commands = 1
		}
		all = append(all, a)
	}
	return all
}

// secretVariable is where webhook-ingest finds the key.
func (a agent) secretVariable() string {
	return strings.ToUpper(strings.ReplaceAll(a.name, "-", "_")) + "_HOOK_SECRET"
}

// agentYAML: lives of sandboxes are short, so that they end of every cause
// within the test; two of them serve more sessions than that.
const agentYAML = `apiVersion: tuluat.ai/v1alpha1
kind: AiAgent
metadata:
  name: %[1]s
  annotations:
    tuluat.ai/allow-open-code: "true"
spec:
  description: Runs what the test says.
  systemPrompt: You run commands.
  harness:
    type: BOTH
    sandbox:
      cpu: "1"
      memory: 64Mi
      volumeSize: 8Mi
      timeoutSeconds: 30
      ttlSeconds: 60
      idleSeconds: 10
      egress: none
    maxSandboxes: 2
    channels:
      - type: WEBHOOK
        name: %[1]s
        secretRef:
          name: %[1]s-hook
          key: secret
        callbackURL: %[2]s/%[1]s
        senders:
          policy: open
  budget:
    maxExecutions: %[3]d
%[4]s`

func writeAgents(dir string, agents []agent, callback string) error {
	for _, a := range agents {
		for name, text := range a.files {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(dir, a.name+".yaml"), fmt.Appendf(nil, agentYAML, a.name, callback, a.commands, a.budget), 0o644); err != nil {
			return err
		}
	}
	return nil
}
