// Package devcluster plays the platform on one machine: what Knative Serving,
// Knative Eventing and the Kubernetes API do for the functions, obeying the
// same YAML. It starts a function's process at its first request and stops it
// when idle, delivers events by eventing's own filters and retry rules, ticks
// PingSources, watches a folder in place of the API server, and routes the
// public path.
//
// It is a development and test platform: one Broker keeps its events in memory
// and loses them when it stops, as the in-memory channel does. What it cannot
// honour it refuses when it starts.
package devcluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"tuluat.ai/harness/scripts/internal/manifest"
)

// Options says what to run and how. Manifest, Binary, Secret, LogDir and Log
// are needed. Secret, ConfigMap and Env are asked at every start of a process,
// from several goroutines.
type Options struct {
	Manifest  *manifest.Set
	Binary    func(importPath string) string                    // the program built from a main package
	Secret    func(name, key string) (value string, ok bool)    // the key of a Secret
	ConfigMap func(name string) (folder string, ok bool)        // the folder that stands for a ConfigMap
	Env       func(service *manifest.Service) map[string]string // adds to and replaces what the YAML says
	AgentsDir string                                            // watched in place of the API server; empty: nothing is
	LogDir    string                                            // takes SERVICE.log per Service
	Log       *slog.Logger                                      // the platform's own log
	OnError   func(service, line string)                        // one line for a person per ERROR a function logs

	Gateway      string        // address of the public entry; default 127.0.0.1:0
	IdleAfter    time.Duration // a process without a request this long is stopped; default 30 s
	StartTimeout time.Duration // from exec to ready; default 30 s
	StopGrace    time.Duration // from SIGTERM to SIGKILL; default 30 s, when the cluster stops at most 10 s
	MaxQueue     int           // requests that wait for a process of one Service; default 10,000
	Processes    int           // per Service, as far as its max-scale allows; default 1

	Faults    Faults
	OnPublish func(cloudevents.Event)  // every event a Broker took
	OnDeliver func(Delivery)           // every delivery attempt, after its answer
	OnRequest func(*http.Request, int) // every request of the public entry a function answers, when its answer begins, with its status
}

// Cluster is a running platform.
type Cluster struct {
	o        Options
	services []*service
	brokers  []*broker
	gateway  *endpoint
	ingress  *endpoint
	client   *http.Client // deliveries
	faults   *faultPlan
	counts   *counter

	deliveries sync.WaitGroup
	processes  sync.WaitGroup
	stop       chan struct{}   // closed when processes must stop
	delivering context.Context // ends when deliveries must stop
	cancel     context.CancelFunc
}

