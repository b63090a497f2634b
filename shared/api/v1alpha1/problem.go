package v1alpha1

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"tuluat.ai/harness/shared/harness"
)

// Problem is one thing that is wrong with a file.
type Problem struct {
	Document int    // of the file, from 1; 0: not known
	Line     int    // of the file, from 1; 0: not known
	Path     string // of the field, as in spec.harness.channels[0].name
	What     string // what is wrong
	Fix      string // what to write instead
}

func (p Problem) String() string {
	var b strings.Builder
	switch {
	case p.Document > 0 && p.Line > 0:
		fmt.Fprintf(&b, "document %d, line %d: ", p.Document, p.Line)
	case p.Document > 0:
		fmt.Fprintf(&b, "document %d: ", p.Document)
	}
	if p.Path != "" {
		b.WriteString(p.Path + " ")
	}
	b.WriteString(p.What)
	if p.Fix != "" {
		b.WriteString(": " + p.Fix)
	}
	return b.String()
}

// Problems is what is wrong, in the order of the file. Those of one document are
// bounded in number and in size, whatever its author made up; see Add.
type Problems []Problem

const (
	// MaxProblems is how many problems of a document are told. One more entry says
	// that there are others.
	MaxProblems = 100
	// Bytes of what may repeat the document, and of what tells its author what to do.
	maxShown, maxFix = 256, 400
)

// Add appends a problem, shortened where it is long, unless p is Full.
func (p *Problems) Add(problem Problem) {
	switch {
	case p.Full():
		return
	case len(*p) == MaxProblems:
		problem = Problem{Document: problem.Document, What: "has more problems than are told here", Fix: "mend these first"}
	}
	problem.Path, problem.What, problem.Fix = clip(problem.Path, maxShown), clip(problem.What, maxShown), clip(problem.Fix, maxFix)
	*p = append(*p, problem)
}

// Full reports whether Add takes no more: the rest need not be looked for.
func (p Problems) Full() bool { return len(p) > MaxProblems }

// Below is the path of a field of the object at path, shortened where it is long,
// so that deep and long-named fields cost no more than others.
func Below(path, field string) string {
	return clip(strings.TrimPrefix(path+"."+clip(field, maxShown), "."), maxShown)
}

// clip takes the middle out of a text of more than most bytes: what a place is in
// and what it is called both stay.
func clip(text string, most int) string {
	const gap, end = "…", 64
	if len(text) <= most {
		return text
	}
	head, tail := most-len(gap)-end, len(text)-end
	for !utf8.RuneStart(text[head]) {
		head--
	}
	for tail < len(text) && !utf8.RuneStart(text[tail]) {
		tail++
	}
	return text[:head] + gap + text[tail:]
}

func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.String()
	}
	return strings.Join(lines, "\n")
}

// Err returns p as an error of kind harness.Invalid whose message is the whole
// list, or nil when there is none.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	return &harness.Error{Kind: harness.Invalid, Message: p.Error()}
}
