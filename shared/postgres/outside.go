package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// OutsideObject is the row of an object outside of Postgres that no other table
// has a row for.
type OutsideObject struct {
	Kind    harness.ObjectKind
	Name    string
	State   harness.ObjectState
	Agent   harness.AgentName
	Session harness.SessionID
	Age     time.Duration // since its state was last written

	Ended bool // its session takes no further message, or does not exist
	Used  bool // its session has a sandbox that is not GONE
}

const outsideColumns = `o.kind, o.object_name, o.state, o.agent_name, COALESCE(o.session_id, ''), extract(epoch FROM now() - o.updated_at)::float8,
	NOT EXISTS (SELECT 1 FROM sessions s WHERE s.session_id = o.session_id AND s.state NOT IN ('COMPLETED', 'CANCELLED')),
	EXISTS (SELECT 1 FROM sandboxes b WHERE b.session_id = o.session_id AND b.state <> 'GONE')`

func readOutside(row pgx.CollectableRow) (OutsideObject, error) {
	var o OutsideObject
	var age float64
	err := row.Scan(&o.Kind, &o.Name, &o.State, &o.Agent, &o.Session, &age, &o.Ended, &o.Used)
	o.Age = seconds(age)
	return o, err
}

// PlanVolume writes that the volume of a session is about to be made, before it
// is. One that is there is as it was.
func (s *Store) PlanVolume(ctx context.Context, name string, agent harness.AgentName, session harness.SessionID) error {
	_, err := s.count(ctx, `INSERT INTO outside_objects AS o (kind, object_name, state, agent_name, session_id) VALUES ('VOLUME', $1, 'PENDING', $2, $3)
		ON CONFLICT (kind, object_name) DO UPDATE SET state = CASE WHEN o.state = 'MADE' THEN 'MADE' ELSE 'PENDING' END, reason = '', agent_name = $2, session_id = $3, updated_at = now()`,
		name, agent, session)
	return err
}

// VolumeMade writes that the volume of a session is there, also of one that had
// no row.
func (s *Store) VolumeMade(ctx context.Context, name string, agent harness.AgentName, session harness.SessionID) error {
	_, err := s.count(ctx, `INSERT INTO outside_objects AS o (kind, object_name, state, agent_name, session_id) VALUES ('VOLUME', $1, 'MADE', $2, $3)
		ON CONFLICT (kind, object_name) DO UPDATE SET state = 'MADE', reason = '', updated_at = now() WHERE o.state IN ('PENDING', 'GONE')`, name, agent, session)
	return err
}

// OutsideVolumes returns the rows of volumes that are not GONE.
func (s *Store) OutsideVolumes(ctx context.Context) ([]OutsideObject, error) {
	return list(ctx, s, `SELECT `+outsideColumns+` FROM outside_objects o WHERE o.kind = 'VOLUME' AND o.state <> 'GONE' ORDER BY o.object_name`, nil, readOutside)
}

// RemoveVolume writes that a volume is about to be removed. ours is false when it
// may not be: its session is open, or has a sandbox.
func (s *Store) RemoveVolume(ctx context.Context, name string) (ours bool, err error) {
	n, err := s.count(ctx, `UPDATE outside_objects o SET state = 'REMOVING', reason = 'the session has ended', updated_at = now()
		WHERE o.kind = 'VOLUME' AND o.object_name = $1 AND o.state <> 'GONE'
		  AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.session_id = o.session_id AND s.state NOT IN ('COMPLETED', 'CANCELLED'))
		  AND NOT EXISTS (SELECT 1 FROM sandboxes b WHERE b.session_id = o.session_id AND b.state <> 'GONE')`, name)
	return n > 0, err
}

