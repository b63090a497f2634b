package postgres

import (
	"context"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// ToolList is how far the newest command came by which a session asked a server what
// it offers.
type ToolList struct {
	State    harness.ExecutionState // empty: there was none
	ExitCode *int
	Reason   string
	EndedAt  time.Time
	Stdout   []byte // once it has ended: what is stored of it
	Whole    bool   // Stdout is all that was printed
}

// ToolList returns the newest of the claimed session for this command and sandbox.
func (s *Store) ToolList(ctx context.Context, session harness.SessionID, command string, spec harness.SandboxSpec) (ToolList, error) {
	var l ToolList
	var ended *time.Time
	err := s.pool.QueryRow(ctx, `SELECT e.state, e.exit_code, e.reason, e.ended_at, COALESCE(o.stdout, ''), e.stdout_bytes = COALESCE(length(o.stdout), 0)
		FROM executions e LEFT JOIN LATERAL (SELECT string_agg(p.data, ''::bytea ORDER BY p.start_byte) AS stdout FROM execution_output p
			WHERE e.ended_at IS NOT NULL AND p.execution_id = e.execution_id AND p.stream = 'stdout') o ON true
		WHERE e.session_id = $1 AND e.cause = 'TOOL_LIST' AND e.command = $2 AND e.spec_digest = $3 ORDER BY e.execution_id DESC LIMIT 1`,
		session, command, spec.Digest()).Scan(&l.State, &l.ExitCode, &l.Reason, &ended, &l.Stdout, &l.Whole)
	if ended != nil {
		l.EndedAt = *ended
	}
	if err = translate(err); harness.KindOf(err) == harness.NotFound {
		return ToolList{}, nil
	}
	return l, err
}

// lists has servers asked what they offer: each by a command whose cause is itself.
func (w *stepWriter) lists() {
	for i := range w.c.Lists {
		x := &w.c.Lists[i]
		w.execution(harness.CauseToolList, string(x.ID), x)
	}
}
