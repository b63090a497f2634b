package yamltext

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// apply applies an RFC 7386 patch.
func apply(t *testing.T, doc, patch string) (string, error) {
	t.Helper()
	from, err := Value([]byte(doc))
	if err != nil {
		t.Fatalf("%v\n%s", err, doc)
	}
	decoder := json.NewDecoder(strings.NewReader(patch))
	decoder.UseNumber()
	var fields any
	if err := decoder.Decode(&fields); err != nil {
		t.Fatal(err)
	}
	out, err := Apply([]byte(doc), Diff(from, Merge(from, fields).(map[string]any)))
	return string(out), err
}

func TestApply(t *testing.T) {
	const off, on = `{"spec":{"harness":{"enabled":false}}}`, `{"spec":{"harness":{"enabled":true}}}`
	for name, c := range map[string]struct{ doc, patch, want string }{
		"in place": {
			"# head\nspec:\n  harness: # what it does\n    enabled: true   # why\n    type: BOTH\n", off,
			"# head\nspec:\n  harness: # what it does\n    enabled: false   # why\n    type: BOTH\n",
		},
		"already so": {"spec: {harness: {enabled: false}}   \n\n", off, "spec: {harness: {enabled: false}}   \n\n"},
		"not there": {
			"spec:\n  harness: # what it does\n    # first\n    type: BOTH\n\n# end\n", off,
			"spec:\n  harness: # what it does\n    enabled: false\n    # first\n    type: BOTH\n\n# end\n",
		},
		"no block": {
			"spec:\n    description: d # c\n    # more\n\nkind: x\n", off,
			"spec:\n    description: d # c\n    harness:\n      enabled: false\n    # more\n\nkind: x\n",
		},
		"no spec":           {"kind: x", off, "kind: x\nspec:\n  harness:\n    enabled: false"},
		"empty":             {"spec:\n  harness:   # off\n  description: d\n", off, "spec:\n  harness: {enabled: false}   # off\n  description: d\n"},
		"null":              {"spec:\n  harness: null\n", off, "spec:\n  harness: {enabled: false}\n"},
		"tilde":             {"spec: ~", off, "spec: {harness: {enabled: false}}"},
		"braces":            {"spec: {harness: {type: CODE}, description: d}\n", off, "spec: {harness: {enabled: false, type: CODE}, description: d}\n"},
		"empty braces":      {"spec: {harness: { }}\n", off, "spec: {harness: {enabled: false }}\n"},
		"braces, no value":  {"spec: {harness}\n", off, "spec: {harness: {enabled: false}}\n"},
		"braces, no value,": {"spec: {harness: , a: b}\n", off, "spec: {harness: {enabled: false} , a: b}\n"},
		"CRLF":              {"spec:\r\n  harness:\r\n    type: CODE\r\n", off, "spec:\r\n  harness:\r\n    enabled: false\r\n    type: CODE\r\n"},
		"mark":              {"\uFEFFspec: {harness: {enabled: true}}\n", off, "\uFEFFspec: {harness: {enabled: false}}\n"},
		"begun": {
			"--- # one\nspec:\n  harness: {enabled: true} # ü\n...\n", off,
			"--- # one\nspec:\n  harness: {enabled: false} # ü\n...\n",
		},
		"wide letters": {"spec: {description: 'Grüße 🙂', harness: {enabled: true}}", off, "spec: {description: 'Grüße 🙂', harness: {enabled: false}}"},
		"JSON":         {`{"spec": {"harness": {"type": "CODE"}}}`, off, `{"spec": {"harness": {"enabled": false, "type": "CODE"}}}`},
		"JSON in lines": {
			"{\n\t\"spec\": {\n\t\t\"harness\": {\n\t\t\t\"type\": \"CODE\"\n\t\t}\n\t}\n}\n", off,
			"{\n\t\"spec\": {\n\t\t\"harness\": {\n\t\t\t\"enabled\": false,\n\t\t\t\"type\": \"CODE\"\n\t\t}\n\t}\n}\n",
		},
		"JSON, gone":  {`{"a": 1, "b": {"c": 2, "d": 3}}`, `{"b": {"d": null}}`, `{"a": 1, "b": {"c": 2}}`},
		"quoted keys": {"\"spec\":\n  'harness':\n    \"enabled\": false\n", on, "\"spec\":\n  'harness':\n    \"enabled\": true\n"},
		"many words":  {"spec:\n  harness:\n    enabled: no\n", on, "spec:\n  harness:\n    enabled: true\n"},
		"tagged":      {"spec:\n  harness:\n    enabled: !!bool true # c\n", off, "spec:\n  harness:\n    enabled: false # c\n"},
		"behind a text": {
			"spec:\n  systemPrompt: |\n    a\n    # no comment\n\n      b\n  # a comment\nkind: x\n", off,
			"spec:\n  systemPrompt: |\n    a\n    # no comment\n\n      b\n  harness:\n    enabled: false\n  # a comment\nkind: x\n",
		},
		"behind a kept text": {"spec:\n  systemPrompt: |+\n    a\n\n\n", off, "spec:\n  systemPrompt: |+\n    a\n\n\n  harness:\n    enabled: false\n"},
		"a longer text": {
			"spec:\n  systemPrompt: |\n      old\n      text\n  # c\n  a: 1\n", `{"spec":{"systemPrompt":"new\n\n  text\nthree\n"}}`,
			"spec:\n  systemPrompt: |\n      new\n\n        text\n      three\n  # c\n  a: 1\n",
		},
		"a text becomes longer": {"spec:\n  a: one\n  b: 1\n", `{"spec":{"a":"1\n2"}}`, "spec:\n  a: |-\n    1\n    2\n  b: 1\n"},
		"plain over lines":      {"spec:\n  a: one\n    two\n\n    three # c\n  b: 1\n", `{"spec":{"a":"x"}}`, "spec:\n  a: x # c\n  b: 1\n"},
		"a word that is none":   {"a: b\n", `{"a":"no"}`, "a: \"no\"\n"},
		"a number as text":      {"a: b\n", `{"a":"12"}`, "a: \"12\"\n"},
		"a list": {
			"spec:\n  list:\n  - a\n  # c\n  - b # d\n  # e\n  x: 1\n", `{"spec":{"list":[{"name":"new","x":[1,{}]},"y"]}}`,
			"spec:\n  list:\n  - name: new\n    x:\n      - 1\n      - {}\n  - \"y\"\n  # e\n  x: 1\n",
		},
		"a list is emptied":     {"list:\n  - a\n  - b\nx: 1\n", `{"list":[]}`, "list: []\nx: 1\n"},
		"a list becomes a word": {"list: # c\n  - a\nx: 1\n", `{"list":"w"}`, "list: w # c\nx: 1\n"},
		"removed":               {"a: 1\n# c\nb: # d\n  - 1\n  - x: |\n      t\n# e\nc: 2\n", `{"b":null}`, "a: 1\n# c\n# e\nc: 2\n"},
		"removed, the last":     {"a: 1\nb: 2", `{"b":null}`, "a: 1\n"},
		"removed, the only":     {"a: 1\nb:\n  c: 2 # d\n# e\n", `{"b":{"c":null}}`, "a: 1\nb: {}\n# e\n"},
		"removed from braces":   {"a: {b: 1, c: 2, d: 3}", `{"a":{"b":null,"d":null}}`, "a: {c: 2}"},
		"patches are not lists": {"a: [1, 2]\n", `{"a":{"0":null}}`, "a: {}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := apply(t, c.doc, c.patch)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// What is shared by an anchor could not be changed in one place alone.
func TestWhatIsSharedIsRefused(t *testing.T) {
	for doc, patch := range map[string]string{
		"a: &x {enabled: true}\nb: *x\n":     `{"b":{"enabled":false}}`,
		"a: &x {enabled: true}\nb: *x\nc: 1": `{"a":{"enabled":false}}`,
	} {
		if got, err := apply(t, doc, patch); err == nil {
			t.Errorf("%q became %q", doc, got)
		}
	}
	if got, err := apply(t, "a: &x {c: 1}\nb: *x\nd: 1\n", `{"d":2}`); err != nil || got != "a: &x {c: 1}\nb: *x\nd: 2\n" {
		t.Errorf("beside it: %q, %v", got, err)
	}
	bomb := "a: &a [1,1,1,1,1,1,1,1,1]\n"
	for i := 'b'; i < 'k'; i++ {
		bomb += fmt.Sprintf("%c: &%c [%s*%c]\n", i, i, strings.Repeat(fmt.Sprintf("*%c,", i-1), 9), i-1)
	}
	if _, err := Value([]byte(bomb)); err == nil {
		t.Error("a text that grows without bound is read")
	}
}

func TestSplit(t *testing.T) {
	for _, c := range [][]string{
		{"a: 1\n"},
		{"# head\n", "---\na: 1\n", "--- # two\nb: |\n  ---\n", "---\n"},
		{"\uFEFF---\na: 1\n", "---\nb: 1"},
		{"a: 1\r\n", "---\r\nb: 2\r\n...\r\n", "# c\r\n", "---\r\n"},
		{"%YAML 1.1\n---\na: 1\n...\n", "# c\n%YAML 1.1\n--- {a: 1}\n"},
		{"a: \"x\n  ---\"\n---x: 1\n"},
		{"---\n", "---"},
	} {
		file := strings.Join(c, "")
		var got []string
		for _, part := range Split([]byte(file)) {
			got = append(got, string(part))
		}
		if diff := cmp.Diff(c, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", file, diff)
		}
	}
	if len(Split(nil)) != 0 {
		t.Error("nothing has parts")
	}
}

// Whatever is written reads as what it was made of.
func TestWhatIsWrittenReadsTheSame(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		object := map[string]any{"k": anyValue(random, 4)}
		for how, text := range map[string][]byte{"lines": Document(object), "one line": Flow(object)} {
			if got, err := Value(text); err != nil || !Equal(withoutNulls(object), got) {
				t.Fatalf("%s: %v\n%s\n%#v\n%#v", how, err, text, object, got)
			}
		}
		if !json.Valid(Flow(object)) {
			t.Fatalf("no JSON: %s", Flow(object))
		}
	}
}

var texts = []string{
	"", "a", "BOTH", "no", "null", "~", "1", "1.5", "0x1", "2001-01-01", "a: b", "# c", "a # b", "- x", "*x", "&x", "!x", "%x", "@x", "`x", "{", "]", "a, b", "\"", "'", "it's", "\\n", " lead",
	"trail ", "a\nb", "a\nb\n", "a\n\n\n  b\n\n", "\na", "  a\nb", "a\r\nb", "a\tb", "\ttab\nx", "Grüße 🙂\u2028\u0085\u007f\u00a0", "---\na\n...", "a\n--- \nb", "\uFEFFx", "\x01", "| x", "> x", "?", "? x", ":", "x:", "a\n# b\nc", "-", "--- x", ".inf", "true", "long " + strings.Repeat("text ", 40),
}

func anyValue(r *rand.Rand, depth int) any {
	switch r.IntN(8) {
	case 0:
		return r.IntN(2) == 0
	case 1:
		return json.Number([]string{"0", "-7", "12345678901", "1.5", "1e3", "-0.25"}[r.IntN(6)])
	case 2, 3:
		if depth > 0 {
			object := map[string]any{}
			for range r.IntN(4) {
				object[[]string{"enabled", "name", "type", "a b", "no", "x:y", "#", "ü", "1"}[r.IntN(9)]] = anyValue(r, depth-1)
			}
			return object
		}
	case 4:
		if depth > 0 {
			list := make([]any, r.IntN(4))
			for i := range list {
				list[i] = anyValue(r, depth-1)
			}
			return list
		}
	}
	return texts[r.IntN(len(texts))]
}

func withoutNulls(object map[string]any) map[string]any { return object }

// Any document, any change: what it does not touch stays byte for byte.
func TestChangesTouchNothingElse(t *testing.T) {
	rounds := 20000
	if testing.Short() {
		rounds = 2000
	}
	kinds := map[string]int{}
	for seed := range rounds {
		random := rand.New(rand.NewPCG(uint64(seed), 7))
		w := &writer{r: random, eol: []string{"\n", "\n", "\r\n"}[random.IntN(3)]}
		w.object(nil, 0, 3)
		doc := w.text()
		from, err := Value([]byte(doc))
		if err != nil {
			t.Fatalf("seed %d: the generator writes no YAML: %v\n%s", seed, err, doc)
		}
		change := anyChange(random, w, from)
		kinds[fmt.Sprint(change.Value == nil, w.has(change.Path))]++
		out, err := Apply([]byte(doc), []Change{change})
		if err != nil {
			t.Fatalf("seed %d: %v: %+v\n%s", seed, err, change, doc)
		}
		got, err := Value(out)
		if err != nil || !Equal(with(from, change.Path, change.Value), got) {
			t.Fatalf("seed %d: %v: %+v\n%s\n%s", seed, err, change, doc, out)
		}
		if lost := w.lost(out, change); lost != "" {
			t.Fatalf("seed %d: %+v\nloses %q\n%s\nbecame\n%s", seed, change, lost, doc, out)
		}
	}
	if len(kinds) < 3 {
		t.Errorf("the changes are of few kinds: %v", kinds)
	}
	t.Log(kinds)
}

// line is a line of a document and the fields it belongs to.
type line struct {
	text  string
	paths [][]string
}

// writer writes documents in the ways that people do, and knows what each line
// is about.
type writer struct {
	r     *rand.Rand
	eol   string
	lines []line
	paths [][]string // of all fields
	maps  [][]string // of all objects
}

func (w *writer) text() string {
	var b strings.Builder
	for i, l := range w.lines {
		b.WriteString(l.text)
		if i < len(w.lines)-1 || w.r.IntN(4) > 0 {
			b.WriteString(w.eol)
		}
	}
	return b.String()
}

func (w *writer) has(path []string) bool {
	return slices.ContainsFunc(w.paths, func(p []string) bool { return slices.Equal(p, path) })
}

func (w *writer) line(text string, paths ...[]string) {
	w.lines = append(w.lines, line{text, paths})
}

func (w *writer) noise(path []string, indent int) {
	switch w.r.IntN(6) {
	case 0:
		w.line(strings.Repeat(" ", indent)+"# comment: {no: yaml} 'x", path)
	case 1, 2:
		w.line([]string{"", strings.Repeat(" ", w.r.IntN(9)) + "# elsewhere"}[w.r.IntN(2)], path)
		if n := len(w.lines) - 2; n >= 0 { // perhaps it belongs to a text above
			w.lines[n+1].paths = append(w.lines[n+1].paths, w.lines[n].paths...)
		}
	}
}

func (w *writer) tail() string { return []string{"", "", " ", " # tail: 'x", "   # ü"}[w.r.IntN(5)] }

func (w *writer) object(path []string, indent, depth int) {
	w.maps = append(w.maps, path)
	margin := strings.Repeat(" ", indent)
	names := []string{"enabled", "harness", "spec", "type", "list", "x"}
	w.r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:1+w.r.IntN(5)] {
		w.noise(path, indent)
		at := append(slices.Clone(path), name)
		w.paths = append(w.paths, at)
		key := margin + []string{name, name, "'" + name + "'", `"` + name + `"`}[w.r.IntN(4)] + []string{":", ":", " :"}[w.r.IntN(3)]
		switch kind := w.r.IntN(12); {
		case kind < 3 && depth > 0:
			w.line(key+w.tail(), at)
			w.object(at, indent+1+w.r.IntN(4), depth-1)
		case kind == 3 && depth > 0:
			w.line(key+w.tail(), at)
			w.list(at, indent+w.r.IntN(3), depth-1)
		case kind == 4:
			w.line(key+" "+w.flow(at, 2)+w.tail(), at)
		case kind == 5:
			w.literal(key, at, indent)
		case kind == 6:
			w.line(key+[]string{"", " ~", " null"}[w.r.IntN(3)]+w.tail(), at)
		case kind == 7:
			w.line(key+" one two", at)
			w.line(margin+" three 'four' #five", at)
		case kind == 8:
			w.line(key+" {", at)
			w.line(margin+`  "a": 1, # c`, at)
			w.line(margin+`  enabled: true }`+w.tail(), at)
			w.maps = append(w.maps, at)
			w.paths = append(w.paths, append(slices.Clone(at), "a"), append(slices.Clone(at), "enabled"))
		default:
			w.line(key+" "+w.scalar()+w.tail(), at)
		}
	}
}

func (w *writer) scalar() string {
	return []string{"true", "false", "12", "1.50", "BOTH", "a:b", "'it''s # x'", `"a \" # b\u00e9"`, "a#b", "yes", "http://x/y?z", "!!str 12", `""`, "''", "- x"[2:], "2001-01-01", "Grüße 🙂"}[w.r.IntN(17)]
}

func (w *writer) flow(path []string, depth int) string {
	if depth == 0 || w.r.IntN(3) == 0 {
		return []string{"[]", "[a, 'b, c', {d: e}]", "[1,2,]", "plain", `"q"`}[w.r.IntN(5)]
	}
	w.maps = append(w.maps, path)
	var parts []string
	for _, name := range []string{"enabled", "type", "x"}[:w.r.IntN(4)] {
		at := append(slices.Clone(path), name)
		w.paths = append(w.paths, at)
		switch w.r.IntN(5) {
		case 0:
			parts = append(parts, name)
		case 1:
			parts = append(parts, name+": ")
		default:
			parts = append(parts, []string{name, `"` + name + `"`}[w.r.IntN(2)]+": "+w.flow(at, depth-1))
		}
	}
	open, end := []string{"{", "{ "}[w.r.IntN(2)], []string{"}", " }"}[w.r.IntN(2)]
	if len(parts) > 0 && w.r.IntN(5) == 0 {
		end = "," + end
	}
	return open + strings.Join(parts, []string{", ", " ,  "}[w.r.IntN(2)]) + end
}

func (w *writer) list(path []string, indent, depth int) {
	margin := strings.Repeat(" ", indent)
	for range 1 + w.r.IntN(3) {
		w.noise(path, indent)
		switch w.r.IntN(4) {
		case 0:
			w.line(margin+"- name: x", path)
			w.line(margin+"  type: |", path)
			w.line(margin+"    text", path)
		case 1:
			w.line(margin+"- - 1", path)
			w.line(margin+"  - |-", path)
			w.line(margin+"     two", path)
		default:
			w.line(margin+"- "+w.scalar()+w.tail(), path)
		}
	}
}

func (w *writer) literal(key string, path []string, indent int) {
	header := []string{"|", "|-", "|+", ">", ">-", "| # c"}[w.r.IntN(6)]
	margin := strings.Repeat(" ", indent+1+w.r.IntN(3))
	w.line(key+" "+header, path)
	for i := range 1 + w.r.IntN(4) {
		w.line(margin+[]string{"text", "# no comment", "  deeper: {", "- dash", "key: value"}[w.r.IntN(5)*min(i, 1)], path)
		if w.r.IntN(3) == 0 {
			w.line("", path)
		}
	}
}

// anyChange is a change of a field that is there, one that is not, or a removal.
func anyChange(r *rand.Rand, w *writer, from map[string]any) Change {
	for {
		parent := w.maps[r.IntN(len(w.maps))]
		object := any(from)
		for _, name := range parent {
			object, _ = object.(map[string]any)[name]
		}
		fields, ok := object.(map[string]any)
		if !ok {
			continue
		}
		name := []string{"enabled", "harness", "spec", "type", "list", "x", "a"}[r.IntN(7)]
		path := append(slices.Clone(parent), name)
		value := []any{true, false, "x", "no", json.Number("5"), []any{"a", map[string]any{"b": "c"}}, map[string]any{"enabled": true}, "two\nlines\n"}[r.IntN(8)]
		switch _, there := fields[name]; {
		case there && r.IntN(3) == 0:
			return Change{Path: path}
		case there || r.IntN(2) == 0:
			return Change{Path: path, Value: value}
		}
	}
}

// lost returns the first line that out should have and has not.
func (w *writer) lost(out []byte, c Change) string {
	there := w.has(c.Path)
	got := strings.Split(string(bytes.ReplaceAll(out, []byte("\r\n"), []byte("\n"))), "\n")
	for _, l := range w.lines {
		mine := slices.ContainsFunc(l.paths, func(p []string) bool {
			switch {
			case there:
				return starts(p, c.Path) || starts(c.Path, p) && len(p) > 0 && flowOrOnly(w, p, c)
			case len(c.Path) > 1: // its object may be of one line
				return slices.Equal(p, c.Path[:len(c.Path)-1]) || starts(c.Path, p) && len(p) > 0
			}
			return false
		})
		if mine {
			continue
		}
		i := slices.Index(got, l.text)
		if i < 0 {
			return l.text
		}
		got = got[i+1:]
	}
	return ""
}

// flowOrOnly reports whether the lines of p may hold the field of c: those of an
// object between braces do, and the head of one that loses its only field.
func flowOrOnly(w *writer, p []string, c Change) bool {
	for _, l := range w.lines {
		for _, q := range l.paths {
			if slices.Equal(q, c.Path) && !strings.ContainsAny(l.text, "{[") {
				return c.Value == nil
			}
		}
	}
	return true
}

func starts(path, with []string) bool {
	return len(path) >= len(with) && slices.Equal(path[:len(with)], with)
}
