package reap

import (
	"context"
	"errors"
	"fmt"

	"tuluat.ai/harness/shared/archive/part"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

// forgetStore is what forgetting reads and writes of the rows.
type forgetStore interface {
	ForgetsOpen(ctx context.Context, limit int) ([]string, error)
	ForgetBegin(ctx context.Context, id string) error
	ForgetWaits(ctx context.Context, id string) (int, error)
	ForgetReason(ctx context.Context, id, reason string) error
	ForgetFiles(ctx context.Context, id string, limit int) ([]postgres.ForgetFile, error)
	ForgetFileGone(ctx context.Context, id string, file harness.AttachmentID) error
	ForgetOutput(ctx context.Context, id string) (int, error)
	ForgetLogs(ctx context.Context, id string, limit int) (int, error)
	ForgetArchive(ctx context.Context, id string) (old, next postgres.LogArchive, sessions []harness.SessionID, found bool, err error)
	ForgetReplaced(ctx context.Context, id string, old postgres.LogArchive, key string) error
	ForgetSessions(ctx context.Context, id string, limit int) ([]harness.SessionID, error)
	ForgetSession(ctx context.Context, id string, session harness.SessionID) error
	ForgetPerson(ctx context.Context, id string) error
}

// forgetsAtOnce is how many requests a pass works on.
const forgetsAtOnce = 10

// forget takes requests to forget people on. Objects go before their rows, log
// entries before the objects that may get them, and what it was about last: a pass
// that breaks off is gone on with by the next, which finds what is left.
func (r *Reaper) forget(ctx context.Context, b *box) error {
	ids, err := r.Store.ForgetsOpen(ctx, forgetsAtOnce)
	b.count(len(ids), 0)
	var failures error
	for _, id := range ids {
		if err != nil || b.over() {
			break
		}
		why, failed := r.forgetOne(ctx, b, id)
		if failed != nil {
			why = harness.MessageOf(failed)
			failures = errors.Join(failures, failed)
		}
		if why == "" {
			b.count(0, 1)
			continue
		}
		err = r.Store.ForgetReason(ctx, id, why)
	}
	return errors.Join(err, failures)
}

// unfinished is why a request waits for the next pass when nothing else is wrong.
const unfinished = "there is more than one pass deletes"

// forgetOne works on one request and returns why it is not done, or "".
func (r *Reaper) forgetOne(ctx context.Context, b *box, id string) (why string, err error) {
	if err := r.Store.ForgetBegin(ctx, id); err != nil {
		return "", err
	}
	if n, err := r.Store.ForgetWaits(ctx, id); err != nil || n > 0 {
		return fmt.Sprintf("%d commands, sandboxes or volumes of the person have not ended", n), err
	}
	for _, step := range []func(context.Context, *box, string) (string, error){r.forgetFiles, r.forgetOutput, r.forgetLogs, r.forgetArchives, r.forgetSessions} {
		if why, err := step(ctx, b, id); err != nil || why != "" {
			return why, err
		}
	}
	if err := r.Store.ForgetPerson(ctx, id); err != nil {
		return "", err
	}
	r.Log.Info("person forgotten", "request", id)
	return "", nil
}

// remove deletes an object, which without a bucket cannot be.
func (r *Reaper) remove(ctx context.Context, key string) error {
	if r.Objects == nil {
		return errNoBucket
	}
	return r.Objects.Delete(ctx, key)
}

func (r *Reaper) forgetFiles(ctx context.Context, b *box, id string) (string, error) {
	for !b.over() {
		files, err := r.Store.ForgetFiles(ctx, id, r.Batch)
		if err != nil || len(files) == 0 {
			return "", err
		}
		for _, file := range files {
			if err := r.remove(ctx, file.Key); err != nil {
				return "", err
			}
			if err := r.Store.ForgetFileGone(ctx, id, file.ID); err != nil {
				return "", err
			}
		}
	}
	return unfinished, nil
}

func (r *Reaper) forgetOutput(ctx context.Context, b *box, id string) (string, error) {
	for !b.over() {
		left, err := r.Store.ForgetOutput(ctx, id)
		if err != nil || left == 0 {
			return "", err
		}
		keys, err := r.Store.ArchivesToRemove(ctx, r.Batch)
		if err != nil {
			return "", err
		}
		for _, key := range keys {
			if err := r.remove(ctx, key); err != nil {
				return "", err
			}
			if err := r.Store.ArchiveRemoved(ctx, key); err != nil {
				return "", err
			}
		}
	}
	return unfinished, nil
}

func (r *Reaper) forgetLogs(ctx context.Context, b *box, id string) (string, error) {
	for !b.over() {
		if n, err := r.Store.ForgetLogs(ctx, id, r.Batch); err != nil || n == 0 {
			return "", err
		}
	}
	return unfinished, nil
}

// forgetArchives writes objects again without the entries of the request: first
// the row of the new one, then the new one, and when that is verified the old one
// is one to remove.
func (r *Reaper) forgetArchives(ctx context.Context, b *box, id string) (string, error) {
	for !b.over() {
		old, next, sessions, found, err := r.Store.ForgetArchive(ctx, id)
		if err != nil || !found {
			return "", err
		}
		if r.Objects == nil {
			return "", errNoBucket
		}
		if err := r.rewrite(ctx, id, old, next, sessions); err != nil {
			return "", err
		}
	}
	return unfinished, nil
}

func (r *Reaper) rewrite(ctx context.Context, id string, old, next postgres.LogArchive, sessions []harness.SessionID) error {
	if next.State != postgres.ArchiveStored {
		forgotten := map[harness.SessionID]bool{}
		for _, s := range sessions {
			forgotten[s] = true
		}
		left, err := part.NewEntries()
		if err != nil {
			return err
		}
		data, err := part.Fetch(ctx, r.Objects, old.Key, part.Sum{SHA256: old.SHA256, Size: old.Size})
		if err == nil {
			err = part.ReadEntries(data, view.Place{}, func(v view.LogEntry) (bool, error) {
				if forgotten[v.Session] {
					return true, nil
				}
				full, err := left.Add(v)
				if full { // fewer entries of the same cannot need more room
					err = harness.Errorf(harness.Internal, "the entries of %s do not fit", old.Key)
				}
				return true, err
			})
		}
		text, sum, closed := left.Close()
		if err = errors.Join(err, closed); err != nil {
			return err
		}
		if left.Count == 0 {
			return r.Store.ForgetReplaced(ctx, id, old, "")
		}
		described(&next, left, sum)
		if err := r.Store.PlanLogArchive(ctx, next, sessionsOf(left)); err != nil {
			return err
		}
		if err := r.put(ctx, next.Key, text); err != nil {
			return err
		}
	}
	if err := r.readBack(ctx, next.Key, part.Sum{SHA256: next.SHA256, Size: next.Size}); err != nil {
		return err
	}
	return r.Store.ForgetReplaced(ctx, id, old, next.Key)
}

func (r *Reaper) forgetSessions(ctx context.Context, b *box, id string) (string, error) {
	for !b.over() {
		sessions, err := r.Store.ForgetSessions(ctx, id, r.Batch)
		if err != nil || len(sessions) == 0 {
			return "", err
		}
		for _, s := range sessions {
			if b.over() {
				return unfinished, nil
			}
			if err := r.Store.ForgetSession(ctx, id, s); err != nil {
				return "", err
			}
		}
	}
	return unfinished, nil
}
