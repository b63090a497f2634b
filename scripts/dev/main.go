// Command dev runs the whole system on this machine: a private Postgres, an S3
// server, the functions as processes started on demand by the real config/ and
// eventing/ YAML, a deterministic model unless a real one is configured, and
// local sandboxes. `make dev` builds and starts it.
//
// Everything it keeps is below one folder (TULUAT_HOME, default .tuluat in the
// repository), so a restart finds every conversation again.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() { // a second Ctrl-C ends at once
		<-ctx.Done()
		stop()
	}()
	out := &console{w: os.Stderr}
	err := start(ctx, os.Getenv, out)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		out.say("%v", err)
		os.Exit(1)
	}
}

// start checks what can be checked at once, then runs the system until ctx ends.
func start(ctx context.Context, getenv func(string) string, out *console) error {
	cfg, err := parseConfig(getenv)
	if err != nil {
		return err
	}
	state, err := openState(cfg.home)
	if err != nil {
		return err
	}
	defer state.close()
	s := &system{cfg: cfg, state: state, out: out}
	defer func() {
		out.say("stopping")
		if err := s.stop(); err != nil {
			out.say("while stopping: %v", err)
		}
	}()
	if err := s.prepare(ctx); err != nil {
		return err
	}
	return s.run(ctx)
}

// console is what a person sees: one line per thing that happens.
type console struct{ w io.Writer }

func (c *console) say(format string, args ...any) {
	fmt.Fprintf(c.w, "dev: "+format+"\n", args...)
}
