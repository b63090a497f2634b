//go:build system

package system_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tuluat.ai/harness/scripts/internal/checkout"
)

var (
	flagMessages = flag.Int("messages", 1000, "messages of the chaos test")
	flagSessions = flag.Int("sessions", 50, "conversations of the chaos test")
	flagKills    = flag.Int("kills", 60, "times the chaos test kills a function")
	flagSeed     = flag.Uint64("seed", 0, "of everything drawn by lot; 0 draws one and prints it")
	flagPatience = flag.Duration("patience", 15*time.Minute, "how long the chaos test waits for the last answer")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(cleaned{m}) }

// cleaned removes what all tests share once the last has ended.
type cleaned struct{ m *testing.M }

func (c cleaned) Run() int {
	code := c.m.Run()
	if dir := programs.dir; dir != "" {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	return code
}

// programs are the functions and the runner, built for one machine once per
// run of this test binary.
var programs struct {
	once sync.Once
	dir  string
	err  error
}

func programDir(t testing.TB) string {
	t.Helper()
	programs.once.Do(func() { programs.dir, programs.err = build() })
	if programs.err != nil {
		t.Fatal(programs.err)
	}
	return programs.dir
}

func build() (dir string, err error) {
	home, err := checkout.Root()
	if err != nil {
		return "", err
	}
	mains, err := filepath.Glob(filepath.Join(home, "functions", "*", "main.go"))
	if err != nil {
		return "", err
	}
	if dir, err = os.MkdirTemp("", "tuluat-bin-"); err != nil {
		return "", err
	}
	args := []string{"build", "-tags", "local", "-buildvcs=false", "-o", dir + "/", "./functions/sandbox-exec/runner"}
	for _, main := range mains {
		args = append(args, "./functions/"+filepath.Base(filepath.Dir(main)))
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return dir, nil
}
