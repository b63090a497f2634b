package reap

import (
	"context"
	"errors"
	"slices"
	"time"

	"tuluat.ai/harness/shared/archive"
	"tuluat.ai/harness/shared/archive/part"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// bucketStore is what comparing rows with the bucket reads and writes.
type bucketStore interface {
	FilesToRemove(ctx context.Context, limit int) ([]postgres.OutsideObject, error)
	UnknownFiles(ctx context.Context, keys []string) ([]string, error)
	StoredFiles(ctx context.Context, after string, limit int) ([]string, error)
	FileLost(ctx context.Context, key string) (marked bool, err error)
	FilesFound(ctx context.Context, keys []string) (int, error)
	UnknownArchives(ctx context.Context, keys []string) ([]string, error)
	VerifiedArchives(ctx context.Context, after string, limit int) ([]string, error)
	ArchiveLost(ctx context.Context, key string) (still bool, err error)
}

const (
	bucketEvery = time.Hour      // between two comparisons: a list costs money
	uploadGrace = 24 * time.Hour // of an upload in parts

	// keyGrace is how long an object must have had no row to be removed: time for
	// people to see that the rows are another installation's, or of yesterday.
	keyGrace = 24 * time.Hour
	keysPage = 1000

	// A page of which more than half is unknown, and more than so many, is left
	// alone: then it is rather the rows that are wrong.
	fewUnknown = 20
)

// held is why objects without a row are left.
const held = "most objects of a stretch of the bucket have no row: are the rows another installation's, or restored from an old copy? Nothing of them is removed; remove by hand what is really nobody's"

// otherBucket is why rows without an object are left as they are.
const otherBucket = "most rows of a stretch of the bucket have no object: is it another installation's bucket, or an empty one? No row is changed; restore the objects from a copy of the bucket, or name the right one"

// bucketItems are the items that compare the bucket.
func (r *Reaper) bucketItems() []item {
	if r.Objects == nil {
		return []item{{"bucket", func(ctx context.Context, _ *box) error {
			return r.Store.NeverCompared(ctx, []harness.ObjectKind{harness.ObjectArchive, harness.ObjectFile, harness.ObjectUpload}, harness.MessageOf(errNoBucket))
		}}}
	}
	return []item{
		{"planned_files", r.removeFiles},
		{"bucket_archive", r.findKeys(keys{
			kind: harness.ObjectArchive, prefix: part.Prefix, unknown: r.Store.UnknownArchives, relied: r.Store.VerifiedArchives,
			lost: r.Store.ArchiveLost, // the row stays, and with it what is lost
		})},
		{"bucket_files", r.findKeys(keys{
			kind: harness.ObjectFile, prefix: "media/", unknown: r.Store.UnknownFiles, relied: r.Store.StoredFiles, lost: r.Store.FileLost, marks: true, found: r.Store.FilesFound,
		})},
		{"uploads", r.findUploads},
	}
}

// removeFiles removes files that were about to be put and that nothing came of.
func (r *Reaper) removeFiles(ctx context.Context, b *box) error {
	return b.batches(func() (int, error) {
		files, err := r.Store.FilesToRemove(ctx, r.Batch)
		if err != nil {
			return 0, err
		}
		return len(files), each(b, files, func(o postgres.OutsideObject) error {
			if err := r.Objects.Delete(ctx, o.Name); err != nil {
				return err
			}
			_, err := r.Store.OutsideGone(ctx, o, "")
			return err
		})
	})
}

// keys is one kind of objects of the bucket.
type keys struct {
	kind    harness.ObjectKind
	prefix  string
	unknown func(ctx context.Context, keys []string) ([]string, error)           // which of some no row knows
	relied  func(ctx context.Context, after string, limit int) ([]string, error) // on which rows rely
	lost    func(ctx context.Context, key string) (still bool, err error)        // one of them is missing
	marks   bool                                                                 // and then its row relies on it no more
	found   func(ctx context.Context, keys []string) (int, error)                // until it is there again
}

// findKeys compares the bucket with the rows, page by page, over as many passes as
// it takes.
func (r *Reaper) findKeys(k keys) func(context.Context, *box) error {
	return func(ctx context.Context, b *box) error {
		return r.compared(ctx, k.kind, bucketEvery, func(c *comparing) (bool, error) {
			var failures error // to remove some: the others go on
			for !b.over() {
				more, failed, err := r.keysPage(ctx, b, k, c)
				failures = errors.Join(failures, failed)
				if err != nil || !more {
					return err == nil, errors.Join(err, failures)
				}
				if err := r.Store.KeepComparing(ctx, k.kind, c.Comparison); err != nil {
					return false, errors.Join(err, failures)
				}
			}
			return false, failures
		})
	}
}

// keysPage compares one page. The bucket is listed before the rows are asked: a row
// is there before its object and goes after it.
func (r *Reaper) keysPage(ctx context.Context, b *box, k keys, c *comparing) (more bool, failed, err error) {
	objects, more, err := r.Objects.List(ctx, k.prefix, c.Next, keysPage)
	if err != nil {
		return false, nil, err
	}
	named, last := make([]string, len(objects)), ""
	for i, o := range objects {
		named[i], last = o.Key, o.Key
	}
	unknown, err := k.unknown(ctx, named)
	if err != nil {
		return false, nil, err
	}
	if err := r.missing(ctx, b, k, c, named, last, more); err != nil {
		return false, nil, err
	}
	if k.found != nil {
		n, err := k.found(ctx, named)
		if err != nil {
			return false, nil, err
		}
		if n > 0 {
			r.Log.Info("files are in the bucket again", "kind", string(k.kind), "found", n)
		}
		b.count(n, n)
	}
	failed = r.strangers(ctx, b, c, objects, unknown)
	c.There += int64(len(objects))
	c.Next = last
	return more, failed, nil
}

// strangers removes objects that no row knows.
func (r *Reaper) strangers(ctx context.Context, b *box, c *comparing, objects []archive.Object, unknown []string) error {
	slices.Sort(unknown)
	var old []archive.Object
	for _, o := range objects {
		if _, stranger := slices.BinarySearch(unknown, o.Key); stranger && r.Now().Sub(c.since(o.ModifiedAt)) > keyGrace {
			old = append(old, o)
			c.leaked(o.Key, o.ModifiedAt)
		}
	}
	if len(old) > fewUnknown && 2*len(old) > len(objects) {
		c.left(held)
		b.count(len(old), 0)
		return nil
	}
	return each(b, old, func(o archive.Object) error {
		r.Log.Warn("object without a row", "key", o.Key, "modified_at", o.ModifiedAt)
		err := r.Objects.Delete(ctx, o.Key)
		c.removed(err)
		return err
	})
}

// missing tells of rows of this stretch of keys that rely on an object which is not
// there.
func (r *Reaper) missing(ctx context.Context, b *box, k keys, c *comparing, there []string, last string, more bool) error {
	for after := c.Next; ; {
		rows, err := k.relied(ctx, after, keysPage)
		if err != nil {
			return err
		}
		var absent []string
		relied, over := 0, len(rows) < keysPage
		for _, key := range rows {
			if after = key; more && key > last { // of a later page
				over = true
				break
			}
			relied++
			if _, ok := slices.BinarySearch(there, key); !ok {
				absent = append(absent, key)
			}
		}
		c.Known += int64(relied)
		if err := r.absent(ctx, b, k, c, absent, 2*len(absent) > relied); err != nil || over {
			return err
		}
	}
}

// absent looks for each of some keys that were not listed by itself, and says of
// those which are not there that they are lost. Where most of a stretch are, it is
// rather the bucket that is wrong: then no row is changed, and not all are looked for.
func (r *Reaper) absent(ctx context.Context, b *box, k keys, c *comparing, absent []string, most bool) error {
	var lost []string
	for i, key := range absent {
		body, _, err := r.Objects.Get(ctx, key)
		switch {
		case err == nil:
			err = body.Close() // it came meanwhile
		case harness.KindOf(err) == harness.NotFound:
			lost, err = append(lost, key), nil
		}
		if err != nil {
			return err
		}
		if most && len(lost) > fewUnknown {
			for _, key := range append(lost, absent[i+1:]...) {
				c.lost(key)
				b.count(1, 0)
			}
			c.left(otherBucket)
			return nil
		}
	}
	for _, key := range lost {
		if err := r.lostKey(ctx, b, k, c, key); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reaper) lostKey(ctx context.Context, b *box, k keys, c *comparing, key string) error {
	still, err := k.lost(ctx, key)
	if err != nil || !still {
		return err
	}
	r.Log.Error("the bucket does not have an object on which a row relies", "kind", string(k.kind), "key", key)
	c.lost(key)
	if k.marks {
		c.marked(nil)
		b.count(1, 1)
		return nil
	}
	b.count(1, 0)
	c.left("objects of the archive are missing: restore them from a copy of the bucket; `tuluat logs verify` names each")
	return nil
}

// findUploads aborts uploads in parts that were begun and never finished. Nothing
// of ours sends in parts; a tool that copies into the bucket may.
func (r *Reaper) findUploads(ctx context.Context, b *box) error {
	return r.compared(ctx, harness.ObjectUpload, bucketEvery, func(c *comparing) (bool, error) {
		for _, prefix := range []string{part.Prefix, "media/"} {
			uploads, more, err := r.Objects.Uploads(ctx, prefix)
			if kind := harness.KindOf(err); err != nil && (kind == harness.Denied || kind == harness.Invalid) {
				c.left(harness.MessageOf(err))
				b.note(err) // a right that is not given, or a server that has none
				return true, nil
			}
			if err != nil {
				return false, err
			}
			var old []archive.Upload
			for _, u := range uploads {
				if c.There++; r.Now().Sub(u.StartedAt) > uploadGrace {
					old = append(old, u)
					c.leaked(u.Key, u.StartedAt)
				}
			}
			if more {
				c.left("there are more uploads than one comparison looks at")
			}
			err = each(b, old, func(u archive.Upload) error {
				err := r.Objects.Abort(ctx, u)
				c.removed(err)
				return err
			})
			if err != nil {
				return true, err
			}
		}
		return true, nil
	})
}
