package v1alpha1

import (
	"fmt"
	"strings"

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

// Problems is everything wrong, in the order of the file.
type Problems []Problem

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
