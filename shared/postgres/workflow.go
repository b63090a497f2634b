package postgres

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// WorkflowText is what a source says of one workflow now.
type WorkflowText struct {
	Name       harness.WorkflowName
	Source     string            // what defines it: a file of the folder
	Workflow   *harness.Workflow // nil: its text was refused
	Reason     string            // why, for its author
	Generation int64             // of the resource; 0: the source is none
}

// WorkflowStatus is how a workflow stands.
type WorkflowStatus struct {
	Name     harness.WorkflowName
	Phase    harness.AgentPhase
	Revision int64  // in use; 0: none yet
	Reason   string // for people; empty when all is well
}

// workflowRow is a workflow as it is stored.
type workflowRow struct {
	WorkflowStatus
	digest, source string
	generation     int64
	spec           *harness.Workflow // of a revision that is new; else nil
}

// workflowLock serialises PutWorkflows over all processes (pg_advisory_xact_lock).
const workflowLock = 7448213

// PutWorkflows makes the stored workflows what their sources say, as PutAgents
// does with agents: a valid text that differs from the revision in use is a new
// revision, an invalid one leaves the older revision in use, and a workflow that
// no source names is DELETED. Runs keep the revision that they started with. It
// returns the workflows whose status changed.
func (s *Store) PutWorkflows(ctx context.Context, texts []WorkflowText, broken []BrokenSource) ([]WorkflowStatus, error) {
	var changed []WorkflowStatus
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		stored, err := readWorkflows(ctx, tx)
		if err != nil {
			return err
		}
		next := decideWorkflows(stored, texts, cleanBroken(broken))
		b := &pgx.Batch{}
		for _, name := range slices.Sorted(maps.Keys(next)) {
			before, after := stored[name], next[name]
			if before.WorkflowStatus == after.WorkflowStatus && before.source == after.source && before.digest == after.digest && before.generation == after.generation {
				continue
			}
			putWorkflow(b, before, after)
			if before.WorkflowStatus != after.WorkflowStatus {
				changed = append(changed, after.WorkflowStatus)
			}
		}
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return nil, translate(err)
	}
	return changed, nil
}

func readWorkflows(ctx context.Context, tx pgx.Tx) (map[harness.WorkflowName]workflowRow, error) {
	stored := map[harness.WorkflowName]workflowRow{}
	b := &pgx.Batch{}
	b.Queue(`SELECT pg_advisory_xact_lock($1)`, workflowLock)
	b.Queue(`SELECT workflow_name, phase, revision, reason, digest, source, generation FROM workflows`).Query(each(func(row pgx.CollectableRow) error {
		var w workflowRow
		err := row.Scan(&w.Name, &w.Phase, &w.Revision, &w.Reason, &w.digest, &w.source, &w.generation)
		stored[w.Name] = w
		return err
	}))
	return stored, tx.SendBatch(ctx, b).Close()
}

// decideWorkflows says how every workflow stands after its source has been read.
// It changes nothing it is given.
func decideWorkflows(stored map[harness.WorkflowName]workflowRow, texts []WorkflowText, broken []BrokenSource) map[harness.WorkflowName]workflowRow {
	next := map[harness.WorkflowName]workflowRow{}
	for _, t := range texts {
		row := stored[t.Name]
		row.Name, row.source, row.generation, row.Reason = t.Name, harness.CleanText(t.Source), t.Generation, ""
		_, twice := next[t.Name]
		switch {
		case twice:
			row.Phase, row.Reason = harness.AgentInvalid, "metadata.name is defined more than once ("+t.Source+" among others): keep one of them"
		case t.Workflow == nil:
			row.Phase, row.Reason = harness.AgentInvalid, cleanReason(t.Reason)
		default:
			row.Phase = harness.AgentReady
			if digest := workflowDigest(t.Workflow); row.Revision == 0 || row.digest != digest {
				row.Revision, row.digest, row.spec = row.Revision+1, digest, t.Workflow
			}
		}
		next[t.Name] = row
	}
	for name, row := range stored {
		if _, defined := next[name]; defined {
			continue
		}
		at := slices.IndexFunc(broken, func(b BrokenSource) bool { return b.Source == row.source })
		switch {
		case row.Phase == harness.AgentDeleted:
		case at < 0:
			row.Phase, row.Reason = harness.AgentDeleted, "its resource is gone"
		case broken[at].Reason != "":
			row.Phase, row.Reason = harness.AgentInvalid, broken[at].Reason
		}
		next[name] = row
	}
	return next
}

