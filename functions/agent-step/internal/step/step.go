// Package step works one step of a session: read, claim, decide, act once,
// commit, wake. Decisions are pure (decide.go, answer.go); what a step does on
// the network is one question to the model, or the remote calls that it asked for
// (remote.go), outside any transaction.
//
// A crash at any line leaves the session leased; its lease runs out, the sweep
// wakes it, and the next claim reads the same rows. What was committed is not
// repeated, what was not committed did not happen: at worst a model was asked
// twice. That a remote call begins is committed before it is made.
package step

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"strings"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/trace"
)

// Store is what a step needs of *postgres.Store.
type Store interface {
	ClaimSession(ctx context.Context, id harness.SessionID, lease postgres.Lease) (*postgres.Claim, error)
	ExtendSession(ctx context.Context, id harness.SessionID, token int64, lease postgres.Lease) error
	CommitStep(ctx context.Context, c postgres.StepCommit) ([]event.Event, error)
	Granted(ctx context.Context, agent harness.AgentName, session harness.SessionID, digests []string) (map[string]bool, error)
	DueIn(ctx context.Context, id harness.SessionID) (in time.Duration, ok bool, err error)
	Reserve(ctx context.Context, agent harness.AgentName, user string, b harness.Budget, want harness.Spending) (postgres.Reservation, *postgres.BudgetOverrun, error)
	ReserveWhole(ctx context.Context, agent harness.AgentName, user string, b harness.Budget, want harness.Spending) (postgres.Reservation, *postgres.BudgetOverrun, error)
	WriteDraft(ctx context.Context, claim *postgres.Claim, text string) error
	BeginCalls(ctx context.Context, claim *postgres.Claim, calls []harness.ToolCallID) ([]harness.ToolCallID, error)
	HoldSession(ctx context.Context, id harness.SessionID, text string) ([]event.Event, error)
	DueSessions(ctx context.Context, agent harness.AgentName, limit int) ([]event.Event, error)
}

// Model is what a step needs of *model.Client.
type Model interface {
	Complete(ctx context.Context, r model.Request) (model.Response, error)
}

// Runs works the steps of workflow runs.
type Runs interface {
	Work(ctx context.Context, claim *postgres.Claim) ([]event.Event, error)
}

// Checks looks at the Secrets that agents name for the tools of their blocks.
type Checks interface {
	AgentStatusChanged(ctx context.Context, e event.Event) error
}

// Options are everything a Stepper depends on.
type Options struct {
	Store         Store
	Model         Model
	Runs          Runs
	Tools         []Tools // of the blocks of agents
	Checks        Checks  // nil: none
	Objects       Objects // nil: models are told of images in words
	Guard         Guard   // nil: an agent with guardrails is not worked
	Publish       func(ctx context.Context, events ...event.Event)
	Log           *slog.Logger
	Lease         postgres.Lease
	ContextTokens int64            // history sent to the model at most, estimated
	Secrets       []harness.Secret // redacted from whatever leaves
	Prices        map[string]harness.Price
	ModelName     string // of agents that name none
	ModelProvider harness.Provider
	CallTime      time.Duration // the longest that the model may take for an answer; 0: what Model allows by default
}

// Stepper works sessions.
type Stepper struct {
	Options
	limits limits
}

// New returns a Stepper.
func New(o Options) *Stepper {
	if o.Guard == nil {
		o.Guard = noGuard{}
	}
	return &Stepper{Options: o, limits: limits{
		contextTokens: o.ContextTokens, secrets: o.Secrets, prices: o.Prices, model: o.ModelName, provider: cmp.Or(o.ModelProvider, harness.ProviderOpenAI), images: o.Objects != nil, callTime: cmp.Or(o.CallTime, model.DefaultLimits().Total),
		resolve: resolve(o.Tools), programs: programs(o.Tools),
	}}
}

// commitTime is how long a commit may take once a step's own time is over.
const commitTime = 10 * time.Second

// Session works one step of the session that e names.
func (s *Stepper) Session(ctx context.Context, e event.Event) (failed error) {
	id := e.Payload.Session
	if id == "" {
		return harness.Errorf(harness.Invalid, "event data names no session")
	}
	claim, err := s.claim(ctx, id)
	if errors.Is(err, postgres.ErrNothingDue) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, end := trace.Start(ctx, "step", "tuluat.session", string(claim.ID), "tuluat.agent", string(claim.Session.Agent), "tuluat.workflow", string(claim.Workflow))
	defer func() { end(failed) }()
	if claim.Workflow != "" {
		events, err := s.Runs.Work(ctx, claim)
		s.Publish(context.WithoutCancel(ctx), events...)
		return err
	}
	commit, err := s.work(ctx, claim)
	if errors.Is(err, postgres.ErrLeaseLost) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.commit(ctx, commit)
}

// dueSoon is how long a request waits for a session that is not due yet: the
// parts of an album come together in that time.
const dueSoon = 3 * time.Second

