package markup

import (
	"slices"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"

	"tuluat.ai/harness/shared/harness"
)

// firstGuess is the length, in bytes, that Split tries first.
const firstGuess = 2048

// Split cuts markdown into parts for which fits holds, as few as is sensible:
// between blocks, else between lines, sentences, words, and at last inside a
// word, but not inside what is one character on a screen. A part is again
// Markdown. A block of code that fits one part is not cut; one that does not is
// cut between its lines into blocks of the same language. Blank space where it
// cuts is dropped, nothing else. A rune that does not fit alone is a part
// nevertheless. A blank text has no parts.
//
// fits is asked about texts not much longer than those that fit, about a dozen
// times for each part.
func Split(markdown string, fits func(part string) bool) []string {
	s := &splitter{text: harness.CleanText(markdown), fits: fits, guess: firstGuess}
	s.fences = findFences(s.text)
	var parts []string
	for s.skipBlank(); s.at < len(s.text); s.skipBlank() {
		end := s.next()
		if part := s.part(end); !blank(part) {
			parts = append(parts, part)
		}
		if f := s.fenceAround(end); f != nil && end == f.codeEnd {
			end = f.end // the part has its closing line
		}
		s.at = end
	}
	return parts
}

// splitter is a text that is being split.
type splitter struct {
	text   string
	fits   func(string) bool
	fences []fence // in order
	at     int     // what is before it is in parts
	guess  int     // how long the next part may be
}

// part returns what stands from s.at to end as a part of its own.
func (s *splitter) part(end int) string {
	text := strings.TrimRightFunc(s.text[s.at:end], unicode.IsSpace)
	if f := s.fenceAround(s.at); f != nil {
		text = f.opening(s.text) + text
	}
	if f := s.fenceAround(end); f != nil {
		text += "\n" + f.closing(s.text, end)
	}
	return text
}

// skipBlank moves to the next text. It keeps the indentation of a line, but not
// the spaces in the middle of one.
func (s *splitter) skipBlank() {
	inLine := s.at > 0 && s.text[s.at-1] != '\n'
	for i := s.at; i < len(s.text); {
		r, size := utf8.DecodeRuneInString(s.text[i:])
		if !unicode.IsSpace(r) {
			return
		}
		i += size
		if inLine = inLine && r != '\n'; inLine || r == '\n' || i == len(s.text) {
			s.at = i
		}
	}
}

// next returns where the part that begins at s.at ends.
func (s *splitter) next() int {
	for {
		longest := s.longest()
		if longest == len(s.text) {
			return longest
		}
		longest = s.beforeFence(longest)
		if longest > s.at {
			for _, end := range s.places(longest) {
				if end > s.at && s.fits(s.part(end)) {
					return end
				}
			}
		}
		f := s.fenceAround(s.at)
		if f == nil {
			f = s.fenceFrom(s.at)
		}
		if f != nil && !f.bare {
			f.bare = true // no room for its marks: the rest of it is text
			continue
		}
		return s.at + runeLen(s.text[s.at:])
	}
}

// longest returns the end of about the longest part that fits, s.at if there is
// none. It takes for granted that what is shorter fits too; its caller does not.
func (s *splitter) longest() int {
	rest := len(s.text) - s.at
	fits := func(n int) bool { return s.fits(s.part(s.at + alignRune(s.text[s.at:], n))) }
	good, bad := 0, rest+1
	for n := min(s.guess, rest); bad > rest || good == 0; {
		if fits(n) {
			if good = n; n == rest {
				return len(s.text)
			}
			if bad <= rest {
				break
			}
			n = min(2*n, rest)
		} else {
			if bad = n; good > 0 || n <= 1 {
				break
			}
			n /= 2
		}
	}
	for bad-good > 1+good/64 {
		if middle := good + (bad-good)/2; fits(middle) {
			good = middle
		} else {
			bad = middle
		}
	}
	s.guess = max(good+good/64+1, 16)
	if good == 0 {
		return s.at
	}
	return s.at + alignRune(s.text[s.at:], good)
}

// beforeFence returns end, or the begin of the block of code that it would cut
// although the next part can have it whole.
func (s *splitter) beforeFence(end int) int {
	i := sort.Search(len(s.fences), func(i int) bool { return s.fences[i].end > end })
	if i == len(s.fences) {
		return end
	}
	f := s.fences[i]
	if f.bare || f.begin <= s.at || f.begin >= end || f.end-f.begin > 4*(end-s.at) {
		return end
	}
	if s.fits(strings.TrimRightFunc(s.text[f.begin:f.end], unicode.IsSpace)) {
		return f.begin
	}
	return end
}

// places returns where a part of the text up to longest may end, best first. A
// place of a better kind wins over a later one as long as the part is half full.
func (s *splitter) places(longest int) []int {
	found := s.scan(longest)
	half := s.at + (longest-s.at)/2
	places := make([]int, 0, 2*len(found)+12)
	for _, end := range found {
		if end >= half {
			places = append(places, end)
		}
	}
	late := slices.DeleteFunc(slices.Clone(found[:]), func(end int) bool { return end <= s.at || end >= half })
	slices.SortFunc(late, func(a, b int) int { return b - a })
	if len(late) > 0 && late[0] >= s.at+(longest-s.at)/8 {
		places = append(places, late...)
	}
	// Inside a word; shorter and shorter, should fits not be what longest takes for granted.
	for n := longest - s.at; n > 0; n /= 2 {
		end := s.at + alignRune(s.text[s.at:], n)
		if whole := wholeCharacter(s.text, s.at, end); whole > s.at {
			places = append(places, whole)
		}
		if end > s.at {
			places = append(places, end)
		}
	}
	return append(places, late...)
}

