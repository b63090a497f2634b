package console

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// diffLine is one line of a difference.
type diffLine struct {
	Sign string // + - or a space; … where lines that are the same are left out
	Text string
}

// Class is its look.
func (d diffLine) Class() string {
	switch d.Sign {
	case "+":
		return "plus"
	case "-":
		return "minus"
	case "…":
		return "gap"
	}
	return ""
}

const (
	diffAround = 3
	// diffMost is how many lines, on each side, are compared one by one: more are
	// shown as taken away and added.
	diffMost = 2500
)

// diff is what has to be done to was to make it is, by lines, with a few around.
func diff(was, is string) []diffLine {
	a, b := lines(was), lines(is)
	before := 0
	for before < len(a) && before < len(b) && a[before] == b[before] {
		before++
	}
	after := 0
	for after < len(a)-before && after < len(b)-before && a[len(a)-1-after] == b[len(b)-1-after] {
		after++
	}
	var all []diffLine
	for _, l := range a[:before] {
		all = append(all, diffLine{" ", l})
	}
	all = append(all, compared(a[before:len(a)-after], b[before:len(b)-after])...)
	for _, l := range a[len(a)-after:] {
		all = append(all, diffLine{" ", l})
	}
	return near(all)
}

func lines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// compared finds the longest common part of a and b.
func compared(a, b []string) []diffLine {
	var all []diffLine
	if len(a) > diffMost || len(b) > diffMost {
		for _, l := range a {
			all = append(all, diffLine{"-", l})
		}
		for _, l := range b {
			all = append(all, diffLine{"+", l})
		}
		return all
	}
	length := make([][]int16, len(a)+1) // of the common part of what is behind
	for i := range length {
		length[i] = make([]int16, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				length[i][j] = length[i+1][j+1] + 1
			} else {
				length[i][j] = max(length[i+1][j], length[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			all = append(all, diffLine{" ", a[i]})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && length[i+1][j] >= length[i][j+1]:
			all = append(all, diffLine{"-", a[i]})
			i++
		default:
			all = append(all, diffLine{"+", b[j]})
			j++
		}
	}
	return all
}

// near leaves out what is far from any change.
func near(all []diffLine) []diffLine {
	keep := make([]bool, len(all))
	for i, d := range all {
		if d.Sign != " " {
			for j := max(0, i-diffAround); j <= min(len(all)-1, i+diffAround); j++ {
				keep[j] = true
			}
		}
	}
	var shown []diffLine
	left := 0
	for i, d := range all {
		if !keep[i] {
			left++
			continue
		}
		if left > 0 {
			shown = append(shown, diffLine{"…", fmt.Sprintf("%d lines that are the same", left)})
			left = 0
		}
		shown = append(shown, d)
	}
	if left > 0 && len(shown) > 0 {
		shown = append(shown, diffLine{"…", fmt.Sprintf("%d lines that are the same", left)})
	}
	return shown
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// kind is the type of a field, as people read it.
func (s schemaNode) kind() string {
	if len(s.Enum) > 0 {
		words := make([]string, len(s.Enum))
		for i, v := range s.Enum {
			words[i] = fmt.Sprint(v)
		}
		return strings.Join(words, " | ")
	}
	if s.Items != nil {
		return "list of " + s.Items.kind()
	}
	switch t := s.Type.(type) {
	case string:
		return t
	case []any:
		if len(t) > 0 {
			return fmt.Sprint(t[0])
		}
	}
	return "any"
}
