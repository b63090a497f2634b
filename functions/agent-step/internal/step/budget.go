package step

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// leastCall is the shortest time that a model is asked with.
const leastCall = time.Second

// errNoTime ends a question for which a budget has no more time.
var errNoTime = errors.New("the budget has no more time")

// worst is what the question may cost: the largest answer, and all the time that
// there is for one.
func (l limits) worst(r model.Request) harness.Spending {
	input, output := r.EstimatedTokens(), int64(r.Agent.MaxTokens)
	price, _ := l.price(r.Agent)
	return harness.Spending{Steps: 1, Time: l.callTime, Tokens: input + output, Cost: price.Most(input, output)}
}

// spent is what the answer of m has cost.
func (l limits) spent(m harness.ModelSpec, r model.Response, took time.Duration) harness.Spending {
	price, _ := l.price(m)
	return harness.Spending{
		Steps: 1, ToolCalls: int64(len(r.Calls)), Time: took, Tokens: r.Usage.InputTokens + r.Usage.OutputTokens,
		Cost: price.Of(r.Usage.Tokens()),
	}
}

// lost is what a question has cost that got no answer. One that was read may be
// billed; one that was refused is not.
func (l limits) lost(r model.Request, reason model.Reason, took time.Duration) harness.Spending {
	s := harness.Spending{Time: took}
	switch reason {
	case model.ReasonTimeout, model.ReasonInterrupted, model.ReasonNotAnswer, model.ReasonTooLarge, model.ReasonEmpty:
		s.Tokens = r.EstimatedTokens()
		price, _ := l.price(r.Agent)
		s.Cost = price.Most(s.Tokens, 0)
	}
	return s
}

// over is a limit that has no room, in words for the person.
func over(scope harness.BudgetScope, kind harness.BudgetKind, limit int64) string {
	amount := kind.Amount(limit)
	switch scope {
	case harness.ScopeTurn:
		return "I stopped: this message used up its limit of " + amount + ". Send another message to go on."
	case harness.ScopeSession:
		return "I stopped: this conversation used up its limit of " + amount + ". Send /new to start another."
	case harness.ScopeUserDay:
		return "I stopped: you have used up your limit of " + amount + " for today. It starts anew at 00:00 UTC."
	default:
		return "I stopped: this agent used up its limit of " + amount + " for today. It starts anew at 00:00 UTC."
	}
}

// exceeds says which limit of a scope leaves no room for want beside used; nil
// when there is room. Time is granted in part.
func exceeds(scope harness.BudgetScope, l *harness.BudgetLimits, used, want harness.Spending) *lack {
	most, have, wanted := l.Values(), used.Values(), want.Values()
	for i := range most {
		if need := wanted[i]; most[i] >= 0 && need > 0 {
			if harness.BudgetKind(i) == harness.KindMillis {
				need = min(need, leastCall.Milliseconds())
			}
			if have[i]+need > most[i] {
				return &lack{scope: scope, kind: harness.BudgetKind(i), limit: most[i], used: have[i]}
			}
		}
	}
	return nil
}

// noPrice says that money is limited and what the model costs is not known.
func (p plan) noPrice(c *postgres.Claim, m harness.ModelSpec) string {
	_, name := p.limits.modelOf(m)
	if _, known := p.limits.price(m); known || !c.Agent.Budget.LimitsCost() {
		return ""
	}
	return fmt.Sprintf("I cannot work: no price known for model %s, and my cost is limited. Please tell the operator.", name)
}

// noRoom says which budget of the turn or the session leaves no room for the
// question, which costs p.worst at most. As in overBudget, a claim that came to
// nothing counts as spent.
func (p plan) noRoom(c *postgres.Claim, used postgres.Used) *lack {
	attempts := int64(c.Attempts)
	worst := harness.Spending{
		Steps: attempts * p.worst.Steps, Time: p.worst.Time, Tokens: attempts * p.worst.Tokens, Cost: harness.Micros(attempts) * p.worst.Cost,
	}
	budget := budgetOf(c)
	turn := &harness.BudgetLimits{MaxCost: budget.MaxCost}
	if l := exceeds(harness.ScopeTurn, turn, harness.Spending{Cost: used.Cost}, worst); l != nil {
		return l
	}
	return exceeds(harness.ScopeSession, budget.PerSession, c.Spent, worst)
}

// callsRoom says which budget of the turn or the session leaves no room for the
// calls of step, once the answer itself has cost spent.
func callsRoom(c *postgres.Claim, used postgres.Used, step *postgres.NewStep, spent harness.Spending) *lack {
	want, budget := callsCost(step), budgetOf(c)
	turn := &harness.BudgetLimits{MaxExecutionSeconds: budget.MaxExecutionSeconds}
	if l := exceeds(harness.ScopeTurn, turn, harness.Spending{ExecutionTime: used.ExecutionTime}, want); l != nil {
		return l
	}
	session := budget.PerSession
	have := c.Spent
	have.Time += spent.Time
	if session != nil && session.MaxSeconds > 0 && want.Time > 0 && have.Time+want.Time > time.Duration(session.MaxSeconds)*time.Second {
		return &lack{scope: harness.ScopeSession, kind: harness.KindMillis, limit: int64(session.MaxSeconds) * 1000, used: have.Time.Milliseconds()} // a command's time is not cut
	}
	return exceeds(harness.ScopeSession, session, have, want)
}