// New checks the manifest and binds every address, so that what it returns can
// say its URLs before anything runs. Close it if Run is never called.
func New(o Options) (*Cluster, error) {
	if o.Gateway == "" {
		o.Gateway = "127.0.0.1:0"
	}
	o.IdleAfter = orDefault(o.IdleAfter, 30*time.Second)
	o.StartTimeout = orDefault(o.StartTimeout, 30*time.Second)
	o.StopGrace = orDefault(o.StopGrace, 30*time.Second)
	o.Processes = max(o.Processes, 1)
	if o.MaxQueue == 0 {
		o.MaxQueue = maxQueue
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil // everything here is on this machine
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, 256
	c := &Cluster{
		o: o, stop: make(chan struct{}), counts: newCounter(), faults: newFaultPlan(o.Faults),
		client: &http.Client{Transport: transport},
	}
	c.delivering, c.cancel = context.WithCancel(context.Background())
	if err := c.bind(); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func orDefault(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}

func (c *Cluster) bind() error {
	var err error
	if c.ingress, err = listen("127.0.0.1:0", http.HandlerFunc(c.serveIngress), c.o.Log); err != nil {
		return err
	}
	for _, spec := range c.o.Manifest.Services {
		s, err := c.newService(spec)
		if err != nil {
			return err
		}
		c.services = append(c.services, s)
	}
	// Every address is known now, so host names in values can be replaced.
	var problems []error
	for _, s := range c.services {
		_, err = c.environment(s.spec)
		problems = append(problems, err)
	}
	for _, spec := range c.o.Manifest.Brokers {
		b, err := c.newBroker(spec)
		problems = append(problems, err)
		c.brokers = append(c.brokers, b)
	}
	problems = append(problems, c.checkSources())
	if err := errors.Join(problems...); err != nil {
		return err
	}
	c.gateway, err = listen(c.o.Gateway, http.HandlerFunc(c.serveGateway), c.o.Log)
	return err
}

// Run serves until ctx ends, then stops everything and returns when no process
// and no goroutine of it is left.
func (c *Cluster) Run(ctx context.Context) error {
	failed := make(chan error, len(c.services)+2)
	var serving sync.WaitGroup
	for _, e := range c.endpoints() {
		serving.Go(func() { failed <- e.serve() })
	}
	sources, stopSources := context.WithCancel(ctx)
	serving.Go(func() { c.runCron(sources) })
	serving.Go(func() { c.watchAgents(sources) })
	for _, s := range c.services {
		s.keepMinimum()
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	stopSources()
	c.shutdown()
	serving.Wait()
	return err
}

// shutdown stops in the order that loses least: no new requests from outside,
// no new deliveries, then the processes, which may still publish while they
// drain, then the rest.
func (c *Cluster) shutdown() {
	c.gateway.close()
	c.cancel()
	for _, s := range c.services {
		s.refuseStarts()
	}
	close(c.stop)
	c.processes.Wait()
	for _, e := range c.endpoints() {
		e.close()
	}
	c.deliveries.Wait()
	c.client.CloseIdleConnections()
}

// Close frees the addresses of a Cluster that was never run.
func (c *Cluster) Close() {
	c.cancel()
	for _, e := range c.endpoints() {
		e.close()
	}
}

func (c *Cluster) endpoints() []*endpoint {
	var all []*endpoint
	for _, e := range []*endpoint{c.gateway, c.ingress} {
		if e != nil {
			all = append(all, e)
		}
	}
	for _, s := range c.services {
		all = append(all, s.endpoint)
	}
	return all
}

// GatewayURL is the public entry, without a trailing slash.
func (c *Cluster) GatewayURL() string { return c.gateway.url() }

// BrokerURL is where events for the Broker are posted.
func (c *Cluster) BrokerURL(namespace, name string) string {
	return c.ingress.url() + manifest.BrokerPath(namespace, name)
}

// ServiceURL is where the cluster itself reaches the Service; empty if there is
// no such Service.
func (c *Cluster) ServiceURL(name string) string {
	if s := c.service(name); s != nil {
		return s.endpoint.url()
	}
	return ""
}

// Kill ends every running process of the Service with SIGKILL, as a node that
// dies does, and returns how many there were.
func (c *Cluster) Kill(name string) int {
	s := c.service(name)
	if s == nil {
		return 0
	}
	return s.kill()
}

// Renew ends every process of the Service after the requests it has, so that
// the next one starts with the Secrets of now: a new revision.
func (c *Cluster) Renew(name string) {
	if s := c.service(name); s != nil {
		s.renew()
	}
}

// Counts returns what has happened so far.
func (c *Cluster) Counts() Counts { return c.counts.read() }

func (c *Cluster) service(name string) *service {
	for _, s := range c.services {
		if s.spec.Name == name {
			return s
		}
	}
	return nil
}

// endpoint is an address and what serves it.
type endpoint struct {
	listener net.Listener
	server   *http.Server
}

func listen(address string, h http.Handler, log *slog.Logger) (*endpoint, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	return &endpoint{listener: listener, server: server}, nil
}

func (e *endpoint) url() string { return "http://" + e.listener.Addr().String() }

func (e *endpoint) serve() error {
	if err := e.server.Serve(e.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", e.listener.Addr(), err)
	}
	return nil
}

// close cuts what is still open and frees the address, served or not.
func (e *endpoint) close() {
	_ = e.server.Close()
	_ = e.listener.Close() // closed already if it was served
}
