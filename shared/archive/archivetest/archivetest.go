// Package archivetest is the wire of an S3 server that is not AWS, in memory, for
// tests: it knows none of the SDK's own additions and refuses them, and breaks
// when it is told to.
package archivetest

import (
	"encoding/xml"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/shared/archive"
)

// Name is what the bucket is called.
const Name = "files"

// Bucket is the server. Its fields may be changed between requests.
type Bucket struct {
	URL string

	mu      sync.Mutex
	objects map[string][]byte
	made    map[string]time.Time
	uploads map[archive.Upload]bool
	fault   func(method, key string) int
}

// New returns a bucket that a test uses and how it is reached.
func New(t testing.TB) (*archive.Store, *Bucket) {
	t.Helper()
	b := &Bucket{objects: map[string][]byte{}, made: map[string]time.Time{}, uploads: map[archive.Upload]bool{}}
	server := httptest.NewServer(b)
	t.Cleanup(server.Close)
	b.URL = server.URL
	store, err := archive.Open(archive.Options{Endpoint: server.URL, Region: "us-east-1", Bucket: Name, AccessKey: "key", SecretKey: "very-secret", PathStyle: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store, b
}

// Fail answers requests with the status that fault returns: 0 does what was asked,
// -1 does it and breaks the connection off.
func (b *Bucket) Fail(fault func(method, key string) int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault = fault
}

// Keys returns the keys of all objects, sorted.
func (b *Bucket) Keys() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	keys := []string{}
	for key := range b.objects {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// Object returns a copy of an object, nil if there is none.
func (b *Bucket) Object(key string) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.objects[key])
}

// Set makes an object be data, or not be there for nil.
func (b *Bucket) Set(key string, data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.objects[key], b.made[key] = data, time.Now()
	if data == nil {
		delete(b.objects, key)
	}
}

// Age makes an object look as if it had been put so long ago.
func (b *Bucket) Age(key string, ago time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made[key] = time.Now().Add(-ago)
}

// Begin begins an upload in parts, as somebody's tool did.
func (b *Bucket) Begin(u archive.Upload) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.uploads[u] = true
}

// Uploads returns how many uploads in parts there are.
func (b *Bucket) Uploads() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.uploads)
}

// ServeHTTP implements http.Handler.
func (b *Bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	b.mu.Lock()
	defer b.mu.Unlock()
	key, inBucket := strings.CutPrefix(r.URL.Path, "/"+Name+"/")
	status := 0
	if b.fault != nil {
		status = b.fault(r.Method, key)
	}
	if status > 0 {
		w.WriteHeader(status)
		return
	}
	for name := range r.Header {
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "x-amz-checksum") || strings.HasPrefix(lower, "x-amz-sdk-checksum") || lower == "x-amz-trailer" {
			refuse(w, http.StatusNotImplemented, "NotImplemented")
			return
		}
	}
	switch {
	case err != nil || strings.Contains(r.Header.Get("Content-Encoding"), "aws-chunked"):
		refuse(w, http.StatusBadRequest, "InvalidArgument")
	case (r.URL.Path == "/"+Name || inBucket && key == "") && r.URL.Query().Has("uploads"):
		b.listUploads(w, r)
	case r.URL.Path == "/"+Name || inBucket && key == "":
		b.list(w, r)
	case r.Method == http.MethodDelete && r.URL.Query().Has("uploadId"):
		b.abort(w, key, r.URL.Query().Get("uploadId"))
	case !inBucket:
		refuse(w, http.StatusNotFound, "NoSuchBucket")
	default:
		b.object(w, r, key, body)
	}
	if status < 0 {
		panic(http.ErrAbortHandler)
	}
}

func (b *Bucket) object(w http.ResponseWriter, r *http.Request, key string, body []byte) {
	switch r.Method {
	case http.MethodPut:
		b.objects[key], b.made[key] = body, time.Now()
	case http.MethodDelete:
		delete(b.objects, key)
		w.WriteHeader(http.StatusNoContent)
	case http.MethodGet:
		object, ok := b.objects[key]
		if !ok {
			refuse(w, http.StatusNotFound, "NoSuchKey")
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(object)))
		_, _ = w.Write(object)
	default:
		refuse(w, http.StatusMethodNotAllowed, "MethodNotAllowed")
	}
}

func (b *Bucket) list(w http.ResponseWriter, r *http.Request) {
	type content struct {
		Key          string
		Size         int
		LastModified time.Time
	}
	page := struct {
		XMLName     xml.Name `xml:"ListBucketResult"`
		IsTruncated bool
		Contents    []content
	}{}
	q := r.URL.Query()
	limit, err := strconv.Atoi(q.Get("max-keys"))
	if err != nil {
		limit = 1000
	}
	var keys []string
	for key := range b.objects {
		if strings.HasPrefix(key, q.Get("prefix")) && key > q.Get("start-after") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for i, key := range keys {
		if page.IsTruncated = i == limit; page.IsTruncated {
			break
		}
		page.Contents = append(page.Contents, content{key, len(b.objects[key]), b.made[key].UTC()})
	}
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(page)
}

func (b *Bucket) listUploads(w http.ResponseWriter, r *http.Request) {
	type upload struct {
		Key       string
		UploadID  string `xml:"UploadId"`
		Initiated time.Time
	}
	page := struct {
		XMLName     xml.Name `xml:"ListMultipartUploadsResult"`
		IsTruncated bool
		Upload      []upload
	}{}
	for u := range b.uploads {
		if strings.HasPrefix(u.Key, r.URL.Query().Get("prefix")) {
			page.Upload = append(page.Upload, upload{u.Key, u.ID, u.StartedAt.UTC()})
		}
	}
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(page)
}

func (b *Bucket) abort(w http.ResponseWriter, key, id string) {
	for u := range b.uploads {
		if u.Key == key && u.ID == id {
			delete(b.uploads, u)
			w.WriteHeader(http.StatusNoContent)
			return
		}
	}
	refuse(w, http.StatusNotFound, "NoSuchUpload")
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	_, _ = io.WriteString(w, `<?xml version="1.0"?><Error><Code>`+code+`</Code><Message>m</Message></Error>`)
}
