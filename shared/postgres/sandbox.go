package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// SandboxRecord is one sandbox as its row has it.
type SandboxRecord struct {
	ID        harness.SandboxID
	Name      string
	UID       string // empty until it was READY once
	Agent     harness.AgentName
	Session   harness.SessionID
	Spec      harness.SandboxSpec
	State     harness.SandboxState
	Reason    string // why it is being ended, or is gone
	CreatedAt time.Time
	ExpiresAt time.Time
}

// Why a sandbox is ended. A sandbox that never came up has the driver's reason.
const (
	SandboxEvicted  = "EVICTED"  // it was idle and another session waited for its place
	SandboxExpired  = "TTL"      // it reached its end of life
	SandboxIdle     = "IDLE"     // it had no command for too long
	SandboxStuck    = "STUCK"    // it did not come up and nobody waits for it any more
	SandboxLost     = "LOST"     // it was found gone
	SandboxOperator = "OPERATOR" // somebody wanted it ended
	SandboxUnproved = "UNPROVED" // the outcome of a command in it could not be proved
)

// PlacementKind is what an execution may do about a sandbox now.
type PlacementKind string

// The kinds of a Placement.
const (
	PlaceWait    PlacementKind = "WAIT"    // nothing: the claim is released, whoever frees capacity wakes it
	PlaceRun     PlacementKind = "RUN"     // Sandbox is ready and the execution is RUNNING in it
	PlaceStart   PlacementKind = "START"   // Sandbox is CREATING: start it, then BeginExecution
	PlaceCreate  PlacementKind = "CREATE"  // the same, and its row is new
	PlaceEvict   PlacementKind = "EVICT"   // Sandbox, an idle one of another session, is TERMINATING: end it, then ask again
	PlaceReplace PlacementKind = "REPLACE" // the same with the session's own, which is too old
)

// Placement is the answer to AcquireSandbox.
type Placement struct {
	Kind    PlacementKind
	Sandbox *SandboxRecord // nil only with PlaceWait
}

// sandboxColumns are those of a SandboxRecord, of alias s.
const sandboxColumns = `s.sandbox_id, s.sandbox_name, s.sandbox_uid, s.agent_name, s.session_id, s.spec, s.state, s.reason, s.created_at, s.expires_at`

func (r *SandboxRecord) targets() []any {
	return []any{&r.ID, &r.Name, &r.UID, &r.Agent, &r.Session, &r.Spec, &r.State, &r.Reason, &r.CreatedAt, &r.ExpiresAt}
}

func readSandbox(row pgx.CollectableRow) (SandboxRecord, error) {
	var r SandboxRecord
	return r, row.Scan(r.targets()...)
}

// lockAgentSQL comes first in every transaction that takes or frees capacity of
// an agent: who decides to wait and who wakes the waiting see each other. Rows
// are locked in the order agent, session, execution, sandbox, other executions
// of the agent. Foreign keys to agents do not wait for this lock.
const lockAgentSQL = `SELECT 1 FROM agents WHERE agent_name = $1 FOR NO KEY UPDATE`

