// Command runner is PID 1 of every sandbox and the way into it. It is one
// static binary with five faces:
//
//	install           puts itself where a Pod's sandbox finds it
//	init              PID 1: starts commands, at most once per id, and holds their outcomes
//	shim              what a command is for the moment before it is itself: sets its limits
//	mcp               as a command: asks an MCP server that is a program of the sandbox
//	run, status, output, cancel, put, out, ping, shutdown
//	                  thin clients that talk to PID 1; their death changes nothing
//
// See README.md for the flags and the streams.
package main

import (
	"errors"
	"fmt"
	"os"

	"tuluat.ai/harness/functions/sandbox-exec/runner/internal/client"
	"tuluat.ai/harness/functions/sandbox-exec/runner/internal/gate"
	"tuluat.ai/harness/functions/sandbox-exec/runner/internal/install"
	"tuluat.ai/harness/functions/sandbox-exec/runner/internal/mcp"
	"tuluat.ai/harness/functions/sandbox-exec/runner/internal/shim"
	"tuluat.ai/harness/functions/sandbox-exec/runner/internal/supervise"
)

// exitOpen is how PID 1 ends when the network of its sandbox is not shut. No
// command can bring it about.
const exitOpen = 3

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("usage: runner install|init|mcp|run|status|output|cancel|put|out|ping|shutdown [flags]"))
	}
	face, args := os.Args[1], os.Args[2:]
	switch face {
	case "install":
		fail(install.Main(args))
	case "init":
		fail(supervise.Main(args))
	case "shim":
		fail(shim.Main(args))
	case "mcp":
		os.Exit(mcp.Main(os.Stdout, os.Stderr))
	default:
		fail(client.Main(face, args, os.Stdin, os.Stdout, os.Stderr))
	}
}

func fail(err error) {
	if err == nil {
		return
	}
	var open *gate.Open
	if errors.As(err, &open) { // PID 1 has said it already
		os.Exit(exitOpen)
	}
	fmt.Fprintln(os.Stderr, "runner:", err)
	os.Exit(1)
}
