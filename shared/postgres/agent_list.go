package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// AgentRow is how an agent stands and what it does now.
type AgentRow struct {
	AgentStatus
	Sessions  int            // that have something to answer
	Sandboxes int            // that count against the cap
	Execution *LastExecution // nil: none yet
	Halted    string         // why nobody works for it; empty: it is not halted
	UpdatedAt time.Time      // when phase or reason changed last
}

// AgentRows returns how agents stand, by name: those named, or all of them.
// Deleted ones are left out.
func (s *Store) AgentRows(ctx context.Context, names ...harness.AgentName) ([]AgentRow, error) {
	return list(ctx, s, `
		SELECT a.agent_name, a.phase, a.revision, a.reason, `+activeSQL+`, x.state, x.at, `+haltSQL+`, a.updated_at
		FROM agents a LEFT JOIN LATERAL (`+newestExecutionSQL+`) x ON true
		WHERE a.phase <> 'DELETED' AND ($1::text[] IS NULL OR a.agent_name = ANY ($1)) ORDER BY a.agent_name`, []any{names}, func(row pgx.CollectableRow) (AgentRow, error) {
		var v AgentRow
		var state *harness.ExecutionState
		var at *time.Time
		err := row.Scan(&v.Name, &v.Phase, &v.Revision, &v.Reason, &v.Sessions, &v.Sandboxes, &state, &at, &v.Halted, &v.UpdatedAt)
		if state != nil {
			v.Execution = &LastExecution{State: *state, At: *at}
		}
		return v, err
	})
}
