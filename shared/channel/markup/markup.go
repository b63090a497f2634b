// Package markup makes of the Markdown that models write what each messenger
// shows: Telegram's HTML, WhatsApp's marks, or the text as it was written; and
// it cuts long answers into parts.
//
// Every function takes any string. Bytes that are no UTF-8 become U+FFFD, and
// NUL is dropped (harness.CleanText).
package markup

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"tuluat.ai/harness/shared/harness"
)

// richLimit is the longest text, in bytes, that is read as Markdown. No
// messenger takes more in one message, and nested marks cost a parser more than
// linear time.
const richLimit = 32 << 10

// Telegram returns markdown as HTML for parse_mode HTML: well formed, with no
// tags but b, i, s, code, pre, a and blockquote, never empty unless markdown is
// blank. Links are kept for http, https, mailto and tg; HTML in the text is
// shown as text. A text of more than 32 KiB, which no message can hold, is only
// escaped.
func Telegram(markdown string) string {
	return telegramHTML(read(markdown, keepLinks))
}

// WhatsApp returns markdown with WhatsApp's marks: *bold* _italic_ ~strike~
// `code` ```block```, "- " and "1. " for lists, "> " for quotes, and "text
// (url)" for links.
//
// WhatsApp knows no escape. Where a character of the text itself would be taken
// as a mark, because it stands at a word's edge and has a partner on its line, a
// character that looks the same takes its place (∗ ˍ ∼ ˋ ＞); in addresses and
// in code nothing is changed, except for backticks in code. Marks that would not
// work, as in the middle of a word, are left out, so that nobody reads them.
func WhatsApp(markdown string) string {
	return whatsAppText(read(markdown, writeLinks))
}

// Plain returns the text as the model wrote it, without blank space around it:
// what is sent when a provider refuses the formatted text.
func Plain(markdown string) string {
	return strings.TrimSpace(harness.CleanText(markdown))
}

// UTF16Len returns the length of s in UTF-16 code units, in which Telegram
// counts. A byte that is no UTF-8 counts as one unit.
func UTF16Len(s string) int {
	n := 0
	for _, r := range s {
		n++
		if r > 0xFFFF {
			n++
		}
	}
	return n
}

// blank reports whether s shows nothing at all: both messengers refuse such a
// text.
func blank(s string) bool {
	return strings.IndexFunc(s, shown) < 0
}

// shown reports whether r leaves something to see.
func shown(r rune) bool {
	return !unicode.IsSpace(r) && !unicode.In(r, unicode.Cf, unicode.Cc)
}

// readable drops the control characters that no messenger shows, and makes every
// line break one \n.
func readable(s string) string {
	s = harness.CleanText(s)
	s = strings.ReplaceAll(s, "\r\n", "\n")
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\r' || r == '\u2028' || r == '\u2029':
			return '\n'
		case r == '\n' || r == '\t':
			return r
		case r < ' ' || r == 0x7F:
			return -1
		}
		return r
	}, s)
}

// wordRune reports whether r belongs to a word, as messengers see it.
func wordRune(r rune) bool {
	return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r))
}
