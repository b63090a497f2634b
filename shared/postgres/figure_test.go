package postgres_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

func figures(t *testing.T, s *postgres.Store) map[string]int64 {
	t.Helper()
	f, err := s.Figures(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int64{}
	for _, n := range f.Counts {
		if n.Name == harness.FigureSandboxStart { // how long it takes is the machine's matter
			n.Label = ""
		}
		if n.Amount != 0 {
			all[fmt.Sprint(n.Name, " ", n.Agent, " ", n.Label, " ", n.Model)] += n.Amount
		}
	}
	return all
}

// rowFigures counts the same in the rows.
const rowFigures = `
SELECT 'SESSIONS ' || agent_name || ' ' || state || ' ', count(*) FROM sessions GROUP BY 1
UNION ALL SELECT 'REPLIES  ' || state || ' ', count(*) FROM replies GROUP BY 1
UNION ALL SELECT 'EXECUTIONS ' || agent_name || ' ' || state || ' ', count(*) FROM executions WHERE ended_at IS NOT NULL GROUP BY 1
UNION ALL SELECT 'APPROVALS ' || agent_name || ' ' || state || ' ', count(*) FROM approvals WHERE state <> 'PENDING' GROUP BY 1
UNION ALL SELECT 'RUNS ' || agent_name || ' ' || run_state || ' ', count(*) FROM messages m JOIN sessions s USING (session_id) WHERE run_state IS NOT NULL GROUP BY 1
UNION ALL SELECT 'SANDBOX_START ' || agent_name || '  ', count(*) FROM sandboxes WHERE ready_at IS NOT NULL GROUP BY agent_name`

func rows(t *testing.T, s *postgres.Store) map[string]int64 {
	t.Helper()
	found, err := s.Pool().Query(context.Background(), rowFigures)
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	all := map[string]int64{}
	for found.Next() {
		var name string
		var n int64
		if err := found.Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		all[name] = n
	}
	return all
}

// spent are figures that no row has but a session's sum.
func spent(all map[string]int64) map[string]int64 {
	some := maps.Clone(all)
	maps.DeleteFunc(some, func(name string, _ int64) bool {
		var figure string
		_, _ = fmt.Sscan(name, &figure)
		switch harness.FigureName(figure) {
		case harness.FigureTokens, harness.FigureCost, harness.FigureModelFailures, harness.FigureSandboxStartMillis:
			return true
		}
		return false
	})
	return some
}

func same(t *testing.T, what string, got, want map[string]int64) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("%s: figures are\n%v\nwant\n%v", what, got, want)
	}
}

