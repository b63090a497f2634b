// Package loopback asks the management API from inside its own process, for the
// protocols that are other faces of it: with the caller's own token, so that who
// may what, the audit and the limits are those of the API.
package loopback

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
)

// Request is what to ask. Path is escaped.
type Request struct {
	Method, Path string
	Query        url.Values
	Header       http.Header
	Body         []byte
	Token        string // the header Authorization of the caller's own request
}

// Answer is what came back.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// OK reports whether it was done.
func (a Answer) OK() bool { return a.Status >= 200 && a.Status <= 299 }

// Do asks api and returns its whole answer. It fails when r is no request.
func Do(ctx context.Context, api http.Handler, r Request) (Answer, error) {
	q, err := r.request(ctx)
	if err != nil {
		return Answer{}, err
	}
	w := &recorder{header: http.Header{}}
	api.ServeHTTP(w, q)
	return Answer{Status: w.status, Header: w.header, Body: bytes.TrimSpace(w.body.Bytes())}, nil
}

func (r Request) request(ctx context.Context) (*http.Request, error) {
	path, err := url.PathUnescape(r.Path)
	if err != nil {
		return nil, fmt.Errorf("ask the API: the path %q: %w", r.Path, err)
	}
	target := url.URL{Path: path, RawPath: r.Path, RawQuery: r.Query.Encode()}
	q, err := http.NewRequestWithContext(ctx, r.Method, "/", bytes.NewReader(r.Body))
	if err != nil {
		return nil, fmt.Errorf("ask the API: %w", err)
	}
	q.URL, q.RemoteAddr = &target, "loopback"
	maps.Copy(q.Header, r.Header)
	q.Header.Set("Authorization", r.Token)
	if len(r.Body) > 0 && q.Header.Get("Content-Type") == "" {
		q.Header.Set("Content-Type", "application/json")
	}
	return q, nil
}

type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *recorder) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}
