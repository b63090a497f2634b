//go:build !linux

package devcluster

import "syscall"

// childAttributes: Ctrl-C in a terminal must not reach a function before the
// platform stops it in order.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