func workflowDigest(w *harness.Workflow) string {
	text, err := json.Marshal(w)
	if err != nil { // a struct of plain values always marshals
		panic(err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

func putWorkflow(b *pgx.Batch, before, after workflowRow) {
	b.Queue(`INSERT INTO workflows (workflow_name, revision, phase, reason, digest, source, generation) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (workflow_name) DO UPDATE SET revision = EXCLUDED.revision, phase = EXCLUDED.phase, reason = EXCLUDED.reason,
			digest = EXCLUDED.digest, source = EXCLUDED.source, generation = EXCLUDED.generation, updated_at = now()`,
		after.Name, after.Revision, after.Phase, after.Reason, after.digest, after.source, after.generation)
	if after.Phase == harness.AgentDeleted {
		b.Queue(`DELETE FROM workflow_triggers WHERE workflow_name = $1`, after.Name)
		return
	}
	if after.spec != nil {
		b.Queue(`INSERT INTO workflow_revisions (workflow_name, revision, spec) VALUES ($1, $2, $3)`, after.Name, after.Revision, after.spec)
	}
	if after.spec != nil || before.Phase == harness.AgentDeleted {
		putTriggers(b, after.Name, after.Revision)
	}
}

// putTriggers makes the triggers of a workflow those of its revision. A schedule
// that stays goes on where it is; a new one has no past.
func putTriggers(b *pgx.Batch, name harness.WorkflowName, revision int64) {
	b.Queue(`DELETE FROM workflow_triggers t USING workflow_revisions r WHERE t.workflow_name = $1 AND r.workflow_name = $1 AND r.revision = $2
		AND t.place >= jsonb_array_length(COALESCE(r.spec->'triggers', '[]'))`, name, revision)
	b.Queue(`INSERT INTO workflow_triggers AS w (workflow_name, place, type, agent_name, pattern, schedule, time_zone)
		SELECT $1, n - 1, t->>'type', COALESCE(t->>'agent', ''), COALESCE(t->>'pattern', ''), COALESCE(t->>'schedule', ''), COALESCE(t->>'timeZone', '')
		FROM workflow_revisions r, jsonb_array_elements(COALESCE(r.spec->'triggers', '[]')) WITH ORDINALITY AS x (t, n)
		WHERE r.workflow_name = $1 AND r.revision = $2
		ON CONFLICT (workflow_name, place) DO UPDATE SET type = EXCLUDED.type, agent_name = EXCLUDED.agent_name, pattern = EXCLUDED.pattern,
			schedule = EXCLUDED.schedule, time_zone = EXCLUDED.time_zone,
			checked_at = CASE WHEN w.schedule = EXCLUDED.schedule AND w.time_zone = EXCLUDED.time_zone THEN w.checked_at ELSE now() END`, name, revision)
}

// WorkflowStanding is what the status of a workflow's resource is made from.
type WorkflowStanding struct {
	WorkflowStatus
	Sessions int                            // runs that have begun and not ended
	Missing  map[harness.AgentName]struct{} // agents that it names and that cannot be used
	Shells   map[harness.AgentName]struct{} // agents of nodes of type SHELL that run no commands
}

// WorkflowStandings returns how every workflow stands that is not DELETED.
func (s *Store) WorkflowStandings(ctx context.Context) (map[harness.WorkflowName]WorkflowStanding, error) {
	standings := map[harness.WorkflowName]WorkflowStanding{}
	b := &pgx.Batch{}
	b.Queue(`SELECT w.workflow_name, w.phase, w.revision, w.reason, count(n.session_id) FROM workflows w
		LEFT JOIN sessions n ON n.workflow_name = w.workflow_name AND n.state IN ('PENDING', 'RUNNING', 'AWAITING_APPROVAL', 'AWAITING_EXECUTION')
		WHERE w.phase <> 'DELETED' GROUP BY 1, 2, 3, 4`).Query(each(func(row pgx.CollectableRow) error {
		w := WorkflowStanding{Missing: map[harness.AgentName]struct{}{}, Shells: map[harness.AgentName]struct{}{}}
		err := row.Scan(&w.Name, &w.Phase, &w.Revision, &w.Reason, &w.Sessions)
		standings[w.Name] = w
		return err
	}))
	b.Queue(`WITH named AS (
			SELECT w.workflow_name, n->>'agent' AS agent_name, n->>'type' = 'SHELL' AS shell
			FROM workflows w JOIN workflow_revisions r USING (workflow_name, revision), jsonb_array_elements(r.spec->'nodes') n WHERE n ? 'agent' AND w.phase <> 'DELETED'
			UNION SELECT workflow_name, agent_name, false FROM workflow_triggers WHERE type = 'CHANNEL'
		)
		SELECT m.workflow_name, m.agent_name, a.agent_name IS NULL OR a.phase = 'DELETED' OR r.spec IS NULL
		FROM named m LEFT JOIN agents a USING (agent_name) LEFT JOIN agent_revisions r ON r.agent_name = a.agent_name AND r.revision = a.revision
		WHERE a.agent_name IS NULL OR a.phase = 'DELETED' OR r.spec IS NULL
		   OR m.shell AND NOT (COALESCE((r.spec->'harness'->>'enabled')::bool, false) AND r.spec->'harness'->>'type' IN ('CODE', 'BOTH'))`).
		Query(each(func(row pgx.CollectableRow) error {
			var name harness.WorkflowName
			var agent harness.AgentName
			var missing bool
			err := row.Scan(&name, &agent, &missing)
			if w, ok := standings[name]; ok && missing {
				w.Missing[agent] = struct{}{}
			} else if ok {
				w.Shells[agent] = struct{}{}
			}
			return err
		}))
	return standings, s.batch(ctx, b, nil)
}

// Names returns the agents of a set, in order.
func Names(set map[harness.AgentName]struct{}) []string {
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, string(name))
	}
	slices.SortFunc(names, cmp.Compare)
	return names
}
