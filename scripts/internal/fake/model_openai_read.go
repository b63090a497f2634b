package fake

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"unicode/utf8"
)

// openAIRequest has every field that the API knows; what a stand-in has no use for
// is not looked into.
type openAIRequest struct {
	Model               string           `json:"model"`
	Messages            []openAIMessage  `json:"messages"`
	Tools               []openAITool     `json:"tools"`
	ToolChoice          json.RawMessage  `json:"tool_choice"`
	ParallelToolCalls   *bool            `json:"parallel_tool_calls"`
	MaxTokens           *int64           `json:"max_tokens"`
	MaxCompletionTokens *int64           `json:"max_completion_tokens"`
	Temperature         *float64         `json:"temperature"`
	TopP                *float64         `json:"top_p"`
	FrequencyPenalty    *float64         `json:"frequency_penalty"`
	PresencePenalty     *float64         `json:"presence_penalty"`
	Stop                json.RawMessage  `json:"stop"`
	Seed                *int64           `json:"seed"`
	User                string           `json:"user"`
	N                   *float64         `json:"n"`
	Stream              bool             `json:"stream"`
	StreamOptions       *openAIStreaming `json:"stream_options"`

	Audio                json.RawMessage `json:"audio"`
	LogitBias            json.RawMessage `json:"logit_bias"`
	Logprobs             json.RawMessage `json:"logprobs"`
	Metadata             json.RawMessage `json:"metadata"`
	Modalities           json.RawMessage `json:"modalities"`
	Moderation           json.RawMessage `json:"moderation"`
	Prediction           json.RawMessage `json:"prediction"`
	PromptCacheKey       string          `json:"prompt_cache_key"`
	PromptCacheOptions   json.RawMessage `json:"prompt_cache_options"`
	PromptCacheRetention string          `json:"prompt_cache_retention"`
	ReasoningEffort      string          `json:"reasoning_effort"`
	ResponseFormat       json.RawMessage `json:"response_format"`
	SafetyIdentifier     string          `json:"safety_identifier"`
	ServiceTier          string          `json:"service_tier"`
	Store                *bool           `json:"store"`
	TopLogprobs          *int64          `json:"top_logprobs"`
	Verbosity            string          `json:"verbosity"`
	WebSearchOptions     json.RawMessage `json:"web_search_options"`
}

type openAIStreaming struct {
	IncludeUsage       bool  `json:"include_usage"`
	IncludeObfuscation *bool `json:"include_obfuscation"`
}

type openAIMessage struct {
	Role       string            `json:"role"`
	Content    json.RawMessage   `json:"content"`
	Name       *string           `json:"name"`
	Refusal    *string           `json:"refusal"`
	ToolCalls  *[]openAIToolCall `json:"tool_calls"`
	ToolCallID *string           `json:"tool_call_id"`
}

type openAIPart struct {
	Type     string  `json:"type"`
	Text     *string `json:"text"`
	Refusal  *string `json:"refusal"`
	ImageURL *struct {
		URL    string `json:"url"`
		Detail string `json:"detail"`
	} `json:"image_url"`
}

type openAITool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string         `json:"name"`
		Description string         `json:"description"`
		Parameters  map[string]any `json:"parameters"`
		Strict      *bool          `json:"strict"`
	} `json:"function"`
}

const (
	openAITools       = 128
	openAIDescription = 1024 // characters
	openAICallID      = 40   // characters
)

var (
	toolName    = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	speakerName = regexp.MustCompile(`^[^\s<|\\/>]{1,64}$`)
	dataImage   = regexp.MustCompile(`^data:(image/[a-z]+);base64,([A-Za-z0-9+/]+={0,2})$`)
	imageTypes  = []string{"image/png", "image/jpeg", "image/gif", "image/webp"}
)

func (openAIFormat) parse(_ http.Header, body []byte) (conversation, *refusal) {
	var req openAIRequest
	if broken, err := decode(body, &req); err != nil {
		if broken == ruleFields {
			return conversation{}, invalid(broken, "Unrecognized request argument supplied: %v", err)
		}
		return conversation{}, invalid(broken, "We could not parse the JSON body of your request: %v", err)
	}
	if refused := req.figures(); refused != nil {
		return conversation{}, refused
	}
	chat := conversation{Model: req.Model, Stream: req.Stream, StreamUsage: req.StreamOptions != nil && req.StreamOptions.IncludeUsage}
	var refused *refusal
	if chat.Tools, refused = req.tools(); refused != nil {
		return conversation{}, refused
	}
	reader := openAIReader{ids: map[string]bool{}}
	for i, message := range req.Messages {
		if refused := reader.read(i, message); refused != nil {
			return conversation{}, refused
		}
	}
	if len(reader.open) > 0 {
		return conversation{}, unanswered(reader.open)
	}
	chat.Turns = reader.turns
	if len(userTexts(chat)) == 0 {
		return conversation{}, invalid(ruleMessages, "Invalid 'messages': a message with role 'user' is expected.")
	}
	return chat, nil
}

