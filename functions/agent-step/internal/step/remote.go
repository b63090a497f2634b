package step

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/guard"
	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/trace"
)

const (
	unknownResult = "It is unknown whether the call ran; it was not repeated."
	goneResult    = "Not run: the agent does not have this tool any more."
	stoppedNote   = "The call was stopped by an operator while it ran. It may have had effects."
)

// maxAtOnce is how many remote calls one step makes, side by side. The others
// are the next step's.
const maxAtOnce = 4

// lookEvery is how often a step looks whether its session is still its own, and
// not halted, while calls are open.
const lookEvery = 2 * time.Second

// ErrStopped ends the calls of an agent that an operator has halted.
var ErrStopped = errors.New("the agent was halted")

// remoteCall is a call that is to be made by this step or the next.
type remoteCall struct {
	RemoteCall
	name  string
	limit time.Duration
}

// remote says what becomes of an open call that a step makes itself. It reports
// whether it is still open.
func (p *plan) remote(c *postgres.Claim, call postgres.CallRecord) bool {
	if call.State == harness.ToolCallRunning { // of a claim before this one
		return p.ends(call, harness.ToolCallFailed, unknownResult)
	}
	arguments := call.Arguments
	if a := call.Approval; a != nil {
		if open, ended := p.answer(call); open || ended {
			return open
		}
		arguments = string(a.Subject.Arguments)
	}
	now, limit, ok := p.limits.resolve(c.Agent, *call.Remote)
	switch {
	case !ok:
		return p.ends(call, harness.ToolCallFailed, goneResult)
	case now != *call.Remote, call.Approval != nil && subjectOfRemote(c, call.Name, now, []byte(arguments)).Digest() != call.Approval.Digest:
		return p.ends(call, harness.ToolCallFailed, movedResult)
	}
	if r, judged := p.rulings.changed[call.ID]; judged && (r.BlockedBy != "" || r.Redacted) { // what was approved is made as it is, or not at all
		return p.ends(call, harness.ToolCallDenied, deniedResult(r))
	}
	if p.stalled {
		return true
	}
	next := remoteCall{RemoteCall: RemoteCall{ID: call.ID, Remote: now, Arguments: harness.CanonicalJSON([]byte(arguments))}, name: call.Name, limit: limit}
	if l := p.callRoom(c, &next); l != nil {
		return p.lacks(c, call, l)
	}
	p.remotes = append(p.remotes, next)
	return true
}

// ends gives call its result. It is not open any more.
func (p *plan) ends(call postgres.CallRecord, state harness.ToolCallState, result string) bool {
	p.commit.Results = append(p.commit.Results, postgres.CallOutcome{ID: call.ID, State: state, Result: result})
	return false
}

// callRoom says which budget leaves no time for the call, or cuts its limit to
// what there is.
func (p *plan) callRoom(c *postgres.Claim, call *remoteCall) *lack {
	budget := budgetOf(c)
	if int(c.Used.Elapsed.Seconds()) > budget.MaxSeconds {
		return &lack{scope: harness.ScopeTurn, kind: harness.KindMillis, limit: int64(budget.MaxSeconds) * 1000, used: c.Used.Elapsed.Milliseconds()}
	}
	session := budget.PerSession
	if l := exceeds(harness.ScopeSession, session, c.Spent, harness.Spending{Time: call.limit}); l != nil {
		return l
	}
	if session != nil && session.MaxSeconds > 0 {
		call.limit = min(call.limit, time.Duration(session.MaxSeconds)*time.Second-c.Spent.Time)
	}
	return nil
}

// subjectOfRemote is what a human approves of a call that goes elsewhere.
func subjectOfRemote(c *postgres.Claim, name string, r harness.RemoteTool, arguments []byte) harness.ApprovalSubject {
	s := harness.ApprovalSubject{Agent: c.Session.Agent, Tool: name, Arguments: harness.CanonicalJSON(arguments), Remote: &r}
	if r.Program != "" {
		s.Sandbox = sandboxOf(c)
	}
	return s
}

// asksRemote says whether a human is asked before a call of t.
func asksRemote(c *postgres.Claim, t Offered, arguments string) bool {
	switch t.Policy {
	case harness.RemoteAlways:
		return true
	case harness.RemoteNever:
		return false
	}
	return asks(c.Agent.Approvals, t.Name, "", arguments)
}

