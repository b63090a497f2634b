package step

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/guard"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// maxAskedFor is how much of the person's message a question for more shows, in
// characters.
const maxAskedFor = 200

// lack is a budget that has no room for what is next.
type lack struct {
	scope             harness.BudgetScope
	kind              harness.BudgetKind
	limit, used, held int64
	day               time.Time // of the scopes of a day
}

// words are for the person.
func (l *lack) words() string {
	text := over(l.scope, l.kind, l.limit)
	if l.held > 0 {
		text += " A part of it is held for answers that are under way."
	}
	return text
}

func lackOf(o *postgres.BudgetOverrun) *lack {
	return &lack{scope: o.Scope, kind: o.Kind, limit: o.Limit, used: o.Used, held: o.Reserved, day: o.Day}
}

// budgetOf is what limits the running turn: what its agent says, and what was
// granted since.
func budgetOf(c *postgres.Claim) harness.Budget { return c.Agent.Budget.With(c.Granted) }

// asksMore reports whether a human may grant more of what l is out of.
func asksMore(c *postgres.Claim, l *lack) bool {
	return c.Agent.Budget.OnOverrun == harness.OverrunAsk && c.Agent.Budget.Limit(l.scope, l.kind) > 0
}

// overrun asks a human for more of l, or ends the turn where none may grant it.
// What the step came to before it had no room is committed with the question.
func (p plan) overrun(c *postgres.Claim, l *lack) plan {
	if !asksMore(c, l) {
		return p.end(harness.SessionBlocked, l.words())
	}
	p.more(c, l)
	return p
}

// more asks whether the turn may have the same amount once more. Until that is
// decided nothing of it costs anything.
func (p *plan) more(c *postgres.Claim, l *lack) {
	if slices.ContainsFunc(p.commit.Approvals, func(a postgres.NewApproval) bool { return a.Kind == harness.ApprovalOfBudget }) {
		return // one question at a time: what else has no room is asked for behind it
	}
	turn := c.Turns[len(c.Turns)-1]
	q := harness.BudgetQuestion{
		Scope: l.scope, Kind: l.kind.Word(), Limit: l.limit, Used: l.used, Reserved: l.held, Amount: c.Agent.Budget.Limit(l.scope, l.kind), Subject: string(turn.Message),
	}
	whose := "This message"
	switch l.scope {
	case harness.ScopeSession:
		q.Subject, whose = string(c.ID), "This conversation"
	case harness.ScopeAgentDay:
		q.Subject, q.Day, whose = string(c.Session.Agent), l.day.Format(time.DateOnly), fmt.Sprintf("Agent %s, on %s,", c.Session.Agent, l.day.Format(time.DateOnly))
	case harness.ScopeUserDay:
		q.Subject, q.Day, whose = subject(c), l.day.Format(time.DateOnly), fmt.Sprintf("This person, on %s,", l.day.Format(time.DateOnly))
	}
	asked := fmt.Sprintf("%s has used %s of a limit of %s", whose, l.kind.Amount(l.used), l.kind.Amount(l.limit))
	if l.held > 0 {
		asked += fmt.Sprintf(", and %s are held for what is under way", l.kind.Amount(l.held))
	}
	asked += fmt.Sprintf(". What is next has no room in it. Approved, %s are added once.", l.kind.Amount(q.Amount))
	about := p.about(c)
	about["Asked for"] = fmt.Sprintf("%q", line(p.clean(turn.Text), maxAskedFor))
	p.turnAsks(c, postgres.NewApproval{
		Kind: harness.ApprovalOfBudget, Title: fmt.Sprintf("Agent %s asks for more: its limit of %s is used up.", c.Session.Agent, l.kind.Amount(l.limit)),
		Subject: harness.ApprovalSubject{Agent: c.Session.Agent, Question: asked, Budget: &q}, Context: about,
	})
	p.log(harness.LevelWarn, "asks for more: %s", l.words())
}

// about is what deciders are shown of every question.
func (p plan) about(c *postgres.Claim) map[string]any {
	used := c.Used
	if p.commit.Start {
		used = postgres.Used{}
	}
	cost := fmt.Sprintf("%d steps, %d tokens", used.Steps, used.Tokens)
	if used.Cost > 0 {
		cost += fmt.Sprintf(", a cost of %s", used.Cost)
	}
	return map[string]any{"Session": string(c.ID), "So far": cost}
}

// clean cuts out of a text what must not be shown.
func (p plan) clean(text string) string {
	return harness.Redact(harness.CleanText(text), p.limits.secrets)
}

// turnAsks has the turn itself wait for a human.
func (p *plan) turnAsks(c *postgres.Claim, a postgres.NewApproval) {
	turn := c.Turns[len(c.Turns)-1]
	a.ID, a.Message, a.Person, a.Terms = newIDs().approval(), turn.Message, turn.ChannelUserID, termsOf(c)
	p.commit.Approvals = append(p.commit.Approvals, a)
	p.commit.State, p.ask, p.waits, p.stalled = harness.SessionAwaitingApproval, nil, true, true
}

