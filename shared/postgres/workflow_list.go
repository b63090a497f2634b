package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

const visitColumns = `v.visit_id, v.node_id, v.visit, v.state, v.attempts, v.arrivals, v.input, v.output, v.reason, COALESCE(v.child_session, ''), v.due_at,
	v.created_at, v.started_at, v.ended_at`

func readVisitView(row pgx.CollectableRow) (view.Visit, error) {
	var v view.Visit
	err := row.Scan(&v.ID, &v.Node, &v.Number, &v.State, &v.Attempts, &v.Arrivals, &v.Input, &v.Output, &v.Reason, &v.Session, &v.DueAt,
		&v.CreatedAt, &v.StartedAt, &v.EndedAt)
	return v, err
}

// Visits returns the visits of a run, in the order in which they began. A run has
// at most a thousand.
func (s *Store) Visits(ctx context.Context, run harness.SessionID) ([]view.Visit, error) {
	return list(ctx, s, `SELECT `+visitColumns+` FROM node_visits v WHERE v.session_id = $1 ORDER BY v.seq`, []any{run}, readVisitView)
}
