//go:build system

package system_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/checkout"
)

// jumpingClock builds agent-step with a clock that can be another machine's: with
// a package time whose Now adds what a variable says. The source of the function
// is the same.
type jumpingClock struct {
	binary string

	mu sync.Mutex
	by time.Duration
}

const jumpVariable = "CLOCK_OF_THE_TEST"

func newJumpingClock(t *testing.T) *jumpingClock {
	t.Helper()
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("go", "env", "GOROOT").Output()
	must(err)
	original := filepath.Join(strings.TrimSpace(string(out)), "src", "time", "time.go")
	text, err := os.ReadFile(original)
	must(err)
	const head = "func Now() Time {"
	if strings.Count(string(text), head) != 1 {
		t.Fatalf("%s has no %q", original, head)
	}
	patched := strings.Replace(string(text), head, `var jump = func() Duration {
	text, _ := syscall.Getenv("`+jumpVariable+`")
	by, _ := ParseDuration(text)
	return by
}()

func Now() Time { return ownNow().Add(jump) }

func ownNow() Time {`, 1)
	patched = strings.Replace(patched, "import (", "import (\n\t\"syscall\"", 1)
	must(os.WriteFile(filepath.Join(dir, "time.go"), []byte(patched), 0o600))
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{original: filepath.Join(dir, "time.go")}})
	must(err)
	must(os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	home, err := checkout.Root()
	must(err)
	c := &jumpingClock{binary: filepath.Join(dir, "agent-step")}
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-buildvcs=false", "-o", c.binary, "./functions/agent-step")
	build.Dir, build.Env = home, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("agent-step with another clock: %v\n%s", err, out)
	}
	return c
}

func (c *jumpingClock) set(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by = by
}

// program is what runs as a function while the clock is another.
func (c *jumpingClock) program(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if name != "agent-step" || c.by == 0 {
		return ""
	}
	return c.binary
}

func (c *jumpingClock) env(function string, env map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if function == "agent-step" && c.by != 0 {
		env[jumpVariable] = c.by.String()
	}
}
