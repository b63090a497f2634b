package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// beginCallsSQL makes the PENDING calls $3 of session $1 RUNNING, begun by the
// claim of token $2, unless nobody may work on the session.
var beginCallsSQL = `UPDATE tool_calls t SET state = 'RUNNING', begun_token = $2 FROM sessions s
	WHERE s.session_id = $1 AND t.session_id = s.session_id AND t.tool_call_id = ANY ($3) AND t.state = 'PENDING' AND t.remote IS NOT NULL AND NOT ` + heldSQL("s") + `
	RETURNING t.tool_call_id`

// BeginCalls commits that the claim makes these remote calls now, each at most
// once ever: whoever finds one RUNNING that it has not begun itself must not make
// it. Approvals behind them are used up. It returns the calls that began: none of
// an agent that was halted since the claim. ErrLeaseLost: somebody else has
// claimed the session since; nothing is written.
func (s *Store) BeginCalls(ctx context.Context, claim *Claim, calls []harness.ToolCallID) ([]harness.ToolCallID, error) {
	var begun []harness.ToolCallID
	b := &pgx.Batch{}
	b.Queue(`SELECT fence_session($1, $2)`, claim.ID, claim.Token)
	b.Queue(beginCallsSQL, claim.ID, claim.Token, calls).Query(func(rows pgx.Rows) (err error) {
		begun, err = pgx.CollectRows(rows, pgx.RowTo[harness.ToolCallID])
		return err
	})
	b.Queue(`UPDATE approvals a SET consumed_at = now() FROM tool_calls t
		WHERE a.tool_call_id = t.tool_call_id AND t.tool_call_id = ANY ($3) AND t.session_id = $1 AND t.begun_token = $2 AND a.consumed_at IS NULL`,
		claim.ID, claim.Token, calls)
	if err := s.batch(ctx, b, nil); err != nil {
		return nil, err
	}
	return begun, nil
}
