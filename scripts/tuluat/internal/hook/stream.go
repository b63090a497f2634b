package hook

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"tuluat.ai/harness/shared/harness"
)

// Event is one event of a chat's stream. Which fields are set depends on Name.
type Event struct {
	ID   string `json:"-"` // place in the stream; empty: none
	Name string `json:"-"` // session, turn, tool_call, output, tool_result, reply

	Session       harness.SessionID  `json:"session"`
	State         string             `json:"state"` // session: of the session; tool_result: of the call
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

// Stream hands every event of chat behind the place after to each, until the
// server ends the stream (nil) or something fails. opened is called when the
// server has agreed. Without follow it ends with what exists.
func (c *Client) Stream(ctx context.Context, chat, after string, follow bool, opened func(), each func(Event) error) error {
	query := url.Values{"chat": {chat}}
	if after != "" {
		query.Set("after", after)
	}
	if !follow {
		query.Set("follow", "false")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/stream?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := c.do(request, []byte(request.URL.RequestURI()))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if opened != nil {
		opened()
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, maxEvent)
	var e Event
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "id":
			e.ID = value
		case "event":
			e.Name = value
		case "data":
			if err := json.Unmarshal([]byte(value), &e); err != nil {
				return fmt.Errorf("event %s of the stream: %w", e.ID, err)
			}
		case "":
			if lines.Text() == "" && e.Name != "" {
				if err := each(e); err != nil {
					return err
				}
				e = Event{}
			}
		}
	}
	return lines.Err()
}
