// Package logs reads what agents did and what commands printed, wherever it is:
// in Postgres or in the bucket, to which the sweep moves what is old. It also
// checks that the bucket has what the rows say, and nothing else.
package logs

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"

	"tuluat.ai/harness/shared/archive"
	"tuluat.ai/harness/shared/archive/part"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

// Store is what is read of the rows.
type Store interface {
	ListLogs(ctx context.Context, f postgres.LogFilter, after view.Place, limit int) ([]view.LogEntry, view.Place, error)
	LogArchives(ctx context.Context, f postgres.LogFilter, after view.Place, behind postgres.LogArchive, limit int) ([]postgres.LogArchive, error)
	ReadOutput(ctx context.Context, id harness.ExecutionID, stream string, offset int64, limit int) (view.Output, error)
	OutputArchiveAt(ctx context.Context, id harness.ExecutionID, stream string, offset int64) (postgres.OutputArchive, int64, error)
	ArchiveSums(ctx context.Context, after string, limit int) ([]postgres.ArchiveSum, error)
	ArchiveSum(ctx context.Context, key string) (postgres.ArchiveSum, error)
}

// Objects is the bucket. *archive.Store is one.
type Objects interface {
	Get(ctx context.Context, key string) (io.ReadCloser, int64, error)
	List(ctx context.Context, prefix, after string, limit int) ([]archive.Object, bool, error)
}

// Reader reads. It is safe for concurrent use.
type Reader struct {
	Store   Store
	Objects Objects // nil: there is no bucket

	room chan struct{} // for objects in memory
}

// NewReader returns a Reader. objects may be nil.
func NewReader(store Store, objects Objects) *Reader {
	return &Reader{Store: store, Objects: objects, room: make(chan struct{}, objectsAtOnce)}
}

const (
	objectsAtOnce = 4  // in memory, over all requests
	archivesAsked = 20 // rows of objects per statement
	// objectsRead is after how many objects a page ends, if it can: those of
	// different agents cover the same time, and the page has to look into each.
	objectsRead = 8
)

// errNoBucket says where the rest is.
var errNoBucket = harness.Errorf(harness.Unavailable, "this is in the archive, and the API has no bucket configured: set S3_BUCKET as for the sweep")

// List is postgres.Store.ListLogs over what Postgres has and what the archive has.
// It reads one object at a time, whole: nothing is shown of one whose digest is
// wrong. Of kind Internal, with the key: an object is missing or changed.
func (r *Reader) List(ctx context.Context, f postgres.LogFilter, after view.Place, limit int) ([]view.LogEntry, view.Place, error) {
	// Postgres is read first: what moves to the archive in between is found twice,
	// and not never.
	live, next, err := r.Store.ListLogs(ctx, f, after, limit)
	if err != nil {
		return nil, view.Place{}, err
	}
	p := &page{filter: f, after: after, bound: next, limit: limit}
	for _, v := range live {
		p.add(v)
	}
	var last postgres.LogArchive
	for {
		archives, err := r.Store.LogArchives(ctx, f, after, last, archivesAsked)
		if err != nil {
			return nil, view.Place{}, err
		}
		for _, a := range archives {
			if p.complete(a) {
				return p.result()
			}
			if err := r.read(ctx, a, p); err != nil {
				return nil, view.Place{}, err
			}
			last = a
		}
		if len(archives) < archivesAsked {
			return p.result()
		}
	}
}

// read adds what an object has for the page.
func (r *Reader) read(ctx context.Context, a postgres.LogArchive, p *page) error {
	data, err := r.fetch(ctx, a.Key, part.Sum{SHA256: a.SHA256, Size: a.Size})
	if err != nil {
		return err
	}
	defer r.leave()
	p.objects++
	return part.ReadEntries(data, p.after, func(v view.LogEntry) (bool, error) { return p.take(v), nil })
}

// fetch reads an object into memory; its caller leaves when it is done with that.
func (r *Reader) fetch(ctx context.Context, key string, want part.Sum) ([]byte, error) {
	if r.Objects == nil {
		return nil, errNoBucket
	}
	select {
	case r.room <- struct{}{}:
	case <-ctx.Done():
		return nil, harness.Wrap(harness.Unavailable, context.Cause(ctx), "too many read the archive")
	}
	data, err := part.Fetch(ctx, r.Objects, key, want)
	if err != nil {
		r.leave()
	}
	return data, err
}

func (r *Reader) leave() { <-r.room }

