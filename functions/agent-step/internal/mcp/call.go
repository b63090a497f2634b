package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// maxAnswerBytes is how long the answer to a call may be. A step makes four calls
// and a process works eight steps: what it is bounded by is memory.
const maxAnswerBytes = 2 << 20

// Call implements step.Tools.
func (s *Servers) Call(ctx context.Context, c *postgres.Claim, call step.RemoteCall) step.Outcome {
	server, ok := find(c.Agent, call.Remote)
	if !ok || server.Stdio() { // a program's call is a command, which this is not
		return failed("Not run: the agent does not have this tool any more.")
	}
	w, err := s.open(ctx, c.Session.Agent, server, maxAnswerBytes)
	if err != nil {
		return failed(notRun(server, err))
	}
	defer w.close()
	session, err := w.connect(ctx)
	if err != nil {
		err = w.why(ctx, err)
		s.Log.Warn("an MCP server cannot be used", "agent", string(c.Session.Agent), "server", server.Name, "err", err)
		return failed(notRun(server, err))
	}
	w.call()
	result, err := session.CallTool(ctx, &sdk.CallToolParams{Name: call.Remote.Tool, Arguments: call.Arguments})
	if err != nil {
		s.Log.Warn("a call of an MCP server failed", "agent", string(c.Session.Agent), "server", server.Name, "err", w.why(ctx, err))
		return w.broken(ctx, err)
	}
	if result.NeedsInput() {
		return failed("The server asks for more before it answers, which this system does not give to servers. The call may have had effects.")
	}
	o := step.Outcome{State: harness.ToolCallDone, Text: harness.Redact(text(result), w.secrets)}
	if result.IsError {
		o.State, o.Note = harness.ToolCallFailed, "The tool says that it failed."
	}
	return o
}

func failed(note string) step.Outcome {
	return step.Outcome{State: harness.ToolCallFailed, Note: note}
}

func notRun(server harness.MCPServer, err error) string {
	return fmt.Sprintf("Not run: the MCP server %s cannot be used now: %s.", server.Name, harness.MessageOf(err))
}

// broken is what the model is told of a call without a result.
func (w *wire) broken(ctx context.Context, err error) step.Outcome {
	why := w.why(ctx, err)
	w.mu.Lock()
	reached := w.reached
	w.mu.Unlock()
	if !reached {
		return failed(notRun(w.server, why))
	}
	note := fmt.Sprintf("There is no result of the MCP server %s: %s. The call may have run and was not repeated.", w.server.Name, harness.MessageOf(why))
	if harness.KindOf(why) == harness.Exhausted {
		note = fmt.Sprintf("The MCP server %s answered, but %s, so it was not read. Ask for less.", w.server.Name, harness.MessageOf(why))
	}
	o := failed(note)
	if refusal, ok := errors.AsType[*jsonrpc.Error](err); ok && harness.KindOf(why) == harness.Invalid {
		o.Note, o.Text = fmt.Sprintf("The MCP server %s refused the call (error %d).", w.server.Name, refusal.Code), harness.Redact(refusal.Message, w.secrets)
	}
	return o
}

// text is what a result says in words: the texts, and of all else what it is.
func text(r *sdk.CallToolResult) string {
	var parts []string
	for _, content := range r.Content {
		switch part := content.(type) {
		case *sdk.TextContent:
			parts = append(parts, part.Text)
		case *sdk.ImageContent:
			parts = append(parts, fmt.Sprintf("[An image, %s, %d bytes: it is not shown.]", mimeType(part.MIMEType), len(part.Data)))
		case *sdk.AudioContent:
			parts = append(parts, fmt.Sprintf("[A sound, %s, %d bytes: it is not shown.]", mimeType(part.MIMEType), len(part.Data)))
		case *sdk.ResourceLink:
			parts = append(parts, fmt.Sprintf("[A link to a resource, %s: %s]", mimeType(part.MIMEType), cut(part.URI, 2048)))
		case *sdk.EmbeddedResource:
			switch {
			case part.Resource == nil:
			case part.Resource.Text != "":
				parts = append(parts, part.Resource.Text)
			default:
				parts = append(parts, fmt.Sprintf("[A resource, %s, %d bytes: it is not shown.]", mimeType(part.Resource.MIMEType), len(part.Resource.Blob)))
			}
		default:
			parts = append(parts, "[Something of another type: it is not shown.]")
		}
	}
	if len(parts) == 0 && r.StructuredContent != nil {
		if structured, err := json.Marshal(r.StructuredContent); err == nil {
			return string(structured)
		}
	}
	return strings.Join(parts, "\n")
}

// mimeType is a type as a server says it, short.
func mimeType(said string) string {
	if said == "" {
		return "of unknown type"
	}
	return cut(harness.CleanText(said), 100)
}
