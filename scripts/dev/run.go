package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"tuluat.ai/harness/scripts/dev/handover"
	"tuluat.ai/harness/scripts/internal/localpg"
)

// run does everything; what it started has ended when it returns. The first
// signal stops in order, the second at once. browser shows the tour; it may be empty.
func run(signals <-chan os.Signal, browser string) (err error) {
	h, err := locate()
	if err != nil {
		return err
	}
	h.Browser = browser
	release, err := lock(h.State)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	if err := checkMachine(h.Address); err != nil {
		return err
	}
	server, err := prepare(signals, h)
	if server != nil {
		defer func() { err = errors.Join(err, server.Stop()) }()
	}
	if errors.Is(err, context.Canceled) {
		say("stopped")
		return nil
	}
	if err != nil {
		return err
	}
	h.Postgres = server.DSN("postgres")
	return supervise(signals, h, server)
}

// prepare starts the database and builds, at the same time. It returns the
// server if that runs, whatever else failed.
func prepare(signals <-chan os.Signal, h handover.Handover) (server *localpg.Server, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var serverErr, buildErr error
	var both sync.WaitGroup
	both.Go(func() {
		begun := time.Now()
		server, serverErr = localpg.Start(ctx, localpg.Options{Dir: filepath.Join(h.State, "postgres"), Log: filepath.Join(h.Logs(), "postgres.log")})
		if serverErr != nil {
			cancel()
			return
		}
		say("PostgreSQL %d is ready after %s", server.Version(), time.Since(begun).Round(100*time.Millisecond))
	})
	both.Go(func() {
		if buildErr = build(ctx, h); buildErr != nil {
			cancel()
		}
	})
	done := make(chan struct{})
	go func() { both.Wait(); close(done) }()
	select {
	case <-done:
	case <-signals:
		cancel()
		<-done
		return server, context.Canceled
	}
	if serverErr != nil && !errors.Is(serverErr, context.Canceled) {
		return server, serverErr
	}
	return server, errors.Join(buildErr, serverErr)
}

// supervise runs the platform until it ends or a signal comes.
func supervise(signals <-chan os.Signal, h handover.Handover, server *localpg.Server) error {
	variable, err := h.Environment()
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(h.Bin(), filepath.Base(platform)))
	cmd.Dir = h.Root
	cmd.Env = append(os.Environ(), variable)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = childAttributes() // Ctrl-C comes here only, and is passed on
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stopping, exited := false, server.Exited()
	for {
		select {
		case err := <-ended:
			if stopping {
				say("stopped; %s keeps the state", h.State)
				return nil
			}
			return fmt.Errorf("the platform ended: %w", errors.Join(err, errors.New("see "+filepath.Join(h.Logs(), "platform.log"))))
		case <-exited:
			exited = nil
			say("PostgreSQL ended by itself; see %s", filepath.Join(h.Logs(), "postgres.log"))
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended too
		case <-signals:
			if stopping {
				say("stopping at once")
				_ = cmd.Process.Kill()
				continue
			}
			stopping = true
			say("stopping; once more to stop at once")
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
	}
}
