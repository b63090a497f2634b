package postgres

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// ExecutionFilter says which executions a list holds. Zero fields: any.
type ExecutionFilter struct {
	Agent        harness.AgentName
	Session      harness.SessionID
	Sandbox      harness.SandboxID
	States       []harness.ExecutionState
	Since, Until time.Time
}

const executionColumns = `e.execution_id, e.session_id, e.agent_name, e.cause, e.cause_id, e.command, e.state, e.reason, COALESCE(e.sandbox_id, ''), e.exit_code,
	e.stdout_bytes, e.stderr_bytes, e.output_lost, e.created_at, e.started_at, e.ended_at`

func readExecution(row pgx.CollectableRow) (view.Execution, error) {
	var v view.Execution
	err := row.Scan(&v.ID, &v.Session, &v.Agent, &v.Cause, &v.CauseID, &v.Command, &v.State, &v.Reason, &v.Sandbox, &v.ExitCode,
		&v.StdoutBytes, &v.StderrBytes, &v.OutputLost, &v.CreatedAt, &v.StartedAt, &v.EndedAt)
	return v, err
}

// ListExecutions returns up to limit executions behind after, newest first. One
// that is committed late may come behind a page that was read: the next walk has it.
func (s *Store) ListExecutions(ctx context.Context, f ExecutionFilter, after view.Place, limit int) ([]view.Execution, error) {
	q := &query{}
	q.behind("e.execution_id", after)
	q.between("e.execution_id", "e.created_at", "exe", f.Since, f.Until)
	q.equal("e.session_id", string(f.Session))
	if f.Sandbox != "" { // those of a sandbox are among those of its session, which have an index
		sandbox := q.arg(f.Sandbox)
		q.and("e.sandbox_id = " + sandbox + " AND e.session_id = (SELECT b.session_id FROM sandboxes b WHERE b.sandbox_id = " + sandbox + ")")
	}
	if f.Session == "" && f.Sandbox == "" && (f.Agent != "" || len(f.States) > 0) {
		return s.executionsByState(ctx, f, q, limit)
	}
	if err := in(q, "e.state", f.States, harness.ExecutionState.Known); err != nil {
		return nil, err
	}
	q.equal("e.agent_name", string(f.Agent))
	return list(ctx, s, `SELECT `+executionColumns+` FROM executions e WHERE `+q.sql()+` ORDER BY e.execution_id DESC LIMIT `+q.arg(limit), q.args, readExecution)
}

// executionsByState merges the newest of each state of each agent: the index of
// those that have ended has both before the id, so that no list of few walks
// past many, and those that have not are few.
func (s *Store) executionsByState(ctx context.Context, f ExecutionFilter, q *query, limit int) ([]view.Execution, error) {
	agents := `agents a`
	if f.Agent != "" {
		agents = `(SELECT ` + q.arg(f.Agent) + `::text AS agent_name) a`
	}
	newest := ` AND ` + q.sql() + ` ORDER BY e.execution_id DESC LIMIT ` + q.arg(limit)
	of := []string{`SELECT e.execution_id FROM executions e WHERE e.agent_name = a.agent_name` + newest}
	if len(f.States) > 0 {
		of = nil
	}
	for _, state := range once(f.States) {
		quoted, err := quoted([]harness.ExecutionState{state}, harness.ExecutionState.Known)
		if err != nil {
			return nil, err
		}
		from := `executions e WHERE e.agent_name = a.agent_name AND e.state = ` + quoted
		if !state.Ended() { // all of them, and then in order
			from = `(SELECT o.execution_id, o.created_at FROM executions o WHERE o.agent_name = a.agent_name AND o.state = ` + quoted + ` OFFSET 0) e WHERE true`
		}
		of = append(of, `SELECT e.execution_id FROM `+from+newest)
	}
	return list(ctx, s, `SELECT `+executionColumns+` FROM (
			SELECT p.execution_id FROM `+agents+` CROSS JOIN LATERAL ((`+strings.Join(of, `) UNION ALL (`)+`)) p
			ORDER BY p.execution_id DESC LIMIT `+q.arg(limit)+`) p JOIN executions e USING (execution_id) ORDER BY e.execution_id DESC`, q.args, readExecution)
}

// GetExecution returns one execution. harness.NotFound: there is none.
func (s *Store) GetExecution(ctx context.Context, id harness.ExecutionID) (view.Execution, error) {
	return one(ctx, s, "execution", `SELECT `+executionColumns+` FROM executions e WHERE e.execution_id = $1`, []any{id}, readExecution)
}

// readOutputSQL says how stream $2 of execution $1 stands and joins what is
// stored of it from byte $3 on, at most $4 bytes.
const readOutputSQL = `
SELECT e.ended_at IS NOT NULL, CASE WHEN $2 = 'stdout' THEN e.stdout_bytes ELSE e.stderr_bytes END, CASE WHEN $2 = 'stdout' THEN e.stdout_tail ELSE e.stderr_tail END,
       (SELECT COALESCE(max(o.start_byte + length(o.data)), 0) FROM execution_output o WHERE o.execution_id = e.execution_id AND o.stream = $2),
       (SELECT string_agg(substr(o.data, greatest(1, $3 - o.start_byte + 1)::int, ($3 + $4 - greatest($3, o.start_byte))::int), ''::bytea ORDER BY o.start_byte)
        FROM execution_output o WHERE o.execution_id = e.execution_id AND o.stream = $2
          AND o.start_byte < $3 + $4 AND o.start_byte + length(o.data) > $3), e.output_archived_at IS NOT NULL
FROM executions e WHERE e.execution_id = $1`

// ReadOutput returns up to limit bytes of what a command printed to stream,
// stdout or stderr, from byte offset on. Where more was printed than is kept,
// the end is kept as well: behind what is stored, Offset jumps to it. An offset
// past the end gives no data. harness.NotFound: there is no such execution.
// ErrArchived: OutputArchiveAt says where this stretch is.
func (s *Store) ReadOutput(ctx context.Context, id harness.ExecutionID, stream string, offset int64, limit int) (view.Output, error) {
	if stream != "stdout" && stream != "stderr" || offset < 0 {
		return view.Output{}, harness.Errorf(harness.Invalid, "output is of stdout or stderr, from an offset of 0 or more")
	}
	type kept struct {
		ended, archived bool
		printed, stored int64
		tail, data      []byte
	}
	k, err := one(ctx, s, "execution", readOutputSQL, []any{id, stream, offset, int64(limit)}, func(row pgx.CollectableRow) (kept, error) {
		var k kept
		return k, row.Scan(&k.ended, &k.printed, &k.tail, &k.stored, &k.data, &k.archived)
	})
	if err != nil {
		return view.Output{}, err
	}
	if k.archived && k.stored > keptOutput { // both ends are here
		switch head := int64(2 * OutputWindow); {
		case offset < head:
			k.data = k.data[:min(int64(len(k.data)), head-offset)]
		case offset < k.stored-OutputWindow:
			return view.Output{}, ErrArchived
		}
	}
	o := view.Output{Stream: stream, Offset: offset, Data: k.data, Total: max(k.printed, k.stored)}
	if tail := o.Total - int64(len(k.tail)); len(k.data) == 0 && k.ended && offset >= k.stored && offset < o.Total {
		o.Offset = max(offset, tail)
		o.Data = k.tail[o.Offset-tail:]
		o.Data = o.Data[:min(len(o.Data), limit)]
	}
	o.Next = o.Offset + int64(len(o.Data))
	if o.Data == nil {
		o.Data = []byte{}
	}
	o.Ended = k.ended && o.Next >= o.Total
	return o, nil
}
