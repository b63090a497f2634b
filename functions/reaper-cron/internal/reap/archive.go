package reap

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	"tuluat.ai/harness/shared/archive"
	"tuluat.ai/harness/shared/archive/part"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

// Objects is the bucket. *archive.Store is one.
type Objects interface {
	Put(ctx context.Context, key string, body io.Reader, size int64, mimeType string) error
	Get(ctx context.Context, key string) (io.ReadCloser, int64, error)
	Delete(ctx context.Context, key string) error
	List(ctx context.Context, prefix, after string, limit int) ([]archive.Object, bool, error)
	Uploads(ctx context.Context, prefix string) (uploads []archive.Upload, more bool, err error)
	Abort(ctx context.Context, u archive.Upload) error
}

// archiveStore is what the archive reads and writes of the rows.
type archiveStore interface {
	LogDaysDue(ctx context.Context, limit int) ([]postgres.LogDay, error)
	NextLogPart(ctx context.Context, d postgres.LogDay) (postgres.LogArchive, error)
	ReadLogDay(ctx context.Context, d postgres.LogDay, limit int, take func(view.LogEntry) (bool, error)) error
	PlanLogArchive(ctx context.Context, a postgres.LogArchive, sessions []harness.SessionID) error
	ArchivePut(ctx context.Context, key string) error
	ArchiveFailed(ctx context.Context, key, reason string) error
	LogArchiveVerified(ctx context.Context, a postgres.LogArchive) (bool, error)

	OutputsDue(ctx context.Context, limit int) ([]postgres.OutputDue, error)
	OutputParts(ctx context.Context, id harness.ExecutionID) ([]postgres.OutputArchive, error)
	StoredOutput(ctx context.Context, id harness.ExecutionID, stream string, from int64, limit int) (int64, []byte, error)
	PlanOutputArchive(ctx context.Context, a postgres.OutputArchive) error
	OutputArchiveVerified(ctx context.Context, key string) error
	OutputArchived(ctx context.Context, id harness.ExecutionID) error

	ArchivesToRemove(ctx context.Context, limit int) ([]string, error)
	ArchiveRemoved(ctx context.Context, key string) error
	EmptyLogDays(ctx context.Context, limit int) ([]time.Time, error)
	DropLogDay(ctx context.Context, day time.Time) error
}

// errNoBucket is why nothing leaves Postgres.
var errNoBucket = harness.Errorf(harness.Unavailable, "no bucket is configured (S3_BUCKET): what is old stays in Postgres and nothing is dropped")

// archiving are the items that move what is old to the bucket. What happens
// between any two of their statements is found by the next pass in log_archives,
// whose states say how far an object is; rows are deleted in the commit that says
// that their object was read back.
func (r *Reaper) archiving() []item {
	if r.Objects == nil {
		return []item{{"archive", r.sayNoBucket}}
	}
	return []item{
		{"archive", r.archiveLogs},
		{"archive_output", r.archiveOutput},
		{"archive_removal", r.removeArchives},
		{"log_days", r.dropLogDays},
	}
}

// sayNoBucket reports, as a finding and not as a failure, what waits for a bucket.
func (r *Reaper) sayNoBucket(ctx context.Context, b *box) error {
	days, err := r.Store.LogDaysDue(ctx, r.Batch)
	b.count(len(days), 0)
	if err == nil && len(days) > 0 {
		b.note(errNoBucket)
	}
	return err
}

// archiveLogs moves entries of days that are over for their agent.
func (r *Reaper) archiveLogs(ctx context.Context, b *box) error {
	days, err := r.Store.LogDaysDue(ctx, r.Batch)
	if err != nil {
		return err
	}
	b.count(len(days), 0)
	var failures error
	for _, day := range days {
		for more := true; more; {
			if b.over() {
				return failures
			}
			if more, err = r.archiveLogPart(ctx, day); err != nil {
				failures = errors.Join(failures, err)
				if harness.KindOf(err) == harness.Unavailable || harness.KindOf(err) == harness.Denied || harness.KindOf(err) == harness.Exhausted {
					return failures // the others would fail alike
				}
				break
			}
			if !more {
				b.count(0, 1)
			}
		}
	}
	return failures
}

// archiveLogPart takes one part of a day as far as Postgres keeps nothing of it.
// more is false when the day has no entry left.
func (r *Reaper) archiveLogPart(ctx context.Context, day postgres.LogDay) (more bool, err error) {
	a, err := r.Store.NextLogPart(ctx, day)
	if err != nil {
		return false, err
	}
	if a.State != postgres.ArchiveStored {
		if more, err = r.putLogPart(ctx, &a); err != nil || !more {
			return false, err
		}
	}
	if err := r.readBack(ctx, a.Key, part.Sum{SHA256: a.SHA256, Size: a.Size}); err != nil {
		return false, err
	}
	done, err := r.Store.LogArchiveVerified(ctx, a)
	if done {
		r.Log.Info("log entries archived", "agent", string(a.Agent), "day", a.Day.Format(time.DateOnly), "part", a.Part, "entries", a.Entries, "bytes", a.Size)
	}
	return true, err
}

// putLogPart makes the object from what is in Postgres now and puts it: the same
// entries give the same bytes and key, so that a part that was planned before is
// that one again, unless entries came late.
func (r *Reaper) putLogPart(ctx context.Context, a *postgres.LogArchive) (more bool, err error) {
	entries, err := part.NewEntries()
	if err != nil {
		return false, err
	}
	err = r.Store.ReadLogDay(ctx, a.LogDay, cmp.Or(r.PartEntries, part.MaxEntries), func(v view.LogEntry) (bool, error) {
		full, err := entries.Add(v)
		return !full, err
	})
	data, sum, closed := entries.Close()
	if err = errors.Join(err, closed); err != nil || entries.Count == 0 {
		return false, err
	}
	described(a, entries, sum)
	if err := r.Store.PlanLogArchive(ctx, *a, sessionsOf(entries)); err != nil {
		return false, err
	}
	return true, r.put(ctx, a.Key, data)
}

