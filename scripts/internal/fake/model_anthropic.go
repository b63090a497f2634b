package fake

import (
	"bytes"
	"encoding/json"
	"net/http"
	"regexp"
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

type anthropicRequest struct {
	Model         string             `json:"model"`
	MaxTokens     *int64             `json:"max_tokens"`
	System        json.RawMessage    `json:"system"`
	Messages      []anthropicMessage `json:"messages"`
	Tools         []anthropicTool    `json:"tools"`
	ToolChoice    json.RawMessage    `json:"tool_choice"`
	Temperature   *float64           `json:"temperature"`
	TopP          *float64           `json:"top_p"`
	TopK          *int64             `json:"top_k"`
	StopSequences []string           `json:"stop_sequences"`
	Metadata      json.RawMessage    `json:"metadata"`
	Thinking      json.RawMessage    `json:"thinking"`
	Stream        bool               `json:"stream"`
}

type anthropicTool struct {
	Type         string          `json:"type"`
	Name         string          `json:"name"`
	Description  string          `json:"description"`
	InputSchema  map[string]any  `json:"input_schema"`
	CacheControl json.RawMessage `json:"cache_control"`
}

type anthropicMessage struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

type anthropicBlock struct {
	Type         string          `json:"type"`
	Text         string          `json:"text"`
	ID           string          `json:"id"`
	Name         string          `json:"name"`
	Input        json.RawMessage `json:"input"`
	ToolUseID    string          `json:"tool_use_id"`
	Content      json.RawMessage `json:"content"`
	IsError      bool            `json:"is_error"`
	Thinking     string          `json:"thinking"`
	Signature    string          `json:"signature"`
	Data         string          `json:"data"`
	CacheControl json.RawMessage `json:"cache_control"`
}

var toolUseID = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)

func (anthropicFormat) parse(header http.Header, body []byte) (conversation, *refusal) {
	if header.Get("Anthropic-Version") == "" {
		return conversation{}, invalid("anthropic-version: header is required")
	}
	var req anthropicRequest
	if err := strict(body, &req); err != nil {
		return conversation{}, invalid("The request body is not valid JSON or holds what is not permitted: %v", err)
	}
	sampling := req.Temperature != nil || req.TopP != nil || req.TopK != nil
	switch {
	case sampling && header.Get("Anthropic-Version") != "2023-06-01": // taken out of every later version
		return conversation{}, invalid("temperature, top_p and top_k are not supported in this API version")
	case req.Model == "":
		return conversation{}, invalid("model: Field required")
	case req.MaxTokens == nil:
		return conversation{}, invalid("max_tokens: Field required")
	case *req.MaxTokens < 1:
		return conversation{}, invalid("max_tokens: Input should be greater than or equal to 1")
	case len(req.Messages) == 0:
		return conversation{}, invalid("messages: at least one message is required")
	case req.Messages[0].Role != "user":
		return conversation{}, invalid("messages: first message must use the \"user\" role")
	case req.Messages[len(req.Messages)-1].Role == "assistant":
		return conversation{}, invalid("This model does not support assistant message prefill. The conversation must end with a user message.")
	}
	chat := conversation{Model: req.Model, Stream: req.Stream, StreamUsage: true}
	for i, tool := range req.Tools {
		switch {
		case !toolName.MatchString(tool.Name):
			return conversation{}, invalid("tools.%d.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'", i)
		case contains(chat.Tools, tool.Name):
			return conversation{}, invalid("tools: Tool names must be unique.")
		case tool.InputSchema["type"] != "object":
			return conversation{}, invalid("tools.%d.custom.input_schema.type: Input should be 'object'", i)
		}
		chat.Tools = append(chat.Tools, tool.Name)
	}
	reader := anthropicReader{ids: map[string]bool{}}
	for i, message := range req.Messages {
		turns, refused := reader.read(i, message)
		if refused != nil {
			return conversation{}, refused
		}
		chat.Turns = append(chat.Turns, turns...)
	}
	if len(userTexts(chat)) == 0 {
		return conversation{}, invalid("messages: a user message with text is expected")
	}
	return chat, nil
}

// anthropicReader checks messages one after the other: what the model asked
// for in one has to be answered at the start of the next.
type anthropicReader struct {
	ids  map[string]bool // of all calls
	open []string        // of the message before
}

