package reap

import (
	"context"
	"errors"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/sandbox"
)

const (
	endTime   = 20 * time.Second // for the removal of one sandbox
	leakGrace = time.Minute      // younger objects without a row are left alone

	// endedGrace is how long an object that ended by itself is left to whoever
	// runs a command in it: only the object says that it was evicted or out of
	// memory. Should the holder have died, its lease (a minute) must end first and
	// another request must have come and looked.
	endedGrace = 5 * time.Minute
)

// endSandboxes removes sandboxes that are past their life, idle, stuck, or left
// behind half removed. A row is GONE only when its object is proved absent.
func (r *Reaper) endSandboxes(ctx context.Context, b *box) error {
	var failures error
	err := b.batches(func() (int, error) {
		records, err := r.Store.SandboxesToEnd(ctx, r.Batch)
		if err != nil {
			return 0, err
		}
		failures = errors.Join(failures, each(b, records, func(record postgres.SandboxRecord) error {
			if err := r.terminate(ctx, placed(record)); err != nil {
				return err
			}
			return r.gone(ctx, record, record.Reason)
		}))
		return len(records), nil
	})
	return errors.Join(err, failures)
}

func placed(r postgres.SandboxRecord) sandbox.Sandbox {
	return sandbox.Sandbox{ID: r.ID, Name: r.Name, UID: r.UID, Agent: r.Agent, Session: r.Session, Spec: r.Spec, ExpiresAt: r.ExpiresAt}
}

func (r *Reaper) terminate(ctx context.Context, sb sandbox.Sandbox) error {
	ctx, cancel := context.WithTimeoutCause(ctx, endTime, errors.New("removal of a sandbox"))
	defer cancel()
	return r.Driver.Terminate(ctx, sb)
}

// gone records that a sandbox does not exist and wakes who waited for its place.
func (r *Reaper) gone(ctx context.Context, record postgres.SandboxRecord, reason string) error {
	events, err := r.Store.SandboxGone(ctx, record.ID, record.Agent, reason)
	if err != nil {
		return err
	}
	r.Log.Info("sandbox ended", "sandbox", string(record.ID), "session", string(record.Session), "agent", string(record.Agent), "reason", reason)
	r.publish(ctx, events)
	return nil
}

// publish sends events whose outbox rows are committed; a failure is left to
// their repeat.
func (r *Reaper) publish(ctx context.Context, events []event.Event) {
	for _, u := range first(events) {
		if err := r.send(ctx, u); err != nil {
			r.Log.Warn("event not published; a later pass repeats it", "event", u.ID, "type", string(u.Type), "session", string(u.Session), "err", err)
		}
	}
}

// findLeaks compares what exists with the rows, both ways. A row is written
// before its object and names are never used twice, so the rows are read before
// and after the objects: what an object lacks afterwards it never had, and what
// a row READY before lacks is gone.
func (r *Reaper) findLeaks(ctx context.Context, b *box) error {
	return r.compared(ctx, harness.ObjectSandbox, 0, func(c *comparing) (bool, error) {
		before, err := r.Store.LiveSandboxes(ctx)
		if err != nil {
			return false, err
		}
		objects, err := r.Driver.List(ctx)
		if err != nil {
			return false, err
		}
		after, err := r.Store.LiveSandboxes(ctx)
		if err != nil {
			return false, err
		}
		leaked, lost := compare(before, objects, after, r.Now())
		b.leaks(len(leaked), len(lost))
		c.Known, c.There = int64(len(after)), int64(len(objects))
		for _, f := range leaked {
			c.leaked(f.Name, f.CreatedAt)
		}
		for _, record := range lost {
			c.lost(record.Name)
		}
		return true, errors.Join(
			each(b, leaked, func(f sandbox.Found) error {
				r.Log.Warn("sandbox object without a row", "sandbox", f.Name)
				err := r.terminate(ctx, sandbox.Sandbox{Name: f.Name, UID: f.UID})
				c.removed(err)
				return err
			}),
			each(b, lost, func(record postgres.SandboxRecord) error {
				// What has ended by itself may still be there.
				err := r.terminate(ctx, placed(record))
				if err == nil {
					err = r.gone(ctx, record, postgres.SandboxLost)
				}
				c.marked(err)
				return err
			}),
		)
	})
}

// compare says which objects no row knows and which READY rows have no object
// that lives.
func compare(before []postgres.SandboxRecord, objects []sandbox.Found, after []postgres.SandboxRecord, now time.Time) (leaked []sandbox.Found, lost []postgres.SandboxRecord) {
	known := map[string]bool{}
	for _, record := range after {
		known[record.Name] = true
	}
	exists := map[string]bool{}
	for _, object := range objects {
		// Whoever waits for the last words of one that ended has had time to read them.
		exists[object.Name] = object.EndedAt.IsZero() || now.Sub(object.EndedAt) <= endedGrace
		if !known[object.Name] && now.Sub(object.CreatedAt) > leakGrace {
			leaked = append(leaked, object)
		}
	}
	for _, record := range before {
		if record.State == harness.SandboxReady && !exists[record.Name] {
			lost = append(lost, record)
		}
	}
	return leaked, lost
}

// endOrphans ends commands whose sandbox is gone and that nobody holds.
func (r *Reaper) endOrphans(ctx context.Context, b *box) error {
	return b.batches(func() (int, error) {
		events, err := r.Store.EndOrphans(ctx, postgres.Lease{Owner: r.Owner, For: leaseTime}, r.Batch)
		b.count(len(events), len(events))
		r.publish(ctx, events)
		return len(events), err
	})
}
