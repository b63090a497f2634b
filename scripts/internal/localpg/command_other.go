//go:build !linux

package localpg

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// command runs a server program in a process group of its own: Ctrl-C in a
// terminal must not reach it before the functions that use it have stopped.
func (s *Server) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.install.Bin, program), args...)
	cmd.Dir = s.o.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=en_US.UTF-8", "TZ=UTC"}
	return cmd
}

// checkRoot says what root lacks to run a server.
func checkRoot() error {
	if os.Geteuid() == 0 {
		return errors.New("PostgreSQL refuses to run as root: start this as another user")
	}
	return nil
}
