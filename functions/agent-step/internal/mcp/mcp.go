// Package mcp gives agents the tools of MCP servers, by Streamable HTTP.
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
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/shared/dial"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/secret"
)

// Store is what the package needs of *postgres.Store.
type Store interface {
	MCPListings(ctx context.Context, agent harness.AgentName) (map[string]postgres.MCPListing, error)
	PutMCPListings(ctx context.Context, agent harness.AgentName, keep []string, listings ...postgres.MCPListing) error
}

// Options are everything Servers depends on.
type Options struct {
	Store        Store
	Secrets      secret.Source
	Log          *slog.Logger
	AllowPrivate bool          // servers may have private addresses
	ListTime     time.Duration // the longest that a server may take for its list; 0: ten seconds
}

// Servers are the MCP servers of agents. It implements step.Tools and is safe for
// concurrent use.
type Servers struct {
	Options
	transport *http.Transport
	listing   chan struct{} // holds one for each list that is being read: they may be large
}

var _ step.Tools = (*Servers)(nil)

const (
	dialTime = 10 * time.Second
	listTime = 10 * time.Second

	maxListings = 4 // lists that a process reads at once
)

// New returns Servers. It talks to nobody yet.
func New(o Options) *Servers {
	if o.ListTime == 0 {
		o.ListTime = listTime
	}
	return &Servers{Options: o, transport: dial.Transport(dialTime, o.AllowPrivate), listing: make(chan struct{}, maxListings)}
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
	known, err := s.Store.MCPListings(ctx, c.Session.Agent)
	if err != nil {
		return offer, err
	}
	lists := map[string][]tool{}
	for name, l := range known {
		var tools []tool
		if json.Unmarshal(l.Tools, &tools) != nil { // of another release
			delete(known, name)
			continue
		}
		lists[name] = tools
	}
	if err := s.refresh(ctx, c, known, lists, &offer); err != nil {
		return offer, err
	}
	for _, server := range servers {
		if l := known[server.Name]; !l.Listed {
			offer.Missing = append(offer.Missing, fmt.Sprintf("The tools of the MCP server %s cannot be used now: %s.", server.Name, l.Reason))
		}
		for _, t := range lists[server.Name] {
			offer.Tools = append(offer.Tools, step.Offered{
				Tool:   model.Tool{Name: server.Name + "__" + t.Name, Description: t.Description, Parameters: t.Parameters},
				Remote: server.Remote(t.Name), Policy: server.Policy(t.Name),
			})
		}
	}
	return offer, nil
}

// refresh asks the servers whose lists are stale, side by side, and stores what
// they say.
func (s *Servers) refresh(ctx context.Context, c *postgres.Claim, known map[string]postgres.MCPListing, lists map[string][]tool, offer *step.Offer) error {
	type answer struct {
		list list
		err  error
		done bool
	}
	servers := c.Agent.MCPServers
	answers := make([]answer, len(servers))
	var names []string
	var running sync.WaitGroup
	ctxList, cancel := context.WithTimeoutCause(ctx, 2*s.ListTime, fmt.Errorf("deadline of %s for all lists", 2*s.ListTime))
	defer cancel()
	for i, server := range servers {
		names = append(names, server.Name)
		if l := known[server.Name]; l.Fresh && l.Digest == server.Digest() {
			continue
		}
		running.Go(func() {
			l, err := s.list(ctxList, c.Session.Agent, server)
			answers[i] = answer{l, err, true}
		})
	}
	running.Wait() // a list has its time, and all of them have twice that
	var listings []postgres.MCPListing
	for i, a := range answers {
		if !a.done {
			continue
		}
		server := servers[i]
		l := postgres.MCPListing{Server: server.Name, Digest: server.Digest()}
		if a.err != nil {
			l.Reason = harness.MessageOf(a.err)
			s.Log.Warn("an MCP server gave no list of its tools", "agent", string(c.Session.Agent), "server", server.Name, "err", a.err)
			offer.Notes = append(offer.Notes, fmt.Sprintf("the MCP server %s gave no list of its tools: %s", server.Name, l.Reason))
			if old := known[server.Name]; old.Digest == l.Digest { // it is kept
				l.Tools, l.Listed = old.Tools, old.Listed
			} else {
				delete(lists, server.Name)
			}
		} else {
			text, err := json.Marshal(a.list.tools)
			if err != nil {
				return harness.Wrap(harness.Internal, err, "a list of tools cannot be kept")
			}
			l.Tools, l.Listed, lists[server.Name] = text, true, a.list.tools
			for _, note := range a.list.notes {
				offer.Notes = append(offer.Notes, fmt.Sprintf("the MCP server %s: %s", server.Name, note))
			}
		}
		known[server.Name] = l
		listings = append(listings, l)
	}
	if len(listings) == 0 {
		return nil
	}
	return s.Store.PutMCPListings(ctx, c.Session.Agent, names, listings...)
}
