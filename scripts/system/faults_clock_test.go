//go:build system

package system_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/checkout"
)

var flagClock = flag.String("clock", "webhook-ingest", "the functions, by comma, that are built a second time, with a clock that can be another: all of what they link is compiled for it")

// jumpingClock has functions whose clock can be another machine's: with a package
// time whose Now adds what a variable says, and measures time as before. The source of the function is the same.
type jumpingClock struct {
	functions []string
	dir       string
	built     chan error // one

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

func Now() Time {
	t := ownNow()
	m := t.mono()
	t.stripMono()
	t = t.Add(jump)
	t.setMono(m)
	return t
}

func ownNow() Time {`, 1)
	patched = strings.Replace(patched, "import (", "import (\n\t\"syscall\"", 1)
	must(os.WriteFile(filepath.Join(dir, "time.go"), []byte(patched), 0o600))
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{original: filepath.Join(dir, "time.go")}})
	must(err)
	must(os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	home, err := checkout.Root()
	must(err)
	c := &jumpingClock{functions: strings.Split(*flagClock, ","), dir: dir, built: make(chan error, 1)}
	args := []string{"build", "-overlay", filepath.Join(dir, "overlay.json"), "-buildvcs=false", "-o", dir + "/"}
	for _, name := range c.functions {
		args = append(args, "./functions/"+name)
	}
	build := exec.CommandContext(t.Context(), "go", args...) // beside the first faults
	build.Dir, build.Env = home, append(os.Environ(), "CGO_ENABLED=0")
	go func() { // ends with the command, which the test's context ends
		out, err := build.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
		}
		c.built <- err
	}()
	return c
}

// await returns when the functions are built.
func (c *jumpingClock) await(t *testing.T) {
	t.Helper()
	err := <-c.built
	c.built <- err
	if err != nil {
		t.Fatal(err)
	}
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
	if !slices.Contains(c.functions, name) || c.by == 0 {
		return ""
	}
	return filepath.Join(c.dir, name)
}

// env leaves the Services that hear the world alone: they would refuse signatures,
// rightly.
func (c *jumpingClock) env(service string, env map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by != 0 && !strings.HasSuffix(service, "-ingest") {
		env[jumpVariable] = c.by.String()
	}
}

// services are those whose clock jumps.
func (c *jumpingClock) services() (names []string) {
	for _, name := range c.functions {
		if strings.HasSuffix(name, "-ingest") {
			name += "-events"
		}
		names = append(names, name)
	}
	return names
}
