package harness

import (
	"fmt"
	"strings"
	"time"
)

// Budget limits a turn by its own fields, where 0 takes the value of
// DefaultBudget but for MaxCost and MaxExecutionSeconds, which are then unlimited;
// and beside it a session, a day of the agent, and a day of one person with the
// agent. Days are UTC.
type Budget struct {
	MaxSteps      int `json:"maxSteps"`
	MaxToolCalls  int `json:"maxToolCalls"`
	MaxTokens     int `json:"maxTokens"`
	MaxSeconds    int `json:"maxSeconds"` // from the message to its answer
	MaxExecutions int `json:"maxExecutions"`

	MaxCost             Micros `json:"maxCost,omitempty"`
	MaxExecutionSeconds int    `json:"maxExecutionSeconds,omitempty"`

	PerSession  *BudgetLimits `json:"perSession,omitempty"`
	PerAgentDay *BudgetLimits `json:"perAgentDay,omitempty"`
	PerUserDay  *BudgetLimits `json:"perUserDay,omitempty"`
	OnOverrun   Overrun       `json:"onOverrun,omitempty"` // empty: block
}

// DefaultBudget is what an agent gets that sets no budget.
func DefaultBudget() Budget {
	return Budget{MaxSteps: 40, MaxToolCalls: 30, MaxTokens: 500_000, MaxSeconds: 3600, MaxExecutions: 30}
}

// BudgetLimits are the most that may be spent in a scope; 0: no limit.
type BudgetLimits struct {
	MaxSteps            int    `json:"maxSteps,omitempty"`
	MaxToolCalls        int    `json:"maxToolCalls,omitempty"`
	MaxSeconds          int    `json:"maxSeconds,omitempty"` // in which the model answers or a command runs
	MaxTokens           int    `json:"maxTokens,omitempty"`
	MaxCost             Micros `json:"maxCost,omitempty"`
	MaxExecutionSeconds int    `json:"maxExecutionSeconds,omitempty"`
}

// Overrun says what happens when a budget has no room.
type Overrun string

// What a budget does without room.
const (
	OverrunBlock Overrun = "block" // the turn ends as BLOCKED
	OverrunAsk   Overrun = "ask"   // a human may grant the same once more; until then the turn waits
)

// BudgetScope says what a budget is of.
type BudgetScope string

// The scopes of budgets.
const (
	ScopeTurn     BudgetScope = "TURN"
	ScopeSession  BudgetScope = "SESSION"
	ScopeAgentDay BudgetScope = "AGENT_DAY"
	ScopeUserDay  BudgetScope = "USER_DAY" // one person on a channel with one agent
)

// BudgetKind is which amount of a Spending.
type BudgetKind int

// The kinds, in the order of Spending.Values.
const (
	KindSteps BudgetKind = iota
	KindToolCalls
	KindMillis
	KindTokens
	KindCost
	KindExecutionMillis
	budgetKinds

	KindExecutions = budgetKinds // commands: of a turn only, and no amount of a Spending
)

// Spending is what something costs.
type Spending struct {
	Steps, ToolCalls int64
	Time             time.Duration // in which a model answered or a command ran
	Tokens           int64
	Cost             Micros
	ExecutionTime    time.Duration // in which a command ran
}

// Values are its amounts by BudgetKind; times in milliseconds.
func (s Spending) Values() []int64 {
	return []int64{s.Steps, s.ToolCalls, s.Time.Milliseconds(), s.Tokens, int64(s.Cost), s.ExecutionTime.Milliseconds()}
}

// Spent is the Spending of which values are the Values.
func Spent(values []int64) Spending {
	return Spending{
		Steps: values[KindSteps], ToolCalls: values[KindToolCalls], Time: time.Duration(values[KindMillis]) * time.Millisecond,
		Tokens: values[KindTokens], Cost: Micros(values[KindCost]), ExecutionTime: time.Duration(values[KindExecutionMillis]) * time.Millisecond,
	}
}

// Plus returns the sum.
func (s Spending) Plus(more Spending) Spending {
	return Spending{
		Steps: s.Steps + more.Steps, ToolCalls: s.ToolCalls + more.ToolCalls, Time: s.Time + more.Time, Tokens: s.Tokens + more.Tokens,
		Cost: s.Cost + more.Cost, ExecutionTime: s.ExecutionTime + more.ExecutionTime,
	}
}

// Values are the limits by BudgetKind as Spending has them; -1: none. Those of nil
// are all none.
func (l *BudgetLimits) Values() []int64 {
	values := make([]int64, budgetKinds)
	for i := range values {
		values[i] = -1
	}
	if l == nil {
		return values
	}
	for kind, most := range map[BudgetKind]int64{
		KindSteps: int64(l.MaxSteps), KindToolCalls: int64(l.MaxToolCalls), KindMillis: 1000 * int64(l.MaxSeconds), KindTokens: int64(l.MaxTokens),
		KindCost: int64(l.MaxCost), KindExecutionMillis: 1000 * int64(l.MaxExecutionSeconds),
	} {
		if most > 0 {
			values[kind] = most
		}
	}
	return values
}

// Amount is n of a kind in words: 40 steps, a cost of 2.50.
func (k BudgetKind) Amount(n int64) string {
	switch k {
	case KindSteps:
		return fmt.Sprintf("%d steps", n)
	case KindToolCalls:
		return fmt.Sprintf("%d tool calls", n)
	case KindMillis:
		return fmt.Sprintf("%d seconds", n/1000)
	case KindTokens:
		return fmt.Sprintf("%d tokens", n)
	case KindCost:
		return "a cost of " + Micros(n).String()
	case KindExecutions:
		return fmt.Sprintf("%d commands", n)
	default:
		return fmt.Sprintf("%d seconds of commands", n/1000)
	}
}

// LimitsCost reports whether any of its limits is one of money: then a model's
// price must be known.
func (b Budget) LimitsCost() bool {
	for _, l := range []*BudgetLimits{b.PerSession, b.PerAgentDay, b.PerUserDay} {
		if l != nil && l.MaxCost > 0 {
			return true
		}
	}
	return b.MaxCost > 0
}

// Micros is an amount of money, in millionths of the platform's currency unit.
type Micros int64

const unit = 1_000_000

// maxUnits keeps sums of amounts far from the end of int64.
const maxUnits = 1_000_000_000

// ParseMicros reads a decimal like 2.50, of at most six places.
func ParseMicros(text string) (Micros, error) {
	whole, part, _ := strings.Cut(text, ".")
	if len(whole) == 0 || len(whole) > 10 || len(part) > 6 || strings.HasSuffix(text, ".") {
		return 0, Errorf(Invalid, "%q is no amount of money like 2.50, with at most six decimal places", text)
	}
	n := int64(0)
	for _, digit := range whole + part + strings.Repeat("0", 6-len(part)) {
		if digit < '0' || digit > '9' {
			return 0, Errorf(Invalid, "%q is no amount of money like 2.50", text)
		}
		n = 10*n + int64(digit-'0')
	}
	if n > maxUnits*unit {
		return 0, Errorf(Invalid, "%q is over %d", text, maxUnits)
	}
	return Micros(n), nil
}

// String is the amount in units, with two decimal places or as many as it needs.
func (m Micros) String() string {
	sign := ""
	if m < 0 {
		sign, m = "-", -m
	}
	part := strings.TrimRight(fmt.Sprintf("%06d", m%unit), "0")
	for len(part) < 2 {
		part += "0"
	}
	return fmt.Sprintf("%s%d.%s", sign, m/unit, part)
}
