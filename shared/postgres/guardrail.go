package postgres

import (
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// NewVerdict is what one guardrail of a step came to. Reason quotes nothing of
// what was judged.
type NewVerdict struct {
	Stage     harness.GuardrailStage
	Guardrail string
	Action    harness.GuardrailAction
	Verdict   harness.GuardrailVerdict
	Reason    string
	Message   harness.MessageID  // of the turn; of INPUT, what was judged
	Step      harness.StepID     // of TOOL_CALL and OUTPUT: of this commit
	Call      harness.ToolCallID // of TOOL_CALL and TOOL_OUTPUT
}

// Screening lets models see a message from now on.
type Screening struct {
	Message   harness.MessageID
	Shown     *string // in the place of its text; nil: as it is
	HideFiles bool    // nobody is told of them, and no sandbox gets them
}

// withheldReason is why a file is FAILED that a guardrail keeps back.
const withheldReason = "withheld by a guardrail"

// hideFilesSQL keeps back the files of message $1.
const hideFilesSQL = `
UPDATE attachments SET state = 'FAILED', reason = '` + withheldReason + `', due_at = NULL, lost_at = NULL, updated_at = now()
WHERE message_id = $1 AND direction = 'INBOUND' AND (state <> 'FAILED' OR lost_at IS NOT NULL)`

func (w *stepWriter) screen() {
	for _, s := range w.c.Screened {
		w.Queue(`UPDATE messages SET screened = true, shown_text = $2, hidden_files = $3 WHERE message_id = $1`, s.Message, s.Shown, s.HideFiles)
		if s.HideFiles {
			w.Queue(hideFilesSQL, s.Message)
		}
	}
}

// withhold keeps back the files that the turn's commands made, which would go out
// with its answer.
func (w *stepWriter) withhold() {
	if w.c.Withhold {
		w.Queue(`UPDATE attachments SET state = 'FAILED', reason = '`+withheldReason+`', lost_at = NULL, updated_at = now()
			WHERE session_id = $1 AND direction = 'OUTBOUND' AND (state = 'STORED' OR lost_at IS NOT NULL) AND message_id IS NULL`, w.c.Claim.ID)
	}
}

// countVerdictsSQL locks the rows in one order. It comes last in a commit: many
// sessions of an agent count in the same rows.
const countVerdictsSQL = `
INSERT INTO guardrail_counts AS c (agent_name, stage, guardrail, action, verdict, times)
SELECT $1, stage, guardrail, action, verdict, count(*) FROM unnest($2::text[], $3::text[], $4::text[], $5::text[]) AS v (stage, guardrail, action, verdict)
GROUP BY stage, guardrail, action, verdict ORDER BY stage, guardrail, action, verdict
ON CONFLICT (agent_name, stage, guardrail, action, verdict) DO UPDATE SET times = c.times + EXCLUDED.times`

const verdictsSQL = `
INSERT INTO guardrail_verdicts (guardrail_verdict_id, session_id, agent_name, stage, guardrail, action, verdict, reason, message_id, step_id, tool_call_id)
SELECT v.id, $1, $2, v.stage, v.guardrail, v.action, v.verdict, v.reason, NULLIF(v.message, ''), NULLIF(v.step, ''), NULLIF(v.call, '')
FROM unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[]) AS v (id, stage, guardrail, action, verdict, reason, message, step, call)`

func (w *stepWriter) verdicts() {
	if len(w.c.Verdicts) == 0 {
		return
	}
	var ids, reasons, messages, steps, calls []string
	stages, names, actions, verdicts := w.c.verdictKeys()
	for _, v := range w.c.Verdicts {
		ids, reasons, messages = append(ids, newVerdictID(w.now)), append(reasons, v.Reason), append(messages, string(v.Message))
		steps, calls = append(steps, string(v.Step)), append(calls, string(v.Call))
	}
	w.Queue(verdictsSQL, w.c.Claim.ID, w.c.Claim.Session.Agent, ids, stages, names, actions, verdicts, reasons, messages, steps, calls)
}

func (w *stepWriter) countVerdicts() {
	if len(w.c.Verdicts) > 0 {
		stages, names, actions, verdicts := w.c.verdictKeys()
		w.Queue(countVerdictsSQL, w.c.Claim.Session.Agent, stages, names, actions, verdicts)
	}
}

func (c StepCommit) verdictKeys() (stages, names, actions, verdicts []string) {
	for _, v := range c.Verdicts {
		stages, names = append(stages, string(v.Stage)), append(names, v.Guardrail)
		actions, verdicts = append(actions, string(v.Action)), append(verdicts, string(v.Verdict))
	}
	return stages, names, actions, verdicts
}

const verdictPrefix = "gvd"

func newVerdictID(now time.Time) string { return harness.NewID(verdictPrefix, now) }

const verdictColumns = `v.guardrail_verdict_id, COALESCE(v.message_id, ''), COALESCE(v.step_id, ''), COALESCE(v.tool_call_id, ''), v.stage, v.guardrail, v.action, v.verdict, v.reason, v.created_at`

func readVerdict(row pgx.CollectableRow) (view.GuardrailVerdict, error) {
	var v view.GuardrailVerdict
	err := row.Scan(&v.ID, &v.Message, &v.Step, &v.ToolCall, &v.Stage, &v.Guardrail, &v.Action, &v.Verdict, &v.Reason, &v.CreatedAt)
	return v, err
}