// callsCost is what the calls of step may cost: each command its time limit.
func callsCost(step *postgres.NewStep) harness.Spending {
	s := harness.Spending{ToolCalls: int64(len(step.Calls))}
	for _, call := range step.Calls {
		if call.Execution != nil {
			s.ExecutionTime += call.Execution.Spec.Timeout()
		}
	}
	s.Time = s.ExecutionTime
	return s
}

// days reports whether the agent has budgets that many sessions share.
func days(b harness.Budget) bool { return b.PerAgentDay != nil || b.PerUserDay != nil }

// reserve holds what the question may cost of the budgets of the day, or is an
// overrun. Without such budgets it asks nobody.
func (s *Stepper) reserve(ctx context.Context, c *postgres.Claim, p plan) (plan, error) {
	if !days(c.Agent.Budget) {
		return p, nil
	}
	held, overrun, err := s.Store.Reserve(ctx, c.Session.Agent, subject(c), c.Agent.Budget, p.worst)
	switch {
	case err != nil:
		return p, err
	case overrun != nil:
		return p.overrun(c, lackOf(overrun)), nil
	}
	p.worst.Time = held.Amount.Time
	p.commit.Reserved = []postgres.Reservation{held}
	return p, nil
}

// reserveCalls does the same for the calls of an answer. Commands hold their time
// until they end. Where there is no room none of the calls is made.
func (s *Stepper) reserveCalls(ctx context.Context, c *postgres.Claim, commit postgres.StepCommit) (postgres.StepCommit, error) {
	if !days(c.Agent.Budget) || commit.Step == nil || len(commit.Step.Calls) == 0 || commit.State == harness.SessionBlocked {
		return commit, nil
	}
	want := callsCost(commit.Step)
	held, overrun, err := s.Store.ReserveWhole(ctx, c.Session.Agent, subject(c), c.Agent.Budget, want) // there is no part of a command's time
	if err != nil {
		return commit, err
	}
	if overrun != nil {
		return plan{commit: commit, limits: s.limits}.noCalls(c, lackOf(overrun)), nil
	}
	for i := range commit.Step.Calls {
		if x := commit.Step.Calls[i].Execution; x != nil {
			own := held
			own.Amount = harness.Spending{ExecutionTime: x.Spec.Timeout()}
			x.Reserved = &own
		}
	}
	held.Amount = harness.Spending{ToolCalls: want.ToolCalls}
	commit.Reserved = append(commit.Reserved, held)
	return commit, nil
}

// runRoom says which budget of the turn or the session leaves no room for a
// command that was approved, beside those that this commit hands on already.
func (p plan) runRoom(c *postgres.Claim, limit time.Duration) *lack {
	want := harness.Spending{ExecutionTime: limit, Time: limit}
	for _, r := range p.commit.Runs {
		want.ExecutionTime, want.Time = want.ExecutionTime+r.Spec.Timeout(), want.Time+r.Spec.Timeout()
	}
	budget := budgetOf(c)
	turn := &harness.BudgetLimits{MaxExecutionSeconds: budget.MaxExecutionSeconds}
	if l := exceeds(harness.ScopeTurn, turn, harness.Spending{ExecutionTime: c.Used.ExecutionTime}, harness.Spending{ExecutionTime: want.ExecutionTime}); l != nil {
		return l
	}
	return exceeds(harness.ScopeSession, budget.PerSession, c.Spent, want)
}

// reserveRuns holds the time of commands that were approved of the budgets of the
// day. One for which there is no room waits for a human who may grant more, or is
// not run, and the model is told.
func (s *Stepper) reserveRuns(ctx context.Context, c *postgres.Claim, commit postgres.StepCommit) (postgres.StepCommit, error) {
	if len(commit.Runs) == 0 || !days(c.Agent.Budget) {
		return commit, nil
	}
	runs := commit.Runs
	commit.Runs = nil
	for _, r := range runs {
		want := harness.Spending{ExecutionTime: r.Spec.Timeout()}
		held, overrun, err := s.Store.Reserve(ctx, c.Session.Agent, subject(c), c.Agent.Budget, want)
		if err != nil {
			return commit, err
		}
		if overrun == nil {
			held.Amount = want
			r.Reserved = &held
			commit.Runs = append(commit.Runs, r)
			continue
		}
		if l := lackOf(overrun); asksMore(c, l) {
			p := plan{commit: commit, limits: s.limits}
			p.more(c, l)
			return p.commit, nil // what is behind it waits as well: one question at a time
		}
		commit.Results = append(commit.Results, postgres.CallOutcome{ID: r.Call, State: harness.ToolCallFailed, Result: "Not run: " + lackOf(overrun).words()})
		commit.Again = true
	}
	return commit, nil
}

// subject is the person whose message is worked, as budgets know them.
func subject(c *postgres.Claim) string {
	return postgres.UserSubject(c.Session.Agent, c.Channel, c.Turns[len(c.Turns)-1].ChannelUserID)
}
