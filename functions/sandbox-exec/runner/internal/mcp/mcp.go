// Package mcp is the runner as the client of an MCP server that is a program of the
// sandbox: it starts the server as its child, lists its tools or calls one of them,
// prints what came of it and ends the server, with all that it has started.
//
// It speaks the few lines of the protocol that this needs by itself: the official SDK
// would make a binary that every sandbox is given several times as large. The tests
// run it against that SDK's server.
package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tuluat.ai/harness/shared/sandbox/stdio"
)

// What is read of a server.
const (
	maxMessage = 8 << 20   // bytes of one message
	maxList    = 896 << 10 // bytes of a list that is printed: it has to be kept whole
	maxPages   = 32
	maxTools   = 1024
	maxText    = 4 << 20 // bytes of a result that are printed
)

// problem is why there is no result, and how the runner ends then.
type problem struct {
	exit int
	text string
}

func (p problem) Error() string { return p.text }

// Main does what the environment asks for and returns the exit code.
func Main(stdout, stderr io.Writer) int {
	err := run(stdout, stderr)
	if err == nil {
		return 0
	}
	p, ours := errors.AsType[problem](err)
	if !ours {
		p = problem{stdio.ExitNotRun, err.Error()}
	}
	fmt.Fprint(stdout, p.text)
	return p.exit
}

func run(stdout, stderr io.Writer) error {
	// What the server runs as is our user too: it must not write where only we do.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("the runner cannot forbid tracing: %w", err)
	}
	var r stdio.Request
	if err := json.Unmarshal([]byte(os.Getenv(stdio.Variable)), &r); err != nil || len(r.Command) == 0 || r.TimeoutMS <= 0 {
		return errors.New("the runner was asked for nothing that it knows")
	}
	if err := os.Unsetenv(stdio.Variable); err != nil {
		return err
	}
	asked := make(chan os.Signal, 1) // PID 1 ends a command by TERM first
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
	s, err := start(r, stderr)
	if err != nil {
		return err
	}
	defer s.end()
	c := newConversation(s, time.Duration(r.TimeoutMS)*time.Millisecond, asked, stderr)
	if err := c.initialize(); err != nil {
		return err
	}
	if r.Tool == "" {
		return list(c, r, stdout)
	}
	return call(c, r, stdout)
}

func list(c *conversation, r stdio.Request, stdout io.Writer) error {
	found := stdio.Tools{Tools: []stdio.Tool{}}
	size, left, cursor := 0, 0, ""
	for page := 1; ; page++ {
		var answer struct {
			Tools      []stdio.Tool `json:"tools"`
			NextCursor string       `json:"nextCursor"`
		}
		params := map[string]any{}
		if cursor != "" {
			params["cursor"] = cursor
		}
		if err := c.ask("tools/list", params, &answer); err != nil {
			return err
		}
		for _, t := range answer.Tools {
			if len(r.Allowed) > 0 && !slices.Contains(r.Allowed, t.Name) {
				continue
			}
			definition, err := json.Marshal(t)
			if size += len(definition) + 1; err != nil || size > maxList || len(found.Tools) == maxTools {
				size -= len(definition) + 1
				left++
				continue
			}
			found.Tools = append(found.Tools, t)
		}
		if answer.NextCursor == "" || answer.NextCursor == cursor {
			break
		}
		if cursor = answer.NextCursor; page == maxPages {
			found.Notes = append(found.Notes, fmt.Sprintf("only the first %d pages of its list are read", maxPages))
			break
		}
	}
	if left > 0 {
		found.Notes = append(found.Notes, fmt.Sprintf("%d of its tools are not offered: its list is too long; list those that are needed in allowedTools", left))
	}
	return json.NewEncoder(stdout).Encode(found)
}

func call(c *conversation, r stdio.Request, stdout io.Writer) error {
	if len(r.Arguments) == 0 {
		r.Arguments = json.RawMessage("{}")
	}
	c.called = true
	var answer result
	if err := c.ask("tools/call", map[string]any{"name": r.Tool, "arguments": r.Arguments}, &answer); err != nil {
		return err
	}
	text := answer.text()
	if len(text) > maxText {
		text = text[:maxText]
	}
	if answer.IsError {
		return problem{stdio.ExitToolFailed, text}
	}
	_, err := io.WriteString(stdout, text)
	return err
}
