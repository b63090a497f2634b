// Package workflow works one step of a workflow run: it reads the run that was
// claimed, has the engine say what it does next, and commits that as a whole:
// visits, and what they ask for. It talks to nobody else, so a crash at any line
// leaves the run as it was, and the next claim decides the same again.
package workflow

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	engine "tuluat.ai/harness/shared/workflow"
)

// Store is what a run's step needs of *postgres.Store.
type Store interface {
	LoadRun(ctx context.Context, claim *postgres.Claim) (*postgres.RunRecord, error)
	CommitRun(ctx context.Context, c postgres.RunCommit) ([]event.Event, error)
}

// Options are everything a Runner depends on.
type Options struct {
	Store   Store
	Log     *slog.Logger
	Secrets []harness.Secret // redacted from whatever leaves
	Now     func() time.Time // for ids only
}

// Runner works runs.
type Runner struct{ Options }

// New returns a Runner.
func New(o Options) *Runner { return &Runner{o} }

const (
	// maxAttempts is how often a run may be claimed without a commit before it is
	// given up.
	maxAttempts = 8
	commitTime  = 10 * time.Second

	// maxAnswer is how much of an agent's answer is an output, in bytes.
	maxAnswer = 64 << 10
)

// Work works one step of the run of claim and returns the events to publish.
func (r *Runner) Work(ctx context.Context, claim *postgres.Claim) ([]event.Event, error) {
	run, err := r.Store.LoadRun(ctx, claim)
	if err != nil {
		return nil, err
	}
	commit := r.commit(claim, run, r.plan(claim, run))
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), commitTime, errors.New("commit deadline"))
	defer cancel()
	events, err := r.Store.CommitRun(ctx, commit)
	if errors.Is(err, postgres.ErrLeaseLost) {
		return nil, nil // whoever has the run now does the work
	}
	if err != nil {
		return nil, err
	}
	return append(events, changed(commit)...), nil
}

// changed says that a run began, ended, or waits for a human or no longer. It
// freshens a status, which the sweep does anyway.
func changed(c postgres.RunCommit) []event.Event {
	if c.Claim.State == c.State {
		return nil
	}
	return []event.Event{{
		ID: fmt.Sprintf("session.changed:%s:%d", c.Claim.ID, c.Claim.Token), Type: event.SessionChanged, Session: c.Claim.ID,
		Agent: c.Claim.Session.Agent, TraceParent: c.Claim.TraceParent, Payload: event.Payload{Session: c.Claim.ID},
	}}
}

// plan has the engine decide.
func (r *Runner) plan(claim *postgres.Claim, record *postgres.RunRecord) engine.Plan {
	run := runOf(claim, record)
	if claim.State == harness.SessionFailed { // it is over: only its lease is to be released
		return engine.Plan{State: claim.State, Ended: true}
	}
	program, problems := engine.Compile(record.Workflow)
	switch {
	case len(problems) > 0: // of a release that knew no better
		return engine.Abort(run, "this release refuses the workflow's revision: "+problems[0].String())
	case claim.Attempts > maxAttempts:
		return engine.Abort(run, fmt.Sprintf("it was tried %d times and could not go on", maxAttempts))
	}
	return program.Advance(run, record.Now, func() harness.VisitID { return harness.NewVisitID(r.Now()) })
}

// runOf is the record as the engine knows it.
func runOf(claim *postgres.Claim, record *postgres.RunRecord) engine.Run {
	run := engine.Run{ID: claim.ID, Input: record.Input, Started: record.Started, Unusable: map[string]string{}}
	for _, n := range record.Workflow.Nodes {
		if n.Agent == "" {
			continue
		}
		switch a := record.Agents[n.Agent]; {
		case a.Agent == nil || a.Phase == harness.AgentDeleted:
			run.Unusable[n.ID] = fmt.Sprintf("the agent %s does not exist, or never was READY", n.Agent)
		case n.Type == harness.NodeShell && !a.Agent.Harness.CanExecute():
			run.Unusable[n.ID] = fmt.Sprintf("the agent %s runs no commands: its harness is not of type CODE or BOTH", n.Agent)
		}
	}
	for _, v := range record.Visits {
		visit := engine.Visit{
			ID: v.ID, Node: v.Node, Number: v.Number, State: v.State, Attempt: v.Attempt, Arrivals: v.Arrivals, Output: v.Output, Reason: v.Reason,
			Outcome: outcome(v),
		}
		if v.Due != nil {
			visit.Due = *v.Due
		}
		run.Visits = append(run.Visits, visit)
	}
	return run
}

