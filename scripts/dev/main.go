// Command dev runs the whole system on this machine: `make dev`.
//
// It is the front: it checks the machine, starts PostgreSQL, builds everything
// with progress to see, and then runs dev/platform, which does the rest. It
// imports next to nothing, so that it is compiled and talking within seconds on
// a machine that has never built this project; what takes minutes to compile is
// in the platform.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	if err := run(signals); err != nil {
		fmt.Fprintln(os.Stderr, "dev:", err)
		os.Exit(1)
	}
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "dev: "+format+"\n", args...) }
