package yamltext

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

func isJSON(text []byte) bool { return json.Valid(text) }

// Document returns a text of an object, as a person would write it.
func Document(object map[string]any) []byte {
	style := style{eol: "\n", fold: true}
	return []byte(strings.TrimPrefix(style.block(object, 0), style.eol) + style.eol)
}

// Flow returns a text of a value in one line, which is JSON too.
func Flow(value any) []byte { return []byte(style{json: true}.flow(value)) }

// style is how values are written.
type style struct {
	eol  string
	json bool // as JSON
	fold bool // texts of several lines in lines of their own
}

// first are the fields that people expect before others.
var first = []string{"apiVersion", "kind", "metadata", "enabled", "id", "name", "type", "from", "to"}

func ordered(object map[string]any) []string {
	rank := func(key string) int {
		if i := slices.Index(first, key); i >= 0 {
			return i
		}
		return len(first)
	}
	return slices.SortedFunc(maps.Keys(object), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
}

// block writes a value behind its key or dash, which are at column indent-2: an
// object's fields and a list's items in lines of their own, each after a break.
func (s style) block(value any, indent int) string {
	var b strings.Builder
	margin := s.eol + strings.Repeat(" ", indent)
	switch v := value.(type) {
	case map[string]any:
		if len(v) == 0 {
			return " {}"
		}
		for _, key := range ordered(v) {
			b.WriteString(margin + s.word(key) + ":" + s.block(v[key], indent+2))
		}
	case []any:
		if len(v) == 0 {
			return " []"
		}
		for _, item := range v {
			text := s.block(item, indent+2)
			if object, _ := item.(map[string]any); len(object) > 0 { // its first field stands behind the dash
				text = " " + strings.TrimPrefix(text, s.eol+strings.Repeat(" ", indent+2))
			}
			b.WriteString(margin + "-" + text)
		}
	default:
		return " " + s.text(value, indent)
	}
	return b.String()
}

// text writes a scalar, one of several lines at column indent where that is
// wanted and possible.
func (s style) text(value any, indent int) string {
	if text, ok := value.(string); ok && s.fold {
		if lines, ok := s.lines(text, indent); ok {
			return lines
		}
	}
	return s.flow(value)
}

// lines writes a text in lines of its own.
func (s style) lines(text string, indent int) (string, bool) {
	body := strings.TrimSuffix(text, "\n")
	if !strings.Contains(body, "\n") && body == text || body == "" || strings.HasSuffix(body, "\n") || body[0] == ' ' || body[0] == '\n' {
		return "", false
	}
	for _, r := range body {
		if r != '\n' && (!printable(r) || r == '\t') {
			return "", false
		}
	}
	header := "|"
	if body == text {
		header = "|-"
	}
	var b strings.Builder
	b.WriteString(header)
	for line := range strings.SplitSeq(body, "\n") {
		b.WriteString(s.eol)
		if line != "" {
			b.WriteString(strings.Repeat(" ", max(indent, 1)) + line)
		}
	}
	return b.String(), true
}

func (s style) flow(value any) string {
	var b strings.Builder
	s.writeFlow(&b, value)
	return b.String()
}

func (s style) writeFlow(b *strings.Builder, value any) {
	switch v := value.(type) {
	case map[string]any:
		b.WriteByte('{')
		for i, key := range ordered(v) {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(s.word(key) + ": ")
			s.writeFlow(b, v[key])
		}
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for i, item := range v {
			if i > 0 {
				b.WriteString(", ")
			}
			s.writeFlow(b, item)
		}
		b.WriteByte(']')
	case string:
		b.WriteString(s.word(v))
	case nil:
		b.WriteString("null")
	default:
		fmt.Fprint(b, v)
	}
}

var simple = regexp.MustCompile(`^[A-Za-z][-A-Za-z0-9_./@+]*( [-A-Za-z0-9_./@+()]+)*$`)

// word writes a text in one line, without quotes where nobody could mistake it.
func (s style) word(text string) string {
	if !s.json && simple.MatchString(text) && !slices.Contains([]string{"yes", "no", "on", "off", "y", "n"}, strings.ToLower(text)) {
		var n yaml.Node
		if yaml.Unmarshal([]byte(text), &n) == nil && n.Content[0].ShortTag() == "!!str" {
			return text
		}
	}
	return quote(text)
}

// quote writes a text so that JSON and YAML read it alike.
func quote(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteRune('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case printable(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// printable reports whether YAML allows r as it is, and no reader takes it for a
// line break.
func printable(r rune) bool {
	switch {
	case r == 0x2028 || r == 0x2029 || r == 0xFEFF || r == 0x85 || r == utf8.RuneError:
		return r == utf8.RuneError
	case r == '\t' || r >= 0x20 && r <= 0x7E || r >= 0xA0 && r <= 0xD7FF || r >= 0xE000 && r <= 0xFFFD || r >= 0x10000:
		return true
	}
	return false
}
