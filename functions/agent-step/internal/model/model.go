// Package model asks a language model for the next turn of a conversation.
//
// One Client speaks two wires: OpenAI's chat completions, which is also what
// Ollama, vLLM and most gateways speak, and Anthropic's messages. A call is
// one HTTP request, never repeated here: whoever called decides from the
// *Error whether and when to try again, and keeps that decision in a row.
//
// What holds for every call:
//
//   - A history that is not well paired is refused before it is sent.
//   - Every Call of a Response has an id that is unique in the conversation.
//   - Arguments are kept as the model wrote them, also when they are broken.
//   - Only calls of a Response whose Stop is StopToolCalls may be executed.
//   - No key is ever part of an error.
package model

import (
	"encoding/json"

	"tuluat.ai/harness/shared/harness"
)

// Role says who speaks in a Turn.
type Role string

// The roles of a Turn.
const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool" // the results of the calls before it
)

// Request is one question to the model.
type Request struct {
	Agent  harness.ModelSpec // an empty provider or name means the client's
	System string
	Turns  []Turn // begins with a user's turn, ends with a user's or a tool's
	Tools  []Tool

	// IdempotencyKey is sent as the header of that name when it is not empty.
	// Neither provider promises to honour it; gateways and logs may.
	IdempotencyKey string

	// Partial, where it is not nil, is told the text of the answer so far, again and
	// again while the model writes: the answer is then asked for in pieces. The
	// Response is the same. It is called by Complete's own goroutine and holds up
	// the reading of the answer.
	Partial func(text string)

	// CacheKey is the same for questions that begin alike: those of a conversation.
	// Where a provider asks for it, it finds by it what it has kept. May be empty.
	CacheKey string
}

// Turn is one entry of the history.
type Turn struct {
	Role    Role
	Text    string
	Images  []Image         // of a user's turn, behind its text
	Calls   []Call          // of an assistant's turn
	Results []Result        // of a tool's turn
	Carry   json.RawMessage // of an assistant's turn: Response.Carry, unchanged
}

// Image is a picture that a model looks at.
type Image struct {
	MimeType string // image/jpeg, image/png, image/gif or image/webp
	Data     []byte
	Key      string // under which whoever asks keeps it; it is not sent
}

// Call is one tool call the model asked for.
type Call struct {
	// ID pairs the call with its result. It is the provider's own id when that
	// is usable and new in the conversation, else one of ours.
	ID string

	// GivenID is the provider's id where ID is not that.
	GivenID string

	Name      string
	Arguments string // exactly as the model wrote them

	// Malformed says in words why Arguments are not one JSON object; empty when
	// they are. A malformed call must not be executed.
	Malformed string
}

// Result is what became of one Call.
type Result struct {
	CallID string
	Name   string
	Text   string
	Failed bool // the call could not be done; Text says why
}

// Tool is something the model may call.
type Tool struct {
	Name        string
	Description string
	Parameters  map[string]any // JSON schema of an object
}

// Stop says why the model stopped.
type Stop string

// The ways a model stops.
const (
	StopEnd       Stop = "END"        // it said what it had to say
	StopToolCalls Stop = "TOOL_CALLS" // it waits for the results of its calls
	StopTruncated Stop = "TRUNCATED"  // it was cut off; its calls are not to be believed
	StopRefused   Stop = "REFUSED"    // it, or its provider's filter, would not answer
)

// Response is the model's turn.
type Response struct {
	Text  string
	Calls []Call
	Stop  Stop
	Usage Usage
	Model string // as the provider names it

	// Carry is what the provider wants back with this turn, unchanged: signed
	// thoughts, for example. Empty for most. It belongs in Turn.Carry; without
	// it some models refuse a history with calls.
	Carry json.RawMessage
}

// Usage counts tokens. Estimated says that the provider reported none and the
// figures are a quarter of the bytes, so that no budget is ever free.
type Usage struct {
	InputTokens      int64 // all of them: those of the next two are among them
	CacheReadTokens  int64 // that the provider had kept of an earlier question
	CacheWriteTokens int64 // that it keeps of this one, where it charges for that
	OutputTokens     int64
	Estimated        bool
}

// Tokens are u as prices know it.
func (u Usage) Tokens() harness.Tokens {
	return harness.Tokens{Input: u.InputTokens, CacheRead: u.CacheReadTokens, CacheWrite: u.CacheWriteTokens, Output: u.OutputTokens}
}

// EstimatedTokens is a rough upper bound of what r costs as input, for
// reservations and for calls whose answer was lost: a quarter of the bytes
// and a few tokens per entry.
func (r Request) EstimatedTokens() int64 {
	size := len(r.System)
	for _, turn := range r.Turns {
		size += 16 + len(turn.Text) + len(turn.Carry) + len(turn.Images)*imageTokens*bytesPerToken
		for _, call := range turn.Calls {
			size += 64 + len(call.Name) + len(call.Arguments)
		}
		for _, result := range turn.Results {
			size += 64 + len(result.Text)
		}
	}
	for _, tool := range r.Tools {
		schema, err := json.Marshal(tool.Parameters)
		if err != nil { // Complete will refuse it; an estimate need not
			continue
		}
		size += 64 + len(tool.Name) + len(tool.Description) + len(schema)
	}
	return int64(size)/bytesPerToken + 1
}

const (
	bytesPerToken = 4

	// imageTokens is what a picture costs at most with the providers that say it:
	// they make larger ones smaller before a model looks at them.
	imageTokens = 1600
)
