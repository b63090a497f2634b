package postgres_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

func limited(day, user *harness.BudgetLimits) harness.Budget {
	return harness.Budget{PerAgentDay: day, PerUserDay: user}
}

func reserve(t *testing.T, s *postgres.Store, user string, b harness.Budget, want harness.Spending) (postgres.Reservation, *postgres.BudgetOverrun) {
	t.Helper()
	r, over, err := s.Reserve(context.Background(), "coder", user, b, want)
	if err != nil {
		t.Fatal(err)
	}
	return r, over
}

// Each kind of limit has room up to its figure and not above it, of the agent and
// of each person; what has no room in one budget is held in none.
func TestReservationsStopAtTheFigure(t *testing.T) {
	s := postgrestest.New(t)
	one := harness.Spending{Steps: 1, ToolCalls: 2, Time: 10 * time.Second, Tokens: 100, Cost: 250_000, ExecutionTime: 30 * time.Second}
	for i, c := range []struct {
		limits harness.BudgetLimits
		room   int
		kind   harness.BudgetKind
	}{
		{harness.BudgetLimits{MaxSteps: 3}, 3, harness.KindSteps},
		{harness.BudgetLimits{MaxToolCalls: 5}, 2, harness.KindToolCalls},
		{harness.BudgetLimits{MaxSeconds: 35}, 4, harness.KindMillis}, // the last gets five seconds
		{harness.BudgetLimits{MaxTokens: 399}, 3, harness.KindTokens},
		{harness.BudgetLimits{MaxCost: 1_000_000}, 4, harness.KindCost},
		{harness.BudgetLimits{MaxExecutionSeconds: 60}, 2, harness.KindExecutionMillis},
		{harness.BudgetLimits{MaxSteps: 9, MaxTokens: 100}, 1, harness.KindTokens},
	} {
		for scope, b := range map[harness.BudgetScope]harness.Budget{harness.ScopeAgentDay: limited(&c.limits, nil), harness.ScopeUserDay: limited(&harness.BudgetLimits{}, &c.limits)} {
			run(t, s, `DELETE FROM budget_usage`)
			for n := range c.room {
				r, over := reserve(t, s, "coder WEBHOOK ann", b, one)
				if over != nil {
					t.Fatalf("%d, %s: %d. of %d: %+v", i, scope, n+1, c.room, over)
				}
				if want := 10 * time.Second; r.Amount.Time != want && !(c.kind == harness.KindMillis && n == 3 && r.Amount.Time == 5*time.Second) {
					t.Errorf("%d, %s: held for %s", i, scope, r.Amount.Time)
				}
			}
			before := postgrestest.Dump(t, s, "budget_usage")
			_, over := reserve(t, s, "coder WEBHOOK ann", b, one)
			if over == nil || over.Scope != scope || over.Kind != c.kind || over.Limit != c.limits.Values()[c.kind] || over.Used != 0 || over.Reserved == 0 {
				t.Errorf("%d, %s: no room: %+v", i, scope, over)
			}
			if diff := cmp.Diff(before, postgrestest.Dump(t, s, "budget_usage")); diff != "" {
				t.Errorf("%d, %s: something is held:\n%s", i, scope, diff)
			}
			if _, over := reserve(t, s, "coder WEBHOOK ben", b, one); (over == nil) != (scope == harness.ScopeUserDay) {
				t.Errorf("%d, %s: another person: %+v", i, scope, over)
			}
		}
	}
	// Yesterday's use is none of today's.
	run(t, s, `UPDATE budget_usage SET day = day - 1, used_steps = 1000`)
	if _, over := reserve(t, s, "u", limited(&harness.BudgetLimits{MaxSteps: 1}, nil), one); over != nil {
		t.Errorf("the next day: %+v", over)
	}
}

