// Package archive keeps files in an S3 bucket: that of AWS or of any server that
// speaks the same. It talks to it when it is used, never before.
package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"tuluat.ai/harness/shared/harness"
)

// Options say where the bucket is and who we are there.
type Options struct {
	Endpoint  string // empty: AWS
	Region    string
	Bucket    string
	AccessKey string
	SecretKey harness.Secret
	PathStyle bool // the bucket is part of the path, not of the host's name
}

// Environment is what Read needs of a function's configuration.
type Environment interface {
	Text(name, def string) string
	Secret(name string) harness.Secret
	Problem(name, what string)
}

// Read reads the Options from S3_ENDPOINT, S3_REGION, S3_BUCKET,
// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and S3_PATH_STYLE. Without S3_BUCKET
// there is no bucket, and nothing else is read. The path style is the default
// where there is an endpoint.
func Read(env Environment) Options {
	o := Options{Bucket: env.Text("S3_BUCKET", "")}
	if o.Bucket == "" {
		return o
	}
	o.Endpoint = env.Text("S3_ENDPOINT", "")
	o.Region = env.Text("S3_REGION", "us-east-1")
	o.AccessKey, o.SecretKey = env.Text("AWS_ACCESS_KEY_ID", ""), env.Secret("AWS_SECRET_ACCESS_KEY")
	if o.AccessKey == "" {
		env.Problem("AWS_ACCESS_KEY_ID", "is not set: S3_BUCKET needs an access key")
	}
	if o.SecretKey == "" {
		env.Problem("AWS_SECRET_ACCESS_KEY", "is not set: S3_BUCKET needs its secret key")
	}
	if o.Endpoint != "" && !absolute(o.Endpoint) {
		env.Problem("S3_ENDPOINT", "must be an absolute URL, http or https")
	}
	switch style := env.Text("S3_PATH_STYLE", fmt.Sprint(o.Endpoint != "")); style {
	case "true", "false":
		o.PathStyle = style == "true"
	default:
		env.Problem("S3_PATH_STYLE", "must be true or false")
	}
	return o
}

// Enabled reports whether there is a bucket.
func (o Options) Enabled() bool { return o.Bucket != "" }

func absolute(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

// MaxObject is the largest file that is kept. Larger ones would have to be sent
// in parts, which leave rests behind when they break off.
const MaxObject = 100 << 20

const (
	putTime  = 2 * time.Minute  // one object, tries included
	openTime = 20 * time.Second // until an object begins to come, tries included
	tries    = 3
	maxPause = 5 * time.Second // between two tries
)

// Store is one bucket. It is safe for concurrent use.
type Store struct {
	client *s3.Client
	bucket string
	http   *http.Client
}

// Open returns the Store of a bucket. It does no network I/O.
func Open(o Options) (*Store, error) {
	if !o.Enabled() {
		return nil, harness.Errorf(harness.Invalid, "a bucket is needed")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 16
	transport.ResponseHeaderTimeout = 60 * time.Second // S3 answers a PUT when it has all of it
	client := &http.Client{Transport: transport}
	options := s3.Options{
		Region:       o.Region,
		Credentials:  credentials.NewStaticCredentialsProvider(o.AccessKey, o.SecretKey.Reveal(), ""),
		HTTPClient:   client,
		UsePathStyle: o.PathStyle,
		Retryer: retry.NewStandard(func(r *retry.StandardOptions) {
			r.MaxAttempts, r.MaxBackoff = tries, maxPause
		}),
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenSupported,
	}
	if o.Endpoint != "" {
		options.BaseEndpoint = aws.String(o.Endpoint)
		// Many servers that are not AWS refuse the SDK's own checksums.
		options.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		options.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
	}
	return &Store{client: s3.New(options), bucket: o.Bucket, http: client}, nil
}

// Close frees idle connections.
func (s *Store) Close() { s.http.CloseIdleConnections() }

// Put stores size bytes under key; what was there before is replaced. A body
// that can seek is read from its current place and again for another try; any
// other is read into memory first. harness.Invalid: body is not size bytes long,
// or that is more than MaxObject. An error of body is returned as it is.
func (s *Store) Put(ctx context.Context, key string, body io.Reader, size int64, mimeType string) error {
	if size < 0 || size > MaxObject {
		return harness.Errorf(harness.Invalid, "a file of %d bytes is not kept: at most %d are", size, int64(MaxObject))
	}
	source, err := seekable(body, size)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, putTime, errors.New("deadline of a put"))
	defer cancel()
	_, err = s.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &s.bucket, Key: &key, Body: source, ContentLength: &size, ContentType: header(mimeType),
	})
	return translate(err)
}

// seekable returns body as something of size bytes that can be sent again.
func seekable(body io.Reader, size int64) (io.ReadSeeker, error) {
	if source, ok := body.(io.ReadSeeker); ok {
		at, err := source.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		end, err := source.Seek(0, io.SeekEnd)
		if err != nil {
			return nil, err
		}
		if end-at != size {
			return nil, harness.Errorf(harness.Invalid, "the file is %d bytes long, not %d as was said", end-at, size)
		}
		_, err = source.Seek(at, io.SeekStart)
		return source, err
	}
	data, err := io.ReadAll(io.LimitReader(body, size+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) != size {
		return nil, harness.Errorf(harness.Invalid, "the file is not %d bytes long, as was said", size)
	}
	return bytes.NewReader(data), nil
}

// header returns what is fit for a header, nil for nothing.
func header(mimeType string) *string {
	if mimeType == "" || len(mimeType) > 200 || strings.ContainsFunc(mimeType, func(r rune) bool { return r < ' ' || r > '~' }) {
		return nil
	}
	return &mimeType
}

// Get opens what is stored under key and says how long it is. Whoever reads must
// close it; ctx bounds the reading. harness.NotFound: nothing is there.
func (s *Store) Get(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	slow := time.AfterFunc(openTime, func() { cancel(errors.New("deadline of a get")) })
	object, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.bucket, Key: &key})
	slow.Stop()
	if err != nil {
		cancel(nil)
		return nil, 0, translate(err)
	}
	if object.ContentLength == nil {
		err := harness.Errorf(harness.Unavailable, "the object store does not say how long the file is")
		cancel(nil)
		return nil, 0, errors.Join(err, object.Body.Close())
	}
	return &reading{ReadCloser: object.Body, cancel: cancel}, *object.ContentLength, nil
}

// reading is an object that is being read.
type reading struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (r *reading) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = translate(err)
	}
	return n, err
}

func (r *reading) Close() error {
	r.cancel(nil)
	return r.ReadCloser.Close()
}
