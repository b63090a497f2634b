package step

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

const (
	expiredResult = "Not run: nobody decided in time. It timed out; nobody said no."
	movedResult   = "Not run: what was approved is not what would run now, because this agent's settings have changed since. Make the call again if it is still needed."
)

// asks says whether a human is asked before a call, by the policy of a.
func asks(a *harness.ApprovalSpec, tool, command, arguments string) bool {
	if a == nil {
		return false
	}
	switch a.Policy {
	case harness.ApproveNever:
		return false
	case harness.ApproveByTool:
		return slices.Contains(a.Tools, tool)
	case harness.ApprovePattern:
		return slices.ContainsFunc(a.Patterns, func(pattern string) bool {
			found, err := regexp.Compile(pattern)
			return err != nil || found.MatchString(command) || found.MatchString(arguments) // one that cannot be read asks
		})
	}
	return true
}

// subjectOf is what a human approves of a command of the claimed session's agent. It
// runs in a sandbox that shares no process with what nobody approved: what such a
// command leaves running is in another one.
func subjectOf(c *postgres.Claim, arguments []byte) harness.ApprovalSubject {
	spec := c.Agent.Harness.Sandbox
	spec.KeepBackground = false
	return harness.ApprovalSubject{Agent: c.Session.Agent, Tool: harness.ToolExecuteShell, Arguments: harness.CanonicalJSON(arguments), Sandbox: &spec}
}

// questions are the digests of what the calls of r would have to be approved for,
// by the policy of the agent or by what its guardrails said of them.
func (p plan) questions(c *postgres.Claim, r model.Response) []string {
	var digests []string
	for i, call := range r.Calls {
		ruling := p.rulings.calls[i]
		if call.Malformed != "" || ruling.BlockedBy != "" {
			continue
		}
		if t, ok := p.offers.byName[call.Name]; ok {
			if len(ruling.AskedBy) > 0 || asksRemote(c, t, call.Arguments) {
				digests = append(digests, subjectOfRemote(c, t.Name, t.Remote, []byte(call.Arguments)).Digest())
			}
			continue
		}
		command, problem := shellCommand(call)
		if problem != "" || call.Name != harness.ToolExecuteShell {
			continue
		}
		if len(ruling.AskedBy) > 0 || asks(c.Agent.Approvals, call.Name, command, call.Arguments) {
			digests = append(digests, subjectOf(c, []byte(call.Arguments)).Digest())
		}
	}
	return digests
}

// question asks a human about call, which waits for the answer. askedBy are the
// guardrails that want it, if any do.
func (p *plan) question(c *postgres.Claim, call harness.ToolCallID, title string, s harness.ApprovalSubject, askedBy []string, id ids) {
	turn := c.Turns[len(c.Turns)-1]
	about := map[string]any{"Session": string(c.ID), "So far": fmt.Sprintf("%d steps, %d tokens", c.Used.Steps+1, c.Used.Tokens)}
	if len(askedBy) > 0 {
		about["Guardrail"] = strings.Join(askedBy, ", ")
	}
	p.commit.Approvals = append(p.commit.Approvals, postgres.NewApproval{
		ID: id.approval(), Call: call, Title: title, Subject: s, Terms: termsOf(c), Person: turn.ChannelUserID, Context: about,
	})
}

// answer gives a call that a human was asked about its result where they did not
// approve it. A call that is neither open nor ended is approved.
func (p *plan) answer(call postgres.CallRecord) (open, ended bool) {
	a := call.Approval
	end := func(state harness.ToolCallState, result string) (open, ended bool) {
		return p.ends(call, state, result), true
	}
	switch {
	case a.State == harness.ApprovalPending:
		p.waits = true
		return true, false
	case a.State == harness.ApprovalRejected:
		said := "Not run: a human said no."
		if a.Reason != "" {
			said += " Their reason: " + a.Reason
		}
		return end(harness.ToolCallDenied, said)
	case a.State == harness.ApprovalExpired && a.OnTimeout != harness.TimeoutProceed:
		return end(harness.ToolCallExpired, expiredResult)
	case a.State == harness.ApprovalCancelled:
		return end(harness.ToolCallFailed, "Not run: the question to a human was cancelled.")
	}
	return false, false
}

// decided gives a command that a human was asked about its result, or runs it. It
// reports whether the call is still open.
func (p *plan) decided(c *postgres.Claim, call postgres.CallRecord, id ids) bool {
	if open, ended := p.answer(call); open || ended {
		return open
	}
	a := call.Approval
	end := func(state harness.ToolCallState, result string) bool { return p.ends(call, state, result) }
	now := subjectOf(c, a.Subject.Arguments)
	command, err := harness.ShellCommand(a.Subject.Arguments)
	switch {
	case err != nil || a.Subject.Tool != harness.ToolExecuteShell || !c.Agent.Harness.CanExecute() || now.Digest() != a.Digest:
		return end(harness.ToolCallFailed, movedResult)
	case harness.Redact(command, p.limits.secrets) != command:
		return end(harness.ToolCallFailed, "Not run: the command holds a value that must not leave this system.")
	}
	if r, judged := p.rulings.changed[call.ID]; judged && (r.BlockedBy != "" || r.Redacted) { // what was approved runs as it is, or not at all
		return end(harness.ToolCallDenied, deniedResult(r))
	}
	if p.stalled {
		return true
	}
	if l := p.runRoom(c, now.Sandbox.Timeout()); l != nil {
		return p.lacks(c, call, l)
	}
	p.commit.Runs = append(p.commit.Runs, postgres.CallRun{Call: call.ID, Approval: a.ID, NewExecution: execution(c, command, *now.Sandbox, id)})
	p.log(harness.LevelInfo, "approved by %s: %s", a.DecidedBy, command)
	return true
}

func execution(c *postgres.Claim, command string, spec harness.SandboxSpec, id ids) postgres.NewExecution {
	return postgres.NewExecution{ID: id.execution(), Command: command, Spec: spec, MaxSandboxes: c.Agent.Harness.MaxSandboxes, Nonce: id.nonce()}
}

// changedText tells the model what ran instead of what it asked for.
func changedText(a *postgres.ApprovalResult) string {
	if a == nil || !a.Changed {
		return ""
	}
	var shell struct {
		Command string `json:"command"`
	}
	if json.Unmarshal(a.Subject.Arguments, &shell) != nil {
		return ""
	}
	return "[A human changed the command before approving it. This ran: " + shell.Command + "]\n"
}