// page collects the newest entries of a list behind a place.
type page struct {
	filter  postgres.LogFilter
	after   view.Place
	bound   view.Place // nothing is known of what is older; the zero place: all is known
	limit   int
	objects int // that were read
	found   []view.LogEntry
}

// complete reports whether a, and every object whose newest entry is older still,
// has nothing for the page.
func (p *page) complete(a postgres.LogArchive) bool {
	newest := view.LogEntry{CreatedAt: a.Newest.At, ID: a.Newest.ID}
	if p.bound.ID != "" && p.behind(newest, p.bound) {
		return true
	}
	if len(p.found) == p.limit && compare(newest, p.found[p.limit-1]) > 0 {
		return true
	}
	if p.objects >= objectsRead && (p.after.ID == "" || p.behind(newest, p.after)) {
		p.bound = placeOf(view.LogEntry{CreatedAt: newest.CreatedAt, ID: newest.ID + 1})
		return true
	}
	return false
}

// take adds an entry of an object if it is of the page. It returns false when the
// object has no more for it.
func (p *page) take(v view.LogEntry) bool {
	switch {
	case p.after.ID != "" && !p.behind(v, p.after), !p.filter.Until.IsZero() && !v.CreatedAt.Before(p.filter.Until):
		return true
	case p.bound.ID != "" && p.behind(v, p.bound), !p.filter.Since.IsZero() && v.CreatedAt.Before(p.filter.Since),
		len(p.found) == p.limit && compare(v, p.found[p.limit-1]) > 0:
		return false
	}
	if p.matches(v) {
		p.add(v)
	}
	return true
}

func (p *page) matches(v view.LogEntry) bool {
	f := p.filter
	return (f.Session == "" || v.Session == f.Session) &&
		(len(f.Levels) == 0 || slices.Contains(f.Levels, harness.Level(v.Level))) &&
		(f.Text == "" || strings.Contains(strings.ToLower(v.Message), strings.ToLower(harness.CleanText(f.Text))))
}

// add puts an entry at its place, once.
func (p *page) add(v view.LogEntry) {
	at, there := slices.BinarySearchFunc(p.found, v, compare)
	if there {
		return
	}
	p.found = slices.Insert(p.found, at, v)
	p.found = p.found[:min(len(p.found), p.limit)]
}

func (p *page) result() ([]view.LogEntry, view.Place, error) {
	if p.bound.ID != "" {
		p.found = slices.DeleteFunc(p.found, func(v view.LogEntry) bool { return p.behind(v, p.bound) })
	}
	if len(p.found) == p.limit {
		return p.found, placeOf(p.found[p.limit-1]), nil
	}
	return p.found, p.bound, nil
}

// behind reports whether v comes after a place of the list, newest first.
func (p *page) behind(v view.LogEntry, place view.Place) bool {
	id, err := strconv.ParseInt(place.ID, 10, 64)
	return err == nil && compare(v, view.LogEntry{CreatedAt: place.At, ID: id}) > 0
}

// compare orders entries newest first.
func compare(a, b view.LogEntry) int {
	return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.ID, a.ID))
}

func placeOf(v view.LogEntry) view.Place {
	return view.Place{At: v.CreatedAt, ID: strconv.FormatInt(v.ID, 10)}
}

// Output is postgres.Store.ReadOutput, also of what is in the archive.
func (r *Reader) Output(ctx context.Context, id harness.ExecutionID, stream string, offset int64, limit int) (view.Output, error) {
	o, err := r.Store.ReadOutput(ctx, id, stream, offset, limit)
	if !errors.Is(err, postgres.ErrArchived) {
		return o, err
	}
	a, total, err := r.Store.OutputArchiveAt(ctx, id, stream, offset)
	if harness.KindOf(err) == harness.NotFound {
		return view.Output{}, harness.Wrap(harness.NotFound, err, "the archive does not keep this any more")
	}
	if err != nil {
		return view.Output{}, err
	}
	text, err := r.fetch(ctx, a.Key, part.Sum{SHA256: a.SHA256, Size: a.Size})
	if err != nil {
		return view.Output{}, err
	}
	defer r.leave()
	printed, err := part.Decompressed(text)
	if err != nil {
		return view.Output{}, err
	}
	defer printed.Close()
	data := make([]byte, min(int64(limit), a.End-offset))
	if _, err = io.CopyN(io.Discard, printed, offset-a.Start); err == nil {
		_, err = io.ReadFull(printed, data)
	}
	return view.Output{Stream: stream, Offset: offset, Data: data, Next: offset + int64(len(data)), Total: total}, err
}
