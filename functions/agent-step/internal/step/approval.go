package step

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/guard"
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
func questions(c *postgres.Claim, r model.Response, said []guard.Ruling) []string {
	var digests []string
	for i, call := range r.Calls {
		command, problem := shellCommand(call)
		if problem != "" || call.Name != harness.ToolExecuteShell || said[i].BlockedBy != "" {
			continue
		}
		if len(said[i].AskedBy) > 0 || asks(c.Agent.Approvals, call.Name, command, call.Arguments) {
			digests = append(digests, subjectOf(c, []byte(call.Arguments)).Digest())
		}
	}
	return digests
}

// ownTerms are of an agent whose block approvals is not there or off, and whose
// guardrails ask: whoever wrote decides, and silence is no.
var ownTerms = harness.ApprovalTerms{Quorum: 1, Timeout: time.Hour, OnTimeout: harness.TimeoutReject}

// question asks a human about call, which waits for the answer. askedBy are the
// guardrails that want it, if any do.
func (p *plan) question(c *postgres.Claim, call harness.ToolCallID, s harness.ApprovalSubject, askedBy []string, id ids) {
	turn, terms := c.Turns[len(c.Turns)-1], ownTerms
	if c.Agent.Approvals != nil {
		terms = c.Agent.Approvals.Terms
	}
	about := map[string]any{"Session": string(c.ID), "So far": fmt.Sprintf("%d steps, %d tokens", c.Used.Steps+1, c.Used.Tokens)}
	if len(askedBy) > 0 {
		about["Guardrail"] = strings.Join(askedBy, ", ")
	}
	p.commit.Approvals = append(p.commit.Approvals, postgres.NewApproval{
		ID: id.approval(), Call: call, Title: fmt.Sprintf("Agent %s asks to run a command.", c.Session.Agent), Subject: s, Terms: terms, Person: turn.ChannelUserID, Context: about,
	})
}

// decided gives a call that a human was asked about its result, or runs it. It
// reports whether the call is still open.
func (p *plan) decided(c *postgres.Claim, call postgres.CallRecord, id ids) bool {
	a := call.Approval
	end := func(state harness.ToolCallState, result string) bool {
		p.commit.Results = append(p.commit.Results, postgres.CallOutcome{ID: call.ID, State: state, Result: result})
		return false
	}
	switch {
	case a.State == harness.ApprovalPending:
		p.waits = true
		return true
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
	if reason := p.runRoom(c, now.Sandbox.Timeout()); reason != "" {
		return end(harness.ToolCallFailed, "Not run: "+reason)
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
