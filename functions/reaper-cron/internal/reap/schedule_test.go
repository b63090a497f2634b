package reap_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

func (w *world) workflow(triggers ...harness.Trigger) {
	w.t.Helper()
	flow := &harness.Workflow{
		Name: "nightly", Start: "ask", MaxVisits: 10, Triggers: triggers,
		Nodes: []harness.Node{{ID: "ask", Type: harness.NodeAgent, Agent: "coder", Prompt: "p"}, {ID: "end", Type: harness.NodeEnd, State: harness.SessionCompleted}},
		Edges: []harness.Edge{{From: "ask", To: "end"}},
	}
	if _, err := w.store.PutWorkflows(context.Background(), []postgres.WorkflowText{{Name: "nightly", Workflow: flow}}, nil); err != nil {
		w.t.Fatal(err)
	}
}

func minutely(zone string) harness.Trigger {
	return harness.Trigger{Type: harness.TriggerSchedule, Schedule: "* * * * *", TimeZone: zone}
}

// A time that has come starts one run, however many passes see it, and times
// that passed while nothing ran start one together.
func TestSchedulesStartRunsOnce(t *testing.T) {
	w := newWorld(t)
	w.agent()
	w.workflow(minutely(""))
	if found := w.pass()["schedules"]; found.Found != 0 {
		t.Errorf("a schedule begins with its workflow, not before: %+v", found)
	}
	w.sql(`UPDATE workflow_triggers SET checked_at = date_trunc('minute', now()) - interval '3 hours'`)
	if found := w.pass()["schedules"]; found != (postgres.Finding{Found: 1, Done: 1}) {
		t.Errorf("%+v", found)
	}
	if got := query[string](w, `SELECT workflow_name || ' ' || workflow_revision || ' ' || state || ' ' || agent_name || ' ' || (started->>'type') FROM sessions`); got != "nightly 1 PENDING coder SCHEDULE" {
		t.Errorf("the run: %s", got)
	}
	if !query[bool](w, `SELECT checked_at <= now() AND checked_at > now() - interval '61 seconds' FROM workflow_triggers`) {
		t.Error("the schedule was not moved on")
	}
	if ids := w.broker.heard(); len(ids) != 1 || !strings.HasPrefix(ids[0], "session.due:ses_") {
		t.Errorf("announced: %v", ids)
	}
	// A pass that died right behind the start, and another beside it.
	w.sql(`UPDATE workflow_triggers SET checked_at = date_trunc('minute', now()) - interval '1 minute'`)
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if err := w.sweep(w.options); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	w.pass()
	if n := query[int](w, `SELECT count(*) FROM workflow_starts`); n > 2 || n != query[int](w, `SELECT count(*) FROM sessions WHERE workflow_name IS NOT NULL`) {
		t.Errorf("%d runs", n) // two when a minute passed meanwhile
	}
	if n := query[int](w, `SELECT count(DISTINCT start_key) FROM workflow_starts`); n != query[int](w, `SELECT count(*) FROM workflow_starts`) {
		t.Error("a time has two runs")
	}
}

// A schedule that stays keeps its place when the workflow changes; another one
// has no past. A workflow that is gone starts nothing.
func TestSchedulesOfChangedWorkflows(t *testing.T) {
	w := newWorld(t)
	w.agent()
	w.workflow(minutely(""))
	w.sql(`UPDATE workflow_triggers SET checked_at = now() - interval '1 hour'`)
	w.workflow(minutely(""), harness.Trigger{Type: harness.TriggerChannel, Agent: "coder", Pattern: "x"})
	if !query[bool](w, `SELECT checked_at < now() - interval '59 minutes' FROM workflow_triggers WHERE place = 0`) {
		t.Error("a schedule that stays began anew")
	}
	w.workflow(minutely("Europe/Berlin"))
	if !query[bool](w, `SELECT count(*) = 1 AND bool_and(checked_at > now() - interval '1 minute') FROM workflow_triggers`) {
		t.Error("another schedule has the past of the one before")
	}
	w.sql(`UPDATE workflow_triggers SET checked_at = now() - interval '1 hour'`)
	if _, err := w.store.PutWorkflows(context.Background(), nil, nil); err != nil {
		t.Fatal(err)
	}
	if found := w.pass()["schedules"]; found.Found != 0 || query[int](w, `SELECT count(*) FROM sessions`) != 0 {
		t.Errorf("%+v", found)
	}
}
