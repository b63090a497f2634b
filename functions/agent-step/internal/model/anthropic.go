package model

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/anthropics/anthropic-sdk-go/v2/packages/param"

	"tuluat.ai/harness/shared/harness"
)

// The block types of Anthropic's messages.
const (
	blockText             = "text"
	blockToolUse          = "tool_use"
	blockThinking         = "thinking"
	blockRedactedThinking = "redacted_thinking"
)

// anthropicMessages speaks Anthropic's messages. The SDK's service is used
// without its client, which would read ANTHROPIC_* variables and credential
// files by itself.
type anthropicMessages struct{ service anthropic.MessageService }

func newAnthropic(base *url.URL, key harness.Secret, client *http.Client, total time.Duration) *anthropicMessages {
	base = base.JoinPath() // a copy
	base.Path = strings.TrimSuffix(strings.TrimRight(base.Path, "/"), "/v1") + "/"
	options := []option.RequestOption{
		option.WithBaseURL(base.String()), option.WithHTTPClient(client), option.WithMaxRetries(0),
		// Without a timeout of ours the SDK refuses large max_tokens outright. The
		// context's deadline is the one that counts.
		option.WithRequestTimeout(total + time.Minute),
	}
	if key != "" {
		options = append(options, option.WithAPIKey(key.Reveal())) // sent as Authorization
		if base.Hostname() != "api.anthropic.com" {
			options = append(options, option.WithHeader("X-Api-Key", key.Reveal())) // what compatible servers look for
		}
	}
	return &anthropicMessages{service: anthropic.NewMessageService(options...)}
}

func (a *anthropicMessages) complete(ctx context.Context, x *exchange, name string, req Request) (Response, error) {
	options := []option.RequestOption{option.WithMiddleware(x.send)}
	if req.IdempotencyKey != "" {
		options = append(options, option.WithHeader("Idempotency-Key", req.IdempotencyKey))
	}
	ask := a.whole
	if req.Partial != nil {
		ask = a.stream
	}
	message, err := ask(ctx, x, anthropicParams(name, req), options)
	if err != nil {
		return Response{}, err
	}
	if message.Type != "message" || message.Role != "assistant" {
		if d, ok := parseDetail(x.body); ok && d.Type != "" {
			return Response{}, x.fail(refused(http.StatusBadGateway, x.header, x.body, x.names, x.model, x.redact, x.now()))
		}
		return Response{}, x.fail(x.notAnAnswer())
	}
	return anthropicResponse(name, message), nil
}

func (a *anthropicMessages) whole(ctx context.Context, _ *exchange, params anthropic.MessageNewParams, options []option.RequestOption) (*anthropic.Message, error) {
	return a.service.New(ctx, params, options...)
}

// anthropicParams leaves the agent's temperature out: the version of the API
// that the SDK speaks refuses every sampling parameter.
func anthropicParams(name string, req Request) anthropic.MessageNewParams {
	params := anthropic.MessageNewParams{Model: name, MaxTokens: int64(req.Agent.MaxTokens)}
	if params.MaxTokens <= 0 {
		params.MaxTokens = defaultMaxTokens
	}
	if strings.TrimSpace(req.System) != "" {
		params.System = []anthropic.TextBlockParam{{Text: req.System}}
	}
	params.Messages = anthropicHistory(name, req.Turns)
	for _, tool := range req.Tools {
		definition := &anthropic.ToolParam{Name: tool.Name, InputSchema: anthropicSchema(tool.Parameters)}
		if tool.Description != "" {
			definition.Description = anthropic.String(tool.Description)
		}
		params.Tools = append(params.Tools, anthropic.ToolUnionParam{OfTool: definition})
	}
	keepCallsReadable(&params, req.Turns)
	anthropicCache(&params)
	return params
}

// anthropicHistory builds messages whose roles alternate: results are part of
// the user's side there, and stand before its text.
func anthropicHistory(name string, turns []Turn) []anthropic.MessageParam {
	var (
		messages []anthropic.MessageParam
		blocks   []anthropic.ContentBlockParamUnion
		speaker  Role
	)
	flush := func() {
		switch {
		case len(blocks) == 0:
		case speaker == RoleAssistant:
			messages = append(messages, anthropic.NewAssistantMessage(blocks...))
		default:
			messages = append(messages, anthropic.NewUserMessage(blocks...))
		}
		blocks = nil
	}
	for _, turn := range turns {
		side := turn.Role
		if side == RoleTool {
			side = RoleUser
		}
		if side != speaker {
			flush()
			speaker = side
		}
		switch turn.Role {
		case RoleUser:
			blocks = append(blocks, anthropic.NewTextBlock(turn.Text))
			for _, image := range turn.Images {
				blocks = append(blocks, anthropic.NewImageBlockBase64(image.MimeType, base64.StdEncoding.EncodeToString(image.Data)))
			}
		case RoleAssistant:
			blocks = append(blocks, anthropicAssistant(name, turn)...)
		case RoleTool:
			for _, result := range turn.Results {
				blocks = append(blocks, anthropicResult(result))
			}
		}
	}
	flush()
	return messages
}

