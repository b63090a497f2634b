package harness

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// ApprovalKind says what waits for an approval.
type ApprovalKind string

// The kinds of approvals.
const (
	ApprovalOfCall      ApprovalKind = "TOOL_CALL"
	ApprovalOfVisit     ApprovalKind = "NODE_VISIT" // of a workflow's node
	ApprovalOfBudget    ApprovalKind = "BUDGET"     // a turn, for more of a budget that has no room
	ApprovalOfGuardrail ApprovalKind = "GUARDRAIL"  // a message, a result or an answer that a guardrail asks about
)

// Repeats reports whether the same may be asked again, so that a decision can hold
// for a session or for ever. A turn's own question is of that moment.
func (s ApprovalSubject) Repeats() bool { return s.Budget == nil && s.Guardrail == nil }

// BudgetQuestion is a budget that has no room, and what an approval adds to it.
// Amounts are as in Spending.Values.
type BudgetQuestion struct {
	Scope    BudgetScope `json:"scope"`
	Kind     string      `json:"kind"`          // BudgetKind.Word
	Limit    int64       `json:"limit"`         // that holds now, with what was granted before
	Used     int64       `json:"used"`          // of it
	Reserved int64       `json:"reserved"`      // of it, for what is under way
	Amount   int64       `json:"amount"`        // that is granted on top
	Subject  string      `json:"subject"`       // whose: of TURN the message, of SESSION the session, else as budgets of a day know it
	Day      string      `json:"day,omitempty"` // of the scopes of a day, UTC
}

// GuardrailQuestion is a text that guardrails ask about.
type GuardrailQuestion struct {
	Stage      GuardrailStage `json:"stage"`
	Guardrails []string       `json:"guardrails"`         // that ask
	Message    MessageID      `json:"message"`            // of the turn
	Call       ToolCallID     `json:"toolCall,omitempty"` // of TOOL_OUTPUT
	Digest     string         `json:"digest"`             // of the whole text, SHA-256
}

// BudgetGrant is what was granted on top of the limits of a turn or a session.
type BudgetGrant struct {
	Scope  BudgetScope
	Kind   BudgetKind
	Amount int64
}

var kindWords = []string{"STEPS", "TOOL_CALLS", "MILLIS", "TOKENS", "COST", "EXECUTION_MILLIS", "EXECUTIONS"}

// Word is the kind's name in rows.
func (k BudgetKind) Word() string { return kindWords[k] }

// KindOfWord is the kind of which word is the Word; false: there is none.
func KindOfWord(word string) (BudgetKind, bool) {
	for k, w := range kindWords {
		if w == word {
			return BudgetKind(k), true
		}
	}
	return 0, false
}

// With is b with what was granted of its turn and its session. What is granted of
// a day, the store knows when it reserves.
func (b Budget) With(granted []BudgetGrant) Budget {
	for _, g := range granted {
		switch g.Scope {
		case ScopeTurn:
			b.grant(g.Kind, g.Amount)
		case ScopeSession:
			if b.PerSession == nil {
				continue // the limit is gone meanwhile
			}
			l := *b.PerSession
			l.grant(g.Kind, g.Amount)
			b.PerSession = &l
		}
	}
	return b
}

// grant adds to a limit that there is; 0 is none.
func (b *Budget) grant(k BudgetKind, amount int64) {
	switch k {
	case KindSteps:
		b.MaxSteps += int(amount)
	case KindToolCalls:
		b.MaxToolCalls += int(amount)
	case KindMillis:
		b.MaxSeconds += int(amount / 1000)
	case KindTokens:
		b.MaxTokens += int(amount)
	case KindExecutions:
		b.MaxExecutions += int(amount)
	case KindCost:
		if b.MaxCost > 0 {
			b.MaxCost += Micros(amount)
		}
	case KindExecutionMillis:
		if b.MaxExecutionSeconds > 0 {
			b.MaxExecutionSeconds += int(amount / 1000)
		}
	}
}

func (l *BudgetLimits) grant(k BudgetKind, amount int64) {
	add := func(limit *int, n int64) {
		if *limit > 0 {
			*limit += int(n)
		}
	}
	switch k {
	case KindSteps:
		add(&l.MaxSteps, amount)
	case KindToolCalls:
		add(&l.MaxToolCalls, amount)
	case KindMillis:
		add(&l.MaxSeconds, amount/1000)
	case KindTokens:
		add(&l.MaxTokens, amount)
	case KindExecutionMillis:
		add(&l.MaxExecutionSeconds, amount/1000)
	case KindCost:
		if l.MaxCost > 0 {
			l.MaxCost += Micros(amount)
		}
	}
}

// Limit is the limit of a scope and kind, as in Spending.Values; -1: there is none.
func (b Budget) Limit(scope BudgetScope, k BudgetKind) int64 {
	switch scope {
	case ScopeSession:
		return b.PerSession.limit(k)
	case ScopeAgentDay:
		return b.PerAgentDay.limit(k)
	case ScopeUserDay:
		return b.PerUserDay.limit(k)
	}
	if k == KindExecutions {
		return int64(b.MaxExecutions)
	}
	turn := BudgetLimits{
		MaxSteps: b.MaxSteps, MaxToolCalls: b.MaxToolCalls, MaxSeconds: b.MaxSeconds, MaxTokens: b.MaxTokens, MaxCost: b.MaxCost, MaxExecutionSeconds: b.MaxExecutionSeconds,
	}
	return turn.limit(k)
}

func (l *BudgetLimits) limit(k BudgetKind) int64 {
	if k >= budgetKinds {
		return -1
	}
	return l.Values()[k]
}

// Excerpt is the beginning of text as a block of Markdown, at most most characters
// of it, in which no character hides and nothing of it ends the block.
func Excerpt(text string, most int) string {
	runes := []rune(text)
	most = min(most, len(runes))
	visible := Visible(string(runes[:most]))
	for utf8.RuneCountInString(visible) > mostInPiece { // characters that hide are long, written out
		most /= 2
		visible = Visible(string(runes[:most]))
	}
	block := "```\n" + strings.ReplaceAll(visible, "```", `\u{0060}\u{0060}\u{0060}`) + "\n```"
	if more := len(runes) - most; more > 0 {
		block += fmt.Sprintf("\n[… %d more characters are not shown …]", more)
	}
	return block
}
