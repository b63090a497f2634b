package supervise

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// oomFiles are where a Pod sees the counters of its own memory limit.
var oomFiles = [...]string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"}

// oomKills returns how many processes the sandbox's memory limit has ended so
// far, and whether that can be seen at all.
func (s *supervisor) oomKills() (int, bool) {
	if s.opts.OOMFD >= 0 {
		buf := make([]byte, 4<<10)
		n, err := unix.Pread(s.opts.OOMFD, buf, 0)
		if err != nil {
			return 0, false
		}
		return oomCount(buf[:n])
	}
	for _, path := range oomFiles {
		if text, err := os.ReadFile(path); err == nil {
			return oomCount(text)
		}
	}
	return 0, false
}

// oomCount reads the line "oom_kill N", which both versions of cgroups have.
func oomCount(text []byte) (int, bool) {
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			n, err := strconv.Atoi(string(bytes.TrimSpace(value)))
			return n, err == nil
		}
	}
	return 0, false
}

// diskFull reports whether one of the writable volumes has no room left.
func diskFull(paths []string) bool {
	for _, path := range paths {
		var st unix.Statfs_t
		if unix.Statfs(path, &st) == nil && (st.Bavail == 0 || st.Files > 0 && st.Ffree == 0) {
			return true
		}
	}
	return false
}