// placementSQL says for every PENDING execution of agent $1 what it may do now.
// It must run under the agent's lock. While the agent is halted they all wait.
//
//	live   sandboxes that count against the cap
//	line   PENDING executions with their session's own sandbox; only the first
//	       (nth = 1) of a session and spec may move, so that its commands keep
//	       their order
//	slot   those of them that have no sandbox, ranked in the order they asked;
//	       free slots and idle sandboxes that may be ended for them. An idle
//	       sandbox whose own next command asked earlier is not idle.
const placementSQL = `
WITH live AS (
    SELECT s.*, EXISTS (SELECT 1 FROM executions r WHERE r.sandbox_id = s.sandbox_id AND r.state = 'RUNNING') AS busy,
           s.expires_at < now() + least(interval '30 seconds', (s.expires_at - s.created_at) / 4)
           OR s.last_activity_at < now() - (s.spec->>'idleSeconds')::int * interval '1 second'
              + least(interval '15 seconds', (s.spec->>'idleSeconds')::int * interval '0.25 seconds') AS old
    FROM sandboxes s WHERE s.agent_name = $1 AND s.state <> 'GONE'
), line AS (
    SELECT e.execution_id, e.seq, e.session_id, e.spec_digest, e.max_sandboxes, own.sandbox_id, own.state, own.busy, own.old,
           row_number() OVER (PARTITION BY e.session_id, e.spec_digest ORDER BY e.seq) AS nth
    FROM executions e
    LEFT JOIN live own ON own.session_id = e.session_id AND own.spec_digest = e.spec_digest AND own.state IN ('CREATING', 'READY')
    WHERE e.agent_name = $1 AND e.state = 'PENDING'
), slot AS (
    SELECT f.execution_id, rank() OVER (ORDER BY f.seq) AS rank, f.max_sandboxes - (SELECT count(*) FROM live) AS free,
           (SELECT COALESCE(array_agg(v.sandbox_id ORDER BY v.last_activity_at), '{}') FROM live v
            WHERE v.state = 'READY' AND NOT v.busy AND NOT EXISTS (
                SELECT 1 FROM line p WHERE p.session_id = v.session_id AND p.spec_digest = v.spec_digest AND p.seq < f.seq)) AS victims
    FROM line f WHERE f.nth = 1 AND f.sandbox_id IS NULL
), place AS (
    SELECT l.execution_id, COALESCE(l.sandbox_id, s.victims[1]) AS sandbox_id, CASE
        WHEN EXISTS (SELECT 1 FROM switches WHERE halted_at IS NOT NULL) OR (SELECT halted_at FROM agents WHERE agent_name = $1) IS NOT NULL THEN 'WAIT'
        WHEN l.nth > 1 OR l.busy THEN 'WAIT'
        WHEN l.old THEN 'REPLACE'
        WHEN l.state = 'READY' THEN 'RUN'
        WHEN l.state = 'CREATING' THEN 'START'
        WHEN s.rank <= s.free THEN 'CREATE'
        WHEN s.rank <= s.free + cardinality(s.victims) THEN 'EVICT'
        ELSE 'WAIT' END AS kind
    FROM line l LEFT JOIN slot s USING (execution_id)
)`

// acquireSQL does what placementSQL says for execution $2. A new sandbox is
// named $4. A session that gets a new sandbox after an old one is told that its
// files are gone: with the reason of the command.
const acquireSQL = placementSQL + `, x AS (
    SELECT e.*, p.kind, p.sandbox_id AS place_id FROM place p JOIN executions e USING (execution_id) WHERE p.execution_id = $2
), created AS (
    INSERT INTO sandboxes (sandbox_id, sandbox_name, agent_name, session_id, spec, spec_digest, state, expires_at)
    SELECT $3, $4, agent_name, session_id, spec, spec_digest, 'CREATING', now() + (spec->>'ttlSeconds')::int * interval '1 second'
    FROM x WHERE kind = 'CREATE' RETURNING *
), kept AS (
    UPDATE sandboxes s SET
        state = CASE WHEN x.kind IN ('EVICT', 'REPLACE') THEN 'TERMINATING' ELSE s.state END,
        reason = CASE x.kind WHEN 'EVICT' THEN '` + SandboxEvicted + `' WHEN 'REPLACE' THEN '` + SandboxExpired + `' ELSE s.reason END,
        updated_at = CASE WHEN x.kind IN ('EVICT', 'REPLACE') THEN now() ELSE s.updated_at END,
        last_activity_at = CASE WHEN x.kind = 'RUN' THEN now() ELSE s.last_activity_at END
    FROM x WHERE s.sandbox_id = x.place_id AND x.kind IN ('RUN', 'START', 'EVICT', 'REPLACE') RETURNING s.*
), earlier AS (
    SELECT s.reason FROM sandboxes s JOIN x USING (session_id) WHERE x.kind = 'CREATE' AND s.sandbox_uid <> '' ORDER BY s.created_at DESC LIMIT 1
), moved AS (
    UPDATE executions e SET
        state = CASE WHEN x.kind = 'RUN' THEN 'RUNNING' ELSE 'PENDING' END,
        started_at = CASE WHEN x.kind = 'RUN' THEN now() END,
        sandbox_id = CASE x.kind WHEN 'CREATE' THEN $3 WHEN 'RUN' THEN x.place_id WHEN 'START' THEN x.place_id END,
        sandbox_uid = CASE WHEN x.kind = 'RUN' THEN (SELECT sandbox_uid FROM kept) ELSE '' END,
        reason = COALESCE((SELECT 'this was a new workspace without the files of earlier commands, because the last sandbox ended (' || reason || ')' FROM earlier), e.reason),
        attempts = CASE x.kind WHEN 'RUN' THEN 0 WHEN 'WAIT' THEN greatest(e.attempts - 1, 0) ELSE e.attempts END,
        lease_owner = CASE WHEN x.kind <> 'WAIT' THEN e.lease_owner END,
        lease_until = CASE WHEN x.kind <> 'WAIT' THEN e.lease_until END
    FROM x WHERE e.execution_id = x.execution_id
)
SELECT x.kind, s.sandbox_id IS NOT NULL, ` + sandboxColumns + `
FROM x LEFT JOIN (SELECT * FROM created UNION ALL SELECT * FROM kept) s ON true`

