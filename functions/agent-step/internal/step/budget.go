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

func overDay(o *postgres.BudgetOverrun) string {
	text := over(o.Scope, o.Kind, o.Limit)
	if o.Reserved > 0 {
		text += " A part of it is held for answers that are under way."
	}
	return text
}

// exceeds says which limit of a scope leaves no room for want beside used; empty
// when there is room. Time is granted in part.
func exceeds(scope harness.BudgetScope, l *harness.BudgetLimits, used, want harness.Spending) string {
	most, have, wanted := l.Values(), used.Values(), want.Values()
	for i := range most {
		if need := wanted[i]; most[i] >= 0 && need > 0 {
			if harness.BudgetKind(i) == harness.KindMillis {
				need = min(need, leastCall.Milliseconds())
			}
			if have[i]+need > most[i] {
				return over(scope, harness.BudgetKind(i), most[i])
			}
		}
	}
	return ""
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
func (p plan) noRoom(c *postgres.Claim, used postgres.Used) string {
	attempts := int64(c.Attempts)
	worst := harness.Spending{
		Steps: attempts * p.worst.Steps, Time: p.worst.Time, Tokens: attempts * p.worst.Tokens, Cost: harness.Micros(attempts) * p.worst.Cost,
	}
	turn := &harness.BudgetLimits{MaxCost: c.Agent.Budget.MaxCost}
	if reason := exceeds(harness.ScopeTurn, turn, harness.Spending{Cost: used.Cost}, worst); reason != "" {
		return reason
	}
	return exceeds(harness.ScopeSession, c.Agent.Budget.PerSession, c.Spent, worst)
}

// overrun ends the turn because a budget has no room. Here is where a human would
// be asked to grant more (harness.OverrunAsk), by an approval of the commit.
func (p plan) overrun(reason string) plan { return p.end(harness.SessionBlocked, reason) }

// callsRoom says which budget of the turn or the session leaves no room for the
// calls of step, once the answer itself has cost spent.
func callsRoom(c *postgres.Claim, used postgres.Used, step *postgres.NewStep, spent harness.Spending) string {
	want := callsCost(step)
	turn := &harness.BudgetLimits{MaxExecutionSeconds: c.Agent.Budget.MaxExecutionSeconds}
	if reason := exceeds(harness.ScopeTurn, turn, harness.Spending{ExecutionTime: used.ExecutionTime}, want); reason != "" {
		return reason
	}
	session := c.Agent.Budget.PerSession
	have := c.Spent
	have.Time += spent.Time
	if session != nil && session.MaxSeconds > 0 && want.Time > 0 && have.Time+want.Time > time.Duration(session.MaxSeconds)*time.Second {
		return over(harness.ScopeSession, harness.KindMillis, int64(session.MaxSeconds)*1000) // a command's time is not cut
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

// reserve holds what the question may cost of the budgets of the day, or ends the
// turn. Without such budgets it asks nobody.
func (s *Stepper) reserve(ctx context.Context, c *postgres.Claim, p plan) (plan, error) {
	if !days(c.Agent.Budget) {
		return p, nil
	}
	held, overrun, err := s.Store.Reserve(ctx, c.Session.Agent, subject(c), c.Agent.Budget, p.worst)
	switch {
	case err != nil:
		return p, err
	case overrun != nil:
		return p.overrun(overDay(overrun)), nil
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
	held, overrun, err := s.Store.Reserve(ctx, c.Session.Agent, subject(c), c.Agent.Budget, want)
	if err != nil {
		return commit, err
	}
	if overrun == nil && held.Amount.Time < want.Time { // there is no part of a command's time
		commit.Reserved = append(commit.Reserved, held)
		overrun = &postgres.BudgetOverrun{Scope: harness.ScopeAgentDay, Kind: harness.KindMillis}
		for scope, l := range map[harness.BudgetScope]*harness.BudgetLimits{harness.ScopeAgentDay: c.Agent.Budget.PerAgentDay, harness.ScopeUserDay: c.Agent.Budget.PerUserDay} {
			if most := l.Values()[harness.KindMillis]; most >= 0 && (overrun.Limit == 0 || most < overrun.Limit) {
				overrun.Scope, overrun.Limit = scope, most
			}
		}
		return plan{commit: commit, limits: s.limits}.stopped(overDay(overrun)), nil
	}
	if overrun != nil {
		return plan{commit: commit, limits: s.limits}.stopped(overDay(overrun)), nil
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
func (p plan) runRoom(c *postgres.Claim, limit time.Duration) string {
	want := harness.Spending{ExecutionTime: limit, Time: limit}
	for _, r := range p.commit.Runs {
		want.ExecutionTime, want.Time = want.ExecutionTime+r.Spec.Timeout(), want.Time+r.Spec.Timeout()
	}
	turn := &harness.BudgetLimits{MaxExecutionSeconds: c.Agent.Budget.MaxExecutionSeconds}
	if reason := exceeds(harness.ScopeTurn, turn, harness.Spending{ExecutionTime: c.Used.ExecutionTime}, harness.Spending{ExecutionTime: want.ExecutionTime}); reason != "" {
		return reason
	}
	return exceeds(harness.ScopeSession, c.Agent.Budget.PerSession, c.Spent, want)
}

// reserveRuns holds the time of commands that were approved of the budgets of the
// day. One for which there is no room is not run, and the model is told.
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
		commit.Results = append(commit.Results, postgres.CallOutcome{ID: r.Call, State: harness.ToolCallFailed, Result: "Not run: " + overDay(overrun)})
		commit.Again = true
	}
	return commit, nil
}

// subject is the person whose message is worked, as budgets know them.
func subject(c *postgres.Claim) string {
	return postgres.UserSubject(c.Session.Agent, c.Channel, c.Turns[len(c.Turns)-1].ChannelUserID)
}
