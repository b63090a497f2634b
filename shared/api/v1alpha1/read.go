package v1alpha1

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

// MaxFileBytes is the largest file Read takes.
const MaxFileBytes = 1 << 20

// Document is one resource of a file and what is wrong with its text. Its Agent
// or Workflow is what could be read; use it only when Validate finds nothing.
type Document struct {
	Number   int        // in the file, from 1
	Kind     string     // KindAgent or KindWorkflow; empty: neither
	Agent    AiAgent    // of KindAgent
	Workflow AiWorkflow // of KindWorkflow
	Problems Problems   // found while reading
	lines    map[string]int
}

// Name returns the resource's name, empty if it could not be read.
func (d Document) Name() string {
	if d.Kind == KindWorkflow {
		return d.Workflow.Metadata.Name
	}
	return d.Agent.Metadata.Name
}

// Parse returns the agents of a file with one or more documents, or everything
// that is wrong with the form of any of them. It does not Validate.
func Parse(file []byte) ([]AiAgent, error) {
	documents, err := Read(file)
	if err != nil {
		return nil, err
	}
	var agents []AiAgent
	var problems Problems
	for _, d := range documents {
		for _, p := range d.Problems {
			problems.Add(p)
		}
		if d.Kind == KindAgent {
			agents = append(agents, d.Agent)
		}
	}
	if err := problems.Err(); err != nil {
		return nil, err
	}
	return agents, nil
}

// Read returns every document of a file, each with its own problems, so that
// one wrong document spoils no other. Documents without content are left out.
// An error says that the file is not YAML (from some line on, or at all); the
// documents before that line are returned with it.
func Read(file []byte) ([]Document, error) {
	if len(file) > MaxFileBytes {
		return nil, Problems{{What: fmt.Sprintf("the file is over %d bytes", MaxFileBytes), Fix: "split it"}}.Err()
	}
	var documents []Document
	yamls := yaml.NewDecoder(bytes.NewReader(file))
	for number := 1; ; number++ {
		var root yaml.Node
		err := yamls.Decode(&root)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			// The parser's text names the line and a token class, not the content.
			return documents, Problems{{Document: number, What: clip("is not YAML: "+strings.TrimPrefix(err.Error(), "yaml: "), maxShown)}}.Err()
		}
		if content := root.Content[0]; content.Tag != "!!null" {
			documents = append(documents, readDocument(content, number))
		}
	}
}

func readDocument(n *yaml.Node, number int) Document {
	d := decoder{document: Document{Number: number, lines: map[string]int{}}}
	if n.Kind != yaml.MappingNode {
		d.problem(n, "", "is not an object", "begin with apiVersion: "+APIVersion)
		return d.document
	}
	if d.identify(n, "apiVersion", APIVersion) == "" {
		return d.document
	}
	switch d.document.Kind = d.identify(n, "kind", KindAgent, KindWorkflow); d.document.Kind {
	case KindAgent:
		d.decode(n, reflect.ValueOf(&d.document.Agent).Elem(), "")
	case KindWorkflow:
		d.decode(n, reflect.ValueOf(&d.document.Workflow).Elem(), "")
	}
	return d.document // of another kind every other field would be a problem too
}

// decoder turns a document's nodes into values and collects what does not fit.
// It knows the form from the types themselves, so that no field is listed twice.
type decoder struct{ document Document }

func (d *decoder) problem(n *yaml.Node, path, what, fix string) {
	d.document.Problems.Add(Problem{Document: d.document.Number, Line: n.Line, Path: path, What: what, Fix: fix})
}

// identify returns the field's value, or "" and a problem when it is none of known.
func (d *decoder) identify(root *yaml.Node, field string, known ...string) string {
	write := strings.Join(known, " or ")
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value != field {
			continue
		}
		value := root.Content[i+1]
		if value.Kind != yaml.ScalarNode || !slices.Contains(known, value.Value) {
			d.problem(value, field, fmt.Sprintf("is %q, which this release does not know", value.Value), "write "+write)
			return ""
		}
		return value.Value
	}
	d.problem(root, field, "is missing", "write "+field+": "+write)
	return ""
}

var quantityType = reflect.TypeFor[Quantity]()

func (d *decoder) decode(n *yaml.Node, v reflect.Value, path string) {
	d.document.lines[path] = n.Line
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		d.problem(n, path, "uses a YAML anchor or alias", "write the value out")
	case n.Tag == "!!null": // as in Kubernetes: as if it were absent
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.decode(n, v.Elem(), path)
	case v.Kind() == reflect.Struct:
		d.object(n, v, path)
	case v.Kind() == reflect.Map:
		d.texts(n, v, path)
	case v.Kind() == reflect.Slice:
		d.list(n, v, path)
	default:
		d.scalar(n, v, path)
	}
}

