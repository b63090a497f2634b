package fake

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
)

type openAIFormat struct{}

func (openAIFormat) name() string { return wireOpenAI }

func (openAIFormat) key(header http.Header) string {
	key, _ := strings.CutPrefix(header.Get("Authorization"), "Bearer ")
	return key
}

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
	Stop                json.RawMessage  `json:"stop"`
	Seed                *int64           `json:"seed"`
	User                string           `json:"user"`
	N                   *int64           `json:"n"`
	Stream              bool             `json:"stream"`
	StreamOptions       *openAIStreaming `json:"stream_options"`
}

type openAIStreaming struct {
	IncludeUsage bool `json:"include_usage"`
}

type openAIMessage struct {
	Role       string           `json:"role"`
	Content    json.RawMessage  `json:"content"`
	Name       string           `json:"name"`
	Refusal    *string          `json:"refusal"`
	ToolCalls  []openAIToolCall `json:"tool_calls"`
	ToolCallID string           `json:"tool_call_id"`
}

type openAIToolCall struct {
	Index        *int            `json:"index,omitempty"` // of a streamed piece
	ID           string          `json:"id,omitempty"`
	Type         string          `json:"type,omitempty"`
	Function     openAIFunction  `json:"function"`
	ExtraContent json.RawMessage `json:"extra_content,omitempty"`
}

type openAIFunction struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
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

var toolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

func invalid(format string, args ...any) *refusal {
	return &refusal{Status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...)}
}

func (openAIFormat) parse(_ http.Header, body []byte) (conversation, *refusal) {
	var req openAIRequest
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&req); err != nil {
		return conversation{}, invalid("We could not parse the JSON body of your request: %v", err)
	}
	switch {
	case req.Model == "":
		return conversation{}, invalid("you must provide a model parameter")
	case len(req.Messages) == 0:
		return conversation{}, invalid("Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.")
	case req.MaxTokens != nil && req.MaxCompletionTokens != nil:
		return conversation{}, invalid("Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.")
	case req.MaxTokens != nil && *req.MaxTokens < 1, req.MaxCompletionTokens != nil && *req.MaxCompletionTokens < 1:
		return conversation{}, invalid("Invalid 'max_tokens': integer below minimum value.")
	case req.StreamOptions != nil && !req.Stream:
		return conversation{}, invalid("The 'stream_options' parameter is only allowed when 'stream' is enabled.")
	}
	chat := conversation{Model: req.Model, Stream: req.Stream, StreamUsage: req.StreamOptions != nil && req.StreamOptions.IncludeUsage}
	for i, tool := range req.Tools {
		if tool.Type != "function" || !toolName.MatchString(tool.Function.Name) {
			return conversation{}, invalid("Invalid 'tools[%d]': a function with a name of letters, digits, _ and - is expected.", i)
		}
		if contains(chat.Tools, tool.Function.Name) {
			return conversation{}, invalid("Invalid 'tools[%d]': the name %s is used twice.", i, tool.Function.Name)
		}
		if schema := tool.Function.Parameters; schema != nil && schema["type"] != "object" {
			return conversation{}, invalid("Invalid schema for function '%s': schema must be a JSON Schema of 'type: \"object\"'.", tool.Function.Name)
		}
		chat.Tools = append(chat.Tools, tool.Function.Name)
	}
	var open []string // calls without their result
	for i, message := range req.Messages {
		if message.Role != "tool" && len(open) > 0 {
			return conversation{}, unanswered(open)
		}
		text, refused := openAIText(i, message.Content)
		if refused != nil {
			return conversation{}, refused
		}
		switch message.Role {
		case "system", "developer":
		case "user":
			if message.Content == nil {
				return conversation{}, invalid("Invalid value for 'messages[%d].content': expected a string, got null.", i)
			}
			chat.Turns = append(chat.Turns, turn{Role: "user", Text: text})
		case "assistant":
			if len(message.ToolCalls) == 0 && text == "" {
				return conversation{}, invalid("Invalid value for 'content' of 'messages[%d]': expected a string, got null.", i)
			}
			next, refused := openAICalls(i, message)
			if refused != nil {
				return conversation{}, refused
			}
			next.Text = text
			for _, c := range next.Calls {
				open = append(open, c.ID)
			}
			chat.Turns = append(chat.Turns, next)
		case "tool":
			rest := without(open, message.ToolCallID)
			if len(rest) == len(open) {
				return conversation{}, invalid("Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls' (messages[%d]).", i)
			}
			open = rest
			chat.Turns = append(chat.Turns, turn{Role: "tool", Results: []result{{CallID: message.ToolCallID, Text: text}}})
		default:
			return conversation{}, invalid("Invalid value: '%s'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and 'developer'. (messages[%d].role)", message.Role, i)
		}
	}
	if len(open) > 0 {
		return conversation{}, unanswered(open)
	}
	if len(userTexts(chat)) == 0 {
		return conversation{}, invalid("Invalid 'messages': a message with role 'user' is expected.")
	}
	return chat, nil
}

