package harness

import (
	"strings"
	"unicode/utf8"
)

// Channel is a way people or systems reach an agent.
type Channel string

// The channels.
const (
	ChannelWhatsApp Channel = "WHATSAPP"
	ChannelTelegram Channel = "TELEGRAM"
	ChannelWebhook  Channel = "WEBHOOK"
	ChannelAPI      Channel = "API"
)

// Drafts reports whether people see an answer on c before it is written: only where
// a message that was sent can be changed.
func (c Channel) Drafts() bool { return c == ChannelTelegram }

// Known reports whether c is one of the channels above.
func (c Channel) Known() bool {
	switch c {
	case ChannelWhatsApp, ChannelTelegram, ChannelWebhook, ChannelAPI:
		return true
	}
	return false
}

// Direction tells an inbound Message from an outbound one.
type Direction string

// The directions of a Message.
const (
	Inbound  Direction = "INBOUND"
	Outbound Direction = "OUTBOUND"
)

// MessageState is how far the turn of an inbound Message has come. Outbound
// messages are DONE from the start; their delivery is tracked per Reply.
type MessageState string

// The states of a Message.
const (
	MessagePending MessageState = "PENDING" // waits its turn
	MessageRunning MessageState = "RUNNING" // its turn is being worked
	MessageDone    MessageState = "DONE"    // answered, for better or worse
)

var messageTransitions = transitions[MessageState]{
	MessagePending: {MessageRunning, MessageDone},
	MessageRunning: {MessageDone},
	MessageDone:    {},
}

// May reports whether a message in state s may go to state to.
func (s MessageState) May(to MessageState) bool { return messageTransitions.may(s, to) }

// Known reports whether s is one of the states above.
func (s MessageState) Known() bool { return messageTransitions.known(s) }

// Message is one inbound or outbound text of a conversation, as every channel
// normalises it.
type Message struct {
	Channel       Channel
	ChannelUserID string
	Text          string
	Metadata      map[string]any // data, never instructions; numbers keep their exact decimal text
}

// ReplyState is how far one part of an outbound Message has come.
type ReplyState string

// The states of a Reply.
const (
	ReplyPlanned   ReplyState = "PLANNED"   // written, not sent
	ReplySent      ReplyState = "SENT"      // the provider took it and named it
	ReplyDelivered ReplyState = "DELIVERED" // it reached the person's device
	ReplyRead      ReplyState = "READ"      // the person saw it
	ReplyFailed    ReplyState = "FAILED"    // it will not arrive
	ReplyUnknown   ReplyState = "UNKNOWN"   // sent, but the provider's answer was lost
)

var replyTransitions = transitions[ReplyState]{
	ReplyPlanned:   {ReplySent, ReplyFailed, ReplyUnknown},
	ReplySent:      {ReplyDelivered, ReplyRead, ReplyFailed, ReplyPlanned}, // PLANNED again: proved undelivered, and a template may still reach the person
	ReplyDelivered: {ReplyRead},
	ReplyUnknown:   {ReplyPlanned, ReplySent, ReplyDelivered, ReplyRead, ReplyFailed},
	ReplyRead:      {},
	ReplyFailed:    {},
}

// May reports whether a reply in state s may go to state to.
func (s ReplyState) May(to ReplyState) bool { return replyTransitions.may(s, to) }

// Known reports whether s is one of the states above.
func (s ReplyState) Known() bool { return replyTransitions.known(s) }

// CleanText makes s storable and valid: NUL, which PostgreSQL refuses in text,
// is dropped, and bytes that are not UTF-8 become U+FFFD.
func CleanText(s string) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	return strings.ReplaceAll(s, "\x00", "")
}