// AcquireSandbox finds a place for a PENDING execution under its agent's cap, in
// one round trip; see Placement for what the caller owes. Those who asked first
// are served first. A command of a session that has ended is CANCELLED.
// ErrNothingDue: that, or the execution was ended meanwhile.
func (s *Store) AcquireSandbox(ctx context.Context, c *ExecutionClaim) (Placement, error) {
	id := harness.NewSandboxID(s.now())
	b := &pgx.Batch{}
	b.Queue(lockAgentSQL, c.Agent)
	b.Queue(`SELECT 1 FROM sessions WHERE session_id = $1 FOR KEY SHARE`, c.Session)
	b.Queue(`SELECT fence_execution($1, $2)`, c.ID, c.Token)
	b.Queue(`UPDATE executions e SET state = 'CANCELLED', reason = 'the session had ended before the command could start', due_at = NULL,
			lease_owner = NULL, lease_until = NULL, ended_at = now()
		FROM sessions n WHERE e.execution_id = $1 AND e.state = 'PENDING' AND n.session_id = e.session_id AND n.state IN ('COMPLETED', 'CANCELLED')`, c.ID)
	found := false
	var p Placement
	b.Queue(acquireSQL, c.Agent, c.ID, id, sandboxName(id)).Query(func(rows pgx.Rows) error {
		_, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
			found = true
			var placed bool
			var r nullSandbox
			err := row.Scan(append([]any{&p.Kind, &placed}, r.targets()...)...)
			if placed {
				p.Sandbox = r.record()
			}
			return struct{}{}, err
		})
		return err
	})
	if err := s.batch(ctx, b, nil); err != nil {
		return Placement{}, err
	}
	if !found {
		return Placement{}, ErrNothingDue
	}
	return p, nil
}

// sandboxName is short, fit for a label, and as unguessable as the id's random part.
func sandboxName(id harness.SandboxID) string { return "tuluat-" + string(id[len(id)-16:]) }

// nullSandbox reads the columns of an outer join.
type nullSandbox struct {
	id, name, uid, agent, session, state, reason *string
	spec                                         *harness.SandboxSpec
	created, expires                             *time.Time
}

func (n *nullSandbox) targets() []any {
	return []any{&n.id, &n.name, &n.uid, &n.agent, &n.session, &n.spec, &n.state, &n.reason, &n.created, &n.expires}
}