// Fifty sessions of one agent that all begin at once never hold and use more
// together than the budget of the day has; what a crash left counts.
func TestRacingStepsStayWithinTheDay(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	b := limited(&harness.BudgetLimits{MaxSteps: 20, MaxTokens: 2000}, &harness.BudgetLimits{MaxSteps: 15})
	want := harness.Spending{Steps: 1, Tokens: 100}
	var racing sync.WaitGroup
	var held, crashed, refused atomic.Int64
	for i := range 50 {
		session := say2(t, s, i)
		racing.Go(func() {
			claim, err := s.ClaimSession(ctx, session, lease)
			if err != nil {
				t.Error(err)
				return
			}
			user := []string{"coder WEBHOOK ann", "coder WEBHOOK ben"}[i%2]
			r, over, err := s.Reserve(ctx, "coder", user, b, want)
			switch {
			case err != nil:
				t.Error(err)
				return
			case over != nil:
				refused.Add(1)
				return
			case i%10 == 0: // its process dies here
				crashed.Add(1)
				return
			}
			held.Add(1)
			_, err = s.CommitStep(ctx, postgres.StepCommit{
				Claim: claim, State: harness.SessionIdle, Start: true, Reply: []string{"x"}, Step: &postgres.NewStep{ID: harness.NewStepID(time.Now()), Text: "x", Model: "m", InputTokens: 60},
				Spent: harness.Spending{Steps: 1, Tokens: 60}, Reserved: []postgres.Reservation{r},
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	racing.Wait()
	if held.Load()+crashed.Load() != 20 || refused.Load() != 30 {
		t.Errorf("%d answered, %d crashed, %d refused: want 20 in all and 30", held.Load(), crashed.Load(), refused.Load())
	}
	for sql, want := range map[string]int64{
		`SELECT used_steps + reserved_steps FROM budget_usage WHERE scope = 'AGENT_DAY'`:                  20,
		`SELECT reserved_steps FROM budget_usage WHERE scope = 'AGENT_DAY'`:                               crashed.Load(),
		`SELECT used_tokens FROM budget_usage WHERE scope = 'AGENT_DAY'`:                                  60 * held.Load(),
		`SELECT reserved_tokens FROM budget_usage WHERE scope = 'AGENT_DAY'`:                              100 * crashed.Load(),
		`SELECT sum(used_steps + reserved_steps)::bigint FROM budget_usage WHERE scope = 'USER_DAY'`:      20,
		`SELECT count(*) FROM budget_usage WHERE scope = 'USER_DAY' AND used_steps + reserved_steps > 15`: 0,
		`SELECT sum(used_tokens)::bigint FROM sessions`:                                                   60 * held.Load(),
	} {
		if got := value[int64](t, s, sql); got != want {
			t.Errorf("%s: %d, want %d", sql, got, want)
		}
	}
	if _, over := reserve(t, s, "u", limited(&harness.BudgetLimits{MaxSteps: 20}, nil), want); over == nil || over.Reserved != crashed.Load() {
		t.Errorf("what a crash left is free: %+v", over)
	}
}

// say2 opens the i-th of several conversations.
func say2(t *testing.T, s *postgres.Store, i int) harness.SessionID {
	t.Helper()
	chat := "chat-" + string(rune('0'+i/10)) + string(rune('0'+i%10))
	accepted, _, err := s.Accept(context.Background(), harness.ChannelWebhook, postgres.Inbound{Arrivals: []postgres.Arrival{{
		Account: "hook", ProviderID: chat, Chat: chat, Message: harness.Message{Channel: harness.ChannelWebhook, ChannelUserID: "user", Text: "x"},
	}}}, "")
	if err != nil {
		t.Fatal(err)
	}
	return accepted[0].Session
}

// A command holds its time limit until it ends, by whatever way, and counts for as
// long as it ran.
func TestCommandsHoldTheirTime(t *testing.T) {
	for name, c := range map[string]struct {
		end func(t *testing.T, s *postgres.Store, session harness.SessionID, began bool)
		ran int64
	}{
		"it ends": {func(t *testing.T, s *postgres.Store, session harness.SessionID, _ bool) {
			c := runIn(t, s, "exe_1")
			run(t, s, `UPDATE executions SET started_at = now() - interval '20 seconds'`)
			finish(t, s, c, completed)
		}, 20},
		"nobody looked for an hour": {func(t *testing.T, s *postgres.Store, session harness.SessionID, _ bool) {
			c := runIn(t, s, "exe_1")
			run(t, s, `UPDATE executions SET started_at = now() - interval '1 hour'`)
			finish(t, s, c, completed)
		}, 300},
		"cancelled before it began": {func(t *testing.T, s *postgres.Store, session harness.SessionID, _ bool) {
			if _, _, err := s.CancelSession(context.Background(), session, postgres.Audit{Actor: "ann"}); err != nil {
				t.Fatal(err)
			}
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			s := postgrestest.New(t)
			agent(t, s)
			session := arrive(t, s, "a")[0].Session
			claim, err := s.ClaimSession(ctx, session, lease)
			if err != nil {
				t.Fatal(err)
			}
			b := limited(nil, &harness.BudgetLimits{MaxExecutionSeconds: 500})
			held, over := reserve(t, s, "coder WEBHOOK user", b, harness.Spending{ToolCalls: 1, ExecutionTime: 300 * time.Second, Time: 300 * time.Second})
			if over != nil {
				t.Fatal(over)
			}
			own, rest := held, held
			own.Amount, rest.Amount = harness.Spending{ExecutionTime: 300 * time.Second}, harness.Spending{ToolCalls: 1}
			_, err = s.CommitStep(ctx, postgres.StepCommit{
				Claim: claim, State: harness.SessionAwaitingExecution, Start: true, Spent: harness.Spending{ToolCalls: 1}, Reserved: []postgres.Reservation{rest},
				Step: &postgres.NewStep{ID: "stp_1", Model: "m", Calls: []postgres.NewCall{{
					CallOutcome: postgres.CallOutcome{ID: "call_1", State: harness.ToolCallRunning}, ProviderID: "p", Name: "executeShell", Arguments: "{}",
					Execution: &postgres.NewExecution{ID: "exe_1", Command: "true", Spec: harness.DefaultSandbox(), MaxSandboxes: 1, Nonce: "n", Reserved: &own},
				}}},
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, over := reserve(t, s, "coder WEBHOOK user", b, harness.Spending{ExecutionTime: 201 * time.Second}); over == nil {
				t.Error("the time of a command is free while it runs")
			}
			c.end(t, s, session, false)
			for sql, want := range map[string]int64{
				`SELECT min(used_execution_millis) FROM budget_usage`:                       1000 * c.ran,
				`SELECT max(used_millis) FROM budget_usage`:                                 1000 * c.ran,
				`SELECT max(reserved_execution_millis + reserved_millis) FROM budget_usage`: 0,
				`SELECT max(reserved_tool_calls) FROM budget_usage`:                         0,
				`SELECT min(used_tool_calls) FROM budget_usage`:                             1,
				`SELECT count(*) FROM budget_usage`:                                         2,
				`SELECT used_execution_millis FROM sessions`:                                1000 * c.ran,
				`SELECT turn_execution_millis FROM sessions`:                                1000 * c.ran,
			} {
				if got := value[int64](t, s, sql); got < want || got > want+2000 {
					t.Errorf("%s: %d, want %d", sql, got, want)
				}
			}
		})
	}
}

// What an agent uses is counted by day, with and without budgets, and shown.
func TestUsage(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	session := arrive(t, s, "a")[0].Session
	claim, err := s.ClaimSession(ctx, session, lease)
	if err != nil {
		t.Fatal(err)
	}
	spent := harness.Spending{Steps: 1, ToolCalls: 2, Time: 1500 * time.Millisecond, Tokens: 30, Cost: 1_250_000}
	if _, err := s.CommitStep(ctx, postgres.StepCommit{
		Claim: claim, State: harness.SessionBlocked, Reason: "r", Start: true, Reply: []string{"x"}, Step: &postgres.NewStep{ID: "stp_1", Text: "x", Model: "m"}, Spent: spent,
	}); err != nil {
		t.Fatal(err)
	}
	want := view.Spent{Steps: 1, ToolCalls: 2, Tokens: 30, Cost: "1.25", Seconds: 1.5}
	v, err := s.GetSession(ctx, session)
	if diff := cmp.Diff(want, v.Spent); err != nil || diff != "" {
		t.Errorf("the session: %v\n%s", err, diff)
	}
	run(t, s, `INSERT INTO budget_usage (scope, subject, day, used_steps, reserved_tokens) SELECT scope, subject, day - 1, 7, 9 FROM budget_usage`)
	days, err := s.ListUsage(ctx, "coder", time.Now().Add(-48*time.Hour), 10)
	if err != nil || len(days) != 2 || days[0].Spent != want || days[0].Reserved != nil || days[1].Spent.Steps != 7 || days[1].Reserved.Tokens != 9 {
		t.Errorf("%+v, %v", days, err)
	}
	rows, err := s.AgentRows(ctx, "coder")
	if err != nil || rows[0].Execution == nil || rows[0].Execution.State != "BLOCKED" {
		t.Errorf("%+v, %v", rows, err)
	}
}
