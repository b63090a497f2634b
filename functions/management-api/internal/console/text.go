package console

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// plain is text as people see it: characters that have no shape, or that change the
// order of those around them, are written so that they are seen. Lines and tabs stay.
// html/template does the rest.
func plain(text string) string {
	if !strings.ContainsFunc(text, hides) && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case !hides(r):
			b.WriteRune(r)
		case r < ' ':
			b.WriteRune('\u2400' + r) // ␀ to ␟
		case r == 0x7F:
			b.WriteRune('\u2421')
		default:
			fmt.Fprintf(&b, "[U+%04X]", r)
		}
	}
	return b.String()
}

// hides reports whether r is not seen as itself. Joiners stay: letters of some
// scripts, and emoji, need them.
func hides(r rune) bool {
	switch {
	case r == '\n' || r == '\t' || joins(r):
		return false
	case r == 0x2028 || r == 0x2029 || r == 0xFFFC || r == 0x2800: // the last one a pattern of no dots
		return true
	case r >= 0xFE00 && r <= 0xFE0F: // which look an emoji has
		return false
	}
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Co, r) || unicode.Is(unicode.Zl, r) ||
		unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) // letters and marks that are blank
}

// joins reports whether r only changes the look of the letters beside it.
func joins(r rune) bool { return r == 0x200C || r == 0x200D }

// colours are the escapes that only give a terminal's text a look.
var colours = regexp.MustCompile(`\x1b\[[0-9;:]{0,32}m`)

// output is what a command printed, without colours. What moves a terminal's cursor
// or writes its title is shown, not done; of a line that was written over, all is
// shown.
func output(data string) string {
	data = strings.ReplaceAll(colours.ReplaceAllString(strings.ToValidUTF8(data, "\uFFFD"), ""), "\r\n", "\n")
	return plain(data)
}

// line is text on one line.
func line(text string) string {
	return strings.NewReplacer("\n", "\u2424", "\t", " ").Replace(plain(text))
}

// Bounds of what is shown at once, in bytes.
const (
	shortText = 200     // of a cell
	longText  = 4000    // of a bubble or a command
	fullText  = 1 << 20 // with "show all"
)

// cut is the beginning of text, whole characters of it, and whether that is less.
func cut(text string, most int) (string, bool) {
	if len(text) <= most {
		return text, false
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most], true
}

// block is a long text in a page.
type block struct {
	Text string
	More string // where all of it is shown; "" if this is all
	Size int    // bytes in all
	Cut  bool
}

// blockOf shows at most so many bytes of text; all of it is at more.
func blockOf(text string, most int, more string) block {
	b := block{Size: len(text)}
	if text, b.Cut = cut(text, most); b.Cut && most < fullText {
		b.More = more
	}
	b.Text = plain(text)
	return b
}

// shownOf is how much of a text is shown, or of all of it where that is asked for.
func shownOf(full bool) int {
	if full {
		return fullText
	}
	return longText
}

// cell is text for one line of a table.
func cell(text string) string {
	text, less := cut(text, shortText)
	if less {
		return line(text) + "…"
	}
	return line(text)
}
