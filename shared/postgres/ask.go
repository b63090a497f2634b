package postgres

import (
	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// TurnQuestion is what the running turn itself waits for, or has an answer to that
// nothing has used yet.
type TurnQuestion struct {
	ID        harness.ApprovalID
	Kind      harness.ApprovalKind // BUDGET or GUARDRAIL
	State     harness.ApprovalState
	Subject   harness.ApprovalSubject
	OnTimeout harness.TimeoutAction
	DecidedBy string
	Reason    string
	Proposal  *Proposal // of GUARDRAIL
}

// Approved reports whether what was asked may be: a human said so, or nobody
// answered and that is enough.
func (q TurnQuestion) Approved() bool {
	return q.State == harness.ApprovalApproved || q.State == harness.ApprovalExpired && q.OnTimeout == harness.TimeoutProceed
}

// Proposal is what goes on once a guardrail's question is approved, exactly.
type Proposal struct {
	Shown     *string `json:"shown,omitempty"` // of INPUT: what models see in the place of the message; nil: the message
	HideFiles bool    `json:"hideFiles,omitempty"`

	State  harness.ToolCallState `json:"state,omitempty"` // of TOOL_OUTPUT: of the call
	Result string                `json:"result,omitempty"`

	Step    *NewStep         `json:"step,omitempty"` // of OUTPUT: the model's answer
	Reply   []string         `json:"reply,omitempty"`
	Choices []harness.Choice `json:"choices,omitempty"`
}

const turnQuestionsSQL = `SELECT a.approval_id, a.kind, a.state, a.input, a.on_timeout, a.decided_by, a.reason, a.proposal
	FROM messages m JOIN approvals a USING (message_id) WHERE m.session_id = $1 AND m.state = 'RUNNING' AND a.kind IS NOT NULL AND a.consumed_at IS NULL ORDER BY a.seq`

func readTurnQuestion(row pgx.CollectableRow) (TurnQuestion, error) {
	var q TurnQuestion
	err := row.Scan(&q.ID, &q.Kind, &q.State, &q.Subject, &q.OnTimeout, &q.DecidedBy, &q.Reason, &q.Proposal)
	return q, err
}

const turnGrantsSQL = `SELECT scope, kind, sum(amount)::bigint FROM budget_grants
	WHERE scope = 'SESSION' AND subject = $1 OR scope = 'TURN' AND subject = (SELECT message_id FROM messages WHERE session_id = $1 AND state = 'RUNNING') GROUP BY scope, kind`

func readGrant(row pgx.CollectableRow) (harness.BudgetGrant, error) {
	var g harness.BudgetGrant
	var word string
	err := row.Scan(&g.Scope, &word, &g.Amount)
	g.Kind, _ = harness.KindOfWord(word) // as the column's CHECK has them
	return g, err
}

// readAsked reads what the turn has asked for, and what it was granted.
func (c *Claim) readAsked(results pgx.BatchResults) error {
	rows, err := results.Query()
	if err != nil {
		return err
	}
	if c.Questions, err = pgx.CollectRows(rows, readTurnQuestion); err != nil {
		return err
	}
	if rows, err = results.Query(); err != nil {
		return err
	}
	c.Granted, err = pgx.CollectRows(rows, readGrant)
	return err
}

// grantBudgetSQL uses up approval $1, which was given, for what it grants: once,
// whoever else tries.
const grantBudgetSQL = `
WITH used AS (
    UPDATE approvals SET consumed_at = now()
    WHERE approval_id = $1 AND kind = 'BUDGET' AND consumed_at IS NULL AND (state = 'APPROVED' OR state = 'EXPIRED' AND on_timeout = 'proceed')
    RETURNING approval_id, input->'budget' AS b
)
INSERT INTO budget_grants (approval_id, scope, subject, day, kind, amount)
SELECT approval_id, b->>'scope', b->>'subject', (b->>'day')::date, b->>'kind', (b->>'amount')::bigint FROM used`

// asked uses up what was decided of the turn's own questions.
func (w *stepWriter) asked() {
	for _, id := range w.c.Grants {
		w.Queue(grantBudgetSQL, id)
	}
	for _, id := range w.c.Consumed {
		w.Queue(`UPDATE approvals SET consumed_at = now() WHERE approval_id = $1 AND consumed_at IS NULL AND state <> 'PENDING'`, id)
	}
}
