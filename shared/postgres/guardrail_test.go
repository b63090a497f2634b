package postgres_test

import (
	"context"
	"sync"
	"testing"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// agent-step writes verdicts with its role, management-api shows them with its own,
// and many sessions of an agent count in the same rows.
func TestVerdictsAreCommittedShownAndCounted(t *testing.T) {
	ctx := context.Background()
	dsn := postgrestest.DSN(t)
	open := func(role string) *postgres.Store {
		t.Helper()
		s, err := postgres.Open(dsn+harness.Secret(role), postgres.Options{MaxConns: 4})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	owner, steps, api := open(""), open("&role=tuluat_agent_step"), open("&role=tuluat_management_api")
	put(t, owner, agentText("a", "a.yaml", ""))
	const sessions = 8
	var ids []harness.SessionID
	for i := range sessions {
		key := string(rune('a' + i))
		ids = append(ids, say(t, owner, "a", "chat-"+key, "k-"+key).Session)
	}
	var working sync.WaitGroup
	for i, id := range ids {
		working.Go(func() {
			c, err := steps.ClaimSession(ctx, id, lease)
			if err != nil {
				t.Error(err)
				return
			}
			message, step := c.Turns[0].Message, harness.StepID("stp_"+string(rune('a'+i)))
			call := harness.ToolCallID("call_" + string(rune('a'+i)))
			text := "hidden"
			verdict := func(stage harness.GuardrailStage, v harness.GuardrailVerdict) postgres.NewVerdict {
				n := postgres.NewVerdict{Stage: stage, Guardrail: "g", Action: harness.GuardrailBlock, Verdict: v, Reason: "why", Message: message}
				if stage != harness.StageInput {
					n.Step, n.Call = step, call
				}
				return n
			}
			all := []postgres.NewVerdict{verdict(harness.StageInput, harness.GuardrailPassed), verdict(harness.StageToolCall, harness.GuardrailHit), verdict(harness.StageToolCall, harness.GuardrailHit)}
			if i%2 == 1 { // in another order: rows are locked in one
				all[0], all[2] = all[2], all[0]
			}
			if _, err := steps.CommitStep(ctx, postgres.StepCommit{
				Claim: c, State: harness.SessionIdle, Start: true, Reply: []string{"no"}, Withhold: true, Verdicts: all, Screened: []postgres.Screening{{Message: message, Shown: &text, HideFiles: true}},
				Step: &postgres.NewStep{ID: step, Calls: []postgres.NewCall{{CallOutcome: postgres.CallOutcome{ID: call, State: harness.ToolCallDenied, Result: "no"}, Name: "x", Arguments: "{}"}}},
			}); err != nil {
				t.Error(err)
			}
		})
	}
	working.Wait()
	var hits, passed, rows int
	if err := owner.Pool().QueryRow(ctx, `SELECT sum(times) FILTER (WHERE verdict = 'HIT'), sum(times) FILTER (WHERE verdict = 'PASSED'), count(*) FROM guardrail_counts`).Scan(&hits, &passed, &rows); err != nil {
		t.Fatal(err)
	}
	if hits != 2*sessions || passed != sessions || rows != 2 {
		t.Errorf("%d hits and %d passed in %d rows, want %d, %d and 2", hits, passed, rows, 2*sessions, sessions)
	}
	var seen []view.GuardrailVerdict
	for after := (view.Place{}); ; {
		page, next, err := api.Timeline(ctx, ids[0], after, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page {
			if e.Guardrail != nil {
				seen = append(seen, *e.Guardrail)
			}
		}
		if after = next; next == (view.Place{}) {
			break
		}
	}
	if len(seen) != 2 || seen[0].Stage != harness.StageToolCall || seen[0].Verdict != harness.GuardrailHit || seen[0].ToolCall != "call_a" || seen[0].Reason != "why" || seen[0].ID == seen[1].ID {
		t.Errorf("the timeline has %+v", seen)
	}
	say(t, owner, "a", "chat-a", "again")
	c, err := steps.ClaimSession(ctx, ids[0], lease)
	if err != nil {
		t.Fatal(err)
	}
	if first := c.Turns[0]; !first.Screened || first.Shown == nil || *first.Shown != "hidden" || !first.HiddenFiles || c.Turns[1].Screened {
		t.Errorf("read again: %+v", c.Turns)
	}
}
