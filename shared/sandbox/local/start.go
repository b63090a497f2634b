//go:build local

package local

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

const (
	startBound = 30 * time.Second // from the first line to taking commands
	purgeBound = 15 * time.Second // to prove that nothing is left
)

// Start makes the sandbox.
func (d *Driver) Start(ctx context.Context, sb sandbox.Sandbox) (string, error) {
	now := time.Now()
	switch {
	case !validName.MatchString(sb.Name):
		return "", sandbox.Fail(harness.Invalid, sandbox.ReasonSpec, fmt.Sprintf("%q cannot name a sandbox", sb.Name), nil)
	case sb.ID == "":
		return "", sandbox.Fail(harness.Invalid, sandbox.ReasonSpec, "a sandbox needs an id", nil)
	case sb.Spec.MemoryBytes <= 0 || sb.Spec.CPUMillis <= 0 || sb.Spec.VolumeBytes <= 0:
		return "", sandbox.Fail(harness.Invalid, sandbox.ReasonSpec, "a sandbox needs a limit of cpu, memory and volume", nil)
	case !sb.ExpiresAt.After(now):
		return "", sandbox.Fail(harness.Invalid, sandbox.ReasonSpec, "the sandbox would end before it starts", nil)
	}
	if err := d.prepare(); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startBound, errors.New("start of a local sandbox"))
	defer cancel()
	unlock, err := d.lock(ctx, sb.Name)
	if err != nil {
		return "", err
	}
	defer unlock()

	p := d.place(sb.Name)
	switch st, err := readState(p); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return "", sandbox.Fail(harness.Internal, sandbox.ReasonStartFailed, "the sandbox's state is unreadable", err)
	case st.ID != sb.ID:
		return "", sandbox.Fail(harness.Conflict, sandbox.ReasonTaken, "another sandbox has this name", nil)
	case st.UID != "" && st.Process.alive():
		return st.UID, nil
	case st.UID != "":
		return "", sandbox.Fail(harness.NotFound, sandbox.ReasonEnded, "this sandbox has ended; a new one needs a new name", nil)
	}
	// What is here is the rest of a start that never finished: nobody got its
	// uid, so no command ran in it.
	if err := d.purge(ctx, p); err != nil {
		return "", err
	}
	st, err := d.create(ctx, p, sb, now)
	if err != nil {
		return "", errors.Join(err, d.purge(ctx, p))
	}
	return st.UID, nil
}

// create starts the sandbox and waits until it takes commands.
func (d *Driver) create(ctx context.Context, p place, sb sandbox.Sandbox, now time.Time) (state, error) {
	failed := func(what string, err error) (state, error) {
		if ctx.Err() != nil {
			return state{}, sandbox.Fail(harness.Unavailable, sandbox.ReasonStartTimeout, "the sandbox did not come up in time", errors.Join(fmt.Errorf("%s: %w", what, err), context.Cause(ctx)))
		}
		return state{}, sandbox.Fail(harness.Unavailable, sandbox.ReasonStartFailed, "the sandbox did not come up", fmt.Errorf("%s: %w%s", what, err, said(p)))
	}
	st := state{ID: sb.ID, Agent: sb.Agent, Session: sb.Session, Token: rand.Text(), CreatedAt: now.UTC()}
	if d.limits.works() {
		st.Cgroups = d.limits.paths(d.cgroup(sb.Name))
	}
	if err := os.Mkdir(string(p), 0o700); err != nil {
		return failed("make its folder", err)
	}
	if err := st.write(p); err != nil {
		return failed("write its state", err)
	}
	if d.limits.works() {
		if err := d.limits.make(d.cgroup(sb.Name), limits{
			cpuMillis: sb.Spec.CPUMillis, memoryBytes: memoryBytes(sb), processes: maxProcesses + ownProcesses,
		}); err != nil {
			return failed("limit it", err)
		}
	}
	pid, err := d.launch(ctx, p, sb, st, now)
	if err != nil {
		if refused := d.Check(ctx); refused != nil && ctx.Err() == nil {
			return state{}, refused // the machine's fault, and there is something to do about it
		}
		return failed("launch it", err)
	}
	if st.Process, err = identify(pid); err != nil {
		return failed("find its PID 1", err)
	}
	if err := d.await(ctx, p, st.Process); err != nil {
		return failed("reach its PID 1", err)
	}
	st.UID = st.Process.uid()
	if err := st.write(p); err != nil {
		return failed("write its state", err)
	}
	return st, nil
}

