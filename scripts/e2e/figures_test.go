//go:build e2e

package e2e_test

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// figures are what was measured, for the table at the end.
type figures struct {
	mu   sync.Mutex
	rows []figureRow
}

type figureRow struct{ journey, what, value, bound string }

// add notes one. Without a bound nothing is claimed.
func (f *figures) add(journey, what, value, bound string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rows = append(f.rows, figureRow{journey, what, value, bound})
}

func (f *figures) print(w io.Writer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.rows) == 0 {
		return
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "\njourney\twhat\tfigure\tbound")
	for _, r := range f.rows {
		fmt.Fprintln(table, strings.Join([]string{r.journey, r.what, r.value, r.bound}, "\t"))
	}
	_ = table.Flush() // to a terminal
	fmt.Fprintln(w)
}

// quantile of times, by the nearest rank; times are not changed.
func quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(times))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// spread is p50 and p99 in words.
func spread(times []time.Duration) string {
	return fmt.Sprintf("p50 %s, p99 %s, n %d", short(quantile(times, 0.5)), short(quantile(times, 0.99)), len(times))
}

func short(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < 10*time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}
