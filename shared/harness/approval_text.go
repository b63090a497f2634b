package harness

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Text is what a human reads before they decide: all of what will be done, as
// Markdown. Nothing in it is cut, and no character hides: what has no shape of its
// own is written as its code point, and letters that only look like others are
// named.
func (s ApprovalSubject) Text() string {
	if s.Question != "" {
		return s.Question
	}
	var text strings.Builder
	shown := s.command()
	visible := Visible(shown)
	fence := strings.Repeat("`", max(3, longestRun(visible, '`')+1))
	fmt.Fprintf(&text, "%s\n%s\n%s", fence, visible, fence)
	if odd := oddLetters(shown); len(odd) > 0 {
		fmt.Fprintf(&text, "\nIt has letters beyond ASCII: %s", strings.Join(odd, ", "))
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
	return text.String()
}

// command is the text of a command, or the arguments of another tool.
func (s ApprovalSubject) command() string {
	var shell struct {
		Command *string `json:"command"`
	}
	if s.Tool == ToolExecuteShell && json.Unmarshal(s.Arguments, &shell) == nil && shell.Command != nil {
		return *shell.Command
	}
	return s.Tool + " " + string(s.Arguments)
}

// Visible writes every character of text that has no shape, or that changes the
// order of those around it, as its code point.
func Visible(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r == '\n' || r == '\t' || r == ' ' || unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		fmt.Fprintf(&b, `\u{%04x}`, r)
	}
	return b.String()
}

// oddLetters names up to eight letters and digits of text that are not ASCII.
func oddLetters(text string) []string {
	var odd []string
	for _, r := range text {
		name := fmt.Sprintf("%c (U+%04X)", r, r)
		if r > unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsNumber(r)) && !slices.Contains(odd, name) {
			if odd = append(odd, name); len(odd) == 8 {
				break
			}
		}
	}
	return odd
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
