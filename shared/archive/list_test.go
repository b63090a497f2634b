package archive_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"tuluat.ai/harness/shared/archive"
	"tuluat.ai/harness/shared/harness"
)

// Uploads in parts are listed and given up; a server that has none, or does not list
// them, says so in its own way.
func TestUploads(t *testing.T) {
	const list = `<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><Upload><Key>media/a b</Key><UploadId>one</UploadId><Initiated>2026-01-02T03:04:05.000Z</Initiated></Upload></ListMultipartUploadsResult>`
	for name, c := range map[string]struct {
		status int
		body   string
		kind   harness.Kind // "": no error
		n      int
	}{
		"some":          {200, list, "", 1},
		"none":          {200, `<ListMultipartUploadsResult></ListMultipartUploadsResult>`, "", 0},
		"none, by 404":  {404, `<Error><Code>NoSuchUpload</Code></Error>`, "", 0},
		"unknown":       {501, `<Error><Code>NotImplemented</Code></Error>`, harness.Invalid, 0},
		"not our right": {403, `<Error><Code>AccessDenied</Code></Error>`, harness.Denied, 0},
		"no bucket":     {404, `<Error><Code>NoSuchBucket</Code></Error>`, harness.Unavailable, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = append(asked, r.Method+" "+r.URL.Path+" "+r.URL.Query().Get("prefix")+r.URL.Query().Get("uploadId"))
				if r.Method == http.MethodDelete {
					w.WriteHeader(http.StatusNotFound)
					fmt.Fprint(w, `<?xml version="1.0"?><Error><Code>NoSuchUpload</Code></Error>`)
					return
				}
				w.WriteHeader(c.status)
				fmt.Fprint(w, `<?xml version="1.0"?>`+c.body)
			}))
			defer server.Close()
			s, err := archive.Open(archive.Options{Endpoint: server.URL, Region: "us-east-1", Bucket: "files", AccessKey: "key", SecretKey: "very-secret", PathStyle: true})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			uploads, more, err := s.Uploads(t.Context(), "media/")
			if len(uploads) != c.n || more != (c.n > 0) || (err == nil) != (c.kind == "") || err != nil && harness.KindOf(err) != c.kind {
				t.Fatalf("%+v, %t, %v", uploads, more, err)
			}
			if c.n == 0 {
				return
			}
			if want := (archive.Upload{Key: "media/a b", ID: "one", StartedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}); uploads[0] != want {
				t.Errorf("got %+v, want %+v", uploads[0], want)
			}
			if err := s.Abort(t.Context(), uploads[0]); err != nil { // somebody was first
				t.Error(err)
			}
			if want := "[GET /files media/ DELETE /files/media/a b one]"; fmt.Sprint(asked) != want {
				t.Errorf("asked %v, want %s", asked, want)
			}
		})
	}
}

// A page may be empty and not the last one: behind it the list goes on.
func TestListGoesOnBehindAnEmptyPage(t *testing.T) {
	pages := map[string]string{
		"":  `<IsTruncated>true</IsTruncated><NextContinuationToken>2</NextContinuationToken>`,
		"2": `<IsTruncated>true</IsTruncated><NextContinuationToken>3</NextContinuationToken><Contents><Key>media/b</Key><Size>7</Size></Contents>`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `<?xml version="1.0"?><ListBucketResult>`+pages[r.URL.Query().Get("continuation-token")]+`</ListBucketResult>`)
	}))
	defer server.Close()
	s, err := archive.Open(archive.Options{Endpoint: server.URL, Region: "us-east-1", Bucket: "files", AccessKey: "key", SecretKey: "very-secret", PathStyle: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	objects, more, err := s.List(t.Context(), "media/", "media/a", 10)
	if len(objects) != 1 || objects[0].Key != "media/b" || objects[0].Size != 7 || !more || err != nil {
		t.Errorf("%+v, %t, %v", objects, more, err)
	}
}
