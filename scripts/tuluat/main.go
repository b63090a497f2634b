// Command tuluat talks to agents from a terminal, through the signed webhook
// channel, and manages them over the management API: what it can do, any system
// can that speaks HTTP and JSON. Called kubectl-tuluat, it is a plugin of kubectl.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"tuluat.ai/harness/scripts/tuluat/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := cli.Main(ctx, os.Args[1:], cli.System{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Name: os.Args[0]})
	stop()
	os.Exit(code)
}
