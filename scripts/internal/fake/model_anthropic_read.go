package fake

import (
	"bytes"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
)

// anthropicRequest has every field that the API knows; what a stand-in has no use
// for is not looked into.
type anthropicRequest struct {
	Model         string             `json:"model"`
	MaxTokens     *int64             `json:"max_tokens"`
	System        json.RawMessage    `json:"system"`
	Messages      []anthropicMessage `json:"messages"`
	Tools         []anthropicTool    `json:"tools"`
	ToolChoice    json.RawMessage    `json:"tool_choice"`
	Temperature   *float64           `json:"temperature"`
	TopP          *float64           `json:"top_p"`
	TopK          *float64           `json:"top_k"`
	StopSequences []string           `json:"stop_sequences"`
	Thinking      *anthropicThinking `json:"thinking"`
	CacheControl  json.RawMessage    `json:"cache_control"`
	Stream        bool               `json:"stream"`

	Container    json.RawMessage `json:"container"`
	Diagnostics  json.RawMessage `json:"diagnostics"`
	InferenceGeo string          `json:"inference_geo"`
	Metadata     json.RawMessage `json:"metadata"`
	OutputConfig json.RawMessage `json:"output_config"`
	ServiceTier  string          `json:"service_tier"`
	Speed        string          `json:"speed"`
}

type anthropicThinking struct {
	Type    string `json:"type"`
	Budget  int64  `json:"budget_tokens"`
	Display string `json:"display"`
}

type anthropicTool struct {
	Type         string          `json:"type"`
	Name         string          `json:"name"`
	Description  string          `json:"description"`
	InputSchema  map[string]any  `json:"input_schema"`
	CacheControl json.RawMessage `json:"cache_control"`

	Strict              *bool           `json:"strict"`
	DeferLoading        *bool           `json:"defer_loading"`
	EagerInputStreaming *bool           `json:"eager_input_streaming"`
	AllowedCallers      []string        `json:"allowed_callers"`
	InputExamples       json.RawMessage `json:"input_examples"`
}

type anthropicMessage struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

