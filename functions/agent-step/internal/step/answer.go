package step

import (
	"fmt"
	"math"
	"strings"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/guard"
	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/trace"
)

// warnAt and blockAt bound how often one turn may make the very same call.
const (
	warnAt  = 3
	blockAt = 6
)

// maxTruncated is how many cut-off answers one turn may have.
const maxTruncated = 2

const (
	truncatedResult = "Not run: your answer was cut off at the token limit, so these arguments are not complete. Use shorter arguments, or several smaller calls."
	blockedLoop     = "I stopped: I kept making the same call again and again without getting further."
)

// answered is the commit that follows from a model's answer. It is pure but for
// the fresh names in id.
func (p plan) answered(c *postgres.Claim, r model.Response, id ids) postgres.StepCommit {
	step := &postgres.NewStep{
		ID: id.step(), Text: r.Text, Model: r.Model, Carry: string(r.Carry), InputTokens: r.Usage.InputTokens, OutputTokens: r.Usage.OutputTokens,
		CacheRead: r.Usage.CacheReadTokens, CacheWrite: r.Usage.CacheWriteTokens,
	}
	p.log(harness.LevelInfo, "model %s answered: %d calls, %d tokens in, %d out", p.answeredBy(c, r), len(r.Calls), r.Usage.InputTokens, r.Usage.OutputTokens)
	if len(r.Calls) == 0 {
		return p.final(c, step, r)
	}
	running, remotes := 0, 0
	var offered *offer
	for i, call := range r.Calls {
		asked := len(p.commit.Approvals)
		var ruling guard.Ruling
		if i < len(p.rulings.calls) {
			ruling = p.rulings.calls[i]
		}
		next, o := p.newCall(c, call, r, ruling, id)
		p.commit.Verdicts = append(p.commit.Verdicts, verdicts(ruling, postgres.NewVerdict{Stage: harness.StageToolCall, Message: p.message(), Step: step.ID, Call: next.ID})...)
		switch {
		case next.Execution != nil:
			running++
			ran := next.Execution.Command
			if next.Remote != nil {
				ran = call.Arguments
			}
			p.log(harness.LevelInfo, "%s: %s", call.Name, ran)
		case next.Remote != nil && len(p.commit.Approvals) == asked:
			remotes++
			p.log(harness.LevelInfo, "%s: %s", call.Name, call.Arguments)
		case !next.State.Ended():
			p.log(harness.LevelInfo, "%s waits for an approval: %s", call.Name, call.Arguments)
		case o != nil:
			offered = o
			p.log(harness.LevelInfo, "%s: %d choices", call.Name, len(o.choices))
		default:
			p.log(harness.LevelWarn, "%s not run: %s", call.Name, next.Result)
		}
		step.Calls = append(step.Calls, next)
	}
	p.commit.Step = step
	if reason := p.stops(c, step, r.Stop); reason != "" {
		return p.stopped(reason)
	}
	if l := p.noCallsIn(c, step); l != nil {
		return p.noCalls(c, l)
	}
	if offered != nil {
		p.commit.Reply, p.commit.Choices, p.commit.State = []string{offered.text}, offered.choices, harness.SessionIdle
		if text, other := p.replied(step, offered.text); other { // without anything to tap, which would say it again
			p.commit.Reply, p.commit.Choices, step.Calls[0].Arguments = []string{text}, nil, offerOf(text)
		}
		return p.asksBefore(c)
	}
	switch p.commit.State = harness.SessionAwaitingExecution; {
	case len(p.commit.Approvals) > 0:
		p.commit.State = harness.SessionAwaitingApproval
	case running == 0:
		p.commit.State, p.commit.Again = harness.SessionRunning, true
	}
	if remotes > 0 {
		p.commit.Again = true
	}
	return p.commit
}

// stopped ends the turn for reason: none of the calls of its step is made.
func (p plan) stopped(reason string) postgres.StepCommit {
	calls := p.commit.Step.Calls
	for i := range calls {
		calls[i].Execution, calls[i].Remote = nil, nil
		if calls[i].State != harness.ToolCallFailed {
			calls[i].CallOutcome = postgres.CallOutcome{ID: calls[i].ID, State: harness.ToolCallFailed, Result: "Not run: " + reason}
		}
	}
	p.commit.Reply, p.commit.Choices, p.commit.Approvals, p.commit.Again = []string{reason}, nil, nil, false
	p.commit.State, p.commit.Reason = harness.SessionBlocked, reason
	p.log(harness.LevelError, "turn ended as %s: %s", harness.SessionBlocked, reason)
	return p.commit
}

