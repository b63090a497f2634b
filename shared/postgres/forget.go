package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// Forget asks for the deletion of all that is of a person on a channel. One who is
// being forgotten already is not asked for again: that request is returned.
func (s *Store) Forget(ctx context.Context, channel harness.Channel, user string, by Audit) (view.Forget, error) {
	sum := sha256.Sum256([]byte(string(channel) + " " + user))
	digest := hex.EncodeToString(sum[:])
	id := harness.NewID("fgt", s.now())
	b := &pgx.Batch{}
	b.Queue(`INSERT INTO forget_requests (forget_request_id, channel, channel_user_id, person_digest, state, requested_by) VALUES ($1, $2, $3, $4, 'PENDING', $5)
		ON CONFLICT (person_digest) WHERE state <> 'DONE' DO NOTHING`, id, channel, user, digest, clip(by.Actor))
	// Whom it is about is in no audit row: it is to be forgotten.
	by.queue(b, auditSQL(2, "forget_requests", "forget_request_id", "NULL::jsonb", "jsonb_build_object('state', state, 'channel', channel)")+` AND forget_request_id = $1`, id)
	b.Queue(`SELECT forget_request_id FROM forget_requests WHERE person_digest = $1 ORDER BY (state = 'DONE'), created_at DESC LIMIT 1`, digest).
		QueryRow(func(row pgx.Row) error { return row.Scan(&id) })
	if err := s.batch(ctx, b, nil); err != nil {
		return view.Forget{}, err
	}
	return s.GetForget(ctx, id)
}

const forgetColumns = `forget_request_id, channel, state, reason, requested_by, report, created_at, ended_at`

func readForget(row pgx.CollectableRow) (view.Forget, error) {
	var f view.Forget
	if err := row.Scan(&f.ID, &f.Channel, &f.State, &f.Reason, &f.RequestedBy, &f.Counts, &f.CreatedAt, &f.EndedAt); err != nil {
		return f, err
	}
	if f.Left = []string{}; f.State == view.ForgetDone {
		f.Left = forgetLeaves
		if f.Counts["emptied"] > 0 || f.Counts["shared"] > 0 {
			f.Left = append([]string{"conversations that others write in too: what the person wrote there is emptied, answers to it are kept"}, f.Left...)
		}
	}
	return f, nil
}

// forgetLeaves is what every request leaves, and why.
var forgetLeaves = []string{
	"audit_log: what operators did is kept; it has no messages",
	"inbox: ids of updates, so that a repeat of the provider starts nothing; deleted after 30 days",
	"agents and workflows: a person whom their author named there stays named",
	"backups, and what the channel's provider and the model's provider keep",
}

// GetForget returns a request. harness.NotFound: there is none.
func (s *Store) GetForget(ctx context.Context, id string) (view.Forget, error) {
	return one(ctx, s, "request to forget", `SELECT `+forgetColumns+` FROM forget_requests WHERE forget_request_id = $1`, []any{id}, readForget)
}

// ListForgets returns up to limit requests behind after, newest first.
func (s *Store) ListForgets(ctx context.Context, after view.Place, limit int) ([]view.Forget, error) {
	q := &query{}
	q.behind("forget_request_id", after)
	return list(ctx, s, `SELECT `+forgetColumns+` FROM forget_requests WHERE `+q.sql()+` ORDER BY forget_request_id DESC LIMIT `+q.arg(limit), q.args, readForget)
}

// ForgetsOpen returns up to limit requests that are not done, the oldest first.
func (s *Store) ForgetsOpen(ctx context.Context, limit int) ([]string, error) {
	return list(ctx, s, `SELECT forget_request_id FROM forget_requests WHERE state <> 'DONE' ORDER BY updated_at LIMIT $1`, []any{limit}, pgx.RowTo[string])
}

// ForgetBegin finds what a request is about and ends what runs of it, once.
func (s *Store) ForgetBegin(ctx context.Context, id string) error {
	_, err := s.count(ctx, `SELECT forget_begin($1)`, id)
	return err
}

const forgetWhole = `SELECT session_id FROM forget_sessions WHERE forget_request_id = $1 AND whole`