func termsOf(c *postgres.Claim) harness.ApprovalTerms {
	if a := c.Agent.Approvals; a != nil {
		return a.Terms
	}
	return harness.DefaultApprovalTerms()
}

// unkept gives an answer up whose calls have no room in l, which a human is asked
// for. What it has cost counts; once more is granted the model is asked again.
//
// To keep it would be to judge, count and ask about its calls later, by settings
// that may be others by then, while people decide about some of them already. So
// nothing of it exists that could be made twice or be lost half way, at the price
// of one more question, which the budgets count as well.
func (p plan) unkept(c *postgres.Claim, l *lack) plan {
	step := p.commit.Step
	for i := range p.commit.Verdicts {
		if v := &p.commit.Verdicts[i]; v.Step == step.ID {
			v.Step, v.Call = "", "" // they have no rows
		}
	}
	p.commit.Unkept, p.commit.Step = step, nil
	p.commit.Spent.ToolCalls = 0 // none is made
	p.commit.Approvals, p.commit.Reply, p.commit.Choices, p.commit.Withhold, p.commit.Again = nil, nil, nil, false, false
	p.more(c, l)
	return p
}

// lacks says what becomes of an open call that has no room in l: it waits until a
// human has decided, or has its result. It reports whether it is still open.
func (p *plan) lacks(c *postgres.Claim, call postgres.CallRecord, l *lack) bool {
	if !asksMore(c, l) {
		return p.ends(call, harness.ToolCallFailed, "Not run: "+l.words())
	}
	if p.lack == nil {
		p.lack = l
	}
	return true
}

// asked says what the turn's own questions lead to. ok: that is the whole step.
func (p plan) asked(c *postgres.Claim) (next plan, ok bool) {
	for _, q := range c.Questions {
		open := q.State == harness.ApprovalPending
		switch {
		case q.Kind == harness.ApprovalOfBudget && open:
			p.waits, p.stalled = true, true
		case q.Kind == harness.ApprovalOfBudget && q.Approved():
			// By itself: from the next claim on it holds, also for others.
			p.commit.Grants = append(p.commit.Grants, q.ID)
			p.commit.State, p.commit.Again = harness.SessionRunning, true
			p.log(harness.LevelInfo, "more was granted by %s: %s", cmp.Or(q.DecidedBy, "nobody in time"), q.Subject.Question)
			return p, true
		case q.Kind == harness.ApprovalOfBudget:
			p.refused = refusal(q)
		case q.Subject.Guardrail == nil:
		case open && (q.Subject.Guardrail.Stage == harness.StageInput || q.Subject.Guardrail.Stage == harness.StageOutput):
			p.commit.State = harness.SessionAwaitingApproval
			return p, true
		case q.Subject.Guardrail.Stage == harness.StageOutput && q.Proposal != nil && q.Proposal.Step != nil:
			return p.answerDecided(c, q), true
		}
	}
	return p, false
}

// refusal is what the person is told where more was not granted.
func refusal(q postgres.TurnQuestion) string {
	text := "I stopped: a limit is used up, and more was not granted."
	if b := q.Subject.Budget; b != nil {
		if kind, ok := harness.KindOfWord(b.Kind); ok {
			text = over(b.Scope, kind, b.Limit)
		}
	}
	switch q.State {
	case harness.ApprovalRejected:
		text += fmt.Sprintf(" I asked for more, and %s said no.", q.DecidedBy)
		if q.Reason != "" {
			text += " Their reason: " + q.Reason
		}
	case harness.ApprovalExpired:
		text += " I asked for more, and nobody decided in time."
	default:
		text += " I asked for more, and the question was cancelled."
	}
	return text
}

// asking reports whether r leaves it to a human whether a text goes on.
func asking(r guard.Ruling) bool { return r.BlockedBy == "" && len(r.AskedBy) > 0 }

// maxExcerpt is how much of a text deciders see, in characters: with all else of a
// card it fits one message everywhere.
const maxExcerpt = 1500

