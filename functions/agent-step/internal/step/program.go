package step

import (
	"context"
	"fmt"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/guard"
	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// Sandboxed are Tools of which some are programs (RemoteTool.Program): a call of one
// is a command in the session's sandbox, and all that holds for commands holds for it.
type Sandboxed interface {
	// Command is what makes the call, as a shell takes it. It is pure.
	Command(a *harness.Agent, call RemoteCall) string
	// Outcome is what came of a call by its command, which has ended. It is pure. ok is
	// false where the command says nothing of the call.
	Outcome(r harness.RemoteTool, e *postgres.ExecutionResult) (o Outcome, ok bool)
}

// List is a server that says what it offers by a command.
type List struct {
	Server  string
	Program string // for people
	Command string
}

// programs finds the Sandboxed of a block.
func programs(all []Tools) func(block string) Sandboxed {
	return func(block string) Sandboxed {
		for _, tools := range all {
			if s, ok := tools.(Sandboxed); ok && tools.Block() == block {
				return s
			}
		}
		return nil
	}
}

// sandboxOf is the sandbox of a call that somebody approves, or may have to.
func sandboxOf(c *postgres.Claim) *harness.SandboxSpec {
	spec := c.Agent.Harness.Sandbox
	spec.KeepBackground = false
	return &spec
}

// program says what becomes of an open call of a program. It reports whether it is
// still open.
func (p *plan) program(c *postgres.Claim, call postgres.CallRecord, position int, id ids) bool {
	e := call.Execution
	switch {
	case e != nil && !e.State.Ended():
		return true
	case e != nil:
		return p.gave(c, call, p.programResult(c, call, position))
	case call.Approval == nil || call.State == harness.ToolCallRunning:
		return p.ends(call, harness.ToolCallFailed, "Interrupted: nothing is known of this call's outcome.")
	}
	if open, ended := p.answer(call); open || ended {
		return open
	}
	end := func(state harness.ToolCallState, result string) bool { return p.ends(call, state, result) }
	arguments := call.Approval.Subject.Arguments
	now, _, ok := p.limits.resolve(c.Agent, *call.Remote)
	switch {
	case !ok || !c.Agent.Harness.CanExecute():
		return end(harness.ToolCallFailed, goneResult)
	case now != *call.Remote, subjectOfRemote(c, call.Name, now, arguments).Digest() != call.Approval.Digest:
		return end(harness.ToolCallFailed, movedResult)
	case harness.Redact(string(arguments), p.limits.secrets) != string(arguments):
		return end(harness.ToolCallFailed, "Not run: the arguments hold a value that must not leave this system.")
	}
	if r, judged := p.rulings.changed[call.ID]; judged && (r.BlockedBy != "" || r.Redacted) { // what was approved is made as it is, or not at all
		return end(harness.ToolCallDenied, deniedResult(r))
	}
	spec := *sandboxOf(c)
	if l := p.runRoom(c, spec.Timeout()); l != nil {
		return p.lacks(c, call, l)
	}
	made := RemoteCall{ID: call.ID, Remote: now, Arguments: harness.CanonicalJSON(arguments)}
	p.commit.Runs = append(p.commit.Runs, postgres.CallRun{
		Call: call.ID, Approval: call.Approval.ID, NewExecution: execution(c, p.limits.programs(now.Block).Command(c.Agent, made), spec, id),
	})
	p.log(harness.LevelInfo, "approved by %s: %s %s", call.Approval.DecidedBy, call.Name, made.Arguments)
	return true
}

// programResult is what a call gave whose command has ended.
func (p *plan) programResult(c *postgres.Claim, call postgres.CallRecord, position int) postgres.CallOutcome {
	e := call.Execution
	o, ok := Outcome{}, false
	if block := p.limits.programs(call.Remote.Block); block != nil {
		o, ok = block.Outcome(*call.Remote, e)
	}
	if !ok {
		o = Outcome{State: harness.ToolCallFailed, Note: "There is no result of the tool. " + stateText(e) + "."}
	}
	p.log(levelOf(o.State), "%s: %s", call.Name, o.State)
	return postgres.CallOutcome{ID: call.ID, State: o.State, Result: outcomeText(o, p.limits.secrets) + filesText(e) + repeated(repeats(c, call, position))}
}

// newProgram is a call of t, which is a program: it runs at once, or when a human has
// said yes.
func (p *plan) newProgram(c *postgres.Claim, t Offered, call model.Call, ruling guard.Ruling, next *postgres.NewCall, id ids) {
	next.Remote = &t.Remote
	made := RemoteCall{ID: next.ID, Remote: t.Remote, Arguments: harness.CanonicalJSON([]byte(call.Arguments))}
	command := p.limits.programs(t.Remote.Block).Command(c.Agent, made)
	spec := c.Agent.Harness.Sandbox
	if len(ruling.AskedBy) > 0 || asksRemote(c, t, call.Arguments) {
		s := subjectOfRemote(c, t.Name, t.Remote, []byte(call.Arguments))
		if !p.granted[s.Digest()] {
			next.State = harness.ToolCallPending
			p.question(c, next.ID, fmt.Sprintf("Agent %s asks to call a tool of %s.", c.Session.Agent, t.Remote.Server), s, ruling.AskedBy, id)
			return
		}
		spec = *s.Sandbox
	}
	run := execution(c, command, spec, id)
	next.State, next.Execution = harness.ToolCallRunning, &run
}

// toList has servers listed by commands, before the model is asked: then the step
// after those asks it. A server for whose command a budget has no room is left out.
func (s *Stepper) toList(ctx context.Context, c *postgres.Claim, p plan) (plan, error) {
	waits := p.offers.waits
	for _, l := range p.offers.lists {
		spec := c.Agent.Harness.Sandbox
		lack := p.runRoom(c, time.Duration(1+len(p.commit.Lists))*spec.Timeout())
		run := execution(c, l.Command, spec, newIDs())
		if lack == nil && days(c.Agent.Budget) {
			want := harness.Spending{ExecutionTime: spec.Timeout()}
			held, overrun, err := s.Store.Reserve(ctx, c.Session.Agent, subject(c), c.Agent.Budget, want)
			switch {
			case err != nil:
				return p, err
			case overrun != nil:
				lack = lackOf(overrun)
			default:
				held.Amount = want
				run.Reserved = &held
			}
		}
		if lack != nil {
			p.offers.notes = append(p.offers.notes, fmt.Sprintf("the tools of the server %s are not listed: %s", l.Server, lack.words()))
			continue
		}
		p.log(harness.LevelInfo, "the tools of the server %s are listed first: %s", l.Server, l.Program)
		p.commit.Lists, waits = append(p.commit.Lists, run), true
	}
	if waits {
		for _, note := range p.offers.notes {
			p.log(harness.LevelWarn, "%s", note)
		}
		p.asks, p.lists, p.commit.State = false, true, harness.SessionAwaitingExecution
	}
	return p, nil
}
