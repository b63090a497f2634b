package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// What both providers take: OpenAI refuses ids above 40 characters, Anthropic
// ids with other characters, both of them such names.
var (
	idShape  = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,40}$`)
	notName  = regexp.MustCompile(`[^a-zA-Z0-9_-]`)
	maxName  = 64
	nameless = "unnamed"
)

func usableID(id string) bool { return idShape.MatchString(id) }

// settleIDs gives every call an id that is usable on both wires and occurs
// nowhere else in the conversation: some providers send none, some the same
// one for every call, some count from zero in every answer.
func settleIDs(history []Turn, calls []Call, now time.Time) {
	seen := map[string]bool{}
	for _, turn := range history {
		for _, call := range turn.Calls {
			seen[call.ID] = true
		}
	}
	for i := range calls {
		if given := calls[i].ID; !usableID(given) || seen[given] {
			calls[i].ID, calls[i].GivenID = string(harness.NewToolCallID(now)), given
		}
		seen[calls[i].ID] = true
	}
}

// malformed says why arguments are not one JSON object, or "" when they are.
// Text that ends too early is told apart from text that is wrong: the first is
// a cut-off answer, which a model can only write again shorter.
func malformed(arguments string) string {
	if strings.TrimSpace(arguments) == "" {
		return "the arguments are empty"
	}
	decoder := json.NewDecoder(strings.NewReader(arguments))
	var value json.RawMessage
	if err := decoder.Decode(&value); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return "the arguments are cut off: the JSON does not end"
		}
		return "the arguments are not JSON"
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return "the arguments are more than one JSON value"
	}
	if !bytes.HasPrefix(value, []byte("{")) {
		return "the arguments are JSON, but not an object"
	}
	return ""
}

// wireArguments is how a call's arguments are shown to the model again. Broken
// ones are wrapped, not repaired: many servers parse the history and would
// refuse it for ever, and nothing executes what is shown here.
func wireArguments(arguments string) json.RawMessage {
	if malformed(arguments) == "" {
		return json.RawMessage(arguments)
	}
	wrapped, err := json.Marshal(map[string]string{"malformed_arguments": arguments})
	if err != nil { // a map of strings always marshals
		panic(err)
	}
	return wrapped
}

// wireName is a tool's name as both providers take it. A model may call what
// does not exist by any name, and has to be told so with that call in the
// history.
func wireName(name string) string {
	name = notName.ReplaceAllString(name, "_")
	if name == "" {
		return nameless
	}
	return name[:min(len(name), maxName)]
}
