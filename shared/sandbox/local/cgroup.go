//go:build local

package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// limiter makes cgroups. Its zero value makes none.
type limiter struct {
	unified bool
	parents map[string]string // controller -> folder to make cgroups in; one entry "" when unified
}

var controllers = [...]string{"cpu", "memory", "pids"}

func (l limiter) works() bool { return len(l.parents) > 0 }

// findLimiter looks for a place where cgroups can be made: version 1 if the
// machine has its memory controller there, else version 2.
func findLimiter() (limiter, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return limiter{}, err
	}
	mounts := cgroupMounts(string(text))
	if mounts["memory"] != "" && mounts["pids"] != "" && mounts["cpu"] != "" {
		l := limiter{parents: map[string]string{}}
		for _, c := range controllers {
			if err := errors.Join(probe(mounts[c]), joinable(mounts[c])); err != nil {
				return limiter{}, err
			}
			l.parents[c] = mounts[c]
		}
		return l, nil
	}
	if mounts["unified"] == "" {
		return limiter{}, errors.New("no cgroups are mounted")
	}
	text, err = os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return limiter{}, err
	}
	parent, err := unifiedParent(mounts["unified"], ownUnified(string(text)))
	if err != nil {
		return limiter{}, err
	}
	if err := joinable(parent); err != nil {
		return limiter{}, err
	}
	return limiter{unified: true, parents: map[string]string{"": parent}}, nil
}

// cgroupMounts returns the mount point of each controller we use, and under
// "unified" that of version 2, from the text of /proc/self/mountinfo.
func cgroupMounts(mountinfo string) map[string]string {
	mounts := map[string]string{}
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		switch right[0] {
		case "cgroup2":
			mounts["unified"] = left[4]
		case "cgroup":
			for _, c := range controllers {
				if slices.Contains(strings.Split(right[2], ","), c) {
					mounts[c] = left[4]
				}
			}
		}
	}
	return mounts
}

// unifiedParent finds, from our own cgroup's parent up to the root, the nearest
// folder that may have children with our controllers. Our own cgroup holds us,
// and a cgroup of version 2 has either processes or limited children.
func unifiedParent(mount, own string) (string, error) {
	var problems []error
	for path := own; path != "/" && path != "." && path != ""; {
		path = filepath.Dir(path)
		parent := filepath.Join(mount, path)
		if err := enable(parent); err != nil {
			problems = append(problems, err)
			continue
		}
		if err := probe(parent); err != nil {
			problems = append(problems, err)
			continue
		}
		return parent, nil
	}
	if err := errors.Join(enable(mount), probe(mount)); err != nil {
		return "", errors.Join(append(problems, err)...)
	}
	return mount, nil
}

// ownUnified finds our own cgroup of version 2 in /proc/self/cgroup.
func ownUnified(text string) string {
	for line := range strings.Lines(text) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return path
		}
	}
	return "/"
}

// enable gives a folder's children our controllers, if they have them not yet.
func enable(parent string) error {
	path := filepath.Join(parent, "cgroup.subtree_control")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for _, c := range controllers {
		if slices.Contains(strings.Fields(string(text)), c) {
			continue
		}
		if err := os.WriteFile(path, []byte("+"+c), 0o644); err != nil {
			return fmt.Errorf("enable %s: %w", c, err)
		}
	}
	return nil
}

const probePrefix = "tuluat-probe-"

// makeProbe makes a cgroup to try things with, and first removes those of
// processes that were killed while they tried.
func makeProbe(parent string) (string, error) {
	old, err := filepath.Glob(filepath.Join(parent, probePrefix+"*"))
	if err != nil {
		return "", err
	}
	for _, dir := range old {
		number, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), probePrefix), "-")
		pid, err := strconv.Atoi(number)
		if err != nil || errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			_ = unix.Rmdir(dir) // another may be at it as well
		}
	}
	return os.MkdirTemp(parent, fmt.Sprintf("%s%d-", probePrefix, os.Getpid()))
}

