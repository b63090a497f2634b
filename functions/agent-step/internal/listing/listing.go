// Package listing keeps what the servers of an agent's block offer: in Postgres, by
// agent, block and server, asked again when it is stale. A server that is down then
// offers what it did before.
package listing

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// Store is what the package needs of *postgres.Store.
type Store interface {
	Listings(ctx context.Context, agent harness.AgentName, block string) (map[string]postgres.Listing, error)
	PutListings(ctx context.Context, agent harness.AgentName, block string, keep []string, listings ...postgres.Listing) error
}

// Options say what a Book keeps.
type Options struct {
	Store  Store
	Log    *slog.Logger
	Block  string        // of agents
	Server string        // what a server of it is called: MCP server
	Offer  string        // what it gives: list of its tools
	Time   time.Duration // the longest that one may take; all of an agent's have twice that; 0: ten seconds
}

// Book keeps what the servers of one block offer, each a T. It is safe for
// concurrent use.
type Book[T any] struct {
	Options
	asking chan struct{} // holds one for each answer that is being read: they may be large
}

const (
	askTime  = 10 * time.Second
	maxAsked = 4 // servers that a process asks at once
)

// New returns a Book.
func New[T any](o Options) *Book[T] {
	if o.Time == 0 {
		o.Time = askTime
	}
	return &Book[T]{Options: o, asking: make(chan struct{}, maxAsked)}
}

// Server is one server of an agent.
type Server[T any] struct {
	Name   string
	Digest string // of its settings
	// Ask asks it; nil: somebody else does, and Put stores what it says.  notes are for the agent's log; the error's message says why there
	// is no answer, in words of our own.
	Ask func(ctx context.Context) (offered T, notes []string, err error)
}

// Listing is what is known of a server with its settings of now.
type Listing[T any] struct {
	Offered T
	Listed  bool   // there is an Offered
	Reason  string // why nothing arrived the last time; empty when it did

	Fresh   bool      // it was asked a short time ago
	TriedAt time.Time // when it was last asked; zero: never, with these settings
}

// Now returns what is known of servers, by name. It asks those of which that is
// stale, side by side, and stores what they say. notes are for the agent's log. An
// error is of the store.
func (b *Book[T]) Now(ctx context.Context, agent harness.AgentName, servers []Server[T]) (now map[string]Listing[T], notes []string, err error) {
	stored, err := b.Store.Listings(ctx, agent, b.Block)
	if err != nil {
		return nil, nil, err
	}
	type answer struct {
		offered T
		notes   []string
		err     error
		done    bool
	}
	now = map[string]Listing[T]{}
	answers := make([]answer, len(servers))
	var names []string
	var running sync.WaitGroup
	ctxAsk, cancel := context.WithTimeoutCause(ctx, 2*b.Time, fmt.Errorf("deadline of %s for all servers of a block", 2*b.Time))
	defer cancel()
	for i, s := range servers {
		names = append(names, s.Name)
		kept, ok := known[T](stored[s.Name], s.Digest)
		if ok {
			now[s.Name] = kept
		}
		if s.Ask == nil || ok && kept.Fresh {
			continue
		}
		running.Go(func() {
			a := answer{done: true}
			a.offered, a.notes, a.err = b.ask(ctxAsk, s)
			answers[i] = a
		})
	}
	running.Wait() // each has its time, and all of them have twice that
	var news []postgres.Listing
	for i, a := range answers {
		if !a.done {
			continue
		}
		s := servers[i]
		l, put, said, err := b.settle(agent, s, now[s.Name], a.offered, a.notes, a.err)
		if err != nil {
			return nil, nil, err
		}
		now[s.Name], notes, news = l, append(notes, said...), append(news, put)
	}
	if len(news) == 0 {
		return now, notes, nil
	}
	return now, notes, b.Store.PutListings(ctx, agent, b.Block, names, news...)
}

// settle is what is known of a server once it was asked, and what is stored of that.
func (b *Book[T]) settle(agent harness.AgentName, s Server[T], l Listing[T], offered T, said []string, failed error) (Listing[T], postgres.Listing, []string, error) {
	put := postgres.Listing{Server: s.Name, Digest: s.Digest}
	if failed != nil { // what was known stays
		put.Reason = harness.MessageOf(failed)
		l.Reason = put.Reason
		b.Log.Warn("a server of an agent gave nothing to keep", "block", b.Block, "agent", string(agent), "server", s.Name, "err", failed)
		return l, put, []string{fmt.Sprintf("the %s %s gave no %s: %s", b.Server, s.Name, b.Offer, put.Reason)}, nil
	}
	var err error
	if put.Offered, err = json.Marshal(offered); err != nil {
		return l, put, nil, harness.Wrap(harness.Internal, err, "what a server offers cannot be kept")
	}
	var notes []string
	for _, note := range said {
		notes = append(notes, fmt.Sprintf("the %s %s: %s", b.Server, s.Name, note))
	}
	return Listing[T]{Offered: offered, Listed: true}, put, notes, nil
}

// Put stores what a server has said to somebody else, or why it said nothing, and
// returns what is known of it then. was is what Now has said of it; names are all
// servers of the block.
func (b *Book[T]) Put(ctx context.Context, agent harness.AgentName, names []string, s Server[T], was Listing[T], offered T, said []string, failed error) (Listing[T], []string, error) {
	l, put, notes, err := b.settle(agent, s, was, offered, said, failed)
	if err != nil {
		return l, nil, err
	}
	return l, notes, b.Store.PutListings(ctx, agent, b.Block, names, put)
}

// Kept returns what is known of one server, and asks nobody. ok is false where
// nothing is.
func (b *Book[T]) Kept(ctx context.Context, agent harness.AgentName, name, digest string) (offered T, ok bool, err error) {
	stored, err := b.Store.Listings(ctx, agent, b.Block)
	if err != nil {
		return offered, false, err
	}
	l, ok := known[T](stored[name], digest)
	return l.Offered, ok && l.Listed, nil
}

// known reads what is stored. ok is false for other settings and for what another
// release has stored.
func known[T any](stored postgres.Listing, digest string) (l Listing[T], ok bool) {
	if stored.Digest != digest {
		return l, false
	}
	if stored.Listed && json.Unmarshal(stored.Offered, &l.Offered) != nil {
		return Listing[T]{}, false
	}
	l.Listed, l.Reason, l.Fresh, l.TriedAt = stored.Listed, stored.Reason, stored.Fresh, stored.TriedAt
	return l, true
}

// ask asks one server, when it is its turn.
func (b *Book[T]) ask(ctx context.Context, s Server[T]) (offered T, notes []string, err error) {
	select {
	case b.asking <- struct{}{}:
		defer func() { <-b.asking }()
	case <-ctx.Done():
		return offered, nil, harness.Wrap(harness.Unavailable, context.Cause(ctx), "other servers took all the time that there is for lists")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, b.Time, fmt.Errorf("deadline of %s to say what it offers", b.Time))
	defer cancel()
	return s.Ask(ctx)
}