// OutsideGone writes that an object is proved absent, if its row is as it was when
// that was looked for. marked is false when it is not.
func (s *Store) OutsideGone(ctx context.Context, o OutsideObject, reason string) (marked bool, err error) {
	n, err := s.count(ctx, `UPDATE outside_objects SET state = 'GONE', reason = COALESCE(NULLIF(reason, ''), $4), updated_at = now()
		WHERE kind = $1 AND object_name = $2 AND state = $3`, o.Kind, o.Name, o.State, clip(reason))
	return n > 0, err
}

// DeleteOldObjects deletes up to limit rows of objects that have been GONE for
// longer than keep, and returns how many.
func (s *Store) DeleteOldObjects(ctx context.Context, keep time.Duration, limit int) (int, error) {
	return s.count(ctx, `DELETE FROM outside_objects WHERE (kind, object_name) IN (
		SELECT kind, object_name FROM outside_objects WHERE state = 'GONE' AND updated_at < now() - $1::interval ORDER BY updated_at LIMIT $2) AND state = 'GONE'`, keep, limit)
}

// PlanFiles writes that files which the claim's command made are about to be put
// into the bucket, before they are: their keys. ErrLeaseLost: nothing is written.
// harness.Unavailable: one of them is just being removed; a later try plans it.
func (s *Store) PlanFiles(ctx context.Context, c *ExecutionClaim, keys []string) error {
	planned := 0
	b := &pgx.Batch{}
	b.Queue(`SELECT fence_execution($1, $2)`, c.ID, c.Token)
	b.Queue(`INSERT INTO outside_objects AS o (kind, object_name, state, agent_name, session_id) SELECT DISTINCT 'FILE', k, 'PENDING', $1, $2 FROM unnest($3::text[]) k
		ON CONFLICT (kind, object_name) DO UPDATE SET state = 'PENDING', reason = '', updated_at = now() WHERE o.state <> 'REMOVING' RETURNING object_name`,
		c.Agent, c.Session, keys).Query(each(func(row pgx.CollectableRow) error {
		planned++
		return nil
	}))
	if err := s.batch(ctx, b, nil); err != nil {
		return err
	}
	if different := map[string]bool{}; len(keys) > 0 {
		for _, k := range keys {
			different[k] = true
		}
		if planned < len(different) {
			return harness.Errorf(harness.Unavailable, "the object store is just being rid of a file with the same bytes")
		}
	}
	return nil
}

// fileGrace is how long a file that was planned is left to whoever puts it: longer
// than any request, and for a session that has ended, than any that is left.
const fileGrace = `CASE WHEN EXISTS (SELECT 1 FROM sessions s WHERE s.session_id = o.session_id AND s.state NOT IN ('COMPLETED', 'CANCELLED')) THEN interval '1 hour' ELSE interval '15 minutes' END`

// hasFile is whether attachments has the file of row o.
const hasFile = `EXISTS (SELECT 1 FROM attachments a WHERE a.object_key <> '' AND a.object_key COLLATE "C" = o.object_name)`

// FilesToRemove marks up to limit files REMOVING that were planned and that nothing
// came of, and returns them with those that somebody began to remove. Rows of files
// that attachments has are deleted.
func (s *Store) FilesToRemove(ctx context.Context, limit int) ([]OutsideObject, error) {
	if _, err := s.count(ctx, `DELETE FROM outside_objects o WHERE o.kind = 'FILE' AND o.state = 'PENDING' AND o.updated_at < now() - interval '15 minutes' AND `+hasFile); err != nil {
		return nil, err
	}
	return list(ctx, s, `WITH due AS (
			SELECT o.object_name FROM outside_objects o WHERE o.kind = 'FILE' AND (o.state = 'REMOVING' OR o.state = 'PENDING' AND o.updated_at < now() - `+fileGrace+` AND NOT `+hasFile+`)
			ORDER BY o.updated_at LIMIT $1 FOR UPDATE SKIP LOCKED
		), removing AS (
			UPDATE outside_objects o SET state = 'REMOVING', reason = 'nothing came of it', updated_at = now() FROM due WHERE o.kind = 'FILE' AND o.object_name = due.object_name RETURNING o.*
		) SELECT `+outsideColumns+` FROM removing o`, []any{limit}, readOutside)
}

