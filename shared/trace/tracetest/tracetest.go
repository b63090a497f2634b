// Package tracetest takes spans as a collector does, OTLP over HTTP, and shows
// traces as trees of text.
package tracetest

import (
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is what was exported of one.
type Span struct {
	Trace, ID, Parent string // hexadecimal
	Service, Name     string
	Start, End        uint64 // Unix nanoseconds
	Failed            bool
	Attributes        map[string]string
}

// Collector is a server that keeps what it is sent.
type Collector struct {
	URL string // for OTEL_EXPORTER_OTLP_ENDPOINT

	mu       sync.Mutex
	spans    []Span
	requests []*http.Request
	refuse   int // the status of answers; 0: they are taken
}

// New starts a Collector, which is closed when the test ends.
func New(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{}
	server := httptest.NewServer(http.HandlerFunc(c.take))
	t.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

// Refuse answers with status from now on; 0: no more.
func (c *Collector) Refuse(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = status
}

// Spans returns what was taken so far.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Requests returns every request so far, without its body.
func (c *Collector) Requests() []*http.Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.requests)
}

func (c *Collector) take(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, r)
	if c.refuse != 0 {
		w.WriteHeader(c.refuse)
		return
	}
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = unzipped
	}
	text, err := io.ReadAll(body)
	var data otlp.TracesData
	if err == nil {
		err = proto.Unmarshal(text, &data)
	}
	if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		http.Error(w, fmt.Sprint("not spans: ", err), http.StatusBadRequest)
		return
	}
	for _, resource := range data.GetResourceSpans() {
		service := ""
		for _, a := range resource.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range resource.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, spanOf(service, s))
			}
		}
	}
}

func spanOf(service string, s *otlp.Span) Span {
	span := Span{
		Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
		Service: service, Name: s.GetName(), Start: s.GetStartTimeUnixNano(), End: s.GetEndTimeUnixNano(),
		Failed: s.GetStatus().GetCode() == otlp.Status_STATUS_CODE_ERROR, Attributes: map[string]string{},
	}
	for _, a := range s.GetAttributes() {
		value := a.GetValue()
		text := value.GetStringValue()
		if text == "" {
			text = fmt.Sprint(value.GetIntValue())
		}
		span.Attributes[a.GetKey()] = text
	}
	return span
}

// Tree shows the spans of one trace, each below its parent, the earlier first. One
// whose parent is not among them is a root.
func Tree(spans []Span, trace string) string {
	children, known := map[string][]Span{}, map[string]bool{}
	for _, s := range spans {
		known[s.ID] = true
	}
	for _, s := range spans {
		if s.Trace != trace {
			continue
		}
		parent := s.Parent
		if !known[parent] {
			parent = ""
		}
		children[parent] = append(children[parent], s)
	}
	var b strings.Builder
	var show func(parent, indent string)
	show = func(parent, indent string) {
		below := children[parent]
		slices.SortFunc(below, func(a, b Span) int { return int(int64(a.Start) - int64(b.Start)) })
		for _, s := range below {
			failed := ""
			if s.Failed {
				failed = " FAILED"
			}
			fmt.Fprintf(&b, "%s%s: %s (%.1f ms)%s\n", indent, s.Service, s.Name, float64(s.End-s.Start)/1e6, failed)
			show(s.ID, indent+"  ")
		}
	}
	show("", "")
	return b.String()
}
