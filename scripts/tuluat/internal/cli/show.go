package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"tuluat.ai/harness/scripts/tuluat/internal/sse"
	"tuluat.ai/harness/shared/harness"
)

// visible returns text fit for a terminal: what would move the cursor, change
// colours, set titles or turn the writing direction is shown as a mark instead.
// Line breaks and tabs stay.
func visible(text string) string {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	if !strings.ContainsFunc(text, hidden) && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case !hidden(r):
			b.WriteRune(r)
		case r < 0x20:
			b.WriteString("^" + string(r+'@'))
		case r == 0x7f:
			b.WriteString("^?")
		default:
			fmt.Fprintf(&b, "<U+%04X>", r)
		}
	}
	return b.String()
}

func hidden(r rune) bool {
	if r == '\n' || r == '\t' {
		return false
	}
	switch r {
	case 0x061c, 0x200e, 0x200f, 0x2028, 0x2029, 0xfeff: // direction marks, line separators, byte order mark
		return true
	}
	return unicode.IsControl(r) || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r >= 0xe0000 && r <= 0xe007f
}

// screen prints a conversation: answers to answers, everything else to asides.
type screen struct {
	answers, asides io.Writer
	dim             bool // asides are dimmed: they share the terminal with answers

	calls map[harness.ToolCallID]*call
	draft bool // the line where the cursor is shows an answer that is still written
}

// call is a tool call that runs: the line it is printing.
type call struct{ pending map[string]string }

func newScreen(answers, asides io.Writer, dim bool) *screen {
	return &screen{answers: answers, asides: asides, dim: dim, calls: map[harness.ToolCallID]*call{}}
}

func (s *screen) aside(indent, text string) {
	s.erase()
	before, after := "", ""
	if s.dim {
		before, after = "\x1b[2m", "\x1b[0m"
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(visible(text), "\n"), "\n") {
		fmt.Fprintln(s.asides, before+indent+line+after)
	}
}

func (s *screen) answer(text string) {
	s.erase()
	fmt.Fprintln(s.answers, strings.TrimSuffix(visible(text), "\n"))
}

const indent = "  "

// offer shows choices under the numbers that press them.
func (s *screen) offer(choices []harness.Choice) {
	for i, c := range choices {
		text := fmt.Sprintf("[%d] %s", i+1, c.Title)
		if c.Description != "" {
			text += ": " + c.Description
		}
		s.aside(indent, text)
	}
}

// pressed is the place, from 0, of the choice whose number line is; false: it is
// something to say.
func pressed(line string, choices int) (int, bool) {
	n, err := strconv.Atoi(line)
	return n - 1, err == nil && n >= 1 && n <= choices
}

// show prints what happens on the way to an answer.
func (s *screen) show(e sse.Event) {
	switch e.Name {
	case "draft":
		s.written(e.Text)
	case "tool_call":
		s.calls[e.ToolCall] = &call{pending: map[string]string{}}
		s.aside("", commandLine(e.ToolName, e.Arguments))
	case "output":
		c := s.calls[e.ToolCall]
		if c == nil { // it began before we came
			c = &call{pending: map[string]string{}}
			s.calls[e.ToolCall] = c
		}
		text := c.pending[e.Stream] + e.Text
		end := strings.LastIndexByte(text, '\n') + 1
		if end > 0 {
			s.aside(indent, text[:end])
		}
		c.pending[e.Stream] = text[end:]
	case "tool_result":
		if c := s.calls[e.ToolCall]; c != nil {
			for _, stream := range []string{"stdout", "stderr"} {
				if rest := c.pending[stream]; rest != "" {
					s.aside(indent, rest)
				}
			}
			delete(s.calls, e.ToolCall)
		}
		s.aside(indent, ending(e))
	}
}

// commandLine is how a call is shown: executeShell as one types it.
func commandLine(name, arguments string) string {
	var shell struct {
		Command string `json:"command"`
	}
	if name == harness.ToolExecuteShell && json.Unmarshal([]byte(arguments), &shell) == nil && shell.Command != "" {
		return name + " $ " + shell.Command
	}
	return name + " " + arguments
}

// ending says how a call ended.
func ending(e sse.Event) string {
	if x := e.Execution; x != nil {
		switch {
		case x.ExitCode != nil && (x.State == harness.ExecutionCompleted || x.State == harness.ExecutionFailed):
			return fmt.Sprint("exit ", *x.ExitCode)
		case x.Reason != "":
			return words(string(x.State)) + ": " + x.Reason
		default:
			return words(string(x.State))
		}
	}
	if e.State == string(harness.ToolCallDone) {
		return "done"
	}
	first, _, _ := strings.Cut(e.Result, "\n")
	return words(e.State) + ": " + first
}

func words(state string) string { return strings.ToLower(strings.ReplaceAll(state, "_", " ")) }

// terminal reports whether f is one: a character device that is not the null
// device.
func terminal(f any) bool {
	file, ok := f.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}
