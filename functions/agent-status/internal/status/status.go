// Package status keeps the stored agents in step with their source. Every event
// causes the same full, idempotent reconcile: events are hints, the source is
// the truth, and whatever was missed is found the next time.
package status

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// Source says what agents there are now.
type Source interface{ Read() (Found, error) }

// Store keeps them.
type Store interface {
	PutAgents(ctx context.Context, texts []postgres.AgentText, broken []postgres.BrokenSource) ([]postgres.AgentStatus, []event.Event, error)
}

// Options are what a Reconciler needs.
type Options struct {
	Source  Source
	Store   Store
	Publish func(context.Context, ...event.Event)
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Reconciler is the function.
type Reconciler struct {
	Options
	changes *prometheus.CounterVec
}

// New returns a Reconciler.
func New(o Options) *Reconciler {
	r := &Reconciler{Options: o, changes: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tuluat_agent_status_changes_total", Help: "Changes of an agent's status, by the phase it came to.",
	}, []string{"phase"})}
	o.Metrics.MustRegister(r.changes)
	return r
}

// Reconcile makes the stored agents what the source says now.
func (r *Reconciler) Reconcile(ctx context.Context, _ event.Event) error {
	found, err := r.Source.Read()
	if err != nil {
		return err
	}
	for _, w := range found.Warnings {
		r.Log.Warn("part of the agents' source is refused; what it last defined is kept", "reason", w)
	}
	changed, events, err := r.Store.PutAgents(ctx, found.Texts, found.Broken)
	if err != nil {
		return err
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
	return nil
}