// UnknownFiles returns which of some keys of the bucket no row knows: neither an
// attachment, nor one that is being fetched, nor a file that is about to be put.
func (s *Store) UnknownFiles(ctx context.Context, keys []string) ([]string, error) {
	return list(ctx, s, `SELECT k FROM unnest($1::text[]) k
		WHERE NOT EXISTS (SELECT 1 FROM attachments a WHERE a.object_key <> '' AND a.object_key COLLATE "C" = k)
		  AND NOT EXISTS (SELECT 1 FROM attachments a WHERE a.attachment_id = split_part(k, '/', 3) AND a.state IN ('OFFERED', 'REQUESTED'))
		  AND NOT EXISTS (SELECT 1 FROM outside_objects o WHERE o.kind = 'FILE' AND o.object_name = k AND o.state <> 'GONE')`, []any{keys}, pgx.RowTo[string])
}

// StoredFiles returns up to limit keys behind one, in the order of their bytes, at
// which an attachment is STORED.
func (s *Store) StoredFiles(ctx context.Context, after string, limit int) ([]string, error) {
	return list(ctx, s, `SELECT DISTINCT object_key COLLATE "C" FROM attachments WHERE object_key <> '' AND object_key COLLATE "C" > $1 AND state = 'STORED' ORDER BY 1 LIMIT $2`,
		[]any{after, limit}, pgx.RowTo[string])
}

// FileLost writes that the bucket does not have a file any more: whoever asks for
// it is told so, until FilesFound.
func (s *Store) FileLost(ctx context.Context, key string) (marked bool, err error) {
	n, err := s.count(ctx, `UPDATE attachments SET state = 'FAILED', reason = 'the object store does not have the file any more', lost_at = now(), updated_at = now()
		WHERE object_key <> '' AND object_key COLLATE "C" = $1 AND state = 'STORED'`, key)
	return n > 0, err
}

// FilesFound says of some keys of the bucket that it has them: what FileLost wrote
// of them is over. It returns how many attachments are STORED again.
func (s *Store) FilesFound(ctx context.Context, keys []string) (int, error) {
	return s.count(ctx, `UPDATE attachments SET state = 'STORED', reason = '', lost_at = NULL, updated_at = now()
		WHERE object_key <> '' AND object_key COLLATE "C" = ANY ($1) AND lost_at IS NOT NULL AND state = 'FAILED'`, keys)
}

// UnknownArchives returns which of some keys of the bucket log_archives has no row for.
func (s *Store) UnknownArchives(ctx context.Context, keys []string) ([]string, error) {
	return list(ctx, s, `SELECT k FROM unnest($1::text[]) k WHERE NOT EXISTS (SELECT 1 FROM log_archives l WHERE l.object_key = k)`, []any{keys}, pgx.RowTo[string])
}

// VerifiedArchives returns up to limit keys behind one, in the order of their
// bytes, of objects that were read back and whose rows were deleted for it.
func (s *Store) VerifiedArchives(ctx context.Context, after string, limit int) ([]string, error) {
	return list(ctx, s, `SELECT object_key FROM log_archives WHERE object_key > $1 AND state = 'VERIFIED' ORDER BY object_key LIMIT $2`, []any{after, limit}, pgx.RowTo[string])
}

// ArchiveLost writes that the bucket does not have an object on which its row
// relies. The row stays: what it had is lost, and whoever asks for it is told so.
// still is false when the row relies on it no more.
func (s *Store) ArchiveLost(ctx context.Context, key string) (still bool, err error) {
	n, err := s.count(ctx, `UPDATE log_archives SET reason = 'the object is missing', updated_at = now() WHERE object_key = $1 AND state = 'VERIFIED'`, key)
	return n > 0, err
}

