package step

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/guard"
	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// Guard is what a step needs of *guard.Guard.
type Guard interface {
	Judge(ctx context.Context, s guard.Subject) (guard.Ruling, error)
}

// What is said where a guardrail blocks, and its author has written nothing.
const (
	blockedInput  = "I cannot take this message: it is against a rule that my operator has set."
	blockedOutput = "I have an answer, but a rule that my operator has set does not let me send it."

	withheldMessage = "[A message of the person stood here. A guardrail withheld it.]"
)

// judgeTime bounds the guardrails at each of the two places of a step, so that
// both and the model's answer fit in one request.
const judgeTime = 40 * time.Second

// rulings are what the guardrails said of what a step shows, does and sends.
type rulings struct {
	blocked  *guard.Ruling                       // of the message whose turn it is
	screened []postgres.Screening                // messages that the model may see from now on
	results  map[harness.ToolCallID]guard.Ruling // of what calls gave
	changed  map[harness.ToolCallID]guard.Ruling // of calls that a human changed before approving them
	calls    []guard.Ruling                      // of the answer's, by their places
	reply    *guard.Ruling
	ask      *inputAsk             // about the message whose turn it is
	consumed []harness.ApprovalID  // what humans have decided of it
	verdicts []postgres.NewVerdict // but of the answer
	spent    harness.Spending
	asked    []postgres.NewAttempt // of models that judged
}

// inputAsk is a message that waits for a human.
type inputAsk struct {
	ruling   guard.Ruling
	text     string
	proposal postgres.Proposal
}

// shown is what a model sees of a message.
func shown(t postgres.TurnRecord) string {
	if t.Shown != nil {
		return *t.Shown
	}
	return t.Text
}

// before judges what p, decided without guardrails, is about to show to a model or
// a workflow, and decides again. What is judged again after a crash was not shown.
func (s *Stepper) before(ctx context.Context, c *postgres.Claim, p plan) (plan, error) {
	if c.Agent == nil {
		return p, nil
	}
	var j judging
	j.outcomes(c, p)
	if p.ask != nil || p.commit.Run != nil || len(j.subjects) > 0 { // then a model may be asked
		j.messages(c)
	}
	if len(j.subjects) == 0 && len(j.screened) == 0 {
		return p, nil
	}
	if err := s.judge(ctx, c, &j); err != nil {
		return p, err
	}
	again := decideBy(c, s.limits, j.rulings)
	again.commit.Spent, again.commit.Reserved = j.spent, p.commit.Reserved
	switch {
	case !again.asks:
		for _, l := range p.commit.Lists {
			if l.Reserved != nil { // it is given back
				again.commit.Reserved = append(again.commit.Reserved, *l.Reserved)
			}
		}
		return again, nil
	case p.lists: // they are made as they were decided, once
		again.asks, again.lists, again.commit.State, again.commit.Lists, again.commit.Logs = false, true, p.commit.State, p.commit.Lists, p.commit.Logs
		return again, nil
	case p.ask == nil: // what it was to do instead may not be done
		return s.toAsk(ctx, c, again)
	}
	again.offers = p.offers
	again = again.toModel(c)
	again.worst.Time = p.worst.Time
	return again, nil
}

// judging is what is to be judged, and what comes of it.
type judging struct {
	rulings
	subjects []guard.Subject
	settle   []func(guard.Ruling) // each notes the ruling on the subject in its place
}

func (j *judging) add(s guard.Subject, settle func(guard.Ruling)) {
	j.subjects, j.settle = append(j.subjects, s), append(j.settle, settle)
}

// judge asks the guard about all of j while the lease is kept.
func (s *Stepper) judge(ctx context.Context, c *postgres.Claim, j *judging) error {
	if len(j.subjects) == 0 {
		return nil
	}
	began := time.Now()
	err := postgres.Keep(ctx, s.Lease.For,
		func(ctx context.Context) error { return s.Store.ExtendSession(ctx, c.ID, c.Token, s.Lease) },
		func(ctx context.Context) error {
			for i, subject := range j.subjects {
				subject.Agent, subject.Session, subject.Channel, subject.Until = c.Agent, c.ID, c.Origin, began.Add(judgeTime)
				subject.Person = cmp.Or(subject.Person, c.Turns[len(c.Turns)-1].ChannelUserID)
				ruling, err := s.Guard.Judge(ctx, subject)
				if err != nil {
					return err
				}
				j.settle[i](ruling)
				j.spent = j.spent.Plus(s.limits.judged(ruling))
				j.asked = append(j.asked, s.limits.judges(ruling)...)
			}
			return nil
		})
	if j.spent.Tokens > 0 {
		j.spent.Time = time.Since(began)
	}
	return err
}

