package function_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type process struct {
	function.Addresses
	logs   *bytes.Buffer
	cancel context.CancelFunc
	done   chan error
}

func start(t *testing.T, build function.Build) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{logs: &bytes.Buffer{}, cancel: cancel, done: make(chan error, 1)}
	ready := make(chan function.Addresses, 1)
	getenv := func(name string) string { return map[string]string{"PORT": "0", "METRICS_PORT": "0"}[name] }
	go func() {
		p.done <- function.Run(ctx, "test", getenv, p.logs, build, func(a function.Addresses) { ready <- a })
	}()
	select {
	case p.Addresses = <-ready:
	case err := <-p.done:
		t.Fatal(err)
	}
	return p
}

func (p *process) stop(t *testing.T) {
	t.Helper()
	p.cancel()
	if err := <-p.done; err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
}

func deliver(t *testing.T, p *process, eventType, data string) (int, string) {
	t.Helper()
	request, err := http.NewRequest(http.MethodPost, "http://"+p.HTTP+"/events", strings.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Id": "1", "Ce-Source": "test", "Ce-Type": eventType, "Content-Type": "application/json"} {
		request.Header.Set(name, value)
	}
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

// A broker retries 404, 408, 409, 429 and 5xx and takes a body for a reply:
// every answer is 202, 400 or 503 with an empty body, and panics stay inside.
func TestDeliveryAnswers(t *testing.T) {
	var next error
	p := start(t, func(context.Context, function.Env) (*function.Function, error) {
		return &function.Function{Events: map[event.Type]function.EventFunc{
			event.SessionDue: func(context.Context, event.Event) error { return next },
			event.Ping:       func(context.Context, event.Event) error { panic("boom") },
		}}, nil
	})
	for _, c := range []struct {
		name, eventType, data string
		err                   error
		want                  int
	}{
		{"done", string(event.SessionDue), `{}`, nil, 202},
		{"transient", string(event.SessionDue), `{}`, harness.Errorf(harness.Unavailable, "x"), 503},
		{"unclassified", string(event.SessionDue), `{}`, errors.New("x"), 503},
		{"not found", string(event.SessionDue), `{}`, harness.Errorf(harness.NotFound, "x"), 400},
		{"conflict", string(event.SessionDue), `{}`, harness.Errorf(harness.Conflict, "x"), 400},
		{"exhausted", string(event.SessionDue), `{}`, harness.Errorf(harness.Exhausted, "x"), 400},
		{"torn data", string(event.SessionDue), `{"session": "s`, nil, 400},
		{"array", string(event.SessionDue), `[]`, nil, 400},
		{"too large", string(event.SessionDue), `{"session": "` + strings.Repeat("x", event.MaxBytes) + `"}`, nil, 400},
		{"not heard", string(event.MessageReply), `{}`, nil, 400},
		{"foreign data is not read", string(event.Ping), `[`, nil, 500},
	} {
		next = c.err
		if status, body := deliver(t, p, c.eventType, c.data); status != c.want || body != "" {
			t.Errorf("%s: %d %q, want %d and nothing", c.name, status, body, c.want)
		}
	}
	p.stop(t)
	if !strings.Contains(p.logs.String(), "boom") {
		t.Error("the panic is not in the log")
	}
}

// SIGTERM during work: the request finishes, closers run last, nothing is left.
func TestDrainFinishesWork(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	var finished, closedAfter atomic.Bool
	p := start(t, func(_ context.Context, env function.Env) (*function.Function, error) {
		env.OnExit(func() { closedAfter.Store(finished.Load()) })
		return &function.Function{Events: map[event.Type]function.EventFunc{
			event.SessionDue: func(context.Context, event.Event) error {
				close(started)
				<-release
				finished.Store(true)
				return nil
			},
		}}, nil
	})
	status := make(chan int, 1)
	go func() {
		s, _ := deliver(t, p, string(event.SessionDue), `{}`)
		status <- s
	}()
	<-started
	p.cancel()
	close(release)
	if got := <-status; got != 202 {
		t.Errorf("status %d", got)
	}
	if err := <-p.done; err != nil {
		t.Fatal(err)
	}
	if !closedAfter.Load() {
		t.Error("closers ran before the work had ended")
	}
	http.DefaultClient.CloseIdleConnections()
}

// Work is not cut when the deliverer goes away.
func TestWorkOutlivesItsDeliverer(t *testing.T) {
	started, release, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	p := start(t, func(context.Context, function.Env) (*function.Function, error) {
		return &function.Function{Events: map[event.Type]function.EventFunc{
			event.SessionDue: func(ctx context.Context, _ event.Event) error {
				close(started)
				<-release
				result <- ctx.Err()
				return nil
			},
		}}, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.HTTP+"/events", strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Id": "1", "Ce-Source": "t", "Ce-Type": string(event.SessionDue), "Content-Type": "application/json"} {
		request.Header.Set(name, value)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if response, err := http.DefaultClient.Do(request); err == nil {
			response.Body.Close()
		}
	}()
	<-started
	cancel()
	<-gone
	close(release)
	if err := <-result; err != nil {
		t.Errorf("the work was cut: %v", err)
	}
	p.stop(t)
}

func TestPublish(t *testing.T) {
	got := make(chan http.Header, 1)
	broker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		w.WriteHeader(http.StatusAccepted)
	}))
	defer broker.Close()
	now := func() time.Time { return time.Unix(1000, 0) }
	p := start(t, func(_ context.Context, env function.Env) (*function.Function, error) {
		publisher, err := function.NewPublisher(broker.URL, env.Log, now)
		if err != nil {
			return nil, err
		}
		env.OnExit(publisher.Close)
		publisher.Publish(t.Context(), event.Event{ID: "id", Type: event.SessionDue, Session: "ses_1", Channel: harness.ChannelWebhook})
		return &function.Function{}, nil
	})
	h := <-got
	if h.Get("Ce-Id") != "id" || h.Get("Ce-Tuluatsession") != "ses_1" || h.Get("Ce-Partitionkey") != "ses_1" || h.Get("Ce-Tuluatchannel") != "webhook" {
		t.Errorf("headers %v", h)
	}
	p.stop(t)
}

// With BIND_ADDRESS only that address of the machine takes requests.
func TestBindAddress(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, done := make(chan function.Addresses, 1), make(chan error, 1)
	getenv := func(name string) string {
		return map[string]string{"PORT": "0", "METRICS_PORT": "0", "BIND_ADDRESS": "127.0.0.1"}[name]
	}
	build := func(context.Context, function.Env) (*function.Function, error) { return &function.Function{}, nil }
	go func() {
		done <- function.Run(ctx, "test", getenv, io.Discard, build, func(a function.Addresses) { ready <- a })
	}()
	select {
	case a := <-ready:
		if !strings.HasPrefix(a.HTTP, "127.0.0.1:") || !strings.HasPrefix(a.Metrics, "127.0.0.1:") {
			t.Errorf("listens on %+v", a)
		}
	case err := <-done:
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