func described(a *postgres.LogArchive, entries *part.Entries, sum part.Sum) {
	a.Key, a.SHA256, a.Size, a.Entries = part.EntriesKey(a.Agent, a.Day, a.Part, sum), sum.SHA256, sum.Size, entries.Count
	a.Oldest = postgres.LogPlace{At: entries.Oldest.CreatedAt, ID: entries.Oldest.ID}
	a.Newest = postgres.LogPlace{At: entries.Newest.CreatedAt, ID: entries.Newest.ID}
}

func sessionsOf(entries *part.Entries) []harness.SessionID {
	sessions := make([]harness.SessionID, 0, len(entries.Sessions))
	for id := range entries.Sessions {
		sessions = append(sessions, id)
	}
	return sessions
}

// put puts an object whose row is there.
func (r *Reaper) put(ctx context.Context, key string, data []byte) error {
	if err := r.Objects.Put(ctx, key, bytes.NewReader(data), int64(len(data)), "application/zstd"); err != nil {
		return errors.Join(err, r.Store.ArchiveFailed(ctx, key, harness.MessageOf(err)))
	}
	return r.Store.ArchivePut(ctx, key)
}

// readBack fails, and says in the row that the object is to be put again, unless it
// is what it should be.
func (r *Reaper) readBack(ctx context.Context, key string, want part.Sum) error {
	err := part.Verify(ctx, r.Objects, key, want)
	if errors.Is(err, part.ErrMissing) || errors.Is(err, part.ErrChanged) {
		return errors.Join(err, r.Store.ArchiveFailed(ctx, key, harness.MessageOf(err)))
	}
	return err
}

// archiveOutput moves the output of commands.
func (r *Reaper) archiveOutput(ctx context.Context, b *box) error {
	return b.batches(func() (int, error) {
		due, err := r.Store.OutputsDue(ctx, r.Batch)
		if err != nil {
			return 0, err
		}
		b.count(len(due), 0)
		for _, d := range due {
			if b.over() {
				return 0, nil
			}
			if err := r.archiveOutputOf(ctx, b, d); err != nil {
				return 0, err
			}
			b.count(0, 1)
		}
		return len(due), nil
	})
}

func (r *Reaper) archiveOutputOf(ctx context.Context, b *box, d postgres.OutputDue) error {
	parts, err := r.Store.OutputParts(ctx, d.Execution)
	if err != nil {
		return err
	}
	known := map[string]postgres.OutputArchive{}
	for _, p := range parts {
		known[p.Key] = p
	}
	for _, stream := range []string{"stdout", "stderr"} {
		for from := int64(0); ; {
			start, data, err := r.Store.StoredOutput(ctx, d.Execution, stream, from, part.MaxOutput)
			if err != nil {
				return err
			}
			if len(data) == 0 {
				break
			}
			from = start + int64(len(data))
			if err := r.archiveOutputPart(ctx, known, postgres.OutputArchive{Agent: d.Agent, Execution: d.Execution, Stream: stream, Start: start, End: from}, data); err != nil {
				return err
			}
		}
	}
	return r.Store.OutputArchived(ctx, d.Execution)
}

func (r *Reaper) archiveOutputPart(ctx context.Context, known map[string]postgres.OutputArchive, a postgres.OutputArchive, data []byte) error {
	text, sum, err := part.Compressed(data)
	if err != nil {
		return err
	}
	a.Key, a.SHA256, a.Size = part.OutputKey(a.Execution, a.Stream, a.Start, sum), sum.SHA256, sum.Size
	switch known[a.Key].State {
	case postgres.ArchiveVerified:
		return nil
	case postgres.ArchiveStored:
	default:
		if err := r.Store.PlanOutputArchive(ctx, a); err != nil {
			return err
		}
		if err := r.put(ctx, a.Key, text); err != nil {
			return err
		}
	}
	if err := r.readBack(ctx, a.Key, sum); err != nil {
		return err
	}
	return r.Store.OutputArchiveVerified(ctx, a.Key)
}

// removeArchives deletes objects that were given up, replaced or are too old, and
// then their rows.
func (r *Reaper) removeArchives(ctx context.Context, b *box) error {
	return b.batches(func() (int, error) {
		keys, err := r.Store.ArchivesToRemove(ctx, r.Batch)
		if err != nil {
			return 0, err
		}
		return len(keys), each(b, keys, func(key string) error {
			if err := r.Objects.Delete(ctx, key); err != nil {
				return err
			}
			return r.Store.ArchiveRemoved(ctx, key)
		})
	})
}

// daysAtOnce is how many partitions a pass drops.
const daysAtOnce = 10

// dropLogDays drops partitions that have no entry left.
func (r *Reaper) dropLogDays(ctx context.Context, b *box) error {
	days, err := r.Store.EmptyLogDays(ctx, daysAtOnce)
	b.count(len(days), 0)
	for _, day := range days {
		if err != nil || b.over() {
			break
		}
		if err = r.Store.DropLogDay(ctx, day); err == nil {
			b.count(0, 1)
			r.Log.Info("log day dropped", "day", day.Format(time.DateOnly))
		}
	}
	return err
}