// claim claims the session, after a short wait when it is about to be due.
func (s *Stepper) claim(ctx context.Context, id harness.SessionID) (*postgres.Claim, error) {
	claim, err := s.Store.ClaimSession(ctx, id, s.Lease)
	if !errors.Is(err, postgres.ErrNothingDue) {
		return claim, err
	}
	in, ok, err := s.Store.DueIn(ctx, id)
	if errors.Is(err, postgres.ErrHeld) {
		return nil, s.hold(ctx, id)
	}
	if err != nil {
		return nil, err
	}
	if !ok || in > dueSoon {
		return nil, postgres.ErrNothingDue
	}
	timer := time.NewTimer(max(0, in))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done(): // it is due in its row: the sweep wakes somebody
		return nil, postgres.ErrNothingDue
	}
	return s.Store.ClaimSession(ctx, id, s.Lease)
}

// halted is what a person is told who waits for an agent that is halted.
const halted = "This agent has been stopped by its operator. Your message waits, and is answered when the agent goes on."

// hold leaves a session alone that is held, and tells whoever waits for it why
// nothing comes.
func (s *Stepper) hold(ctx context.Context, id harness.SessionID) error {
	events, err := s.Store.HoldSession(ctx, id, halted)
	if err != nil {
		return err
	}
	s.Publish(ctx, events...)
	return postgres.ErrNothingDue
}

// work decides and, where the decision is to ask the model, asks it once while
// the lease is kept.
func (s *Stepper) work(ctx context.Context, claim *postgres.Claim) (postgres.StepCommit, error) {
	plan := decide(claim, s.limits)
	plan, err := s.toAsk(ctx, claim, plan)
	if err != nil {
		return plan.commit, err
	}
	if plan, err = s.before(ctx, claim, plan); err != nil {
		return plan.commit, err
	}
	if plan.ask == nil {
		if plan.commit, err = s.reserveRuns(ctx, claim, plan.commit); err != nil || len(plan.remotes) == 0 {
			return plan.commit, err
		}
		return s.act(ctx, claim, plan)
	}
	var response model.Response
	began := time.Now()
	err = postgres.Keep(ctx, s.Lease.For,
		func(ctx context.Context) error {
			return s.Store.ExtendSession(ctx, claim.ID, claim.Token, s.Lease)
		},
		func(ctx context.Context) (err error) {
			if plan.worst.Time < s.limits.callTime {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, plan.worst.Time, errNoTime)
				defer cancel()
			}
			s.show(ctx, claim, plan.ask)
			question := *plan.ask
			if plan.summary == nil { // which nobody is shown
				question.Partial = s.drafts(ctx, claim)
			}
			response, err = s.Model.Complete(ctx, question)
			if errors.Is(context.Cause(ctx), postgres.ErrLeaseLost) {
				return postgres.ErrLeaseLost
			}
			return err
		})
	took := min(time.Since(began), plan.worst.Time)
	if errors.Is(err, postgres.ErrLeaseLost) {
		return postgres.StepCommit{}, err
	}
	plan.attempted(response, err, took)
	if err != nil {
		s.Log.Warn("the model gave no answer", "session", string(claim.ID), "agent", string(claim.Session.Agent), "attempt", claim.Attempts, "err", err)
		plan.commit.Spent = plan.commit.Spent.Plus(s.limits.lost(*plan.ask, model.ReasonOf(err), took))
		plan.commit.Unanswered = true
		if plan.summary != nil {
			return plan.summarised(claim, response, err, mathrand.Float64()), nil
		}
		return plan.failed(claim, err, mathrand.Float64()), nil
	}
	plan.commit.Spent = plan.commit.Spent.Plus(s.limits.spent(plan.ask.Agent, response, took))
	if plan.summary != nil {
		return plan.summarised(claim, response, nil, 0), nil
	}
	if response, plan.rulings, err = s.after(ctx, claim, response); err != nil {
		return postgres.StepCommit{}, err
	}
	plan.commit.Spent, plan.commit.Attempts = plan.commit.Spent.Plus(plan.rulings.spent), append(plan.commit.Attempts, plan.rulings.asked...)
	if asked := plan.questions(claim, response); len(asked) > 0 {
		if plan.granted, err = s.Store.Granted(ctx, claim.Session.Agent, claim.ID, asked); err != nil {
			return postgres.StepCommit{}, err
		}
	}
	return s.reserveCalls(ctx, claim, plan.answered(claim, response, newIDs()))
}

// toAsk gives p its question, where it has one: with the tools that there are now,
// and room for it in the budgets.
func (s *Stepper) toAsk(ctx context.Context, c *postgres.Claim, p plan) (plan, error) {
	if !p.asks {
		return p, nil
	}
	var err error
	if p.offers, err = s.offers(ctx, c); err != nil {
		return p, err
	}
	if p, err = s.toList(ctx, c, p); err != nil || p.lists {
		return p, err
	}
	if p = p.toModel(c); p.ask == nil {
		return p, nil
	}
	return s.reserve(ctx, c, p)
}

