// Package sse reads server-sent events: those of a chat and those of a session
// are the same.
package sse

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// Event is one event of a stream. Which fields are set depends on Name.
type Event struct {
	ID   string          `json:"-"` // place in the stream; empty: none
	Name string          `json:"-"` // session, turn, tool_call, output, tool_result, draft, reply, end
	Data json.RawMessage `json:"-"` // as it came

	Session       harness.SessionID  `json:"session"`
	State         string             `json:"state"` // session, end: of the session; tool_result: of the call
	At            time.Time          `json:"at"`
	Turns         int                `json:"turns"` // session
	Message       harness.MessageID  `json:"message"`
	ChannelUserID string             `json:"channelUserId"`
	InReplyTo     harness.MessageID  `json:"inReplyTo"`
	Text          string             `json:"text"`
	Choices       []harness.Choice   `json:"choices"` // reply: each is pressed by saying its title
	ToolCall      harness.ToolCallID `json:"toolCall"`
	ToolName      string             `json:"name"`
	Arguments     string             `json:"arguments"`
	Result        string             `json:"result"`
	Stream        string             `json:"stream"`
	Offset        int64              `json:"offset"` // output: of the first byte of text
	Execution     *Execution         `json:"execution"`
}

// Execution is how a command ended.
type Execution struct {
	State    harness.ExecutionState `json:"state"`
	Reason   string                 `json:"reason"`
	ExitCode *int                   `json:"exitCode"`
}

// maxEvent bounds one event's text: a reply, a result or a stretch of output.
const maxEvent = 8 << 20

// Read hands every event to each until r ends (nil), each fails, or something is
// no event. An event that is cut off by the end is none.
func Read(r io.Reader, each func(Event) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEvent)
	var e Event
	var data []string
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "id":
			e.ID = value
		case "event":
			e.Name = value
		case "data":
			data = append(data, value)
		case "":
			if lines.Text() != "" || e.Name == "" { // a comment, or the end of nothing
				continue
			}
			if len(data) > 0 {
				e.Data = json.RawMessage(strings.Join(data, "\n"))
				if err := json.Unmarshal(e.Data, &e); err != nil {
					return fmt.Errorf("event %s of the stream: %w", e.ID, err)
				}
			}
			if err := each(e); err != nil {
				return err
			}
			e, data = Event{}, nil
		}
	}
	return lines.Err()
}
