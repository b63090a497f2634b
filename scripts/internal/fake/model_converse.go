package fake

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/shared/harness"
)

const understood = `I understand:
  run: COMMAND             runs a command in the sandbox and tells its output and exit code
  run twice: A ;; B        runs two commands with one answer of mine
  use: TOOL {"a": 1}       calls a tool of this agent and tells what it returned
  hello                    greets you
  choices: A | B | C       lets you tap one of them
  history                  repeats what you said earlier (also: what did I say?)
  count                    counts your messages
  think: N                 answers after N seconds, at most 30
  help                     shows this`

const maxThink = 30 * time.Second

// converse answers the last message of chat, and says how long to wait before
// answering.
func converse(chat conversation) (answer, time.Duration) {
	text := lastUserText(chat)
	said, wait := answer{}, time.Duration(0)
	if results := lastResults(chat); len(results) > 0 {
		said.Text = report(results)
	} else {
		said, wait = reply(chat, text)
	}
	said.ID = conversationID(chat)
	said.Stop = "end"
	if len(said.Calls) > 0 {
		said.Stop = "tool_calls"
		for i := range said.Calls {
			said.Calls[i].ID = callID(chat, i)
		}
	}
	return said, wait
}

func reply(chat conversation, text string) (answer, time.Duration) {
	trimmed := withoutFiles(text)
	word := strings.ToLower(strings.TrimRight(trimmed, " .!?"))
	switch word {
	case "help":
		return answer{Text: understood}, 0
	case "hello", "hi":
		return answer{Text: "Hello! I am a deterministic stand-in for a language model. Say help to see what I understand."}, 0
	case "history", "what did i say":
		return answer{Text: history(chat)}, 0
	case "count":
		return answer{Text: fmt.Sprintf("You have sent %d messages in this conversation.", len(userTexts(chat)))}, 0
	}
	if commands, ok := after(trimmed, "run twice:"); ok {
		first, second, found := strings.Cut(commands, ";;")
		if !found {
			return answer{Text: "Two commands need ;; between them: run twice: A ;; B"}, 0
		}
		return run(chat, first, second), 0
	}
	if command, ok := after(trimmed, "run:"); ok {
		return run(chat, command), 0
	}
	if wanted, ok := after(trimmed, "use:"); ok {
		return use(chat, wanted), 0
	}
	if titles, ok := after(trimmed, "choices:"); ok {
		return choose(chat, titles), 0
	}
	if seconds, ok := after(trimmed, "think:"); ok {
		n, err := strconv.ParseFloat(seconds, 64)
		wait := time.Duration(n * float64(time.Second))
		if err != nil || !(n >= 0 && n <= maxThink.Seconds()) { // also NaN
			return answer{Text: "I can think for 0 to 30 seconds: think: 5"}, 0
		}
		return answer{Text: fmt.Sprintf("I thought for %s seconds.", seconds)}, wait
	}
	return answer{Text: fmt.Sprintf(
		"I am a deterministic stand-in, not a language model, so I can only repeat what you said: %s\n\n%s", text, understood)}, 0
}

func run(chat conversation, commands ...string) answer {
	if !slices.Contains(chat.Tools, harness.ToolExecuteShell) {
		return answer{Text: "I cannot run commands here: this agent has no " + harness.ToolExecuteShell + " tool."}
	}
	said := answer{}
	for _, command := range commands {
		command = strings.TrimSpace(command)
		if command == "" {
			return answer{Text: "There is no command after run: - try run: echo hello"}
		}
		arguments, err := json.Marshal(map[string]string{"command": command})
		if err != nil { // a map of strings always marshals
			panic(err)
		}
		said.Calls = append(said.Calls, call{Name: harness.ToolExecuteShell, Arguments: string(arguments)})
	}
	return said
}

// use calls the tool that text begins with, with the JSON object behind it.
func use(chat conversation, text string) answer {
	name, arguments, _ := strings.Cut(strings.TrimSpace(text), " ")
	if arguments = strings.TrimSpace(arguments); arguments == "" {
		arguments = "{}"
	}
	switch {
	case !slices.Contains(chat.Tools, name):
		return answer{Text: fmt.Sprintf("I have no tool %q. I have: %s", name, strings.Join(chat.Tools, ", "))}
	case !json.Valid([]byte(arguments)):
		return answer{Text: `What is behind the tool's name is no JSON object: use: TOOL {"a": 1}`}
	}
	return answer{Calls: []call{{Name: name, Arguments: arguments}}}
}

