package main

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"html"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/pprof/profile"
)

// drawProfiles draws every profile of a folder as NAME.svg beside it. pprof itself
// draws flame graphs for its web page only.
func drawProfiles(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.pprof"))
	if err != nil {
		return err
	}
	for _, file := range files {
		in, err := os.Open(file)
		if err != nil {
			return err
		}
		p, err := profile.Parse(in)
		in.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		var svg strings.Builder
		flame(&svg, filepath.Base(file), stacksOf(p))
		target := strings.TrimSuffix(file, ".pprof") + ".svg"
		if err := os.WriteFile(target, []byte(svg.String()), 0o644); err != nil {
			return err
		}
		say("flame graph: %s", target)
	}
	return nil
}

// frame is a function under one chain of callers.
type frame struct {
	name  string
	value int64 // its own time and that of what it called
	calls map[string]*frame
}

func (f *frame) child(name string) *frame {
	c := f.calls[name]
	if c == nil {
		c = &frame{name: name, calls: map[string]*frame{}}
		f.calls[name] = c
	}
	return c
}

// stacksOf joins the samples of a profile by their stacks. The value is the last
// one that a sample has: of a CPU profile, nanoseconds.
func stacksOf(p *profile.Profile) *frame {
	root := &frame{name: "all", calls: map[string]*frame{}}
	for _, s := range p.Sample {
		value := s.Value[len(s.Value)-1]
		root.value += value
		at := root
		for i := len(s.Location) - 1; i >= 0; i-- {
			lines := s.Location[i].Line // the inlined first, whoever called them last
			for j := len(lines) - 1; j >= 0; j-- {
				at = at.child(lines[j].Function.Name)
				at.value += value
			}
		}
	}
	return root
}

const (
	flameWidth  = 1600.0
	flameRow    = 17
	flameLeast  = 0.6 // pixels below which nothing is drawn
	letterWidth = 6.6 // of the font, about
)

// flame draws the stacks as SVG, callers below. A browser shows each frame's share
// in a tooltip.
func flame(w io.Writer, title string, root *frame) {
	depth := 0
	var measure func(f *frame, level int, width float64)
	measure = func(f *frame, level int, width float64) {
		if width < flameLeast {
			return
		}
		depth = max(depth, level)
		for _, c := range f.calls {
			measure(c, level+1, width*float64(c.value)/float64(f.value))
		}
	}
	measure(root, 0, flameWidth)
	height := (depth+1)*flameRow + 30
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %d" font-family="monospace" font-size="11">`+"\n", flameWidth, height)
	fmt.Fprintf(w, `<rect width="100%%" height="100%%" fill="white"/><text x="6" y="16">%s, %.2f s of CPU time</text>`+"\n", html.EscapeString(title), float64(root.value)/1e9)
	var draw func(f *frame, level int, x, width float64)
	draw = func(f *frame, level int, x, width float64) {
		if width < flameLeast {
			return
		}
		y := height - (level+1)*flameRow
		share := fmt.Sprintf("%.2f %%", 100*float64(f.value)/float64(root.value))
		fmt.Fprintf(w, `<g><title>%s: %s</title><rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s" stroke="white" stroke-width="0.5"/>`,
			html.EscapeString(f.name), share, x, y, width, flameRow, colour(f.name))
		if room := int(width / letterWidth); room > 3 {
			fmt.Fprintf(w, `<text x="%.1f" y="%d">%s</text>`, x+3, y+flameRow-5, html.EscapeString(clip(short(f.name), room)))
		}
		fmt.Fprint(w, "</g>\n")
		for _, c := range slices.SortedFunc(maps.Values(f.calls), func(a, b *frame) int { return cmp.Compare(a.name, b.name) }) {
			wide := width * float64(c.value) / float64(f.value)
			draw(c, level+1, x, wide)
			x += wide
		}
	}
	draw(root, 0, 0, flameWidth)
	fmt.Fprintln(w, "</svg>")
}

// short is a function's name without the path of its module.
func short(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

func clip(text string, room int) string {
	if len(text) <= room {
		return text
	}
	return text[:room-1] + "…"
}

// colour is the same for the same package.
func colour(name string) string {
	h := fnv.New32a()
	_, _ = io.WriteString(h, name[:len(name)-len(short(name))]+strings.SplitN(short(name), ".", 2)[0])
	n := h.Sum32()
	return fmt.Sprintf("hsl(%d,%d%%,%d%%)", 10+n%50, 60+n>>8%30, 62+n>>16%14)
}
