package reap

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tuluat.ai/harness/shared/postgres"
)

// metrics are what the sweep counts. Label values are the items' names and the
// event types: closed sets.
type metrics struct {
	found, done, left, failed *prometheus.CounterVec
	direct                    *prometheus.CounterVec
	now                       func() time.Time
	last                      atomic.Int64 // end of the last full pass known here, Unix nanoseconds; 0: none
}

func newMetrics(registry prometheus.Registerer, now func() time.Time) *metrics {
	counter := func(name, help, label string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		registry.MustRegister(c)
		return c
	}
	m := &metrics{
		found:  counter("tuluat_sweep_found_total", "Rows or objects that needed something, by item.", "item"),
		done:   counter("tuluat_sweep_done_total", "Of them, those that got it.", "item"),
		left:   counter("tuluat_sweep_left_total", "Of them, those left to a later pass.", "item"),
		failed: counter("tuluat_sweep_failures_total", "Runs of an item that failed, in part or whole.", "item"),
		direct: counter("tuluat_sweep_direct_total", "Events posted to their subscriber because the broker did not deliver them, by type.", "type"),
		now:    now,
	}
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tuluat_sweep_age_seconds", Help: "Time since the end of the last full pass of any process, as known here; +Inf: none known.",
	}, m.age))
	return m
}

func (m *metrics) age() float64 {
	last := m.last.Load()
	if last == 0 {
		return math.Inf(1)
	}
	return m.now().Sub(time.Unix(0, last)).Seconds()
}

// claimed takes over what the row says of the passes of other processes.
func (m *metrics) claimed(age *time.Duration) {
	if age != nil {
		m.last.Store(m.now().Add(-*age).UnixNano())
	}
}

func (m *metrics) completed() { m.last.Store(m.now().UnixNano()) }

func (m *metrics) item(name string, f postgres.Finding) {
	m.found.WithLabelValues(name).Add(float64(f.Found))
	m.done.WithLabelValues(name).Add(float64(f.Done))
	m.left.WithLabelValues(name).Add(float64(f.Left))
	failed := m.failed.WithLabelValues(name)
	if f.Error != "" {
		failed.Inc()
	}
}
