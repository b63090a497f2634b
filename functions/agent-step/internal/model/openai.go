package model

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/shared"

	"tuluat.ai/harness/shared/harness"
)

// openAI speaks chat completions. The SDK's service is used without its
// client, which would read OPENAI_* variables by itself.
type openAI struct {
	service openai.ChatCompletionService

	// ownHouse says that the server is OpenAI's. Only there the answer is
	// limited by max_completion_tokens, which its reasoning models demand;
	// everywhere else by max_tokens, because some servers refuse the newer
	// field (Mistral) or ignore it, and an ignored limit limits nothing.
	ownHouse bool
}

func newOpenAI(base *url.URL, key harness.Secret, client *http.Client) *openAI {
	base = base.JoinPath() // a copy
	if base.Path == "" || base.Path == "/" {
		base.Path = "/v1"
	}
	options := []option.RequestOption{
		option.WithBaseURL(base.String()), option.WithHTTPClient(client), option.WithMaxRetries(0),
	}
	if key != "" {
		options = append(options, option.WithAPIKey(key.Reveal()))
	}
	host := base.Hostname()
	return &openAI{
		service:  openai.NewChatCompletionService(options...),
		ownHouse: host == "api.openai.com" || strings.HasSuffix(host, ".api.openai.com"),
	}
}

func (o *openAI) complete(ctx context.Context, x *exchange, name string, req Request) (Response, error) {
	options := []option.RequestOption{option.WithMiddleware(x.send)}
	if req.IdempotencyKey != "" {
		options = append(options, option.WithHeader("Idempotency-Key", req.IdempotencyKey))
	}
	ask := o.whole
	if req.Partial != nil {
		ask = o.stream
	}
	completion, err := ask(ctx, x, o.params(name, req), options)
	if err != nil {
		return Response{}, err
	}
	if len(completion.Choices) == 0 {
		// Gateways put an upstream's error, with its status as code, into a success.
		if d, ok := parseDetail(x.body); ok {
			status, err := strconv.Atoi(d.Code)
			if err != nil || status < 400 || status > 599 {
				status = http.StatusBadGateway
			}
			return Response{}, x.fail(refused(status, x.header, x.body, x.names, x.model, x.redact, x.now()))
		}
		return Response{Stop: StopEnd}, nil // empty: the client's to tell
	}
	return openAIResponse(name, completion), nil
}

func (o *openAI) whole(ctx context.Context, _ *exchange, params openai.ChatCompletionNewParams, options []option.RequestOption) (*openai.ChatCompletion, error) {
	return o.service.New(ctx, params, options...)
}

func (o *openAI) params(name string, req Request) openai.ChatCompletionNewParams {
	params := openai.ChatCompletionNewParams{Model: name}
	limit := openai.Int(int64(max(req.Agent.MaxTokens, 0)))
	if limit.Value == 0 {
		limit.Value = defaultMaxTokens
	}
	if o.ownHouse {
		params.MaxCompletionTokens = limit
		if req.CacheKey != "" { // others refuse a field that they do not know
			params.PromptCacheKey = openai.String(req.CacheKey)
		}
	} else {
		params.MaxTokens = limit
	}
	if req.Agent.Temperature != nil {
		params.Temperature = openai.Float(*req.Agent.Temperature)
	}
	if req.System != "" {
		params.Messages = append(params.Messages, openai.SystemMessage(req.System))
	}
	for _, turn := range req.Turns {
		switch turn.Role {
		case RoleUser:
			params.Messages = append(params.Messages, openAIUser(turn))
		case RoleAssistant:
			params.Messages = append(params.Messages, openAIAssistant(name, turn))
		case RoleTool:
			for _, result := range turn.Results {
				text := result.Text
				if result.Failed { // this wire has no other place to say so
					text = "Error: " + text
				}
				params.Messages = append(params.Messages, openai.ToolMessage(text, result.CallID))
			}
		}
	}
	for _, tool := range req.Tools {
		definition := shared.FunctionDefinitionParam{Name: tool.Name, Parameters: wireSchema(tool.Parameters)}
		if tool.Description != "" {
			definition.Description = openai.String(shortDescription(tool.Description))
		}
		params.Tools = append(params.Tools, openai.ChatCompletionFunctionTool(definition))
	}
	return params
}

