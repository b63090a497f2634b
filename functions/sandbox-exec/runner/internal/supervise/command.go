package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tuluat.ai/harness/functions/sandbox-exec/runner/internal/shim"
	"tuluat.ai/harness/functions/sandbox-exec/runner/internal/wire"
	"tuluat.ai/harness/shared/sandbox/trailer"
)

const (
	killGrace  = 5 * time.Second  // from TERM to KILL
	sweepBound = 10 * time.Second // for everything else to be gone
	drainBound = 2 * time.Second  // for the pipes of the dead to be read
)

// command is one execution, from its first request to the sandbox's end.
type command struct {
	id    string
	nonce string // of the first request; seals every status
	begun time.Time

	stdout, stderr *capture // fixed when started is closed; nil when nothing can have been printed

	started chan struct{}      // closed when it is known whether it started
	done    chan struct{}      // closed when status is final
	stop    chan trailer.State // asks for its end, with the reason; room for one

	mu     sync.Mutex
	status trailer.Status
}

// output returns both streams, or false when there are none (yet).
func (c *command) output() (stdout, stderr *capture, ok bool) {
	select {
	case <-c.started:
		return c.stdout, c.stderr, c.stdout != nil && c.stderr != nil
	default:
		return nil, nil, false
	}
}

// now returns the status as of this moment.
func (c *command) now() trailer.Status {
	c.mu.Lock()
	s := c.status
	c.mu.Unlock()
	if stdout, stderr, ok := c.output(); ok && !s.State.Final() {
		s.StdoutBytes, s.StdoutStored, _ = stdout.counts()
		s.StderrBytes, s.StderrStored, _ = stderr.counts()
		s.DurationMS = time.Since(c.begun).Milliseconds()
	}
	return s
}

func (c *command) set(change func(*trailer.Status)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.status)
}

// end asks for the command's end. The first reason counts.
func (c *command) end(why trailer.State) {
	select {
	case c.stop <- why:
	default:
	}
}

// run starts the command and sees it through. Nothing of it can fail without
// ending in a final status.
func (s *supervisor) run(c *command, req wire.Request) {
	oomBefore, seesOOM := s.oomKills()
	wasFull := diskFull(s.disks)

	pid, ended, err := s.start(c, req)
	if err != nil {
		close(c.started)
		st := trailer.Status{State: trailer.Failed, Message: err.Error()}
		if f, ok := errors.AsType[*shim.Failure](err); ok {
			st.NoProgram = f.NoProgram
		}
		s.finish(c, st)
		return
	}
	c.set(func(st *trailer.Status) { st.Started = true })
	close(c.started)

	state, wait := s.await(c, pid, ended, time.Duration(req.TimeoutMS)*time.Millisecond)
	if !s.opts.KeepBackground || state == trailer.Ended {
		if err := s.procs.sweep(sweepBound); err != nil {
			s.log.Warn("sweep after a command", "execution", c.id, "error", err)
		}
	}
	drained(c.stdout, s.opts.KeepBackground)
	drained(c.stderr, s.opts.KeepBackground)

	st := trailer.Status{State: state, Started: true, DiskWasFull: wasFull, DiskFull: diskFull(s.disks), Outbound: s.outbound()}
	if wait.Signaled() {
		st.Signal = unix.SignalName(wait.Signal())
		if st.Signal == "" {
			st.Signal = fmt.Sprintf("SIG%d", int(wait.Signal()))
		}
	} else {
		code := wait.ExitStatus()
		st.ExitCode = &code
	}
	if after, ok := s.oomKills(); ok && seesOOM {
		kills := after - oomBefore
		st.OOMKills = &kills
	}
	s.finish(c, st)
}