// guardrailAsks has the turn wait for whether text may go on, as proposal has it.
func (p *plan) guardrailAsks(c *postgres.Claim, stage harness.GuardrailStage, r guard.Ruling, text string, call harness.ToolCallID, proposal postgres.Proposal) {
	stalled := p.stalled
	names := strings.Join(r.AskedBy, ", ")
	var why []string
	for _, v := range r.Verdicts {
		if v.Action == harness.GuardrailAsk && v.Verdict != harness.GuardrailPassed && v.Reason != "" {
			why = append(why, v.Guardrail+": "+v.Reason)
		}
	}
	what := map[harness.GuardrailStage]string{
		harness.StageInput: "the model may see a message", harness.StageToolOutput: "the model may see what a call gave", harness.StageOutput: "an answer may be sent",
	}[stage]
	asked := fmt.Sprintf("The guardrail %s (%s) asks whether %s.\n%s\nThis is the text, which is data and no instruction:\n%s",
		names, stage, what, strings.Join(why, "\n"), harness.Excerpt(guard.WithoutSecrets(p.clean(text)), maxExcerpt))
	about := p.about(c)
	about["Guardrail"] = names
	p.turnAsks(c, postgres.NewApproval{
		Kind: harness.ApprovalOfGuardrail, Title: fmt.Sprintf("A guardrail of agent %s asks whether %s.", c.Session.Agent, what), Context: about, Proposal: &proposal,
		Subject: harness.ApprovalSubject{Agent: c.Session.Agent, Question: asked, Guardrail: &harness.GuardrailQuestion{
			Stage: stage, Guardrails: r.AskedBy, Message: p.message(), Call: call, Digest: harness.ApprovalSubject{Question: text}.Digest(),
		}},
	})
	p.stalled = stalled // other calls go on
	p.log(harness.LevelWarn, "guardrail %s on %s waits for an approval", names, stage)
}

// questionOf is what guardrails of stage ask in the running turn, about call if it
// is about one; nil: nothing.
func questionOf(c *postgres.Claim, stage harness.GuardrailStage, call harness.ToolCallID) *postgres.TurnQuestion {
	i := slices.IndexFunc(c.Questions, func(q postgres.TurnQuestion) bool {
		g := q.Subject.Guardrail
		return g != nil && q.Proposal != nil && g.Stage == stage && g.Call == call
	})
	if i < 0 {
		return nil
	}
	return &c.Questions[i]
}

// refusedBy is the ruling of a guardrail that asked, and was told no: as if it had
// blocked.
func refusedBy(c *postgres.Claim, q *postgres.TurnQuestion) guard.Ruling {
	r := guard.Ruling{BlockedBy: strings.Join(q.Subject.Guardrail.Guardrails, ", ")}
	for _, rail := range c.Agent.Guardrails.Of(q.Subject.Guardrail.Stage) {
		if slices.Contains(q.Subject.Guardrail.Guardrails, rail.Name) && r.Told == "" {
			r.Told = rail.Text
		}
	}
	return r
}

// resultAsked says what becomes of a call whose result waits for a human. asked is
// false where none does.
func (p *plan) resultAsked(c *postgres.Claim, call postgres.CallRecord) (open, asked bool) {
	q := questionOf(c, harness.StageToolOutput, call.ID)
	switch {
	case q == nil:
		return false, false
	case q.State == harness.ApprovalPending:
		p.waits = true
		return true, true
	case q.Approved():
		p.commit.Consumed = append(p.commit.Consumed, q.ID)
		return p.ends(call, q.Proposal.State, q.Proposal.Result), true
	}
	p.commit.Consumed = append(p.commit.Consumed, q.ID)
	return p.ends(call, q.Proposal.State, passedOn(refusedBy(c, q), "")), true
}

// asksBefore keeps an answer that ends the turn back where a guardrail asks about
// it. It counts now, and is written when that is decided.
func (p plan) asksBefore(c *postgres.Claim) postgres.StepCommit {
	r := p.rulings.reply
	if r == nil || !asking(*r) {
		return p.commit
	}
	proposal := postgres.Proposal{Step: p.commit.Step, Reply: p.commit.Reply, Choices: p.commit.Choices}
	text := sentOf(proposal)
	p.commit.Unkept, p.commit.Step, p.commit.Reply, p.commit.Choices, p.commit.Spent.ToolCalls = p.commit.Step, nil, nil, nil, 0
	p.guardrailAsks(c, harness.StageOutput, *r, text, "", proposal)
	return p.commit
}

// sentOf is all that the person gets of a proposal.
func sentOf(d postgres.Proposal) string {
	lines := slices.Clone(d.Reply)
	for _, choice := range d.Choices {
		lines = append(lines, strings.TrimSpace(choice.Title+" "+choice.Description))
	}
	return strings.Join(lines, "\n")
}

// answerDecided ends the turn with the answer that waited, as it was, or as where
// a guardrail blocks.
func (p plan) answerDecided(c *postgres.Claim, q postgres.TurnQuestion) plan {
	p.commit.Consumed, p.commit.Counted, p.commit.State = append(p.commit.Consumed, q.ID), true, harness.SessionIdle
	if q.Approved() {
		p.commit.Step, p.commit.Reply, p.commit.Choices = q.Proposal.Step, q.Proposal.Reply, q.Proposal.Choices
		return p
	}
	told := toldOf(refusedBy(c, &q), blockedOutput)
	step := *q.Proposal.Step
	step.Text, step.Carry, step.Calls = told, "", nil
	p.commit.Step, p.commit.Reply, p.commit.Withhold = &step, []string{told}, true
	return p
}
