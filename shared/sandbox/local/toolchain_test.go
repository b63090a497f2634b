//go:build local

package local_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox/sandboxtest"
)

// What people do first with a language works in a sandbox of this machine's own
// programs, as far as it has them where a sandbox sees them. golang is left to
// the cluster: it compiles the standard library twice, which takes minutes.
func TestToolchains(t *testing.T) {
	for language, programs := range map[string][]string{"python": {"python3"}, "node": {"node", "npm"}, "java": {"javac", "java"}} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			for _, program := range programs {
				if !visible(program) {
					t.Skipf("sandboxes of this machine have no %s", program)
				}
			}
			d, _, _ := newDriver(t)
			sandboxtest.Toolchain(t, d, harness.DefaultSandbox(), language)
		})
	}
}

// visible reports whether a sandbox finds a program: below /usr.
func visible(program string) bool {
	cmd := exec.Command("sh", "-c", "command -v "+program)
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin"}
	out, err := cmd.Output()
	if err != nil {
		return false
	}
	_, err = os.Stat(strings.TrimSpace(string(out)))
	return err == nil
}
