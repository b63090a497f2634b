package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// ArchiveState says how far an object of the archive is.
type ArchiveState string

// The states of an archive; 0017 says what each means.
const (
	ArchivePending  ArchiveState = "PENDING"
	ArchiveStored   ArchiveState = "STORED"
	ArchiveVerified ArchiveState = "VERIFIED"
	ArchiveRemoving ArchiveState = "REMOVING"
)

// LogDay is one day, in UTC, of the log entries of one agent.
type LogDay struct {
	Agent harness.AgentName
	Day   time.Time // its first moment
}

// LogPlace is where an entry is in the order of the log.
type LogPlace struct {
	At time.Time
	ID int64
}

// LogArchive is an object with log entries that Postgres keeps no more, or will not.
type LogArchive struct {
	Key   string
	State ArchiveState
	LogDay
	Part     int
	SHA256   string // of the object
	Size     int64  // of the object, in bytes
	Entries  int
	Oldest   LogPlace
	Newest   LogPlace
	Replaces string // the object whose place it takes; mostly empty
}

// logDaysOf is the SQL for the days of a key of the agent's spec.logs.
func logDaysOf(agent, key string, otherwise int) string {
	return fmt.Sprintf(`COALESCE((SELECT (r.spec->'logs'->>'%s')::int FROM agents a JOIN agent_revisions r USING (agent_name, revision) WHERE a.agent_name = %s), %d)`, key, agent, otherwise)
}

// leastDays is the SQL for the fewest of these days that any agent has: what is not
// so old is of no agent, and an index passes over it.
func leastDays(key string, otherwise int) string {
	return fmt.Sprintf(`(SELECT least(%d, min((r.spec->'logs'->>'%s')::int)) FROM agents a JOIN agent_revisions r USING (agent_name, revision) WHERE r.spec ? 'logs')`, otherwise, key)
}

const todaySQL = `(now() AT TIME ZONE 'UTC')::date`

// logDaysSQL yields each partition of the log and its day.
const logDaysSQL = `SELECT c.relname, to_date(right(c.relname, 8), 'YYYYMMDD') AS day, i.inhdetachpending
	FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'agent_execution_logs'::regclass AND c.relname ~ '_[0-9]{8}$'`

// logDaysDueSQL is the SQL for columns of each day, of alias d, of which an agent, of
// alias g, has entries that are older than it keeps them in Postgres.
func logDaysDueSQL(columns string) string {
	const of = `agent_execution_logs l WHERE l.created_at >= d.day AT TIME ZONE 'UTC' AND l.created_at < (d.day + 1) AT TIME ZONE 'UTC'`
	// The agents of a day are found by one probe of its index each.
	return `WITH d AS (SELECT p.day::timestamp AS day FROM (` + logDaysSQL + `) p
			WHERE NOT p.inhdetachpending AND p.day + 1 + ` + leastDays("retentionDays", harness.DefaultRetentionDays) + ` <= ` + todaySQL + `)
		SELECT ` + columns + ` FROM (SELECT day::date AS day FROM d) d CROSS JOIN LATERAL (
			WITH RECURSIVE g AS (
				(SELECT l.agent_name FROM ` + of + ` ORDER BY l.agent_name LIMIT 1)
				UNION ALL
				SELECT (SELECT l.agent_name FROM ` + of + ` AND l.agent_name > g.agent_name ORDER BY l.agent_name LIMIT 1) FROM g WHERE g.agent_name IS NOT NULL
			) SELECT agent_name FROM g WHERE agent_name IS NOT NULL) g
		WHERE d.day + 1 + ` + logDaysOf("g.agent_name", "retentionDays", harness.DefaultRetentionDays) + ` <= ` + todaySQL
}

// LogDaysDue returns up to limit days, oldest first, of which an agent has entries
// that are older than it keeps them in Postgres.
func (s *Store) LogDaysDue(ctx context.Context, limit int) ([]LogDay, error) {
	return list(ctx, s, logDaysDueSQL(`g.agent_name, d.day AT TIME ZONE 'UTC'`)+`
		ORDER BY d.day, g.agent_name LIMIT $1`, []any{limit}, func(row pgx.CollectableRow) (LogDay, error) {
		var d LogDay
		return d, row.Scan(&d.Agent, &d.Day)
	})
}

