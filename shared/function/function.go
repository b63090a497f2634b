// Package function is the process around a function: environment, logging,
// ports, readiness, events in, events out, drain. What a function does stays in
// the function.
//
// A process becomes ready without the world: Postgres, models and stores may be
// down. It binds its ports, says ready, serves, and on SIGTERM stops taking
// requests, lets running ones finish under a deadline, closes what was opened
// in reverse order and exits 0.
package function

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/trace"
)

// Env is what the shell hands to a function while it is wired.
type Env struct {
	Getenv  func(string) string
	Name    string // the function's name, for logs and lease owners
	Log     *slog.Logger
	Metrics *prometheus.Registry
	onExit  *closers
}

// OnExit registers close to run after the last request, in reverse order.
func (e Env) OnExit(close func()) { e.onExit.add(close) }

// Owner names this process in leases: function, host and process id.
func (e Env) Owner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%s/%d", e.Name, host, os.Getpid())
}

// Build wires a function and returns its handler. It does no network I/O.
type Build func(ctx context.Context, env Env) (*Function, error)

// Function is what a process serves: the events it hears at POST /events and
// its own paths.
type Function struct {
	Events map[event.Type]EventFunc
	Routes map[string]http.Handler // by http.ServeMux pattern
}

// After SIGTERM running requests may take drainTime; then the contexts of those
// that still run end, and they have releaseTime to give their leases back.
// Knative's grace is timeoutSeconds, which is longer than both together.
const (
	drainTime   = 20 * time.Second
	releaseTime = 5 * time.Second
)

// Main runs the function called name as this process and never returns.
// With -contract it prints the event types heard, one a line, and exits.
func Main(name string, build Build) {
	contract := flag.Bool("contract", false, "print the event types this function hears and exit")
	flag.Parse()
	tuneMemory(os.Getenv)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := run(ctx, options{name: name, getenv: os.Getenv, logs: os.Stderr, contract: *contract, out: os.Stdout}, build, nil)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Addresses are where a running function listens.
type Addresses struct{ HTTP, Metrics string }

// Run runs a function until ctx ends, as tests start it. PORT=0 picks a free
// port; ready is called once with the addresses when requests are taken.
func Run(ctx context.Context, name string, getenv func(string) string, logs io.Writer, build Build, ready func(Addresses)) error {
	return run(ctx, options{name: name, getenv: getenv, logs: logs}, build, ready)
}

type options struct {
	name     string
	getenv   func(string) string
	logs     io.Writer
	contract bool
	out      io.Writer
}

func run(ctx context.Context, o options, build Build, ready func(Addresses)) (err error) {
	log, err := newLogger(o)
	if err != nil {
		return err
	}
	env := Env{Getenv: o.getenv, Name: o.name, Log: log, Metrics: prometheus.NewRegistry(), onExit: &closers{}}
	defer env.onExit.close()
	if err := profile(env); err != nil {
		return err
	}
	traces, err := trace.Open(o.getenv, o.name, log)
	if err != nil {
		return err
	}
	env.OnExit(traces.Close) // the first: it is closed last, after what makes spans
	f, err := build(ctx, env)
	if err != nil {
		return err
	}
	if o.contract {
		return printContract(o.out, f)
	}
	main, err := listen(o.getenv, "PORT", 8080)
	if err != nil {
		return err
	}
	metrics, err := listen(o.getenv, "METRICS_PORT", metricsPort)
	if err != nil {
		return errors.Join(err, main.Close())
	}
	lifetime, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	server := &http.Server{Handler: f.handler(lifetime, env.Log, newRequests(env.Metrics, o.name, traces)), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
	metricsServer := &http.Server{Handler: promhttp.HandlerFor(env.Metrics, promhttp.HandlerOpts{}), ReadHeaderTimeout: 10 * time.Second}
	if ready != nil {
		ready(Addresses{HTTP: main.Addr().String(), Metrics: metrics.Addr().String()})
	}
	return serve(ctx, log, map[*http.Server]net.Listener{server: main, metricsServer: metrics}, func() { end(errDrained) })
}

var errDrained = errors.New("the process ends")

// serve runs every server until ctx ends or one fails, then drains them all:
// endWork ends what is still running after drainTime.
func serve(ctx context.Context, log *slog.Logger, servers map[*http.Server]net.Listener, endWork func()) error {
	failed := make(chan error, len(servers))
	var running sync.WaitGroup
	for server, listener := range servers {
		running.Go(func() {
			if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		})
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	overdue := time.AfterFunc(drainTime, func() {
		log.Warn("requests are still running at the end of the drain and are ended")
		endWork()
	})
	defer overdue.Stop()
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime+releaseTime)
	defer cancel()
	for server := range servers {
		if shutdown := server.Shutdown(drain); shutdown != nil {
			log.Error("requests did not end and are cut", "err", shutdown)
			err = errors.Join(err, server.Close())
		}
	}
	running.Wait()
	return err
}

func newLogger(o options) (*slog.Logger, error) {
	level := slog.LevelInfo
	if text := o.getenv("LOG_LEVEL"); text != "" {
		if err := level.UnmarshalText([]byte(text)); err != nil {
			return nil, harness.Errorf(harness.Invalid, "LOG_LEVEL is %q: use DEBUG, INFO, WARN or ERROR", text)
		}
	}
	return slog.New(slog.NewJSONHandler(o.logs, &slog.HandlerOptions{Level: level})).With("function", o.name), nil
}

// metricsPort is that of OpenTelemetry's Prometheus exporter. Knative's proxy in
// the same Pod has 8012, 8013, 8022, 8112, 9090 and 9091
// (knative.dev/serving/pkg/networking).
const metricsPort = 9464

func listen(getenv func(string) string, name string, def int) (net.Listener, error) {
	port := strconv.Itoa(def)
	if text := getenv(name); text != "" {
		if n, err := strconv.Atoi(text); err != nil || n < 0 || n > 65535 {
			return nil, harness.Errorf(harness.Invalid, "%s is %q: a port number is needed", name, text)
		}
		port = text
	}
	// Every address of a pod; on a machine with neighbours BIND_ADDRESS names one.
	listener, err := net.Listen("tcp", net.JoinHostPort(getenv("BIND_ADDRESS"), port))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return listener, nil
}

func printContract(w io.Writer, f *Function) error {
	for _, t := range f.heard() {
		if _, err := fmt.Fprintln(w, t); err != nil {
			return err
		}
	}
	return nil
}

// closers run once, last added first.
type closers struct {
	mu  sync.Mutex
	all []func()
}

func (c *closers) add(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, f)
}

func (c *closers) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(c.all) - 1; i >= 0; i-- {
		c.all[i]()
	}
	c.all = nil
}
