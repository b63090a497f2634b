// Package figure is what measurements print: one line per figure with its median
// and spread, and whether it meets the target that is named.
package figure

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"
)

// Figure is one line of the result.
type Figure struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"` // median
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	Unit   string  `json:"unit"`
	Target string  `json:"target,omitempty"`
	Met    *bool   `json:"met,omitempty"`
	Note   string  `json:"note,omitempty"` // instead of a value: why there is none
}

// Of is the median and the spread of values, of which there is at least one.
func Of(name, unit string, values ...float64) Figure {
	sorted := slices.Sorted(slices.Values(values))
	return Figure{Name: name, Unit: unit, Value: At(sorted, 0.5), Low: sorted[0], High: sorted[len(sorted)-1]}
}

// Quantile is the value below which the share q of values lies, with their spread.
func Quantile(name, unit string, q float64, values []float64) Figure {
	sorted := slices.Sorted(slices.Values(values))
	return Figure{Name: name, Unit: unit, Value: At(sorted, q), Low: sorted[0], High: sorted[len(sorted)-1]}
}

// AtLeast and AtMost say what the figure must reach.
func (f Figure) AtLeast(limit float64, text string) Figure {
	met := f.Value >= limit
	f.Target, f.Met = text, &met
	return f
}

// AtMost is AtLeast from the other side.
func (f Figure) AtMost(limit float64, text string) Figure {
	met := f.Value <= limit
	f.Target, f.Met = text, &met
	return f
}

// At returns the value of sorted below which the share q lies.
func At[T any](sorted []T, q float64) T {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// Slope is that of the straight line through the points (log x, log y): 0 where y
// does not grow with x, 1 where it grows as x does. All values are positive.
func Slope(x, y []float64) float64 {
	var sumX, sumY, sumXX, sumXY float64
	for i := range x {
		a, b := math.Log(x[i]), math.Log(y[i])
		sumX, sumY, sumXX, sumXY = sumX+a, sumY+b, sumXX+a*a, sumXY+a*b
	}
	n := float64(len(x))
	return (n*sumXY - sumX*sumY) / (n*sumXX - sumX*sumX)
}

// Milliseconds is d in them.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Print writes the table.
func Print(w io.Writer, figures []Figure) {
	fmt.Fprintf(w, "\n%-78s %12s %12s %12s  %s\n", "", "median", "lowest", "highest", "")
	for _, f := range figures {
		if f.Note != "" {
			fmt.Fprintf(w, "%-78s %s\n", f.Name, f.Note)
			continue
		}
		verdict := ""
		if f.Met != nil {
			if verdict = "met: " + f.Target; !*f.Met {
				verdict = "MISSED: " + f.Target
			}
		}
		fmt.Fprintf(w, "%-78s %12.2f %12.2f %12.2f  %-6s %s\n", f.Name, f.Value, f.Low, f.High, f.Unit, verdict)
	}
}

// Write keeps the figures in file as JSON; with no file it does nothing.
func Write(file string, figures []Figure) error {
	if file == "" {
		return nil
	}
	text, err := json.MarshalIndent(figures, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
