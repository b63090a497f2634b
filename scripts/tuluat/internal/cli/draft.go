package cli

import (
	"fmt"
	"os"
	"strconv"
	"unicode/utf8"
)

// written shows the end of an answer that is still written, on one line of a
// terminal that whatever comes next takes the place of. Elsewhere nothing is shown:
// what was written to a pipe cannot be taken back.
func (s *screen) written(text string) {
	if !s.dim {
		return
	}
	fmt.Fprint(s.answers, "\r\x1b[2m"+lineEnd(flatten(text), columns())+"\x1b[0m\x1b[K")
	s.draft = true
}

// erase takes a draft off its line.
func (s *screen) erase() {
	if s.draft {
		fmt.Fprint(s.answers, "\r\x1b[K")
		s.draft = false
	}
}

// columns is the width of the terminal, as far as it is known.
func columns() int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n >= 20 {
		return n
	}
	return 80
}

// lineEnd is as much of the end of text as has room on a line with the mark that
// it is one. What may be wide counts twice.
func lineEnd(text string, columns int) string {
	room := columns - 3 // the marks at both ends, and the cursor
	for at := len(text); at > 0; {
		r, size := utf8.DecodeLastRuneInString(text[:at])
		if room--; r >= 0x1100 {
			room--
		}
		if room < 0 {
			return "…" + text[at:] + "…"
		}
		at -= size
	}
	return text + "…"
}