func (n *nullSandbox) record() *SandboxRecord {
	if n.id == nil {
		return nil
	}
	return &SandboxRecord{
		ID: harness.SandboxID(*n.id), Name: *n.name, UID: *n.uid, Agent: harness.AgentName(*n.agent), Session: harness.SessionID(*n.session),
		Spec: *n.spec, State: harness.SandboxState(*n.state), Reason: *n.reason, CreatedAt: *n.created, ExpiresAt: *n.expires,
	}
}

// wakeSQL wakes those waiting executions of agent $1 that may move now, $2 being
// the type of their event. It must run under the agent's lock and after whatever
// freed the capacity.
const wakeSQL = placementSQL + `, woken AS (
    UPDATE executions e SET due_at = now() FROM place p
    WHERE e.execution_id = p.execution_id AND p.kind <> 'WAIT' AND e.due_at IS NULL AND e.lease_owner IS NULL
    RETURNING e.execution_id, e.session_id, e.agent_name, e.lease_token, e.seq
), told AS (
    INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, payload, traceparent, due_at)
    SELECT '` + executionRequestedID + `' || w.execution_id || ':' || w.lease_token, $2, w.execution_id, w.session_id, w.agent_name,
           jsonb_build_object('session', w.session_id, 'execution', w.execution_id), s.traceparent, now() + interval '` + announceAgain + `'
    FROM woken w JOIN sessions s USING (session_id) ON CONFLICT (event_id) DO NOTHING
)
SELECT w.execution_id, w.session_id, w.agent_name, w.lease_token, s.traceparent FROM woken w JOIN sessions s USING (session_id) ORDER BY w.seq`

// wake queues wakeSQL; the events are appended to events when the batch is read.
func wake(b *pgx.Batch, agent harness.AgentName, events *[]event.Event) {
	b.Queue(wakeSQL, agent, event.ExecutionRequested).Query(collectRequested(events))
}

// EndSandbox says that the sandbox is to be ended for reason: it takes no more
// commands and counts against the cap until SandboxGone. message says in words
// why it could not be used; empty when it could.
func (s *Store) EndSandbox(ctx context.Context, id harness.SandboxID, agent harness.AgentName, reason, message string) error {
	b := &pgx.Batch{}
	b.Queue(lockAgentSQL, agent)
	b.Queue(`UPDATE sandboxes SET state = 'TERMINATING', reason = $3, message = CASE WHEN $4 = '' THEN message ELSE $4 END, updated_at = now()
		WHERE sandbox_id = $1 AND agent_name = $2 AND state IN ('CREATING', 'READY')`, id, agent, reason, cleanMessage(message))
	return s.batch(ctx, b, nil)
}

// maxMessage bounds what is kept of a sandbox's message, in bytes.
const maxMessage = 1 << 10

func cleanMessage(message string) string {
	return harness.CleanText(message[:min(len(message), maxMessage)])
}

// SandboxGone says that the sandbox is proved absent, and returns the wakes of
// those who waited for its place. A reason it has already is kept. Commands
// that were RUNNING in it are ended by whoever holds their claim, or by
// EndOrphans.
func (s *Store) SandboxGone(ctx context.Context, id harness.SandboxID, agent harness.AgentName, reason string) ([]event.Event, error) {
	var events []event.Event
	b := &pgx.Batch{}
	b.Queue(lockAgentSQL, agent)
	b.Queue(`UPDATE sandboxes SET state = 'GONE', reason = COALESCE(NULLIF(reason, ''), $3), updated_at = now(), ended_at = now()
		WHERE sandbox_id = $1 AND agent_name = $2 AND state <> 'GONE'`, id, agent, reason)
	wake(b, agent, &events)
	return events, s.batch(ctx, b, nil)
}

// sandboxGrace is how long the sweep waits for others to finish what they do
// with a sandbox: its start, its end, or its last command past the hard TTL.
const sandboxGrace = "2 minutes"

