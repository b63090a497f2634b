package step

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// limits are the platform's, not the agent's.
type limits struct {
	contextTokens int64
	secrets       []harness.Secret
	prices        map[string]harness.Price
	model         string // of agents that name none
	provider      harness.Provider
	images        bool          // there is an object store that has them
	callTime      time.Duration // the longest that a model is waited for
	programs      func(block string) Sandboxed
	resolve       func(*harness.Agent, harness.RemoteTool) (harness.RemoteTool, time.Duration, bool)
}

// maxAttempts is how often a step may be claimed without a commit, or answered
// with a passing failure, before its turn is given up.
const maxAttempts = 8

// plan is what a step does: commit at once, or make remote calls or ask the model
// and commit what comes of it.
type plan struct {
	commit  postgres.StepCommit
	remotes []remoteCall     // to be made, by this step or the next
	open    int              // calls that have no result yet, those included
	asks    bool             // the model, once it is known which tools it has
	lists   bool             // tools, before the model is asked
	offers  offers           // those beside the step's own
	used    postgres.Used    // by the turn
	ask     *model.Request   // what it is asked
	summary *toSummarise     // that it is asked for; nil: it is asked for the answer
	worst   harness.Spending // of ask
	limits  limits
	granted map[string]bool // digests that need no further question
	waits   bool            // a human is asked
	stalled bool            // nothing begins until that is decided
	refused string          // why the turn ends when what runs has ended; empty: it does not
	lack    *lack           // of what an open call has no room in
	rulings rulings         // of the guardrails so far
}

// decide says what the claimed session needs next. It is pure.
func decide(c *postgres.Claim, l limits) plan { return decideBy(c, l, rulings{}) }

// decideBy does so with what the guardrails said of it.
func decideBy(c *postgres.Claim, l limits, r rulings) plan {
	p := plan{limits: l, rulings: r, commit: postgres.StepCommit{Claim: c, State: harness.SessionIdle, Screened: r.screened, Verdicts: r.verdicts, Consumed: r.consumed, Attempts: r.asked}}
	if len(c.Turns) == 0 || c.Turns[len(c.Turns)-1].State == harness.MessageDone {
		p.commit.State = settled(c.State)
		return p
	}
	turn := &c.Turns[len(c.Turns)-1]
	p.commit.Start = turn.State == harness.MessagePending
	used := c.Used
	if p.commit.Start {
		used = postgres.Used{Elapsed: c.Used.Elapsed} // since the first attempt
	}
	if reason := unusable(c); reason != "" {
		return p.end(harness.SessionFailed, reason+reference(c))
	}
	if newConversation(turn.Text) {
		p.commit.End = true
		return p.end(harness.SessionCompleted, "This conversation is over. Your next message starts a new one.")
	}
	if r.blocked != nil {
		return p.end(harness.SessionIdle, toldOf(*r.blocked, blockedInput))
	}
	if r.ask != nil {
		p.guardrailAsks(c, harness.StageInput, r.ask.ruling, r.ask.text, "", r.ask.proposal)
		return p
	}
	next, whole := p.asked(c)
	if p = next; whole {
		return p
	}
	if p.commit.Start || questionOf(c, harness.StageInput, "") != nil { // then nothing was done with the message so far
		if started, ok := p.trigger(c, turn); ok {
			return started
		}
	}
	if p.open = p.settleCalls(c); p.lack != nil {
		p.more(c, p.lack)
	}
	if p.open > 0 && (len(p.remotes) == 0 || c.Attempts <= maxAttempts) {
		if p.commit.State = harness.SessionAwaitingExecution; p.waits {
			p.commit.State = harness.SessionAwaitingApproval
		}
		return p
	}
	if c.Attempts > maxAttempts {
		p.remotes = nil
		return p.end(harness.SessionFailed, fmt.Sprintf("I tried %d times to work on this and could not finish. Please try again; if it happens again, tell the operator.", maxAttempts)+reference(c))
	}
	switch {
	case p.refused != "":
		return p.end(harness.SessionBlocked, p.refused)
	case p.stalled:
		p.commit.State = harness.SessionAwaitingApproval
		return p
	}
	p.asks, p.used = true, used
	return p
}

