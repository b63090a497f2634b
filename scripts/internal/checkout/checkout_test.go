package checkout

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRoot(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	below := filepath.Join(dir, "a", "b")
	if err := os.MkdirAll(below, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(below)
	if _, err := Root(); err == nil {
		t.Error("found a repository where there is none")
	}
	if err := os.WriteFile(filepath.Join(dir, "go.work"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if root, err := Root(); err != nil || root != dir {
		t.Errorf("%q, %v", root, err)
	}
}
