package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// wantsMore is a session whose turn asks for ten steps more, written by the role of
// agent-step, which the connection keeps.
func wantsMore(t *testing.T) (*postgres.Store, harness.SessionID, harness.ApprovalID) {
	t.Helper()
	ctx := context.Background()
	s, err := postgres.Open(postgrestest.DSN(t), postgres.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	agent(t, s)
	session := say2(t, s, 0)
	run(t, s, `SET ROLE tuluat_agent_step`)
	claim, err := s.ClaimSession(ctx, session, lease)
	if err != nil {
		t.Fatal(err)
	}
	id, message := harness.NewApprovalID(time.Now()), claim.Turns[0].Message
	if _, err := s.CommitStep(ctx, postgres.StepCommit{
		Claim: claim, State: harness.SessionAwaitingApproval, Start: true,
		Approvals: []postgres.NewApproval{{
			ID: id, Kind: harness.ApprovalOfBudget, Message: message, Title: "more?", Person: "ann", Terms: harness.DefaultApprovalTerms(),
			Subject: harness.ApprovalSubject{Agent: "coder", Question: "more?", Budget: &harness.BudgetQuestion{Scope: harness.ScopeTurn, Kind: "STEPS", Limit: 10, Used: 10, Amount: 10, Subject: string(message)}},
		}},
	}); err != nil {
		t.Fatal(err)
	}
	return s, session, id
}

// granted commits that the approval is used up, n times, and returns what the next
// claim has of it.
func granted(t *testing.T, s *postgres.Store, session harness.SessionID, id harness.ApprovalID, n int) *postgres.Claim {
	t.Helper()
	ctx := context.Background()
	for range n {
		run(t, s, `UPDATE sessions SET due_at = now()`)
		claim, err := s.ClaimSession(ctx, session, lease)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionRunning, Grants: []harness.ApprovalID{id, id}}); err != nil {
			t.Fatal(err)
		}
	}
	run(t, s, `UPDATE sessions SET due_at = now()`)
	claim, err := s.ClaimSession(ctx, session, lease)
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

// What was given is granted once, however often it is used; what was not is not.
func TestAGrantIsUsedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		ends    string
		granted bool
	}{
		"approved":          {`state = 'APPROVED', decided_at = now()`, true},
		"nobody, proceed":   {`state = 'EXPIRED', on_timeout = 'proceed', decided_at = now()`, true},
		"nobody, reject":    {`state = 'EXPIRED', decided_at = now()`, false},
		"rejected":          {`state = 'REJECTED', decided_at = now()`, false},
		"cancelled":         {`state = 'CANCELLED', decided_at = now()`, false},
		"still open":        {`title = title`, false},
		"of something else": {`state = 'APPROVED', decided_at = now(), kind = 'GUARDRAIL'`, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, session, id := wantsMore(t)
			run(t, s, `UPDATE approvals SET `+c.ends)
			claim := granted(t, s, session, id, 3)
			want := []harness.BudgetGrant{}
			if c.granted {
				want = []harness.BudgetGrant{{Scope: harness.ScopeTurn, Kind: harness.KindSteps, Amount: 10}}
			}
			if diff := cmp.Diff(want, claim.Granted); diff != "" {
				t.Errorf("granted (-want +got):\n%s", diff)
			}
			if c.granted != (len(claim.Questions) == 0) {
				t.Errorf("questions left: %+v", claim.Questions)
			}
		})
	}
}

// A turn asks for one budget at a time.
func TestOneQuestionForABudget(t *testing.T) {
	s, _, _ := wantsMore(t)
	_, err := s.Pool().Exec(context.Background(), `INSERT INTO approvals (approval_id, session_id, agent_name, title, digest, state, kind, message_id)
		SELECT 'apr_2', session_id, agent_name, 't', 'd', 'PENDING', kind, message_id FROM approvals`)
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.ConstraintName != "approval_once_per_budget" {
		t.Errorf("a second question for a budget: %v", err)
	}
}

// What was granted of a turn is none of another's; of a session it stays.
func TestWhoseGrantItIs(t *testing.T) {
	s, session, id := wantsMore(t)
	run(t, s, `RESET ROLE`)
	run(t, s, `UPDATE approvals SET state = 'APPROVED', decided_at = now()`)
	run(t, s, `INSERT INTO approvals (approval_id, session_id, agent_name, title, digest, state, decided_at) SELECT 'apr_s', session_id, 'coder', 't', 'd', 'APPROVED', now() FROM sessions`)
	run(t, s, `INSERT INTO budget_grants (approval_id, scope, subject, kind, amount) VALUES ('apr_s', 'SESSION', '`+string(session)+`', 'COST', 5)`)
	run(t, s, `SET ROLE tuluat_agent_step`)
	if claim := granted(t, s, session, id, 1); len(claim.Granted) != 2 {
		t.Errorf("in the turn: %+v", claim.Granted)
	}
	run(t, s, `UPDATE messages SET state = 'DONE'`)
	run(t, s, `UPDATE sessions SET due_at = now(), lease_until = NULL, lease_owner = NULL`)
	claim, err := s.ClaimSession(context.Background(), session, lease)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]harness.BudgetGrant{{Scope: harness.ScopeSession, Kind: harness.KindCost, Amount: 5}}, claim.Granted); diff != "" {
		t.Errorf("behind the turn (-want +got):\n%s", diff)
	}
}

