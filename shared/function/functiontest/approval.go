package functiontest

import (
	"context"
	"encoding/json"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

// Ask has the agent of the one session that has something to answer ask humans,
// by terms, whether command may run, as a step does. It returns the approval and
// the announcements of its cards.
func (d *Database) Ask(command string, terms harness.ApprovalTerms) (view.Approval, []event.Event) {
	d.T.Helper()
	ctx, now := context.Background(), time.Now()
	session := d.Query(`SELECT session_id FROM sessions WHERE due_at IS NOT NULL ORDER BY session_id LIMIT 1`)
	claim, err := d.Store.ClaimSession(ctx, harness.SessionID(session), postgres.Lease{Owner: "test", For: time.Minute})
	if err != nil {
		d.T.Fatal(err)
	}
	arguments, err := json.Marshal(map[string]string{"command": command})
	if err != nil {
		d.T.Fatal(err)
	}
	call, id := harness.NewToolCallID(now), harness.NewApprovalID(now)
	events, err := d.Store.CommitStep(ctx, postgres.StepCommit{
		Claim: claim, State: harness.SessionAwaitingApproval, Start: true,
		Step: &postgres.NewStep{ID: harness.NewStepID(now), Calls: []postgres.NewCall{{
			CallOutcome: postgres.CallOutcome{ID: call, State: harness.ToolCallPending}, Name: harness.ToolExecuteShell, Arguments: string(arguments),
		}}},
		Approvals: []postgres.NewApproval{{
			ID: id, Call: call, Title: "Agent coder asks to run a command.", Terms: terms, Person: claim.Turns[len(claim.Turns)-1].ChannelUserID,
			Subject: harness.ApprovalSubject{Agent: claim.Session.Agent, Tool: harness.ToolExecuteShell, Arguments: arguments, Sandbox: &harness.SandboxSpec{ImageRef: "python", Egress: harness.EgressNone}},
		}},
	})
	if err != nil {
		d.T.Fatal(err)
	}
	return d.Approval(id), events
}

// Approval returns an approval as it is now.
func (d *Database) Approval(id harness.ApprovalID) view.Approval {
	d.T.Helper()
	a, err := d.Store.GetApproval(context.Background(), id)
	if err != nil {
		d.T.Fatal(err)
	}
	return a
}

// Replies are the announcements of every session with a reply that is due.
func (d *Database) Replies() []event.Event {
	d.T.Helper()
	d.Exec(`DELETE FROM outbox WHERE event_type = $1`, event.MessageReply)
	events, err := d.Store.RepliesDue(context.Background(), 100)
	if err != nil {
		d.T.Fatal(err)
	}
	return events
}
