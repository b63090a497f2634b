// Package functiontest is the world of a function's process test: a migrated
// database, a broker that takes every event, and the function's real build,
// started on free ports and ended as SIGTERM ends it.
//
// Whatever a helper needs and does not get (a database, an answer, a process
// that becomes ready) ends the test by Fatal. What a process does wrong while it
// ends, and a secret in what it logged, is an Error, so that the rest is still
// checked. Everything is closed when the test that it was made for ends.
package functiontest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
)

// World is one database, one broker and the processes started in it.
type World struct {
	*Database
	Broker *Broker
	Client *http.Client // of the test itself; it leaves no idle connection behind
	Logs   *Logs        // of all processes; they are in the test's output too
}

// NewWorld fails the test when one of secrets is in the logs at its end.
func NewWorld(t testing.TB, secrets ...string) *World {
	t.Helper()
	w := &World{
		Database: NewDatabase(t), Broker: newBroker(t), Logs: &Logs{},
		Client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
	t.Cleanup(w.Client.CloseIdleConnections)
	t.Cleanup(func() {
		logs := w.Logs.String()
		for _, secret := range secrets {
			if strings.Contains(logs, secret) {
				t.Errorf("a secret is in the logs:\n%s", logs)
			}
		}
	})
	return w
}

// Answer is a whole response.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

// Do sends request and reads the answer. No answer, or a torn one, is fatal.
func (w *World) Do(request *http.Request) Answer {
	w.T.Helper()
	response, err := w.Client.Do(request)
	if err != nil {
		w.T.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		w.T.Fatal(err)
	}
	return Answer{response.StatusCode, response.Header, string(body)}
}

// Send is Do of a request with these parts; header may be nil.
func (w *World) Send(method, url string, header http.Header, body string) Answer {
	w.T.Helper()
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		w.T.Fatal(err)
	}
	request.Header = header
	return w.Do(request)
}

// Process is a function that takes requests at URL.
type Process struct {
	URL     string
	metrics string
	world   *World
	stop    func()
}

// Limits on a process: it starts without any network I/O, and drains for 20
// seconds only if something hangs.
const (
	readyTime = 20 * time.Second
	stopTime  = 20 * time.Second
)

// Start runs the function called name in the world's database and broker until
// Stop or the test's end. env adds to its environment; later maps win. A function
// that does not become ready is fatal.
func (w *World) Start(name string, build function.Build, env ...map[string]string) *Process {
	w.T.Helper()
	vars := map[string]string{
		"PORT": "0", "METRICS_PORT": "0", "BIND_ADDRESS": "127.0.0.1", "DATABASE_URL": w.DSN.Reveal(), "BROKER_URL": w.Broker.URL,
	}
	for _, more := range env {
		maps.Copy(vars, more)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan function.Addresses, 1), make(chan error, 1)
	logs := io.MultiWriter(w.Logs, w.T.Output())
	go func() {
		ended <- function.Run(ctx, name, func(variable string) string { return vars[variable] }, logs, build, func(a function.Addresses) { ready <- a })
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				w.T.Errorf("%s ended with %v", name, err)
			}
		case <-time.After(stopTime):
			w.T.Errorf("%s did not end", name)
		}
	})
	w.T.Cleanup(stop)
	select {
	case a := <-ready:
		return &Process{URL: "http://" + a.HTTP, metrics: "http://" + a.Metrics, world: w, stop: stop}
	case err := <-ended:
		ended <- nil
		w.T.Fatalf("%s did not start: %v", name, err)
	case <-time.After(readyTime):
		w.T.Fatalf("%s does not become ready", name)
	}
	return nil
}

// Stop ends the process as SIGTERM does and waits for it; a repeat does nothing.
// It is an error if the process fails, or needs more than 20 seconds.
func (p *Process) Stop() { p.stop() }

// Metrics returns what a scrape gets; a scrape that fails is fatal.
func (p *Process) Metrics() string {
	p.world.T.Helper()
	a := p.world.Send(http.MethodGet, p.metrics+"/metrics", nil, "")
	if a.Status != http.StatusOK {
		p.world.T.Fatalf("the metrics answered %d %q", a.Status, a.Body)
	}
	return a.Body
}

// Deliver hands e to the process once, as a broker does (CloudEvents HTTP
// binding, binary mode). An event that cannot be encoded is fatal.
func (p *Process) Deliver(e event.Event) Answer {
	p.world.T.Helper()
	ce, err := event.Encode(e, time.Now())
	if err != nil {
		p.world.T.Fatal(err)
	}
	header := http.Header{
		"Content-Type": {ce.DataContentType()}, "Ce-Specversion": {ce.SpecVersion()}, "Ce-Id": {ce.ID()}, "Ce-Source": {ce.Source()},
		"Ce-Type": {ce.Type()}, "Ce-Time": {ce.Time().UTC().Format(time.RFC3339Nano)},
	}
	for name, value := range ce.Extensions() {
		header.Set("Ce-"+name, fmt.Sprint(value))
	}
	return p.world.Send(http.MethodPost, p.URL+"/events", header, string(ce.Data()))
}

// DeliverTwice hands e over and repeats it, as a broker may. Unless both are
// taken, without a body, it is fatal.
func (p *Process) DeliverTwice(e event.Event) {
	p.world.T.Helper()
	for range 2 {
		if a := p.Deliver(e); a.Status != http.StatusAccepted || a.Body != "" {
			p.world.T.Fatalf("the delivery of %s answered %d %q", e.Type, a.Status, a.Body)
		}
	}
}

// Hears is an error for every type of event that the process answers otherwise
// than this: those of heard are taken, others are refused for good, and a process
// that hears none has no path for them. The events lead to no row.
func (p *Process) Hears(channel harness.Channel, heard ...event.Type) {
	p.world.T.Helper()
	for _, kind := range event.Types() {
		want := http.StatusBadRequest
		switch {
		case len(heard) == 0:
			want = http.StatusNotFound
		case slices.Contains(heard, kind):
			want = http.StatusAccepted
		}
		e := event.Event{ID: "e", Type: kind, Session: "ses_none", Channel: channel, Payload: event.Payload{Session: "ses_none", Message: "msg_none"}}
		if a := p.Deliver(e); a.Status != want {
			p.world.T.Errorf("%s was answered %d, want %d", kind, a.Status, want)
		}
	}
}

// Complains is an error for every text that err does not say: the variables that
// are wrong in a configuration. No error at all is fatal.
func Complains(t testing.TB, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q is not in: %v", text, err)
		}
	}
}