// newRemote is a call of t, which a step makes: the next, or the one after a
// human has said yes.
func (p *plan) newRemote(c *postgres.Claim, t Offered, call model.Call, ruling guard.Ruling, next *postgres.NewCall, id ids) {
	switch {
	case call.Malformed != "":
		next.Result = "Not run: the arguments are broken: " + call.Malformed
		return
	case harness.Redact(call.Arguments, p.limits.secrets) != call.Arguments:
		next.Result = "Not run: the arguments hold a value that must not leave this system."
		return
	case ruling.BlockedBy != "":
		next.State, next.Result = harness.ToolCallDenied, deniedResult(ruling)
		return
	}
	if t.Remote.Program != "" {
		p.newProgram(c, t, call, ruling, next, id)
		return
	}
	next.State, next.Remote = harness.ToolCallPending, &t.Remote
	s := subjectOfRemote(c, t.Name, t.Remote, []byte(call.Arguments))
	if (len(ruling.AskedBy) > 0 || asksRemote(c, t, call.Arguments)) && !p.granted[s.Digest()] {
		p.question(c, next.ID, fmt.Sprintf("Agent %s asks to call a tool of %s.", c.Session.Agent, t.Remote.Server), s, ruling.AskedBy, id)
	}
}

// act makes the calls that are to be made, at most maxAtOnce of them, and says in
// the commit what came of each. That they begin is committed before: a call that
// may have been made is never made again.
func (s *Stepper) act(ctx context.Context, claim *postgres.Claim, p plan) (postgres.StepCommit, error) {
	p, err := s.reserveTime(ctx, claim, p)
	if err != nil || len(p.remotes) == 0 {
		return p.commit, err
	}
	batch := p.remotes[:min(len(p.remotes), maxAtOnce)]
	names := make([]harness.ToolCallID, len(batch))
	for i, call := range batch {
		names[i] = call.ID
	}
	begun, err := s.Store.BeginCalls(ctx, claim, names)
	if err != nil {
		return p.commit, err
	}
	batch = slices.DeleteFunc(slices.Clone(batch), func(call remoteCall) bool { return !slices.Contains(begun, call.ID) })
	outcomes := make([]Outcome, len(batch))
	began := time.Now()
	if err := s.make(ctx, claim, batch, outcomes); err != nil {
		return p.commit, err
	}
	p.commit.Spent = p.commit.Spent.Plus(harness.Spending{Time: time.Since(began)})
	var j judging
	held := map[harness.ToolCallID]guard.Ruling{} // results that a guardrail asks about
	for i, call := range batch {
		o := outcomes[i]
		p.commit.Results = append(p.commit.Results, postgres.CallOutcome{ID: call.ID, State: o.State, Result: outcomeText(o, s.Secrets) + again(claim, call.ID)})
		p.log(levelOf(o.State), "%s: %s after %s", call.name, o.State, time.Since(began).Round(time.Millisecond))
		if o.Text != "" && len(claim.Agent.Guardrails.Of(harness.StageToolOutput)) > 0 {
			at := len(p.commit.Results) - 1
			j.add(guard.Subject{Stage: harness.StageToolOutput, Tool: call.name, Text: p.commit.Results[at].Result}, func(r guard.Ruling) {
				if asking(r) {
					held[call.ID] = r
				}
				p.commit.Results[at].Result = passedOn(r, p.commit.Results[at].Result)
				j.note(r, postgres.NewVerdict{Stage: harness.StageToolOutput, Message: p.message(), Call: call.ID})
			})
		}
	}
	if err := s.judge(ctx, claim, &j); err != nil {
		return p.commit, err
	}
	p.commit.Verdicts, p.commit.Spent = append(p.commit.Verdicts, j.verdicts...), p.commit.Spent.Plus(j.spent)
	p.holdBack(claim, held)
	if p.open -= len(batch) - len(held); p.open == 0 {
		p.commit.State = harness.SessionRunning
	}
	p.commit.Again = p.commit.Again || p.open == 0 || len(p.remotes) > len(batch)
	return p.commit, nil
}

// holdBack takes the results out of the commit that guardrails ask about: their
// calls were made, and stay open until a human has decided.
func (p *plan) holdBack(c *postgres.Claim, held map[harness.ToolCallID]guard.Ruling) {
	var kept []postgres.CallOutcome
	for _, outcome := range p.commit.Results {
		if r, ok := held[outcome.ID]; ok {
			p.guardrailAsks(c, harness.StageToolOutput, r, outcome.Result, outcome.ID, postgres.Proposal{State: outcome.State, Result: outcome.Result})
			continue
		}
		kept = append(kept, outcome)
	}
	p.commit.Results = kept
}

