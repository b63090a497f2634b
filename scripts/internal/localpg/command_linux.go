package localpg

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// command runs a server program. PostgreSQL refuses to run as root, so root
// runs it as uid 1000 of a user namespace of its own, which can still reach the
// folder (outside, it is root's) and is no more than root otherwise.
//
// The child is a process group of its own: Ctrl-C in a terminal must not reach
// it before the functions that use it have stopped. If this process is killed,
// the kernel ends the child.
func (s *Server) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	name := filepath.Join(s.install.Bin, program)
	attributes := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
	if os.Geteuid() == 0 {
		args = append([]string{
			"--unshare-user", "--uid", "1000", "--gid", "1000", "--bind", "/", "/", "--dev-bind", "/dev", "/dev",
			"--die-with-parent", "--", name,
		}, args...)
		name = "bwrap"
		attributes.Pdeathsig = syscall.SIGKILL
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = s.o.Dir
	cmd.SysProcAttr = attributes
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "TZ=UTC"}
	return cmd
}

// checkRoot says what root lacks to run a server.
func checkRoot() error {
	if os.Geteuid() != 0 {
		return nil
	}
	if _, err := exec.LookPath("bwrap"); err != nil {
		return errors.New("PostgreSQL refuses to run as root, and bubblewrap, which would help, is missing; install it with:\n\n    apt-get install -y bubblewrap\n")
	}
	return nil
}
