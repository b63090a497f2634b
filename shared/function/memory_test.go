package function

import (
	"os"
	"path/filepath"
	"testing"
)

func TestContainerMemory(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	missing := filepath.Join(folder, "missing")
	for _, c := range []struct {
		files []string
		want  int64
	}{
		{[]string{file("v2", "268435456\n")}, 256 << 20},
		{[]string{file("none", "max\n")}, 0},
		{[]string{missing, file("v1", "536870912")}, 512 << 20},
		{[]string{missing, file("unlimited", "9223372036854771712")}, 0},
		{[]string{missing, file("odd", "lots")}, 0},
		{[]string{missing}, 0},
	} {
		if got := containerMemory(c.files); got != c.want {
			t.Errorf("%v: %d, want %d", c.files, got, c.want)
		}
	}
}
