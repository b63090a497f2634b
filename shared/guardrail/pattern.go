package guardrail

import (
	"cmp"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
)

// maxInstructions is how large the patterns of one guardrail may be once they are
// compiled, all together: the time that a text takes grows with it.
const maxInstructions = 5000

// Patterns are regular expressions in RE2 syntax.
type Patterns []*regexp.Regexp

// CompilePatterns reads list. at and what say which of it is wrong, and how.
func CompilePatterns(list []string) (all Patterns, at int, what string) {
	size := 0
	for i, text := range list {
		parsed, err := syntax.Parse(text, syntax.Perl)
		if err != nil {
			return nil, i, "is not a regular expression (RE2)"
		}
		program, err := syntax.Compile(parsed.Simplify())
		if err != nil {
			return nil, i, "is not a regular expression (RE2)"
		}
		if size += len(program.Inst); size > maxInstructions {
			return nil, i, fmt.Sprintf("makes the patterns of this guardrail larger than %d instructions: its counted repetitions cost too much", maxInstructions)
		}
		found, err := regexp.Compile(text)
		if err != nil {
			return nil, i, "is not a regular expression (RE2)"
		}
		all = append(all, found)
	}
	return all, 0, ""
}

// Match reports whether any of p finds something in any of texts.
func (p Patterns) Match(texts ...string) bool {
	return slices.ContainsFunc(p, func(pattern *regexp.Regexp) bool { return slices.ContainsFunc(texts, pattern.MatchString) })
}

// Find returns what p finds in text, in order. A pattern that also finds nothing
// at all, such as a*, has no place there.
func (p Patterns) Find(text string) []Span {
	var spans []Span
	for _, pattern := range p {
		for _, at := range pattern.FindAllStringIndex(text, -1) {
			if at[1] > at[0] {
				spans = append(spans, Span{at[0], at[1]})
			}
		}
	}
	return inOrder(spans)
}

func inOrder(spans []Span) []Span {
	slices.SortFunc(spans, func(a, b Span) int { return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(b.End, a.End)) })
	return spans
}
