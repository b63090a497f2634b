package console

import (
	"fmt"
	"strings"
	"testing"

	"tuluat.ai/harness/shared/harness"
)

// What a difference takes away and adds makes the one text out of the other.
func TestDiff(t *testing.T) {
	for _, c := range [][2]string{
		{"", ""},
		{"", "a\n"},
		{"a\n", ""},
		{"a\nb\nc\n", "a\nx\nc\n"},
		{"a\nb\n", "b\na\n"},
		{"a\na\na\n", "a\na\n"},
		{"x", "x\n"},
		{strings.Repeat("same\n", 50) + "old\n" + strings.Repeat("same\n", 50), strings.Repeat("same\n", 50) + "new\n" + strings.Repeat("same\n", 50)},
		{strings.Repeat("a\n", diffMost+1), strings.Repeat("b\n", diffMost+1)},
	} {
		var minus, plus []string
		for _, d := range diff(c[0], c[1]) {
			switch d.Sign {
			case "-":
				minus = append(minus, d.Text)
			case "+":
				plus = append(plus, d.Text)
			case " ":
				minus, plus = append(minus, d.Text), append(plus, d.Text)
			}
		}
		if len(lines(c[0])) < 20 && c[0] != c[1] {
			if got := strings.Join(minus, "\n"); !strings.Contains(strings.Join(lines(c[0]), "\n"), got) {
				t.Errorf("%q: takes away %q", c, got)
			}
			if got := strings.Join(plus, "\n"); !strings.Contains(strings.Join(lines(c[1]), "\n"), got) {
				t.Errorf("%q: adds %q", c, got)
			}
		}
		if len(lines(c[0])) > 90 && len(lines(c[0])) < diffMost && len(minus)+len(plus) != 2*(2*diffAround+1) {
			t.Errorf("%d and %d lines around one that changed", len(minus), len(plus))
		}
	}
}

// Nodes stand where no two are one, after those that lead to them, and edges that lead
// back end a way.
func TestGraph(t *testing.T) {
	var f flow
	for _, id := range []string{"start", "left", "right", "join", "end", "alone"} {
		f.Nodes = append(f.Nodes, struct {
			ID    string            `json:"id"`
			Type  string            `json:"type"`
			Agent harness.AgentName `json:"agent"`
		}{ID: id, Type: "AGENT"})
	}
	for _, e := range [][2]string{{"start", "left"}, {"start", "right"}, {"left", "join"}, {"right", "join"}, {"join", "end"}, {"join", "start"}, {"left", "left"}, {"left", "nowhere"}, {"left", "end"}} {
		f.Edges = append(f.Edges, struct {
			From string `json:"from"`
			To   string `json:"to"`
			When string `json:"when"`
		}{From: e[0], To: e[1], When: "a < b"})
	}
	g := draw(f)
	at, places := map[string]graphNode{}, map[string]string{}
	for _, n := range g.Nodes {
		at[n.ID] = n
		place := fmt.Sprint(n.X, n.Y)
		if places[place] != "" {
			t.Errorf("%s and %s stand in one place", n.ID, places[place])
		}
		places[place] = n.ID
		if n.X+nodeWidth/2 > g.Width || n.Y+nodeHeight/2 > g.Height || n.Left() < 0 || n.Top() < 0 {
			t.Errorf("%s stands outside", n.ID)
		}
	}
	for _, pair := range [][2]string{{"start", "left"}, {"start", "right"}, {"left", "join"}, {"right", "join"}, {"join", "end"}} {
		if at[pair[0]].X >= at[pair[1]].X {
			t.Errorf("%s stands not before %s", pair[0], pair[1])
		}
	}
	if len(g.Edges) != len(f.Edges)-1 {
		t.Errorf("%d edges, want %d", len(g.Edges), len(f.Edges)-1)
	}
	if draw(flow{}) != nil {
		t.Error("nothing is drawn as something")
	}
	for range mostDrawn {
		f.Nodes = append(f.Nodes, f.Nodes[0])
	}
	if draw(f) != nil {
		t.Error("too much is drawn")
	}
}

func TestFiguresAreRead(t *testing.T) {
	all := readFigures([]byte(`# HELP tuluat_sessions Sessions that there are.
# TYPE tuluat_sessions gauge
tuluat_sessions{agent="a",state="IDLE"} 3
tuluat_sessions{agent="b",state="IDLE"} 4
tuluat_sessions{agent="b",state="FAILED"} 1.5e+04
tuluat_sweep_age_seconds +Inf
tuluat_model_tokens_total{agent="a",model="odd \"name\", {x}",direction="input"} 12
nonsense
tuluat_leaks{kind="x
`))
	var got []string
	for _, f := range all {
		for _, r := range f.Rows {
			got = append(got, fmt.Sprintf("%s|%s|%s|%d", f.Title, r.Label, r.Value, r.Width))
		}
	}
	want := []string{`Sessions|FAILED|15.0 k|100`, `Sessions|IDLE|7|0`, `Tokens|odd "name", {x}|12|100`, `Seconds since the last sweep||never|0`}
	if fmt.Sprint(got) != fmt.Sprint(want) || all[0].Help != "Sessions that there are." {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What a page shows of a text has no character that is not seen, and letters stay.
func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"a\x00b": "a␀b", "\x1b[1m": "␛[1m", "a\u202eb": "a[U+202E]b", "line\nand\ttab": "line\nand\ttab", "é 日本 \u05e9 \U0001f600": "é 日本 \u05e9 \U0001f600",
		"\xff": "\uFFFD", "\u0085": "[U+0085]", "\x7f": "␡", "\u200b": "[U+200B]", "\U000e0041": "[U+E0041]",
		"rm\u3164\u2800\u115f\U000e0101": "rm[U+3164][U+2800][U+115F][U+E0101]", "\u2764\ufe0f": "\u2764\ufe0f",
	} {
		if got := plain(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
	for data, want := range map[string]string{
		"\x1b[31;1mred\x1b[0m\r\nnext": "red\nnext", "\x1b[2Jgone": "␛[2Jgone", "50%\r100%": "50%␍100%", "\xc3(": "\uFFFD(",
	} {
		if got := output(data); got != want {
			t.Errorf("%q printed is shown as %q, want %q", data, got, want)
		}
	}
	if text, less := cut("aé", 2); text != "a" || !less {
		t.Errorf("%q %v", text, less)
	}
}
