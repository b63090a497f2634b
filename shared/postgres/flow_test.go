package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

var lease = postgres.Lease{Owner: "test", For: time.Minute}

func agent(t testing.TB, s *postgres.Store) {
	t.Helper()
	ctx := context.Background()
	for _, sql := range []string{
		`INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('coder', 1, 'READY', 'd')`,
		`INSERT INTO agent_revisions (agent_name, revision, spec) VALUES ('coder', 1, '{"name": "coder"}')`,
		`INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all) VALUES ('WEBHOOK', 'hook', 'coder', '{}', true)`,
	} {
		if _, err := s.Pool().Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
}

func arrive(t *testing.T, s *postgres.Store, ids ...string) []postgres.Accepted {
	t.Helper()
	var arrivals []postgres.Arrival
	for _, id := range ids {
		arrivals = append(arrivals, postgres.Arrival{
			Account: "hook", ProviderID: id, Chat: "chat",
			Message: harness.Message{Channel: harness.ChannelWebhook, ChannelUserID: "user", Text: "text " + id},
		})
	}
	accepted, events, err := s.Accept(context.Background(), harness.ChannelWebhook, postgres.Inbound{Arrivals: arrivals}, "")
	if err != nil {
		t.Fatal(err)
	}
	if want := 1; accepted[len(ids)-1].Outcome == postgres.ArrivalAccepted && len(events) != want {
		t.Fatalf("%d wakes for one session, want %d", len(events), want)
	}
	return accepted
}

// One conversation from first message to /new, with a mark that arrives while
// the session is worked.
func TestAConversation(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	first := arrive(t, s, "a", "b")
	if again := arrive(t, s, "a"); again[0].Outcome != postgres.ArrivalDuplicate || again[0].Message != first[0].Message {
		t.Fatalf("a repeat gave %+v, want the first's ids %+v", again[0], first[0])
	}
	id := first[0].Session
	claim, err := s.ClaimSession(ctx, id, lease)
	if err != nil {
		t.Fatal(err)
	}
	if len(claim.Turns) != 1 || claim.Turns[0].Text != "text a" || !claim.More {
		t.Fatalf("claim reads %+v", claim)
	}
	if _, err := s.ClaimSession(ctx, id, lease); !errors.Is(err, postgres.ErrNothingDue) {
		t.Fatalf("second claim: %v", err)
	}
	call := postgres.NewCall{
		CallOutcome: postgres.CallOutcome{ID: "call_1", State: harness.ToolCallRunning}, ProviderID: "p1", Name: "executeShell", Arguments: "{}",
		Execution: &postgres.NewExecution{ID: "exe_1", Command: "true", Spec: harness.DefaultSandbox(), MaxSandboxes: 1, Nonce: "n"},
	}
	events, err := s.CommitStep(ctx, postgres.StepCommit{
		Claim: claim, State: harness.SessionAwaitingExecution, Start: true,
		Step: &postgres.NewStep{ID: "stp_1", Text: "let me see", InputTokens: 5, Calls: []postgres.NewCall{call}},
		Logs: []harness.LogEntry{{Agent: "coder", Session: id, Node: "1", Level: harness.LevelInfo, Message: "step"}},
	})
	if err != nil || len(events) != 1 {
		t.Fatalf("commit: %v %v", events, err)
	}
	if _, err := s.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionIdle}); !errors.Is(err, postgres.ErrLeaseLost) {
		t.Fatalf("a second commit under one claim: %v", err)
	}
	if _, err := s.ClaimSession(ctx, id, lease); !errors.Is(err, postgres.ErrNothingDue) {
		t.Fatalf("claim while a command runs: %v", err)
	}
	arrive(t, s, "c")
	claim, err = s.ClaimSession(ctx, id, lease)
	if err != nil || len(claim.Calls) != 1 || claim.Calls[0].Execution == nil || claim.Calls[0].Execution.State != harness.ExecutionPending {
		t.Fatalf("claim with an open call: %+v %v", claim, err)
	}
	arrive(t, s, "d")
	events, err = s.CommitStep(ctx, postgres.StepCommit{
		Claim: claim, State: harness.SessionIdle, Reply: []string{"one", "two"}, End: true,
		Step: &postgres.NewStep{ID: "stp_2", Text: "onetwo"},
	})
	if err != nil || len(events) != 2 {
		t.Fatalf("last commit: %+v %v", events, err)
	}
	next := events[1].Session
	if next == id {
		t.Fatal("messages behind the end of a conversation must open a new one")
	}
	claim, err = s.ClaimSession(ctx, next, lease)
	if err != nil || claim.Turns[0].Text != "text b" || !claim.More {
		t.Fatalf("the new conversation: %+v %v", claim, err)
	}
	var open int
	if err := s.Pool().QueryRow(ctx, `SELECT count(*) FROM tool_calls WHERE result IS NULL`).Scan(&open); err != nil || open != 0 {
		t.Fatalf("%d calls without a result after the turn, %v", open, err)
	}
}

func TestManyArrivalsInOneStatement(t *testing.T) {
	s := postgrestest.New(t)
	agent(t, s)
	var ids []string
	for i := range 1000 {
		ids = append(ids, fmt.Sprint("m", i))
	}
	arrive(t, s, ids...)
	var seqs, last int
	if err := s.Pool().QueryRow(context.Background(), `SELECT count(DISTINCT seq), max(seq) FROM messages`).Scan(&seqs, &last); err != nil || seqs != 1000 || last != 1000 {
		t.Fatalf("%d numbers up to %d, %v", seqs, last, err)
	}
}
