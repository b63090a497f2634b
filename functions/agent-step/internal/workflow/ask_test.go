package workflow_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// A node's agent that has used up its day asks as in any conversation, by what
// agent-step's role may do: its run waits, goes on once more is granted, and fails
// as that node does where it is not.
func TestANodesAgentAsksForMore(t *testing.T) {
	for state, want := range map[harness.ApprovalState][]string{
		harness.ApprovalApproved: {"plan 1 DONE", "again 1 DONE", "end 1 DONE"},
		harness.ApprovalRejected: {"plan 1 DONE", "again 1 FAILED"},
	} {
		t.Run(string(state), func(t *testing.T) {
			b := newBench(t)
			talker := harness.Agent{Name: "talker", Budget: harness.DefaultBudget(), Model: harness.ModelSpec{MaxTokens: 1000}}
			talker.Budget.OnOverrun, talker.Budget.PerAgentDay = harness.OverrunAsk, &harness.BudgetLimits{MaxSteps: 1}
			if _, _, err := b.store.PutAgents(t.Context(), []postgres.AgentText{{Name: "talker", Agent: &talker}}, nil); err != nil {
				t.Fatal(err)
			}
			b.put(harness.Workflow{
				Name: "twice",
				Nodes: []harness.Node{
					{ID: "plan", Type: harness.NodeAgent, Agent: "talker", Prompt: "one"},
					{ID: "again", Type: harness.NodeAgent, Agent: "talker", Prompt: "two"},
					{ID: "end", Type: harness.NodeEnd, State: harness.SessionCompleted},
				},
				Edges: []harness.Edge{{From: "plan", To: "again"}, {From: "again", To: "end"}},
			})
			id := b.start("twice", `{}`, "")
			b.drive()
			if got := b.list(`SELECT s.state || ' ' || a.kind || ' ' || a.state FROM approvals a JOIN sessions s USING (session_id) WHERE s.parent_visit IS NOT NULL`); !cmp.Equal(got, []string{"AWAITING_APPROVAL BUDGET PENDING"}) {
				t.Fatalf("the node's conversation: %q", got)
			}
			b.decide("", state)
			b.drive()
			if got := b.list(`SELECT node_id || ' ' || visit || ' ' || state FROM node_visits WHERE session_id = $1 ORDER BY seq`, id); !cmp.Equal(got, want) {
				t.Errorf("visits %q, want %q", got, want)
			}
		})
	}
}

// A run that is cancelled takes such a question with it.
func TestACancelledRunAsksNoMore(t *testing.T) {
	b := newBench(t)
	talker := harness.Agent{Name: "talker", Budget: harness.DefaultBudget(), Model: harness.ModelSpec{MaxTokens: 1000}}
	talker.Budget.OnOverrun, talker.Budget.MaxTokens = harness.OverrunAsk, 10
	if _, _, err := b.store.PutAgents(t.Context(), []postgres.AgentText{{Name: "talker", Agent: &talker}}, nil); err != nil {
		t.Fatal(err)
	}
	b.put(release())
	id := b.start("release", `{"service": "x"}`, "")
	b.drive()
	if _, _, err := b.store.CancelSession(t.Context(), id, postgres.Audit{Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	b.drive()
	if got := b.list(`SELECT a.state || ' ' || s.state FROM approvals a JOIN sessions s USING (session_id)`); !cmp.Equal(got, []string{"CANCELLED CANCELLED"}) {
		t.Errorf("question and conversation: %q", got)
	}
}
