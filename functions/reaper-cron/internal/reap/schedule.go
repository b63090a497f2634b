package reap

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/workflow"
)

// startScheduled starts a run of each workflow whose time has come. A run is
// named by its time, so that a pass which died behind its start, or one that
// runs beside it, starts none again.
func (r *Reaper) startScheduled(ctx context.Context, b *box) error {
	var failures error
	name, place := harness.WorkflowName(""), 0
	err := b.batches(func() (int, error) {
		triggers, err := r.Store.ScheduleTriggers(ctx, name, place, r.Batch)
		if err != nil {
			return 0, err
		}
		for _, t := range triggers {
			name, place = t.Workflow, t.Place
			if err := r.startDue(ctx, b, t); err != nil {
				failures = errors.Join(failures, fmt.Errorf("schedule of workflow %s: %w", t.Workflow, err))
			}
		}
		return len(triggers), nil
	})
	return errors.Join(err, failures)
}

func (r *Reaper) startDue(ctx context.Context, b *box, t postgres.ScheduleTrigger) error {
	at, due := lastTime(t)
	if !due {
		return nil
	}
	b.count(1, 0)
	input, problems := workflow.Input(t.Spec, nil)
	if len(problems) > 0 { // of a release that knew no better
		return harness.Errorf(harness.Invalid, "its input: %s", problems[0])
	}
	_, _, events, err := r.Store.StartRun(ctx, postgres.NewRun{
		ID: harness.NewSessionID(r.Now()), Workflow: t.Workflow, Revision: t.Revision, Agent: workflow.Agent(t.Spec), Input: input,
		Key: "schedule/" + at.UTC().Format(time.RFC3339), Started: harness.Started{Type: harness.TriggerSchedule},
	})
	if err != nil {
		return err
	}
	if err := r.Store.ScheduleChecked(ctx, t, at); err != nil {
		return err
	}
	b.count(0, 1)
	for _, u := range first(events) { // the rows say the same, should nobody hear it
		if err := r.send(ctx, u); err != nil {
			r.Log.Warn("the start of a scheduled run was not announced; the sweep repeats it", "workflow", string(t.Workflow), "err", err)
		}
	}
	return nil
}

// mostTimes bounds how many times of a schedule are looked at: more than there
// are minutes in two months.
const mostTimes = 100_000

// lastTime is the newest time of a schedule that has come since it was looked at
// last. Those before it are not made up for.
func lastTime(t postgres.ScheduleTrigger) (at time.Time, due bool) {
	schedule, problem := workflow.Schedule(t.Trigger)
	if problem != nil {
		return at, false
	}
	next := schedule.Next(t.CheckedAt)
	for range mostTimes {
		if next.IsZero() || next.After(t.Now) {
			break
		}
		at, due = next, true
		next = schedule.Next(next)
	}
	return at, due
}
