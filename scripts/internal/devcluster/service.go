package devcluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"tuluat.ai/harness/scripts/internal/manifest"
)

// service stands for one Knative Service: it holds requests until a process is
// ready, gives each process at most containerConcurrency of them, and ends a
// request at timeoutSeconds.
type service struct {
	cluster  *Cluster
	spec     *manifest.Service
	endpoint *endpoint
	minimum  int // processes kept without requests
	maximum  int

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced at every change below
	processes []*process
	waiting   int
	failures  int   // starts that failed
	failure   error // the last of them
	stopped   bool  // the cluster is stopping: nothing is started
}

// maxQueue is how many requests Knative's activator holds for a Service.
const maxQueue = 10_000

var (
	errTimeout   = errors.New("timeoutSeconds is over")
	errQueueFull = errors.New("too many requests are waiting")
	errStopping  = errors.New("the platform is stopping")
)

func (c *Cluster) newService(spec *manifest.Service) (*service, error) {
	s := &service{cluster: c, spec: spec, changed: make(chan struct{})}
	minimum, err := spec.Scale(manifest.MinScale)
	if err != nil {
		return nil, err
	}
	maximum, err := spec.Scale(manifest.MaxScale)
	if err != nil {
		return nil, err
	}
	s.maximum = min(maximum, c.o.Processes)
	s.minimum = min(minimum, s.maximum)
	s.endpoint, err = listen("127.0.0.1:0", s, c.o.Log)
	return s, err
}

// ServeHTTP passes one request to a process.
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeoutCause(r.Context(), s.spec.Timeout(), errTimeout)
	defer cancel()
	p, err := s.acquire(ctx)
	if err != nil {
		s.refuse(w, err)
		return
	}
	defer s.release(p)
	p.proxy.ServeHTTP(w, r.WithContext(ctx))
}

// refuse answers a request that reached no process.
func (s *service) refuse(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable
	if errors.Is(err, errTimeout) {
		status = http.StatusGatewayTimeout
	}
	http.Error(w, s.spec.Name+": "+err.Error(), status)
}

// acquire returns a process with room for one more request, starting one if
// need be. It fails when the queue is full, when a process that was to take the
// request did not start, and when ctx ends.
func (s *service) acquire(ctx context.Context) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	failures := s.failures
	for queued := false; ; {
		if p := s.pick(); p != nil {
			p.inflight++
			return p, nil
		}
		if s.failures > failures {
			return nil, s.failure
		}
		if s.stopped {
			return nil, errStopping
		}
		if !queued {
			if s.waiting >= s.cluster.o.MaxQueue {
				return nil, errQueueFull
			}
			s.waiting++
			defer func() { s.waiting-- }()
			queued = true
		}
		s.start(s.maximum)
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		s.mu.Lock()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// pick returns the ready process with the fewest requests, nil if each is full.
func (s *service) pick() *process {
	var best *process
	for _, p := range s.processes {
		if p.state == ready && p.inflight < s.spec.Concurrency() && (best == nil || p.inflight < best.inflight) {
			best = p
		}
	}
	return best
}

func (s *service) release(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.inflight--
	p.used = time.Now()
	s.broadcast()
}

// start starts processes until want are there, starting or ready. mu is held.
func (s *service) start(want int) {
	if s.stopped {
		return
	}
	live := 0
	for _, p := range s.processes {
		if p.state != draining {
			live++
		}
	}
	for ; live < want; live++ {
		p := &process{service: s, used: time.Now(), recycle: make(chan struct{})}
		s.processes = append(s.processes, p)
		s.cluster.processes.Go(p.run)
	}
}

func (s *service) keepMinimum() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start(s.minimum)
}

// set moves p to a state and tells whoever waits.
func (s *service) set(p *process, state processState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.state = state
	s.broadcast()
}

// retire moves p from ready to draining if it has been idle for long enough,
// and says how much longer to wait if it has not.
func (s *service) retire(p *process) (wait time.Duration, retired bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	idle := s.cluster.o.IdleAfter
	if p.inflight > 0 {
		return idle, false
	}
	if unused := time.Since(p.used); unused < idle {
		return idle - unused, false
	}
	others := 0
	for _, other := range s.processes {
		if other != p && other.state == ready {
			others++
		}
	}
	if others < s.minimum {
		return idle, false
	}
	p.state = draining
	return 0, true
}

// remove forgets an ended process. err is why it did not start, if it did not.
func (s *service) remove(p *process, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes = slices.DeleteFunc(s.processes, func(other *process) bool { return other == p })
	if err != nil {
		s.failures++
		s.failure = fmt.Errorf("the function did not start: %w", err)
	}
	if s.minimum > 0 && err == nil {
		s.start(s.minimum)
	}
	s.broadcast()
}

func (s *service) refuseStarts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.broadcast()
}

func (s *service) kill() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	killed := 0
	for _, p := range s.processes {
		if p.cmd != nil && p.cmd.Process.Kill() == nil {
			p.killed, p.state = true, draining
			killed++
		}
	}
	s.cluster.counts.add(func(c *Counts) { c.Kills[s.spec.Name] += killed })
	return killed
}

// renew ends every ready process after the requests it has.
func (s *service) renew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.processes {
		if p.state == ready {
			p.state = draining
			close(p.recycle)
		}
	}
	s.broadcast()
}

// broadcast wakes every waiter. mu is held.
func (s *service) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}