// judged is what models have cost that were asked for a verdict.
func (l limits) judged(r guard.Ruling) harness.Spending {
	var sum harness.Spending
	for _, a := range r.Asked {
		price, _ := l.price(a.Model)
		sum.Tokens += a.Tokens.Input + a.Tokens.Output
		sum.Cost += price.Of(a.Tokens)
	}
	return sum
}

// judges are the questions to models that were asked for a verdict.
func (l limits) judges(r guard.Ruling) []postgres.NewAttempt {
	var all []postgres.NewAttempt
	for _, a := range r.Asked {
		one := l.attempt(harness.AttemptGuardrail, a.Model, a.Tokens, a.Took)
		one.Reason = string(a.Reason)
		all = append(all, one)
	}
	return all
}

// messages has every message judged that no model has seen yet: that of the turn,
// and those before it that a person answered, or nobody.
func (j *judging) messages(c *postgres.Claim) {
	judges := len(c.Agent.Guardrails.Of(harness.StageInput)) > 0
	for i := range c.Turns {
		turn := &c.Turns[i]
		if turn.Screened {
			continue
		}
		if q := questionOf(c, harness.StageInput, ""); i == len(c.Turns)-1 && q != nil {
			j.decided(c, turn, q)
			continue
		}
		if !judges {
			j.screened = append(j.screened, postgres.Screening{Message: turn.Message})
			continue
		}
		subject := guard.Subject{Stage: harness.StageInput, Person: turn.ChannelUserID, Text: harness.CleanText(turn.Text)}
		for _, file := range turn.Files {
			subject.FileNames = append(subject.FileNames, file.FileName)
		}
		last := i == len(c.Turns)-1
		j.add(subject, func(r guard.Ruling) {
			if asking(r) && last {
				j.asks(turn, r)
				return
			}
			if asking(r) { // nobody is asked about a turn that is over
				r.BlockedBy = strings.Join(r.AskedBy, ", ")
			}
			screening := postgres.Screening{Message: turn.Message, HideFiles: len(turn.Files) > 0 && (r.HideFiles || r.BlockedBy != "")}
			switch {
			case r.BlockedBy != "":
				text := withheldMessage
				screening.Shown = &text
				if last {
					j.blocked = &r
				}
			case r.Redacted:
				screening.Shown = &r.Text
			}
			turn.Screened, turn.Shown, turn.HiddenFiles = true, screening.Shown, screening.HideFiles
			j.screened = append(j.screened, screening)
			j.note(r, postgres.NewVerdict{Stage: harness.StageInput, Message: turn.Message})
		})
	}
}

// asks has the message of the turn wait for a human: no model sees it before.
func (j *judging) asks(turn *postgres.TurnRecord, r guard.Ruling) {
	ask := &inputAsk{ruling: r, text: r.Text, proposal: postgres.Proposal{HideFiles: len(turn.Files) > 0 && r.HideFiles}}
	if r.Redacted {
		ask.proposal.Shown = &r.Text
	}
	for _, file := range turn.Files {
		if !r.HideFiles {
			ask.text += fmt.Sprintf("\n[With a file named %q]", harness.SafeFileName(file.FileName))
		}
	}
	j.ask = ask
	j.note(r, postgres.NewVerdict{Stage: harness.StageInput, Message: turn.Message})
}

// decided screens the message of the turn as a human has decided.
func (j *judging) decided(c *postgres.Claim, turn *postgres.TurnRecord, q *postgres.TurnQuestion) {
	screening := postgres.Screening{Message: turn.Message, Shown: q.Proposal.Shown, HideFiles: q.Proposal.HideFiles}
	if !q.Approved() {
		r, text := refusedBy(c, q), withheldMessage
		j.blocked, screening.Shown, screening.HideFiles = &r, &text, len(turn.Files) > 0
	}
	turn.Screened, turn.Shown, turn.HiddenFiles = true, screening.Shown, screening.HideFiles
	j.screened, j.consumed = append(j.screened, screening), append(j.consumed, q.ID)
}

