package model

import (
	"maps"
	"strings"

	"github.com/anthropics/anthropic-sdk-go/v2"
)

// What a provider refuses in the definition of one tool, it refuses with every
// question that has it: a server that somebody else writes would end every
// conversation of the agent. So definitions are brought to what both take.

// maxDescription is how long the description of a tool may be on OpenAI's wire, in
// characters.
const maxDescription = 1024

func shortDescription(text string) string {
	runes := []rune(text)
	if len(runes) <= maxDescription {
		return text
	}
	return string(runes[:maxDescription-1]) + "…"
}

// choiceWords are what neither provider takes at the top of a schema.
var choiceWords = []string{"oneOf", "anyOf", "allOf", "enum", "not"}

// wireSchema is a schema of an object as both providers take it: without a choice at
// its top, whose properties become properties of the whole that need not be given,
// and with something said of what each array holds. It allows more than the schema
// does; whoever the call is for checks it again.
func wireSchema(parameters map[string]any) map[string]any {
	schema := maps.Clone(parameters)
	if schema == nil {
		schema = map[string]any{}
	}
	schema["type"] = "object"
	var found map[string]any
	for _, word := range choiceWords {
		if branches, ok := schema[word].([]any); ok && strings.HasSuffix(word, "Of") {
			for _, branch := range branches {
				found = gather(found, branch)
			}
		}
		delete(schema, word)
	}
	if len(found) > 0 {
		if own, ok := schema["properties"].(map[string]any); ok {
			maps.Copy(found, own)
		}
		schema["properties"] = found
	}
	filled, _ := withItems(schema).(map[string]any)
	return filled
}

// gather adds the properties of one branch to those found.
func gather(found map[string]any, branch any) map[string]any {
	object, _ := branch.(map[string]any)
	properties, _ := object["properties"].(map[string]any)
	for name, property := range properties {
		if found == nil {
			found = map[string]any{}
		}
		if _, ok := found[name]; !ok {
			found[name] = property
		}
	}
	return found
}

// withItems returns value with items for each array in it that has none. What it
// is given stays as it is.
func withItems(value any) any {
	switch v := value.(type) {
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = withItems(v[i])
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v)+1)
		for name, child := range v {
			out[name] = withItems(child)
		}
		if _, ok := v["items"]; v["type"] == "array" && !ok {
			out["items"] = map[string]any{}
		}
		return out
	}
	return value
}

// keepCallsReadable adds what a history with calls needs where the agent has no
// tools any more: Anthropic refuses calls without any definition. The one tool
// that stands there cannot be called.
func keepCallsReadable(params *anthropic.MessageNewParams, turns []Turn) {
	if len(params.Tools) > 0 {
		return
	}
	for _, turn := range turns {
		if len(turn.Calls) == 0 {
			continue
		}
		params.Tools = []anthropic.ToolUnionParam{{OfTool: &anthropic.ToolParam{
			Name: "none", Description: anthropic.String("There are no tools now."), InputSchema: anthropicSchema(nil),
		}}}
		params.ToolChoice = anthropic.ToolChoiceUnionParam{OfNone: &anthropic.ToolChoiceNoneParam{}}
		return
	}
}
