package function

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tuluat.ai/harness/shared/trace"
)

// requests measures what a function is asked: how much, how it went, how long it
// took. It begins the trace of each, or goes on with the one it is part of.
type requests struct {
	total   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	running prometheus.Gauge
	traces  *trace.Provider // nil: nothing is traced
}

func newRequests(registry prometheus.Registerer, name string, traces *trace.Provider) *requests {
	own := prometheus.Labels{"function": name}
	m := &requests{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tuluat_requests_total", Help: "Events and requests answered: by type of event, route or operation, and by outcome: ok, refused (4xx), failed (5xx).", ConstLabels: own,
		}, []string{"request", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tuluat_request_seconds", Help: "How long they took; streams until they end.", ConstLabels: own,
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 240},
		}, []string{"request"}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tuluat_requests_in_flight", Help: "Events and requests that are being answered.", ConstLabels: own}),
		traces:  traces,
	}
	registry.MustRegister(m.total, m.seconds, m.running)
	return m
}

// expect lets what the function can be asked begin at 0.
func (m *requests) expect(f *Function) {
	for _, t := range f.heard() {
		m.total.WithLabelValues(string(t), outcomeOK)
		m.total.WithLabelValues(string(t), outcomeFailed)
	}
}

// Outcomes.
const (
	outcomeOK      = "ok"
	outcomeRefused = "refused"
	outcomeFailed  = "failed"
)

func outcomeOf(status int) string {
	switch {
	case status >= http.StatusInternalServerError:
		return outcomeFailed
	case status >= http.StatusBadRequest:
		return outcomeRefused
	}
	return outcomeOK
}

// unmatched is the name of a request that fits no route.
const unmatched = "unmatched"

// named is what a request turned out to be.
type named struct{ name string }

type namedKey struct{}

// NameRequest says what the request of ctx is, for its metrics and its span: a name
// of a closed set. Without it, it is called by its route.
func NameRequest(ctx context.Context, name string) {
	if n, ok := ctx.Value(namedKey{}).(*named); ok {
		n.name = name
	}
}

// around measures next. What reads Traceparent of a request reads that of its span.
func (m *requests) around(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" || r.URL.Path == "/readyz" {
			next.ServeHTTP(w, r)
			return
		}
		n := &named{}
		parent, event := r.Header.Get("Traceparent"), r.URL.Path == eventsPath
		if event {
			parent = r.Header.Get("Ce-Traceparent")
		}
		ctx, span := m.traces.Begin(context.WithValue(r.Context(), namedKey{}, n), parent, event)
		r = r.WithContext(ctx)
		if own := trace.Parent(ctx); own != "" {
			r.Header = r.Header.Clone()
			r.Header.Set("Traceparent", own)
		}
		m.running.Inc()
		began, recorder := time.Now(), &recorder{ResponseWriter: w}
		defer func() {
			name := n.name
			if name == "" {
				name = r.Pattern
			}
			if name == "" || name == "/" {
				name = unmatched
			}
			status := recorder.answered()
			m.running.Dec()
			m.total.WithLabelValues(name, outcomeOf(status)).Inc()
			m.seconds.WithLabelValues(name).Observe(time.Since(began).Seconds())
			span.End(name, status)
		}()
		next.ServeHTTP(recorder, r)
	})
}

// recorder remembers the status of an answer. http.ResponseController reaches
// through it.
type recorder struct {
	http.ResponseWriter
	status int
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// Flush implements http.Flusher, for those who ask for no more than that.
func (r *recorder) Flush() { _ = http.NewResponseController(r.ResponseWriter).Flush() }

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= http.StatusOK {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// answered is the status of the answer; one that was never begun is 200, as
// net/http sends it.
func (r *recorder) answered() int {
	if r.status == 0 {
		return http.StatusOK
	}
	return r.status
}