var (
	toolUseID    = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)
	parameterKey = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)
	versionDate  = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}$`)
)

const (
	anthropicCacheMarks = 4
	anthropicThought    = 1024 // tokens: the least budget
)

func (anthropicFormat) parse(header http.Header, body []byte) (conversation, *refusal) {
	if !versionDate.MatchString(header.Get("Anthropic-Version")) {
		return conversation{}, invalid(ruleVersion, "anthropic-version: header is required")
	}
	var req anthropicRequest
	if broken, err := decode(body, &req); err != nil {
		if broken == ruleFields {
			return conversation{}, invalid(broken, "%v: Extra inputs are not permitted", err)
		}
		return conversation{}, invalid(broken, "The request body is not valid JSON: %v", err)
	}
	if refused := req.figures(header.Get("Anthropic-Version")); refused != nil {
		return conversation{}, refused
	}
	chat := conversation{Model: req.Model, Stream: req.Stream, StreamUsage: true}
	reader := anthropicReader{ids: map[string]bool{}}
	reader.mark(req.CacheControl)
	var refused *refusal
	if chat.Tools, refused = reader.tools(req.Tools); refused != nil {
		return conversation{}, refused
	}
	if refused := reader.system(req.System); refused != nil {
		return conversation{}, refused
	}
	for i, message := range req.Messages {
		turns, refused := reader.read(i, message)
		if refused != nil {
			return conversation{}, refused
		}
		chat.Turns = append(chat.Turns, turns...)
	}
	if refused := reader.end(req, len(req.Messages)); refused != nil {
		return conversation{}, refused
	}
	if len(userTexts(chat)) == 0 {
		return conversation{}, invalid(ruleMessages, "messages: a user message with text is expected")
	}
	return chat, nil
}

// figures checks what is neither a message nor a tool.
func (r anthropicRequest) figures(version string) *refusal {
	sampling := r.Temperature != nil || r.TopP != nil || r.TopK != nil
	switch {
	case sampling && version != "2023-06-01": // taken out of every later version
		return invalid(ruleSampling, "temperature, top_p and top_k are not supported in this API version")
	case outside(r.Temperature, 0, 1), outside(r.TopP, 0, 1), outside(r.TopK, 0, 500):
		return invalid(ruleSampling, "temperature: range: 0..1; top_p: range: 0..1; top_k: range: 0..500")
	case r.Model == "":
		return invalid(ruleModel, "model: Field required")
	case r.MaxTokens == nil:
		return invalid(ruleLimit, "max_tokens: Field required")
	case *r.MaxTokens < 1: // 0 warms the cache, which nobody here asks for
		return invalid(ruleLimit, "max_tokens: Input should be greater than or equal to 1")
	case len(r.Messages) == 0:
		return invalid(ruleMessages, "messages: at least one message is required")
	case len(r.Tools) == 0 && !null(r.ToolChoice):
		return invalid(ruleToolChoice, "tool_choice: tool_choice may only be specified while providing tools")
	case r.thinks() && r.Thinking.Budget < anthropicThought:
		return invalid(ruleThinking, "thinking.enabled.budget_tokens: Input should be greater than or equal to %d", anthropicThought)
	case r.thinks() && r.Thinking.Budget >= *r.MaxTokens:
		return invalid(ruleThinking, "`max_tokens` must be greater than `thinking.budget_tokens`")
	}
	return nil
}

func (r anthropicRequest) thinks() bool { return r.Thinking != nil && r.Thinking.Type == "enabled" }

// anthropicReader checks messages one after the other: what the model asked for
// in one has to be answered at the start of the next.
type anthropicReader struct {
	ids     map[string]bool // of all calls
	open    []string        // of the message before
	speaker string          // of the message before
	last    string          // what the message before ends with
	bare    bool            // the last calls stand behind no thought
	marks   int             // of cache_control
	bad     bool            // one of them is none
}

// mark counts a cache_control.
func (a *anthropicReader) mark(control json.RawMessage) {
	if null(control) {
		return
	}
	var c struct {
		Type string `json:"type"`
		TTL  string `json:"ttl"`
	}
	if _, err := decode(control, &c); err != nil || c.Type != "ephemeral" || c.TTL != "" && c.TTL != "5m" && c.TTL != "1h" {
		a.bad = true
	}
	a.marks++
}

// tools checks the tools and returns their names.
func (a *anthropicReader) tools(tools []anthropicTool) ([]string, *refusal) {
	var names []string
	for i, tool := range tools {
		properties, _ := tool.InputSchema["properties"].(map[string]any)
		switch {
		case tool.Type != "" && tool.Type != "custom":
			return nil, invalid(ruleToolForm, "tools.%d: Input tag '%s' is not expected here", i, tool.Type)
		case !toolName.MatchString(tool.Name):
			return nil, invalid(ruleToolForm, "tools.%d.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'", i)
		case contains(names, tool.Name):
			return nil, invalid(ruleToolName, "tools: Tool names must be unique.")
		case tool.InputSchema["type"] != "object":
			return nil, invalid(ruleToolSchema, "tools.%d.custom.input_schema.type: Input should be 'object'", i)
		case topChoice(tool.InputSchema):
			return nil, invalid(ruleToolSchema, "tools.%d.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level", i)
		}
		for key := range properties {
			if !parameterKey.MatchString(key) {
				return nil, invalid(ruleKeys, "tools.%d.custom.input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'", i)
			}
		}
		a.mark(tool.CacheControl)
		names = append(names, tool.Name)
	}
	return names, nil
}

// system checks the system prompt: a text or blocks of text.
func (a *anthropicReader) system(content json.RawMessage) *refusal {
	if null(content) {
		return nil
	}
	var text string
	if json.Unmarshal(content, &text) == nil {
		return nil // blank is none
	}
	var blocks []anthropicText
	if broken, err := decode(content, &blocks); err != nil {
		return invalid(broken, "system: Input should be a valid list of text blocks: %v", err)
	}
	for i, block := range blocks {
		switch {
		case block.Type != "text":
			return invalid(ruleSystem, "system.%d.type: Input should be 'text'", i)
		case strings.TrimSpace(block.Text) == "":
			return invalid(ruleBlank, "system: text content blocks must be non-empty")
		}
		a.mark(block.CacheControl)
	}
	return nil
}

func (a *anthropicReader) read(i int, message anthropicMessage) ([]turn, *refusal) {
	switch {
	case message.Role == "system":
		return nil, invalid(ruleSystem, `messages: Unexpected role "system". The Messages API accepts a top-level `+"`system`"+` parameter, not "system" as an input message role.`)
	case message.Role != "user" && message.Role != "assistant":
		return nil, invalid(ruleRole, "messages.%d.role: Input should be 'user' or 'assistant'", i)
	case i == 0 && message.Role != "user":
		return nil, invalid(ruleFirst, "messages: first message must use the \"user\" role")
	case a.speaker == message.Role:
		return nil, invalid(ruleAlternate, "messages: roles must alternate between \"user\" and \"assistant\", but found multiple %q roles in a row", message.Role)
	}
	a.speaker = message.Role
	blocks, refused := anthropicBlocks(i, message.Content)
	if refused != nil {
		return nil, refused
	}
	if message.Role == "user" {
		return a.user(i, blocks)
	}
	return a.assistant(i, blocks)
}

func (a *anthropicReader) assistant(i int, blocks []any) ([]turn, *refusal) {
	next := turn{Role: "assistant"}
	thought := false
	for j, block := range blocks {
		a.last = ""
		switch b := block.(type) {
		case *anthropicText:
			next.Text += b.Text
			a.last = b.Text
			a.mark(b.CacheControl)
		case *anthropicThoughtBlock:
			if b.Signature != signature(b.Thinking) {
				return nil, invalid(ruleSignature, "messages.%d.content.%d: Invalid `signature` in `thinking` block", i, j)
			}
			thought = true
		case *anthropicHidden:
			if !isHidden(b.Data) {
				return nil, invalid(ruleSignature, "messages.%d.content.%d: Invalid `data` in `redacted_thinking` block", i, j)
			}
			thought = true
		case *anthropicUse:
			switch {
			case !toolUseID.MatchString(b.ID):
				return nil, invalid(ruleCallID, "messages.%d.content.%d.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'", i, j)
			case a.ids[b.ID]:
				return nil, invalid(ruleCallTwice, "messages.%d.content.%d: `tool_use` ids must be unique", i, j)
			case !toolName.MatchString(b.Name):
				return nil, invalid(ruleCallForm, "messages.%d.content.%d.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'", i, j)
			case !bytes.HasPrefix(bytes.TrimSpace(b.Input), []byte("{")):
				return nil, invalid(ruleArguments, "messages.%d.content.%d.tool_use.input: Input should be an object", i, j)
			}
			a.mark(b.CacheControl)
			a.ids[b.ID] = true
			a.open = append(a.open, b.ID)
			next.Calls = append(next.Calls, call{ID: b.ID, Name: b.Name, Arguments: string(b.Input)})
		default:
			return nil, invalid(ruleContent, "messages.%d.content.%d: this block is not expected of an assistant", i, j)
		}
	}
	a.bare = len(next.Calls) > 0 && !thought
	return []turn{next}, nil
}

func (a *anthropicReader) user(i int, blocks []any) ([]turn, *refusal) {
	var turns []turn
	var results []result
	images := 0
	for j, block := range blocks {
		switch b := block.(type) {
		case *anthropicText:
			a.mark(b.CacheControl)
			turns = append(turns, turn{Role: "user", Text: b.Text, Images: images})
			images = 0
		case *anthropicImage:
			a.mark(b.CacheControl)
			images++
		case *anthropicResult:
			a.mark(b.CacheControl)
			switch {
			case !contains(a.open, b.ToolUseID):
				return nil, invalid(ruleOrphan, "messages.%d.content.%d: unexpected `tool_use_id` found in `tool_result` blocks: %s. "+
					"Each `tool_result` block must have a corresponding `tool_use` block in the previous message.", i, j, b.ToolUseID)
			case len(turns)+images > 0:
				return nil, invalid(ruleOrder, "messages.%d.content.%d: `tool_result` blocks must come before text", i, j)
			}
			a.open = without(a.open, b.ToolUseID)
			text, refused := a.resultText(i, j, b)
			if refused != nil {
				return nil, refused
			}
			results = append(results, result{CallID: b.ToolUseID, Text: text, Failed: b.IsError})
		default:
			return nil, invalid(ruleContent, "messages.%d.content.%d: this block is not expected of a user", i, j)
		}
	}
	switch {
	case len(a.open) > 0:
		return nil, a.unanswered(i)
	case images > 0 && len(turns) > 0:
		turns[len(turns)-1].Images += images
	case images > 0:
		turns = append(turns, turn{Role: "user", Images: images})
	}
	if len(turns) > 0 {
		a.bare = false // a turn of the person's begins
	}
	if len(results) > 0 {
		turns = append([]turn{{Role: "tool", Results: results}}, turns...)
	}
	return turns, nil
}

// end checks what only the whole request shows.
func (a *anthropicReader) end(r anthropicRequest, n int) *refusal {
	switch {
	case len(a.open) > 0:
		return a.unanswered(n)
	case len(a.ids) > 0 && len(r.Tools) == 0:
		return invalid(ruleToolsKnown, "Requests which include `tool_use` or `tool_result` blocks must define tools")
	case a.bad:
		return invalid(ruleCache, "cache_control: Input tag should be 'ephemeral', its ttl '5m' or '1h'")
	case a.marks > anthropicCacheMarks:
		return invalid(ruleCache, "A maximum of %d blocks with cache_control may be provided. Found %d.", anthropicCacheMarks, a.marks)
	case r.thinks() && a.bare:
		return invalid(ruleThought, "messages: Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` is enabled, a final `assistant` message must start with a thinking block.")
	case a.speaker != "assistant":
		return nil
	case a.last != strings.TrimRight(a.last, " \t\r\n"):
		return invalid(ruleTrailing, "messages: final assistant content cannot end with trailing whitespace")
	}
	return invalid(ruleLastMessage, "This model does not support assistant message prefill. The conversation must end with a user message.")
}

func (a *anthropicReader) unanswered(i int) *refusal {
	return invalid(ruleUnanswered, "messages.%d: `tool_use` ids were found without `tool_result` blocks immediately after: %s. "+
		"Each `tool_use` block must have a corresponding `tool_result` block in the next message.", i-1, strings.Join(a.open, ", "))
}
