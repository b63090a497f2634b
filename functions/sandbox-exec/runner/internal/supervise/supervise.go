package supervise

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tuluat.ai/harness/functions/sandbox-exec/runner/internal/shim"
	"tuluat.ai/harness/functions/sandbox-exec/runner/internal/wire"
	"tuluat.ai/harness/shared/sandbox/trailer"
)

const (
	keptBytes    = 64 << 20        // of output at most, over all commands; the oldest goes first
	flushBound   = 2 * time.Second // for clients to get the last word when the sandbox ends
	spareThreads = 16              // see reserveThreads
)

type supervisor struct {
	opts   Options
	limits shim.Limits
	log    *slog.Logger
	self   string
	env    []string
	disks  []string
	kept   int64 // bytes of output kept, over all commands
	procs  *processes
	conns  sync.WaitGroup

	mu       sync.Mutex
	commands map[string]*command
	order    []*command // that have output, oldest first
	current  *command
	lastUse  time.Time
	moving   int // files on their way in or out
	ending   bool
	shutdown chan struct{} // room for one

	gate *gateway

	taken taken // what was sent out of the sandbox
}

// Main is PID 1. It returns nil when the sandbox has come to its end, by its
// TTL, by idleness, or because the outside said so; everything in it goes with
// it. It returns a gate.Open when the network was not shut in time.
func Main(args []string) error {
	if os.Getpid() != 1 {
		return errors.New("init must be PID 1 of a sandbox")
	}
	opts, err := parse(args)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// From here on nobody inside can read this process or attach to it.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid tracing: %w", err)
	}
	if err := keepFromCommands(); err != nil {
		return err
	}
	if err := deaf(); err != nil {
		return err
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, unix.SIGTERM)
	s := &supervisor{
		opts: opts, self: self, env: os.Environ(), disks: []string{opts.Workdir, "/tmp"}, kept: room(cgroups),
		limits:   shim.Limits{FileSize: opts.FileSize, Processes: opts.Processes, DataSize: opts.DataSize},
		log:      slog.New(slog.NewJSONHandler(os.Stderr, nil)),
		procs:    &processes{waiting: map[int]chan syscall.WaitStatus{}},
		commands: map[string]*command{}, lastUse: time.Now(), shutdown: make(chan struct{}, 1),
		gate: newGateway(opts.MustNotReach),
	}
	s.prepareRunDir()
	listeners, err := s.listen()
	if err != nil {
		return err
	}
	reserveThreads()
	go s.procs.reap()
	for _, l := range listeners {
		go s.accept(l)
	}
	if len(opts.MustNotReach) > 0 {
		go s.gate.watch(opts.MustNotReach, opts.GateTimeout, s.log)
	}
	why, err := s.live(term)
	if err != nil {
		s.log.Error("the sandbox ends", "reason", why, "error", err)
	} else {
		s.log.Info("the sandbox ends", "reason", why)
	}
	s.wind()
	return err
}

// prepareRunDir makes the folder of status files where there can be one. They
// are for people; a Pod's root file system is read-only.
func (s *supervisor) prepareRunDir() {
	if s.opts.RunDir == "" {
		return
	}
	if err := os.MkdirAll(s.opts.RunDir, 0o700); err != nil {
		s.log.Info("no status files", "error", err)
		s.opts.RunDir = ""
	}
}

// keepFromCommands makes every inherited file but the standard three one that
// commands do not inherit.
func keepFromCommands() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list open files: %w", err)
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= 3 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// reserveThreads makes the runtime create now the threads it may need later.
// When commands have used up the sandbox's processes no thread can be created,
// and a Go program that needs one dies.
func reserveThreads() {
	var all sync.WaitGroup
	ready := make(chan struct{})
	all.Add(spareThreads)
	for range spareThreads {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			all.Done()
			<-ready
		}()
	}
	all.Wait()
	close(ready)
}

// listen opens the socket inside, before any command could take its name, and
// takes over the one from outside.
func (s *supervisor) listen() ([]listener, error) {
	inside, err := net.Listen("unix", wire.Abstract)
	if err != nil {
		return nil, fmt.Errorf("listen inside: %w", err)
	}
	all := []listener{{inside.(*net.UnixListener), true}}
	if s.opts.ListenFD < 0 {
		return all, nil
	}
	file := os.NewFile(uintptr(s.opts.ListenFD), "listener")
	outside, err := net.FileListener(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("listen for the outside: %w", err)
	}
	l, ok := outside.(*net.UnixListener)
	if !ok {
		return nil, errors.New("the inherited listener is no unix socket")
	}
	l.SetUnlinkOnClose(false)
	return append(all, listener{l, false}), nil
}

