//go:build local

package local

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCgroupMounts(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want map[string]string
	}{
		"version 1, two controllers at one place": {
			"30 25 0:27 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n" +
				"31 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n" +
				"32 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n33 30 0:30 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n" +
				"34 30 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			map[string]string{"cpu": "/sys/fs/cgroup/cpu,cpuacct", "memory": "/sys/fs/cgroup/memory", "pids": "/sys/fs/cgroup/pids", "unified": "/sys/fs/cgroup/unified"},
		},
		"version 2": {"29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n", map[string]string{"unified": "/sys/fs/cgroup"}},
		"none":      {"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n", map[string]string{}},
	} {
		if diff := cmp.Diff(c.want, cgroupMounts(c.text)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for text, want := range map[string]string{
		"0::/user.slice/a.scope\n": "/user.slice/a.scope", "3:memory:/x\n0::/\n": "/", "3:memory:/x\n": "/",
	} {
		if got := ownUnified(text); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}

// A tree of plain folders stands for version 2: which files get which values,
// and which folder is chosen. The kernel's part is not tested by it.
func TestUnified(t *testing.T) {
	mount := t.TempDir()
	own := filepath.Join(mount, "user.slice", "user@1.service", "app.slice", "a.scope")
	if err := os.MkdirAll(own, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := unifiedParent(mount, "/user.slice/user@1.service/app.slice/a.scope"); err == nil {
		t.Fatal("found a parent where nothing can be enabled")
	}
	app := filepath.Join(mount, "user.slice", "user@1.service", "app.slice")
	delegated := filepath.Dir(app)
	for dir, enabled := range map[string]string{delegated: "cpu memory pids\n", mount: "cpu io memory pids\n"} {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(enabled), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	parent, err := unifiedParent(mount, "/user.slice/user@1.service/app.slice/a.scope")
	if err != nil || parent != delegated {
		t.Fatalf("%q, %v; want %q", parent, err, delegated)
	}
	l := limiter{unified: true, parents: map[string]string{"": parent}}
	if err := l.make("x", limits{cpuMillis: 1500, memoryBytes: 1 << 28, processes: 300}); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(parent, "x")
	if diff := cmp.Diff([]string{dir}, l.paths("x")); diff != "" {
		t.Error(diff)
	}
	for file, want := range map[string]string{
		"memory.max": "268435456", "memory.swap.max": "0", "pids.max": "300", "cpu.max": "150000 100000",
	} {
		if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", file, got, err, want)
		}
	}
	if err := os.WriteFile(l.oomFile("x"), []byte("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if n := oomKills(l.paths("x")); n != 2 {
		t.Errorf("%d kills", n)
	}
}