// UnknownSandboxes returns which of some names no sandbox has that is not GONE, or
// was not a few minutes ago: what belongs to one goes a little after it.
func (s *Store) UnknownSandboxes(ctx context.Context, names []string) ([]string, error) {
	return list(ctx, s, `SELECT n FROM unnest($1::text[]) n
		WHERE NOT EXISTS (SELECT 1 FROM sandboxes s WHERE s.sandbox_name = n AND (s.state <> 'GONE' OR s.ended_at > now() - interval '5 minutes'))`, []any{names}, pgx.RowTo[string])
}

// UnseenWebhooks returns up to limit accounts of a channel of whose webhook nobody
// has recorded anything for an hour, by name, with their agent.
func (s *Store) UnseenWebhooks(ctx context.Context, channel harness.Channel, limit int) ([]AccountRoute, error) {
	return list(ctx, s, `SELECT r.account, r.agent_name FROM channel_routes r WHERE r.channel = $1
		AND NOT EXISTS (SELECT 1 FROM outside_objects o WHERE o.kind = 'WEBHOOK' AND o.object_name = r.channel || '/' || r.account AND o.updated_at > now() - interval '1 hour')
		ORDER BY r.account LIMIT $2`, []any{channel, limit}, func(row pgx.CollectableRow) (AccountRoute, error) {
		var r AccountRoute
		return r, row.Scan(&r.Account, &r.Agent)
	})
}

// WebhookSeen writes where a provider says that it sends updates of an agent's
// account to; url empty: nowhere.
func (s *Store) WebhookSeen(ctx context.Context, channel harness.Channel, account, url string, agent harness.AgentName) error {
	_, err := s.count(ctx, webhookSQL, webhookName(channel, account), agent, url)
	return err
}

// webhookSQL writes webhook $1 of agent $2, where that is known, at $3.
const webhookSQL = `INSERT INTO outside_objects AS o (kind, object_name, state, reason, agent_name, registered_url)
	VALUES ('WEBHOOK', $1, CASE WHEN $3 = '' THEN 'GONE' ELSE 'MADE' END, CASE WHEN $3 = '' THEN 'none is registered' ELSE '' END, $2, $3)
	ON CONFLICT (kind, object_name) DO UPDATE SET state = EXCLUDED.state, reason = EXCLUDED.reason, agent_name = COALESCE(NULLIF($2, ''), o.agent_name),
		registered_url = COALESCE(NULLIF($3, ''), o.registered_url), updated_at = now()`

// RecordWebhook writes where a person tells a provider to send updates of an
// account to, or, with an empty url, that it is nowhere any more.
func (s *Store) RecordWebhook(ctx context.Context, channel harness.Channel, account, url string, by Audit) error {
	name := webhookName(channel, account)
	b := &pgx.Batch{}
	b.Queue(webhookSQL, name, "", url)
	by.queue(b, auditSQL(3, "(SELECT 1) one", "$1::text", "NULL::jsonb", "jsonb_build_object('url', $2::text)"), name, url)
	return s.batch(ctx, b, nil)
}

func webhookName(channel harness.Channel, account string) string {
	return string(channel) + "/" + account
}

// Registration is a webhook that is registered with a provider.
type Registration struct {
	Name   string // CHANNEL/account
	Agent  harness.AgentName
	URL    string
	SeenAt time.Time
	Routed bool // an agent has the account
}

// Registrations returns up to limit of them behind one, by name.
func (s *Store) Registrations(ctx context.Context, after string, limit int) ([]Registration, error) {
	return list(ctx, s, `SELECT o.object_name, o.agent_name, o.registered_url, o.updated_at,
			EXISTS (SELECT 1 FROM channel_routes r WHERE r.channel = split_part(o.object_name, '/', 1) AND r.account = substr(o.object_name, strpos(o.object_name, '/') + 1))
		FROM outside_objects o WHERE o.kind = 'WEBHOOK' AND o.state <> 'GONE' AND o.object_name > $1 ORDER BY o.object_name LIMIT $2`, []any{after, limit}, pgx.RowToStructByPos[Registration])
}