// live waits for the sandbox's end and says what it was. An error: it never
// began.
func (s *supervisor) live(term <-chan os.Signal) (string, error) {
	ttl := time.NewTimer(s.opts.TTL)
	defer ttl.Stop()
	look := time.NewTicker(min(time.Second, s.opts.Idle/4+time.Millisecond))
	defer look.Stop()
	looked := s.gate.decided
	for {
		select {
		case <-s.shutdown:
			return "asked", nil
		case <-looked:
			if s.gate.err != nil {
				return "NETWORK_OPEN", s.gate.err
			}
			looked = nil
		case <-term:
			if s.nobodyInside() {
				return "SIGTERM", nil
			}
		case <-ttl.C:
			return "TTL", nil
		case now := <-look.C:
			if s.closeIfIdle(now) {
				return "idle", nil
			}
		}
	}
}

// nobodyInside reports whether no command's process could have sent a signal
// just now. Go does not say who sent one, so SIGTERM counts only then; while a
// command runs, the outside asks with the shutdown request.
func (s *supervisor) nobodyInside() bool {
	const justNow = 200 * time.Millisecond
	s.mu.Lock()
	quiet := s.current == nil && (len(s.order) == 0 || time.Since(s.lastUse) > justNow)
	s.mu.Unlock()
	others, _, err := list()
	return quiet && err == nil && len(others) == 0
}

// closeIfIdle takes the decision and the door together: no command can slip in
// between.
func (s *supervisor) closeIfIdle(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil || s.moving > 0 || now.Sub(s.lastUse) < s.opts.Idle {
		return false
	}
	s.ending = true
	return true
}

// wind ends the running command, gives clients the last word, and returns.
func (s *supervisor) wind() {
	s.mu.Lock()
	s.ending = true
	c := s.current
	s.mu.Unlock()
	if c != nil {
		c.end(trailer.Ended)
		timer := time.NewTimer(flushBound)
		defer timer.Stop()
		select {
		case <-c.done:
		case <-timer.C:
		}
	}
	told := make(chan struct{})
	go func() { s.conns.Wait(); close(told) }()
	over := time.After(flushBound)
	select {
	case <-told:
	case <-over:
		return
	}
	// Clients inside die with us: they need a moment to pass on what they got.
	for {
		if _, visitors, err := list(); err != nil || visitors == 0 {
			return
		}
		select {
		case <-over:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// enter finds the command of a request or makes it, under one lock: a second
// request for an id never starts it again.
func (s *supervisor) enter(req wire.Request) (c *command, fresh bool, state trailer.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.commands[req.ID]; ok {
		return c, false, ""
	}
	if s.ending {
		return nil, false, trailer.Unknown
	}
	if s.current != nil {
		return nil, false, trailer.Busy
	}
	c = newCommand(req)
	s.commands[req.ID] = c
	s.current, s.lastUse = c, time.Now()
	s.order = append(s.order, c)
	return c, true, ""
}

func newCommand(req wire.Request) *command {
	return &command{
		id: req.ID, nonce: req.Nonce, begun: time.Now(),
		started: make(chan struct{}), done: make(chan struct{}), stop: make(chan trailer.State, 1),
		status: trailer.Status{ID: req.ID, State: trailer.Running},
	}
}

// leave lets the next command in and drops the oldest output beyond the bound.
func (s *supervisor) leave(c *command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current, s.lastUse = nil, time.Now()
	var kept int64
	for i := len(s.order) - 1; i >= 0; i-- {
		old := s.order[i]
		stdout, stderr, ok := old.output()
		if !ok {
			continue
		}
		_, out, _ := stdout.counts()
		_, err, _ := stderr.counts()
		kept += out + err
		if kept > s.kept && old != c {
			stdout.forget()
			stderr.forget()
			s.order = append(s.order[:i], s.order[i+1:]...)
		}
	}
}

// refuse makes sure that an id which never ran never will.
func (s *supervisor) refuse(req wire.Request) *command {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.commands[req.ID]; ok {
		return c
	}
	c := newCommand(req)
	c.status.State = trailer.Cancelled
	close(c.started)
	close(c.done)
	s.commands[req.ID] = c
	return c
}
