package functiontest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Sandboxes returns a folder for local sandboxes, short and open to their users,
// and the runner, built from the package in the folder source. A build that
// fails is fatal.
func Sandboxes(t testing.TB, source string) (dir, runner string) {
	t.Helper()
	root, err := os.MkdirTemp("", "ts")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	runner = filepath.Join(root, "runner")
	build := exec.Command("go", "build", "-o", runner, ".")
	build.Dir, build.Env = source, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the runner: %v: %s", err, out)
	}
	return filepath.Join(root, "s"), runner
}
