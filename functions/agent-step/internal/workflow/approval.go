package workflow

import (
	"fmt"
	"strings"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	engine "tuluat.ai/harness/shared/workflow"
)

// maxTitle is how much of a question lists show, in bytes.
const maxTitle = 120

// approval is the question of a node, bound to exactly what is asked.
func approval(e engine.Effect, text string, claim *postgres.Claim, record *postgres.RunRecord, now time.Time) postgres.NewApproval {
	title, _, _ := strings.Cut(text, "\n")
	if len(title) > maxTitle {
		title = strings.ToValidUTF8(title[:maxTitle], "") + "…"
	}
	a := postgres.NewApproval{
		ID: harness.NewApprovalID(now), Visit: e.Visit, Node: e.Node.ID, Title: title, Subject: harness.ApprovalSubject{Agent: claim.Session.Agent, Question: text},
		Person: record.Started.ChannelUserID, Context: map[string]any{"Workflow": fmt.Sprintf("%s, node %s", claim.Workflow, e.Node.ID), "Session": string(claim.ID)},
	}
	if e.Node.Approval != nil {
		a.Terms = *e.Node.Approval
	}
	return a
}
