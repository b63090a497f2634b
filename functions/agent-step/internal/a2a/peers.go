// Package a2a lets agents ask other agents, by the Agent2Agent protocol (0.3,
// https://a2a-protocol.org): JSON-RPC over HTTP, on the types of the official SDK.
// Its client is not used: it links gRPC.
//
// A peer is two tools: one sends it a message and waits for the end of the task that
// begins by it, one asks how such a task stands. What does not end within a call's
// time goes on at the peer, and the model is told its name.
//
// Nothing of a peer is trusted: its card names no other host than the agent's author
// did, since headers go there; answers are bounded in bytes and time, addresses are
// checked when they are dialled, and redirects are not followed. A message is sent
// once, by the id of its call, whatever way that fails.
package a2a

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

// Options are everything Peers depends on.
type Options struct {
	Store        listing.Store
	Secrets      secret.Source
	Log          *slog.Logger
	AllowPrivate bool          // peers may have private addresses
	CardTime     time.Duration // the longest that a peer may take for its card; 0: ten seconds
	LookAfter    time.Duration // how soon a task is looked at first; 0: half a second
}

// Peers are the peers of agents. It implements step.Tools and is safe for
// concurrent use.
type Peers struct {
	Options
	http *http.Client
	idle func()
	book *listing.Book[card]
}

var _ step.Tools = (*Peers)(nil)

const (
	dialTime  = 10 * time.Second
	lookAfter = 500 * time.Millisecond
	lookEvery = 5 * time.Second // at most, after the pause has doubled often enough
)

// The tools of a peer.
const (
	toolSend = "send"
	toolTask = "task"
)

// New returns Peers. It talks to nobody yet.
func New(o Options) *Peers {
	if o.LookAfter == 0 {
		o.LookAfter = lookAfter
	}
	transport := dial.Transport(dialTime, o.AllowPrivate)
	return &Peers{
		Options: o, idle: transport.CloseIdleConnections,
		http: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		book: listing.New[card](listing.Options{Store: o.Store, Log: o.Log, Block: harness.BlockA2A, Server: "peer", Offer: "card", Time: o.CardTime}),
	}
}

// Close closes idle connections.
func (p *Peers) Close() { p.idle() }

// Block implements step.Tools.
func (p *Peers) Block() string { return harness.BlockA2A }

// Resolve implements step.Tools.
func (p *Peers) Resolve(a *harness.Agent, r harness.RemoteTool) (harness.RemoteTool, time.Duration, bool) {
	peer, ok := find(a, r)
	if !ok {
		return harness.RemoteTool{}, 0, false
	}
	return peer.Remote(r.Tool), peer.Timeout(), true
}

// find returns the peer of r, if the agent still has it.
func find(a *harness.Agent, r harness.RemoteTool) (harness.Peer, bool) {
	for _, peer := range a.Peers {
		if peer.Name == r.Server {
			return peer, r.Tool == toolSend || r.Tool == toolTask
		}
	}
	return harness.Peer{}, false
}

// Offer implements step.Tools.
func (p *Peers) Offer(ctx context.Context, c *postgres.Claim) (step.Offer, error) {
	var offer step.Offer
	peers := c.Agent.Peers
	if len(peers) == 0 {
		return offer, nil
	}
	ask := make([]listing.Server[card], len(peers))
	for i, peer := range peers {
		ask[i] = listing.Server[card]{Name: peer.Name, Digest: peer.Digest(), Ask: func(ctx context.Context) (card, []string, error) {
			found, err := p.card(ctx, c.Session.Agent, peer)
			return found, nil, err
		}}
	}
	now, notes, err := p.book.Now(ctx, c.Session.Agent, ask)
	if err != nil {
		return offer, err
	}
	offer.Notes = notes
	for _, peer := range peers {
		l := now[peer.Name]
		if !l.Listed {
			offer.Missing = append(offer.Missing, fmt.Sprintf("The agent %s cannot be asked now: %s.", peer.Name, l.Reason))
			continue
		}
		for _, t := range tools(peer, l.Offered) {
			offer.Tools = append(offer.Tools, step.Offered{
				Tool:   model.Tool{Name: peer.Name + "__" + t.Name, Description: t.Description, Parameters: t.Parameters},
				Remote: peer.Remote(t.Name), Policy: peer.Policy(),
			})
		}
	}
	return offer, nil
}

// tools are what the model may do with a peer.
func tools(peer harness.Peer, c card) []model.Tool {
	about := ""
	switch {
	case peer.Description != "":
		about = " What it is for: " + peer.Description
	case c.Description != "":
		about = " It says of itself: " + c.Description
	}
	text := func(description string) map[string]any {
		return map[string]any{"type": "string", "description": description}
	}
	return []model.Tool{{
		Name:        toolSend,
		Description: fmt.Sprintf("Sends a message to the agent %s and returns what it answers. An answer that takes longer than %s is asked for by %s__%s.%s", peer.Name, peer.Timeout(), peer.Name, toolTask, about),
		Parameters: map[string]any{"type": "object", "required": []string{"text"}, "properties": map[string]any{
			"text":    text("What to say to it. It sees nothing else of this conversation."),
			"context": text("The context of an earlier answer of it, to go on with that conversation. Left out: a new one."),
			"task":    text("The task of an earlier answer of it that waits for yours."),
		}},
	}, {
		Name:        toolTask,
		Description: fmt.Sprintf("Returns how a task stands that the agent %s had not ended when it was last heard of, and waits for its end.", peer.Name),
		Parameters:  map[string]any{"type": "object", "required": []string{"task"}, "properties": map[string]any{"task": text("The task, as an earlier answer of it names it.")}},
	}}
}
