package postgres

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// Standing is everything that the status of an agent's resource is made from.
type Standing struct {
	AgentStatus
	Generation int64          // of the resource that phase and reason speak of; 0: the agent is no resource
	Agent      *harness.Agent // of the revision in use; nil: none
	Sessions   int            // that have something to answer
	Sandboxes  int            // that count against the cap
	Execution  *LastExecution // nil: none yet
	Halted     string         // why nobody works for it, in words; empty: it is not halted
	Sandbox    *LastSandbox   // of the revision's sandbox spec; nil: none was needed yet
	Checks     []harness.SecretCheck
	OldImages  map[string]OldImage // by skill: those of images that gave nothing at the last look

	Digest  string // of all that: another digest is another status
	Written string // the digest of which the status was last written; empty: none
	Age     time.Duration
}

// Dirty reports whether the written status is of something else than this.
func (s Standing) Dirty() bool { return s.Digest != s.Written }

// StatusEvery is how often the status of one agent is written at most.
const StatusEvery = 10 * time.Second

// neverWritten is the Age of a status that nobody has written.
const neverWritten = time.Duration(1<<63 - 1)

// LastExecution is the newest command of an agent.
type LastExecution struct {
	State harness.ExecutionState
	At    time.Time // when it began, or was asked for
}

// LastSandbox is the newest sandbox of an agent's spec that came up or did not.
type LastSandbox struct {
	CameUp  bool
	Reason  string // of its end
	Message string // why it cannot be used; empty when it can
}

// OldImage is a look at the image of a skill that gave nothing.
type OldImage struct {
	At     time.Time `json:"confirmedAt"` // when it was last seen as it is used
	Reason string    `json:"reason"`      // why that look gave nothing
}

// activeSQL counts what agent a has to answer and what counts against its cap.
const activeSQL = `(SELECT count(*) FROM sessions s WHERE s.agent_name = a.agent_name
               AND s.state IN ('PENDING', 'RUNNING', 'AWAITING_APPROVAL', 'AWAITING_EXECUTION')) AS sessions,
           (SELECT count(*) FROM sandboxes s WHERE s.agent_name = a.agent_name AND s.state <> 'GONE') AS sandboxes`

// haltSQL says who halted agent a, or the whole install, and why; empty where
// nobody did.
const haltSQL = `COALESCE((SELECT 'the whole install is stopped by ' || w.halted_by || ': ' || w.halt_reason FROM switches w WHERE w.halted_at IS NOT NULL),
               CASE WHEN a.halted_at IS NOT NULL THEN 'stopped by ' || a.halted_by || ': ' || a.halt_reason END, '')`

// newestExecutionSQL is the command that agent a asked for last, and how far that
// came; or BLOCKED, where a turn has ended so since.
const newestExecutionSQL = `SELECT * FROM (
        (SELECT e.state, COALESCE(e.started_at, e.created_at) AS at FROM executions e WHERE e.agent_name = a.agent_name ORDER BY e.execution_id DESC LIMIT 1)
        UNION ALL
        (SELECT 'BLOCKED', u.blocked_at FROM budget_usage u WHERE u.scope = 'AGENT_DAY' AND u.subject = a.agent_name AND u.blocked_at IS NOT NULL ORDER BY u.day DESC LIMIT 1)
    ) newest ORDER BY at DESC LIMIT 1`

// standingSQL says how agents stand, with one row each. Every part has an index
// that holds just what it reads. All of a row that may change is in its digest.
const standingSQL = `
SELECT f.*, t.digest AS written, extract(epoch FROM now() - t.written_at)::float8 AS age, md5(f::text) AS digest
FROM (
    SELECT a.agent_name, a.phase, a.revision, a.reason, a.generation,
           ` + activeSQL + `,
           x.state AS execution_state, x.at AS execution_at, b.came_up, b.reason AS sandbox_reason, b.message AS sandbox_message,
           (SELECT COALESCE(jsonb_agg(jsonb_build_array(c.secret_name, c.secret_key, c.state, c.reason) ORDER BY c.function_name, c.secret_name, c.secret_key), '[]')
               FROM secret_checks c WHERE c.agent_name = a.agent_name) AS checks,
           (SELECT COALESCE(jsonb_object_agg(i.skill_name, jsonb_build_object('confirmedAt', i.confirmed_at, 'reason', i.reason)), '{}')
               FROM skill_images i WHERE i.agent_name = a.agent_name AND i.reason <> '' AND i.image_digest <> '') AS old_images,
           ` + haltSQL + ` AS halted
    FROM agents a
    LEFT JOIN LATERAL (` + newestExecutionSQL + `) x ON true
    LEFT JOIN LATERAL (SELECT s.sandbox_uid <> '' AS came_up, s.reason, s.message FROM sandboxes s
        WHERE s.agent_name = a.agent_name AND s.spec_digest = a.sandbox_digest AND s.state <> 'CREATING' ORDER BY s.created_at DESC LIMIT 1) b ON true
    WHERE a.generation > 0 AND a.phase <> 'DELETED'
) f LEFT JOIN agent_statuses t USING (agent_name)`

