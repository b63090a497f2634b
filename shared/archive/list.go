package archive

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"tuluat.ai/harness/shared/harness"
)

// Object is an object that a bucket lists.
type Object struct {
	Key        string
	Size       int64     // bytes
	ModifiedAt time.Time // when it was put, by the server's clock
}

// Delete deletes what is stored under key, if anything is.
func (s *Store) Delete(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, openTime, errors.New("deadline of a delete"))
	defer cancel()
	_, err := s.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.bucket, Key: &key})
	if err = translate(err); harness.KindOf(err) == harness.NotFound {
		return nil
	}
	return err
}

// List returns up to limit objects, at most 1000, whose keys begin with prefix and
// come after the given one, in the order of their bytes. more: there are others.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) (objects []Object, more bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, openTime, errors.New("deadline of a list"))
	defer cancel()
	in := &s3.ListObjectsV2Input{Bucket: &s.bucket, Prefix: &prefix, MaxKeys: aws.Int32(int32(min(max(limit, 1), 1000)))}
	if after != "" {
		in.StartAfter = &after
	}
	for {
		page, err := s.client.ListObjectsV2(ctx, in)
		if err != nil {
			return nil, false, translate(err)
		}
		for _, o := range page.Contents {
			objects = append(objects, Object{Key: aws.ToString(o.Key), Size: aws.ToInt64(o.Size), ModifiedAt: aws.ToTime(o.LastModified)})
		}
		more = aws.ToBool(page.IsTruncated)
		if !more || len(objects) > 0 {
			return objects, more, nil
		}
		in.ContinuationToken = page.NextContinuationToken // a server may answer with an empty page
	}
}

// Upload is an object that is being sent in parts, or was and never finished. Put
// sends none; other tools that write into the bucket may.
type Upload struct {
	Key, ID   string
	StartedAt time.Time
}

// Uploads returns up to 1000 uploads of keys that begin with prefix. more: there
// are others. harness.Invalid: the server does not list them.
func (s *Store) Uploads(ctx context.Context, prefix string) (uploads []Upload, more bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, openTime, errors.New("deadline of a list"))
	defer cancel()
	page, err := s.client.ListMultipartUploads(ctx, &s3.ListMultipartUploadsInput{Bucket: &s.bucket, Prefix: &prefix, MaxUploads: aws.Int32(1000)})
	if unsupported(err) {
		return nil, false, harness.Wrap(harness.Invalid, err, "the object store does not list uploads in parts")
	}
	if err = translate(err); harness.KindOf(err) == harness.NotFound {
		return nil, false, nil // of a server that says so where there is none
	}
	if err != nil {
		return nil, false, err
	}
	for _, u := range page.Uploads {
		uploads = append(uploads, Upload{Key: aws.ToString(u.Key), ID: aws.ToString(u.UploadId), StartedAt: aws.ToTime(u.Initiated)})
	}
	return uploads, aws.ToBool(page.IsTruncated), nil
}

// Abort gives an upload up, if it is still there.
func (s *Store) Abort(ctx context.Context, u Upload) error {
	ctx, cancel := context.WithTimeoutCause(ctx, openTime, errors.New("deadline of an abort"))
	defer cancel()
	_, err := s.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &s.bucket, Key: &u.Key, UploadId: &u.ID})
	if err = translate(err); harness.KindOf(err) == harness.NotFound {
		return nil
	}
	return err
}
