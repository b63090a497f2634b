package mcp

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tuluat.ai/harness/shared/sandbox/stdio"
)

// How long a server is given to end: when its input ends, and after TERM. PID 1 gives
// a command that it ends five seconds.
const (
	closeGrace = time.Second
	termGrace  = 2 * time.Second
	killGrace  = time.Second
)

// server is the program, as our child, in a process group of its own.
type server struct {
	in, out *os.File // ours: what it reads, what it writes
	cmd     *exec.Cmd
	ended   chan struct{} // closed when it has
	over    chan struct{} // closed when nobody reads it any more
	state   *os.ProcessState
	once    sync.Once
}

func start(r stdio.Request, stderr io.Writer) (*server, error) {
	// What the server leaves behind becomes our child, and is ended with it.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	runtime.LockOSThread() // the server dies with this thread, however that dies
	theirs, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, written, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, theirs.Close(), in.Close())
	}
	cmd := exec.Command(r.Command[0], r.Command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, written, stderr
	cmd.Env = os.Environ()
	for name, value := range r.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	_, _ = theirs.Close(), written.Close()
	if err != nil {
		_, _ = in.Close(), out.Close()
		return nil, problem{stdio.ExitNotRun, notStarted(r.Command[0], err)}
	}
	s := &server{in: in, out: out, cmd: cmd, ended: make(chan struct{}), over: make(chan struct{})}
	go func() {
		s.state, _ = cmd.Process.Wait()
		close(s.ended)
	}()
	return s, nil
}

func notStarted(program string, err error) string {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return fmt.Sprintf("there is no program %q in the sandbox's image: use an image that has it, or another command", program)
	}
	return fmt.Sprintf("the program %q cannot be started: check that it may be executed", program)
}

// how says how the server has ended, where it has.
func (s *server) how() string {
	if !s.within(closeGrace) || s.state == nil {
		return ""
	}
	return ": " + s.state.String()
}

func (s *server) within(d time.Duration) bool {
	select {
	case <-s.ended:
		return true
	case <-time.After(d):
		return false
	}
}

// end ends the server and everything that it has started.
func (s *server) end() {
	s.once.Do(func() {
		close(s.over)
		_ = s.in.Close() // most servers end by that
		group := -s.cmd.Process.Pid
		if !s.within(closeGrace) {
			_ = syscall.Kill(group, syscall.SIGTERM)
			s.within(termGrace)
		}
		_ = syscall.Kill(group, syscall.SIGKILL) // also those of the group that outlived it
		s.within(killGrace)
		endChildren(s.cmd.Process.Pid)
		_ = s.out.Close()
	})
}

// endChildren kills what is our child by now: whatever left the group became it when
// its parent died. Each that dies may leave others.
func endChildren(server int) {
	deadline := time.Now().Add(killGrace)
	for time.Now().Before(deadline) {
		children := children()
		if len(children) == 0 {
			return
		}
		for _, pid := range children {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			if pid != server { // that one has somebody who waits for it
				_, _ = syscall.Wait4(pid, nil, 0, nil)
			}
		}
	}
}

// children are the processes whose parent we are.
func children() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if err != nil {
			continue
		}
		// pid (name) state parent …, and the name may have anything in it
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(os.Getpid()) {
			pids = append(pids, pid)
		}
	}
	return pids
}
