package view

import (
	"time"

	"tuluat.ai/harness/shared/harness"
)

// The data of the events of a session's stream. An event has the name that its
// type's comment says; those with a StreamPlace have an id, and a client that
// comes back behind it misses nothing.

// StreamPlace says which event of which session it is, and when it happened.
type StreamPlace struct {
	Session harness.SessionID `json:"session"`
	Seq     int64             `json:"seq"`
	At      time.Time         `json:"at"`
}

// StreamSession is event session: where the session stands. It is told at the
// begin, and when that has changed.
type StreamSession struct {
	Session harness.SessionID    `json:"session"`
	State   harness.SessionState `json:"state"`
	Turns   int                  `json:"turns,omitempty" doc:"messages taken up so far; of a hook's stream only"`
}

// StreamTurn is event turn: a message is taken up.
type StreamTurn struct {
	StreamPlace
	Message       harness.MessageID `json:"message"`
	MessageID     string            `json:"messageId" doc:"the caller's or the provider's"`
	ChannelUserID string            `json:"channelUserId"`
	Text          string            `json:"text"`
}

// StreamToolCall is event tool_call: the model asks for something.
type StreamToolCall struct {
	StreamPlace
	ToolCall  harness.ToolCallID `json:"toolCall"`
	Name      string             `json:"name"`
	Arguments string             `json:"arguments" doc:"as the model wrote them"`
}

// StreamToolResult is event tool_result: what became of it.
type StreamToolResult struct {
	StreamPlace
	ToolCall  harness.ToolCallID    `json:"toolCall"`
	Name      string                `json:"name"`
	State     harness.ToolCallState `json:"state"`
	Result    string                `json:"result" doc:"what the model is told"`
	Execution *StreamExecution      `json:"execution,omitempty"`
}

// StreamExecution is the command of a tool call.
type StreamExecution struct {
	Execution harness.ExecutionID    `json:"execution"`
	State     harness.ExecutionState `json:"state"`
	Reason    string                 `json:"reason,omitempty"`
	ExitCode  *int                   `json:"exitCode,omitempty"`
}

// StreamOutput is event output: what a running command has printed. It has no
// id: a client that comes back gets the output of what still runs again.
type StreamOutput struct {
	ToolCall harness.ToolCallID `json:"toolCall"`
	Stream   string             `json:"stream" enum:"stdout,stderr"`
	Offset   int64              `json:"offset" doc:"of the first byte of text in what the command printed there"`
	Text     string             `json:"text"`
}

// StreamApproval is event approval: a human is asked, or is not asked any more.
// Read late, both tell of the end.
type StreamApproval struct {
	StreamPlace
	Approval harness.ApprovalID    `json:"approval"`
	State    harness.ApprovalState `json:"state"`
	Title    string                `json:"title" doc:"what is asked, in one line"`
}

// StreamDraft is event draft: what is written so far of an answer. It has no id and
// is no part of the session's history: a later draft, or the reply, takes its place.
type StreamDraft struct {
	Session   harness.SessionID `json:"session"`
	InReplyTo harness.MessageID `json:"inReplyTo"`
	Revision  int64             `json:"revision" doc:"grows with the draft"`
	Text      string            `json:"text" doc:"all of it"`
}

// StreamReply is event reply: the answer.
type StreamReply struct {
	StreamPlace
	Message   harness.MessageID `json:"message"`
	InReplyTo harness.MessageID `json:"inReplyTo"`
	Text      string            `json:"text"`
	Choices   []harness.Choice  `json:"choices,omitempty" doc:"to answer with: a message of the title, or anything else"`
}
