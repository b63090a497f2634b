// Command testdb runs a command against a throw-away PostgreSQL server:
//
//	go run ./scripts/testdb -- go test ./shared/...
//
// The command finds the superuser's connection string in TEST_DATABASE_URL. Its
// exit code is testdb's; signals are passed on; the server and its folder are
// removed however the command ends.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"tuluat.ai/harness/scripts/internal/localpg"
)

func main() {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "usage: testdb -- COMMAND [ARGUMENT...]")
		os.Exit(2)
	}
	code, err := run(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testdb:", err)
	}
	os.Exit(code)
}

func run(args []string) (code int, err error) {
	// Caught before anything exists, so that nothing is left behind.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	folder, err := os.MkdirTemp("", "testdb")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	server, err := localpg.Start(context.Background(), localpg.Options{Dir: folder, Throwaway: true, Log: filepath.Join(folder, "log")})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()

	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "TEST_DATABASE_URL="+server.DSN("postgres"))
	if err := cmd.Start(); err != nil {
		return 127, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s) // it may have ended just now
		case err := <-done:
			return exitCode(err)
		}
	}
}

// exitCode is the command's own, or 128 and the signal that ended it, as a
// shell says it.
func exitCode(err error) (int, error) {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		if err != nil {
			return 1, err
		}
		return 0, nil
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return exit.ExitCode(), nil
}
