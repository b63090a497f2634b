package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// keptOutput is how much of a stream stays in Postgres for good, in bytes: the
// ends that a model may see. What is no longer is not archived.
const keptOutput = 3 * OutputWindow

// OutputArchive is an object with a stretch of what a command printed.
type OutputArchive struct {
	Key        string
	State      ArchiveState
	Agent      harness.AgentName
	Execution  harness.ExecutionID
	Stream     string
	Start, End int64 // the first byte, and the one behind the last
	SHA256     string
	Size       int64 // of the object, in bytes
}

// OutputDue is a command that ended longer ago than its agent keeps output in Postgres.
type OutputDue struct {
	Execution harness.ExecutionID
	Agent     harness.AgentName
}

// OutputsDue returns up to limit of them, the oldest first.
func (s *Store) OutputsDue(ctx context.Context, limit int) ([]OutputDue, error) {
	return list(ctx, s, `SELECT e.execution_id, e.agent_name FROM executions e WHERE e.output_archived_at IS NULL AND e.ended_at IS NOT NULL
		AND e.ended_at < now() - `+leastDays("retentionDays", harness.DefaultRetentionDays)+` * interval '1 day'
		AND e.ended_at < now() - `+logDaysOf("e.agent_name", "retentionDays", harness.DefaultRetentionDays)+` * interval '1 day' ORDER BY e.ended_at LIMIT $1`,
		[]any{limit}, pgx.RowToStructByPos[OutputDue])
}

const outputArchiveColumns = `object_key, state, agent_name, execution_id, stream, start_byte, end_byte, digest, size_bytes`

// OutputParts returns the objects with output of a command, in order per stream,
// without those that are to be removed.
func (s *Store) OutputParts(ctx context.Context, id harness.ExecutionID) ([]OutputArchive, error) {
	return list(ctx, s, `SELECT `+outputArchiveColumns+` FROM log_archives
		WHERE kind = 'OUTPUT' AND execution_id = $1 AND state <> 'REMOVING' ORDER BY stream, start_byte`, []any{id}, pgx.RowToStructByPos[OutputArchive])
}

// StoredOutput returns what is stored of a stream from a byte on, up to limit
// bytes and without a gap, and where that begins. Nothing where the stream is no
// longer than what stays.
func (s *Store) StoredOutput(ctx context.Context, id harness.ExecutionID, stream string, from int64, limit int) (start int64, data []byte, err error) {
	rows, err := s.pool.Query(ctx, `SELECT greatest(start_byte, $3), substr(data, greatest(1, $3 - start_byte + 1)::int) FROM execution_output o
		WHERE execution_id = $1 AND stream = $2 AND start_byte + length(data) > $3
		  AND (SELECT max(start_byte + length(data)) FROM execution_output WHERE execution_id = $1 AND stream = $2) > $4 ORDER BY start_byte`, id, stream, from, keptOutput)
	if err != nil {
		return 0, nil, translate(err)
	}
	defer rows.Close()
	for rows.Next() && len(data) < limit {
		var at int64
		var piece []byte
		if err := rows.Scan(&at, &piece); err != nil {
			return 0, nil, translate(err)
		}
		if data == nil {
			start = at
		} else if at != start+int64(len(data)) {
			break
		}
		data = append(data, piece[:min(len(piece), limit-len(data))]...)
	}
	rows.Close()
	return start, data, translate(rows.Err())
}

// PlanOutputArchive writes that the object is about to be put, before it is.
// harness.Conflict: it is being removed, or done.
func (s *Store) PlanOutputArchive(ctx context.Context, a OutputArchive) error {
	return s.archiveRow(ctx, `WITH other AS (
			UPDATE log_archives SET state = 'REMOVING', reason = 'its bytes were others when it was made again', updated_at = now()
			WHERE kind = 'OUTPUT' AND execution_id = $3 AND stream = $4 AND start_byte = $5 AND state IN ('PENDING', 'STORED') AND object_key <> $1
		) INSERT INTO log_archives AS l (object_key, kind, agent_name, state, execution_id, stream, start_byte, end_byte, digest, size_bytes)
		VALUES ($1, 'OUTPUT', $2, 'PENDING', $3, $4, $5, $6, $7, $8)
		ON CONFLICT (object_key) DO UPDATE SET state = 'PENDING', updated_at = now() WHERE l.state IN ('PENDING', 'STORED')`,
		a.Key, a.Agent, a.Execution, a.Stream, a.Start, a.End, a.SHA256, a.Size)
}

