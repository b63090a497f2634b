package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// Resource is a resource of the cluster as it was read.
type Resource struct {
	Kind       string
	Name       string
	Generation int64
	Version    string          // its resourceVersion: a write of another one is a conflict
	Status     json.RawMessage // as it is there; nil: none
	Problems   string          // of a workflow: what is wrong with its text; empty: nothing
}

// Resources writes statuses.
type Resources interface {
	// Get reads one resource. harness.NotFound: there is none.
	Get(ctx context.Context, kind, name string) (Resource, error)
	// PutStatus makes the status of r what status says, which is no change of
	// the resource's generation. harness.Conflict: somebody has changed r since it
	// was read; harness.NotFound: it is gone.
	PutStatus(ctx context.Context, r Resource, status any) error
}

const (
	writeEvery = postgres.StatusEvery
	// hold is how long a request waits for that; what takes longer the sweep does.
	hold       = 5 * time.Second
	dirtyBatch = 200
)

// Changed freshens the status of the agent whose session or sandbox changed, or
// of every agent whose status is behind when the event names none.
func (r *Reconciler) Changed(ctx context.Context, e event.Event) error {
	if r.Resources == nil {
		return nil // a folder has no status
	}
	names := []harness.AgentName{e.Agent}
	if e.Agent == "" {
		var err error
		if names, err = r.Store.StatusDirty(ctx, writeEvery, dirtyBatch); err != nil {
			return err
		}
	}
	var failures error
	for _, name := range names {
		failures = errors.Join(failures, r.keepFresh(ctx, name))
	}
	return failures
}

// keepFresh freshens one status, after a wait where it was written just now.
// Whoever comes while another request waits is served by it.
func (r *Reconciler) keepFresh(ctx context.Context, name harness.AgentName) error {
	wait, err := r.freshen(ctx, name)
	if err != nil || wait <= 0 || wait > hold {
		return err
	}
	if _, waits := r.waiting.LoadOrStore(name, true); waits {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done(): // it stays dirty
	}
	r.waiting.Delete(name) // before the rows are read: what changes from now on is another's
	if ctx.Err() != nil {
		return nil
	}
	_, err = r.freshen(ctx, name)
	return err
}

// freshen writes the status of one agent if it is behind, and says how long it
// is until it may be.
func (r *Reconciler) freshen(ctx context.Context, name harness.AgentName) (wait time.Duration, err error) {
	standings, err := r.Store.Standings(ctx, name)
	if err != nil || len(standings) == 0 || !standings[0].Dirty() {
		return 0, err
	}
	if wait := writeEvery - standings[0].Age; wait > 0 {
		return wait, nil
	}
	resource, err := r.Resources.Get(ctx, v1alpha1.KindAgent, string(name))
	if harness.KindOf(err) == harness.NotFound {
		return 0, nil // the next reconcile says that it is deleted
	}
	if err != nil {
		return 0, err
	}
	right, wait, err := r.write(ctx, standings[0], resource)
	if err == nil && right {
		err = r.Store.StatusIs(ctx, standings)
	}
	return wait, err
}

// write makes the status of a resource what its agent's standing says. right
// says that it is so already and nothing was written; wait, that it may not be
// written for so long.
func (r *Reconciler) write(ctx context.Context, s postgres.Standing, resource Resource) (right bool, wait time.Duration, err error) {
	want, right := r.compare(s, resource)
	if right {
		return true, 0, nil
	}
	token, err := r.Store.ClaimStatus(ctx, s.Name, writeEvery)
	if errors.Is(err, postgres.ErrNothingDue) {
		// The rows may say that it was written: to a resource that was replaced
		// by one of the same text. Nothing but this look would notice.
		return false, max(writeEvery-s.Age, time.Second), r.Store.StatusIsNot(ctx, s)
	}
	if err != nil {
		return false, 0, err
	}
	err = r.Resources.PutStatus(ctx, resource, want)
	if harness.KindOf(err) == harness.Conflict {
		s, token, err = r.rewrite(ctx, s, resource, token)
	}
	switch {
	case errors.Is(err, postgres.ErrNothingDue): // whoever claimed it meanwhile knows more
		return false, writeEvery, nil
	case harness.KindOf(err) == harness.NotFound:
		return false, 0, nil
	}
	if err != nil {
		return false, 0, fmt.Errorf("status of agent %s: %w", s.Name, err)
	}
	r.written.WithLabelValues(v1alpha1.KindAgent).Inc()
	return false, 0, r.Store.StatusWritten(ctx, s.Name, token, s.Digest)
}

// rewrite writes the status of a resource that has changed since it was read. The
// resource is read before its agent's standing: whoever wrote the version that
// the patch names knew nothing newer than the standing read here. It returns what
// was written by which claim; postgres.ErrNothingDue: the claim was overtaken.
func (r *Reconciler) rewrite(ctx context.Context, s postgres.Standing, resource Resource, token time.Time) (postgres.Standing, time.Time, error) {
	resource, err := r.Resources.Get(ctx, resource.Kind, resource.Name)
	if err != nil {
		return s, token, err
	}
	standings, err := r.Store.Standings(ctx, s.Name)
	if err != nil {
		return s, token, err
	}
	if len(standings) == 0 {
		return s, token, harness.Errorf(harness.NotFound, "agent %s is gone", s.Name)
	}
	s = standings[0]
	if token, err = r.Store.RenewStatus(ctx, s.Name, token); err != nil {
		return s, token, err
	}
	want, right := r.compare(s, resource)
	if right {
		return s, token, nil
	}
	return s, token, r.Resources.PutStatus(ctx, resource, want)
}

// compare returns the status that resource should have, and whether it has it.
func (r *Reconciler) compare(s postgres.Standing, resource Resource) (v1alpha1.Status, bool) {
	var is v1alpha1.Status
	readable := json.Unmarshal(resource.Status, &is) == nil
	want := statusOf(s, is.Conditions, r.Now())
	return want, readable && equal(is, want)
}

// writeWorkflow does the same for a workflow, which is looked at with all others
// only: at each reconcile.
func (r *Reconciler) writeWorkflow(ctx context.Context, resource Resource, w postgres.WorkflowStanding) error {
	var is v1alpha1.WorkflowStatus
	readable := json.Unmarshal(resource.Status, &is) == nil
	want := workflowStatus(resource.Generation, resource.Problems, w, is.Conditions, r.Now())
	if readable && equal(is, want) {
		return nil
	}
	err := r.Resources.PutStatus(ctx, resource, want)
	switch harness.KindOf(err) {
	case harness.NotFound, harness.Conflict: // whoever changed it has woken us
		return nil
	}
	if err != nil {
		return fmt.Errorf("status of workflow %s: %w", resource.Name, err)
	}
	r.written.WithLabelValues(v1alpha1.KindWorkflow).Inc()
	return nil
}

// equal compares two statuses as they are written.
func equal(a, b any) bool {
	x, err := json.Marshal(a)
	if err != nil { // a struct of plain values always marshals
		panic(err)
	}
	y, err := json.Marshal(b)
	return err == nil && string(x) == string(y)
}