// The kinds of places, best first.
const (
	afterBlock = iota
	afterLine
	afterSentence // outside of emphasis, code and links, as the next
	afterWord
	afterAnySentence
	afterAnyWord
	kinds
)

// scan finds the last place of each kind that is not beyond longest; s.at where
// there is none.
func (s *splitter) scan(longest int) [kinds]int {
	var found [kinds]int
	for i := range found {
		found[i] = s.at
	}
	var marks inlineMarks
	blankLine, sentence := true, false
	var last rune
	for i := s.at; i < longest; {
		if f := s.fenceAt(i); f != nil {
			if i > s.at {
				found[afterBlock] = i
			}
			if f.end <= longest {
				found[afterBlock], found[afterLine] = f.end, f.end
			} else {
				found[afterLine] = s.lastLine(f, longest, found[afterLine])
			}
			i, blankLine, sentence, last = f.end, true, false, 0
			continue
		}
		r, size := utf8.DecodeRuneInString(s.text[i:])
		i += size
		marks.see(r)
		if r == '\n' {
			found[afterLine] = i
			if blankLine {
				found[afterBlock] = i
			}
			blankLine, sentence, marks, last = true, false, inlineMarks{}, 0
			continue
		}
		wide := strings.ContainsRune("。！？", r)
		if space := unicode.IsSpace(r); space || wide {
			found[afterAnyWord] = i
			if sentence || wide {
				found[afterAnySentence] = i
			}
			if marks.none() {
				found[afterWord] = i
				if sentence || wide {
					found[afterSentence] = i
				}
			}
			if space {
				continue // several of them may follow a sentence
			}
		}
		blankLine = false
		sentence = strings.ContainsRune("!?…", r) || (r == '.' && !unicode.IsDigit(last)) ||
			(sentence && strings.ContainsRune(`"')]»”’*_`, r))
		last = r
	}
	if f := s.fenceFrom(longest); f != nil && !f.bare {
		found[afterBlock] = longest
	}
	return found
}

// fenceAt returns the block of code that begins at the place, or whose rest
// does.
func (s *splitter) fenceAt(at int) *fence {
	if at != s.at && s.text[at-1] != '\n' {
		return nil
	}
	if f := s.fenceFrom(at); f != nil && !f.bare {
		return f
	}
	return s.fenceAround(at)
}

// lastLine returns the end of the last line of f's code that is not beyond
// longest.
func (s *splitter) lastLine(f *fence, longest, otherwise int) int {
	from := max(f.code, s.at)
	if longest <= from {
		return otherwise
	}
	if i := strings.LastIndexByte(s.text[from:min(longest, f.codeEnd)], '\n'); i >= 0 {
		return from + i + 1
	}
	return otherwise
}

// inlineMarks knows roughly whether a place in a line is inside emphasis, code
// or a link.
type inlineMarks struct {
	strong, emphasis, tick bool
	brackets               int
	address                bool // inside the parentheses of a link
	stars                  int  // just seen
	before, last           rune // the stars; this one
}

func (m *inlineMarks) see(r rune) {
	if r == '*' {
		if m.stars == 0 {
			m.before = m.last
		}
		m.stars++
		m.last = r
		return
	}
	loose := (m.before == 0 || unicode.IsSpace(m.before)) && unicode.IsSpace(r) // a list's mark, or a product
	if m.stars > 0 && !loose {
		m.emphasis = m.emphasis != (m.stars%2 == 1)
		m.strong = m.strong != (m.stars >= 2)
	}
	m.stars = 0
	switch r {
	case '`':
		m.tick = !m.tick
	case '[':
		m.brackets++
	case ']':
		m.brackets = max(m.brackets-1, 0)
	case '(':
		m.address = m.address || m.last == ']'
	case ')':
		m.address = false
	}
	m.last = r
}

func (m *inlineMarks) none() bool {
	return !m.strong && !m.emphasis && !m.tick && m.brackets == 0 && !m.address
}

// alignRune returns n, or a little less, so that s[:n] ends with a whole rune.
// It is never less than the first rune.
func alignRune(s string, n int) int {
	if n >= len(s) {
		return len(s)
	}
	n = max(n, 1)
	for k := n; k > 0; k-- {
		if utf8.RuneStart(s[k]) {
			return k
		}
	}
	return runeLen(s)
}

func runeLen(s string) int {
	_, size := utf8.DecodeRuneInString(s)
	return max(size, 1)
}

// wholeCharacter returns end, or a place before it that is not inside what is
// one character on a screen: a letter with its accents, an emoji made of several,
// a flag. from if there is none within reach.
func wholeCharacter(s string, from, end int) int {
	for range 32 {
		if end <= from || end >= len(s) {
			return end
		}
		after, _ := utf8.DecodeRuneInString(s[end:])
		before, size := utf8.DecodeLastRuneInString(s[from:end])
		switch {
		case extends(after) || before == '\u200D' || (before == '\r' && after == '\n'):
		case flagHalf(before) && flagHalf(after) && flagsBefore(s[from:end])%2 == 1:
		default:
			return end
		}
		end -= size
	}
	return from
}

// extends reports whether r belongs to the rune before it.
func extends(r rune) bool {
	return r == '\u200D' || unicode.Is(unicode.M, r) || (r >= 0x1F3FB && r <= 0x1F3FF) || (r >= 0xE0020 && r <= 0xE007F)
}

func flagHalf(r rune) bool { return r >= 0x1F1E6 && r <= 0x1F1FF }

// flagsBefore counts the halves of flags at the end of s, up to 64.
func flagsBefore(s string) int {
	n := 0
	for ; n < 64; n++ {
		r, size := utf8.DecodeLastRuneInString(s)
		if !flagHalf(r) {
			break
		}
		s = s[:len(s)-size]
	}
	return n
}