func anthropicAssistant(name string, turn Turn) []anthropic.ContentBlockParamUnion {
	calls := make([]anthropic.ContentBlockParamUnion, 0, len(turn.Calls))
	for _, call := range turn.Calls {
		calls = append(calls, anthropic.NewToolUseBlock(call.ID, wireArguments(call.Arguments), wireName(call.Name)))
	}
	var blocks []anthropic.ContentBlockParamUnion
	if carried := carriedBlocks(harness.ProviderAnthropic, name, turn); carried != nil {
		for _, block := range carried {
			switch block.Type {
			case blockText:
				blocks = append(blocks, anthropic.NewTextBlock(block.Text))
			case blockThinking:
				blocks = append(blocks, anthropic.NewThinkingBlock(block.Signature, block.Thinking))
			case blockRedactedThinking:
				blocks = append(blocks, anthropic.NewRedactedThinkingBlock(block.Data))
			case blockToolUse:
				blocks, calls = append(blocks, calls[0]), calls[1:]
			}
		}
		return blocks
	}
	if strings.TrimSpace(turn.Text) != "" { // a blank block is refused
		blocks = append(blocks, anthropic.NewTextBlock(turn.Text))
	}
	return append(blocks, calls...)
}

func anthropicResult(result Result) anthropic.ContentBlockParamUnion {
	block := &anthropic.ToolResultBlockParam{ToolUseID: result.CallID}
	if strings.TrimSpace(result.Text) != "" {
		block.Content = []anthropic.ToolResultBlockParamContentUnion{{OfText: &anthropic.TextBlockParam{Text: result.Text}}}
	}
	if result.Failed {
		block.IsError = anthropic.Bool(true)
	}
	return anthropic.ContentBlockParamUnion{OfToolResult: block}
}

// anthropicSchema passes parameters on with their keys in order: the same request
// is the same bytes, which the provider's cache looks for.
func anthropicSchema(parameters map[string]any) anthropic.ToolInputSchemaParam {
	return param.Override[anthropic.ToolInputSchemaParam](wireSchema(parameters))
}

func anthropicResponse(name string, message *anthropic.Message) Response {
	usage := message.Usage
	res := Response{
		Model: message.Model,
		Usage: Usage{
			InputTokens:     usage.InputTokens + usage.CacheCreationInputTokens + usage.CacheReadInputTokens,
			CacheReadTokens: usage.CacheReadInputTokens, CacheWriteTokens: usage.CacheCreationInputTokens,
			OutputTokens: usage.OutputTokens,
		},
	}
	var text strings.Builder
	var blocks []carriedBlock
	thought := false
	for _, block := range message.Content {
		switch block.Type {
		case blockText:
			text.WriteString(block.Text)
			if strings.TrimSpace(block.Text) != "" {
				blocks = append(blocks, carriedBlock{Type: blockText, Text: block.Text})
			}
		case blockThinking, blockRedactedThinking:
			thought = true
			blocks = append(blocks, carriedBlock{Type: block.Type, Thinking: block.Thinking, Signature: block.Signature, Data: block.Data})
		case blockToolUse:
			res.Calls = append(res.Calls, Call{ID: block.ID, Name: block.Name, Arguments: anthropicArguments(block.Input)})
			blocks = append(blocks, carriedBlock{Type: blockToolUse})
		}
	}
	res.Text = text.String()
	if thought {
		res.Carry = carry{Provider: harness.ProviderAnthropic, Model: name, Blocks: blocks}.encode()
	}
	switch message.StopReason {
	case anthropic.StopReasonMaxTokens, anthropic.StopReasonModelContextWindowExceeded:
		res.Stop = StopTruncated
	case anthropic.StopReasonRefusal:
		res.Stop = StopRefused
	default:
		res.Stop = StopEnd
		if len(res.Calls) > 0 {
			res.Stop = StopToolCalls
		}
	}
	return res
}

// anthropicArguments is the input as text. Servers that only imitate this wire
// may put the text of broken JSON in a string.
func anthropicArguments(input json.RawMessage) string {
	var text *string
	if json.Unmarshal(input, &text) == nil && text != nil {
		return *text
	}
	return string(input)
}
