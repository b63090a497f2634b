package guard

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

	"tuluat.ai/harness/shared/guardrail"
	"tuluat.ai/harness/shared/harness"
)

// view is a subject as guardrails look at it. Of a call that is what it means, not
// how the model spelled it: an escape in JSON hides nothing.
type view struct {
	Subject
	text      string         // of a command, the command; of another call, its arguments as canonical JSON
	texts     []string       // that, and every text in the arguments by itself
	arguments map[string]any // of a call
}

func newView(s Subject) view {
	v := view{Subject: s, text: s.Text, texts: []string{s.Text}}
	if s.Stage != harness.StageToolCall {
		v.texts = append(v.texts, s.FileNames...)
		return v
	}
	arguments, ok := decode(s.Arguments)
	v.arguments, v.text = arguments, string(s.Arguments)
	if ok {
		v.text = encode(arguments)
	}
	if command, err := harness.ShellCommand(s.Arguments); err == nil && s.Tool == harness.ToolExecuteShell {
		v.text = command
	}
	v.texts = []string{v.text, string(s.Arguments)} // as spelled, too: of two members of one name, a tool may take either
	each(v.arguments, func(text string) { v.texts = append(v.texts, text) })
	return v
}

// size is in bytes; of a call, of its arguments as the model wrote them.
func (v view) size() int {
	if v.Stage == harness.StageToolCall {
		return len(v.Arguments)
	}
	return len(v.text)
}

// without blacks out what find finds. ok is false where it would be found again:
// then it is in a place that cannot be blacked out, such as a name in JSON.
func (v view) without(find func(string) []guardrail.Span) (after Subject, ok bool) {
	after = v.Subject
	if v.Stage != harness.StageToolCall {
		after.Text = guardrail.Redact(v.text, find(v.text))
		if slices.ContainsFunc(v.FileNames, func(name string) bool { return len(find(name)) > 0 }) {
			after.FileNames = nil
		}
		return after, !remains(after.Text, find)
	}
	if v.arguments == nil {
		return after, false
	}
	redacted, _ := replace(v.arguments, func(text string) string { return guardrail.Redact(text, find(text)) }).(map[string]any)
	after.Arguments = json.RawMessage(encode(redacted))
	for _, text := range newView(after).texts {
		if remains(text, find) {
			return v.Subject, false
		}
	}
	return after, true
}

// remains reports whether find finds more in text than what stands for something
// that was blacked out.
func remains(text string, find func(string) []guardrail.Span) bool {
	return slices.ContainsFunc(find(text), func(s guardrail.Span) bool {
		return strings.Trim(strings.ReplaceAll(text[s.Start:s.End], guardrail.Redacted, ""), " \n") != ""
	})
}

// decode reads one JSON object. Numbers keep their text.
func decode(text []byte) (map[string]any, bool) {
	var v map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	err := decoder.Decode(&v)
	_, behind := decoder.Token()
	return v, err == nil && v != nil && errors.Is(behind, io.EOF)
}

// encode writes v as people would: < and & are themselves.
func encode(v any) string {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil { // what was decoded encodes
		panic(err)
	}
	return string(bytes.TrimRight(text.Bytes(), "\n"))
}

// each calls do with every name, text and number in v.
func each(v any, do func(text string)) {
	switch v := v.(type) {
	case string:
		do(v)
	case json.Number:
		do(v.String())
	case []any:
		for _, item := range v {
			each(item, do)
		}
	case map[string]any:
		for name, item := range v {
			do(name)
			each(item, do)
		}
	}
}

// replace returns v with every text, and every number that do changes, replaced.
func replace(v any, do func(text string) string) any {
	switch v := v.(type) {
	case string:
		return do(v)
	case json.Number:
		if text := do(v.String()); text != v.String() {
			return text
		}
	case []any:
		all := make([]any, len(v))
		for i, item := range v {
			all[i] = replace(item, do)
		}
		return all
	case map[string]any:
		all := make(map[string]any, len(v))
		for name, item := range v {
			all[name] = replace(item, do)
		}
		return all
	}
	return v
}
