//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// openRows reaches the deployed database as its owner, through the API server.
func openRows(ctx context.Context, t *tunnel, dsn string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	var port uint16
	host := "127.0.0.1"
	if _, err := fmt.Sscanf(t.address(), host+":%d", &port); err != nil {
		return nil, err
	}
	config.ConnConfig.Host, config.ConnConfig.Port, config.ConnConfig.TLSConfig, config.ConnConfig.Fallbacks = host, port, nil, nil
	config.MaxConns = 4
	config.MaxConnLifetime = time.Minute // a tunnel that was made again leaves dead ones behind
	return pgxpool.NewWithConfig(ctx, config)
}

// execution is a command as the rows tell it.
type execution struct {
	ID        string
	Agent     string
	Command   string
	State     string
	Reason    string
	SandboxID *string
	Name      *string // of the sandbox
	UID       string
	ExitCode  *int
	Output    string
	CreatedAt time.Time
	StartedAt *time.Time
	EndedAt   *time.Time
}

const executionSQL = `SELECT e.execution_id, e.agent_name, e.command, e.state, e.reason, e.sandbox_id, s.sandbox_name, e.sandbox_uid, e.exit_code,
  coalesce((SELECT string_agg(convert_from(o.data, 'UTF8'), '' ORDER BY o.start_byte) FROM execution_output o WHERE o.execution_id = e.execution_id AND o.stream = 'stdout'), ''),
  e.created_at, e.started_at, e.ended_at
FROM executions e LEFT JOIN sandboxes s USING (sandbox_id) `

// executionWith returns the newest execution of an agent whose command holds a
// mark; nil: none yet. Those of an earlier run on the same deployment do not count.
func (s *system) executionWith(ctx context.Context, agent, mark string) (*execution, error) {
	rows, err := s.rows.Query(ctx, executionSQL+"WHERE e.agent_name = $1 AND position($2 IN e.command) > 0 AND e.created_at >= $3 ORDER BY e.seq DESC LIMIT 1", agent, mark, s.began)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[execution])
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// unfinished is what there still is to do, by name; empty when the system is at
// rest. outbox rows that are not due yet announce nothing.
func (s *system) unfinished(ctx context.Context) (string, error) {
	const sql = `
SELECT 'sessions in a working state', count(*) FROM sessions WHERE state NOT IN ('IDLE', 'BLOCKED', 'FAILED', 'COMPLETED', 'CANCELLED')
UNION ALL SELECT 'sessions due', count(*) FROM sessions WHERE due_at IS NOT NULL
UNION ALL SELECT 'messages not answered', count(*) FROM messages WHERE state <> 'DONE'
UNION ALL SELECT 'tool calls without a result', count(*) FROM tool_calls WHERE state IN ('PENDING', 'RUNNING')
UNION ALL SELECT 'executions open', count(*) FROM executions WHERE ended_at IS NULL
UNION ALL SELECT 'replies open', count(*) FROM replies WHERE state IN ('PLANNED', 'UNKNOWN')
UNION ALL SELECT 'leases held', (SELECT count(*) FROM sessions WHERE lease_owner IS NOT NULL) + (SELECT count(*) FROM executions WHERE lease_owner IS NOT NULL)
    + (SELECT count(*) FROM replies WHERE lease_owner IS NOT NULL)
UNION ALL SELECT 'outbox rows', count(*) FROM outbox
UNION ALL SELECT 'sandboxes not GONE', count(*) FROM sandboxes WHERE state <> 'GONE'`
	rows, err := s.rows.Query(ctx, sql)
	if err != nil {
		return "", err
	}
	var left []string
	var name string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&name, &n}, func() error {
		if n > 0 {
			left = append(left, fmt.Sprintf("%s: %d", name, n))
		}
		return nil
	})
	return strings.Join(left, ", "), err
}

// sweeps counts the passes of the sweep that were through.
func (s *system) sweeps(ctx context.Context) (int, error) {
	var n int
	err := s.rows.QueryRow(ctx, "SELECT count(*) FROM sweep_reports").Scan(&n)
	return n, err
}
