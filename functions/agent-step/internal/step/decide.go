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
	offers  offers           // those beside the step's own
	used    postgres.Used    // by the turn
	ask     *model.Request   // what it is asked
	summary *toSummarise     // that it is asked for; nil: it is asked for the answer
	worst   harness.Spending // of ask
	limits  limits
	granted map[string]bool // digests that need no further question
	waits   bool            // a human is asked
	rulings rulings         // of the guardrails so far
}

// decide says what the claimed session needs next. It is pure.
func decide(c *postgres.Claim, l limits) plan { return decideBy(c, l, rulings{}) }

// decideBy does so with what the guardrails said of it.
func decideBy(c *postgres.Claim, l limits, r rulings) plan {
	p := plan{limits: l, rulings: r, commit: postgres.StepCommit{Claim: c, State: harness.SessionIdle, Screened: r.screened, Verdicts: r.verdicts, Attempts: r.asked}}
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
		return p.end(harness.SessionFailed, reason)
	}
	if newConversation(turn.Text) {
		p.commit.End = true
		return p.end(harness.SessionCompleted, "This conversation is over. Your next message starts a new one.")
	}
	if r.blocked != nil {
		return p.end(harness.SessionIdle, toldOf(*r.blocked, blockedInput))
	}
	if p.commit.Start {
		if started, ok := p.trigger(c, turn); ok {
			return started
		}
	}
	p.open = p.settleCalls(c)
	if p.open > 0 && (len(p.remotes) == 0 || c.Attempts <= maxAttempts) {
		if p.commit.State = harness.SessionAwaitingExecution; p.waits {
			p.commit.State = harness.SessionAwaitingApproval
		}
		return p
	}
	if c.Attempts > maxAttempts {
		p.remotes = nil
		return p.end(harness.SessionFailed, fmt.Sprintf("I tried %d times to work on this and could not finish. Please try again; if it happens again, tell the operator.", maxAttempts))
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
	if p.summary = p.summarise(c, turns, request, dropped); p.summary != nil {
		spec, _ := l.pick(c, harness.AttemptSummary)
		question := p.summary.question(c, spec, l)
		if p.worst = l.worst(question); p.noPrice(c, spec) == "" && overBudget(c.Agent.Budget, used, c, question) == "" && p.noRoom(c, used) == "" {
			request = question
		} else {
			p.summary = nil // the older turns are left out of this question
		}
	}
	p.worst = l.worst(request)
	if reason := cmp.Or(overBudget(c.Agent.Budget, used, c, request), p.noRoom(c, used)); reason != "" {
		return p.overrun(reason)
	}
	if b := c.Agent.Budget.PerSession; b != nil && b.MaxSeconds > 0 {
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
			if r, judged := p.rulings.results[call.ID]; judged {
				outcome.Result = passedOn(r, outcome.Result)
			}
			p.commit.Results = append(p.commit.Results, outcome)
		}
	}
	return open
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
	p.ask = nil
	p.commit.State = state
	p.commit.Reply = []string{text}
	p.commit.Step = &postgres.NewStep{ID: newIDs().step(), Text: text}
	if state != harness.SessionIdle && state != harness.SessionCompleted {
		p.commit.Reason = text
		p.log(harness.LevelError, "turn ended as %s: %s", state, text)
	}
	return p
}

// overBudget says which limit the next question would break. A claim counts as
// a step before the step is taken, and the largest answer counts as given, so
// that a crash between asking and committing is never free.
func overBudget(b harness.Budget, used postgres.Used, c *postgres.Claim, r model.Request) string {
	worst := used.Tokens + int64(c.Attempts)*(r.EstimatedTokens()+int64(r.Agent.MaxTokens))
	var limit string
	switch {
	case used.Steps+c.Attempts > b.MaxSteps:
		limit = fmt.Sprintf("%d steps", b.MaxSteps)
	case int(used.Elapsed.Seconds()) > b.MaxSeconds:
		limit = fmt.Sprintf("%d seconds", b.MaxSeconds)
	case worst > int64(b.MaxTokens):
		limit = fmt.Sprintf("%d tokens", b.MaxTokens)
	default:
		return ""
	}
	return "I stopped: this message used up its limit of " + limit + ". Send another message to go on."
}

func (p *plan) log(level harness.Level, format string, args ...any) {
	c := p.commit.Claim
	p.commit.Logs = append(p.commit.Logs, harness.LogEntry{
		Agent: c.Session.Agent, Session: c.ID, Node: fmt.Sprintf("step-%d", c.Used.Steps+1), Level: level, Message: fmt.Sprintf(format, args...),
	})
}
