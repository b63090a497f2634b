package step_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// looping answers for ever with another command, of 10 tokens in and 5 out.
func looping(n int) []any {
	var answers []any
	for i := range n {
		answers = append(answers, calls(fmt.Sprintf(`{"command": "echo %d"}`, i)))
	}
	return answers
}

// work runs the session until nothing is due, ending every command after it ran
// for two seconds.
func (b *bench) work() {
	b.t.Helper()
	for range 100 {
		if err := b.step.Session(b.t.Context(), event.Event{Type: event.SessionDue, Payload: event.Payload{Session: b.session}}); err != nil {
			b.t.Fatal(err)
		}
		b.exec(`UPDATE executions SET state = 'COMPLETED', started_at = now() - interval '2 seconds', ended_at = now(), exit_code = 0 WHERE ended_at IS NULL`)
		b.exec(`UPDATE sessions SET due_at = now() WHERE state = 'AWAITING_EXECUTION'`)
		if b.text(`SELECT COALESCE(due_at <= now(), false)::text FROM sessions WHERE session_id = $1`, b.session) == "false" {
			return
		}
	}
	b.t.Fatal("it never stops")
}

// A model that loops is stopped at exactly the figure of each limit, and the
// person is told which it was.
func TestALoopStopsAtTheFigure(t *testing.T) {
	prices := map[string]harness.Price{"m": {Input: 1_000_000, Output: 100_000_000}} // of 10 in and 5 out: 510 millionths
	for name, c := range map[string]struct {
		budget func(*harness.Budget)
		steps  int // answers of the model
		ran    int // commands
		words  string
	}{
		"steps of the session":  {func(b *harness.Budget) { b.PerSession = &harness.BudgetLimits{MaxSteps: 7} }, 7, 7, "this conversation used up its limit of 7 steps"},
		"steps of the day":      {func(b *harness.Budget) { b.PerAgentDay = &harness.BudgetLimits{MaxSteps: 8} }, 8, 8, "this agent used up its limit of 8 steps for today. It starts anew at 00:00 UTC"},
		"steps of the person":   {func(b *harness.Budget) { b.PerUserDay = &harness.BudgetLimits{MaxSteps: 4} }, 4, 4, "you have used up your limit of 4 steps for today"},
		"calls of the session":  {func(b *harness.Budget) { b.PerSession = &harness.BudgetLimits{MaxToolCalls: 5} }, 6, 5, "this conversation used up its limit of 5 tool calls"},
		"calls of the day":      {func(b *harness.Budget) { b.PerAgentDay = &harness.BudgetLimits{MaxToolCalls: 5} }, 6, 5, "this agent used up its limit of 5 tool calls for today"},
		"commands of the turn":  {func(b *harness.Budget) { b.MaxExecutionSeconds = 308 }, 6, 5, "this message used up its limit of 308 seconds of commands"},
		"commands, session":     {func(b *harness.Budget) { b.PerSession = &harness.BudgetLimits{MaxExecutionSeconds: 305} }, 4, 3, "this conversation used up its limit of 305 seconds of commands"},
		"commands of the day":   {func(b *harness.Budget) { b.PerAgentDay = &harness.BudgetLimits{MaxExecutionSeconds: 303} }, 3, 2, "this agent used up its limit of 303 seconds of commands for today"},
		"money of the turn":     {func(b *harness.Budget) { b.MaxCost = 101_700 }, 3, 3, "this message used up its limit of a cost of 0.1017"},
		"money of the session":  {func(b *harness.Budget) { b.PerSession = &harness.BudgetLimits{MaxCost: 101_700} }, 3, 3, "this conversation used up its limit of a cost of 0.1017"},
		"money of the day":      {func(b *harness.Budget) { b.PerAgentDay = &harness.BudgetLimits{MaxCost: 101_700} }, 3, 3, "this agent used up its limit of a cost of 0.1017 for today"},
		"tokens of the session": {func(b *harness.Budget) { b.PerSession = &harness.BudgetLimits{MaxTokens: 1800} }, 5, 5, "this conversation used up its limit of 1800 tokens"},
	} {
		t.Run(name, func(t *testing.T) {
			agent := coder()
			agent.Model.Name = "m"
			c.budget(&agent.Budget)
			b := newBench(t, agent, looping(40)...)
			b.step = step.New(step.Options{
				Store: b.store, Model: b.model, Log: slog.New(slog.DiscardHandler), ContextTokens: 100_000, Publish: b.step.Publish,
				Lease: postgres.Lease{Owner: "test", For: time.Minute}, Prices: prices,
			})
			b.say("1", "go on for ever")
			b.work()
			said := b.text(`SELECT text FROM messages WHERE direction = 'OUTBOUND'`)
			if !strings.Contains(said, c.words) {
				t.Errorf("the person is told %q, want %q", said, c.words)
			}
			if len(b.model.asked) != c.steps && !strings.Contains(name, "money") && !strings.Contains(name, "tokens") {
				t.Errorf("asked %d times, want %d", len(b.model.asked), c.steps)
			}
			if got := b.text(`SELECT count(*)::text FROM executions`); got != fmt.Sprint(c.ran) && c.steps == len(b.model.asked) {
				t.Errorf("%s commands, want %d", got, c.ran)
			}
			if got := b.text(`SELECT state || ' ' || reason FROM sessions`); got != "BLOCKED "+said {
				t.Errorf("the session: %s", got)
			}
			for sql, most := range map[string]int64{
				`SELECT used_steps`: value(agent.Budget, harness.KindSteps), `SELECT used_tokens`: value(agent.Budget, harness.KindTokens),
				`SELECT used_cost`: value(agent.Budget, harness.KindCost), `SELECT used_execution_millis`: value(agent.Budget, harness.KindExecutionMillis),
			} {
				for _, from := range []string{" FROM sessions", " FROM budget_usage WHERE scope = 'AGENT_DAY'"} {
					var used int64
					if err := b.store.Pool().QueryRow(t.Context(), sql+from).Scan(&used); err != nil {
						t.Fatal(err)
					}
					if most >= 0 && used > most {
						t.Errorf("%s%s: %d, over %d", sql, from, used, most)
					}
				}
			}
			if held := b.text(`SELECT max(reserved_steps + reserved_tool_calls + reserved_millis + reserved_tokens + reserved_cost + reserved_execution_millis)::text FROM budget_usage`); held != "0" {
				t.Errorf("%s is still held", held)
			}
		})
	}
}