// outcomes has judged what commands gave, and calls that a human wrote anew.
func (j *judging) outcomes(c *postgres.Claim, p plan) {
	turn := c.Turns[max(0, len(c.Turns)-1):]
	if c.Agent.Guardrails == nil {
		return
	}
	j.results, j.changed = map[harness.ToolCallID]guard.Ruling{}, map[harness.ToolCallID]guard.Ruling{}
	byID := map[harness.ToolCallID]postgres.CallRecord{}
	for _, call := range c.Calls {
		byID[call.ID] = call
	}
	if len(c.Agent.Guardrails.Of(harness.StageToolOutput)) > 0 {
		for _, outcome := range p.commit.Results {
			call := byID[outcome.ID]
			if call.Execution == nil || questionOf(c, harness.StageToolOutput, call.ID) != nil {
				continue // the words are ours, or were judged when the call was made or before a human was asked
			}
			j.add(guard.Subject{Stage: harness.StageToolOutput, Tool: call.Name, Text: outcome.Result}, func(r guard.Ruling) {
				j.results[call.ID] = r
				j.note(r, postgres.NewVerdict{Stage: harness.StageToolOutput, Message: turn[0].Message, Call: call.ID})
			})
		}
	}
	if len(c.Agent.Guardrails.Of(harness.StageToolCall)) == 0 {
		return
	}
	var approved []harness.ToolCallID
	for _, run := range p.commit.Runs {
		approved = append(approved, run.Call)
	}
	for _, call := range p.remotes {
		approved = append(approved, call.ID)
	}
	for _, id := range approved {
		call := byID[id]
		if call.Approval == nil || !call.Approval.Changed {
			continue
		}
		j.add(guard.Subject{Stage: harness.StageToolCall, Tool: call.Name, Arguments: call.Approval.Subject.Arguments}, func(r guard.Ruling) {
			j.changed[call.ID] = r
			j.note(r, postgres.NewVerdict{Stage: harness.StageToolCall, Message: turn[0].Message, Call: call.ID})
		})
	}
}

func (j *judging) note(r guard.Ruling, as postgres.NewVerdict) {
	j.verdicts = append(j.verdicts, verdicts(r, as)...)
}

func verdicts(r guard.Ruling, as postgres.NewVerdict) []postgres.NewVerdict {
	var all []postgres.NewVerdict
	for _, v := range r.Verdicts {
		as.Guardrail, as.Action, as.Verdict, as.Reason = v.Guardrail, v.Action, v.Verdict, v.Reason
		all = append(all, as)
	}
	return all
}

// after judges what the model answered: each call, or what would be sent. It
// returns the answer as it goes on, with what was redacted of its calls.
func (s *Stepper) after(ctx context.Context, c *postgres.Claim, r model.Response) (model.Response, rulings, error) {
	var j judging
	j.calls = make([]guard.Ruling, len(r.Calls))
	r.Calls = slices.Clone(r.Calls)
	if text, ok := sent(c, r); ok && len(c.Agent.Guardrails.Of(harness.StageOutput)) > 0 {
		j.add(guard.Subject{Stage: harness.StageOutput, Text: text}, func(ruling guard.Ruling) { j.reply = &ruling })
	}
	for i, call := range r.Calls {
		if r.Stop != model.StopToolCalls || call.Malformed != "" || call.Name == harness.ToolOfferChoices || len(c.Agent.Guardrails.Of(harness.StageToolCall)) == 0 {
			continue // it is not made, or is an answer
		}
		j.add(guard.Subject{Stage: harness.StageToolCall, Tool: call.Name, Arguments: json.RawMessage(call.Arguments)}, func(ruling guard.Ruling) {
			if j.calls[i] = ruling; ruling.Redacted {
				r.Calls[i].Arguments = string(ruling.Arguments)
			}
		})
	}
	err := s.judge(ctx, c, &j)
	return r, j.rulings, err
}

