package whatsapp

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"tuluat.ai/harness/shared/harness"
)

// value is one JSON value inside a body that json.Valid has accepted, without
// the space around it; empty: there is none.
//
// encoding/json takes Text for text and fills half a struct before it reports a
// wrong type. This reader has exact keys, of a key given twice the last value
// counts, and a value of the wrong type is absent: nothing fails. It finds
// values by their bounds, so what nobody asks for costs a scan and no memory,
// and nesting costs no stack.
type value []byte

// kind is the first byte of the value, with one '0' for all numbers and 't' for
// both booleans; 0 if there is none.
func (v value) kind() byte {
	if len(v) == 0 {
		return 0
	}
	switch c := v[0]; c {
	case '{', '[', '"', 'n':
		return c
	case 't', 'f':
		return 't'
	default:
		return '0'
	}
}

// absent reports whether there is no value or it is null.
func (v value) absent() bool { k := v.kind(); return k == 0 || k == 'n' }

func space(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

func skipSpace(b []byte, i int) int {
	for i < len(b) && space(b[i]) {
		i++
	}
	return i
}

// stringEnd returns the index behind the string that begins at b[i].
func stringEnd(b []byte, i int) int {
	for i++; ; i++ {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return len(b)
		}
		i += n
		slashes := 0
		for b[i-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return i + 1
		}
	}
}

// valueEnd returns the index behind the value that begins at b[i].
func valueEnd(b []byte, i int) int {
	switch b[i] {
	case '"':
		return stringEnd(b, i)
	case '{', '[':
		for depth := 0; i < len(b); {
			switch b[i] {
			case '"':
				i = stringEnd(b, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			i++
			if depth == 0 {
				return i
			}
		}
		return len(b)
	}
	for i < len(b) && b[i] != ',' && b[i] != ']' && b[i] != '}' && !space(b[i]) {
		i++
	}
	return i
}

// whole makes a value of a valid text.
func whole(text []byte) value {
	i := skipSpace(text, 0)
	if i == len(text) {
		return nil
	}
	return text[i:valueEnd(text, i)]
}

// items yields the elements of an array; nothing of any other value.
func (v value) items(yield func(value) bool) {
	if v.kind() != '[' {
		return
	}
	for i := skipSpace(v, 1); i < len(v) && v[i] != ']'; {
		end := valueEnd(v, i)
		if !yield(v[i:end:end]) {
			return
		}
		if i = skipSpace(v, end); i < len(v) && v[i] == ',' {
			i = skipSpace(v, i+1)
		}
	}
}

// fields yields the members of an object in their order, repeated keys too;
// nothing of any other value. A key is as it is written, without its quotes,
// unless it has escapes.
func (v value) fields(yield func([]byte, value) bool) {
	if v.kind() != '{' {
		return
	}
	for i := skipSpace(v, 1); i < len(v) && v[i] == '"'; {
		end := stringEnd(v, i)
		key := v[i+1 : end-1]
		if bytes.IndexByte(key, '\\') >= 0 {
			key = []byte(v[i:end].text())
		}
		i = skipSpace(v, skipSpace(v, end)+1) // behind the colon
		end = valueEnd(v, i)
		if !yield(key, v[i:end:end]) {
			return
		}
		if i = skipSpace(v, end); i < len(v) && v[i] == ',' {
			i = skipSpace(v, i+1)
		}
	}
}

// get follows names through objects.
func (v value) get(names ...string) value {
	for _, name := range names {
		var found value
		for key, item := range v.fields {
			if string(key) == name {
				found = item
			}
		}
		v = found
	}
	return v
}

// text returns a string fit to be stored: NUL is dropped, a lone surrogate and
// what is no UTF-8 is U+FFFD. Any other value is "".
func (v value) text() string {
	if v.kind() != '"' {
		return ""
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return harness.CleanText(string(v[1 : len(v)-1]))
	}
	return harness.CleanText(string(unquote(v[1 : len(v)-1])))
}

// unquote resolves the escapes of a valid string's inside.
func unquote(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for {
		n := bytes.IndexByte(b, '\\')
		if n < 0 {
			return append(out, b...)
		}
		out = append(out, b[:n]...)
		switch c := b[n+1]; c {
		case 'u':
			r := hex4(b[n+2:])
			b = b[n+6:]
			if utf16.IsSurrogate(r) {
				low := rune(-1)
				if len(b) >= 6 && b[0] == '\\' && b[1] == 'u' {
					low = hex4(b[2:])
				}
				if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
					b = b[6:]
				}
			}
			out = utf8.AppendRune(out, r)
			continue
		case 'n':
			out = append(out, '\n')
		case 't':
			out = append(out, '\t')
		case 'r':
			out = append(out, '\r')
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		default: // a quote, a slash, a backslash
			out = append(out, c)
		}
		b = b[n+2:]
	}
}

func hex4(b []byte) rune {
	n := rune(0)
	for _, c := range b[:4] {
		switch {
		case c <= '9':
			n = n<<4 | rune(c-'0')
		default:
			n = n<<4 | rune(c|0x20-'a'+10)
		}
	}
	return n
}

// scalar returns a string, or a number or boolean as it is written.
func (v value) scalar() string {
	switch v.kind() {
	case '"':
		return v.text()
	case '0', 't':
		return string(v)
	}
	return ""
}

const (
	maxDepth  = 8  // of what data keeps
	maxNumber = 40 // digits
)

// data returns the value as metadata may hold it. Numbers keep their text; one
// that the database would write out with thousands of zeros becomes a string,
// and what is nested too deeply is cut.
func (v value) data(depth int) any {
	switch v.kind() {
	case '"':
		return v.text()
	case '0':
		if len(v) > maxNumber || bytes.ContainsAny(v, "eE") {
			return string(v[:min(len(v), maxNumber)])
		}
		return json.Number(v)
	case 't':
		return v[0] == 't'
	case '[':
		if depth >= maxDepth {
			return "…"
		}
		list := []any{}
		for item := range v.items {
			list = append(list, item.data(depth+1))
		}
		return list
	case '{':
		if depth >= maxDepth {
			return "…"
		}
		object := map[string]any{}
		for key, item := range v.fields {
			object[harness.CleanText(string(key))] = item.data(depth + 1)
		}
		return object
	}
	return nil
}

// oneOf reports whether the text of v is one of words.
func (v value) oneOf(words ...string) bool { return slices.Contains(words, v.text()) }

func (v value) isTrue() bool { return string(v) == "true" }

func valid(text string) bool { return json.Valid([]byte(text)) }

// plain writes data as a person reads it: a list with commas, the rest as JSON.
func plain(data any) string {
	switch d := data.(type) {
	case string:
		return d
	case []any:
		words := make([]string, len(d))
		for i := range d {
			words[i] = plain(d[i])
		}
		return strings.Join(words, ", ")
	default:
		text, err := json.Marshal(d)
		if err != nil {
			return ""
		}
		return string(text)
	}
}
