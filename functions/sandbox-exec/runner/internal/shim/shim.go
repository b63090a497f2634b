// Package shim is what a command is before it is itself: a process that takes
// on its limits and then becomes the command. PID 1 cannot set them from
// outside between fork and exec.
package shim

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrorFD is where the shim says that the command could not be started. The
// command itself closes it by being exec'ed: end of file means started.
const ErrorFD = 3

// Limits are the rlimits of a command; zero means: leave as it is.
type Limits struct {
	FileSize  uint64 // bytes of one file
	Processes uint64 // of the sandbox's user
	DataSize  uint64 // bytes of data of one process; only where no cgroup limits memory
}

// Args returns the flags that carry l.
func (l Limits) Args() []string {
	return []string{
		fmt.Sprintf("--file-size=%d", l.FileSize),
		fmt.Sprintf("--processes=%d", l.Processes),
		fmt.Sprintf("--data-size=%d", l.DataSize),
	}
}

// Failure is why a command could not be started, as the shim reports it.
type Failure struct {
	Message   string `json:"message"`
	NoProgram bool   `json:"noProgram"` // it is not there or cannot be executed
}

func (f *Failure) Error() string { return f.Message }

const (
	maxMessage = 1 << 10        // bytes; the name of a program may be longer
	maxReport  = 8 * maxMessage // bytes; JSON escapes a byte with six at most
)

// ReadFailure reads what a shim says at ErrorFD until it is closed. Nil means
// that the command has started; another error than a Failure that nobody knows why
// not.
func ReadFailure(r io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(r, maxReport))
	if err != nil || len(text) == 0 {
		return err
	}
	f := &Failure{}
	if err := json.Unmarshal(text, f); err != nil {
		return fmt.Errorf("the command was not started, and its shim said %q: %w", text, err)
	}
	return f
}

// Main sets the limits and becomes the command. It returns only on failure,
// which it has then also written to ErrorFD.
func Main(args []string) error {
	unix.CloseOnExec(ErrorFD)
	err := become(args)
	f := &Failure{Message: err.Error()}
	if said, ok := errors.AsType[*Failure](err); ok {
		f.NoProgram = said.NoProgram
	}
	f.Message = strings.ToValidUTF8(f.Message[:min(len(f.Message), maxMessage)], "")
	_ = json.NewEncoder(os.NewFile(ErrorFD, "start")).Encode(f) // without a reader nobody waits for it
	return err
}

// noProgram reports whether an exec failed for its program, and not for its
// arguments or for what the sandbox has left.
func noProgram(err error) bool {
	for _, of := range []error{unix.ENOENT, unix.EACCES, unix.ENOEXEC, unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.ELIBBAD} {
		if errors.Is(err, of) {
			return true
		}
	}
	return false
}

// enter makes dir the working directory. An earlier command may have shut it,
// by chmod 000; the same user owns it and opens it again.
func enter(dir string) error {
	err := os.Chdir(dir)
	if errors.Is(err, os.ErrPermission) && os.Chmod(dir, 0o755) == nil {
		err = os.Chdir(dir)
	}
	return err
}

func become(args []string) error {
	var l Limits
	var dir string
	flags := flag.NewFlagSet("shim", flag.ContinueOnError)
	flags.Uint64Var(&l.FileSize, "file-size", 0, "")
	flags.Uint64Var(&l.Processes, "processes", 0, "")
	flags.Uint64Var(&l.DataSize, "data-size", 0, "")
	flags.StringVar(&dir, "dir", "/", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	argv := flags.Args()
	if len(argv) == 0 {
		return fmt.Errorf("no command")
	}
	if err := enter(dir); err != nil {
		return err
	}
	path, err := exec.LookPath(argv[0])
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return &Failure{NoProgram: true, Message: fmt.Sprintf("there is no program %q in the sandbox's image: use an image that has it, or another spec.harness.sandbox.command", argv[0])}
	}
	if err != nil { // a folder, or without the right to execute it
		return &Failure{NoProgram: true, Message: err.Error()}
	}
	offer()
	env := os.Environ()

	// Both belong to this thread, which is the one that becomes the command.
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	if err := setLimits(l); err != nil {
		return err
	}
	err = unix.Exec(path, argv, env)
	return &Failure{NoProgram: noProgram(err), Message: path + ": " + err.Error()}
}

// offer makes the command what the memory limit ends first, and not PID 1.
// Raising is always allowed; where /proc is read-only the kernel's own choice
// has to do. A program whose file cannot be read does not own its entries in
// /proc until it may be traced.
func offer() {
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // until it is the command
}

// setLimits comes last: a Go process that may create no more threads does not
// get far.
func setLimits(l Limits) error {
	for _, limit := range []struct {
		name     string
		resource int
		value    uint64
		set      bool
	}{
		{"core", unix.RLIMIT_CORE, 0, true},
		{"file size", unix.RLIMIT_FSIZE, l.FileSize, l.FileSize > 0},
		{"processes", unix.RLIMIT_NPROC, l.Processes, l.Processes > 0},
		{"data", unix.RLIMIT_DATA, l.DataSize, l.DataSize > 0},
	} {
		if !limit.set {
			continue
		}
		var now unix.Rlimit
		if err := unix.Getrlimit(limit.resource, &now); err != nil {
			return fmt.Errorf("read limit of %s: %w", limit.name, err)
		}
		value := min(limit.value, now.Max)
		if err := unix.Setrlimit(limit.resource, &unix.Rlimit{Cur: value, Max: value}); err != nil {
			return fmt.Errorf("limit %s: %w", limit.name, err)
		}
	}
	return nil
}
