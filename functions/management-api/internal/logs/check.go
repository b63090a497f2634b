package logs

import (
	"context"
	"errors"

	"tuluat.ai/harness/shared/archive/part"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

// Check compares the bucket with the rows, both ways, for up to limit keys behind
// one, in the order of their bytes, and reads what both know to compare digests.
func (r *Reader) Check(ctx context.Context, after string, limit int) (view.ArchiveCheck, error) {
	out := view.ArchiveCheck{Findings: []view.ArchiveFinding{}}
	if r.Objects == nil {
		return out, errNoBucket
	}
	// The bucket before the rows: a row is there before its object and goes after
	// it. What changed in between is looked at again, by its key.
	objects, more, err := r.Objects.List(ctx, part.Prefix, after, limit)
	if err != nil {
		return out, err
	}
	rows, err := r.Store.ArchiveSums(ctx, after, limit)
	if err != nil {
		return out, err
	}
	for o, w := 0, 0; o < len(objects) || w < len(rows); {
		if out.Checked == limit || o == len(objects) && more || w == len(rows) && len(rows) == limit {
			return out, nil // behind here one of the two lists is not known
		}
		switch {
		case w == len(rows) || o < len(objects) && objects[o].Key < rows[w].Key:
			err = r.unknown(ctx, &out, objects[o].Key)
			out.Next = objects[o].Key
			o++
		default:
			err = r.known(ctx, &out, rows[w])
			out.Next = rows[w].Key
			if o < len(objects) && objects[o].Key == rows[w].Key {
				o++
			}
			w++
		}
		if err != nil {
			return out, err
		}
		out.Checked++
	}
	if !more && len(rows) < limit {
		out.Next = ""
	}
	return out, nil
}

// unknown looks at an object without a row.
func (r *Reader) unknown(ctx context.Context, out *view.ArchiveCheck, key string) error {
	_, err := r.Store.ArchiveSum(ctx, key)
	if harness.KindOf(err) != harness.NotFound {
		return err // it came in between
	}
	body, _, err := r.Objects.Get(ctx, key)
	if harness.KindOf(err) == harness.NotFound {
		return nil // it was removed in between
	}
	if err == nil {
		err = body.Close()
		out.Findings = append(out.Findings, view.ArchiveFinding{Key: key, Problem: view.ArchiveUnknown, Detail: "no row knows this object"})
	}
	return err
}

// known compares an object with its row. One that is on its way may not be there.
func (r *Reader) known(ctx context.Context, out *view.ArchiveCheck, row postgres.ArchiveSum) error {
	if row.State != postgres.ArchiveVerified {
		return nil
	}
	err := part.Verify(ctx, r.Objects, row.Key, part.Sum{SHA256: row.SHA256, Size: row.Size})
	problem := view.ArchiveProblem("")
	switch {
	case errors.Is(err, part.ErrMissing):
		problem = view.ArchiveMissing
	case errors.Is(err, part.ErrChanged):
		problem = view.ArchiveChanged
	case err != nil:
		return err
	default:
		out.Bytes += row.Size
		return nil
	}
	if now, err := r.Store.ArchiveSum(ctx, row.Key); harness.KindOf(err) == harness.NotFound || err == nil && now.State != postgres.ArchiveVerified {
		return nil // it was removed in between
	}
	out.Findings = append(out.Findings, view.ArchiveFinding{Key: row.Key, Problem: problem, Detail: harness.MessageOf(err)})
	return nil
}
