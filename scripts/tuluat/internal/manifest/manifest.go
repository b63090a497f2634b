// Package manifest reads the YAML that people apply: files of several documents,
// and folders of files.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Document is one resource as its author wrote it.
type Document struct {
	File string // as it was named; "-" is standard input
	Line int    // of its first line in the file, from 1
	Text []byte

	Kind, Name          string
	Labels, Annotations map[string]string

	node *yaml.Node
}

// Limits of what is read.
const (
	maxFile      = 16 << 20
	maxDocuments = 10000
)

// Where says where the field is that a JSON pointer (#/spec/harness) names, or
// the nearest that exists above it: FILE:LINE.
func (d Document) Where(pointer string) string {
	at, line := d.node, d.node.Line
	for segment := range strings.SplitSeq(strings.TrimPrefix(strings.TrimPrefix(pointer, "#"), "/"), "/") {
		segment = strings.NewReplacer("~1", "/", "~0", "~").Replace(segment)
		if at != nil && at.Kind == yaml.AliasNode {
			at = at.Alias
		}
		if at == nil {
			break
		}
		var next *yaml.Node
		switch at.Kind {
		case yaml.MappingNode:
			for i := 0; i+1 < len(at.Content); i += 2 {
				if at.Content[i].Value == segment {
					next, line = at.Content[i+1], at.Content[i].Line
				}
			}
		case yaml.SequenceNode:
			if i, err := strconv.Atoi(segment); err == nil && i >= 0 && i < len(at.Content) {
				next = at.Content[i]
				line = next.Line
			}
		}
		at = next
	}
	return d.File + ":" + strconv.Itoa(d.Line+line-1)
}

// JSON is the document as JSON.
func (d Document) JSON() (map[string]any, error) {
	text(d.node)
	var object map[string]any
	if err := d.node.Decode(&object); err != nil {
		return nil, fmt.Errorf("%s:%d: %w", d.File, d.Line, err)
	}
	return object, nil
}

// text has dates stay the text that they are in JSON.
func text(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!timestamp" {
		n.Tag, n.Style = "!!str", yaml.DoubleQuotedStyle
	}
	for _, child := range n.Content {
		text(child)
	}
}

// Result is what was read.
type Result struct {
	Documents []Document
	Skipped   []string // documents of folders that are none of ours, and why
}

// Read reads the files, the folders' files that end in .yaml, .yml or .json, and
// for "-" standard input. kinds are the ones that may be there: in a folder
// others are skipped, in a file that was named they are an error. All mistakes
// are told at once.
func Read(names []string, stdin io.Reader, kinds ...string) (Result, error) {
	var r Result
	var problems []error
	for _, name := range names {
		files, folder, err := expand(name)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if folder && len(files) == 0 {
			problems = append(problems, fmt.Errorf("%s: no file there ends in .yaml, .yml or .json", name))
		}
		for _, file := range files {
			text, err := load(file, stdin)
			if err != nil {
				problems = append(problems, err)
				continue
			}
			problems = append(problems, r.add(file, text, folder, kinds)...)
		}
	}
	seen := map[string]Document{}
	for _, d := range r.Documents {
		key := d.Kind + "/" + d.Name
		if first, twice := seen[key]; twice {
			problems = append(problems, fmt.Errorf("%s:%d: %s %q is there twice, first at %s:%d", d.File, d.Line, d.Kind, d.Name, first.File, first.Line))
		}
		seen[key] = d
	}
	if err := errors.Join(problems...); err != nil {
		return r, err
	}
	if len(r.Documents) == 0 {
		return r, fmt.Errorf("%s: holds no %s", strings.Join(names, ", "), strings.Join(kinds, " and no "))
	}
	return r, nil
}