// inUseSQL is whether somebody runs a command in sandbox s or starts it.
const inUseSQL = `EXISTS (SELECT 1 FROM executions e WHERE e.sandbox_id = s.sandbox_id AND (e.state = 'RUNNING' OR e.state = 'PENDING' AND e.lease_until > now()))`

// toEndSQL is when the sweep ends a sandbox of alias s, and why. A sandbox with
// a RUNNING command is left alone unless it is long past its end of life: by
// then it has ended itself. Nobody but the sweep ends one for an operator; its
// command gets the time to be cancelled.
const toEndSQL = `CASE
    WHEN s.state = 'GONE' THEN NULL
    WHEN s.state = 'TERMINATING' THEN CASE WHEN s.updated_at < now() - interval '` + sandboxGrace + `' OR s.reason = '` + SandboxOperator + `' AND NOT ` + inUseSQL + ` THEN s.reason END
    WHEN s.expires_at < now() - interval '` + sandboxGrace + `' THEN '` + SandboxExpired + `'
    WHEN ` + inUseSQL + ` THEN NULL
    WHEN s.state = 'CREATING' THEN CASE WHEN s.updated_at < now() - interval '` + sandboxGrace + `' THEN '` + SandboxStuck + `' END
    WHEN s.expires_at < now() THEN '` + SandboxExpired + `'
    WHEN s.last_activity_at < now() - (s.spec->>'idleSeconds')::int * interval '1 second'
         AND NOT EXISTS (SELECT 1 FROM executions e WHERE e.session_id = s.session_id AND e.spec_digest = s.spec_digest AND e.state = 'PENDING') THEN '` + SandboxIdle + `'
    END`

// SandboxesToEnd marks up to limit sandboxes TERMINATING that are past their end
// of life, idle too long or stuck, and returns them with those that somebody
// began to end and left behind. The caller terminates each and then says
// SandboxGone. Concurrent callers get different rows.
func (s *Store) SandboxesToEnd(ctx context.Context, limit int) ([]SandboxRecord, error) {
	rows, err := s.pool.Query(ctx, `SELECT s.sandbox_id, s.agent_name FROM sandboxes s WHERE s.state <> 'GONE' AND `+toEndSQL+` IS NOT NULL
		ORDER BY s.updated_at LIMIT $1`, limit)
	if err != nil {
		return nil, translate(err)
	}
	var agents, ids []string
	var id, agent string
	if _, err := pgx.ForEachRow(rows, []any{&id, &agent}, func() error {
		ids, agents = append(ids, id), append(agents, agent)
		return nil
	}); err != nil || len(ids) == 0 {
		return nil, translate(err)
	}
	var ended []SandboxRecord
	b := &pgx.Batch{}
	b.Queue(`SELECT 1 FROM agents WHERE agent_name = ANY ($1) ORDER BY agent_name FOR NO KEY UPDATE`, agents)
	b.Queue(`UPDATE sandboxes s SET state = 'TERMINATING', reason = `+toEndSQL+`, updated_at = now()
		WHERE s.sandbox_id = ANY ($1) AND `+toEndSQL+` IS NOT NULL RETURNING `+sandboxColumns, ids).Query(func(rows pgx.Rows) (err error) {
		ended, err = pgx.CollectRows(rows, readSandbox)
		return err
	})
	return ended, s.batch(ctx, b, nil)
}

// LiveSandboxes returns every sandbox that is not GONE, to be compared with what
// exists. List what exists first: a row is older than its object.
func (s *Store) LiveSandboxes(ctx context.Context) ([]SandboxRecord, error) {
	rows, err := s.pool.Query(ctx, `SELECT `+sandboxColumns+` FROM sandboxes s WHERE s.state <> 'GONE' ORDER BY s.created_at`)
	if err != nil {
		return nil, translate(err)
	}
	live, err := pgx.CollectRows(rows, readSandbox)
	return live, translate(err)
}