// withoutFiles is what a person wrote, without the lines in which the agent is
// told of files.
func withoutFiles(text string) string {
	var said []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "[A file came with this message: ") {
			said = append(said, line)
		}
	}
	return strings.TrimSpace(strings.Join(said, ""))
}

func choose(chat conversation, titles string) answer {
	if !slices.Contains(chat.Tools, harness.ToolOfferChoices) {
		return answer{Text: "I cannot offer choices here: this agent has no " + harness.ToolOfferChoices + " tool."}
	}
	offered := []map[string]string{}
	for title := range strings.SplitSeq(titles, "|") {
		offered = append(offered, map[string]string{"title": strings.TrimSpace(title)})
	}
	arguments, err := json.Marshal(map[string]any{"text": "Which one?", "choices": offered})
	if err != nil { // plain values
		panic(err)
	}
	return answer{Calls: []call{{Name: harness.ToolOfferChoices, Arguments: string(arguments)}}}
}

// report tells what the tools answered. A result that is a JSON object with an
// exit code is told as output and exit code; any other as it is.
func report(results []result) string {
	var parts []string
	for i, r := range results {
		text := plain(r.Text)
		if r.Failed {
			text = "It could not be done: " + text
		}
		if len(results) > 1 {
			text = fmt.Sprintf("Command %d:\n%s", i+1, text)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "\n\n")
}

func plain(text string) string {
	var fields struct {
		Output   *string `json:"output"`
		Stdout   *string `json:"stdout"`
		Stderr   *string `json:"stderr"`
		ExitCode *int    `json:"exitCode"`
	}
	if json.Unmarshal([]byte(text), &fields) != nil || fields.ExitCode == nil {
		return text
	}
	var b strings.Builder
	for _, part := range []*string{fields.Output, fields.Stdout, fields.Stderr} {
		if part != nil && strings.TrimSpace(*part) != "" {
			b.WriteString(strings.TrimRight(*part, "\n") + "\n")
		}
	}
	return fmt.Sprintf("%sexit code %d", b.String(), *fields.ExitCode)
}

func history(chat conversation) string {
	texts := userTexts(chat)
	earlier := texts[:len(texts)-1]
	if len(earlier) == 0 {
		return "This is the first thing you said to me."
	}
	var b strings.Builder
	b.WriteString("You said:")
	for i, text := range earlier {
		fmt.Fprintf(&b, "\n%d. %s", i+1, text)
	}
	return b.String()
}

func after(text, prefix string) (string, bool) {
	if len(text) < len(prefix) || !strings.EqualFold(text[:len(prefix)], prefix) {
		return "", false
	}
	return strings.TrimSpace(text[len(prefix):]), true
}

func userTexts(chat conversation) []string {
	var texts []string
	for _, t := range chat.Turns {
		if t.Role == "user" {
			texts = append(texts, t.Text)
		}
	}
	return texts
}

func firstUserText(chat conversation) string {
	if texts := userTexts(chat); len(texts) > 0 {
		return texts[0]
	}
	return ""
}

func lastUserText(chat conversation) string {
	if texts := userTexts(chat); len(texts) > 0 {
		return texts[len(texts)-1]
	}
	return ""
}

// lastResults returns the results the conversation ends with.
func lastResults(chat conversation) []result {
	var results []result
	for i := len(chat.Turns) - 1; i >= 0 && chat.Turns[i].Role == "tool"; i-- {
		results = append(chat.Turns[i].Results[:len(chat.Turns[i].Results):len(chat.Turns[i].Results)], results...)
	}
	return results
}

// conversationID names an answer by what it answers.
func conversationID(chat conversation) string {
	text, err := json.Marshal(chat.Turns)
	if err != nil { // plain values
		panic(err)
	}
	return digest(string(text))[:24]
}

func callID(chat conversation, i int) string {
	return digest(conversationID(chat) + "/" + strconv.Itoa(i))[:24]
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func contains(list []string, s string) bool { return slices.Contains(list, s) }
