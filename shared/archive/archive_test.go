package archive_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"tuluat.ai/harness/shared/archive"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bucket is the wire of an S3 server that is not AWS: it knows none of the SDK's
// own additions and refuses them.
type bucket struct {
	mu      sync.Mutex
	objects map[string][]byte
	types   map[string]string
	faults  []int // of the next requests: a status; -1 breaks the connection; 0 none
	tries   int
}

func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tries++
	body, err := io.ReadAll(r.Body)
	if len(b.faults) > 0 {
		fault := b.faults[0]
		b.faults = b.faults[1:]
		switch {
		case fault < 0:
			panic(http.ErrAbortHandler)
		case fault > 0:
			w.WriteHeader(fault)
			return
		}
	}
	refuse := func(status int, code string) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>m</Message></Error>`, code)
	}
	for name := range r.Header {
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "x-amz-checksum") || strings.HasPrefix(lower, "x-amz-sdk-checksum") || lower == "x-amz-trailer" {
			refuse(http.StatusNotImplemented, "NotImplemented")
			return
		}
	}
	if err != nil || strings.Contains(r.Header.Get("Content-Encoding"), "aws-chunked") {
		refuse(http.StatusBadRequest, "InvalidArgument")
		return
	}
	if !strings.Contains(r.Header.Get("Authorization"), "Credential=key/") {
		refuse(http.StatusForbidden, "InvalidAccessKeyId")
		return
	}
	key, ok := strings.CutPrefix(r.URL.Path, "/files/")
	if !ok {
		refuse(http.StatusNotFound, "NoSuchBucket")
		return
	}
	switch r.Method {
	case http.MethodPut:
		b.objects[key], b.types[key] = body, r.Header.Get("Content-Type")
	case http.MethodGet:
		object, ok := b.objects[key]
		if !ok {
			refuse(http.StatusNotFound, "NoSuchKey")
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(object)))
		w.Write(object)
	}
}

func open(t *testing.T, change ...func(*archive.Options)) (*archive.Store, *bucket) {
	t.Helper()
	b := &bucket{objects: map[string][]byte{}, types: map[string]string{}}
	server := httptest.NewServer(b)
	t.Cleanup(server.Close)
	o := archive.Options{Endpoint: server.URL, Region: "us-east-1", Bucket: "files", AccessKey: "key", SecretKey: "very-secret", PathStyle: true}
	for _, c := range change {
		c(&o)
	}
	s, err := archive.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, b
}

func read(t *testing.T, s *archive.Store, key string) []byte {
	t.Helper()
	body, size, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	if err != nil || int64(len(data)) != size {
		t.Fatalf("%d bytes of %d: %v", len(data), size, err)
	}
	return data
}

func TestPutAndGet(t *testing.T) {
	s, b := open(t)
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	for name, body := range map[string]io.Reader{"seekable": bytes.NewReader(data), "stream": io.MultiReader(bytes.NewReader(data))} {
		if err := s.Put(t.Context(), "media/"+name, body, int64(len(data)), "image/png"); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := read(t, s, "media/"+name); !bytes.Equal(got, data) || b.types["media/"+name] != "image/png" {
			t.Errorf("%s: %d bytes of type %q", name, len(got), b.types["media/"+name])
		}
	}
	if err := s.Put(t.Context(), "empty", strings.NewReader(""), 0, "a\nb"); err != nil || len(read(t, s, "empty")) != 0 {
		t.Errorf("an empty file: %v", err)
	}
}

// B39: a try that fails half way is repeated with the same bytes.
func TestTriesAgain(t *testing.T) {
	s, b := open(t)
	b.faults = []int{503, -1}
	if err := s.Put(t.Context(), "k", io.MultiReader(strings.NewReader("hello")), 5, ""); err != nil || string(read(t, s, "k")) != "hello" {
		t.Fatalf("%v", err)
	}
	b.faults, b.tries = []int{503, 503, 503, 503, 503}, 0
	if err := s.Put(t.Context(), "k", strings.NewReader("hello"), 5, ""); harness.KindOf(err) != harness.Unavailable || b.tries != 3 {
		t.Errorf("%v after %d tries", err, b.tries)
	}
}

func TestErrors(t *testing.T) {
	s, _ := open(t)
	if _, _, err := s.Get(t.Context(), "none"); harness.KindOf(err) != harness.NotFound {
		t.Errorf("a missing object: %v", err)
	}
	for name, body := range map[string]io.Reader{"short": strings.NewReader("1234"), "long": strings.NewReader("123456"), "short stream": io.MultiReader(strings.NewReader("1234")), "long stream": io.MultiReader(strings.NewReader("123456"))} {
		if err := s.Put(t.Context(), "k", body, 5, ""); harness.KindOf(err) != harness.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.Put(t.Context(), "k", strings.NewReader(""), archive.MaxObject+1, ""); harness.KindOf(err) != harness.Invalid {
		t.Errorf("too large: %v", err)
	}
	broken := errors.New("the source broke")
	if err := s.Put(t.Context(), "k", io.MultiReader(strings.NewReader("1"), failing{broken}), 5, ""); !errors.Is(err, broken) {
		t.Errorf("a source that breaks: %v", err)
	}
	denied, _ := open(t, func(o *archive.Options) { o.AccessKey = "other" })
	if err := denied.Put(t.Context(), "k", strings.NewReader("x"), 1, ""); harness.KindOf(err) != harness.Denied || strings.Contains(err.Error(), "very-secret") {
		t.Errorf("wrong key: %v", err)
	}
	elsewhere, _ := open(t, func(o *archive.Options) { o.Bucket = "others" })
	if _, _, err := elsewhere.Get(t.Context(), "k"); harness.KindOf(err) != harness.Unavailable {
		t.Errorf("no bucket: %v", err)
	}
	down, _ := open(t, func(o *archive.Options) { o.Endpoint = "http://127.0.0.1:1" })
	if _, _, err := down.Get(t.Context(), "k"); harness.KindOf(err) != harness.Unavailable {
		t.Errorf("nobody there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Put(ctx, "k", strings.NewReader("x"), 1, ""); harness.KindOf(err) != harness.Unavailable {
		t.Errorf("cancelled: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestRead(t *testing.T) {
	get := func(env map[string]string) (archive.Options, error) {
		c := function.NewConfig(func(name string) string { return env[name] })
		o := archive.Read(c)
		return o, c.Err()
	}
	if o, err := get(map[string]string{"S3_ENDPOINT": "nonsense"}); err != nil || o.Enabled() {
		t.Errorf("without a bucket: %+v %v", o, err)
	}
	_, err := get(map[string]string{"S3_BUCKET": "b", "S3_ENDPOINT": "nonsense", "S3_PATH_STYLE": "maybe"})
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "S3_ENDPOINT", "S3_PATH_STYLE"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named: %v", name, err)
		}
	}
	full := map[string]string{"S3_BUCKET": "b", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
	if o, err := get(full); err != nil || o.PathStyle || o.Region != "us-east-1" {
		t.Errorf("AWS: %+v %v", o, err)
	}
	full["S3_ENDPOINT"] = "http://minio:9000"
	if o, err := get(full); err != nil || !o.PathStyle {
		t.Errorf("another server: %+v %v", o, err)
	}
}
