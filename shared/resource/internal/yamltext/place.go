package yamltext

import (
	"bytes"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

var mark = []byte("\uFEFF") // byte order mark

// breakAt returns the length of the line break at text[i:], 0 if there is none.
// The parser counts lines by the same rule.
func breakAt(text []byte, i int) int {
	switch rest := text[i:]; {
	case len(rest) == 0 || rest[0] >= ' ' && rest[0] < 0x80:
		return 0
	case rest[0] == '\n':
		return 1
	case rest[0] == '\r' && len(rest) > 1 && rest[1] == '\n':
		return 2
	case rest[0] == '\r':
		return 1
	case bytes.HasPrefix(rest, []byte("\u0085")):
		return 2
	case bytes.HasPrefix(rest, []byte("\u2028")), bytes.HasPrefix(rest, []byte("\u2029")):
		return 3
	}
	return 0
}

func blank(c byte) bool { return c == ' ' || c == '\t' }

// document is a text with the places of its lines.
type document struct {
	text  []byte
	lines []int  // where each begins
	eol   string // its line break
	json  bool   // it is JSON too, and stays so
}

func open(text []byte) *document {
	d := &document{text: text, eol: "\n", lines: []int{0}, json: isJSON(text)}
	if bytes.HasPrefix(text, mark) {
		d.lines[0] = len(mark)
	}
	for i := 0; i < len(text); {
		n := breakAt(text, i)
		if n == 0 {
			i++
			continue
		}
		if len(d.lines) == 1 {
			d.eol = string(text[i : i+n])
		}
		i += n
		d.lines = append(d.lines, i)
	}
	return d
}

// start returns where a value begins, its tag and anchor included.
func (d *document) start(n *yaml.Node) (int, error) {
	if n.Line < 1 || n.Line > len(d.lines) {
		return 0, ErrShape
	}
	i := d.lines[n.Line-1]
	for range n.Column - 1 {
		if i >= len(d.text) {
			return 0, ErrShape
		}
		_, width := utf8.DecodeRune(d.text[i:])
		i += width
	}
	return i, nil
}

// lineEnd returns where the line of i ends, before its break.
func (d *document) lineEnd(i int) int {
	for i < len(d.text) && breakAt(d.text, i) == 0 {
		i++
	}
	return i
}

// lineStart returns where the line of i begins.
func (d *document) lineStart(i int) int {
	begin := 0
	for _, line := range d.lines {
		if line > i {
			break
		}
		begin = line
	}
	return begin
}

// skip returns the first place from i on that is no blank, break or comment.
func (d *document) skip(i int) int {
	for i < len(d.text) {
		switch n := breakAt(d.text, i); {
		case n > 0:
			i += n
		case blank(d.text[i]):
			i++
		case d.text[i] == '#':
			i = d.lineEnd(i)
		default:
			return i
		}
	}
	return i
}

// end returns where a value ends: behind its last character, or, of a text in
// lines of its own, behind the last of them and before the break. parent is the
// column of the block that holds it, -1 for the root.
func (d *document) end(n *yaml.Node, parent int) (int, error) {
	i, err := d.start(n)
	if err != nil {
		return 0, err
	}
	for i < len(d.text) && (d.text[i] == '!' || d.text[i] == '&') {
		for i < len(d.text) && !blank(d.text[i]) && breakAt(d.text, i) == 0 {
			i++
		}
		if next := d.skip(i); n.Kind != yaml.ScalarNode || n.Value != "" || n.Style&^yaml.TaggedStyle != 0 {
			i = next // of an empty one nothing follows
		}
	}
	switch {
	case n.Kind == yaml.AliasNode:
		return d.wordEnd(i), nil
	case n.Kind == yaml.ScalarNode:
		return d.scalarEnd(n, i, parent)
	case i < len(d.text) && n.Style&yaml.FlowStyle != 0 && (d.text[i] == '{' || d.text[i] == '['):
		return d.flowEnd(n, i)
	case len(n.Content) == 0:
		return 0, ErrShape
	}
	return d.end(n.Content[len(n.Content)-1], n.Column-1)
}

func (d *document) wordEnd(i int) int {
	for i < len(d.text) && !blank(d.text[i]) && breakAt(d.text, i) == 0 && !bytes.ContainsRune([]byte(",]}"), rune(d.text[i])) {
		i++
	}
	return i
}

// flowEnd returns the place behind the bracket that closes the one at i.
func (d *document) flowEnd(n *yaml.Node, i int) (int, error) {
	closing := d.text[i] + 2 // of both kinds in ASCII
	i++
	if len(n.Content) > 0 {
		last, err := d.end(n.Content[len(n.Content)-1], -1)
		if err != nil {
			return 0, err
		}
		i = max(i, last)
	}
	for i = d.skip(i); i < len(d.text) && (d.text[i] == ',' || d.text[i] == ':'); i = d.skip(i + 1) {
	}
	if i >= len(d.text) || d.text[i] != closing {
		return 0, ErrShape
	}
	return i + 1, nil
}

func (d *document) scalarEnd(n *yaml.Node, i, parent int) (int, error) {
	switch {
	case n.Style&yaml.DoubleQuotedStyle != 0:
		return d.quoteEnd(i, '"')
	case n.Style&yaml.SingleQuotedStyle != 0:
		return d.quoteEnd(i, '\'')
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		return d.linesEnd(i, parent)
	}
	return d.plainEnd(n.Value, i)
}

func (d *document) quoteEnd(i int, quote byte) (int, error) {
	if i >= len(d.text) || d.text[i] != quote {
		return 0, ErrShape
	}
	for i++; i < len(d.text); i++ {
		switch {
		case quote == '"' && d.text[i] == '\\':
			i++
		case d.text[i] == quote && quote == '\'' && i+1 < len(d.text) && d.text[i+1] == quote:
			i++
		case d.text[i] == quote:
			return i + 1, nil
		}
	}
	return 0, ErrShape
}

// plainEnd follows the value through the text: a plain scalar has no escapes,
// only its blanks and breaks may be others than those of its value.
func (d *document) plainEnd(value string, i int) (int, error) {
	for j := 0; j < len(value); {
		white := j
		for j < len(value) && (blank(value[j]) || breakAt([]byte(value), j) > 0) {
			j += max(1, breakAt([]byte(value), j))
		}
		if j > white {
			from := i
			for i < len(d.text) && (blank(d.text[i]) || breakAt(d.text, i) > 0) {
				i += max(1, breakAt(d.text, i))
			}
			if i == from {
				return 0, ErrShape
			}
			continue
		}
		if i >= len(d.text) || d.text[i] != value[j] {
			return 0, ErrShape
		}
		i, j = i+1, j+1
	}
	return i, nil
}

// linesEnd returns the end of a text in lines of its own, whose header is at i:
// the lines that are indented as its first one, and those between them. Blank
// lines at its end belong to it only where the header says so.
func (d *document) linesEnd(i, parent int) (int, error) {
	if i >= len(d.text) || d.text[i] != '|' && d.text[i] != '>' {
		return 0, ErrShape
	}
	keep, indent := false, 0
	for i++; i < len(d.text) && !blank(d.text[i]) && breakAt(d.text, i) == 0; i++ {
		switch c := d.text[i]; {
		case c == '+':
			keep = true
		case c >= '1' && c <= '9':
			indent = max(parent, 0) + int(c-'0')
		}
	}
	end := d.lineEnd(i)
	for i = end; i < len(d.text); {
		i += breakAt(d.text, i)
		spaces := i
		for spaces < len(d.text) && d.text[spaces] == ' ' {
			spaces++
		}
		last := d.lineEnd(i)
		switch column := spaces - i; {
		case indent == 0 && spaces < last && column > parent:
			indent = column
			end = last
		case spaces < last && (indent == 0 || column < indent):
			return end, nil
		case spaces < last || column > indent && indent > 0 || keep && i < len(d.text):
			end = last
		}
		i = last
	}
	return end, nil
}