func (a *anthropicReader) read(i int, message anthropicMessage) ([]turn, *refusal) {
	blocks, refused := anthropicBlocks(i, message.Content)
	if refused != nil {
		return nil, refused
	}
	switch message.Role {
	case "user":
		return a.user(i, blocks)
	case "assistant":
		if len(a.open) > 0 {
			return nil, a.orphans(i)
		}
		next := turn{Role: "assistant"}
		for j, block := range blocks {
			switch block.Type {
			case "text":
				next.Text += block.Text
			case "thinking":
				if block.Signature == "" {
					return nil, invalid("messages.%d.content.%d.thinking.signature: Field required", i, j)
				}
			case "redacted_thinking":
			case "tool_use":
				switch {
				case !toolUseID.MatchString(block.ID):
					return nil, invalid("messages.%d.content.%d.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'", i, j)
				case a.ids[block.ID]:
					return nil, invalid("messages.%d.content.%d: `tool_use` ids must be unique", i, j)
				case !toolName.MatchString(block.Name):
					return nil, invalid("messages.%d.content.%d.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'", i, j)
				case !bytes.HasPrefix(bytes.TrimSpace(block.Input), []byte("{")):
					return nil, invalid("messages.%d.content.%d.tool_use.input: Input should be an object", i, j)
				}
				a.ids[block.ID] = true
				a.open = append(a.open, block.ID)
				next.Calls = append(next.Calls, call{ID: block.ID, Name: block.Name, Arguments: string(block.Input)})
			default:
				return nil, invalid("messages.%d.content.%d: Input tag '%s' is not expected here", i, j, block.Type)
			}
		}
		return []turn{next}, nil
	}
	return nil, invalid("messages.%d.role: Input should be 'user' or 'assistant'", i)
}

func (a *anthropicReader) user(i int, blocks []anthropicBlock) ([]turn, *refusal) {
	var turns []turn
	var results []result
	for j, block := range blocks {
		switch block.Type {
		case "text":
			turns = append(turns, turn{Role: "user", Text: block.Text})
		case "tool_result":
			rest := without(a.open, block.ToolUseID)
			if len(rest) == len(a.open) {
				return nil, invalid("messages.%d.content.%d: unexpected `tool_use_id` found in `tool_result` blocks: %s. "+
					"Each `tool_result` block must have a corresponding `tool_use` block in the previous message.", i, j, block.ToolUseID)
			}
			if len(turns) > 0 {
				return nil, invalid("messages.%d.content.%d: `tool_result` blocks must come before text", i, j)
			}
			a.open = rest
			text, refused := anthropicResultText(i, j, block.Content)
			if refused != nil {
				return nil, refused
			}
			results = append(results, result{CallID: block.ToolUseID, Text: text, Failed: block.IsError})
		default:
			return nil, invalid("messages.%d.content.%d: Input tag '%s' is not expected here", i, j, block.Type)
		}
	}
	if len(a.open) > 0 {
		return nil, a.orphans(i)
	}
	if len(results) > 0 {
		turns = append([]turn{{Role: "tool", Results: results}}, turns...)
	}
	return turns, nil
}

func (a *anthropicReader) orphans(i int) *refusal {
	return invalid("messages.%d: `tool_use` ids were found without `tool_result` blocks immediately after: %s. "+
		"Each `tool_use` block must have a corresponding `tool_result` block in the next message.", i-1, strings.Join(a.open, ", "))
}

// anthropicBlocks reads content in either form, text or blocks.
func anthropicBlocks(i int, content json.RawMessage) ([]anthropicBlock, *refusal) {
	var text string
	var blocks []anthropicBlock
	if json.Unmarshal(content, &text) == nil {
		blocks = []anthropicBlock{{Type: "text", Text: text}}
	} else if err := strict(content, &blocks); err != nil {
		return nil, invalid("messages.%d.content: Input should be a valid list of blocks: %v", i, err)
	}
	if len(blocks) == 0 {
		return nil, invalid("messages.%d: all messages must have non-empty content", i)
	}
	for _, block := range blocks {
		if block.Type == "text" && strings.TrimSpace(block.Text) == "" {
			return nil, invalid("messages: text content blocks must contain non-whitespace text")
		}
	}
	return blocks, nil
}

func anthropicResultText(i, j int, content json.RawMessage) (string, *refusal) {
	if len(content) == 0 {
		return "", nil
	}
	var text string
	if json.Unmarshal(content, &text) == nil {
		return text, nil
	}
	var blocks []anthropicBlock
	if err := strict(content, &blocks); err != nil {
		return "", invalid("messages.%d.content.%d.tool_result.content: %v", i, j, err)
	}
	for _, block := range blocks {
		if block.Type != "text" || block.Text == "" {
			return "", invalid("messages.%d.content.%d.tool_result.content: non-empty text is expected", i, j)
		}
		text += block.Text
	}
	return text, nil
}

func strict(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
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
	content := []map[string]any{}
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
		if block["type"] == "tool_use" {
			kind, field = "input_json_delta", "partial_json"
			text = a.Calls[i-len(content)+len(a.Calls)].Arguments
			block["input"] = map[string]any{}
		} else {
			block["text"] = ""
		}
		events.send("content_block_start", map[string]any{"type": "content_block_start", "index": i, "content_block": block})
		for _, piece := range pieces(text) {
			events.send("content_block_delta", map[string]any{"type": "content_block_delta", "index": i, "delta": map[string]any{"type": kind, field: piece}})
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
