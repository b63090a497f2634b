package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"tuluat.ai/harness/functions/agent-step/internal/listing"
	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/sandbox/stdio"
)

var _ step.Sandboxed = (*Servers)(nil)

// programOf is a server that is a program, as it is kept: it offers what it does in
// this sandbox.
func programOf(a *harness.Agent, server harness.MCPServer) listing.Server[[]tool] {
	sum := sha256.Sum256([]byte(server.Digest() + a.Harness.Sandbox.Digest()))
	return listing.Server[[]tool]{Name: server.Name, Digest: hex.EncodeToString(sum[:])}
}

// spare is the part of a command's time that is not the server's: in it the runner
// says what it has waited for in vain, and ends the server.
const spare = 10 * time.Second

func request(a *harness.Agent, server harness.MCPServer) stdio.Request {
	of := a.Harness.Sandbox.Timeout()
	limit := min(server.Timeout(), max(of-spare, of/2))
	r := stdio.Request{Command: server.Command, TimeoutMS: limit.Milliseconds()}
	for _, v := range server.Env {
		if r.Env == nil {
			r.Env = map[string]string{}
		}
		r.Env[v.Name] = v.Value
	}
	return r
}

// listProgram is what is known of a program. Where that is nothing, the session has
// it listed by a command first: it is asked about by what offer says.
func (s *Servers) listProgram(ctx context.Context, c *postgres.Claim, server harness.MCPServer, l listing.Listing[[]tool], names []string, offer *step.Offer) (listing.Listing[[]tool], error) {
	if !c.Agent.Harness.CanExecute() {
		return listing.Listing[[]tool]{Reason: "it is a program, and this agent runs no commands"}, nil
	}
	if l.Listed {
		return l, nil
	}
	r := request(c.Agent, server)
	r.Allowed = server.AllowedTools
	command := r.Shell()
	run, err := s.Store.ToolList(ctx, c.ID, command, c.Agent.Harness.Sandbox)
	switch {
	case err != nil:
		return l, err
	case run.State != "" && !run.State.Ended():
		offer.Waits = true
		l.Reason = "they are being listed"
	case run.State != "" && run.EndedAt.After(l.TriedAt):
		found, failed := readList(server, run)
		var notes []string
		l, notes, err = s.book.Put(ctx, c.Session.Agent, names, programOf(c.Agent, server), l, found.tools, found.notes, failed)
		offer.Notes = append(offer.Notes, notes...)
		return l, err
	case l.Reason == "" || !l.Fresh:
		offer.Lists = append(offer.Lists, step.List{Server: server.Name, Program: server.Program(), Command: command})
		l.Reason = "they are not listed yet"
	}
	return l, nil
}

// readList reads what the runner printed. The error's message says why there is no
// list, in words of our own.
func readList(server harness.MCPServer, run postgres.ToolList) (list, error) {
	var l list
	switch {
	case run.State == harness.ExecutionFailed && run.ExitCode != nil && *run.ExitCode == stdio.ExitNotRun:
		return l, harness.Errorf(harness.Unavailable, "%s", cut(harness.CleanText(string(run.Stdout)), 500))
	case run.State == harness.ExecutionFailed && run.ExitCode != nil:
		return l, harness.Errorf(harness.Unavailable, "the command that lists them ended with exit code %d", *run.ExitCode)
	case run.State != harness.ExecutionCompleted:
		return l, harness.Errorf(harness.Unavailable, "%s", strings.TrimSuffix(fmt.Sprintf("the command that lists them ended as %s: %s", run.State, run.Reason), ": "))
	case !run.Whole:
		return l, harness.Errorf(harness.Unavailable, "its list is longer than what is kept of a command's output")
	}
	var printed stdio.Tools
	if err := json.Unmarshal(run.Stdout, &printed); err != nil {
		return l, harness.Wrap(harness.Unavailable, err, "the command that lists them printed no list")
	}
	count := counts{}
	for _, t := range printed.Tools {
		var schema map[string]any
		_ = json.Unmarshal(t.InputSchema, &schema) // what is none is counted as such
		l.add(server, &sdk.Tool{Name: t.Name, Description: t.Description, InputSchema: schema}, count)
	}
	l.notes = printed.Notes
	l.leftOut(count)
	return l, nil
}

// Command implements step.Sandboxed.
func (s *Servers) Command(a *harness.Agent, call step.RemoteCall) string {
	server, ok := find(a, call.Remote)
	if !ok || !server.Stdio() {
		return ""
	}
	r := request(a, server)
	r.Tool, r.Arguments = call.Remote.Tool, call.Arguments
	return r.Shell()
}

// Outcome implements step.Sandboxed.
func (s *Servers) Outcome(r harness.RemoteTool, e *postgres.ExecutionResult) (step.Outcome, bool) {
	if e.ExitCode == nil || e.State != harness.ExecutionCompleted && e.State != harness.ExecutionFailed {
		return step.Outcome{}, false
	}
	o := step.Outcome{State: harness.ToolCallFailed, Text: string(e.StdoutHead), Rest: string(e.StdoutTail), Left: e.StdoutBytes - int64(len(e.StdoutHead)) - int64(len(e.StdoutTail))}
	why := cut(harness.CleanText(string(e.StdoutHead)), 500)
	switch *e.ExitCode {
	case 0:
		o.State = harness.ToolCallDone
	case stdio.ExitToolFailed:
		o.Note = "The tool says that it failed."
	case stdio.ExitRefused:
		o.Note = fmt.Sprintf("The MCP server %s refused the call.", r.Server)
	case stdio.ExitNotRun:
		return failed(fmt.Sprintf("Not run: the MCP server %s cannot be used now: %s.", r.Server, why)), true
	case stdio.ExitNoResult:
		return failed(fmt.Sprintf("There is no result of the MCP server %s: %s. The call may have run and was not repeated.", r.Server, why)), true
	case stdio.ExitTooLarge:
		return failed(fmt.Sprintf("The MCP server %s answered, but %s, so it was not read. Ask for less.", r.Server, why)), true
	default:
		return step.Outcome{}, false
	}
	return o, true
}