// Grants of a day are on top of its limits, of the same day, subject and kind
// only, also for whoever reserves as the release before does.
func TestGrantsOfADay(t *testing.T) {
	ctx := context.Background()
	for kind, want := range map[harness.BudgetKind]harness.Spending{
		harness.KindSteps: {Steps: 1}, harness.KindToolCalls: {ToolCalls: 1}, harness.KindMillis: {Time: time.Second}, harness.KindTokens: {Tokens: 1},
		harness.KindCost: {Cost: 1}, harness.KindExecutionMillis: {ExecutionTime: time.Second},
	} {
		for _, of := range []string{"now", "before"} {
			t.Run(kind.Word()+" as "+of, func(t *testing.T) {
				s := postgrestest.New(t)
				agent(t, s)
				say2(t, s, 0)
				unit := want.Values()[kind]
				limits := &harness.BudgetLimits{MaxSteps: 3, MaxToolCalls: 3, MaxSeconds: 3, MaxTokens: 3, MaxCost: 3, MaxExecutionSeconds: 3}
				other := harness.KindTokens
				if kind == other {
					other = harness.KindSteps
				}
				for i, g := range []struct {
					subject, day, kind string
				}{
					{"coder", "(now() AT TIME ZONE 'UTC')::date", kind.Word()},
					{"coder", "(now() AT TIME ZONE 'UTC')::date - 1", kind.Word()},
					{"another", "(now() AT TIME ZONE 'UTC')::date", kind.Word()},
					{"coder", "(now() AT TIME ZONE 'UTC')::date", other.Word()},
				} {
					run(t, s, fmt.Sprintf(`INSERT INTO approvals (approval_id, session_id, agent_name, title, digest, state, decided_at) SELECT 'apr_%d', session_id, 'coder', 't', 'd', 'APPROVED', now() FROM sessions`, i))
					run(t, s, fmt.Sprintf(`INSERT INTO budget_grants (approval_id, scope, subject, day, kind, amount) VALUES ('apr_%d', 'AGENT_DAY', '%s', %s, '%s', %d)`, i, g.subject, g.day, g.kind, 2*unit))
				}
				for n := range 6 {
					full := false
					if of == "now" {
						_, over, err := s.Reserve(ctx, "coder", "", harness.Budget{PerAgentDay: limits}, want)
						if err != nil {
							t.Fatal(err)
						}
						if full = over != nil; full && over.Limit != 5*unit {
							t.Errorf("the limit is %d, want %d", over.Limit, 5*unit)
						}
					} else {
						var scope *string
						if err := s.Pool().QueryRow(ctx, `SELECT over_scope FROM reserve_budget($1, $2, $3, $4)`, []string{"AGENT_DAY"}, []string{"coder"}, limits.Values(), want.Values()).Scan(&scope); err != nil {
							t.Fatal(err)
						}
						full = scope != nil
					}
					if full != (n == 5) {
						t.Errorf("%d. reservation: full %v", n+1, full)
					}
				}
			})
		}
	}
}

// Of what is not cut there is all or nothing.
func TestReserveWhole(t *testing.T) {
	s := postgrestest.New(t)
	b := limited(&harness.BudgetLimits{MaxSeconds: 10}, nil)
	if r, over := reserve(t, s, "", b, harness.Spending{Time: 4 * time.Second}); over != nil || r.Amount.Time != 4*time.Second {
		t.Fatalf("%+v %+v", r, over)
	}
	_, over, err := s.ReserveWhole(context.Background(), "coder", "", b, harness.Spending{Time: 7 * time.Second})
	if err != nil || over == nil || over.Kind != harness.KindMillis || over.Limit != 10_000 || over.Reserved != 4000 {
		t.Errorf("more than there is: %+v, %v", over, err)
	}
	r, over, err := s.ReserveWhole(context.Background(), "coder", "", b, harness.Spending{Time: 6 * time.Second})
	if err != nil || over != nil || r.Amount.Time != 6*time.Second {
		t.Errorf("what there is: %+v %+v, %v", r, over, err)
	}
}