func expand(name string) (files []string, folder bool, err error) {
	if name == "-" {
		return []string{name}, false, nil
	}
	info, err := os.Stat(name)
	if err != nil || !info.IsDir() {
		return []string{name}, false, err
	}
	entries, err := os.ReadDir(name)
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, ext) {
			files = append(files, filepath.Join(name, e.Name()))
		}
	}
	return files, true, err
}

func load(file string, stdin io.Reader) ([]byte, error) {
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		stdin = f
	}
	text, err := io.ReadAll(io.LimitReader(stdin, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s: is larger than %d MiB", file, maxFile>>20)
	}
	return text, err
}

func (r *Result) add(file string, text []byte, folder bool, kinds []string) []error {
	var problems []error
	for _, part := range split(text) {
		d := Document{File: file, Line: part.line, Text: part.text}
		err := d.read()
		switch {
		case errors.Is(err, io.EOF): // nothing but comments
		case err != nil:
			problems = append(problems, fmt.Errorf("%s:%d: %w", file, d.Line, err))
		case !slices.Contains(kinds, d.Kind) && folder:
			r.Skipped = append(r.Skipped, fmt.Sprintf("%s:%d: a %s", file, d.Line, orNothing(d.Kind)))
		case !slices.Contains(kinds, d.Kind):
			problems = append(problems, fmt.Errorf("%s:%d: kind is %q: only %s can be applied", file, d.Line, d.Kind, strings.Join(kinds, " and ")))
		case d.Name == "":
			problems = append(problems, fmt.Errorf("%s:%d: metadata.name is missing", file, d.Line))
		default:
			r.Documents = append(r.Documents, d)
		}
		if len(r.Documents) > maxDocuments {
			return append(problems, fmt.Errorf("%s: there are more than %d documents", file, maxDocuments))
		}
	}
	return problems
}

func orNothing(kind string) string {
	if kind == "" {
		return "document without a kind"
	}
	return kind
}

// read parses the document and finds what it is about.
func (d *Document) read() error {
	decoder := yaml.NewDecoder(bytes.NewReader(d.Text))
	var root yaml.Node
	if err := decoder.Decode(&root); err != nil {
		return err
	}
	if len(root.Content) != 1 || root.Content[0].Kind != yaml.MappingNode {
		if len(root.Content) == 1 && root.Content[0].Tag == "!!null" {
			return io.EOF
		}
		return errors.New("is not a mapping: a resource has apiVersion, kind, metadata and spec")
	}
	d.node = root.Content[0]
	object, err := d.JSON()
	if err != nil {
		return err
	}
	if _, err := json.Marshal(object); err != nil {
		return errors.New("has a key that is no text, or a number that JSON has not")
	}
	var head struct {
		Kind     string `yaml:"kind"`
		Metadata struct {
			Name        string            `yaml:"name"`
			Labels      map[string]string `yaml:"labels"`
			Annotations map[string]string `yaml:"annotations"`
		} `yaml:"metadata"`
	}
	if err := d.node.Decode(&head); err != nil {
		return err
	}
	d.Kind, d.Name, d.Labels, d.Annotations = head.Kind, head.Metadata.Name, head.Metadata.Labels, head.Metadata.Annotations
	return nil
}

type part struct {
	line int
	text []byte
}

// marker is the line between documents: at the begin of a line it cannot be part
// of a text.
var marker = regexp.MustCompile(`(?m)^---(?:[ \t].*|\r?)$`)

// split parts a file into its documents.
func split(text []byte) []part {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	var parts []part
	begin, line := 0, 1
	cut := func(end int) {
		parts = append(parts, part{line, text[begin:end]})
	}
	for _, at := range marker.FindAllIndex(text, -1) {
		cut(at[0])
		line += bytes.Count(text[begin:at[0]], []byte("\n"))
		begin = at[0]
		if len(bytes.TrimSpace(text[at[0]:at[1]])) == len("---") && at[1] < len(text) { // the line says nothing else
			begin = at[1] + 1
			line++
		}
	}
	cut(len(text))
	return parts
}
