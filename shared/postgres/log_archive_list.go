package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness/view"
)

// LogArchives returns up to limit verified objects that may have entries of a list
// of logs behind the place after, the one with the newest entry first; behind is
// the last of those asked for before, or the zero one.
func (s *Store) LogArchives(ctx context.Context, f LogFilter, after view.Place, behind LogArchive, limit int) ([]LogArchive, error) {
	q := &query{where: []string{"kind = 'ENTRIES'", "state = 'VERIFIED'"}}
	q.equal("agent_name", string(f.Agent))
	if f.Session != "" {
		q.and("archived_sessions @> ARRAY[" + q.arg(f.Session) + "]::text[]")
	}
	if err := q.behindNumber("first_at", "first_log_id", after); err != nil {
		return nil, err
	}
	if !f.Since.IsZero() {
		q.and("last_at >= " + q.arg(f.Since))
	}
	if !f.Until.IsZero() {
		q.and("first_at < " + q.arg(f.Until))
	}
	if behind.Key != "" {
		q.and("(last_at, last_log_id, object_key) < (" + q.arg(behind.Newest.At) + ", " + q.arg(behind.Newest.ID) + ", " + q.arg(behind.Key) + ")")
		q.and("last_at <= " + q.arg(behind.Newest.At)) // for the index
	}
	return list(ctx, s, `SELECT `+archiveColumns+` FROM log_archives WHERE `+q.sql()+` ORDER BY last_at DESC, last_log_id DESC, object_key DESC LIMIT `+q.arg(limit), q.args, readLogArchive)
}

// ArchiveSum is an object of the archive as its row knows it.
type ArchiveSum struct {
	Key    string
	State  ArchiveState
	SHA256 string
	Size   int64 // bytes
}

// ArchiveSums returns up to limit of them behind a key, in the order of the bytes
// of their keys, as a bucket lists them.
func (s *Store) ArchiveSums(ctx context.Context, after string, limit int) ([]ArchiveSum, error) {
	return list(ctx, s, `SELECT object_key, state, digest, size_bytes FROM log_archives WHERE object_key > $1 ORDER BY object_key LIMIT $2`,
		[]any{after, limit}, pgx.RowToStructByPos[ArchiveSum])
}

// ArchiveSum returns that of one object. harness.NotFound: there is no row.
func (s *Store) ArchiveSum(ctx context.Context, key string) (ArchiveSum, error) {
	return one(ctx, s, "object of the archive", `SELECT object_key, state, digest, size_bytes FROM log_archives WHERE object_key = $1`, []any{key}, pgx.RowToStructByPos[ArchiveSum])
}