// Every function counts with the role it has, and what is counted is what the rows
// say: in every state, folded or not, and after a fold that was begun twice.
func TestFiguresAreWhatTheRowsSay(t *testing.T) {
	ctx := context.Background()
	dsn := postgrestest.DSN(t)
	open := func(role string) *postgres.Store {
		s, err := postgres.Open(dsn+harness.Secret(role), postgres.Options{MaxConns: 4})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	s, steps, reaper, api := open(""), open("&role=tuluat_agent_step"), open("&role=tuluat_reaper_cron"), open("&role=tuluat_management_api")
	agent(t, s)
	check := func(what string) {
		t.Helper()
		same(t, what, spent(figures(t, api)), rows(t, s))
	}
	id := arrive(t, s, "a", "b", "c")[0].Session
	check("three messages")
	claim, err := steps.ClaimSession(ctx, id, lease)
	if err != nil {
		t.Fatal(err)
	}
	call := postgres.NewCall{
		CallOutcome: postgres.CallOutcome{ID: "call_1", State: harness.ToolCallRunning}, ProviderID: "p1", Name: "executeShell", Arguments: "{}",
		Execution: &postgres.NewExecution{ID: "exe_1", Command: "true", Spec: harness.DefaultSandbox(), MaxSandboxes: 1, Nonce: "n"},
	}
	if _, err := steps.CommitStep(ctx, postgres.StepCommit{
		Claim: claim, State: harness.SessionAwaitingExecution, Start: true, Model: "m",
		Step:  &postgres.NewStep{ID: "stp_1", Text: "let me see", InputTokens: 5, OutputTokens: 7, Calls: []postgres.NewCall{call}},
		Spent: harness.Spending{Steps: 1, Tokens: 15, Cost: 40},
	}); err != nil {
		t.Fatal(err)
	}
	check("a command waits")
	x := runIn(t, s, "exe_1")
	check("it runs")
	finish(t, s, x, completed)
	check("it has ended")
	if n, err := reaper.FoldFigures(ctx, 1000); err != nil || n == 0 {
		t.Fatalf("folded %d: %v", n, err)
	}
	check("folded")
	if n, err := reaper.FoldFigures(ctx, 1000); err != nil || n != 0 {
		t.Fatalf("folded %d again: %v", n, err)
	}
	if claim, err = steps.ClaimSession(ctx, id, lease); err != nil {
		t.Fatal(err)
	}
	if _, err := steps.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionBlocked, Reply: []string{"one", "two"}, Unanswered: true, Model: "m"}); err != nil {
		t.Fatal(err)
	}
	check("the turn is blocked")
	if claim, err = steps.ClaimSession(ctx, id, lease); err != nil {
		t.Fatal(err)
	}
	if _, err := steps.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionRunning, Start: true, Retry: time.Hour, Unanswered: true, Model: "m"}); err != nil {
		t.Fatal(err)
	}
	f, err := api.Figures(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Retrying) != 1 || f.Retrying[0].Count != 1 || f.Waiting != 1 || f.MessageAge <= 0 {
		t.Errorf("retrying %v, waiting %d for %s, want 1 and 1", f.Retrying, f.Waiting, f.MessageAge)
	}
	if _, _, err := s.CancelSession(ctx, id, postgres.Audit{Actor: "ann", Action: "cancel sessions", RequestID: "r"}); err != nil {
		t.Fatal(err)
	}
	check("cancelled while the second turn runs")
	all := figures(t, api)
	for name, want := range map[string]int64{
		"RUNS coder BLOCKED ": 1, "RUNS coder CANCELLED ": 1, "SESSIONS coder CANCELLED ": 1, "EXECUTIONS coder COMPLETED ": 1,
		"TOKENS coder input m": 5, "TOKENS coder output m": 7, "TOKENS coder other m": 3, "COST coder  m": 40, "MODEL_FAILURES coder  m": 2,
	} {
		if all[name] != want {
			t.Errorf("%s is %d, want %d", name, all[name], want)
		}
	}
	// A person's data is deleted: totals stay.
	for _, table := range []string{"replies", "session_events"} {
		if _, err := s.Pool().Exec(ctx, `DELETE FROM `+table); err != nil {
			t.Fatal(err)
		}
	}
	after := figures(t, api)
	if after["REPLIES  PLANNED "] != 0 || after["RUNS coder BLOCKED "] != 1 {
		t.Errorf("after a deletion: %v", after)
	}
}

// No reader sees a figure twice or not at all while others count and fold.
func TestFiguresAreWholeInEveryMoment(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	const changes = 200
	var at sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		at.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, err := s.FoldFigures(ctx, 1); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	last := int64(0)
	for range changes {
		if _, err := s.Pool().Exec(ctx, `INSERT INTO figure_changes (figure_name, agent_name, label, amount) VALUES ('RUNS', 'coder', 'FAILED', 1)`); err != nil {
			t.Fatal(err)
		}
		got := figures(t, s)["RUNS coder FAILED "]
		if got != last+1 {
			t.Fatalf("%d, want %d", got, last+1)
		}
		last = got
	}
	close(done)
	at.Wait()
}

// What there was before it was counted is counted once.
func TestRowsOfBeforeAreCounted(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	arrive(t, s, "a")
	want := figures(t, s)
	if _, err := s.Pool().Exec(ctx, `DELETE FROM figure_changes`); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.Pool().Exec(ctx, countRows(t)); err != nil {
			t.Fatal(err)
		}
		same(t, "counted again", figures(t, s), want)
	}
}
