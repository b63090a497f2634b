package devcluster

import "syscall"

// childAttributes: Ctrl-C in a terminal must not reach a function before the
// platform stops it in order, and a platform that is killed leaves none behind.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