// value is the limit of a kind that a test has set, whatever its scope; -1: none.
func value(b harness.Budget, kind harness.BudgetKind) int64 {
	for _, l := range []*harness.BudgetLimits{{MaxCost: b.MaxCost, MaxExecutionSeconds: b.MaxExecutionSeconds}, b.PerSession, b.PerAgentDay, b.PerUserDay} {
		if most := l.Values()[kind]; most >= 0 {
			return most
		}
	}
	return -1
}

// Money is not limited by guessing.
func TestALimitOfMoneyNeedsAPrice(t *testing.T) {
	agent := coder()
	agent.Model.Name, agent.Budget.PerAgentDay = "dear", &harness.BudgetLimits{MaxCost: 5_000_000}
	b := newBench(t, agent)
	b.say("1", "hello")
	b.wake()
	if got := b.text(`SELECT reason FROM sessions`); !strings.Contains(got, "no price known for model dear") || len(b.model.asked) > 0 {
		t.Errorf("%q, asked %d times", got, len(b.model.asked))
	}
}

// A question that fails gives back what it held; one that may have been read counts.
func TestAFailedQuestionGivesBack(t *testing.T) {
	agent := coder()
	agent.Budget.PerAgentDay = &harness.BudgetLimits{MaxSteps: 5, MaxTokens: 100_000}
	b := newBench(t, agent,
		&model.Error{Kind: harness.Unavailable, Reason: model.ReasonRateLimited, Message: "slow down"},
		&model.Error{Kind: harness.Unavailable, Reason: model.ReasonTimeout, Message: "late"}, says("here"))
	b.say("1", "hello")
	for i, tokens := range []string{"0", "some", "some"} {
		b.exec(`UPDATE sessions SET due_at = now(), retry_at = NULL`)
		if err := b.step.Session(t.Context(), event.Event{Type: event.SessionDue, Payload: event.Payload{Session: b.session}}); err != nil {
			t.Fatal(err)
		}
		got := b.text(`SELECT CASE WHEN used_tokens > 0 THEN 'some' ELSE '0' END || ' ' || reserved_tokens || ' ' || reserved_steps FROM budget_usage`)
		if got != tokens+" 0 0" {
			t.Errorf("after question %d: %s", i+1, got)
		}
	}
}