// toModel is the question to the model, with the tools that it has, or the end of
// the turn where a budget leaves no room for one. It is pure.
func (p plan) toModel(c *postgres.Claim) plan {
	used, l := p.used, p.limits
	for _, note := range p.offers.notes {
		p.log(harness.LevelWarn, "%s", note)
	}
	request := prompt(c, p.offers, l)
	if l.awaits(c, request.Agent) {
		p.commit.Fetch, p.commit.Look, p.commit.State = true, imageLook, harness.SessionRunning
		return p
	}
	turns := history(c, p.commit.Results, l.seen(c, request.Agent))
	dropped := fit(&request, c, turns, l.contextTokens)
	shorten(&request, l.contextTokens)
	if reason := p.noPrice(c, request.Agent); reason != "" {
		return p.end(harness.SessionBlocked, reason)
	}
	budget := budgetOf(c)
	if p.summary = p.summarise(c, turns, request, dropped); p.summary != nil {
		spec, _ := l.pick(c, harness.AttemptSummary)
		question := p.summary.question(c, spec, l)
		if p.worst = l.worst(question); p.noPrice(c, spec) == "" && overBudget(budget, used, c, question) == nil && p.noRoom(c, used) == nil {
			request = question
		} else {
			p.summary = nil // the older turns are left out of this question
		}
	}
	p.worst = l.worst(request)
	if l := cmp.Or(overBudget(budget, used, c, request), p.noRoom(c, used)); l != nil {
		return p.overrun(c, l)
	}
	if b := budget.PerSession; b != nil && b.MaxSeconds > 0 {
		p.worst.Time = min(p.worst.Time, time.Duration(b.MaxSeconds)*time.Second-c.Spent.Time)
	}
	p.ask = &request
	return p
}

// settled is the state of a session with nothing to do.
func settled(s harness.SessionState) harness.SessionState {
	if s == harness.SessionBlocked || s == harness.SessionFailed {
		return s
	}
	return harness.SessionIdle
}

// unusable says why no turn of this agent can be worked; empty when it can.
func unusable(c *postgres.Claim) string {
	switch {
	case c.Phase == harness.AgentDeleted:
		return "This agent no longer exists."
	case c.Agent == nil:
		return notSetUp(c.Refused)
	}
	return ""
}

// maxRefused is how much of an agent's faults a person in a chat is told.
const maxRefused = 1500

// notSetUp says what is to be mended before the agent can answer: its own faults
// only, for a channel that is another agent's tells of that one.
func notSetUp(refused string) string {
	_, refused = postgres.AgentStatus{Reason: refused}.Conflicts()
	if refused == "" {
		return "This agent is not set up yet. Please tell the operator."
	}
	if len(refused) > maxRefused {
		refused = strings.ToValidUTF8(refused[:maxRefused], "") + "…"
	}
	return "This agent is not set up: " + refused
}

// newConversation reports whether text is the command that ends a conversation.
// In groups the bot is named: behind the command, as Telegram's clients do, or by
// a mention before it.
func newConversation(text string) bool {
	words := strings.Fields(text)
	if len(words) == 2 && strings.HasPrefix(words[0], "@") {
		words = words[1:]
	}
	if len(words) != 1 {
		return false
	}
	command, _, _ := strings.Cut(words[0], "@")
	return strings.EqualFold(command, "/new")
}

