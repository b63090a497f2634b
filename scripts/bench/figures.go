package main

import (
	"slices"
	"time"
)

// figure is the median and the spread of values.
func figure(name, unit string, values []float64) Figure {
	sorted := slices.Sorted(slices.Values(values))
	return Figure{Name: name, Unit: unit, Value: at(sorted, 0.5), Low: sorted[0], High: sorted[len(sorted)-1]}
}

// atLeast and atMost say what the median must reach.
func (f Figure) atLeast(limit float64, text string) Figure {
	met := f.Value >= limit
	f.Target, f.Met = text, &met
	return f
}

func (f Figure) atMost(limit float64, text string) Figure {
	met := f.Value <= limit
	f.Target, f.Met = text, &met
	return f
}

// at returns the value below which the share q of sorted lies.
func at[T any](sorted []T, q float64) T {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
