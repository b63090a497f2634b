package fake

import (
	"encoding/json"
	"strings"
)

// The blocks of a message, each with the fields that it may have.
type (
	anthropicText struct {
		Type         string          `json:"type"`
		Text         string          `json:"text"`
		Citations    json.RawMessage `json:"citations"`
		CacheControl json.RawMessage `json:"cache_control"`
	}
	anthropicImage struct {
		Type   string `json:"type"`
		Source struct {
			Type      string `json:"type"`
			MediaType string `json:"media_type"`
			Data      string `json:"data"`
			URL       string `json:"url"`
		} `json:"source"`
		Transformations json.RawMessage `json:"transformations"`
		CacheControl    json.RawMessage `json:"cache_control"`
	}
	anthropicThoughtBlock struct {
		Type      string `json:"type"`
		Thinking  string `json:"thinking"`
		Signature string `json:"signature"`
	}
	anthropicHidden struct {
		Type string `json:"type"`
		Data string `json:"data"`
	}
	anthropicUse struct {
		Type         string          `json:"type"`
		ID           string          `json:"id"`
		Name         string          `json:"name"`
		Input        json.RawMessage `json:"input"`
		Caller       json.RawMessage `json:"caller"`
		CacheControl json.RawMessage `json:"cache_control"`
	}
	anthropicResult struct {
		Type         string          `json:"type"`
		ToolUseID    string          `json:"tool_use_id"`
		Content      json.RawMessage `json:"content"`
		IsError      bool            `json:"is_error"`
		CacheControl json.RawMessage `json:"cache_control"`
	}
)

const anthropicImageBytes = 5 << 20 // of its base64

// anthropicBlocks reads content in either form, text or blocks.
func anthropicBlocks(i int, content json.RawMessage) ([]any, *refusal) {
	var text string
	if json.Unmarshal(content, &text) == nil && !null(content) {
		if strings.TrimSpace(text) == "" {
			return nil, blank()
		}
		return []any{&anthropicText{Type: "text", Text: text}}, nil
	}
	var parts []json.RawMessage
	if null(content) || json.Unmarshal(content, &parts) != nil {
		return nil, invalid(ruleTypes, "messages.%d.content: Input should be a valid list", i)
	}
	if len(parts) == 0 {
		return nil, invalid(ruleContent, "messages.%d: all messages must have non-empty content except for the optional final assistant message", i)
	}
	blocks := make([]any, 0, len(parts))
	for j, part := range parts {
		block, refused := anthropicBlock(i, j, part)
		if refused != nil {
			return nil, refused
		}
		blocks = append(blocks, block)
	}
	return blocks, nil
}

// anthropicBlock reads one block by its type.
func anthropicBlock(i, j int, part json.RawMessage) (any, *refusal) {
	var tag struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(part, &tag) != nil {
		return nil, invalid(ruleTypes, "messages.%d.content.%d: Input should be an object", i, j)
	}
	block, ok := map[string]any{
		"text": &anthropicText{}, "image": &anthropicImage{}, "thinking": &anthropicThoughtBlock{}, "redacted_thinking": &anthropicHidden{},
		"tool_use": &anthropicUse{}, "tool_result": &anthropicResult{},
	}[tag.Type]
	if !ok {
		return nil, invalid(ruleContent, "messages.%d.content.%d: Input tag '%s' found using 'type' does not match any of the expected tags", i, j, tag.Type)
	}
	if broken, err := decode(part, block); err != nil {
		return nil, invalid(broken, "messages.%d.content.%d.%s: Extra inputs are not permitted: %v", i, j, tag.Type, err)
	}
	switch b := block.(type) {
	case *anthropicText:
		if strings.TrimSpace(b.Text) == "" {
			return nil, blank()
		}
	case *anthropicImage:
		valid := b.Source.Type == "base64" && len(b.Source.Data) <= anthropicImageBytes && isImage(b.Source.MediaType, b.Source.Data) ||
			b.Source.Type == "url" && strings.HasPrefix(b.Source.URL, "https://")
		if !valid {
			return nil, invalid(ruleImage, "messages.%d.content.%d.image.source: Could not process image", i, j)
		}
	}
	return block, nil
}

func blank() *refusal {
	return invalid(ruleBlank, "messages: text content blocks must contain non-whitespace text")
}

// resultText reads a result's content in either form; there may be none.
func (a *anthropicReader) resultText(i, j int, result *anthropicResult) (string, *refusal) {
	if null(result.Content) {
		return "", nil
	}
	var text string
	if json.Unmarshal(result.Content, &text) == nil {
		return text, nil
	}
	var parts []json.RawMessage
	if json.Unmarshal(result.Content, &parts) != nil {
		return "", invalid(ruleTypes, "messages.%d.content.%d.tool_result.content: Input should be a valid list", i, j)
	}
	for _, part := range parts {
		block, refused := anthropicBlock(i, j, part)
		if refused != nil {
			return "", refused
		}
		switch b := block.(type) {
		case *anthropicText:
			a.mark(b.CacheControl)
			text += b.Text
		case *anthropicImage:
			if result.IsError {
				return "", invalid(ruleContent, "messages.%d.content.%d: all content must be type `text` if `is_error` is true", i, j)
			}
			a.mark(b.CacheControl)
		default:
			return "", invalid(ruleContent, "messages.%d.content.%d.tool_result.content: text and images are expected", i, j)
		}
	}
	return text, nil
}
