//go:build local

package local_test

import (
	"os"
	"path/filepath"
	"testing"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/local"
	"tuluat.ai/harness/shared/sandbox/sandboxtest"
)

func BenchmarkStartAndTerminate(b *testing.B) {
	d, err := local.New(local.Options{Dir: benchDir(b), Runner: runner})
	if err != nil {
		b.Skip(err)
	}
	for b.Loop() {
		sb := sandboxtest.New(sandboxtest.Spec())
		if _, err := d.Start(b.Context(), sb); err != nil {
			b.Fatal(err)
		}
		if err := d.Terminate(b.Context(), sb); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkExec(b *testing.B) {
	d, err := local.New(local.Options{Dir: benchDir(b), Runner: runner})
	if err != nil {
		b.Skip(err)
	}
	sb := sandboxtest.New(sandboxtest.Spec())
	if sb.UID, err = d.Start(b.Context(), sb); err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := d.Terminate(b.Context(), sb); err != nil {
			b.Error(err)
		}
	}()
	for b.Loop() {
		res, err := sandbox.Exec(b.Context(), d, sb, sandboxtest.Command("true"), nil)
		if err != nil || res.State != harness.ExecutionCompleted {
			b.Fatal(res, err)
		}
	}
}

func benchDir(b *testing.B) string {
	b.Helper()
	dir, err := os.MkdirTemp("", "tb")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	return filepath.Join(dir, "s")
}
