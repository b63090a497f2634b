// Command platform is the part of `make dev` that plays the platform: it brings
// the database up to date, keeps the secrets, serves S3 and a model, and runs
// the functions by the YAML of config/ and eventing/ until it is asked to stop.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"tuluat.ai/harness/scripts/dev/handover"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	h, err := handover.Read()
	if err == nil {
		err = run(ctx, h)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dev:", err)
		os.Exit(1)
	}
}
