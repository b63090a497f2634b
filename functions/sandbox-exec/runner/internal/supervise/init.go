// Package supervise is PID 1 of a sandbox. It starts commands, at most once per
// execution id and one after the other, and holds their output and outcomes
// where the sandboxed user, who has the same uid, cannot reach them: in memory
// that may not be traced and in files without names.
//
// Life of a command:
//
//	start -> exits by itself            -> EXITED
//	      -> deadline: TERM to its group, 5 s, KILL -> TIMED_OUT
//	      -> cancel: the same           -> CANCELLED
//	      -> the sandbox ends           -> SANDBOX_ENDED
//	then every other process of the sandbox is killed, unless it keeps what
//	commands leave running; then the outcome is fixed and the next may start.
//
// The sandboxed user can end the sandbox (by using up what PID 1 needs), which
// is seen outside as its disappearance; it cannot change an outcome.
package supervise

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tuluat.ai/harness/functions/sandbox-exec/runner/internal/gate"
)

// Options say how a sandbox lives.
type Options struct {
	Name           string        // for people and for whoever looks for this process; not used otherwise
	Token          string        // the same
	TTL            time.Duration // hard end, from PID 1's start
	Idle           time.Duration // end after so long without a command
	ListenFD       int           // an inherited listening socket, reachable only from outside; -1: none
	OOMFD          int           // an inherited file with the memory limit's counters; -1: look in /sys/fs/cgroup
	RunDir         string        // status files, for people
	Workdir        string        // where commands start
	KeepBackground bool          // what a command leaves running survives it
	FileSize       uint64        // rlimits of commands; 0: none
	Processes      uint64
	DataSize       uint64
	MustNotReach   []netip.AddrPort // no command is taken while one of these answers
	GateTimeout    time.Duration    // end when one still does after so long
}

func parse(args []string) (Options, error) {
	var o Options
	flags := flag.NewFlagSet("init", flag.ContinueOnError)
	flags.StringVar(&o.Name, "name", "", "the sandbox's name")
	flags.StringVar(&o.Token, "token", "", "tells this sandbox's PID 1 from every other process")
	flags.DurationVar(&o.TTL, "ttl", 0, "hard end of life")
	flags.DurationVar(&o.Idle, "idle", 0, "end after so long without a command")
	flags.IntVar(&o.ListenFD, "listen-fd", -1, "an inherited listening socket")
	flags.IntVar(&o.OOMFD, "oom-fd", -1, "an inherited memory.events or memory.oom_control")
	flags.StringVar(&o.RunDir, "run-dir", "/run/tuluat", "where status files are written")
	flags.StringVar(&o.Workdir, "workdir", "/workspace", "where commands start")
	flags.BoolVar(&o.KeepBackground, "keep-background", false, "keep what commands leave running")
	flags.Uint64Var(&o.FileSize, "file-size", 0, "bytes of one file")
	flags.Uint64Var(&o.Processes, "processes", 0, "processes of the sandbox's user")
	flags.Uint64Var(&o.DataSize, "data-size", 0, "bytes of data of one process")
	flags.Func("must-not-reach", "IP:PORT[,...] that the network policy forbids", func(list string) (err error) {
		o.MustNotReach, err = gate.Parse(list)
		return err
	})
	flags.DurationVar(&o.GateTimeout, "gate-timeout", 10*time.Second, "end when one of them is still reached after so long")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.TTL <= 0 || o.Idle <= 0 {
		return o, errors.New("--ttl and --idle must be positive")
	}
	return o, nil
}

// deaf makes PID 1 deaf to every signal that a command could send to end it.
// The kernel drops what comes to the init of a pid namespace and has no handler;
// the Go runtime installs handlers for nearly all, and its API can only add to
// them, so the kernel is told directly. What is left: SIGKILL and SIGSTOP, which
// work from outside only; SIGCHLD, SIGURG (the runtime's own) and SIGTERM.
// A real fault of this process still ends it.
func deaf() error {
	type action struct { // the kernel's struct sigaction on 64-bit machines
		handler, flags, restorer, mask uintptr
	}
	for sig := uintptr(1); sig <= 64; sig++ {
		switch syscall.Signal(sig) {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD, unix.SIGURG, unix.SIGTERM:
			continue
		}
		var dfl action
		if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&dfl)), 0, 8, 0, 0); errno != 0 {
			return fmt.Errorf("signal %d: %w", sig, errno)
		}
	}
	return nil
}