// sent is what the person would get of an answer: its text, or its offer with all
// that can be tapped.
func sent(c *postgres.Claim, r model.Response) (string, bool) {
	if len(r.Calls) == 0 {
		return finalText(r), true
	}
	if len(r.Calls) != 1 || r.Stop != model.StopToolCalls || r.Calls[0].Name != harness.ToolOfferChoices || !c.Agent.Harness.CanChat() {
		return "", false
	}
	o, _ := readOffer(r.Calls[0])
	if o == nil {
		return "", false
	}
	lines := []string{o.text}
	for _, choice := range o.choices {
		lines = append(lines, strings.TrimSpace(choice.Title+" "+choice.Description))
	}
	return strings.Join(lines, "\n"), true
}

// toldOf is what is said where r blocks.
func toldOf(r guard.Ruling, otherwise string) string { return cmp.Or(r.Told, otherwise) }

// deniedResult is what the model is told of a call that r does not let run.
func deniedResult(r guard.Ruling) string {
	said := fmt.Sprintf("Not run: the guardrail %s denied this call.", r.BlockedBy)
	if r.Told != "" {
		return said + " " + r.Told
	}
	return said + " Do not try to get around it; do something else, or say what you cannot do."
}

// passedOn is what the model is told of a result that was judged.
func passedOn(r guard.Ruling, result string) string {
	switch {
	case r.BlockedBy != "":
		said := fmt.Sprintf("Withheld: the call was made, and the guardrail %s does not let you see what it gave.", r.BlockedBy)
		return strings.TrimSpace(said + " " + r.Told)
	case r.Redacted:
		return r.Text
	}
	return result
}

// replied is the answer's text as it is sent, and whether that is another than the
// model wrote. Then nothing of what it wrote is kept in its history.
func (p *plan) replied(step *postgres.NewStep, text string) (string, bool) {
	r := p.rulings.reply
	if r == nil {
		return text, false
	}
	judged := postgres.NewVerdict{Stage: harness.StageOutput, Message: p.message(), Step: step.ID}
	if asking(*r) {
		judged.Step = "" // it has no row before that is decided
	}
	p.commit.Verdicts = append(p.commit.Verdicts, verdicts(*r, judged)...)
	switch {
	case r.BlockedBy != "":
		p.commit.Withhold = true
		text = toldOf(*r, blockedOutput)
	case r.Redacted:
		text = r.Text
	default:
		return text, false
	}
	step.Text, step.Carry = "", ""
	return text, true
}

// message is that of the turn.
func (p *plan) message() harness.MessageID {
	turns := p.commit.Claim.Turns
	return turns[len(turns)-1].Message
}

// errNoGuard is a wiring fault: an agent has guardrails, and nobody judges.
var errNoGuard = errors.New("the agent has guardrails and this function has no guard")

// noGuard refuses to work unjudged.
type noGuard struct{}

func (noGuard) Judge(context.Context, guard.Subject) (guard.Ruling, error) {
	return guard.Ruling{}, errNoGuard
}

// noted writes the verdicts of a commit into its log: an entry for each that did
// not pass, and on every other what they came to together.
func noted(c *postgres.StepCommit) {
	if len(c.Verdicts) == 0 {
		return
	}
	worst, rank := "passed", 0
	var own []harness.LogEntry
	for _, v := range c.Verdicts {
		if v.Verdict == harness.GuardrailPassed {
			continue
		}
		result := fmt.Sprintf("%s %s/%s", v.Action, v.Stage, v.Guardrail)
		if r := severity(v.Action); r > rank {
			worst, rank = result, r
		}
		own = append(own, harness.LogEntry{
			Agent: c.Claim.Session.Agent, Session: c.Claim.ID, Node: fmt.Sprintf("step-%d", c.Claim.Used.Steps+1), Level: harness.LevelWarn,
			Message: fmt.Sprintf("guardrail %s on %s: %s (%s)", v.Guardrail, v.Stage, v.Reason, v.Action), GuardrailResult: result,
		})
	}
	for i := range c.Logs {
		c.Logs[i].GuardrailResult = worst
	}
	c.Logs = append(c.Logs, own...)
}

func severity(a harness.GuardrailAction) int {
	return 1 + slices.Index([]harness.GuardrailAction{harness.GuardrailWarn, harness.GuardrailRedact, harness.GuardrailAsk, harness.GuardrailBlock}, a)
}
