//go:build system

package system_test

import (
	"fmt"
	"slices"
	"strings"
)

// What agent-step tells of a command that did not simply end, in the words of
// its executionText and of the reasons that sandbox-exec gives.
var (
	toldNotStarted = []string{"The command was not started", "nothing was started", "I stopped: this message used up its limit of"}
	toldUnknown    = []string{
		"It is unknown whether the command ran", "The sandbox disappeared while the command ran", "its outcome is unknown",
		"nothing is known of this call's outcome", "its outcome could not be had",
	}
	toldEnded = []string{"The command ran longer than its time limit", "The command used more memory", "The command used more disk"}
)

func says(text string, words []string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
}

// verdict is the sum of what the receiver and the evidence show.
type verdict struct {
	messages, answered           int
	duplicates, misplaced, wrong int // callbacks beyond the first, out of order, that answer something else

	commands, started, twice int // by the evidence
	ran, notStarted, ended   int // as told: with its output, not started, ended by a limit
	unknownBegun, unknownNot int // told as unknown, with and without evidence of a start
	untold, untrue           int // not told at all, told otherwise than the evidence shows

	bad map[string][]string // faults by message id
}

func (v *verdict) fault(m message, format string, args ...any) {
	v.bad[m.id] = append(v.bad[m.id], fmt.Sprintf(format, args...))
}

// judge compares what was sent with the raw callbacks and with the evidence.
func (w *world) judge(chats [][]message) *verdict {
	w.t.Helper()
	return w.judgeThese(chats, w.receiver.callbacks(), w.readEvidence(startsFile))
}

// judgeThese is judge of some of the callbacks and of the starts of commands.
func (w *world) judgeThese(chats [][]message, callbacks []callback, starts map[string][]string) *verdict {
	w.t.Helper()
	v := &verdict{bad: map[string][]string{}}
	ends := w.readEvidence(endsFile)
	answers := map[string][]callback{}
	last := map[string]int{} // per chat, the number answered last
	known := map[string]message{}
	for _, chat := range chats {
		for _, m := range chat {
			known[m.id] = m
		}
	}
	for _, c := range callbacks {
		m, ok := known[c.InReplyTo]
		if !ok || m.chat != c.Chat || c.ChannelUserID != "user-"+m.chat {
			v.fault(message{id: "(none)"}, "a callback that answers nothing of its chat: %+v", c)
			continue
		}
		answers[m.id] = append(answers[m.id], c)
		if len(answers[m.id]) > 1 {
			v.duplicates++
			v.fault(m, "callback %d to it: reply %s, the first was %s", len(answers[m.id]), c.ReplyID, answers[m.id][0].ReplyID)
			continue
		}
		if m.number != last[m.chat]+1 {
			v.misplaced++
			v.fault(m, "answered after number %d of its chat", last[m.chat])
		}
		last[m.chat] = m.number
	}
	for _, chat := range chats {
		for _, m := range chat {
			v.messages++
			v.message(m, answers[m.id], starts, ends)
			for _, c := range m.commands {
				delete(starts, c.id)
			}
		}
	}
	for id := range starts {
		v.fault(message{id: id}, "evidence of a command that nobody asked for")
	}
	return v
}

func (v *verdict) message(m message, answers []callback, starts, ends map[string][]string) {
	if len(answers) == 0 {
		v.fault(m, "no answer")
	} else {
		v.answered++
	}
	if len(m.commands) == 0 {
		if len(answers) > 0 && !strings.Contains(answers[0].Text, m.text) {
			v.wrong++
			v.fault(m, "its answer is none: %q", answers[0].Text)
		}
		return
	}
	for i, c := range m.commands {
		v.commands++
		text := ""
		if len(answers) > 0 {
			text = part(answers[0].Text, i, len(m.commands))
		}
		v.command(m, c, text, starts[c.id], ends[c.id])
	}
}

// part is what an answer tells of the ith of n commands.
func part(text string, i, n int) string {
	if n == 1 || !strings.Contains(text, "Command 1:\n") {
		return text
	}
	_, text, found := strings.Cut(text, fmt.Sprintf("Command %d:\n", i+1))
	if !found {
		return ""
	}
	text, _, _ = strings.Cut(text, fmt.Sprintf("\n\nCommand %d:\n", i+2))
	return text
}

func (v *verdict) command(m message, c command, told string, starts, ends []string) {
	if len(starts) > 0 {
		v.started++
	}
	if len(starts) > 1 {
		v.twice++
		v.fault(m, "command %s was started %d times: %q", c.id, len(starts), starts)
	}
	switch {
	case strings.Contains(told, c.result()):
		v.ran++
		if len(starts) == 0 || len(ends) == 0 {
			v.untrue++
			v.fault(m, "the answer shows output of command %s, which left %d starts and %d ends", c.id, len(starts), len(ends))
		}
		if !strings.Contains(told, fmt.Sprintf("exit code %d", c.exit)) {
			v.untrue++
			v.fault(m, "the answer does not tell the exit code %d of command %s: %q", c.exit, c.id, told)
		}
	case says(told, toldNotStarted):
		v.notStarted++
		if len(starts) > 0 {
			v.untrue++
			v.fault(m, "the answer says that command %s was not started, and it was: %q", c.id, told)
		}
	case says(told, toldUnknown) && len(starts) > 0:
		v.unknownBegun++
	case says(told, toldUnknown):
		v.unknownNot++
	case says(told, toldEnded) && len(starts) > 0:
		v.ended++
	default:
		v.untold++
		v.fault(m, "command %s left %d starts and %d ends, and the answer tells none of it: %q", c.id, len(starts), len(ends), told)
	}
}
