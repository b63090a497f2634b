package model

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"
)

// stream asks for the answer in pieces and returns it as the SDK puts it
// together.
func (a *anthropicMessages) stream(ctx context.Context, x *exchange, params anthropic.MessageNewParams, options []option.RequestOption) (*anthropic.Message, error) {
	events := a.service.NewStreaming(ctx, params, options...)
	defer events.Close()
	message, stopped := &anthropic.Message{}, false
	inputs := map[int64][]byte{} // of calls: the SDK's own copy loses one that is cut off
	for events.Next() {
		event := events.Current()
		if err := message.Accumulate(event); err != nil {
			return nil, x.fail(x.notAnAnswer())
		}
		inputs[event.Index] = append(inputs[event.Index], event.Delta.PartialJSON...)
		switch event.Type {
		case "content_block_delta", "message_delta":
			x.said(anthropicText(message))
		case "message_stop":
			stopped = true
		}
	}
	failure, said := errors.AsType[*anthropic.Error](events.Err())
	switch {
	case x.err != nil:
		return nil, x.err
	case x.body != nil: // it came whole
		message = &anthropic.Message{}
		return message, json.Unmarshal(x.body, message)
	case x.flow == nil && events.Err() != nil:
		return nil, events.Err()
	case said:
		return nil, x.interrupted([]byte(failure.RawJSON()))
	case events.Err() != nil:
		return nil, x.fail(x.notAnAnswer())
	case !stopped && message.StopReason == "":
		return nil, x.cutOff()
	}
	x.body = []byte(anthropicText(message)) // what an estimate counts
	for i := range message.Content {
		block := &message.Content[i]
		if input := inputs[int64(i)]; block.Type == blockToolUse && len(input) > 0 {
			block.Input = input
		}
		x.body = append(x.body, block.Input...)
	}
	return message, nil
}

func anthropicText(message *anthropic.Message) string {
	var text strings.Builder
	for _, block := range message.Content {
		if block.Type == blockText {
			text.WriteString(block.Text)
		}
	}
	return text.String()
}
