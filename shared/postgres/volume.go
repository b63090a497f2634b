package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// UnknownSessions returns which of ids do not exist.
func (s *Store) UnknownSessions(ctx context.Context, ids []harness.SessionID) ([]harness.SessionID, error) {
	return list(ctx, s, `SELECT asked.id FROM unnest($1::text[]) AS asked(id) WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE s.session_id = asked.id) ORDER BY asked.id`,
		[]any{ids}, pgx.RowTo[harness.SessionID])
}

// EndedSessions returns which of ids take no further message: those that have
// ended and those that do not exist. One whose last turn failed or was blocked
// is open.
func (s *Store) EndedSessions(ctx context.Context, ids []harness.SessionID) ([]harness.SessionID, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT asked.id FROM unnest($1::text[]) AS asked(id) LEFT JOIN sessions s ON s.session_id = asked.id
		WHERE s.session_id IS NULL OR s.state IN ('COMPLETED', 'CANCELLED') ORDER BY asked.id`, ids)
	if err != nil {
		return nil, translate(err)
	}
	ended, err := pgx.CollectRows(rows, pgx.RowTo[harness.SessionID])
	return ended, translate(err)
}
