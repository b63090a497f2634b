// Package figures serves what the rows say as Prometheus metrics: figures that are
// there while every other function is scaled to zero, and that no restart resets.
package figures

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

const (
	// freshTime is how long what was read is served again, whether it was figures or
	// a failure: so many scrapers cost one read.
	freshTime = 5 * time.Second
	// readTime bounds a read. Prometheus waits ten seconds for a scrape by default.
	readTime = 8 * time.Second
)

// Collector reads figures when it is scraped. Where they cannot be read it has none
// of them, not zeros, and tuluat_figures_up is 0.
type Collector struct {
	read func(context.Context) (postgres.Figures, error)
	log  *slog.Logger
	now  func() time.Time

	mu   sync.Mutex // one read at a time; others wait for what it brings
	at   time.Time
	took time.Duration
	last postgres.Figures
	err  error
}

// New returns a Collector of what read returns.
func New(read func(context.Context) (postgres.Figures, error), log *slog.Logger, now func() time.Time) *Collector {
	return &Collector{read: read, log: log, now: now}
}

// Handler serves the figures alone, without those of the process.
func (c *Collector) Handler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range descriptions {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	f, took, err := c.figures()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(readSeconds, took.Seconds())
	if err != nil {
		gauge(up, 0)
		return
	}
	gauge(up, 1)
	counts(f, out)
	guardrails(f, out)
	for _, a := range f.Agents {
		f.Sandboxes = append(f.Sandboxes, postgres.AgentCount{Agent: a.Agent})
		f.Approvals = append(f.Approvals, postgres.AgentCount{Agent: a.Agent})
		f.Retrying = append(f.Retrying, postgres.AgentCount{Agent: a.Agent})
	}
	for d, of := range map[*prometheus.Desc][]postgres.AgentCount{podsActive: f.Sandboxes, approvalsWaiting: f.Approvals, sessionsRetrying: f.Retrying} {
		sum := map[harness.AgentName]int{}
		for _, n := range of {
			sum[n.Agent] += n.Count
		}
		for agent, n := range sum {
			gauge(d, float64(n), string(agent))
		}
	}
	gauge(messagesWaiting, float64(f.Waiting))
	gauge(messageAge, f.MessageAge.Seconds())
	gauge(approvalAge, f.ApprovalAge.Seconds())
	gauge(outboxSize, float64(f.Outbox))
	gauge(outboxAge, f.OutboxAge.Seconds())
	for state, n := range f.Letters {
		gauge(letters, float64(n), state)
	}
	gauge(letterAge, f.LetterAge.Seconds())
	for _, l := range f.Leaks {
		gauge(leaked, float64(l.Leaked), string(l.Kind))
		gauge(lost, float64(l.Lost), string(l.Kind))
		gauge(comparisonAge, max(0, l.Age), string(l.Kind))
	}
	gauge(archiveLag, f.ArchiveLag.Seconds())
	gauge(archiving, float64(f.Archiving))
	gauge(archivesAge, f.ArchivesAge.Seconds())
	sweep(f, gauge)
}

// sweep is how the last pass went. Where there was none its age is infinite.
func sweep(f postgres.Figures, gauge func(*prometheus.Desc, float64, ...string)) {
	age := math.Inf(1)
	if f.SweepAge != nil {
		age = f.SweepAge.Seconds()
	}
	gauge(sweepAge, age)
	for item, found := range f.Findings {
		gauge(sweepFindings, float64(found.Found), item, "found")
		gauge(sweepFindings, float64(found.Done), item, "done")
		gauge(sweepFindings, float64(found.Left), item, "left")
		failed := 0.0
		if found.Error != "" {
			failed = 1
		}
		gauge(sweepFailed, failed, item)
	}
	gauge(leaks, float64(f.Findings["leaks"].Objects), "object_without_row")
	gauge(leaks, float64(f.Findings["leaks"].Rows), "row_without_object")
}

// series is one time series of a metric.
type series struct {
	of            *prometheus.Desc
	first, second string
	third         string
}