func openAICalls(i int, message openAIMessage) (turn, *refusal) {
	next := turn{Role: "assistant"}
	seen := map[string]bool{}
	for j, c := range message.ToolCalls {
		switch {
		case c.ID == "" || len(c.ID) > 40:
			return turn{}, invalid("Invalid 'messages[%d].tool_calls[%d].id': expected a string of 1 to 40 characters.", i, j)
		case seen[c.ID]:
			return turn{}, invalid("Duplicate value for 'tool_call_id' of '%s' in messages[%d].", c.ID, i)
		case c.Type != "function" || !toolName.MatchString(c.Function.Name):
			return turn{}, invalid("Invalid 'messages[%d].tool_calls[%d].function.name': string does not match pattern.", i, j)
		case !json.Valid([]byte(c.Function.Arguments)):
			// OpenAI lets this pass; vLLM, Ollama and others parse it and refuse.
			return turn{}, invalid("Invalid 'messages[%d].tool_calls[%d].function.arguments': not JSON.", i, j)
		}
		seen[c.ID] = true
		next.Calls = append(next.Calls, call{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
	}
	return next, nil
}

func openAIText(i int, content json.RawMessage) (string, *refusal) {
	if len(content) == 0 || string(content) == "null" {
		return "", nil
	}
	var text string
	if json.Unmarshal(content, &text) == nil {
		return text, nil
	}
	var parts []struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	if json.Unmarshal(content, &parts) != nil {
		return "", invalid("Invalid type for 'messages[%d].content': expected a string or an array of parts.", i)
	}
	for j, part := range parts {
		if part.Type != "text" || part.Text == nil {
			return "", invalid("Invalid 'messages[%d].content[%d]': this model reads text only.", i, j)
		}
		text += *part.Text
	}
	return text, nil
}

func unanswered(ids []string) *refusal {
	return invalid("An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "+
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

func (openAIFormat) refuse(w http.ResponseWriter, r refusal) {
	kind := r.Type
	if kind == "" {
		switch {
		case r.Status == http.StatusTooManyRequests:
			kind = "requests"
		case r.Status >= 500:
			kind = "server_error"
		default:
			kind = "invalid_request_error"
		}
	}
	var code any
	if r.Code != "" {
		code = r.Code
	}
	writeJSON(w, r.Status, map[string]any{"error": map[string]any{"message": r.Message, "type": kind, "param": nil, "code": code}})
}

type openAIChoice struct {
	Index        int            `json:"index"`
	Message      map[string]any `json:"message,omitempty"`
	Delta        map[string]any `json:"delta,omitempty"`
	Logprobs     any            `json:"logprobs"`
	FinishReason *string        `json:"finish_reason"`
}

func (openAIFormat) write(w http.ResponseWriter, chat conversation, a answer) {
	reason := map[string]string{"end": "stop", "length": "length", "refusal": "content_filter"}[a.Stop]
	if reason == "" {
		reason = a.Stop // tool_calls, or the script's own word
	}
	calls := []openAIToolCall{}
	for _, c := range a.Calls {
		calls = append(calls, openAIToolCall{ID: prefixed("call_", c.ID), Type: "function", Function: openAIFunction{Name: c.Name, Arguments: c.Arguments}})
	}
	envelope := func(object string, choices []openAIChoice) map[string]any {
		return map[string]any{"id": "chatcmpl-" + a.ID, "object": object, "created": created, "model": chat.Model, "system_fingerprint": "fp_standin", "choices": choices}
	}
	input, output := tokens(chat, a)
	usage := map[string]any{"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output}
	if !chat.Stream {
		message := map[string]any{"role": "assistant", "content": nil, "refusal": nil}
		if a.Text != "" {
			message["content"] = a.Text
		}
		if len(calls) > 0 {
			message["tool_calls"] = calls
		}
		whole := envelope("chat.completion", []openAIChoice{{Message: message, FinishReason: &reason}})
		whole["usage"] = usage
		writeJSON(w, http.StatusOK, whole)
		return
	}
	events := newEventStream(w, a.Pace)
	chunk := func(delta map[string]any, finish *string) {
		events.send("", envelope("chat.completion.chunk", []openAIChoice{{Delta: delta, FinishReason: finish}}))
	}
	chunk(map[string]any{"role": "assistant", "content": ""}, nil)
	for _, piece := range pieces(a.Text) {
		chunk(map[string]any{"content": piece}, nil)
	}
	for i, c := range calls {
		head := c
		head.Index, head.Function.Arguments = &i, ""
		chunk(map[string]any{"tool_calls": []openAIToolCall{head}}, nil)
		for _, piece := range pieces(c.Function.Arguments) {
			chunk(map[string]any{"tool_calls": []openAIToolCall{{Index: &i, Function: openAIFunction{Arguments: piece}}}}, nil)
		}
	}
	chunk(map[string]any{}, &reason)
	if chat.StreamUsage {
		last := envelope("chat.completion.chunk", []openAIChoice{})
		last["usage"] = usage
		events.send("", last)
	}
	events.raw("data: [DONE]\n\n")
}