// final ends the turn with the model's words.
func (p plan) final(c *postgres.Claim, step *postgres.NewStep, r model.Response) postgres.StepCommit {
	text, _ := p.replied(step, finalText(r))
	step.Text = text
	p.commit.Step, p.commit.Reply, p.commit.State = step, []string{text}, harness.SessionIdle
	return p.asksBefore(c)
}

// finalText is the answer as the person gets it.
func finalText(r model.Response) string {
	text := strings.TrimSpace(harness.CleanText(r.Text))
	switch {
	case r.Stop == model.StopRefused && text == "":
		text = "The model declined to answer this."
	case r.Stop == model.StopTruncated && text == "":
		text = "The model's answer was cut off before it said anything. Please ask for something shorter."
	case r.Stop == model.StopTruncated:
		text += "\n[The answer was cut off here.]"
	}
	return text
}

// newCall turns a call of the model into a row: with a command to run, with what
// is offered to the person instead of an answer, or with the result that says
// why nothing is done. Nothing is ever repaired.
func (p *plan) newCall(c *postgres.Claim, call model.Call, r model.Response, ruling guard.Ruling, id ids) (postgres.NewCall, *offer) {
	next := postgres.NewCall{
		CallOutcome: postgres.CallOutcome{ID: id.call(), State: harness.ToolCallFailed}, ProviderID: call.ID, Name: call.Name, Arguments: call.Arguments,
	}
	command, problem := shellCommand(call)
	switch {
	case r.Stop != model.StopToolCalls:
		next.Result = truncatedResult
	case call.Name == harness.ToolOfferChoices && c.Agent.Harness.CanChat():
		o, problem := readOffer(call)
		if len(r.Calls) > 1 {
			o, problem = nil, "offer choices alone: it ends your turn, so nothing else can be called with it."
		}
		if o == nil {
			next.Result = "Not offered: " + problem
			return next, nil
		}
		next.State, next.Result = harness.ToolCallDone, offeredResult
		return next, o
	case p.offers.byName[call.Name].Remote.Block != "":
		p.newRemote(c, p.offers.byName[call.Name], call, ruling, &next, id)
	case call.Name != harness.ToolExecuteShell || !c.Agent.Harness.CanExecute():
		next.Result = "Not run: there is no tool of this name."
	case problem != "":
		next.Result = "Not run: " + problem
	case harness.Redact(command, p.limits.secrets) != command:
		next.Result = "Not run: the command holds a value that must not leave this system."
	case ruling.BlockedBy != "":
		next.State, next.Result = harness.ToolCallDenied, deniedResult(ruling)
	case len(ruling.AskedBy) == 0 && !asks(c.Agent.Approvals, call.Name, command, call.Arguments):
		run := execution(c, command, c.Agent.Harness.Sandbox, id)
		next.State, next.Execution = harness.ToolCallRunning, &run
	default:
		s := subjectOf(c, []byte(call.Arguments))
		if next.State = harness.ToolCallPending; p.granted[s.Digest()] {
			run := execution(c, command, *s.Sandbox, id)
			next.State, next.Execution = harness.ToolCallRunning, &run
			break
		}
		p.question(c, next.ID, fmt.Sprintf("Agent %s asks to run a command.", c.Session.Agent), s, ruling.AskedBy, id)
	}
	return next, nil
}

// shellCommand reads the arguments of executeShell: exactly one object with a
// string "command". problem says in words what is wrong with them.
func shellCommand(call model.Call) (command, problem string) {
	if call.Malformed != "" {
		return "", "the arguments are broken: " + call.Malformed
	}
	command, err := harness.ShellCommand([]byte(call.Arguments))
	if err != nil {
		return "", harness.MessageOf(err)
	}
	return command, ""
}

// stops says why the turn must end instead of making the calls of step.
func (p plan) stops(c *postgres.Claim, step *postgres.NewStep, stop model.Stop) string {
	for _, call := range step.Calls {
		if repeats(c, postgres.CallRecord{Name: call.Name, Arguments: call.Arguments}, len(c.Calls)) >= blockAt {
			return blockedLoop
		}
	}
	if stop != model.StopToolCalls && truncatedSteps(c) >= maxTruncated {
		return "I stopped: the model's answers kept being cut off at its token limit. Please ask for something smaller."
	}
	return ""
}

