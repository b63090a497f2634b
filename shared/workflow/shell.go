package workflow

import (
	"fmt"
	"strings"

	"tuluat.ai/harness/shared/harness"
)

// command fills a template of a shell command in. No value becomes part of the
// command's text: each is a variable, set in single quotes before the author's
// first line, and its place names the variable. What somebody wrote in a chat
// is data there, whatever it looks like.
func (t *template) command(v *values, limit int) (string, error) {
	var author, set strings.Builder
	for _, p := range t.parts {
		author.WriteString(p.text)
	}
	n := 0
	free := func() string { // a name that the author does not use
		for {
			if n++; !strings.Contains(author.String(), fmt.Sprintf("V%d", n)) {
				return fmt.Sprintf("V%d", n)
			}
		}
	}
	var body strings.Builder
	for _, p := range t.parts {
		if p.x == nil {
			body.WriteString(p.text)
			continue
		}
		text, err := v.text(p.x)
		if err != nil {
			return "", err
		}
		name := free()
		set.WriteString(name + "=" + quoted(harness.CleanText(text)) + "\n")
		body.WriteString("${" + name + "}")
		if set.Len()+body.Len() > limit {
			break
		}
	}
	if set.Len()+body.Len() > limit {
		return "", fmt.Errorf("it would be over %d bytes", limit)
	}
	return harness.CleanText(set.String() + body.String()), nil
}

// quoted is text as one word of any POSIX shell.
func quoted(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// quotedHere reports whether what comes behind pieces is in double quotes, as
// far as a look at the text can tell: a here-document has rules of its own, in
// which quotes are plain characters.
func quotedHere(pieces []piece) bool {
	var text strings.Builder
	for _, p := range pieces {
		if p.expression {
			text.WriteByte('x')
		} else {
			text.WriteString(p.text)
		}
	}
	before := text.String()
	return strings.Contains(before, "<<") || quoteAt(before) == '"'
}

// quoteAt is the quote that is open at the end of a shell text, 0 when none is.
func quoteAt(text string) byte {
	var quote byte
	word := true // a word may begin here: # begins a comment
	for i := 0; i < len(text); i++ {
		b := text[i]
		switch {
		case b == '\\' && quote != '\'':
			i++
			word = false
			continue
		case quote != 0:
			if b == quote {
				quote = 0
			}
		case b == '"' || b == '\'':
			quote = b
		case b == '#' && word:
			end := strings.IndexByte(text[i:], '\n')
			if end < 0 {
				return 0
			}
			i += end
			b = '\n'
		}
		word = quote == 0 && strings.IndexByte(" \t\n;&|()", b) >= 0
	}
	return quote
}
