package step

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

const (
	// maxPassing is how often a model is asked in vain, one time after the other,
	// before the next one is.
	maxPassing = 2

	// patience is how long a model may ask to be waited for where there is another.
	patience = 10 * time.Second
)

// pick is the model that is asked next: the first one that is not out, or, where
// all are, the one that has failed least of this question. ok is false when every
// one has said that it will not answer it.
func (l limits) pick(c *postgres.Claim, purpose harness.AttemptPurpose) (spec harness.ModelSpec, ok bool) {
	chain := c.Agent.Model.Chain()
	for _, m := range chain {
		if failures, final := l.failures(c, m, purpose, false); !final && failures < maxPassing {
			return m, true
		}
	}
	for _, m := range chain {
		failures, final := l.failures(c, m, purpose, true)
		if !final && failures < maxPassing {
			return m, true
		}
		if !final {
			spec, ok = m, true // the last of them: it is asked until it is given up
		}
	}
	return spec, ok
}

// failures are those of m since its last answer: of the question that is open now,
// or of all that the claim knows of. One that asks to wait long counts for as many
// as there may be.
func (l limits) failures(c *postgres.Claim, m harness.ModelSpec, purpose harness.AttemptPurpose, now bool) (n int, final bool) {
	provider, name := l.modelOf(m)
	for _, a := range c.Asked {
		switch {
		case a.Provider != provider, a.Model != name, now && !a.Now, a.Now && a.Purpose != purpose:
		case a.Reason == string(model.ReasonInterrupted): // by us
		case a.Reason == "":
			n, final = 0, false
		case a.Wait > patience:
			n, final = n+maxPassing, final || a.Final
		default:
			n, final = n+1, final || a.Final
		}
	}
	return n, final
}

// modelOf is the provider and the name of a model, the platform's where it has none.
func (l limits) modelOf(m harness.ModelSpec) (harness.Provider, string) {
	return cmp.Or(m.Provider, l.provider), cmp.Or(m.Name, l.model)
}

// price is what m costs; known is false where nobody has said.
func (l limits) price(m harness.ModelSpec) (price harness.Price, known bool) {
	_, name := l.modelOf(m)
	price, known = l.prices[name]
	return price, known
}

// attempt is a question that m answered at the cost of t, as a row.
func (l limits) attempt(purpose harness.AttemptPurpose, m harness.ModelSpec, t harness.Tokens, took time.Duration) postgres.NewAttempt {
	a := postgres.NewAttempt{Purpose: purpose, Tokens: t, Took: took}
	a.Provider, a.Model = l.modelOf(m)
	if price, known := l.price(m); known {
		cost := price.Of(t)
		a.Cost = &cost
	}
	return a
}

// attempted notes that p asked, and what came of it.
func (p *plan) attempted(r model.Response, err error, took time.Duration) {
	asked, purpose := p.ask.Agent, harness.AttemptAnswer
	if p.summary != nil {
		purpose = harness.AttemptSummary
	}
	if err == nil {
		p.commit.Attempts = append(p.commit.Attempts, p.limits.attempt(purpose, asked, r.Usage.Tokens(), took))
		return
	}
	failure := failureOf(err)
	a := p.limits.attempt(purpose, asked, harness.Tokens{Input: p.limits.lost(*p.ask, failure.Reason, took).Tokens}, took)
	a.Reason, a.Wait = string(model.ReasonOf(err)), failure.RetryAfter
	a.Final = failure.Kind != harness.Unavailable || failure.RetryAfter > maxRetryAfter
	p.commit.Attempts = append(p.commit.Attempts, a)
}

func failureOf(err error) *model.Error {
	if failure, ok := errors.AsType[*model.Error](err); ok {
		return failure
	}
	return &model.Error{Kind: harness.Internal, Message: harness.MessageOf(err)}
}

// again is the commit after which a question that got no answer is asked again: of
// the next model at once, of the same after a wait that is kept in the row. ok is
// false where that is in vain. random is in [0, 1).
func (p plan) again(c *postgres.Claim, failure *model.Error, random float64) (commit postgres.StepCommit, ok bool) {
	last := p.commit.Attempts[len(p.commit.Attempts)-1]
	known := *c
	known.Asked = append(c.Asked[:len(c.Asked):len(c.Asked)], postgres.AttemptRecord{
		Purpose: last.Purpose, Provider: last.Provider, Model: last.Model, Reason: last.Reason, Final: last.Final, Wait: last.Wait, Now: true,
	})
	next, ok := p.limits.pick(&known, last.Purpose)
	if !ok {
		return p.commit, false
	}
	p.commit.State, p.commit.Reason = harness.SessionRunning, failure.Message
	if provider, name := p.limits.modelOf(next); provider != last.Provider || name != last.Model {
		p.commit.Again = true
		p.log(harness.LevelWarn, "no answer from the model %s (attempt %d), now %s is asked: %s", last.Model, c.Attempts, name, failure.Message)
		return p.commit, true
	}
	if c.Attempts >= attemptsAt(failure.Reason) {
		return p.commit, false
	}
	p.commit.Retry = wait(c.Attempts, failure.RetryAfter, random)
	p.log(harness.LevelWarn, "no answer from the model (attempt %d), again in %s: %s", c.Attempts, p.commit.Retry.Round(time.Second), failure.Message)
	return p.commit, true
}

// answeredBy is the model that answered, and whether it stood in for another.
func (p plan) answeredBy(c *postgres.Claim, r model.Response) string {
	_, first := p.limits.modelOf(c.Agent.Model)
	if _, name := p.limits.modelOf(p.ask.Agent); name != first {
		return fmt.Sprintf("%s (in the place of %s)", r.Model, first)
	}
	return r.Model
}
