package fake

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
)

type anthropicFormat struct{}

func (anthropicFormat) name() string { return wireAnthropic }

func (anthropicFormat) key(header http.Header) string {
	if key := header.Get("X-Api-Key"); key != "" {
		return key
	}
	key, _ := strings.CutPrefix(header.Get("Authorization"), "Bearer ")
	return key
}

func (anthropicFormat) refuse(w http.ResponseWriter, r refusal) {
	kind := r.Type
	if kind == "" {
		kind = map[int]string{
			400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error", 404: "not_found_error",
			408: "timeout_error", 413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error",
		}[r.Status]
	}
	if kind == "" {
		kind = "api_error"
	}
	failure := map[string]any{"type": kind, "message": r.Message}
	if r.Code != "" && r.Status != http.StatusUnauthorized && r.Status != http.StatusNotFound { // codes of the other wire
		failure["details"] = map[string]any{"error_code": r.Code}
	}
	writeJSON(w, r.Status, map[string]any{"type": "error", "error": failure, "request_id": "req_standin"})
}

func (anthropicFormat) write(w http.ResponseWriter, chat conversation, a answer) {
	reason := map[string]string{"end": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "refusal": "refusal"}[a.Stop]
	if reason == "" {
		reason = a.Stop
	}
	input, output := tokens(chat, a)
	message := map[string]any{
		"id": "msg_" + a.ID, "type": "message", "role": "assistant", "model": chat.Model, "stop_sequence": nil,
		"container": nil, "stop_details": nil,
	}
	content := thoughts(a)
	if a.Text != "" {
		content = append(content, map[string]any{"type": "text", "text": a.Text})
	}
	for _, c := range a.Calls {
		block := map[string]any{"type": "tool_use", "name": c.Name, "input": anthropicInput(c.Arguments)}
		if c.ID != "" {
			block["id"] = prefixed("toolu_", c.ID)
		}
		content = append(content, block)
	}
	if !chat.Stream {
		message["content"], message["stop_reason"] = content, reason
		message["usage"] = map[string]any{"input_tokens": input, "output_tokens": output, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
		writeJSON(w, http.StatusOK, message)
		return
	}
	events := newEventStream(w, a.Pace)
	message["content"], message["stop_reason"] = []any{}, nil
	message["usage"] = map[string]any{"input_tokens": input, "output_tokens": 1}
	events.send("message_start", map[string]any{"type": "message_start", "message": message})
	events.send("ping", map[string]any{"type": "ping"})
	for i, block := range content {
		kind, field, text := "text_delta", "text", a.Text
		switch block["type"] {
		case "tool_use":
			kind, field = "input_json_delta", "partial_json"
			text = a.Calls[i-len(content)+len(a.Calls)].Arguments
			block["input"] = map[string]any{}
		case "thinking":
			kind, field, text = "thinking_delta", "thinking", block["thinking"].(string)
			block["thinking"], block["signature"] = "", ""
		case "redacted_thinking":
			text = ""
		default:
			block["text"] = ""
		}
		events.send("content_block_start", map[string]any{"type": "content_block_start", "index": i, "content_block": block})
		delta := func(kind, field, piece string) {
			events.send("content_block_delta", map[string]any{"type": "content_block_delta", "index": i, "delta": map[string]any{"type": kind, field: piece}})
		}
		for _, piece := range pieces(text) {
			delta(kind, field, piece)
		}
		if block["type"] == "thinking" {
			delta("signature_delta", "signature", signature(text))
		}
		events.send("content_block_stop", map[string]any{"type": "content_block_stop", "index": i})
	}
	events.send("message_delta", map[string]any{
		"type": "message_delta", "delta": map[string]any{"stop_reason": reason, "stop_sequence": nil}, "usage": map[string]any{"output_tokens": output},
	})
	events.send("message_stop", map[string]any{"type": "message_stop"})
}

// anthropicInput is a call's input. Broken JSON cannot stand there, so its
// text does, as in servers that imitate this wire.
func anthropicInput(arguments string) any {
	if json.Valid([]byte(arguments)) {
		return json.RawMessage(arguments)
	}
	return arguments
}

// thoughts are what it thought before it called tools: in clear, and hidden.
func thoughts(a answer) []map[string]any {
	if !a.Thinks || len(a.Calls) == 0 {
		return []map[string]any{}
	}
	thought := "This wants a tool. (" + a.ID + ")"
	return []map[string]any{
		{"type": "thinking", "thinking": thought, "signature": signature(thought)},
		{"type": "redacted_thinking", "data": hidden(thought)},
	}
}

// signature is what a thought has to come back with.
func signature(thought string) string {
	return base64.StdEncoding.EncodeToString([]byte(digest("thought/" + thought)))
}

// hidden is a thought that nobody but this model can read, and that has to come
// back as it is.
func hidden(thought string) string {
	return base64.StdEncoding.EncodeToString([]byte(thought + "/" + digest("hidden/"+thought)))
}

func isHidden(data string) bool {
	text, err := base64.StdEncoding.DecodeString(data)
	thought, _, _ := strings.Cut(string(text), "/")
	return err == nil && data == hidden(thought)
}