// commit writes what was decided, also when the request's own time is over, and
// wakes whoever is next.
func (s *Stepper) commit(ctx context.Context, c postgres.StepCommit) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), commitTime, errors.New("commit deadline"))
	defer cancel()
	noted(&c)
	if c.Claim.Agent != nil {
		_, c.Model = s.limits.modelOf(c.Claim.Agent.Model)
		if n := len(c.Attempts); n > 0 {
			c.Model = c.Attempts[n-1].Model
		}
	}
	redact(&c, s.Secrets)
	events, err := s.Store.CommitStep(ctx, c)
	if errors.Is(err, postgres.ErrLeaseLost) {
		return nil // whoever has the session now does the work
	}
	if err != nil {
		return err
	}
	s.Publish(ctx, append(events, changed(c)...)...)
	return nil
}

// changed says that a turn began or ended, or waits for a human. It has no
// outbox row: it freshens a status, which the sweep does anyway.
func changed(c postgres.StepCommit) []event.Event {
	if !c.Start && len(c.Reply) == 0 && (c.State == harness.SessionAwaitingApproval) == (c.Claim.State == harness.SessionAwaitingApproval) {
		return nil
	}
	return []event.Event{{
		ID: fmt.Sprintf("session.changed:%s:%d", c.Claim.ID, c.Claim.Token), Type: event.SessionChanged, Session: c.Claim.ID,
		Agent: c.Claim.Session.Agent, TraceParent: c.Claim.TraceParent, Payload: event.Payload{Session: c.Claim.ID},
	}}
}

// resumeBatch is how many sessions one status event wakes; the sweep wakes more.
const resumeBatch = 200

// AgentStatusChanged wakes the sessions of the agent that are due, and looks at
// Secrets, which is all that one asks for that names no agent.
func (s *Stepper) AgentStatusChanged(ctx context.Context, e event.Event) error {
	if e.Payload.Agent != "" {
		events, err := s.Store.DueSessions(ctx, e.Payload.Agent, resumeBatch)
		if err != nil {
			return err
		}
		s.Publish(ctx, events...)
	}
	if s.Checks == nil {
		return nil
	}
	return s.Checks.AgentStatusChanged(ctx, e)
}

// ids are the fresh names one commit may need; tests give fixed ones.
type ids struct {
	step      func() harness.StepID
	call      func() harness.ToolCallID
	execution func() harness.ExecutionID
	approval  func() harness.ApprovalID
	nonce     func() string
}

func newIDs() ids {
	return ids{
		step:      func() harness.StepID { return harness.NewStepID(time.Now()) },
		call:      func() harness.ToolCallID { return harness.NewToolCallID(time.Now()) },
		execution: func() harness.ExecutionID { return harness.NewExecutionID(time.Now()) },
		approval:  func() harness.ApprovalID { return harness.NewApprovalID(time.Now()) },
		nonce:     rand.Text,
	}
}

// maxName is how much of a name that a model made up is kept, in bytes.
const maxName = 200

func cut(name string) string {
	if len(name) <= maxName {
		return name
	}
	return strings.ToValidUTF8(name[:maxName], "") + "…"
}

// redact cuts known secret values out of everything that leaves by this commit.
func redact(c *postgres.StepCommit, secrets []harness.Secret) {
	clean := func(text string) string { return harness.Redact(harness.CleanText(text), secrets) }
	for i := range c.Reply {
		c.Reply[i] = clean(c.Reply[i])
	}
	for i := range c.Choices {
		c.Choices[i].Title, c.Choices[i].Description = clean(c.Choices[i].Title), clean(c.Choices[i].Description)
	}
	for i := range c.Results {
		c.Results[i].Result = clean(c.Results[i].Result)
	}
	for i := range c.Logs {
		c.Logs[i].Message = clean(c.Logs[i].Message)
	}
	for i := range c.Screened {
		if text := c.Screened[i].Shown; text != nil {
			*text = clean(*text)
		}
	}
	c.Reason = clean(c.Reason)
	if c.Summary != nil {
		c.Summary.Text, c.Summary.Reason = clean(c.Summary.Text), clean(c.Summary.Reason)
	}
	for _, a := range c.Approvals {
		d := a.Proposal
		if d == nil {
			continue
		}
		for i := range d.Reply {
			d.Reply[i] = clean(d.Reply[i])
		}
		for i := range d.Choices {
			d.Choices[i].Title, d.Choices[i].Description = clean(d.Choices[i].Title), clean(d.Choices[i].Description)
		}
		if d.Result = clean(d.Result); d.Shown != nil {
			*d.Shown = clean(*d.Shown)
		}
		redactStep(d.Step, clean)
	}
	redactStep(c.Step, clean)
}

func redactStep(step *postgres.NewStep, clean func(string) string) {
	if step == nil {
		return
	}
	step.Text, step.Model, step.Carry = clean(step.Text), cut(clean(step.Model)), harness.CleanText(step.Carry)
	for i := range step.Calls {
		call := &step.Calls[i]
		call.Name, call.ProviderID = cut(clean(call.Name)), harness.CleanText(call.ProviderID)
		call.Arguments, call.Result = clean(call.Arguments), clean(call.Result)
	}
}
