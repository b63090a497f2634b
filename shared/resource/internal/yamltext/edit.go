package yamltext

import (
	"bytes"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Apply returns a text of one document with changes, in the lines of what
// changes and nowhere else. ErrShape says that it cannot be done so.
func Apply(doc []byte, changes []Change) ([]byte, error) {
	want, err := Value(doc)
	if err != nil {
		return nil, err
	}
	for _, c := range changes {
		want = with(want, c.Path, c.Value)
	}
	for _, how := range ways {
		out, err := applyAll(doc, changes, how)
		if err != nil {
			continue
		}
		if is, err := Value(out); err == nil && Equal(is, want) && len(Split(out)) == len(Split(doc)) && (isJSON(out) || !isJSON(doc)) {
			return out, nil
		}
	}
	return nil, ErrShape
}

// way is how changes are written.
type way struct {
	quoted bool // as JSON, in one line
	first  bool // new fields before the others
}

// ways are tried in turn: should the text that people like not say what it
// should, one that machines like does.
var ways = []way{{}, {quoted: true}, {quoted: true, first: true}}

func applyAll(doc []byte, changes []Change, how way) ([]byte, error) {
	for _, c := range changes {
		root, err := parse(doc)
		if err != nil {
			return nil, err
		}
		e := editor{document: open(doc), way: how}
		e.style = style{eol: e.eol, json: e.json || how.quoted, fold: !how.quoted && !e.json}
		if doc, err = e.apply(root, c); err != nil {
			return nil, err
		}
	}
	return doc, nil
}

// editor makes one change.
type editor struct {
	*document
	way
	style style
}

// field is a field of an object, or the place where it would be.
type field struct {
	object     *yaml.Node // that holds it
	parent     *yaml.Node // the key of object; nil: it has none
	key, value *yaml.Node // nil: it is not there
	index      int        // of key
	flow       bool       // it is between brackets
	holder     int        // column of the block that holds object
}

func (e *editor) apply(root *yaml.Node, c Change) ([]byte, error) {
	f := field{object: root, holder: -1, flow: flows(root)}
	f.find(c.Path[0])
	for _, name := range c.Path[1:] {
		if f.value == nil || f.value.Kind != yaml.MappingNode || len(f.value.Content) == 0 && !flows(f.value) {
			return nil, ErrShape
		}
		column := f.object.Column - 1
		f = field{object: f.value, parent: f.key, holder: column, flow: f.flow || flows(f.value)}
		f.find(name)
	}
	switch {
	case c.Value != nil && f.key != nil:
		return e.replace(f, c.Value)
	case c.Value != nil && f.flow:
		return e.insertFlow(f, c)
	case c.Value != nil:
		return e.insertBlock(f, c)
	case f.key == nil:
		return e.text, nil
	case len(f.object.Content) == 2:
		return e.empty(f)
	case f.flow:
		return e.removeFlow(f)
	}
	return e.removeBlock(f)
}

func flows(n *yaml.Node) bool { return n.Style&yaml.FlowStyle != 0 }

func (f *field) find(name string) {
	f.key, f.value = nil, nil
	for i := 0; i+1 < len(f.object.Content); i += 2 {
		if f.object.Content[i].Value == name {
			f.key, f.value, f.index = f.object.Content[i], f.object.Content[i+1], i
			return
		}
	}
}

// put returns the text with that from from to to replaced.
func (e *editor) put(from, to int, text string) []byte {
	return slices.Concat(e.text[:from], []byte(text), e.text[to:])
}

// replace gives a field that is there another value.
func (e *editor) replace(f field, value any) ([]byte, error) {
	column := f.object.Column - 1
	colon, err := e.colon(f)
	if err != nil {
		return nil, err
	}
	from, err := e.start(f.value)
	if err != nil {
		return nil, err
	}
	to, err := e.end(f.value, column)
	if err != nil {
		return nil, err
	}
	if from >= to && f.value.Value == "" { // nothing is there
		if colon < 0 {
			return e.put(to, to, ": "+e.style.flow(value)), nil
		}
		return e.put(colon, colon, " "+e.style.flow(value)), nil
	}
	if colon < 0 || from < colon {
		return nil, ErrShape
	}
	text := e.style.flow(value)
	switch list, isList := value.([]any); {
	case f.flow:
	case isList && len(list) > 0 && f.value.Kind == yaml.SequenceNode && !flows(f.value) && !e.quoted:
		indent := f.value.Column - 1
		text = strings.TrimPrefix(e.style.block(list, indent), e.eol+strings.Repeat(" ", indent))
		to = e.lineEnd(to) // with what was said of the last item
	case f.value.Kind != yaml.ScalarNode && !flows(f.value): // in lines of its own
		return e.inline(colon, from, to, text), nil
	case len(bytes.TrimLeft(e.text[to:e.lineEnd(to)], " \t")) == 0: // nothing behind it
		indent := column + 2
		if f.value.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
			indent = e.margin(from, to, indent)
		}
		text = e.style.text(value, indent)
	}
	return e.put(from, to, text), nil
}

// inline puts a value behind the colon and removes the lines of the one that is
// there. Comments between them stay.
func (e *editor) inline(colon, from, to int, value string) []byte {
	from, to = e.lineStart(from), e.lineEnd(to)
	return slices.Concat(e.text[:colon], []byte(" "+value), e.text[colon:from], e.text[to+breakAt(e.text, to):])
}

