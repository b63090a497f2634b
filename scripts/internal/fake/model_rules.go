package fake

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
)

// rule is one that a request can break, by its name. A request that breaks one is
// answered as the provider answers it, and counted under the rule.
//
// Where they come from: the providers' API references (platform.openai.com, Create
// chat completion; platform.claude.com, Messages), whose fields stand in
// openai-go v3.98 (ChatCompletionNewParams) and anthropic-sdk-go v2.15
// (MessageNewParams), and what people report of refusals that no reference tells:
// those have their own source.
type rule string

// What both wires have.
const (
	ruleSize     rule = "size"     // a body is read up to a limit
	ruleAddress  rule = "address"  // only what there is can be asked
	ruleKey      rule = "key"      // a key is known
	ruleJSON     rule = "json"     // a body is one JSON value
	ruleTypes    rule = "types"    // of the types that its fields have
	ruleFields   rule = "fields"   // without fields that nobody knows
	ruleModel    rule = "model"    // a model is named, and exists
	ruleMessages rule = "messages" // there is a message, and one is a user's
	ruleLimit    rule = "limit"    // max_tokens, where it has to be, as it has to be
	ruleSampling rule = "sampling" // temperature and its like, within their bounds, where they may be
	ruleStream   rule = "stream"   // stream_options only with stream
	ruleRole     rule = "role"     // roles are known
	ruleSystem   rule = "system"   // the system prompt is where it has to be
	ruleContent  rule = "content"  // content is there, of the parts that its role may have
	ruleImage    rule = "image"    // images are of the four types, and are what they say

	ruleToolForm    rule = "tool-form"    // a tool is a function with a name of [a-zA-Z0-9_-]{1,64}
	ruleToolName    rule = "tool-name"    // that no other tool has
	ruleToolSchema  rule = "tool-schema"  // its parameters are a schema of an object, without a choice at its top: MoonshotAI/kimi-code#2328
	ruleToolChoice  rule = "tool-choice"  // tool_choice and its like only with tools
	ruleCallID      rule = "call-id"      // 1 to 40 characters (langmanus/langmanus#119); [a-zA-Z0-9_-]+
	ruleCallTwice   rule = "call-twice"   // an id is one call's
	ruleCallForm    rule = "call-form"    // a call is of a function with a tool's name
	ruleArguments   rule = "arguments"    // arguments are a JSON object, or its text
	ruleUnanswered  rule = "unanswered"   // each call has its result directly behind its message
	ruleOrphan      rule = "orphan"       // each result has its call there, and is its only one
	ruleLastMessage rule = "last-message" // the last message is not the model's own
)

// What OpenAI's alone has.
const (
	ruleTwoLimits   rule = "two-limits"       // max_tokens or max_completion_tokens
	ruleManyTools   rule = "many-tools"       // 128 tools at most: vishalmysore/Tools4AI#16
	ruleDescription rule = "tool-description" // 1024 characters of a tool's description at most: getsentry/sentry-mcp#106
	ruleItems       rule = "tool-items"       // an array in a schema says of what: ogx-ai/ogx#3602
)

// What Anthropic's alone has.
const (
	ruleVersion    rule = "version"     // the header anthropic-version
	ruleFirst      rule = "first"       // the first message is a user's
	ruleAlternate  rule = "alternate"   // roles alternate; the API itself puts neighbours together, servers that imitate it refuse them
	ruleBlank      rule = "blank"       // no blank text
	ruleTrailing   rule = "trailing"    // a last message that is the model's own does not end in a blank: crewAIInc/crewAI#4620
	ruleOrder      rule = "order"       // results come before all else in their message
	ruleToolsKnown rule = "tools-known" // a history with calls needs tools: camel-ai/owl#532
	ruleKeys       rule = "tool-keys"   // names of parameters are of [a-zA-Z0-9_.-]{1,64}: decocms/studio#6874
	ruleSignature  rule = "signature"   // a thought comes back with its signature, unchanged: anthropics/anthropic-sdk-python#1598
	ruleThought    rule = "thought"     // with thinking on, the calls of the last turn come back behind their thought: lbjlaq/Antigravity-Manager#139
	ruleThinking   rule = "thinking"    // budget_tokens is at least 1024 and below max_tokens
	ruleCache      rule = "cache"       // cache_control is ephemeral, and at most at four places: continuedev/continue#6937
)

// rulesOf says which rules each wire has.
var rulesOf = map[string][]rule{
	wireOpenAI: {
		ruleSize, ruleAddress, ruleKey, ruleJSON, ruleTypes, ruleFields, ruleModel, ruleMessages, ruleLimit, ruleSampling, ruleStream, ruleRole, ruleSystem, ruleContent, ruleImage,
		ruleToolForm, ruleToolName, ruleToolSchema, ruleToolChoice, ruleCallID, ruleCallTwice, ruleCallForm, ruleArguments, ruleUnanswered, ruleOrphan,
		ruleTwoLimits, ruleManyTools, ruleDescription, ruleItems,
	},
	wireAnthropic: {
		ruleSize, ruleKey, ruleJSON, ruleTypes, ruleFields, ruleModel, ruleMessages, ruleLimit, ruleSampling, ruleRole, ruleSystem, ruleContent, ruleImage,
		ruleToolForm, ruleToolName, ruleToolSchema, ruleToolChoice, ruleCallID, ruleCallTwice, ruleCallForm, ruleArguments, ruleUnanswered, ruleOrphan, ruleLastMessage,
		ruleVersion, ruleFirst, ruleAlternate, ruleBlank, ruleTrailing, ruleOrder, ruleToolsKnown, ruleKeys, ruleSignature, ruleThought, ruleThinking, ruleCache,
	},
}

// Faults returns how many requests broke each rule of the wires, as "openai/role",
// since the model was made. It is empty where none did. What a Script refuses
// breaks no rule.
func (m *Model) Faults() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.faults)
}

func (m *Model) fault(wire string, broken rule) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults[wire+"/"+string(broken)]++
}

func invalid(broken rule, format string, args ...any) *refusal {
	return &refusal{Status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...), broken: broken}
}

// decode reads a JSON value strictly, and says which rule it breaks otherwise.
func decode(text []byte, into any) (rule, error) {
	if err := json.Unmarshal(text, new(any)); err != nil {
		return ruleJSON, err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return ruleTypes, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return ruleFields, err
	}
	return "", nil
}

// outside reports whether a figure is there and not from low to high.
func outside(figure *float64, low, high float64) bool {
	return figure != nil && !(*figure >= low && *figure <= high)
}

// choices are what neither provider takes at the top of a tool's schema.
var choices = []string{"oneOf", "anyOf", "allOf", "enum", "not"}

func topChoice(schema map[string]any) bool {
	for _, word := range choices {
		if _, ok := schema[word]; ok {
			return true
		}
	}
	return false
}

// withoutItems finds an array in a schema that does not say of what it is.
func withoutItems(schema any) bool {
	switch s := schema.(type) {
	case []any:
		for _, each := range s {
			if withoutItems(each) {
				return true
			}
		}
	case map[string]any:
		if _, ok := s["items"]; s["type"] == "array" && !ok {
			return true
		}
		for _, each := range s {
			if withoutItems(each) {
				return true
			}
		}
	}
	return false
}

// isImage reports whether data is base64 of an image of a type that both take, and
// of the type that it is said to be.
func isImage(mimeType, data string) bool {
	raw, err := base64.StdEncoding.DecodeString(data)
	return err == nil && contains(imageTypes, mimeType) && http.DetectContentType(raw) == mimeType
}
