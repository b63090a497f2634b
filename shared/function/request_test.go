package function_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/trace"
	"tuluat.ai/harness/shared/trace/tracetest"
)

const asked = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// observed starts a function that hears an event and has a route, and says what its
// handlers saw as traceparent.
func observed(t *testing.T, variables map[string]string) (p *process, seen func() []string) {
	t.Helper()
	var got []string
	build := func(context.Context, function.Env) (*function.Function, error) {
		return &function.Function{
			Events: map[event.Type]function.EventFunc{
				event.SessionDue: func(ctx context.Context, e event.Event) error {
					got = append(got, trace.Parent(ctx))
					if e.Payload.Session == "ses_fails" {
						return harness.Errorf(harness.Unavailable, "x")
					}
					return nil
				},
				event.Ping: func(context.Context, event.Event) error { panic("boom") },
			},
			Routes: map[string]http.Handler{
				"POST /hooks/{name}": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					got = append(got, r.Header.Get("Traceparent"))
					_ = http.NewResponseController(w).Flush()
				}),
				"/": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/operation" {
						function.NameRequest(r.Context(), "an-operation")
					}
					w.WriteHeader(http.StatusForbidden)
				}),
			},
		}, nil
	}
	p = startIn(t, variables, build)
	return p, func() []string { return got }
}

func startIn(t *testing.T, variables map[string]string, build function.Build) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{logs: &bytes.Buffer{}, cancel: cancel, done: make(chan error, 1)}
	ready := make(chan function.Addresses, 1)
	all := map[string]string{"PORT": "0", "METRICS_PORT": "0"}
	for k, v := range variables {
		all[k] = v
	}
	go func() {
		p.done <- function.Run(ctx, "test", func(name string) string { return all[name] }, p.logs, build, func(a function.Addresses) { ready <- a })
	}()
	select {
	case p.Addresses = <-ready:
	case err := <-p.done:
		t.Fatal(err)
	}
	return p
}

func get(t *testing.T, method, url string, header http.Header) (int, string) {
	t.Helper()
	request, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header = header
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// What was asked is counted by what it was and how it went, whatever paths callers
// make up; asking for health is not.
func TestRequestsAreCounted(t *testing.T) {
	p, seen := observed(t, nil)
	_, first := get(t, http.MethodGet, "http://"+p.Metrics+"/metrics", nil)
	if !strings.Contains(first, `tuluat_requests_total{function="test",outcome="failed",request="ai.tuluat.session.due.v1"} 0`) {
		t.Error("what may be asked does not begin at 0")
	}
	deliver(t, p, string(event.SessionDue), `{"session": "ses_a"}`)
	deliver(t, p, string(event.SessionDue), `{"session": "ses_fails"}`)
	deliver(t, p, string(event.Ping), `{}`)
	deliver(t, p, string(event.MessageReply), `{}`)
	for _, path := range []string{"/hooks/a", "/hooks/b"} {
		get(t, http.MethodPost, "http://"+p.HTTP+path, nil)
	}
	for _, path := range []string{"/operation", "/made/up", "/made/up/too", "/healthz", "/readyz"} {
		get(t, http.MethodGet, "http://"+p.HTTP+path, nil)
	}
	_, metrics := get(t, http.MethodGet, "http://"+p.Metrics+"/metrics", nil)
	p.stop(t)
	for _, want := range []string{
		`tuluat_requests_total{function="test",outcome="failed",request="ai.tuluat.session.due.v1"} 1`,
		`tuluat_requests_total{function="test",outcome="failed",request="` + string(event.Ping) + `"} 1`,
		`tuluat_requests_total{function="test",outcome="ok",request="POST /hooks/{name}"} 2`,
		`tuluat_requests_total{function="test",outcome="ok",request="ai.tuluat.session.due.v1"} 1`,
		`tuluat_requests_total{function="test",outcome="refused",request="an-operation"} 1`,
		`tuluat_requests_total{function="test",outcome="refused",request="unmatched"} 2`,
		`tuluat_request_seconds_count{function="test",request="ai.tuluat.session.due.v1"} 2`,
		`tuluat_requests_in_flight{function="test"} 0`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(metrics, "made/up") || strings.Contains(metrics, "healthz") {
		t.Error("a caller's path is a label")
	}
	if got := seen(); strings.Join(got, "") != "" {
		t.Errorf("without an endpoint there are traces: %v", got)
	}
}

// With an endpoint a request goes on with the trace it is part of, what comes of it
// is told its span, the log says the trace, and all is sent before the process ends.
func TestRequestsAreTraced(t *testing.T) {
	c := tracetest.New(t)
	p, seen := observed(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL})
	if got := len(c.Requests()); got != 0 {
		t.Errorf("%d exports before a request", got)
	}
	get(t, http.MethodPost, "http://"+p.HTTP+"/hooks/a", http.Header{"Traceparent": {asked}})
	get(t, http.MethodPost, "http://"+p.HTTP+"/hooks/a", nil)
	request, err := http.NewRequest(http.MethodPost, "http://"+p.HTTP+"/events", strings.NewReader(`{"session": "ses_fails"}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Ce-Specversion": "1.0", "Ce-Id": "1", "Ce-Source": "test", "Ce-Type": string(event.SessionDue), "Content-Type": "application/json",
		"Ce-Traceparent": asked, "Ce-Tuluatsession": "ses_fails", "Traceparent": "00-11111111111111111111111111111111-2222222222222222-01", // of the broker
	} {
		request.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	p.stop(t)
	spans := c.Spans()
	if len(spans) != 3 || len(seen()) != 3 {
		t.Fatalf("spans %+v, seen %v", spans, seen())
	}
	for i, span := range spans {
		if got := seen()[i]; !strings.Contains(got, span.Trace+"-"+span.ID) {
			t.Errorf("the handler saw %q, the span is %s of %s", got, span.ID, span.Trace)
		}
	}
	hook, own, due := spans[0], spans[1], spans[2]
	if hook.Trace != trace.IDOf(asked) || hook.Name != "POST /hooks/{name}" || hook.Service != "test" || hook.Failed {
		t.Errorf("%+v", hook)
	}
	if own.Trace == hook.Trace || own.Parent != "" {
		t.Errorf("%+v", own)
	}
	if due.Trace != trace.IDOf(asked) || due.Name != string(event.SessionDue) || !due.Failed || due.Attributes["tuluat.session"] != "ses_fails" {
		t.Errorf("%+v", due)
	}
	if !strings.Contains(p.logs.String(), `"trace":"`+trace.IDOf(asked)+`"`) {
		t.Errorf("the log does not say the trace: %s", p.logs)
	}
}
