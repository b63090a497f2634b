package archive

import (
	"context"
	"errors"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"tuluat.ai/harness/shared/harness"
)

// Object is an object that a bucket lists.
type Object struct {
	Key  string
	Size int64 // bytes
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
	page, err := s.client.ListObjectsV2(ctx, in)
	if err != nil {
		return nil, false, translate(err)
	}
	for _, o := range page.Contents {
		objects = append(objects, Object{Key: aws.ToString(o.Key), Size: aws.ToInt64(o.Size)})
	}
	return objects, aws.ToBool(page.IsTruncated), nil
}
