package model

import (
	"encoding/json"

	"tuluat.ai/harness/shared/harness"
)

// carry is what Response.Carry holds. It goes back only to the model it came
// from: signatures of one mean nothing to another.
type carry struct {
	Provider harness.Provider  `json:"provider"`
	Model    string            `json:"model"`
	Extras   []json.RawMessage `json:"extras,omitempty"` // per call; null where there is none
	Blocks   []carriedBlock    `json:"blocks,omitempty"` // the answer's blocks in their order
}

// carriedBlock is one block of an Anthropic answer that held thoughts. A block
// of type tool_use stands for the next call of the turn.
type carriedBlock struct {
	Type      string `json:"type"`
	Text      string `json:"text,omitempty"`
	Thinking  string `json:"thinking,omitempty"`
	Signature string `json:"signature,omitempty"`
	Data      string `json:"data,omitempty"`
}

// extraContent is the field of a tool call in which some servers put the
// signature of the thought behind it, and without which they refuse the call
// in a history.
const extraContent = "extra_content"

func extraOf(call string) json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(call), &fields) != nil {
		return nil
	}
	return fields[extraContent]
}

func carryExtras(provider harness.Provider, model string, extras []json.RawMessage) json.RawMessage {
	for _, extra := range extras {
		if extra != nil {
			return carry{Provider: provider, Model: model, Extras: extras}.encode()
		}
	}
	return nil
}

// carriedExtras returns the extra of each call of turn, or nothing.
func carriedExtras(provider harness.Provider, model string, turn Turn) []json.RawMessage {
	c := decodeCarry(provider, model, turn.Carry)
	if len(c.Extras) != len(turn.Calls) {
		return nil
	}
	for i, extra := range c.Extras {
		if string(extra) == "null" {
			c.Extras[i] = nil
		}
	}
	return c.Extras
}

// carriedBlocks returns the blocks of turn's answer, or nothing when they do
// not fit its calls.
func carriedBlocks(provider harness.Provider, model string, turn Turn) []carriedBlock {
	c := decodeCarry(provider, model, turn.Carry)
	calls := 0
	for _, block := range c.Blocks {
		if block.Type == blockToolUse {
			calls++
		}
	}
	if calls != len(turn.Calls) {
		return nil
	}
	return c.Blocks
}

func (c carry) encode() json.RawMessage {
	text, err := json.Marshal(c)
	if err != nil { // its raw parts came out of valid JSON
		panic(err)
	}
	return text
}

// decodeCarry returns nothing for what is not ours: a turn without its carry
// is still a turn.
func decodeCarry(provider harness.Provider, model string, text json.RawMessage) carry {
	var c carry
	if len(text) == 0 || json.Unmarshal(text, &c) != nil || c.Provider != provider || c.Model != model {
		return carry{}
	}
	return c
}