// noCallsIn says which budget of the turn or the session has no room for the calls
// of step; nil: they all have.
func (p plan) noCallsIn(c *postgres.Claim, step *postgres.NewStep) *lack {
	budget, used := budgetOf(c), c.Used
	if p.commit.Start {
		used = postgres.Used{}
	}
	executions := 0
	for _, call := range step.Calls {
		if call.Command() {
			executions++
		}
	}
	switch {
	case used.ToolCalls+len(step.Calls) > budget.MaxToolCalls:
		return &lack{scope: harness.ScopeTurn, kind: harness.KindToolCalls, limit: int64(budget.MaxToolCalls), used: int64(used.ToolCalls)}
	case used.Executions+executions > budget.MaxExecutions:
		return &lack{scope: harness.ScopeTurn, kind: harness.KindExecutions, limit: int64(budget.MaxExecutions), used: int64(used.Executions)}
	}
	return callsRoom(c, used, step, p.commit.Spent)
}

// noCalls is for an answer whose calls have no room in l: none of them is made.
func (p plan) noCalls(c *postgres.Claim, l *lack) postgres.StepCommit {
	if asksMore(c, l) {
		return p.unkept(c, l).commit
	}
	return p.stopped(l.words())
}

// repeats counts the calls of the running turn up to position that are the same
// as call, itself included.
func repeats(c *postgres.Claim, call postgres.CallRecord, position int) int {
	n := 1
	for i, other := range turnCalls(c) {
		if i < position && other.ID != call.ID && other.Name == call.Name && canonical(other.Arguments) == canonical(call.Arguments) {
			n++
		}
	}
	return n
}

// turnCalls yields the calls of the running turn with their positions in c.Calls.
func turnCalls(c *postgres.Claim) func(func(int, postgres.CallRecord) bool) {
	steps := map[harness.StepID]bool{}
	for _, s := range c.Turns[len(c.Turns)-1].Steps {
		steps[s.ID] = true
	}
	return func(yield func(int, postgres.CallRecord) bool) {
		for i, call := range c.Calls {
			if steps[call.Step] && !yield(i, call) {
				return
			}
		}
	}
}

func truncatedSteps(c *postgres.Claim) int {
	seen := map[harness.StepID]bool{}
	for _, call := range turnCalls(c) {
		if call.Result == truncatedResult {
			seen[call.Step] = true
		}
	}
	return len(seen)
}

// canonical makes two spellings of one JSON object equal.
func canonical(arguments string) string {
	return string(harness.CanonicalJSON([]byte(arguments)))
}

// failed is the commit that follows from no answer: another model is asked, a
// passing failure is tried again, or the turn ends in words. random is in [0, 1).
func (p plan) failed(c *postgres.Claim, err error, random float64) postgres.StepCommit {
	failure := failureOf(err)
	if commit, ok := p.again(c, failure, random); ok {
		return commit
	}
	text := "I could not get an answer from my model: " + failure.Message + "."
	if failure.RetryAfter > maxRetryAfter {
		text += " It asks to wait " + failure.RetryAfter.Round(time.Minute).String() + "; please try again then."
	}
	if failure.Reason == model.ReasonContextFull {
		text = "This conversation has become longer than my model can read. Send /new to start a new one."
	}
	return p.end(harness.SessionFailed, text+reference(c)).commit
}

// reference lets a person tell an operator which trace to look at.
func reference(c *postgres.Claim) string {
	if id := trace.IDOf(c.TraceParent); id != "" {
		return " Reference: " + id
	}
	return ""
}

// maxRetryAfter is the longest wait a person is left with: beyond it the turn
// ends with words.
const maxRetryAfter = 5 * time.Minute

// attemptsAt is how often a question is asked that ends like this. A model that
// answers nonsense does so again, and one that hangs takes minutes each time.
func attemptsAt(r model.Reason) int {
	switch r {
	case model.ReasonEmpty, model.ReasonNotAnswer, model.ReasonTooLarge:
		return 3
	case model.ReasonTimeout:
		return 2
	}
	return maxAttempts
}

// The waits between attempts: full jitter under an exponential ceiling, never
// shorter than what the provider asked for (runtime.md A5).
const (
	firstWait = time.Second
	maxWait   = 2 * time.Minute
)

func wait(attempt int, retryAfter time.Duration, random float64) time.Duration {
	ceiling := min(float64(maxWait), float64(firstWait)*math.Pow(2, float64(attempt)))
	return max(retryAfter, firstWait/2, time.Duration(ceiling*random))
}