// OutputArchiveVerified writes that the object was read back and is right.
func (s *Store) OutputArchiveVerified(ctx context.Context, key string) error {
	return s.archiveRow(ctx, `UPDATE log_archives SET state = 'VERIFIED', reason = '', updated_at = now() WHERE object_key = $1 AND kind = 'OUTPUT' AND state IN ('STORED', 'VERIFIED')`, key)
}

// OutputArchived deletes what verified objects have of the output of a command,
// but for the ends that a model may see, and marks it seen to. harness.Conflict:
// they do not have all of it yet.
func (s *Store) OutputArchived(ctx context.Context, id harness.ExecutionID) error {
	return translate(pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE executions SET output_archived_at = now() WHERE execution_id = $1 AND output_archived_at IS NULL`, id); err != nil {
			return err
		}
		for _, stream := range []string{"stdout", "stderr"} {
			var n, stored, archived int64
			var head, tail []byte
			err := tx.QueryRow(ctx, fmt.Sprintf(`SELECT kept.n, kept.stored,
					(SELECT COALESCE(sum(end_byte - start_byte), 0)::bigint FROM log_archives WHERE kind = 'OUTPUT' AND state = 'VERIFIED' AND execution_id = $1 AND stream = $2),
					(SELECT string_agg(substr(data, 1, (%[1]d - start_byte)::int), ''::bytea ORDER BY start_byte) FROM execution_output WHERE execution_id = $1 AND stream = $2 AND start_byte < %[1]d),
					(SELECT string_agg(substr(data, greatest(1, kept.n - %[2]d - start_byte + 1)::int), ''::bytea ORDER BY start_byte) FROM execution_output
						WHERE execution_id = $1 AND stream = $2 AND start_byte + length(data) > kept.n - %[2]d)
				FROM (SELECT COALESCE(max(start_byte + length(data)), 0) AS n, COALESCE(sum(length(data)), 0)::bigint AS stored FROM execution_output
					WHERE execution_id = $1 AND stream = $2) kept`, 2*OutputWindow, OutputWindow), id, stream).Scan(&n, &stored, &archived, &head, &tail)
			if err != nil {
				return err
			}
			if n <= keptOutput {
				continue
			}
			if archived != stored {
				return harness.Wrap(harness.Conflict, errArchiveMoved, "the output is not all in the archive yet")
			}
			if _, err := tx.Exec(ctx, `DELETE FROM execution_output WHERE execution_id = $1 AND stream = $2`, id, stream); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `INSERT INTO execution_output (execution_id, stream, start_byte, data) VALUES ($1, $2, 0, $3), ($1, $2, $4, $5)`, id, stream, head, n-int64(len(tail)), tail); err != nil {
				return err
			}
		}
		return nil
	}))
}

// OutputArchiveAt returns the object that has the byte at offset of a stream, and
// how long that is. harness.NotFound: none has.
func (s *Store) OutputArchiveAt(ctx context.Context, id harness.ExecutionID, stream string, offset int64) (a OutputArchive, total int64, err error) {
	err = s.pool.QueryRow(ctx, `SELECT a.object_key, a.state, a.agent_name, a.execution_id, a.stream, a.start_byte, a.end_byte, a.digest, a.size_bytes,
			greatest(CASE WHEN a.stream = 'stdout' THEN e.stdout_bytes ELSE e.stderr_bytes END,
				(SELECT max(o.start_byte + length(o.data)) FROM execution_output o WHERE o.execution_id = a.execution_id AND o.stream = a.stream))
		FROM log_archives a JOIN executions e USING (execution_id)
		WHERE a.kind = 'OUTPUT' AND a.state = 'VERIFIED' AND a.execution_id = $1 AND a.stream = $2 AND a.start_byte <= $3 AND a.end_byte > $3 LIMIT 1`, id, stream, offset).
		Scan(&a.Key, &a.State, &a.Agent, &a.Execution, &a.Stream, &a.Start, &a.End, &a.SHA256, &a.Size, &total)
	return a, total, translate(err)
}
