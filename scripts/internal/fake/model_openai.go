package fake

import (
	"encoding/json"
	"net/http"
	"strings"
)

type openAIFormat struct{}

func (openAIFormat) name() string { return wireOpenAI }

func (openAIFormat) key(header http.Header) string {
	key, _ := strings.CutPrefix(header.Get("Authorization"), "Bearer ")
	return key
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
	var param, code any
	if r.param != "" {
		param = r.param
	}
	if r.Code != "" {
		code = r.Code
	}
	writeJSON(w, r.Status, map[string]any{"error": map[string]any{"message": r.Message, "type": kind, "param": param, "code": code}})
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