// settleCalls gives every open call whose execution has ended its one result and
// returns how many are still open.
func (p *plan) settleCalls(c *postgres.Claim) int {
	open := 0
	for i, call := range c.Calls {
		switch {
		case call.State.Ended():
		case call.State == harness.ToolCallPending && p.refused != "":
			p.ends(call, harness.ToolCallFailed, "Not run: "+p.refused)
		case questionOf(c, harness.StageToolOutput, call.ID) != nil:
			if stays, _ := p.resultAsked(c, call); stays {
				open++
			}
		case call.Remote != nil && call.Remote.Program != "":
			if p.program(c, call, i, newIDs()) {
				open++
			}
		case call.Remote != nil:
			if p.remote(c, call) {
				open++
			}
		case call.Execution == nil && call.Approval != nil:
			if p.decided(c, call, newIDs()) {
				open++
			}
		case call.Execution == nil:
			p.commit.Results = append(p.commit.Results, postgres.CallOutcome{
				ID: call.ID, State: harness.ToolCallFailed, Result: "Interrupted: nothing is known of this call's outcome.",
			})
		case !call.Execution.State.Ended():
			open++
		default:
			outcome := postgres.CallOutcome{ID: call.ID, State: harness.ToolCallDone, Result: changedText(call.Approval) + executionText(call.Execution)}
			outcome.Result += repeated(repeats(c, call, i))
			if p.gave(c, call, outcome) {
				open++
			}
		}
	}
	return open
}

// gave ends a call with its outcome, as the guardrails let the model see it. It
// reports whether a human is asked first, and the call stays open.
func (p *plan) gave(c *postgres.Claim, call postgres.CallRecord, outcome postgres.CallOutcome) (open bool) {
	if r, judged := p.rulings.results[call.ID]; judged {
		if outcome.Result = passedOn(r, outcome.Result); asking(r) {
			p.guardrailAsks(c, harness.StageToolOutput, r, outcome.Result, call.ID, postgres.Proposal{State: outcome.State, Result: outcome.Result})
			return true
		}
	}
	p.commit.Results = append(p.commit.Results, outcome)
	return false
}

// repeated warns of a call that was made n times in its turn.
func repeated(n int) string {
	if n != warnAt {
		return ""
	}
	return fmt.Sprintf("\n[This is the same call for the %d. time. Do something else, or answer.]", n)
}

// end ends the turn with an answer in words. The answer is a step too, so that
// the next turn's history shows what the person was told.
func (p plan) end(state harness.SessionState, text string) plan {
	p.ask, p.commit.Approvals = nil, nil
	p.commit.State = state
	p.commit.Reply = []string{text}
	p.commit.Step = &postgres.NewStep{ID: newIDs().step(), Text: text}
	if state != harness.SessionIdle && state != harness.SessionCompleted {
		p.commit.Reason = text
		p.log(harness.LevelError, "turn ended as %s: %s", state, text)
	}
	return p
}

// overBudget says which limit of the turn the next question would break. A claim
// counts as a step before the step is taken, and the largest answer counts as
// given, so that a crash between asking and committing is never free.
func overBudget(b harness.Budget, used postgres.Used, c *postgres.Claim, r model.Request) *lack {
	worst := used.Tokens + int64(c.Attempts)*(r.EstimatedTokens()+int64(r.Agent.MaxTokens))
	switch {
	case used.Steps+c.Attempts > b.MaxSteps:
		return &lack{scope: harness.ScopeTurn, kind: harness.KindSteps, limit: int64(b.MaxSteps), used: int64(used.Steps)}
	case int(used.Elapsed.Seconds()) > b.MaxSeconds:
		return &lack{scope: harness.ScopeTurn, kind: harness.KindMillis, limit: int64(b.MaxSeconds) * 1000, used: used.Elapsed.Milliseconds()}
	case worst > int64(b.MaxTokens):
		return &lack{scope: harness.ScopeTurn, kind: harness.KindTokens, limit: int64(b.MaxTokens), used: used.Tokens}
	}
	return nil
}

func (p *plan) log(level harness.Level, format string, args ...any) {
	c := p.commit.Claim
	p.commit.Logs = append(p.commit.Logs, harness.LogEntry{
		Agent: c.Session.Agent, Session: c.ID, Node: fmt.Sprintf("step-%d", c.Used.Steps+1), Level: level, Message: fmt.Sprintf(format, args...),
	})
}
