package channel

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/secret"
)

// ChecksOptions are what Checks needs.
type ChecksOptions struct {
	Channel harness.Channel
	Store   CheckStore
	Secrets secret.Source
	Log     *slog.Logger
	Now     func() time.Time
}

// CheckStore is what Checks reads and writes.
type CheckStore interface {
	Routes(ctx context.Context, channel harness.Channel) ([]postgres.AccountRoute, error)
	StoreSecretChecks(ctx context.Context, function string, checks []harness.SecretCheck) (changed int, err error)
}

// Checks finds out whether the Secrets that agents name for their accounts of
// one channel can be used, and stores that for their status: which Secret, and
// what is to be mended, never anything of a value. All accounts every time, so
// that one run that was missed is made up for by the next.
type Checks struct {
	ChecksOptions
	running chan struct{} // holds one while a run is under way
	begun   atomic.Int64  // runs
	done    int64         // the last of them that succeeded; under running

	mu     sync.Mutex
	last   time.Time
	lacked map[lackedKey]bool // what was noticed to be missing
}

type lackedKey struct {
	agent harness.AgentName
	ref   harness.SecretRef
}

const (
	checkTime  = 10 * time.Second
	checkAgain = 30 * time.Second // between two runs that nobody asked for
)

// NewChecks checks nothing yet.
func NewChecks(o ChecksOptions) *Checks {
	return &Checks{ChecksOptions: o, lacked: map[lackedKey]bool{}, running: make(chan struct{}, 1)}
}

// AgentStatusChanged checks because an agent changed, or may have.
func (c *Checks) AgentStatusChanged(ctx context.Context, _ event.Event) error { return c.run(ctx) }

// Noticed says whether a Secret was there for somebody who needed it. If it was
// missing, or is there again, everything is checked: best effort, and for what
// stays missing not too often.
func (c *Checks) Noticed(ctx context.Context, agent harness.AgentName, ref harness.SecretRef, there bool) {
	if !c.news(lackedKey{agent, ref}, there) {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), checkTime, fmt.Errorf("secret checks deadline of %s", checkTime))
	defer cancel()
	if err := c.run(ctx); err != nil {
		c.Log.Warn("the Secrets of agents cannot be checked now", "channel", string(c.Channel), "err", err)
	}
}

func (c *Checks) news(key lackedKey, there bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	lacked := c.lacked[key]
	if there {
		delete(c.lacked, key)
		return lacked
	}
	c.lacked[key] = true
	return !lacked || c.Now().Sub(c.last) >= checkAgain
}

// run checks everything, unless a run that began after this call has succeeded
// meanwhile: many agents that change at once cost two runs, not many.
func (c *Checks) run(ctx context.Context) error {
	asked := c.begun.Load()
	select {
	case c.running <- struct{}{}:
		defer func() { <-c.running }()
	case <-ctx.Done():
		return harness.Wrap(harness.Unavailable, context.Cause(ctx), "the Secrets of agents are being checked for others")
	}
	if c.done > asked {
		return nil
	}
	run := c.begun.Add(1)
	err := c.check(ctx)
	if err == nil {
		c.done = run
	}
	return err
}

func (c *Checks) check(ctx context.Context) error {
	c.mu.Lock()
	c.last = c.Now()
	c.mu.Unlock()
	routes, err := c.Store.Routes(ctx, c.Channel)
	if err != nil {
		return err
	}
	var checks []harness.SecretCheck
	for _, r := range routes {
		named := refs(r.Spec)
		for _, role := range slices.Sorted(maps.Keys(named)) {
			if named[role] == (harness.SecretRef{}) { // the platform's own
				continue
			}
			check, err := c.Secrets.Check(ctx, r.Agent, named[role])
			if err != nil { // nothing is known: what was found before stands
				return err
			}
			checks = append(checks, check)
		}
	}
	changed, err := c.Store.StoreSecretChecks(ctx, CheckedBy(c.Channel), checks)
	if err == nil && changed > 0 {
		c.Log.Info("the Secrets of agents were checked", "channel", string(c.Channel), "found", len(checks), "changed", changed)
	}
	return err
}

// CheckedBy is the function that checks the Secrets of a channel.
func CheckedBy(channel harness.Channel) string {
	switch channel {
	case harness.ChannelWhatsApp:
		return "whatsapp-ingest"
	case harness.ChannelTelegram:
		return "telegram-ingest"
	}
	return "webhook-ingest"
}

// Refs returns the Secrets that a channel names, each once, in a stable order.
func Refs(spec harness.ChannelSpec) []harness.SecretRef {
	var named []harness.SecretRef
	all := refs(spec)
	for _, role := range slices.Sorted(maps.Keys(all)) {
		if ref := all[role]; ref != (harness.SecretRef{}) && !slices.Contains(named, ref) {
			named = append(named, ref)
		}
	}
	return named
}
