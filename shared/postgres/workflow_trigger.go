package postgres

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// ChannelTrigger is a workflow that a message to an agent may start.
type ChannelTrigger struct {
	Workflow harness.WorkflowName
	Revision int64
	Pattern  string
	Spec     json.RawMessage // harness.Workflow
}

// channelTriggersSQL yields the triggers of the agent of session $1, unless that
// is a run, or part of one: a workflow starts no others by what its agents are
// asked.
const channelTriggersSQL = `SELECT t.workflow_name, w.revision, t.pattern, r.spec
	FROM sessions s JOIN workflow_triggers t ON t.type = 'CHANNEL' AND t.agent_name = s.agent_name
	JOIN workflows w ON w.workflow_name = t.workflow_name JOIN workflow_revisions r ON r.workflow_name = w.workflow_name AND r.revision = w.revision
	WHERE s.session_id = $1 AND s.workflow_name IS NULL AND s.parent_visit IS NULL AND w.phase <> 'DELETED' ORDER BY t.workflow_name, t.place`

func readChannelTrigger(row pgx.CollectableRow) (ChannelTrigger, error) {
	var t ChannelTrigger
	return t, row.Scan(&t.Workflow, &t.Revision, &t.Pattern, &t.Spec)
}

// ScheduleTrigger is a workflow that the clock starts.
type ScheduleTrigger struct {
	Workflow  harness.WorkflowName
	Place     int
	Trigger   harness.Trigger
	CheckedAt time.Time // the times up to here have had their run
	Now       time.Time // the database's
	Revision  int64
	Spec      harness.Workflow
}

// ScheduleTriggers returns up to limit triggers of type SCHEDULE behind the
// given place in the order of workflows.
func (s *Store) ScheduleTriggers(ctx context.Context, after harness.WorkflowName, place, limit int) ([]ScheduleTrigger, error) {
	rows, err := s.pool.Query(ctx, `SELECT t.workflow_name, t.place, t.schedule, t.time_zone, t.checked_at, now(), w.revision, r.spec
		FROM workflow_triggers t JOIN workflows w USING (workflow_name) JOIN workflow_revisions r ON r.workflow_name = w.workflow_name AND r.revision = w.revision
		WHERE t.type = 'SCHEDULE' AND w.phase <> 'DELETED' AND (t.workflow_name, t.place) > ($1, $2) ORDER BY t.workflow_name, t.place LIMIT $3`, after, place, limit)
	if err != nil {
		return nil, translate(err)
	}
	triggers, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ScheduleTrigger, error) {
		t := ScheduleTrigger{Trigger: harness.Trigger{Type: harness.TriggerSchedule}}
		return t, row.Scan(&t.Workflow, &t.Place, &t.Trigger.Schedule, &t.Trigger.TimeZone, &t.CheckedAt, &t.Now, &t.Revision, &t.Spec)
	})
	return triggers, translate(err)
}

// ScheduleChecked says that the times of a trigger up to at have had their run.
// It never goes back.
func (s *Store) ScheduleChecked(ctx context.Context, t ScheduleTrigger, at time.Time) error {
	_, err := s.pool.Exec(ctx, `UPDATE workflow_triggers SET checked_at = $5
		WHERE workflow_name = $1 AND place = $2 AND schedule = $3 AND time_zone = $4 AND checked_at < $5`, t.Workflow, t.Place, t.Trigger.Schedule, t.Trigger.TimeZone, at)
	return translate(err)
}