// cgroup is a sandbox's name among all cgroups of the machine.
func (d *Driver) cgroup(name string) string {
	return "tuluat-" + shortHash(d.dir) + "-" + name
}

// prelude puts a process into cgroups before it becomes what it shall be.
// Arguments: how many, their cgroup.procs files, the program.
const prelude = `n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ >"$1" || exit 1; shift; n=$((n-1)); done; exec "$@"`

// detach leaves a process to the machine's init, as it outlives us.
const detach = `"$@" &`

// launch starts the process tree and returns the pid of its PID 1 as this
// machine sees it. The sandbox gets, beside that: the lock that says it lives,
// the socket it is reached by, and the counters of its memory limit.
func (d *Driver) launch(ctx context.Context, p place, sb sandbox.Sandbox, st state, now time.Time) (pid int, err error) {
	var files []*os.File
	defer func() {
		for _, f := range files {
			err = errors.Join(err, f.Close())
		}
	}()
	pass := func(f *os.File) int {
		files = append(files, f)
		return 2 + len(files)
	}
	alive, err := os.OpenFile(p.alive(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return 0, err
	}
	pass(alive)
	if err := unix.Flock(int(alive.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return 0, err
	}
	socket, err := listen(p.socket())
	if err != nil {
		return 0, err
	}
	fds := inherited{listen: pass(socket), oom: -1}
	infoR, infoW, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer infoR.Close()
	fds.info = pass(infoW)
	if d.limits.works() {
		oom, err := os.Open(d.limits.oomFile(d.cgroup(sb.Name)))
		if err != nil {
			return 0, err
		}
		fds.oom = pass(oom)
	}
	log, err := os.OpenFile(p.log(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return 0, err
	}
	defer log.Close()

	argv := []string{"-c", detach, "sh", "sh", "-c", prelude, "sh", fmt.Sprint(len(st.Cgroups))}
	for _, dir := range st.Cgroups {
		argv = append(argv, dir+"/cgroup.procs")
	}
	cmd := exec.CommandContext(ctx, "sh", append(argv, d.bwrapArgs(sb, st.Token, fds, now)...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal's Ctrl-C reaches it
	if err := cmd.Run(); err != nil {
		return 0, err
	}
	err = infoW.Close() // the sandbox's makers have the other copies: their end is the end of file
	files = removeFile(files, infoW)
	if err != nil {
		return 0, err
	}
	return childPID(ctx, infoR)
}

func removeFile(files []*os.File, f *os.File) []*os.File {
	for i := range files {
		if files[i] == f {
			return append(files[:i:i], files[i+1:]...)
		}
	}
	return files
}

// listen returns the listening socket of a sandbox.
func listen(path string) (*os.File, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	file, err := l.File()
	return file, errors.Join(err, l.Close())
}

// childPID reads what bubblewrap says of the process it made.
func childPID(ctx context.Context, r *os.File) (int, error) {
	if deadline, ok := ctx.Deadline(); ok {
		if err := r.SetReadDeadline(deadline); err != nil {
			return 0, err
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Now()) })
	defer stop()
	var info struct {
		PID int `json:"child-pid"`
	}
	if err := json.NewDecoder(io.LimitReader(r, 64<<10)).Decode(&info); err != nil {
		return 0, fmt.Errorf("bubblewrap made no sandbox: %w", err)
	}
	if info.PID <= 1 {
		return 0, errors.New("bubblewrap named no process")
	}
	return info.PID, nil
}

// await returns when PID 1 takes commands.
func (d *Driver) await(ctx context.Context, p place, pid1 process) error {
	for {
		err := d.client(ctx, p, []string{"ping"}, nil, io.Discard, io.Discard)
		if err == nil {
			return nil
		}
		if !pid1.alive() {
			return errors.Join(errors.New("PID 1 has ended"), err)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// said returns the end of what the sandbox's makers and PID 1 wrote.
func said(p place) string {
	text, err := os.ReadFile(p.log())
	if err != nil || len(text) == 0 {
		return ""
	}
	return ": " + strings.TrimSpace(string(text[max(0, len(text)-1000):]))
}