const archiveColumns = `object_key, state, agent_name, day::timestamp AT TIME ZONE 'UTC', part, digest, size_bytes, entry_count,
	first_at, first_log_id, last_at, last_log_id, COALESCE(replaces, '')`

func readLogArchive(row pgx.CollectableRow) (LogArchive, error) {
	var a LogArchive
	err := row.Scan(&a.Key, &a.State, &a.Agent, &a.Day, &a.Part, &a.SHA256, &a.Size, &a.Entries, &a.Oldest.At, &a.Oldest.ID, &a.Newest.At, &a.Newest.ID, &a.Replaces)
	return a, err
}

// NextLogPart returns the part of the day that is not done yet, with its Key, or
// the number of the next one.
func (s *Store) NextLogPart(ctx context.Context, d LogDay) (LogArchive, error) {
	open, err := list(ctx, s, `SELECT `+archiveColumns+` FROM log_archives
		WHERE kind = 'ENTRIES' AND agent_name = $1 AND day = $2 AND state IN ('PENDING', 'STORED') AND replaces IS NULL ORDER BY part LIMIT 1`,
		[]any{d.Agent, day(d.Day)}, readLogArchive)
	if err != nil || len(open) > 0 {
		return slices.Concat(open, []LogArchive{{}})[0], err
	}
	a := LogArchive{LogDay: d}
	a.Part, err = s.nextPart(ctx, d)
	return a, err
}

// nextPart counts objects that are to be removed too: a part has its number for good.
func (s *Store) nextPart(ctx context.Context, d LogDay) (part int, err error) {
	err = s.pool.QueryRow(ctx, `SELECT COALESCE(max(part), 0) + 1 FROM log_archives WHERE kind = 'ENTRIES' AND agent_name = $1 AND day = $2`, d.Agent, day(d.Day)).Scan(&part)
	return part, translate(err)
}

func day(at time.Time) string { return at.UTC().Format(time.DateOnly) }

// ReadLogDay calls take with the entries of a day of an agent, newest first, until
// it returns false or limit have come. It is read while take works, so take is
// short and talks to nobody.
func (s *Store) ReadLogDay(ctx context.Context, d LogDay, limit int, take func(view.LogEntry) (bool, error)) error {
	rows, err := s.pool.Query(ctx, `SELECT `+logColumns+` FROM agent_execution_logs
		WHERE agent_name = $1 AND created_at >= $2 AND created_at < $3`+newestLog+` LIMIT $4`, d.Agent, d.Day, d.Day.AddDate(0, 0, 1), limit)
	if err != nil {
		return translate(err)
	}
	defer rows.Close()
	for rows.Next() {
		var v view.LogEntry
		if err := rows.Scan(&v.ID, &v.Agent, &v.Session, &v.Node, &v.Level, &v.Message, &v.GuardrailResult, &v.TraceID, &v.CreatedAt); err != nil {
			return translate(err)
		}
		if more, err := take(v); err != nil || !more {
			return err
		}
	}
	return translate(rows.Err())
}

// errArchiveMoved says that an archive is not as its caller thinks: somebody else
// has it, or entries came late.
var errArchiveMoved = errors.New("the archive changed meanwhile")