// counts are the amounts of figures, and 0 for what each agent can have.
func counts(f postgres.Figures, out chan<- prometheus.Metric) {
	values := map[series]float64{}
	starts := map[string]*starting{}
	start := func(agent harness.AgentName) *starting {
		if starts[string(agent)] == nil {
			starts[string(agent)] = &starting{buckets: map[float64]uint64{}}
		}
		return starts[string(agent)]
	}
	for _, a := range f.Agents {
		start(a.Agent)
		for _, state := range harness.SessionStates() {
			values[series{sessions, string(a.Agent), string(state), ""}] = 0
		}
		for _, state := range harness.RunStates() {
			values[series{runs, string(a.Agent), string(state), ""}] = 0
		}
		for _, state := range executionStates {
			values[series{executions, string(a.Agent), string(state), ""}] = 0
		}
		for _, state := range approvalStates {
			values[series{approvals, string(a.Agent), string(state), ""}] = 0
		}
		if a.Model != "" {
			for _, direction := range []string{postgres.TokensInput, postgres.TokensOutput, postgres.TokensOther} {
				values[series{tokens, string(a.Agent), a.Model, direction}] = 0
			}
			values[series{cost, string(a.Agent), a.Model, ""}] = 0
			values[series{modelFailures, string(a.Agent), a.Model, ""}] = 0
		}
	}
	for _, state := range replyStates {
		values[series{replies, string(state), "", ""}] = 0
	}
	for _, n := range f.Counts {
		amount := float64(n.Amount)
		switch n.Name {
		case harness.FigureSessions:
			values[series{sessions, string(n.Agent), n.Label, ""}] += amount
		case harness.FigureReplies:
			values[series{replies, n.Label, "", ""}] += amount
		case harness.FigureRuns:
			values[series{runs, string(n.Agent), n.Label, ""}] += amount
		case harness.FigureExecutions:
			values[series{executions, string(n.Agent), n.Label, ""}] += amount
		case harness.FigureApprovals:
			values[series{approvals, string(n.Agent), n.Label, ""}] += amount
		case harness.FigureTokens:
			values[series{tokens, string(n.Agent), n.Model, n.Label}] += amount
		case harness.FigureCost:
			values[series{cost, string(n.Agent), n.Model, ""}] += amount / 1e6
		case harness.FigureModelFailures:
			values[series{modelFailures, string(n.Agent), n.Model, ""}] += amount
		case harness.FigureSandboxStart:
			start(n.Agent).count(n.Label, n.Amount)
		case harness.FigureSandboxStartMillis:
			start(n.Agent).seconds += amount / 1000
		}
	}
	for s, v := range values {
		labels := []string{s.first, s.second, s.third}[:labelCount[s.of]]
		out <- prometheus.MustNewConstMetric(s.of, valueType(s.of), v, labels...)
	}
	for agent, s := range starts {
		out <- prometheus.MustNewConstHistogram(sandboxStart, s.times, s.seconds, s.cumulative(), agent)
	}
}

// starting is how long an agent's sandboxes took to start.
type starting struct {
	times   uint64
	seconds float64
	buckets map[float64]uint64
}

func (s *starting) count(bound string, n int64) {
	s.times += uint64(max(0, n))
	if b, err := strconv.ParseFloat(bound, 64); err == nil && !math.IsInf(b, 1) {
		s.buckets[b] += uint64(max(0, n))
	}
}

// cumulative adds to each bound what is under it.
func (s *starting) cumulative() map[float64]uint64 {
	sum, buckets := uint64(0), map[float64]uint64{}
	for _, b := range startBounds {
		sum += s.buckets[b]
		buckets[b] = sum
	}
	return buckets
}

func guardrails(f postgres.Figures, out chan<- prometheus.Metric) {
	for _, g := range f.Guardrails {
		out <- prometheus.MustNewConstMetric(guardrailBlocks, prometheus.CounterValue, float64(g.Times),
			string(g.Agent), string(g.Stage), g.Guardrail, string(g.Action))
	}
}

// figures are those of at most freshTime ago.
func (c *Collector) figures() (postgres.Figures, time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if began := c.now(); c.at.IsZero() || began.Sub(c.at) >= freshTime {
		ctx, cancel := context.WithTimeoutCause(context.Background(), readTime, errors.New("read of the figures"))
		defer cancel()
		c.last, c.err = c.read(ctx)
		if c.err != nil {
			c.log.Warn("figures cannot be read", "err", c.err)
		}
		c.at = c.now()
		c.took = c.at.Sub(began)
	}
	return c.last, c.took, c.err
}
