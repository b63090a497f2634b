package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
)

func TestFlame(t *testing.T) {
	location := func(names ...string) *profile.Location {
		l := &profile.Location{}
		for _, name := range names {
			l.Line = append(l.Line, profile.Line{Function: &profile.Function{Name: name}})
		}
		return l
	}
	serve, parse, write := location("net/http.serve"), location("a/b.inlined[...]", "a/b.parse"), location("a/b.<write>")
	root := stacksOf(&profile.Profile{Sample: []*profile.Sample{
		{Location: []*profile.Location{parse, serve}, Value: []int64{3, 3e9}},
		{Location: []*profile.Location{write, serve}, Value: []int64{1, 1e9}},
	}})
	if got := root.calls["net/http.serve"]; root.value != 4e9 || got == nil || got.value != 4e9 {
		t.Fatalf("the root has %d and calls %v", root.value, root.calls)
	}
	inlined := root.calls["net/http.serve"].calls["a/b.parse"].calls["a/b.inlined[...]"]
	if inlined == nil || inlined.value != 3e9 {
		t.Fatalf("what is inlined is called by %v", root.calls["net/http.serve"].calls)
	}
	var svg strings.Builder
	flame(&svg, "x & y", root)
	for _, want := range []string{"x &amp; y, 4.00 s", "a/b.&lt;write&gt;: 25.00 %", ">b.parse<", `width="400.0"`} {
		if !strings.Contains(svg.String(), want) {
			t.Errorf("the graph lacks %q:\n%s", want, svg.String())
		}
	}
	for d := xml.NewDecoder(strings.NewReader(svg.String())); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the graph is no XML: %v", err)
		}
	}
}