// again warns of a call that is made too often.
func again(c *postgres.Claim, id harness.ToolCallID) string {
	at := slices.IndexFunc(c.Calls, func(call postgres.CallRecord) bool { return call.ID == id })
	return repeated(repeats(c, c.Calls[at], at))
}

func levelOf(s harness.ToolCallState) harness.Level {
	if s == harness.ToolCallDone {
		return harness.LevelInfo
	}
	return harness.LevelWarn
}

// make makes the calls of batch side by side while the lease is kept, and returns
// when all have ended. ErrLeaseLost: somebody else has the session.
func (s *Stepper) make(ctx context.Context, claim *postgres.Claim, batch []remoteCall, outcomes []Outcome) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	return postgres.Keep(ctx, min(s.Lease.For, 3*lookEvery),
		func(ctx context.Context) error {
			if err := s.Store.ExtendSession(ctx, claim.ID, claim.Token, s.Lease); err != nil {
				return err
			}
			_, _, err := s.Store.DueIn(ctx, claim.ID)
			if errors.Is(err, postgres.ErrHeld) {
				stop(ErrStopped)
				return nil
			}
			return err
		},
		func(ctx context.Context) error {
			var running sync.WaitGroup
			panics := make([]any, len(batch))
			for i, call := range batch {
				running.Go(func() {
					defer func() { panics[i] = recover() }()
					ctx, cancel := context.WithTimeoutCause(ctx, call.limit, fmt.Errorf("%s: deadline of %s", call.name, call.limit))
					defer cancel()
					ctx, end := trace.Start(ctx, "tool "+call.name, "tuluat.block", string(call.Remote.Block), "tuluat.server", call.Remote.Server, "tuluat.tool_call", string(call.ID))
					outcomes[i] = s.call(ctx, claim, call)
					trace.Note(ctx, "tuluat.state", string(outcomes[i].State))
					end(nil)
				})
			}
			running.Wait()
			for _, p := range panics {
				if p != nil { // as in the request's own goroutine
					panic(p)
				}
			}
			if errors.Is(context.Cause(ctx), postgres.ErrLeaseLost) {
				return postgres.ErrLeaseLost
			}
			return nil
		})
}

func (s *Stepper) call(ctx context.Context, claim *postgres.Claim, call remoteCall) Outcome {
	for _, block := range s.Tools {
		if block.Block() != call.Remote.Block {
			continue
		}
		o := block.Call(ctx, claim, call.RemoteCall)
		if o.State != harness.ToolCallDone {
			o.State = harness.ToolCallFailed
		}
		if o.State == harness.ToolCallFailed && errors.Is(context.Cause(ctx), ErrStopped) {
			return Outcome{State: harness.ToolCallFailed, Note: stoppedNote}
		}
		return o
	}
	return Outcome{State: harness.ToolCallFailed, Note: goneResult}
}

// reserveTime holds the time of the calls of the budgets of the day: they run side
// by side, so the longest counts. Without room none is made, and the model is told.
func (s *Stepper) reserveTime(ctx context.Context, c *postgres.Claim, p plan) (plan, error) {
	if !days(c.Agent.Budget) {
		return p, nil
	}
	longest := slices.MaxFunc(p.remotes[:min(len(p.remotes), maxAtOnce)], func(a, b remoteCall) int { return int(a.limit - b.limit) }).limit
	held, overrun, err := s.Store.Reserve(ctx, c.Session.Agent, subject(c), c.Agent.Budget, harness.Spending{Time: longest})
	if err != nil {
		return p, err
	}
	if overrun != nil {
		if l := lackOf(overrun); asksMore(c, l) {
			p.more(c, l)
			p.remotes = nil
			return p, nil
		}
		for _, call := range p.remotes {
			p.commit.Results = append(p.commit.Results, postgres.CallOutcome{ID: call.ID, State: harness.ToolCallFailed, Result: "Not run: " + lackOf(overrun).words()})
		}
		if p.open -= len(p.remotes); p.open == 0 {
			p.commit.State = harness.SessionRunning
		}
		p.remotes, p.commit.Again = nil, true
		return p, nil
	}
	for i := range p.remotes {
		p.remotes[i].limit = min(p.remotes[i].limit, held.Amount.Time)
	}
	p.commit.Reserved = append(p.commit.Reserved, held)
	return p, nil
}
