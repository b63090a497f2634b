// Package guardrail is what the reader of agents and the function that judges
// must understand alike of a guardrail: its patterns, its expression, its
// detectors. It is pure and asks nobody.
//
// What it costs is bounded whoever wrote the text that is judged: patterns are
// RE2 and small once compiled, expressions have a cost limit, and a text is
// judged up to MaxText bytes.
package guardrail

// MaxText is the longest text that is judged, in bytes. A longer one is nobody's
// to pass: but for LENGTH, a guardrail fails on it, and its failure blocks.
const MaxText = 64 << 10

// Span is a place in a text, in bytes.
type Span struct{ Start, End int }

// Redacted stands where something was found.
const Redacted = "[redacted]"

// Redact blacks out spans, which are in order and may overlap.
func Redact(text string, spans []Span) string {
	var out []byte
	end := 0
	for _, s := range spans {
		if s.End <= end {
			continue
		}
		if s.Start >= end {
			out = append(out, text[end:s.Start]...)
			out = append(out, Redacted...)
		}
		end = s.End
	}
	return string(append(out, text[end:]...))
}