// outcome is what became of what the visit asked for; nil: it has not ended.
func outcome(v postgres.VisitRecord) *engine.Outcome {
	switch {
	case v.Child != nil:
		return childOutcome(*v.Child)
	case v.Execution != nil:
		return executionOutcome(v.Execution)
	case v.Approval != nil:
		return approvalOutcome(*v.Approval)
	}
	return nil
}

func childOutcome(c postgres.ChildRecord) *engine.Outcome {
	text := c.Text
	if len(text) > maxAnswer {
		text = strings.ToValidUTF8(text[:maxAnswer], "") + "\n[… cut off here]"
	}
	out := map[string]any{"text": text, "state": string(harness.SessionCompleted)}
	switch {
	case c.State == harness.SessionCancelled, c.State == harness.SessionCompleted && !c.Answered:
		out["state"] = string(harness.SessionCancelled)
		return &engine.Outcome{Failed: true, Reason: "the agent's conversation was " + firstOf(c.Reason, "cancelled"), Output: out}
	case !c.Answered:
		return nil
	case c.State == harness.SessionFailed, c.State == harness.SessionBlocked:
		out["state"] = string(c.State)
		return &engine.Outcome{Failed: true, Reason: "the agent's turn ended as " + string(c.State) + ": " + firstOf(c.Reason, c.Text), Output: out}
	}
	return &engine.Outcome{Output: out}
}

func executionOutcome(e *postgres.ExecutionResult) *engine.Outcome {
	if !e.State.Ended() {
		return nil
	}
	out := map[string]any{"state": string(e.State), "stdout": window(e.StdoutHead, e.StdoutTail, e.StdoutBytes), "stderr": window(e.StderrHead, e.StderrTail, e.StderrBytes), "reason": e.Reason}
	if e.ExitCode != nil {
		out["exitCode"] = *e.ExitCode
	}
	if e.State == harness.ExecutionCompleted || e.State == harness.ExecutionFailed && e.ExitCode != nil {
		return &engine.Outcome{Output: out}
	}
	return &engine.Outcome{Failed: true, Reason: strings.TrimSuffix("the command ended as "+string(e.State)+": "+e.Reason, ": "), Output: out}
}

// window is what is kept of a stream, as text.
func window(head, tail []byte, printed int64) string {
	text := string(head)
	if cut := printed - int64(len(head)) - int64(len(tail)); cut > 0 {
		text += fmt.Sprintf("\n[… %d bytes left out …]\n", cut)
	}
	return harness.CleanText(text + string(tail))
}

func approvalOutcome(a postgres.VisitApproval) *engine.Outcome {
	out := map[string]any{"state": string(a.State), "decidedBy": a.DecidedBy, "reason": a.Reason}
	switch a.State {
	case harness.ApprovalPending:
		return nil
	case harness.ApprovalExpired:
		if a.OnTimeout == harness.TimeoutProceed {
			out["state"] = string(harness.ApprovalApproved) // by the clock
		}
	case harness.ApprovalCancelled:
		return &engine.Outcome{Failed: true, Reason: "the question was cancelled", Output: out}
	}
	return &engine.Outcome{Output: out}
}

