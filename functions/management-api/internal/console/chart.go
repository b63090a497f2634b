package console

import (
	"math"
	"strconv"
)

// point is one bar of a chart.
type point struct {
	Label string
	Value float64
}

// chart is bars, drawn here: a page runs no script for it.
type chart struct {
	Title string
	Bars  []bar
	Most  string // the highest value
	Width int
	From  string
	To    string
	Table []point // the same for who does not see it
}

type bar struct {
	X, Y, Width, Height int
	Label, Value        string
}

const (
	chartHeight = 90
	barMost     = 24
)

// newChart draws points as bars of one scale, from 0.
func newChart(title string, points []point) chart {
	c := chart{Title: title, Width: 320, Table: points}
	if len(points) == 0 {
		return c
	}
	most := 0.0
	for _, p := range points {
		most = math.Max(most, p.Value)
	}
	step := max(2, min(barMost, c.Width/len(points)))
	c.Width = max(c.Width, step*len(points))
	for i, p := range points {
		height := 0
		if most > 0 {
			height = int(math.Round(p.Value / most * (chartHeight - 4)))
		}
		if p.Value > 0 {
			height = max(1, height)
		}
		c.Bars = append(c.Bars, bar{X: i * step, Y: chartHeight - height, Width: max(1, step-2), Height: height, Label: p.Label, Value: number(p.Value)})
	}
	c.Most, c.From, c.To = number(most), points[0].Label, points[len(points)-1].Label
	return c
}

// Empty reports that there is nothing to draw.
func (c chart) Empty() bool { return len(c.Bars) == 0 }

func number(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'f', 1, 64) + " M"
	case v >= 1e4:
		return strconv.FormatFloat(v/1e3, 'f', 1, 64) + " k"
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}
