// Package mcp gives agents the tools of MCP servers: by Streamable HTTP, and of those
// that are programs of the session's sandbox (program.go).
//
// What a server offers is kept in Postgres, by agent and server, and asked again
// when it is stale: a server that is down then offers what it did before, and a
// call says to the model what is wrong. Nothing of a server is trusted: lists and
// answers are bounded in number, bytes and time, addresses are checked when they
// are dialled, redirects stay on the server, and a server that asks for the model,
// for a person or for files gets no answer.
//
// Each call has a session of its own with the server, which ends with it: a call
// is one request to run a tool, never sent again by whatever way it fails.
package mcp

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/listing"
	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/shared/dial"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/secret"
)

// Options are everything Servers depends on.
type Options struct {
	Store        Store
	Secrets      secret.Source
	Log          *slog.Logger
	AllowPrivate bool          // servers may have private addresses
	ListTime     time.Duration // the longest that a server may take for its list; 0: ten seconds
}

// Store is what the package needs of *postgres.Store.
type Store interface {
	listing.Store
	ToolList(ctx context.Context, session harness.SessionID, command string, spec harness.SandboxSpec) (postgres.ToolList, error)
}

// Servers are the MCP servers of agents. It implements step.Tools and is safe for
// concurrent use.
type Servers struct {
	Options
	transport *http.Transport
	book      *listing.Book[[]tool]
}

var _ step.Tools = (*Servers)(nil)

const dialTime = 10 * time.Second

// New returns Servers. It talks to nobody yet.
func New(o Options) *Servers {
	return &Servers{Options: o, transport: dial.Transport(dialTime, o.AllowPrivate), book: listing.New[[]tool](listing.Options{
		Store: o.Store, Log: o.Log, Block: harness.BlockMCP, Server: "MCP server", Offer: "list of its tools", Time: o.ListTime,
	})}
}

// Close closes idle connections.
func (s *Servers) Close() { s.transport.CloseIdleConnections() }

// Block implements step.Tools.
func (s *Servers) Block() string { return harness.BlockMCP }

// Resolve implements step.Tools.
func (s *Servers) Resolve(a *harness.Agent, r harness.RemoteTool) (harness.RemoteTool, time.Duration, bool) {
	server, ok := find(a, r)
	if !ok {
		return harness.RemoteTool{}, 0, false
	}
	return server.Remote(r.Tool), server.Timeout(), true
}

// find returns the server of r, if the agent still has it and may call the tool.
func find(a *harness.Agent, r harness.RemoteTool) (harness.MCPServer, bool) {
	for _, server := range a.MCPServers {
		if server.Name == r.Server {
			return server, server.Allows(r.Tool)
		}
	}
	return harness.MCPServer{}, false
}

// Offer implements step.Tools.
func (s *Servers) Offer(ctx context.Context, c *postgres.Claim) (step.Offer, error) {
	var offer step.Offer
	servers := c.Agent.MCPServers
	if len(servers) == 0 {
		return offer, nil
	}
	ask, names := make([]listing.Server[[]tool], len(servers)), make([]string, len(servers))
	for i, server := range servers {
		names[i] = server.Name
		if server.Stdio() {
			ask[i] = programOf(c.Agent, server)
			continue
		}
		ask[i] = listing.Server[[]tool]{Name: server.Name, Digest: server.Digest(), Ask: func(ctx context.Context) ([]tool, []string, error) {
			l, err := s.list(ctx, c.Session.Agent, server)
			return l.tools, l.notes, err
		}}
	}
	now, notes, err := s.book.Now(ctx, c.Session.Agent, ask)
	if err != nil {
		return offer, err
	}
	offer.Notes = notes
	for _, server := range servers {
		l := now[server.Name]
		if server.Stdio() {
			if l, err = s.listProgram(ctx, c, server, l, names, &offer); err != nil {
				return offer, err
			}
		}
		if !l.Listed {
			offer.Missing = append(offer.Missing, fmt.Sprintf("The tools of the MCP server %s cannot be used now: %s.", server.Name, l.Reason))
		}
		for _, t := range l.Offered {
			offer.Tools = append(offer.Tools, step.Offered{
				Tool:   model.Tool{Name: server.Name + "__" + t.Name, Description: t.Description, Parameters: t.Parameters},
				Remote: server.Remote(t.Name), Policy: server.Policy(t.Name),
			})
		}
	}
	return offer, nil
}
