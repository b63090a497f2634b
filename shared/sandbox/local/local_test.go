//go:build local

package local_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/local"
	"tuluat.ai/harness/shared/sandbox/sandboxtest"
)

const evidenceInside = "/evidence"

// runner is the binary that all tests of this package use.
var runner string

func TestMain(m *testing.M) {
	if os.Getenv(helperEnv) != "" {
		helper()
		return
	}
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "tr")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return 0, err
	}
	runner = filepath.Join(dir, "runner")
	build := exec.Command("go", "build", "-o", runner, "./runner")
	build.Dir = filepath.Join("..", "..", "..", "functions", "sandbox-exec")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build the runner: %w: %s", err, out)
	}
	code := m.Run()
	if left := staleProbes(); len(left) > 0 {
		return 1, fmt.Errorf("cgroups left by processes that are dead: %v", left)
	}
	if err := goleak.Find(); err != nil && code == 0 {
		return 1, err
	}
	return code, nil
}

// shortDir is a folder with a path short enough for sockets, passable for
// anyone, and gone after the test.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ts")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func newDriver(t *testing.T) (d *local.Driver, dir, evidence string) {
	t.Helper()
	root := shortDir(t)
	dir, evidence = filepath.Join(root, "s"), filepath.Join(root, "e")
	if err := os.Mkdir(evidence, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(evidence, 0o777); err != nil {
		t.Fatal(err)
	}
	d, err := local.New(local.Options{
		Dir: dir, Runner: runner, Binds: []string{evidence + ":" + evidenceInside},
		Log: slog.New(slog.NewTextHandler(testLog{t}, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		found, err := d.List(t.Context())
		if err == nil && len(found) > 0 {
			t.Errorf("left behind: %+v", found)
		}
	})
	return d, dir, evidence
}

// bound is a folder of this machine, mounted into every sandbox.
type bound string

func (bound) Inside() string { return evidenceInside }

func (b bound) Read(t *testing.T, _ sandbox.Sandbox, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(string(b), name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	return string(text)
}

func (b bound) Write(t *testing.T, _ sandbox.Sandbox, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(string(b), name), nil, 0o644); err != nil {
		t.Error(err)
	}
}

func TestSuite(t *testing.T) {
	sandboxtest.Run(t, func(t *testing.T) sandboxtest.Bench {
		d, dir, evidence := newDriver(t)
		return sandboxtest.Bench{
			Driver: d, Evidence: bound(evidence),
			Client: func(sb sandbox.Sandbox, argv ...string) []string {
				return append([]string{runner, argv[0], "--socket", filepath.Join(dir, sb.Name, "ctl")}, argv[1:]...)
			},
		}
	})
}

// staleProbes makes one more driver find its cgroups, which removes what killed
// processes left of their own search, and returns what it did not remove.
func staleProbes() (left []string) {
	dir, err := os.MkdirTemp("", "ts")
	if err != nil {
		return []string{err.Error()}
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return []string{err.Error()}
	}
	d, err := local.New(local.Options{Dir: filepath.Join(dir, "s"), Runner: runner})
	if err != nil {
		return []string{err.Error()}
	}
	if err := d.Terminate(context.Background(), sandbox.Sandbox{Name: "none"}); err != nil {
		return []string{err.Error()}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/tuluat-probe-*", "/sys/fs/cgroup/*/tuluat-probe-*"} {
		probes, _ := filepath.Glob(pattern)
		for _, p := range probes {
			pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(p), "tuluat-probe-"), "-")
			if _, err := os.Stat("/proc/" + pid); err != nil {
				left = append(left, p)
			}
		}
	}
	return left
}
