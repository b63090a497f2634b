package markup

import (
	"sort"
	"strings"
)

// fence is a block of code between fences, by its places in a text.
type fence struct {
	begin   int // of the line that opens it
	code    int // behind that line
	codeEnd int // of the line that closes it; len(text) if none does
	end     int // behind that line
	mark    string
	bare    bool // treated as text
}

// maxOpening is the longest line, in bytes, that opens a block of code. It is
// repeated in every part of it.
const maxOpening = 64

// opening returns the line that opens f, without what stands before its fence.
func (f *fence) opening(text string) string {
	line := text[f.begin:f.code]
	return strings.TrimLeft(line, " \t")
}

// closing returns the line that ends a part of f that is cut at end: its own
// where the code ends there.
func (f *fence) closing(text string, end int) string {
	if line := strings.TrimSpace(text[f.codeEnd:f.end]); line != "" && end == f.codeEnd {
		return line
	}
	return f.mark
}

// findFences returns the blocks of code of text, in order. Those inside quotes
// are not found.
func findFences(text string) []fence {
	var fences []fence
	var open *fence
	for at := 0; at < len(text); {
		end := len(text)
		if i := strings.IndexByte(text[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		mark, rest := fenceMark(text[at:end])
		switch {
		case mark == "":
		case open == nil:
			if end-at <= maxOpening && (mark[0] == '~' || !strings.Contains(rest, "`")) && text[end-1] == '\n' {
				open = &fence{begin: at, code: end, mark: mark}
			}
		case mark[0] == open.mark[0] && len(mark) >= len(open.mark) && strings.TrimSpace(rest) == "":
			open.codeEnd, open.end = at, end
			fences = append(fences, *open)
			open = nil
		}
		at = end
	}
	if open != nil {
		open.codeEnd, open.end = len(text), len(text)
		fences = append(fences, *open)
	}
	return fences
}

// fenceMark returns the fence that a line begins with and what follows it.
func fenceMark(line string) (mark, rest string) {
	line = strings.TrimLeft(line, " \t")
	for _, c := range "`~" {
		rest := strings.TrimLeft(line, string(c))
		if n := len(line) - len(rest); n >= 3 {
			return line[:n], rest
		}
	}
	return "", ""
}

// fenceAround returns the block of code that a part ending or beginning at the
// place would cut, nil if there is none.
func (s *splitter) fenceAround(at int) *fence {
	i := sort.Search(len(s.fences), func(i int) bool { return s.fences[i].end > at })
	if i < len(s.fences) && at >= s.fences[i].code && at <= s.fences[i].codeEnd && !s.fences[i].bare && at < len(s.text) {
		return &s.fences[i]
	}
	return nil
}

// fenceFrom returns the block of code that begins at the place.
func (s *splitter) fenceFrom(at int) *fence {
	i := sort.Search(len(s.fences), func(i int) bool { return s.fences[i].begin >= at })
	if i < len(s.fences) && s.fences[i].begin == at {
		return &s.fences[i]
	}
	return nil
}