// start forks the shim and waits until it has become the command, or says why
// it could not.
func (s *supervisor) start(c *command, req wire.Request) (int, <-chan syscall.WaitStatus, error) {
	devNull, err := os.Open(os.DevNull)
	if err != nil {
		return 0, nil, err
	}
	defer devNull.Close()
	var outW, errW *os.File
	reportR, reportW, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	defer reportR.Close()
	defer reportW.Close()
	if c.stdout, outW, err = newCapture(req.MaxOutput); err != nil {
		return 0, nil, err
	}
	go c.stdout.drain()
	defer outW.Close()
	if c.stderr, errW, err = newCapture(req.MaxOutput); err != nil {
		return 0, nil, err
	}
	go c.stderr.drain()
	defer errW.Close()

	argv := append([]string{"runner", "shim", "--dir=" + s.opts.Workdir}, s.limits.Args()...)
	argv = append(append(argv, "--"), req.Command...)
	pid, ended, err := s.procs.start(s.self, argv, &syscall.ProcAttr{
		Env:   environment(s.env, req.Env),
		Files: []uintptr{devNull.Fd(), outW.Fd(), errW.Fd(), reportW.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	outW.Close()
	errW.Close()
	reportW.Close()
	if err != nil {
		return 0, nil, err
	}
	if err := shim.ReadFailure(reportR); err != nil {
		<-ended
		return 0, nil, err
	}
	return pid, ended, nil
}

// await waits for the command's own end, its deadline or a request to end it;
// for the latter two it sees to the end of its whole process group.
func (s *supervisor) await(c *command, pid int, ended <-chan syscall.WaitStatus, timeout time.Duration) (trailer.State, syscall.WaitStatus) {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	var why trailer.State
	select {
	case wait := <-ended:
		return trailer.Exited, wait
	case <-deadline.C:
		why = trailer.TimedOut
	case why = <-c.stop:
	}
	if why != trailer.Ended {
		_ = syscall.Kill(-pid, syscall.SIGTERM)
		_ = syscall.Kill(-pid, syscall.SIGCONT) // what is stopped cannot obey
		if wait, ok := s.grace(pid, ended); ok {
			return why, wait
		}
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	return why, <-ended
}

// grace gives a process group its time to end by itself and reports whether the
// command did. Other members are killed in the end in any case.
func (s *supervisor) grace(pid int, ended <-chan syscall.WaitStatus) (syscall.WaitStatus, bool) {
	over := time.NewTimer(killGrace)
	defer over.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	var wait syscall.WaitStatus
	exited := false
	for {
		select {
		case wait = <-ended:
			exited, ended = true, nil
		case <-look.C:
		case <-over.C:
			_ = syscall.Kill(-pid, syscall.SIGKILL)
			return wait, exited
		}
		if exited && groupGone(pid) {
			return wait, true
		}
	}
}

// drained waits for the end of a stream. When something that lives on holds it
// open, what the ended command wrote is in the pipe already.
func drained(c *capture, keepBackground bool) {
	bound := drainBound
	if keepBackground {
		bound = 100 * time.Millisecond
	}
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
		c.settle()
	}
}

// finish fixes the outcome, notes it for people, and lets the next command in.
func (s *supervisor) finish(c *command, st trailer.Status) {
	st.ID = c.id
	st.DurationMS = time.Since(c.begun).Milliseconds()
	if c.stdout != nil && c.stderr != nil {
		st.StdoutBytes, st.StdoutStored, st.StdoutTail = c.stdout.counts()
		st.StderrBytes, st.StderrStored, st.StderrTail = c.stderr.counts()
	}
	c.set(func(now *trailer.Status) { *now = st })
	if s.opts.RunDir == "" {
		// There is no folder for it.
	} else if err := writeStatus(s.opts.RunDir, st); err != nil {
		s.log.Warn("status file", "execution", c.id, "error", err) // it is for people only
	}
	s.leave(c)
	close(c.done)
}

// writeStatus leaves a status beside the sandbox's other files, whole or not at
// all. Nothing ever reads it back: the sandboxed user may write there too.
func writeStatus(dir string, st trailer.Status) error {
	st.StdoutTail, st.StderrTail = nil, nil
	text, err := json.Marshal(st)
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(dir, ".status-*")
	if err != nil {
		return err
	}
	_, err = temp.Write(append(text, '\n'))
	err = errors.Join(err, temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), filepath.Join(dir, st.ID+".json"))
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	return nil
}

// environment is the sandbox's own with the request's on top.
func environment(base []string, added map[string]string) []string {
	env := make([]string, 0, len(base)+len(added))
	for _, pair := range base {
		name, _, _ := strings.Cut(pair, "=")
		if _, replaced := added[name]; !replaced {
			env = append(env, pair)
		}
	}
	for name, value := range added {
		env = append(env, name+"="+value)
	}
	return env
}