func (d *decoder) object(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.problem(n, path, "must be an object", "write its fields below it, indented")
		return
	}
	names, places := fieldsOf(v.Type())
	d.pairs(n, path, func(key, value *yaml.Node, at string) {
		i := slices.Index(names, key.Value)
		if i < 0 {
			d.problem(key, at, "is not a field", nearest(key.Value, names))
			return
		}
		d.decode(value, v.FieldByIndex(places[i]), at)
	})
}

// texts decodes a map of texts: labels and annotations.
func (d *decoder) texts(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.problem(n, path, "must be an object", "write name: \"value\" pairs below it, indented")
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	d.pairs(n, path, func(key, value *yaml.Node, at string) {
		text := reflect.New(v.Type().Elem()).Elem()
		d.decode(value, text, at)
		v.SetMapIndex(reflect.ValueOf(key.Value), text)
	})
}

// pairs visits the entries of an object once each.
func (d *decoder) pairs(n *yaml.Node, path string, visit func(key, value *yaml.Node, at string)) {
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content) && !d.document.Problems.Full(); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := Below(path, key.Value)
		switch {
		case key.Kind != yaml.ScalarNode || key.Tag != "!!str":
			d.problem(key, path, "has a key that is not text", "write the key as text")
		case seen[key.Value]:
			d.problem(key, at, "is written twice", "keep one of them")
		default:
			seen[key.Value] = true
			visit(key, value, at)
		}
	}
}

func (d *decoder) list(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.SequenceNode {
		d.problem(n, path, "must be a list", "begin each entry with a dash")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		if d.document.Problems.Full() {
			return
		}
		d.decode(item, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
	}
}

func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.ScalarNode {
		d.problem(n, path, "must be a single value", "")
		return
	}
	switch v.Kind() {
	case reflect.String:
		d.text(n, v, path)
	case reflect.Bool:
		if n.Tag != "!!bool" || n.Decode(v.Addr().Interface()) != nil {
			d.problem(n, path, "must be true or false", "")
		}
	case reflect.Int:
		if n.Tag != "!!int" || n.Decode(v.Addr().Interface()) != nil {
			d.problem(n, path, "must be a whole number", "")
		}
	case reflect.Float64:
		if (n.Tag != "!!float" && n.Tag != "!!int") || n.Decode(v.Addr().Interface()) != nil {
			d.problem(n, path, "must be a number", "")
		}
	default:
		panic("v1alpha1: no rule for " + v.Type().String())
	}
}

// text takes what the API server would take for a text: a bare yes or on is a
// boolean there, and a number is a number, though a whole one may be an amount.
func (d *decoder) text(n *yaml.Node, v reflect.Value, path string) {
	plain := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
	switch {
	case plain && slices.Contains([]string{"yes", "no", "on", "off", "y", "n"}, strings.ToLower(n.Value)):
		d.problem(n, path, "must be text, and this word alone is a boolean", "put it in quotes")
	case n.Tag == "!!str" || n.Tag == "!!timestamp" || v.Type() == quantityType && n.Tag == "!!int":
		if strings.ContainsRune(n.Value, 0) {
			d.problem(n, path, "contains a NUL character", "remove it")
			return
		}
		v.SetString(n.Value)
	default:
		d.problem(n, path, "must be text", "put it in quotes")
	}
}

// fields are those of a struct, by its type: a document may have a quarter of a
// million objects of one.
var fields sync.Map

type structFields struct {
	names  []string
	places [][]int
}

// fieldsOf lists the JSON names of a struct's fields, those of embedded structs
// among them, and where each is. The caller changes neither.
func fieldsOf(t reflect.Type) (names []string, places [][]int) {
	if known, ok := fields.Load(t); ok {
		of := known.(structFields)
		return of.names, of.places
	}
	defer func() { fields.Store(t, structFields{names, places}) }()
	for _, f := range reflect.VisibleFields(t) {
		if !f.Anonymous {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			names, places = append(names, name), append(places, f.Index)
		}
	}
	return names, places
}

// nearest suggests the field that was meant, or lists them all.
func nearest(word string, fields []string) string {
	for _, f := range fields {
		if len(word) > len(f)+2 {
			continue // too long to be meant for it, and distance would take its time
		}
		if strings.EqualFold(f, word) || strings.HasPrefix(strings.ToLower(f), strings.ToLower(word)) || distance(f, word) <= 2 {
			return "did you mean " + f + "?"
		}
	}
	return "the fields here are " + strings.Join(fields, ", ")
}

// distance is how many letters must change to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := corner
			if a[i] != b[j] {
				change++
			}
			corner = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