func openAIUser(turn Turn) openai.ChatCompletionMessageParamUnion {
	if len(turn.Images) == 0 {
		return openai.UserMessage(turn.Text)
	}
	parts := []openai.ChatCompletionContentPartUnionParam{openai.TextContentPart(turn.Text)}
	for _, image := range turn.Images {
		parts = append(parts, openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{
			URL: "data:" + image.MimeType + ";base64," + base64.StdEncoding.EncodeToString(image.Data),
		}))
	}
	return openai.UserMessage(parts)
}

func openAIAssistant(name string, turn Turn) openai.ChatCompletionMessageParamUnion {
	message := &openai.ChatCompletionAssistantMessageParam{}
	if turn.Text != "" {
		message.Content.OfString = openai.String(turn.Text)
	}
	extras := carriedExtras(harness.ProviderOpenAI, name, turn)
	for i, call := range turn.Calls {
		out := &openai.ChatCompletionMessageFunctionToolCallParam{
			ID: call.ID,
			Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{
				Name: wireName(call.Name), Arguments: string(wireArguments(call.Arguments)),
			},
		}
		if i < len(extras) && extras[i] != nil {
			out.SetExtraFields(map[string]any{extraContent: extras[i]})
		}
		message.ToolCalls = append(message.ToolCalls, openai.ChatCompletionMessageToolCallUnionParam{OfFunction: out})
	}
	return openai.ChatCompletionMessageParamUnion{OfAssistant: message}
}

func openAIResponse(name string, completion *openai.ChatCompletion) Response {
	choice := completion.Choices[0]
	res := Response{
		Text:  openAIText(choice.Message),
		Model: completion.Model,
		Usage: Usage{
			InputTokens: completion.Usage.PromptTokens, OutputTokens: completion.Usage.CompletionTokens,
			CacheReadTokens: min(completion.Usage.PromptTokensDetails.CachedTokens, completion.Usage.PromptTokens),
		},
	}
	extras := make([]json.RawMessage, len(choice.Message.ToolCalls))
	for i, call := range choice.Message.ToolCalls {
		arguments := call.Function.Arguments
		if raw := call.Function.JSON.Arguments.Raw(); arguments == "" && raw != `""` && raw != "null" {
			arguments = raw // some servers send the object itself, not its text
		}
		res.Calls = append(res.Calls, Call{ID: call.ID, Name: call.Function.Name, Arguments: arguments})
		extras[i] = extraOf(call.RawJSON())
	}
	switch {
	case choice.FinishReason == "length":
		res.Stop = StopTruncated
	case choice.FinishReason == "content_filter", choice.Message.Refusal != "":
		res.Stop = StopRefused
		if res.Text == "" {
			res.Text = choice.Message.Refusal
		}
	case len(res.Calls) > 0: // some servers say "stop" here
		res.Stop = StopToolCalls
	default:
		res.Stop = StopEnd
	}
	res.Carry = carryExtras(harness.ProviderOpenAI, name, extras)
	return res
}

// openAIText is the message's text. Some reasoning models answer in parts, of
// which the text parts are meant for people.
func openAIText(message openai.ChatCompletionMessage) string {
	return partsText(message.Content, message.JSON.Content.Raw())
}

func partsText(content, raw string) string {
	if !strings.HasPrefix(raw, "[") {
		return content
	}
	var parts []struct{ Type, Text string }
	if json.Unmarshal([]byte(raw), &parts) != nil {
		return ""
	}
	var text strings.Builder
	for _, part := range parts {
		if part.Type == "text" {
			text.WriteString(part.Text)
		}
	}
	return text.String()
}
