package figure_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tuluat.ai/harness/scripts/internal/figure"
)

func TestSlope(t *testing.T) {
	x := []float64{1e3, 1e4, 1e5, 1e6}
	for _, c := range []struct {
		name string
		y    []float64
		want float64
	}{
		{"does not grow", []float64{5, 5, 5, 5}, 0},
		{"grows as x does", []float64{2e3, 2e4, 2e5, 2e6}, 1},
		{"grows as its root", []float64{math.Sqrt(1e3), 100, math.Sqrt(1e5), 1000}, 0.5},
	} {
		if got := figure.Slope(x, c.y); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestPrintedAndWritten(t *testing.T) {
	figures := []figure.Figure{
		figure.Of("rate", "req/s", 3, 1, 2).AtLeast(2, "at least 2"),
		figure.Quantile("tail", "ms", 0.99, []float64{9, 1, 5}).AtMost(8, "at most 8"),
		{Name: "peer", Note: "not here"},
	}
	var table strings.Builder
	figure.Print(&table, figures)
	for _, want := range []string{"rate", "2.00         1.00         3.00", "met: at least 2", "9.00         1.00         9.00", "MISSED: at most 8", "not here"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, table.String())
		}
	}
	file := filepath.Join(t.TempDir(), "figures.json")
	if err := figure.Write(file, figures); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got []figure.Figure
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || got[0].Value != 2 || !*got[0].Met || *got[1].Met || got[2].Note != "not here" {
		t.Errorf("the file says %s", text)
	}
}