// probe reports whether cgroups can be made there.
func probe(parent string) error {
	dir, err := makeProbe(parent)
	if err != nil {
		return err
	}
	return unix.Rmdir(dir)
}

// joinable reports whether a process of ours may move into a cgroup made there:
// version 2 asks for more than the right to make it.
func joinable(parent string) error {
	dir, err := makeProbe(parent)
	if err != nil {
		return err
	}
	out, err := exec.Command("sh", "-c", `echo $$ >"$1"`, "sh", filepath.Join(dir, "cgroup.procs")).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("join a cgroup: %w: %s", err, bytes.TrimSpace(out))
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), 5*time.Second, errors.New("removal of a probe"))
	defer cancel()
	return errors.Join(err, removeCgroups(ctx, []string{dir}))
}

// limits of one sandbox.
type limits struct {
	cpuMillis   int64
	memoryBytes int64
	processes   int64
}

// paths are the cgroups that make would make for a sandbox.
func (l limiter) paths(name string) []string {
	var all []string
	for _, parent := range l.parents {
		if path := filepath.Join(parent, name); !slices.Contains(all, path) {
			all = append(all, path)
		}
	}
	return all
}

// make makes the cgroups of a sandbox and sets its limits.
func (l limiter) make(name string, want limits) error {
	for _, path := range l.paths(name) {
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	const period = 100_000 // microseconds
	quota := strconv.FormatInt(max(want.cpuMillis*period/1000, 1000), 10)
	memory, pids := strconv.FormatInt(want.memoryBytes, 10), strconv.FormatInt(want.processes, 10)
	if l.unified {
		dir := filepath.Join(l.parents[""], name)
		// Swap would only make the limit slow; not every kernel counts it.
		_ = set(dir, "memory.swap.max", "0")
		return errors.Join(set(dir, "memory.max", memory), set(dir, "pids.max", pids), set(dir, "cpu.max", fmt.Sprintf("%s %d", quota, period)))
	}
	dir := func(controller string) string { return filepath.Join(l.parents[controller], name) }
	err := errors.Join(
		set(dir("memory"), "memory.limit_in_bytes", memory), set(dir("pids"), "pids.max", pids),
		set(dir("cpu"), "cpu.cfs_period_us", strconv.Itoa(period)), set(dir("cpu"), "cpu.cfs_quota_us", quota))
	_ = set(dir("memory"), "memory.memsw.limit_in_bytes", memory)
	return err
}

func set(dir, file, value string) error {
	return os.WriteFile(filepath.Join(dir, file), []byte(value), 0o644)
}

// oomFile is where the kernel counts what the memory limit has ended.
func (l limiter) oomFile(name string) string {
	if l.unified {
		return filepath.Join(l.parents[""], name, "memory.events")
	}
	return filepath.Join(l.parents["memory"], name, "memory.oom_control")
}

// oomKills returns how many processes the memory limit has ended; 0 when the
// cgroups say nothing.
func oomKills(cgroups []string) int {
	for _, dir := range cgroups {
		for _, file := range []string{"memory.events", "memory.oom_control"} {
			text, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				continue
			}
			for line := range bytes.Lines(text) {
				if value, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
					n, _ := strconv.Atoi(string(bytes.TrimSpace(value)))
					return n
				}
			}
		}
	}
	return 0
}

// members returns the processes in the cgroups.
func members(cgroups []string) []process {
	var all []process
	for _, dir := range cgroups {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue
		}
		for _, field := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				continue
			}
			if p, err := identify(pid); err == nil && !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	return all
}

// removeCgroups removes cgroups whose processes are dead; the kernel lets go
// of the last one a moment later.
func removeCgroups(ctx context.Context, cgroups []string) error {
	for _, dir := range cgroups {
		for {
			err := unix.Rmdir(dir)
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				break
			}
			if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EINTR) {
				return err
			}
			select {
			case <-ctx.Done():
				return errors.Join(err, context.Cause(ctx))
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	return nil
}
