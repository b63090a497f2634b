package markup

import (
	"slices"
	"strings"
	"unicode"
)

// The marks of the styles, outermost first.
var whatsAppMarks = []struct {
	style style
	mark  rune
}{{bold, '*'}, {italic, '_'}, {strike, '~'}, {code, '`'}}

// lookalikes stand in for a mark that is meant as itself.
var lookalikes = map[rune]rune{'*': '∗', '_': 'ˍ', '~': '∼', '`': 'ˋ'}

// whatsAppText writes blocks with WhatsApp's marks.
func whatsAppText(blocks []block) string {
	var out strings.Builder
	within := 0
	for _, b := range blocks {
		quote, gap := "", b.gap
		if b.quote != 0 {
			quote = "> "
			if b.quote == within {
				gap = 1 // an empty line would end it
			}
		}
		within = b.quote
		out.WriteString(strings.Repeat("\n", gap))
		if b.pre {
			if strings.TrimSpace(b.first) != "" {
				out.WriteString(quote + strings.TrimRight(b.first, " ") + "\n")
			}
			// Backticks in the block would end it. A block cannot stand in a quote.
			out.WriteString("```" + strings.ReplaceAll(b.body, "`", "ˋ") + "```")
			continue
		}
		for i, line := range b.lines {
			before := quote + b.first
			if i > 0 {
				out.WriteByte('\n')
				before = quote + b.rest
			}
			out.WriteString(before)
			text := whatsAppLine(line)
			if rest, found := strings.CutPrefix(text, ">"); found && strings.TrimSpace(before) == "" {
				text = "＞" + rest // said, not quoted
			}
			out.WriteString(text)
		}
	}
	return strings.TrimSpace(out.String())
}

// letter is a rune of a line with the styles it is to have.
type letter struct {
	r     rune
	style style
	mark  bool // it is a mark, not text
}

// whatsAppLine writes one line. No mark works beyond the end of its line.
func whatsAppLine(line []span) string {
	var letters []letter
	for _, s := range line {
		as := s.style
		if as&code != 0 {
			as = code // other marks do not work in it
		}
		for _, r := range s.text {
			if r == '`' && as&code != 0 {
				r = lookalikes[r]
			}
			letters = append(letters, letter{r: r, style: as})
		}
	}
	keepAddresses(letters)
	for _, m := range whatsAppMarks {
		dropUseless(letters, m.style)
	}
	letters = marked(letters)
	for _, m := range whatsAppMarks {
		disguise(letters, m.mark)
	}
	var out strings.Builder
	for _, l := range letters {
		out.WriteRune(l.r)
	}
	return strings.TrimRight(out.String(), " \t")
}

// dropUseless takes a style from where WhatsApp would not show it: from the
// spaces at the ends of a run, and from a run that begins or ends in a word.
func dropUseless(letters []letter, as style) {
	for i := 0; i < len(letters); {
		if letters[i].style&as == 0 {
			i++
			continue
		}
		begin := i
		for i < len(letters) && letters[i].style&as != 0 {
			i++
		}
		end := i
		for begin < end && unicode.IsSpace(letters[begin].r) {
			letters[begin].style &^= as
			begin++
		}
		for begin < end && unicode.IsSpace(letters[end-1].r) {
			end--
			letters[end].style &^= as
		}
		if (begin > 0 && wordRune(letters[begin-1].r)) || (end < len(letters) && wordRune(letters[end].r)) {
			for k := begin; k < end; k++ {
				letters[k].style &^= as
			}
		}
	}
}

// marked puts the marks around the runs of each style, properly nested.
func marked(letters []letter) []letter {
	out := make([]letter, 0, len(letters)+8)
	var open []int // indexes into whatsAppMarks
	for _, l := range append(letters, letter{}) {
		keep := 0
		for keep < len(open) && l.style&whatsAppMarks[open[keep]].style != 0 {
			keep++
		}
		for len(open) > keep {
			out = append(out, letter{r: whatsAppMarks[open[len(open)-1]].mark, mark: true})
			open = open[:len(open)-1]
		}
		for k, m := range whatsAppMarks {
			if l.style&m.style != 0 && !slices.Contains(open, k) {
				out = append(out, letter{r: m.mark, mark: true})
				open = append(open, k)
			}
		}
		out = append(out, l)
	}
	return out[:len(out)-1]
}

// disguise replaces the runes of the text that WhatsApp would take for mark: a
// pair of them, or one next to a real one.
func disguise(letters []letter, mark rune) {
	opened, pairs := false, false
	for i, l := range letters {
		switch {
		case l.r != mark:
		case l.mark:
			pairs = true
		case mark == '`' || closes(letters, i):
			pairs = pairs || opened
			opened = opened || mark == '`' || opens(letters, i)
		case opens(letters, i):
			opened = true
		}
	}
	if !pairs {
		return
	}
	for i, l := range letters {
		if l.r == mark && !l.mark && l.style&(code|address) == 0 &&
			(mark == '`' || opens(letters, i) || closes(letters, i)) {
			letters[i].r = lookalikes[mark]
		}
	}
}

// opens reports whether the rune at i stands where a mark begins something.
func opens(letters []letter, i int) bool {
	return (i == 0 || !wordRune(letters[i-1].r)) && i+1 < len(letters) && !unicode.IsSpace(letters[i+1].r)
}

// closes reports whether the rune at i stands where a mark ends something.
func closes(letters []letter, i int) bool {
	return i > 0 && !unicode.IsSpace(letters[i-1].r) && (i+1 == len(letters) || !wordRune(letters[i+1].r))
}

// keepAddresses marks the web addresses in the text: they must stay as they are.
func keepAddresses(letters []letter) {
	within := false
	for i, l := range letters {
		switch {
		case unicode.IsSpace(l.r):
			within = false
		case i >= 2 && l.r == '/' && letters[i-1].r == '/' && letters[i-2].r == ':':
			within = true
		}
		if within {
			letters[i].style |= address
		}
	}
}