// figures checks what is neither a message nor a tool.
func (r openAIRequest) figures() *refusal {
	switch {
	case r.Model == "":
		return invalid(ruleModel, "you must provide a model parameter")
	case len(r.Messages) == 0:
		return invalid(ruleMessages, "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.")
	case r.MaxTokens != nil && r.MaxCompletionTokens != nil:
		return invalid(ruleTwoLimits, "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.")
	case r.MaxTokens != nil && *r.MaxTokens < 1, r.MaxCompletionTokens != nil && *r.MaxCompletionTokens < 1:
		return invalid(ruleLimit, "Invalid 'max_tokens': integer below minimum value. Expected a value >= 1.")
	case r.StreamOptions != nil && !r.Stream:
		return invalid(ruleStream, "The 'stream_options' parameter is only allowed when 'stream' is enabled.")
	case outside(r.Temperature, 0, 2), outside(r.TopP, 0, 1), outside(r.FrequencyPenalty, -2, 2), outside(r.PresencePenalty, -2, 2), outside(r.N, 1, 128):
		return invalid(ruleSampling, "Invalid value: temperature is from 0 to 2, top_p from 0 to 1, penalties from -2 to 2, n from 1 to 128.")
	case len(r.Tools) == 0 && (r.ToolChoice != nil || r.ParallelToolCalls != nil):
		return invalid(ruleToolChoice, "'tool_choice' and 'parallel_tool_calls' are only allowed when 'tools' are specified.")
	}
	return nil
}

// tools checks the tools and returns their names.
func (r openAIRequest) tools() ([]string, *refusal) {
	if n := len(r.Tools); n > openAITools {
		return nil, &refusal{
			Status: http.StatusBadRequest, Code: "array_above_max_length", param: "tools", broken: ruleManyTools,
			Message: fmt.Sprintf("Invalid 'tools': array too long. Expected an array with maximum length %d, but got an array with length %d instead.", openAITools, n),
		}
	}
	var names []string
	for i, tool := range r.Tools {
		f := tool.Function
		if tool.Type != "function" || !toolName.MatchString(f.Name) {
			return nil, invalid(ruleToolForm, "Invalid 'tools[%d]': a function with a name of letters, digits, _ and - is expected.", i)
		}
		if contains(names, f.Name) {
			return nil, invalid(ruleToolName, "Invalid 'tools[%d]': the name %s is used twice.", i, f.Name)
		}
		if n := utf8.RuneCountInString(f.Description); n > openAIDescription {
			return nil, tooLong(ruleDescription, fmt.Sprintf("tools[%d].function.description", i), openAIDescription, n)
		}
		schema := &refusal{Status: http.StatusBadRequest, Code: "invalid_function_parameters", param: fmt.Sprintf("tools[%d].function.parameters", i)}
		switch {
		case f.Parameters != nil && (f.Parameters["type"] != "object" || topChoice(f.Parameters)):
			schema.broken = ruleToolSchema
			schema.Message = fmt.Sprintf("Invalid schema for function '%s': schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level.", f.Name)
			return nil, schema
		case withoutItems(f.Parameters):
			schema.broken, schema.Message = ruleItems, fmt.Sprintf("Invalid schema for function '%s': array schema missing items.", f.Name)
			return nil, schema
		}
		names = append(names, f.Name)
	}
	return names, nil
}

func tooLong(broken rule, param string, most, n int) *refusal {
	return &refusal{
		Status: http.StatusBadRequest, Code: "string_above_max_length", param: param, broken: broken,
		Message: fmt.Sprintf("Invalid '%s': string too long. Expected a string with maximum length %d, but got a string with length %d instead.", param, most, n),
	}
}

// openAIReader checks messages one after the other: what the model asked for in
// one has to be answered by those directly behind it.
type openAIReader struct {
	ids   map[string]bool // of all calls
	open  []string        // calls without their result
	turns []turn
}

func (o *openAIReader) read(i int, m openAIMessage) *refusal {
	if m.Role != "tool" && len(o.open) > 0 {
		return unanswered(o.open)
	}
	if m.ToolCalls != nil && m.Role != "assistant" || m.Refusal != nil && m.Role != "assistant" || m.ToolCallID != nil && m.Role != "tool" {
		return invalid(ruleFields, "Additional properties are not allowed: a message of the role %q has tool_calls, refusal or tool_call_id (messages[%d]).", m.Role, i)
	}
	if m.Name != nil && !speakerName.MatchString(*m.Name) {
		return invalid(ruleRole, "Invalid 'messages[%d].name': string does not match pattern. Expected a string that matches the pattern '^[^\\s<|\\\\/>]+$'.", i)
	}
	switch m.Role {
	case "system", "developer":
		if len(o.turns) > 0 { // the API takes it; the chat templates of vLLM and others refuse it
			return invalid(ruleSystem, "System message must be at the beginning. (messages[%d])", i)
		}
		_, refused := openAIContent(i, m)
		return refused
	case "user":
		next, refused := openAIContent(i, m)
		o.turns = append(o.turns, next)
		return refused
	case "assistant":
		return o.assistant(i, m)
	case "tool":
		if m.ToolCallID == nil || !contains(o.open, *m.ToolCallID) {
			return invalid(ruleOrphan, "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls' (messages[%d]).", i)
		}
		o.open = without(o.open, *m.ToolCallID)
		next, refused := openAIContent(i, m)
		o.turns = append(o.turns, turn{Role: "tool", Results: []result{{CallID: *m.ToolCallID, Text: next.Text}}})
		return refused
	}
	return invalid(ruleRole, "Invalid value: '%s'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and 'developer'. (messages[%d].role)", m.Role, i)
}

