// Package status keeps the stored agents in step with their source, and the
// status of their resources, where they are resources, in step with the rows.
// Every event of the source causes the same full, idempotent reconcile: events
// are hints, the source is the truth, and whatever was missed is found the next
// time. A write of ours comes back as an event too, and finds nothing to do.
package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// Source says what agents there are now. An error says that nothing is known,
// which is not "no agents".
type Source interface {
	Read(ctx context.Context) (Found, error)
}

// Store keeps them.
type Store interface {
	PutAgents(ctx context.Context, texts []postgres.AgentText, broken []postgres.BrokenSource) ([]postgres.AgentStatus, []event.Event, error)
	PutWorkflows(ctx context.Context, texts []postgres.WorkflowText, broken []postgres.BrokenSource) ([]postgres.WorkflowStatus, error)
	WorkflowStandings(ctx context.Context) (map[harness.WorkflowName]postgres.WorkflowStanding, error)
	Standings(ctx context.Context, names ...harness.AgentName) ([]postgres.Standing, error)
	StatusDirty(ctx context.Context, every time.Duration, limit int) ([]harness.AgentName, error)
	ClaimStatus(ctx context.Context, agent harness.AgentName, every time.Duration) (time.Time, error)
	RenewStatus(ctx context.Context, agent harness.AgentName, token time.Time) (time.Time, error)
	StatusWritten(ctx context.Context, agent harness.AgentName, token time.Time, digest string) error
	StatusIsNot(ctx context.Context, standing postgres.Standing) error
	StatusIs(ctx context.Context, standings []postgres.Standing) error
}

// Options are what a Reconciler needs.
type Options struct {
	Source    Source
	Resources Resources // nil: the source has no resources, and nothing shows a status
	Store     Store
	Publish   func(context.Context, ...event.Event)
	Log       *slog.Logger
	Metrics   prometheus.Registerer
	Now       func() time.Time
}

// Reconciler is the function.
type Reconciler struct {
	Options
	changes *prometheus.CounterVec
	written *prometheus.CounterVec

	running sync.Mutex   // one full reconcile at a time
	begun   atomic.Int64 // full reconciles
	done    int64        // the last of them that succeeded; under running
	waiting sync.Map     // harness.AgentName: a request waits to write its status
}

// New returns a Reconciler.
func New(o Options) *Reconciler {
	counter := func(name, help, label string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		o.Metrics.MustRegister(c)
		return c
	}
	return &Reconciler{
		Options: o,
		changes: counter("tuluat_agent_status_changes_total", "Changes of an agent's status, by the phase it came to.", "phase"),
		written: counter("tuluat_resource_status_writes_total", "Statuses written to resources, by kind.", "kind"),
	}
}

// Reconcile makes the stored agents what the source says now, and statuses what
// the rows say. Requests that come while one runs share the next.
func (r *Reconciler) Reconcile(ctx context.Context, e event.Event) error {
	late, err := r.share(ctx, e)
	for _, name := range late {
		err = errors.Join(err, r.keepFresh(ctx, name))
	}
	return err
}

// share runs a full reconcile unless one that began after this request came has
// succeeded meanwhile. It returns whose status was written too short a time ago.
func (r *Reconciler) share(ctx context.Context, e event.Event) ([]harness.AgentName, error) {
	asked := r.begun.Load()
	r.running.Lock()
	defer r.running.Unlock()
	if r.done > asked && e.Type != event.Ping {
		return nil, nil
	}
	run := r.begun.Add(1)
	late, err := r.reconcile(ctx, e)
	if err == nil {
		r.done = run
	}
	return late, err
}

func (r *Reconciler) reconcile(ctx context.Context, e event.Event) ([]harness.AgentName, error) {
	found, err := r.Source.Read(ctx)
	if err != nil {
		return nil, err
	}
	for _, w := range found.Warnings {
		r.Log.Warn("part of the agents' source cannot be used; what it last defined is kept", "reason", w)
	}
	changed, events, err := r.Store.PutAgents(ctx, found.Texts, found.Broken)
	if err != nil {
		return nil, err
	}
	for _, a := range changed {
		r.changes.WithLabelValues(string(a.Phase)).Inc()
		level := slog.LevelInfo
		if a.Phase == harness.AgentInvalid || a.Phase == harness.AgentReady && a.Reason != "" {
			level = slog.LevelWarn
		}
		r.Log.Log(ctx, level, "agent status changed", "agent", string(a.Name), "phase", string(a.Phase), "revision", a.Revision, "reason", a.Reason)
	}
	r.Publish(ctx, events...)
	if err := r.workflows(ctx, found); err != nil {
		return nil, err
	}
	if r.Resources == nil {
		return nil, nil
	}
	return r.statuses(ctx, found.Resources, e.Type == event.Ping)
}

// workflows makes the stored workflows what the source says now.
func (r *Reconciler) workflows(ctx context.Context, found Found) error {
	if found.Unlisted {
		return nil
	}
	changed, err := r.Store.PutWorkflows(ctx, found.Workflows, found.Broken)
	if err != nil {
		return err
	}
	for _, w := range changed {
		level := slog.LevelInfo
		if w.Phase == harness.AgentInvalid {
			level = slog.LevelWarn
		}
		r.Log.Log(ctx, level, "workflow status changed", "workflow", string(w.Name), "phase", string(w.Phase), "revision", w.Revision, "reason", w.Reason)
	}
	return nil
}

// statuses writes every status that is not as the rows say. again asks those who
// need an agent's Secrets to look once more where one was missing.
func (r *Reconciler) statuses(ctx context.Context, resources []Resource, again bool) (late []harness.AgentName, err error) {
	standings, err := r.Store.Standings(ctx)
	if err != nil {
		return nil, err
	}
	of := make(map[string]postgres.Standing, len(standings))
	for _, s := range standings {
		of[string(s.Name)] = s
	}
	if again && slices.ContainsFunc(standings, lacking) {
		r.Publish(ctx, lookAgain(r.Now()))
	}
	flows, err := r.Store.WorkflowStandings(ctx)
	if err != nil {
		return nil, err
	}
	var right []postgres.Standing
	var failures error
	for _, resource := range resources {
		if resource.Kind == v1alpha1.KindWorkflow {
			failures = errors.Join(failures, r.writeWorkflow(ctx, resource, flows[harness.WorkflowName(resource.Name)]))
			continue
		}
		s, known := of[resource.Name]
		if !known {
			continue
		}
		is, wait, err := r.write(ctx, s, resource)
		failures = errors.Join(failures, err)
		switch {
		case is:
			right = append(right, s)
		case wait > 0:
			late = append(late, s.Name)
		}
	}
	return late, errors.Join(failures, r.Store.StatusIs(ctx, right))
}

// lookAgain is the status event of no agent: whoever checks Secrets checks those
// of all agents, whatever the event names.
func lookAgain(now time.Time) event.Event {
	return event.Event{ID: fmt.Sprintf("agent.status.changed::%d", now.UnixMicro()), Type: event.AgentStatusChanged}
}
