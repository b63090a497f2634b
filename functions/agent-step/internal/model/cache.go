package model

import (
	"slices"

	"github.com/anthropics/anthropic-sdk-go/v2"
)

// anthropicCache marks where the provider may keep what it has read: behind the
// tools and the system prompt, which every question of an agent begins with;
// behind the question itself, which the next one of its conversation begins with;
// and behind the one before, because what is looked for back from a mark ends
// after 20 blocks. Of the four marks that a request may have that leaves one.
func anthropicCache(params *anthropic.MessageNewParams) {
	mark := anthropic.NewCacheControlEphemeralParam()
	switch {
	case len(params.System) > 0:
		params.System[len(params.System)-1].CacheControl = mark
	case len(params.Tools) > 0:
		params.Tools[len(params.Tools)-1].OfTool.CacheControl = mark
	}
	marks := 2
	for _, message := range slices.Backward(params.Messages) {
		if marks == 0 {
			return
		}
		if message.OfUser == nil || len(message.OfUser.Content) == 0 {
			continue
		}
		switch block := message.OfUser.Content[len(message.OfUser.Content)-1]; {
		case block.OfText != nil:
			block.OfText.CacheControl = mark
		case block.OfToolResult != nil:
			block.OfToolResult.CacheControl = mark
		case block.OfImage != nil:
			block.OfImage.CacheControl = mark
		}
		marks--
	}
}
