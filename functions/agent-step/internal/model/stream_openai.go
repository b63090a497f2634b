package model

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
)

// stream asks for the answer in pieces and returns it as complete would have had
// it whole. The SDK's accumulator is not used: it drops what is no field of its
// own, such as the signatures that some servers want back, refuses chunks
// whose ids differ, and makes one of calls that have no index.
func (o *openAI) stream(ctx context.Context, x *exchange, params openai.ChatCompletionNewParams, options []option.RequestOption) (*openai.ChatCompletion, error) {
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	chunks := o.service.NewStreaming(ctx, params, options...)
	defer chunks.Close()
	whole := folded{}
	for chunks.Next() {
		if whole.add(chunks.Current()) {
			x.said(whole.text.String())
		}
	}
	if failure, ok := errors.AsType[*ssestream.StreamError](chunks.Err()); ok && x.err == nil {
		return nil, x.interrupted(failure.Event.Data)
	}
	switch {
	case x.err != nil:
		return nil, x.err
	case x.body != nil: // it came whole
	case chunks.Err() != nil && x.flow == nil:
		return nil, chunks.Err()
	case chunks.Err() != nil:
		return nil, x.fail(x.notAnAnswer())
	case whole.finish == "":
		return nil, x.cutOff()
	default:
		x.body = whole.encode()
	}
	completion := &openai.ChatCompletion{}
	return completion, json.Unmarshal(x.body, completion)
}

// folded is an answer put together from chunks: the first choice, which is the
// only one asked for.
type folded struct {
	model   string
	text    strings.Builder
	refusal strings.Builder
	calls   []*foldedCall
	finish  string
	usage   json.RawMessage
}

type foldedCall struct {
	index     int64
	id, name  string
	arguments strings.Builder
	object    json.RawMessage // arguments that are the object itself, not its text
	extra     json.RawMessage
}

// add reports whether the model has said something with chunk.
func (f *folded) add(chunk openai.ChatCompletionChunk) bool {
	if chunk.Model != "" {
		f.model = chunk.Model
	}
	if chunk.JSON.Usage.Valid() {
		f.usage = json.RawMessage(chunk.Usage.RawJSON())
	}
	said := false
	for _, choice := range chunk.Choices {
		if choice.Index != 0 {
			continue
		}
		piece := deltaText(choice.Delta)
		f.text.WriteString(piece)
		f.refusal.WriteString(choice.Delta.Refusal)
		for _, call := range choice.Delta.ToolCalls {
			f.call(call)
		}
		if choice.FinishReason != "" {
			f.finish = choice.FinishReason
		}
		said = said || piece != "" || choice.Delta.Refusal != "" || len(choice.Delta.ToolCalls) > 0 || f.finish != ""
	}
	return said
}

// call adds a piece of a call. Another id is another call, whatever its index
// says: some servers send every call whole and none of them an index.
func (f *folded) call(piece openai.ChatCompletionChunkChoiceDeltaToolCall) {
	var call *foldedCall
	for _, known := range f.calls {
		if known.index == piece.Index && (piece.ID == "" || known.id == "" || known.id == piece.ID) {
			call = known
		}
	}
	if call == nil {
		call = &foldedCall{index: piece.Index}
		f.calls = append(f.calls, call)
	}
	if piece.ID != "" {
		call.id = piece.ID
	}
	call.name += piece.Function.Name
	call.arguments.WriteString(piece.Function.Arguments)
	if raw := piece.Function.JSON.Arguments.Raw(); strings.HasPrefix(raw, "{") {
		call.object = json.RawMessage(raw)
	}
	if extra := extraOf(piece.RawJSON()); extra != nil {
		call.extra = extra
	}
}

// deltaText is a chunk's text, which some reasoning models send in parts.
func deltaText(delta openai.ChatCompletionChunkChoiceDelta) string {
	return partsText(delta.Content, delta.JSON.Content.Raw())
}

// encode writes the answer as it would have come whole.
func (f *folded) encode() []byte {
	type function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	type toolCall struct {
		ID       string          `json:"id"`
		Type     string          `json:"type"`
		Function function        `json:"function"`
		Extra    json.RawMessage `json:"extra_content,omitempty"`
	}
	calls := make([]toolCall, 0, len(f.calls))
	for _, call := range f.calls {
		arguments := call.object
		if arguments == nil || call.arguments.Len() > 0 {
			arguments = mustJSON(call.arguments.String())
		}
		calls = append(calls, toolCall{ID: call.id, Type: "function", Function: function{call.name, arguments}, Extra: call.extra})
	}
	message := map[string]any{"role": "assistant", "content": f.text.String(), "refusal": f.refusal.String()}
	if len(calls) > 0 {
		message["tool_calls"] = calls
	}
	whole := map[string]any{"object": "chat.completion", "model": f.model, "choices": []any{map[string]any{"index": 0, "message": message, "finish_reason": f.finish}}}
	if f.usage != nil {
		whole["usage"] = f.usage
	}
	return mustJSON(whole)
}

// mustJSON encodes plain values and what was valid JSON when it came.
func mustJSON(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return text
}