// Standings returns how agents that are resources stand, by name: those named,
// or all of them. Deleted ones are left out.
func (s *Store) Standings(ctx context.Context, names ...harness.AgentName) ([]Standing, error) {
	rows, err := s.pool.Query(ctx, `SELECT f.agent_name, f.phase, f.revision, f.reason, f.generation, f.sessions, f.sandboxes, f.execution_state, f.execution_at,
			f.came_up, f.sandbox_reason, f.sandbox_message, f.checks, f.old_images, f.halted, COALESCE(f.written, ''), f.age, f.digest, r.spec
		FROM (`+standingSQL+`) f LEFT JOIN agent_revisions r ON r.agent_name = f.agent_name AND r.revision = f.revision
		WHERE $1::text[] IS NULL OR f.agent_name = ANY ($1) ORDER BY f.agent_name`, names)
	if err != nil {
		return nil, translate(err)
	}
	standings, err := pgx.CollectRows(rows, readStanding)
	return standings, translate(err)
}

func readStanding(row pgx.CollectableRow) (Standing, error) {
	var a Standing
	var execution *harness.ExecutionState
	var at *time.Time
	var cameUp *bool
	var reason, message *string
	var checks json.RawMessage
	var age *float64
	if err := row.Scan(&a.Name, &a.Phase, &a.Revision, &a.Reason, &a.Generation, &a.Sessions, &a.Sandboxes, &execution, &at,
		&cameUp, &reason, &message, &checks, &a.OldImages, &a.Halted, &a.Written, &age, &a.Digest, &a.Agent); err != nil {
		return a, err
	}
	if execution != nil {
		a.Execution = &LastExecution{State: *execution, At: *at}
	}
	if cameUp != nil {
		a.Sandbox = &LastSandbox{CameUp: *cameUp, Reason: *reason, Message: *message}
	}
	if a.Age = neverWritten; age != nil {
		a.Age = time.Duration(*age * float64(time.Second))
	}
	var found [][4]string
	if err := json.Unmarshal(checks, &found); err != nil {
		return a, err
	}
	for _, c := range found {
		a.Checks = append(a.Checks, harness.SecretCheck{
			Agent: a.Name, Ref: harness.SecretRef{Name: c[0], Key: c[1]}, State: harness.SecretState(c[2]), Reason: c[3],
		})
	}
	return a, nil
}