// margin is the indent of the lines of a text in lines of its own.
func (e *editor) margin(from, to, otherwise int) int {
	for i := e.lineEnd(from); i < to; i = e.lineEnd(i) {
		i += breakAt(e.text, i)
		spaces := 0
		for i+spaces < to && e.text[i+spaces] == ' ' {
			spaces++
		}
		if i+spaces < e.lineEnd(i) {
			return max(spaces, 1)
		}
	}
	return otherwise
}

// colon returns the place behind the colon of a field, -1 if it has none.
func (e *editor) colon(f field) (int, error) {
	end, err := e.end(f.key, -1)
	if err != nil {
		return 0, err
	}
	if i := e.skip(end); i < len(e.text) && e.text[i] == ':' {
		return i + 1, nil
	}
	return -1, nil
}

// insertFlow adds a field to an object between braces, as its first one.
func (e *editor) insertFlow(f field, c Change) ([]byte, error) {
	text := e.style.word(c.Path[len(c.Path)-1]) + ": " + e.style.flow(c.Value)
	end, err := e.end(f.object, -1)
	if err != nil {
		return nil, err
	}
	if len(f.object.Content) == 0 {
		begin := bytes.LastIndexByte(e.text[:end], '{')
		if begin < 0 {
			return nil, ErrShape
		}
		return e.put(begin+1, begin+1, text), nil
	}
	begin, err := e.start(f.object.Content[0])
	if err != nil {
		return nil, err
	}
	if line := e.lineStart(begin); len(bytes.TrimLeft(e.text[line:begin], " \t")) == 0 {
		return e.put(begin, begin, text+","+e.eol+string(e.text[line:begin])), nil
	}
	return e.put(begin, begin, text+", "), nil
}

// insertBlock adds a field in a line of its own: enabled behind the line that
// begins the object, where people look for it, others at its end.
func (e *editor) insertBlock(f field, c Change) ([]byte, error) {
	name, indent := c.Path[len(c.Path)-1], f.object.Column-1
	margin := strings.Repeat(" ", indent)
	text := e.eol + margin + e.style.word(name) + ":"
	if e.style.json {
		text += " " + e.style.flow(c.Value)
	} else {
		text += e.style.block(c.Value, indent+2)
	}
	if e.first {
		at, err := e.start(f.object.Content[0])
		return e.put(at, at, strings.TrimPrefix(text, e.eol+margin)+e.eol+margin), err
	}
	if name == "enabled" && f.parent != nil && f.parent.Line < f.object.Line && !e.quoted {
		colon, err := e.colon(field{key: f.parent})
		if err != nil || colon < 0 {
			return nil, ErrShape
		}
		at := e.lineEnd(colon)
		return e.put(at, at, text), nil
	}
	end, err := e.end(f.object, f.holder)
	if err != nil {
		return nil, err
	}
	at := e.lineEnd(end)
	return e.put(at, at, text), nil
}

// empty makes an object that loses its only field an empty one.
func (e *editor) empty(f field) ([]byte, error) {
	from, err := e.start(f.object)
	if err != nil {
		return nil, err
	}
	to, err := e.end(f.object, f.holder)
	if err != nil {
		return nil, err
	}
	if f.parent != nil && !flows(f.object) {
		colon, err := e.colon(field{key: f.parent})
		if err == nil && colon > 0 && colon < from {
			return e.inline(colon, from, to, "{}"), nil
		}
	}
	return e.put(from, to, "{}"), nil
}

func (e *editor) removeFlow(f field) ([]byte, error) {
	from, err := e.start(f.key)
	if err != nil {
		return nil, err
	}
	if next := f.index + 2; next < len(f.object.Content) {
		to, err := e.start(f.object.Content[next])
		if err != nil {
			return nil, err
		}
		return e.put(from, to, ""), nil
	}
	to, err := e.end(f.value, -1)
	if err != nil {
		return nil, err
	}
	before, err := e.end(f.object.Content[f.index-1], -1)
	if err != nil {
		return nil, err
	}
	if !bytes.ContainsRune(e.text[before:from], '#') {
		from = before
	}
	return e.put(from, max(from, to), ""), nil
}

// removeBlock removes the lines of a field.
func (e *editor) removeBlock(f field) ([]byte, error) {
	from, err := e.start(f.key)
	if err != nil {
		return nil, err
	}
	if line := e.lineStart(from); len(bytes.TrimLeft(e.text[line:from], " ")) > 0 { // it stands behind a dash
		if f.index+2 >= len(f.object.Content) {
			return nil, ErrShape
		}
		to, err := e.start(f.object.Content[f.index+2])
		if err != nil {
			return nil, err
		}
		return e.put(from, to, ""), nil
	}
	from = e.lineStart(from)
	to, err := e.end(f.value, f.object.Column-1)
	if err != nil {
		return nil, err
	}
	to = e.lineEnd(to)
	if e.quoted { // the lines below must not become part of a text above
		return e.put(from, to, strings.Repeat(" ", f.object.Column-1)+"#"), nil
	}
	return e.put(from, to+breakAt(e.text, to), ""), nil
}