func firstOf(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// commit is plan as it is stored.
func (r *Runner) commit(claim *postgres.Claim, record *postgres.RunRecord, plan engine.Plan) postgres.RunCommit {
	c := postgres.RunCommit{Claim: claim, State: plan.State, Reason: r.clean(plan.Reason), Ended: plan.Ended, Origin: record.Origin, Cancel: plan.Cancel}
	if claim.State == harness.SessionFailed {
		c.Reason = "" // kept: see CommitRun
	}
	if !plan.Due.IsZero() {
		c.Due = &plan.Due
	}
	begins := map[harness.VisitID]engine.Effect{}
	for _, e := range plan.Effects {
		begins[e.Visit] = e
	}
	seq := len(record.Visits)
	for _, v := range plan.Visits {
		change := postgres.VisitChange{
			ID: v.ID, Node: v.Node, Number: v.Number, State: v.State, Attempt: v.Attempt, Arrivals: v.Arrivals, Reason: r.clean(v.Reason),
			Output: r.output(v.Output),
		}
		if change.Seq = 1 + slices.IndexFunc(record.Visits, func(old postgres.VisitRecord) bool { return old.ID == v.ID }); change.Seq == 0 {
			seq++
			change.Seq = seq
		}
		if !v.Due.IsZero() {
			change.Due = &v.Due
		}
		if e, ok := begins[v.ID]; ok {
			change.Begins, change.Input = true, r.clean(e.Text)
		}
		c.Visits = append(c.Visits, change)
		c.Logs = append(c.Logs, logOf(claim, change))
	}
	for _, e := range plan.Effects {
		r.effect(&c, record, e)
	}
	if plan.Ended && plan.State == harness.SessionFailed && record.Origin != nil && claim.State != harness.SessionFailed {
		c.Replies = append(c.Replies, r.reply(fmt.Sprintf("The workflow %s failed: %s", record.Workflow.Name, c.Reason)))
	}
	return c
}

// effect adds what one attempt of a visit asks for.
func (r *Runner) effect(c *postgres.RunCommit, record *postgres.RunRecord, e engine.Effect) {
	now, text := r.Now(), r.clean(e.Text)
	switch e.Node.Type {
	case harness.NodeAgent:
		c.Children = append(c.Children, postgres.NewChild{
			Visit: e.Visit, Attempt: e.Attempt, Agent: e.Node.Agent, Session: harness.NewSessionID(now), Message: harness.NewMessageID(now), Text: text,
			Person: record.Started.ChannelUserID,
		})
	case harness.NodeShell:
		agent := record.Agents[e.Node.Agent].Agent
		c.Executions = append(c.Executions, postgres.NewVisitExecution{
			Visit: e.Visit, Attempt: e.Attempt, Agent: e.Node.Agent,
			NewExecution: postgres.NewExecution{
				ID: harness.NewExecutionID(now), Command: text, Spec: shell(agent.Harness.Sandbox, e.Node.TimeoutSeconds), MaxSandboxes: agent.Harness.MaxSandboxes, Nonce: rand.Text(),
			},
		})
	case harness.NodeApproval:
		c.Approvals = append(c.Approvals, approval(e, text, c.Claim, record, now))
	case harness.NodeReply:
		c.Replies = append(c.Replies, r.reply(text))
	}
}

func (r *Runner) reply(text string) postgres.RunReply {
	return postgres.RunReply{Message: harness.NewMessageID(r.Now()), Reply: harness.NewReplyID(r.Now()), Text: text}
}

// shell is the sandbox of a node's command: the agent's, with a shell, for values
// are quoted as a shell reads them, and with the node's own time.
func shell(spec harness.SandboxSpec, timeoutSeconds int) harness.SandboxSpec {
	if len(spec.Command) == 0 || !slices.Contains([]string{"sh", "bash", "dash", "ash", "ksh", "zsh"}, path.Base(spec.Command[0])) {
		spec.Command = []string{"sh", "-c"}
	}
	if timeoutSeconds > 0 {
		spec.TimeoutSeconds, spec.TTLSeconds = timeoutSeconds, max(spec.TTLSeconds, timeoutSeconds)
	}
	return spec
}

func logOf(claim *postgres.Claim, v postgres.VisitChange) harness.LogEntry {
	entry := harness.LogEntry{Agent: claim.Session.Agent, Session: claim.ID, Node: v.Node, Level: harness.LevelInfo}
	entry.Message = fmt.Sprintf("visit %d of %s: %s, attempt %d", v.Number, v.Node, v.State, v.Attempt)
	if v.Reason != "" {
		entry.Level, entry.Message = harness.LevelWarn, entry.Message+": "+v.Reason
	}
	return entry
}

func (r *Runner) clean(text string) string {
	return harness.Redact(harness.CleanText(text), r.Secrets)
}

// output is a visit's output without what must not leave.
func (r *Runner) output(output json.RawMessage) json.RawMessage {
	if len(output) == 0 {
		return nil
	}
	if clean := r.clean(string(output)); json.Valid([]byte(clean)) {
		return json.RawMessage(clean)
	}
	return json.RawMessage(`{}`)
}
