package channel

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// Drafter shows people an answer while it is written.
type Drafter interface {
	// Draft shows c by one call: by a message of its own the first time, then in
	// that message. What it cannot show now it leaves out: a later draft has it all.
	Draft(ctx context.Context, account *Account, c *postgres.DraftClaim) postgres.DraftOutcome
}

// DraftsOptions are what Drafts needs.
type DraftsOptions struct {
	Channel  harness.Channel
	Store    DraftStore
	Accounts AccountSource
	Drafter  Drafter
	Reply    func(ctx context.Context, e event.Event) error // sends what waits for a draft
	Owner    string
	Log      *slog.Logger
}

// DraftStore is what Drafts reads and writes.
type DraftStore interface {
	ClaimDraft(ctx context.Context, message harness.MessageID, lease postgres.Lease) (*postgres.DraftClaim, error)
	MarkDraft(ctx context.Context, c *postgres.DraftClaim, o postgres.DraftOutcome) (waits bool, err error)
}

// Drafts shows answers while they are written: it hears message.draft. Nothing
// depends on it; a lost event costs a draft. That a draft's message is sent is
// committed before it is sent, so that it is sent at most once: one of which
// nobody knows whether it arrived stays as it is, and the reply goes out anew.
type Drafts struct{ DraftsOptions }

const (
	draftLease = 15 * time.Second // a reply waits so long for a process that has died
	draftTime  = 8 * time.Second  // of the call: nothing is shown under a lease that is over
)

// NewDrafts returns Drafts.
func NewDrafts(o DraftsOptions) *Drafts { return &Drafts{o} }

// Draft shows the draft of the answer to the message of e, as far as it is new.
func (d *Drafts) Draft(ctx context.Context, e event.Event) error {
	if e.Payload.Message == "" || e.Session == "" || e.Channel != d.Channel {
		return harness.Errorf(harness.Invalid, "message.draft must name a message of the channel %s and its session", d.Channel)
	}
	claim, err := d.Store.ClaimDraft(ctx, e.Payload.Message, postgres.Lease{Owner: d.Owner, For: draftLease})
	if err != nil {
		d.unless(postgres.ErrNothingDue, err, e)
		return nil
	}
	outcome := d.show(ctx, claim)
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), markTime, errors.New("mark deadline of "+markTime.String()))
	defer cancel()
	waits, err := d.Store.MarkDraft(ctx, claim, outcome)
	if err != nil {
		d.unless(postgres.ErrLeaseLost, err, e)
		return nil
	}
	if !waits {
		return nil
	}
	return d.Reply(ctx, event.Event{ID: e.ID, Type: event.MessageReply, Session: claim.Session.ID, Agent: claim.Session.Agent, Channel: claim.Session.Channel, TraceParent: e.TraceParent})
}

// unless notes err, if it is not what happens all the time: the next draft comes.
func (d *Drafts) unless(usual, err error, e event.Event) {
	if !errors.Is(err, usual) {
		d.Log.Info("a draft is not shown", "session", string(e.Session), "agent", string(e.Agent), "err", err)
	}
}

func (d *Drafts) show(ctx context.Context, c *postgres.DraftClaim) postgres.DraftOutcome {
	unsent := postgres.DraftOutcome{State: harness.ReplyPlanned}
	if c.ProviderID != "" {
		unsent.State = harness.ReplySent // by an earlier one
	}
	if c.Spec == nil {
		return unsent
	}
	account, err := d.Accounts.Of(ctx, c.Session.Account, c.Session.Agent, *c.Spec)
	if err != nil {
		d.Log.Info("a draft is not shown", "session", string(c.Session.ID), "agent", string(c.Session.Agent), "err", err)
		return unsent
	}
	ctx, cancel := context.WithTimeoutCause(ctx, draftTime, errors.New("draft deadline of "+draftTime.String()))
	defer cancel()
	return d.Drafter.Draft(ctx, account, c)
}