// ForgetWaits says how many commands, sandboxes, volumes and files that were about to
// be put of a request have not ended.
func (s *Store) ForgetWaits(ctx context.Context, id string) (int, error) {
	var n int
	err := s.pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM executions WHERE session_id IN (`+forgetWhole+`) AND ended_at IS NULL)
		+ (SELECT count(*) FROM sandboxes WHERE session_id IN (`+forgetWhole+`) AND state <> 'GONE')
		+ (SELECT count(*) FROM outside_objects WHERE session_id IN (`+forgetWhole+`) AND state <> 'GONE')`, id).Scan(&n)
	return n, translate(err)
}

// ForgetReason writes why a request does not go on.
func (s *Store) ForgetReason(ctx context.Context, id, reason string) error {
	_, err := s.count(ctx, `UPDATE forget_requests SET reason = $2, updated_at = now() WHERE forget_request_id = $1 AND state <> 'DONE'`, id, clip(reason))
	return err
}

// ForgetFile is an attachment whose object is to be deleted.
type ForgetFile struct {
	ID  harness.AttachmentID
	Key string
}

// ForgetFiles returns up to limit files of a request that have an object.
func (s *Store) ForgetFiles(ctx context.Context, id string, limit int) ([]ForgetFile, error) {
	return list(ctx, s, `SELECT a.attachment_id, a.object_key FROM forget_sessions f JOIN attachments a USING (session_id)
		WHERE f.forget_request_id = $1 AND a.object_key <> '' AND (f.whole OR EXISTS (SELECT 1 FROM messages m JOIN forget_requests r ON r.forget_request_id = $1
			WHERE m.message_id = a.message_id AND m.direction = 'INBOUND' AND m.channel_user_id = r.channel_user_id)) LIMIT $2`,
		[]any{id, limit}, pgx.RowToStructByPos[ForgetFile])
}

// ForgetFileGone writes that the object of a file is deleted.
func (s *Store) ForgetFileGone(ctx context.Context, id string, file harness.AttachmentID) error {
	return s.forgetCounting(ctx, id, "objects_deleted", `UPDATE attachments SET state = 'FAILED', reason = 'forgotten', object_key = '', updated_at = now() WHERE attachment_id = $1 AND object_key <> ''`, file)
}

// ForgetOutput marks the archived output of a request as to be removed, and returns
// how many objects are left of it.
func (s *Store) ForgetOutput(ctx context.Context, id string) (left int, err error) {
	if err := s.forgetCounting(ctx, id, "objects_deleted", `UPDATE log_archives SET state = 'REMOVING', reason = 'forgotten', updated_at = now()
		WHERE kind = 'OUTPUT' AND state <> 'REMOVING' AND execution_id IN (SELECT execution_id FROM executions WHERE session_id IN (SELECT session_id FROM forget_sessions WHERE forget_request_id = $1 AND whole))`, id); err != nil {
		return 0, err
	}
	err = s.pool.QueryRow(ctx, `SELECT count(*) FROM log_archives a JOIN executions e USING (execution_id) WHERE e.session_id IN (`+forgetWhole+`)`, id).Scan(&left)
	return left, translate(err)
}

// ForgetLogs deletes the log entries of up to limit sessions of a request that have
// some from Postgres, and returns how many.
func (s *Store) ForgetLogs(ctx context.Context, id string, limit int) (int, error) {
	total := 0
	for _, table := range []string{"agent_execution_logs", "agent_execution_logs_overflow"} {
		n, err := s.forgetCounted(ctx, id, "agent_execution_logs", `DELETE FROM `+table+` WHERE session_id IN (SELECT f.session_id FROM forget_sessions f
			WHERE f.forget_request_id = $1 AND f.whole AND EXISTS (SELECT 1 FROM `+table+` l WHERE l.session_id = f.session_id) LIMIT $2)`, id, limit)
		if total += n; err != nil {
			return total, err
		}
	}
	return total, nil
}

func (s *Store) forgetCounting(ctx context.Context, id, what, sql string, args ...any) error {
	_, err := s.forgetCounted(ctx, id, what, sql, args...)
	return err
}

// forgetCounted runs a statement and adds the rows it changed to the report.
func (s *Store) forgetCounted(ctx context.Context, id, what, sql string, args ...any) (n int, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sql, args...)
		if n = int(tag.RowsAffected()); err == nil && n > 0 {
			_, err = tx.Exec(ctx, `UPDATE forget_requests SET report = jsonb_set(report, ARRAY[$2::text], to_jsonb(COALESCE((report->>$2)::bigint, 0) + $3)), updated_at = now() WHERE forget_request_id = $1`, id, what, int64(n))
		}
		return err
	})
	return n, translate(err)
}

// ForgetArchive returns an object with entries of a request's sessions, and the one
// that takes its place as far as that is; found is false when there is none. Objects
// that are on their way are given up: they are made again of what is left.
func (s *Store) ForgetArchive(ctx context.Context, id string) (old, next LogArchive, sessions []harness.SessionID, found bool, err error) {
	const of = `archived_sessions && ARRAY(SELECT f.session_id FROM forget_sessions f WHERE f.forget_request_id = $1 AND f.whole)`
	if _, err = s.count(ctx, `UPDATE log_archives SET state = 'REMOVING', reason = 'forgotten', updated_at = now() WHERE kind = 'ENTRIES' AND state IN ('PENDING', 'STORED') AND `+of, id); err != nil {
		return old, next, nil, false, err
	}
	all, err := list(ctx, s, `SELECT `+archiveColumns+` FROM log_archives WHERE kind = 'ENTRIES' AND state = 'VERIFIED' AND `+of+` ORDER BY object_key LIMIT 1`, []any{id}, readLogArchive)
	if err != nil || len(all) == 0 {
		return old, next, nil, false, err
	}
	old = all[0]
	if sessions, err = list(ctx, s, forgetWhole, []any{id}, pgx.RowTo[harness.SessionID]); err != nil {
		return old, next, nil, false, err
	}
	open, err := list(ctx, s, `SELECT `+archiveColumns+` FROM log_archives WHERE replaces = $1 AND state IN ('PENDING', 'STORED') LIMIT 1`, []any{old.Key}, readLogArchive)
	if err == nil && len(open) > 0 {
		return old, open[0], sessions, true, nil
	}
	next = LogArchive{LogDay: old.LogDay, Replaces: old.Key}
	if err == nil {
		next.Part, err = s.nextPart(ctx, old.LogDay)
	}
	return old, next, sessions, true, err
}

// ForgetReplaced puts a verified object in the place of the old one, which is to be
// removed; without a key the old one has no other entries.
func (s *Store) ForgetReplaced(ctx context.Context, id string, old LogArchive, key string) error {
	return translate(pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		what := "objects_deleted"
		if key != "" {
			what = "objects_rewritten"
			tag, err := tx.Exec(ctx, `UPDATE log_archives SET state = 'VERIFIED', reason = '', updated_at = now() WHERE object_key = $1 AND state = 'STORED'`, key)
			if err == nil && tag.RowsAffected() == 0 {
				err = harness.Wrap(harness.Conflict, errArchiveMoved, "the object of the archive is another's")
			}
			if err != nil {
				return err
			}
		}
		tag, err := tx.Exec(ctx, `UPDATE log_archives SET state = 'REMOVING', reason = 'forgotten', updated_at = now() WHERE object_key = $1 AND state = 'VERIFIED'`, old.Key)
		if err == nil && tag.RowsAffected() == 0 {
			err = harness.Wrap(harness.Conflict, errArchiveMoved, "the object of the archive is another's")
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE forget_requests SET report = jsonb_set(report, ARRAY[$2::text], to_jsonb(COALESCE((report->>$2)::bigint, 0) + 1)), updated_at = now() WHERE forget_request_id = $1`, id, what)
		return err
	}))
}

// ForgetSessions returns up to limit sessions of a request that are to be deleted,
// children before those they are part of.
func (s *Store) ForgetSessions(ctx context.Context, id string, limit int) ([]harness.SessionID, error) {
	return list(ctx, s, `SELECT s.session_id FROM sessions s WHERE s.session_id IN (`+forgetWhole+`) ORDER BY s.session_id DESC LIMIT $2`, []any{id, limit}, pgx.RowTo[harness.SessionID])
}

// ForgetSession deletes a session of a request.
func (s *Store) ForgetSession(ctx context.Context, id string, session harness.SessionID) error {
	_, err := s.count(ctx, `SELECT forget_session($1, $2)`, id, session)
	return err
}

// ForgetPerson deletes what is of the person and of no session, and ends the request.
func (s *Store) ForgetPerson(ctx context.Context, id string) error {
	_, err := s.count(ctx, `SELECT forget_person($1)`, id)
	return err
}
