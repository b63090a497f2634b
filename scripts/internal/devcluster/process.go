package devcluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"tuluat.ai/harness/scripts/internal/localport"
)

type processState int

const (
	starting processState = iota
	ready
	draining // takes no new request
)

// process is one pod of a Service: one operating system process of the
// function. Its sandboxes are no part of it and survive it, as Pods do.
type process struct {
	service *service

	// Guarded by service.mu.
	state    processState
	inflight int
	used     time.Time // when the last request ended
	killed   bool      // by Kill
	cmd      *exec.Cmd // nil until started

	proxy  *httputil.ReverseProxy // set before ready
	logs   *logSplitter
	exited chan struct{} // closed when the process has ended

	recycle chan struct{} // closed when it is to end after its requests
}

// run takes p from its start to its end.
func (p *process) run() {
	s := p.service
	target, err := p.launch()
	if err != nil {
		p.failed(err)
		return
	}
	if err := p.awaitReady(target); err != nil {
		p.terminate(0)
		p.failed(err)
		return
	}
	p.proxy = p.newProxy(target)
	s.cluster.counts.add(func(c *Counts) { c.Starts[s.spec.Name]++ })
	s.set(p, ready)
	p.live()
	s.remove(p, nil)
}

// live returns when the process has ended: by itself, for idleness or because
// the cluster stops.
func (p *process) live() {
	s := p.service
	idle := time.NewTimer(s.cluster.o.IdleAfter)
	defer idle.Stop()
	for {
		select {
		case <-p.exited:
			p.crashed()
			return
		case <-s.cluster.stop:
			s.set(p, draining)
			p.terminate(min(s.cluster.o.StopGrace, stopGrace))
			return
		case <-p.recycle:
			p.terminate(s.cluster.o.StopGrace)
			return
		case <-idle.C:
			wait, retired := s.retire(p)
			if retired {
				p.terminate(s.cluster.o.StopGrace)
				return
			}
			idle.Reset(wait)
		}
	}
}

// stopGrace bounds how long a person waits after Ctrl-C.
const stopGrace = 10 * time.Second

// launch starts the program on a free port and returns its URL.
func (p *process) launch() (*url.URL, error) {
	s := p.service
	port, err := localport.Free()
	if err != nil {
		return nil, err
	}
	env, err := s.cluster.environment(s.spec)
	if err != nil {
		return nil, err
	}
	logs, err := openLog(s.cluster.o.LogDir, s.spec.Name, s.cluster.o.OnError)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(s.cluster.o.Binary(s.spec.ImportPath()))
	cmd.Env = append(env, fmt.Sprintf("PORT=%d", port), "METRICS_PORT=0", "BIND_ADDRESS=127.0.0.1")
	cmd.Stdout, cmd.Stderr = logs, logs
	cmd.SysProcAttr = childAttributes()
	// What a function leaves running may hold the log open; do not wait for it.
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, logs.Close())
	}
	p.logs = logs
	p.exited = make(chan struct{})
	go func() { // ends with the process, which run always ends
		_ = cmd.Wait() // how it ended is in cmd.ProcessState
		_ = logs.Close()
		close(p.exited)
	}()
	s.mu.Lock()
	p.cmd = cmd
	s.mu.Unlock()
	return &url.URL{Scheme: "http", Host: net.JoinHostPort("127.0.0.1", fmt.Sprint(port))}, nil
}

// awaitReady asks GET /readyz until it says 200.
func (p *process) awaitReady(target *url.URL) error {
	c := p.service.cluster
	ctx, cancel := context.WithTimeoutCause(context.Background(), c.o.StartTimeout, fmt.Errorf("not ready after %s", c.o.StartTimeout))
	defer cancel()
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.JoinPath("readyz").String(), nil)
		if err != nil {
			return err
		}
		if response, err := c.client.Do(request); err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-p.exited:
			return fmt.Errorf("%s%s", p.cmd.ProcessState, p.logs.lastWords())
		case <-c.stop:
			return errStopping
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// terminate asks the process to end and kills it after the grace. It returns
// when the process has ended.
func (p *process) terminate(grace time.Duration) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// failed reports a start that did not work to the requests that wait for it.
func (p *process) failed(err error) {
	s := p.service
	if p.wasKilled() {
		s.remove(p, nil) // the next one takes the requests
		return
	}
	s.remove(p, err)
	if errors.Is(err, errStopping) {
		return
	}
	s.cluster.counts.add(func(c *Counts) { c.Crashes[s.spec.Name]++ })
	s.cluster.o.Log.Error("function did not start", "service", s.spec.Name, "err", err)
}

// suspect looks whether a process that broke a request off is dying, so that
// the next request does not go to it as well.
func (p *process) suspect() {
	timer := time.NewTimer(deathTime)
	defer timer.Stop()
	select {
	case <-p.exited:
		p.service.set(p, draining)
	case <-timer.C:
	}
}

// deathTime is how long after its last connection a process may take to be gone.
const deathTime = 100 * time.Millisecond

func (p *process) wasKilled() bool {
	p.service.mu.Lock()
	defer p.service.mu.Unlock()
	return p.killed
}

// crashed records an end nobody asked for.
func (p *process) crashed() {
	if p.wasKilled() {
		return
	}
	s := p.service
	s.cluster.counts.add(func(c *Counts) { c.Crashes[s.spec.Name]++ })
	s.cluster.o.Log.Error("function ended by itself", "service", s.spec.Name, "how", p.cmd.ProcessState.String(), "words", strings.TrimSpace(p.logs.lastWords()))
}

// newProxy passes requests to target as they came: path, query and host are
// what callers signed.
func (p *process) newProxy(target *url.URL) *httputil.ReverseProxy {
	c := p.service.cluster
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = target.Scheme, target.Host
			r.Out.URL.RawQuery = r.In.URL.RawQuery // else unparsable parts are dropped
			r.Out.Host = r.In.Host
		},
		Transport:     c.client.Transport,
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(c.o.Log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			status := http.StatusBadGateway
			if errors.Is(context.Cause(r.Context()), errTimeout) {
				status = http.StatusGatewayTimeout
			} else if r.Context().Err() == nil {
				p.suspect()
			}
			http.Error(w, err.Error(), status)
		},
	}
}
