package harness

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Text is what a human reads before they decide: all of what will be done, as
// Markdown. Nothing in it is cut, and no character hides: what has no shape of its
// own is written as its code point, and what only looks like something else is
// named. What is longer than one block says how the next follows.
func (s ApprovalSubject) Text() string {
	if s.Question != "" {
		return s.Question
	}
	var text strings.Builder
	shown := s.command()
	visible := Visible(shown)
	fence := strings.Repeat("`", max(3, longestRun(visible, '`')+1))
	if len(fence) > mostFence {
		visible, fence = strings.ReplaceAll(visible, "`", `\u{0060}`), "```"
	}
	for i, b := range pieces(visible) {
		switch {
		case b.line:
			text.WriteString("\nand on the next line:\n")
		case i > 0:
			text.WriteString("\nand without a break:\n")
		}
		fmt.Fprintf(&text, "%s\n%s\n%s", fence, b.text, fence)
	}
	if odd := oddCharacters(shown); odd != "" {
		fmt.Fprintf(&text, "\nIt has characters beyond ASCII: %s", odd)
	}
	if b := s.Sandbox; b != nil {
		image := "the platform's image"
		switch {
		case b.Image != "":
			image = b.Image
		case b.ImageRef != "":
			image = "image " + b.ImageRef
		}
		fmt.Fprintf(&text, "\nIn %s, network %s, at most %s", image, b.Egress, b.Timeout())
	}
	if r := s.Remote; r != nil {
		fmt.Fprintf(&text, "\nBy the tool %s of %s", Visible(r.Tool), Visible(r.Server))
		if r.URL != "" {
			fmt.Fprintf(&text, ", at %s", Visible(r.URL))
		}
		if r.Program != "" {
			fmt.Fprintf(&text, ", by the program %s", Visible(r.Program))
		}
	}
	return text.String()
}

// command is the text of a command, or the arguments of another tool.
func (s ApprovalSubject) command() string {
	if s.Tool == ToolExecuteShell {
		if command, err := ShellCommand(s.Arguments); err == nil {
			return command
		}
	}
	return s.Tool + " " + string(s.Arguments)
}

// Visible writes every character of text that has no shape of its own, or that
// changes the order or the look of those around it, as its code point: also white
// space that a reader would not see or could not tell from a space. No two texts
// become the same.
func Visible(text string) string {
	var b strings.Builder
	for i, line := range strings.Split(text, "\n") {
		if i > 0 {
			b.WriteByte('\n')
		}
		seen := len(strings.TrimRight(line, " ")) // behind it, nothing is seen
		for at, r := range line {
			switch {
			case r == '\\' && strings.HasPrefix(line[at:], `\u{`): // written so, and no code point of ours
				b.WriteString(`\u{005c}`)
			case r == ' ' && at < seen, shaped(r):
				b.WriteRune(r)
			default:
				fmt.Fprintf(&b, `\u{%04x}`, r)
			}
		}
	}
	return b.String()
}

// shaped reports whether r is seen, as itself and where it stands. Marks change
// the letter before them, and letters that are written from right to left the
// order of what is around them.
func shaped(r rune) bool {
	return r > ' ' && unicode.IsPrint(r) && !unicode.In(r, unicode.Mn, unicode.Me, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) &&
		!unicode.In(r, unicode.Hebrew, unicode.Arabic, unicode.Syriac, unicode.Thaana, unicode.Nko, unicode.Samaritan, unicode.Mandaic, unicode.Adlam) &&
		!(r >= 0x10800 && r <= 0x10FFF || r >= 0x1E800 && r <= 0x1EFFF) && // the other ones from right to left
		r != 0x2800 && r != 0xFFFC && r != 0x1D159 // blank all the same
}

// mostFence is the longest fence that what splits a text still knows as one.
const mostFence = 40

// mostNamed is how many characters are named before the rest is only counted.
const mostNamed = 40

// oddCharacters names what in text is no ASCII but may look like it.
func oddCharacters(text string) string {
	var odd []string
	for _, r := range text {
		name := fmt.Sprintf("%c (U+%04X)", r, r)
		if r > unicode.MaxASCII && shaped(r) && !slices.Contains(odd, name) {
			odd = append(odd, name)
		}
	}
	if more := len(odd) - mostNamed; more > 0 {
		return strings.Join(odd[:mostNamed], ", ") + fmt.Sprintf(", and %d more", more)
	}
	return strings.Join(odd, ", ")
}

// piece is a part of a command. Every channel takes it in one message.
type piece struct {
	text string
	line bool // it begins a line, behind another
}

const mostInPiece = 2000 // runes: no more than twice as many UTF-16 units

// pieces cuts text between lines, else between runes. Joined, with a line break
// where one begins a line, they are text.
func pieces(text string) []piece {
	var all []piece
	line := false
	for {
		runes := []rune(text)
		if len(runes) <= mostInPiece {
			return append(all, piece{text, line})
		}
		head := string(runes[:mostInPiece])
		if i := strings.LastIndexByte(head, '\n'); i > 0 {
			all, text, line = append(all, piece{head[:i], line}), text[i+1:], true
			continue
		}
		if i := strings.LastIndex(head, `\u{`); i > 0 && !strings.Contains(head[i:], "}") { // a code point stays whole
			head = head[:i]
		}
		if seen := strings.TrimRight(head, " "); seen != "" { // the spaces are seen where the next begins
			head = seen
		}
		all, text, line = append(all, piece{head, line}), text[len(head):], false
	}
}

func longestRun(text string, of rune) int {
	longest, run := 0, 0
	for _, r := range text {
		if run++; r != of {
			run = 0
		}
		longest = max(longest, run)
	}
	return longest
}
