package supervise

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// cgroups is where a Pod sees its own cgroup: of version 2 as a whole, of
// version 1 by controller. A local sandbox has none of it.
const cgroups = "/sys/fs/cgroup"

// cgroupFile returns the first of the files below root that there is.
func cgroupFile(root string, names ...string) ([]byte, bool) {
	for _, name := range names {
		if text, err := os.ReadFile(filepath.Join(root, name)); err == nil {
			return text, true
		}
	}
	return nil, false
}

// memoryLimit returns the sandbox's memory limit in bytes, and whether there is
// one that can be seen.
func memoryLimit(root string) (int64, bool) {
	text, ok := cgroupFile(root, "memory.max", "memory/memory.limit_in_bytes")
	if !ok {
		return 0, false
	}
	limit, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	return limit, err == nil // "max" of version 2; version 1 says a number beyond any machine
}

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
	text, ok := cgroupFile(cgroups, "memory.events", "memory/memory.oom_control")
	if !ok {
		return 0, false
	}
	return oomCount(text)
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

// room returns how many bytes of output may be kept, of all commands together:
// it is memory that the sandbox's limit counts too.
func room(root string) int64 {
	if limit, ok := memoryLimit(root); ok {
		return min(keptBytes, limit/2)
	}
	return keptBytes
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