// StatusDirty returns up to limit agents whose written status is of something
// else than they are now, and whose last write is longer ago than every.
func (s *Store) StatusDirty(ctx context.Context, every time.Duration, limit int) ([]harness.AgentName, error) {
	rows, err := s.pool.Query(ctx, `SELECT agent_name FROM (`+standingSQL+`) f
		WHERE written IS DISTINCT FROM digest AND (age IS NULL OR age >= $1) ORDER BY age DESC NULLS FIRST LIMIT $2`, every.Seconds(), limit)
	if err != nil {
		return nil, translate(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[harness.AgentName])
	return names, translate(err)
}

// ClaimStatus takes the right to write the status of an agent, at most once in
// every over all processes. It returns the claim's token; ErrNothingDue:
// somebody has written, or writes, too short a time ago.
func (s *Store) ClaimStatus(ctx context.Context, agent harness.AgentName, every time.Duration) (token time.Time, err error) {
	err = s.pool.QueryRow(ctx, `INSERT INTO agent_statuses AS t (agent_name, written_at) VALUES ($1, now())
		ON CONFLICT (agent_name) DO UPDATE SET written_at = now() WHERE t.written_at IS NULL OR t.written_at <= now() - $2::interval
		RETURNING written_at`, agent, every).Scan(&token)
	if err = translate(err); harness.KindOf(err) == harness.NotFound {
		return token, ErrNothingDue
	}
	return token, err
}

// RenewStatus makes the claim of token begin now, and returns its new token.
// ErrNothingDue: somebody has overtaken it.
func (s *Store) RenewStatus(ctx context.Context, agent harness.AgentName, token time.Time) (time.Time, error) {
	err := s.pool.QueryRow(ctx, `UPDATE agent_statuses SET written_at = now() WHERE agent_name = $1 AND written_at = $2 RETURNING written_at`, agent, token).Scan(&token)
	if err = translate(err); harness.KindOf(err) == harness.NotFound {
		return token, ErrNothingDue
	}
	return token, err
}

// StatusWritten says what the status was made from that the claim wrote. A
// claim that somebody has overtaken says nothing.
func (s *Store) StatusWritten(ctx context.Context, agent harness.AgentName, token time.Time, digest string) error {
	_, err := s.pool.Exec(ctx, `UPDATE agent_statuses SET digest = $3 WHERE agent_name = $1 AND written_at = $2`, agent, token, digest)
	return translate(err)
}

// StatusIs says that the statuses of agents are right as they are found, though
// nobody wrote them now: each was made from its Digest.
func (s *Store) StatusIs(ctx context.Context, standings []Standing) error {
	b := &pgx.Batch{}
	for _, a := range standings {
		if a.Dirty() {
			b.Queue(`INSERT INTO agent_statuses AS t (agent_name, digest) VALUES ($1, $2) ON CONFLICT (agent_name) DO UPDATE SET digest = $2 WHERE t.digest = $3`,
				a.Name, a.Digest, a.Written)
		}
	}
	if b.Len() == 0 {
		return nil
	}
	return s.batch(ctx, b, nil)
}

// StatusIsNot says that the resource shows another status than the one that was
// last written: it is dirty until somebody writes it or finds it right.
func (s *Store) StatusIsNot(ctx context.Context, a Standing) error {
	if a.Dirty() {
		return nil
	}
	_, err := s.pool.Exec(ctx, `UPDATE agent_statuses SET digest = '' WHERE agent_name = $1 AND digest = $2`, a.Name, a.Written)
	return translate(err)
}

// StoreSecretChecks makes what function found of the Secrets of the agents it
// serves the stored state: checks of other agents or refs of its own are
// deleted. What has not changed is not written. It returns how many rows did.
func (s *Store) StoreSecretChecks(ctx context.Context, function string, checks []harness.SecretCheck) (changed int, err error) {
	agents, names, keys, states, reasons := []string{}, []string{}, []string{}, []string{}, []string{}
	for _, c := range checks {
		agents, names, keys = append(agents, string(c.Agent)), append(names, c.Ref.Name), append(keys, c.Ref.Key)
		states, reasons = append(states, string(c.State)), append(reasons, cleanReason(c.Reason))
	}
	err = s.pool.QueryRow(ctx, `WITH found AS (
			SELECT DISTINCT ON (agent_name, secret_name, secret_key) * FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
				AS f (agent_name, secret_name, secret_key, state, reason) ORDER BY agent_name, secret_name, secret_key
		), gone AS (
			DELETE FROM secret_checks c WHERE c.function_name = $1 AND NOT EXISTS (
				SELECT 1 FROM found f WHERE f.agent_name = c.agent_name AND f.secret_name = c.secret_name AND f.secret_key = c.secret_key) RETURNING 1
		), kept AS (
			INSERT INTO secret_checks AS c (function_name, agent_name, secret_name, secret_key, state, reason)
			SELECT $1, f.* FROM found f ON CONFLICT (agent_name, function_name, secret_name, secret_key)
			DO UPDATE SET state = EXCLUDED.state, reason = EXCLUDED.reason, updated_at = now()
			WHERE c.state <> EXCLUDED.state OR c.reason <> EXCLUDED.reason RETURNING 1
		) SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM kept)`, function, agents, names, keys, states, reasons).Scan(&changed)
	return changed, translate(err)
}