func (o *openAIReader) assistant(i int, m openAIMessage) *refusal {
	next := turn{Role: "assistant"}
	if !null(m.Content) {
		var refused *refusal
		if next, refused = openAIContent(i, m); refused != nil {
			return refused
		}
	}
	switch {
	case m.ToolCalls != nil && len(*m.ToolCalls) == 0:
		return invalid(ruleContent, "Invalid 'messages[%d].tool_calls': empty array. Expected an array with minimum length 1, but got an empty array instead.", i)
	case m.ToolCalls == nil && next.Text == "":
		return invalid(ruleContent, "Invalid value for 'content' of 'messages[%d]': expected a string, got null.", i)
	case m.ToolCalls != nil:
		for j, c := range *m.ToolCalls {
			if refused := o.call(i, j, c); refused != nil {
				return refused
			}
			o.open = append(o.open, c.ID)
			next.Calls = append(next.Calls, call{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
		}
	}
	o.turns = append(o.turns, next)
	return nil
}

func (o *openAIReader) call(i, j int, c openAIToolCall) *refusal {
	var arguments map[string]json.RawMessage
	switch at := fmt.Sprintf("messages[%d].tool_calls[%d]", i, j); {
	case c.ID == "":
		return invalid(ruleCallID, "Missing required parameter: '%s.id'.", at)
	case utf8.RuneCountInString(c.ID) > openAICallID:
		return tooLong(ruleCallID, at+".id", openAICallID, utf8.RuneCountInString(c.ID))
	case o.ids[c.ID]:
		return invalid(ruleCallTwice, "Duplicate value for 'tool_call_id' of '%s' in messages[%d].", c.ID, i)
	case c.Index != nil:
		return invalid(ruleFields, "Unknown parameter: '%s.index'.", at)
	case c.Type != "function" || !toolName.MatchString(c.Function.Name):
		return invalid(ruleCallForm, "Invalid '%s.function.name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.", at)
	case json.Unmarshal([]byte(c.Function.Arguments), &arguments) != nil || arguments == nil:
		// OpenAI lets this pass; vLLM, Ollama and others parse it and refuse.
		return invalid(ruleArguments, "Invalid '%s.function.arguments': not JSON of an object.", at)
	}
	o.ids[c.ID] = true
	return nil
}

func null(content json.RawMessage) bool { return len(content) == 0 || string(content) == "null" }

// openAIContent reads a message's content, text or parts.
func openAIContent(i int, m openAIMessage) (turn, *refusal) {
	next := turn{Role: m.Role}
	if null(m.Content) {
		return next, invalid(ruleContent, "Invalid value for 'content': expected a string, got null. (messages[%d].content)", i)
	}
	if json.Unmarshal(m.Content, &next.Text) == nil {
		return next, nil
	}
	var parts []openAIPart
	if broken, err := decode(m.Content, &parts); err != nil {
		return next, invalid(broken, "Invalid 'messages[%d].content': expected a string or an array of parts: %v", i, err)
	}
	if len(parts) == 0 {
		return next, invalid(ruleContent, "Invalid 'messages[%d].content': empty array. Expected an array with minimum length 1, but got an empty array instead.", i)
	}
	for j, part := range parts {
		at := fmt.Sprintf("messages[%d].content[%d]", i, j)
		switch {
		case part.Type == "text" && part.Text != nil:
			next.Text += *part.Text
		case part.Type == "refusal" && part.Refusal != nil && m.Role == "assistant":
			next.Text += *part.Refusal
		case part.Type == "image_url" && part.ImageURL != nil && m.Role == "user":
			if !validImageURL(part.ImageURL.URL) {
				return next, invalid(ruleImage, "Invalid '%s.image_url': expected an address, or base64 of a png, jpeg, gif or webp.", at)
			}
			next.Images++
		default:
			return next, invalid(ruleContent, "Invalid value: '%s' at %s: a message of the role %s has no such part.", part.Type, at, m.Role)
		}
	}
	return next, nil
}

func validImageURL(address string) bool {
	if found := dataImage.FindStringSubmatch(address); found != nil {
		return isImage(found[1], found[2])
	}
	return strings.HasPrefix(address, "https://") || strings.HasPrefix(address, "http://")
}

func unanswered(ids []string) *refusal {
	return invalid(ruleUnanswered, "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "+
		"The following tool_call_ids did not have response messages: %s", strings.Join(ids, ", "))
}

func without(ids []string, id string) []string {
	var rest []string
	for _, each := range ids {
		if each != id {
			rest = append(rest, each)
		}
	}
	return rest
}