// PlanLogArchive writes that the object is about to be put, before it is. An older
// plan of the same part that has other bytes is given up. harness.Conflict: the
// part is done, or its object is being removed; the next look knows more.
func (s *Store) PlanLogArchive(ctx context.Context, a LogArchive, sessions []harness.SessionID) error {
	b := &pgx.Batch{}
	b.Queue(`UPDATE log_archives SET state = 'REMOVING', reason = 'its entries were others when it was made again', updated_at = now()
		WHERE kind = 'ENTRIES' AND agent_name = $1 AND day = $2 AND part = $3 AND state IN ('PENDING', 'STORED') AND object_key <> $4`, a.Agent, day(a.Day), a.Part, a.Key)
	b.Queue(`INSERT INTO log_archives AS l (object_key, kind, agent_name, state, digest, size_bytes, day, part, entry_count, first_at, first_log_id, last_at, last_log_id, replaces, archived_sessions)
		VALUES ($1, 'ENTRIES', $2, 'PENDING', $3, $4, $5, $6, $7, $8, $9, $10, $11, NULLIF($12, ''), $13)
		ON CONFLICT (object_key) DO UPDATE SET state = 'PENDING', updated_at = now() WHERE l.state IN ('PENDING', 'STORED')`,
		a.Key, a.Agent, a.SHA256, a.Size, day(a.Day), a.Part, a.Entries, a.Oldest.At, a.Oldest.ID, a.Newest.At, a.Newest.ID, a.Replaces, sessions)
	return s.batch(ctx, b, func(results pgx.BatchResults) error {
		if _, err := results.Exec(); err != nil {
			return err
		}
		tag, err := results.Exec()
		if err == nil && tag.RowsAffected() == 0 {
			err = harness.Wrap(harness.Conflict, errArchiveMoved, "the part of the archive is another's")
		}
		return err
	})
}

// ArchivePut writes that the object was put. harness.Conflict: it is to be removed.
func (s *Store) ArchivePut(ctx context.Context, key string) error {
	return s.archiveRow(ctx, `UPDATE log_archives SET state = 'STORED', reason = '', updated_at = now() WHERE object_key = $1 AND state IN ('PENDING', 'STORED')`, key)
}

// ArchiveFailed writes why an object is not further, and that it is to be put again.
func (s *Store) ArchiveFailed(ctx context.Context, key, reason string) error {
	return s.archiveRow(ctx, `UPDATE log_archives SET state = 'PENDING', reason = $2, updated_at = now() WHERE object_key = $1 AND state IN ('PENDING', 'STORED')`, key, clip(reason))
}

func (s *Store) archiveRow(ctx context.Context, sql string, args ...any) error {
	n, err := s.count(ctx, sql, args...)
	if err == nil && n == 0 {
		err = harness.Wrap(harness.Conflict, errArchiveMoved, "the object of the archive is another's")
	}
	return err
}

// LogArchiveVerified writes that the object was read back and is right, and deletes
// the entries that it holds, in one transaction. done is false, and the object is
// to be removed, when the entries are not those it holds any more: some came late,
// or were forgotten.
func (s *Store) LogArchiveVerified(ctx context.Context, a LogArchive) (done bool, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE log_archives SET state = 'VERIFIED', reason = '', updated_at = now() WHERE object_key = $1 AND state = 'STORED'`, a.Key)
		if err == nil && tag.RowsAffected() == 0 {
			err = harness.Wrap(harness.Conflict, errArchiveMoved, "the object of the archive is another's")
		}
		if err != nil {
			return err
		}
		tag, err = tx.Exec(ctx, `DELETE FROM agent_execution_logs WHERE agent_name = $1 AND created_at >= $2 AND created_at <= $4
			AND (created_at, log_id) >= ($2, $3::bigint) AND (created_at, log_id) <= ($4, $5::bigint)`, a.Agent, a.Oldest.At, a.Oldest.ID, a.Newest.At, a.Newest.ID)
		if err == nil && tag.RowsAffected() != int64(a.Entries) {
			err = errOtherEntries
		}
		return err
	})
	if errors.Is(err, errOtherEntries) {
		_, err = s.count(ctx, `UPDATE log_archives SET state = 'REMOVING', reason = 'entries came late', updated_at = now() WHERE object_key = $1 AND state = 'STORED'`, a.Key)
		return false, err
	}
	return err == nil, translate(err)
}

var errOtherEntries = errors.New("other entries than the object holds")

// ArchivesToRemove returns up to limit objects that are to be deleted: those given
// up or replaced, and those that are older than their agent keeps them.
func (s *Store) ArchivesToRemove(ctx context.Context, limit int) ([]string, error) {
	old := func(at string) string {
		return at + ` + 1 + ` + logDaysOf("l.agent_name", "retentionDays", harness.DefaultRetentionDays) + ` + ` + logDaysOf("l.agent_name", "archiveDays", harness.DefaultArchiveDays) + ` <= ` + todaySQL
	}
	return list(ctx, s, `UPDATE log_archives SET state = 'REMOVING', updated_at = now() WHERE object_key IN (
			SELECT object_key FROM log_archives WHERE state = 'REMOVING'
			UNION ALL SELECT l.object_key FROM log_archives l WHERE l.kind = 'ENTRIES' AND l.state = 'VERIFIED'
				AND l.last_at < now() - `+leastDays("archiveDays", harness.DefaultArchiveDays)+` * interval '1 day' AND `+old("l.day")+`
			UNION ALL SELECT l.object_key FROM log_archives l JOIN executions e USING (execution_id) WHERE l.kind = 'OUTPUT' AND l.state = 'VERIFIED'
				AND l.created_at < now() - `+leastDays("archiveDays", harness.DefaultArchiveDays)+` * interval '1 day' + interval '1 day' AND `+old("(e.ended_at AT TIME ZONE 'UTC')::date")+`
			LIMIT $1) RETURNING object_key`, []any{limit}, pgx.RowTo[string])
}

// ArchiveRemoved forgets an object that is deleted.
func (s *Store) ArchiveRemoved(ctx context.Context, key string) error {
	_, err := s.count(ctx, `DELETE FROM log_archives WHERE object_key = $1 AND state = 'REMOVING'`, key)
	return err
}

// EmptyLogDays returns up to limit days before yesterday that have a partition and
// no entry in it, and those whose partition was being dropped.
func (s *Store) EmptyLogDays(ctx context.Context, limit int) ([]time.Time, error) {
	type partition struct {
		name string
		day  time.Time
		gone bool
	}
	all, err := list(ctx, s, `SELECT relname, day, inhdetachpending FROM (`+logDaysSQL+`) p WHERE day < `+todaySQL+` - 1
		UNION ALL SELECT c.relname, to_date(right(c.relname, 8), 'YYYYMMDD'), true FROM pg_class c
			WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND c.relname ~ '^agent_execution_logs_[0-9]{8}$'
			  AND NOT EXISTS (SELECT 1 FROM pg_inherits i WHERE i.inhrelid = c.oid)
		ORDER BY 2`, nil, func(row pgx.CollectableRow) (partition, error) {
		var p partition
		return p, row.Scan(&p.name, &p.day, &p.gone)
	})
	if err != nil {
		return nil, err
	}
	var days []time.Time
	for _, p := range all {
		if len(days) == limit {
			break
		}
		empty := p.gone
		if !empty {
			if err := s.pool.QueryRow(ctx, `SELECT NOT EXISTS (SELECT 1 FROM `+pgx.Identifier{p.name}.Sanitize()+`)`).Scan(&empty); err != nil {
				return days, translate(err)
			}
		}
		if empty {
			days = append(days, p.day)
		}
	}
	return days, nil
}

// DropLogDay drops the partition of a day: it detaches it, beside whoever reads and
// writes the log, and then drops the table. An entry that was committed meanwhile
// waits in the overflow table, and is archived in turn. What was interrupted before
// goes on where it was.
func (s *Store) DropLogDay(ctx context.Context, at time.Time) error {
	name := pgx.Identifier{"agent_execution_logs_" + at.UTC().Format("20060102")}.Sanitize()
	var attached, pending bool
	err := s.pool.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM pg_inherits WHERE inhrelid = to_regclass($1)), EXISTS (SELECT 1 FROM pg_inherits WHERE inhrelid = to_regclass($1) AND inhdetachpending)`, name).Scan(&attached, &pending)
	if err == nil && attached {
		how := ` CONCURRENTLY`
		if pending {
			how = ` FINALIZE`
		}
		_, err = s.pool.Exec(ctx, `ALTER TABLE agent_execution_logs DETACH PARTITION `+name+how, pgx.QueryExecModeExec)
	}
	if err != nil {
		return translate(err)
	}
	return translate(pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		for _, sql := range []string{
			`LOCK TABLE ` + name + ` IN ACCESS EXCLUSIVE MODE`,
			`INSERT INTO agent_execution_logs_overflow SELECT * FROM ` + name,
			`DROP TABLE ` + name,
		} {
			if _, err := tx.Exec(ctx, sql, pgx.QueryExecModeExec); err != nil {
				return err
			}
		}
		return nil
	}))
}
