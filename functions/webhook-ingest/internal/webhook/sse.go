package webhook

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// The events of a stream as they are on the wire. Ids, states and words are
// those of shared/harness.
type (
	sessionJSON struct {
		Session harness.SessionID    `json:"session"`
		State   harness.SessionState `json:"state"`
		Turns   int                  `json:"turns"`
	}
	turnJSON struct {
		placeJSON
		Message       harness.MessageID `json:"message"`
		MessageID     string            `json:"messageId"` // the caller's
		ChannelUserID string            `json:"channelUserId"`
		Text          string            `json:"text"`
	}
	toolCallJSON struct {
		placeJSON
		ToolCall  harness.ToolCallID `json:"toolCall"`
		Name      string             `json:"name"`
		Arguments string             `json:"arguments"` // as the model wrote them
	}
	toolResultJSON struct {
		placeJSON
		ToolCall  harness.ToolCallID    `json:"toolCall"`
		Name      string                `json:"name"`
		State     harness.ToolCallState `json:"state"`
		Result    string                `json:"result"` // what the model is told
		Execution *executionJSON        `json:"execution,omitempty"`
	}
	executionJSON struct {
		Execution harness.ExecutionID    `json:"execution"`
		State     harness.ExecutionState `json:"state"`
		Reason    string                 `json:"reason,omitempty"`
		ExitCode  *int                   `json:"exitCode,omitempty"`
	}
	outputJSON struct {
		ToolCall harness.ToolCallID `json:"toolCall"`
		Stream   string             `json:"stream"`
		Offset   int64              `json:"offset"` // of the first byte of text in what the command printed there
		Text     string             `json:"text"`
	}
	replyJSON struct {
		placeJSON
		Message   harness.MessageID `json:"message"`
		InReplyTo harness.MessageID `json:"inReplyTo"`
		Text      string            `json:"text"`
		Choices   []harness.Choice  `json:"choices,omitempty"` // to answer with: a message of the title, or anything else
	}
	placeJSON struct {
		Session harness.SessionID `json:"session"`
		Seq     int64             `json:"seq"`
		At      time.Time         `json:"at"`
	}
)

// sse collects events in the wire form of server-sent events.
type sse struct{ bytes.Buffer }

func (b *sse) event(id, name string, data any) error {
	encoded, err := json.Marshal(data) // one line: JSON writes no line break
	if err != nil {
		return err
	}
	if id != "" {
		b.WriteString("id: " + id + "\n")
	}
	b.WriteString("event: " + name + "\ndata: ")
	b.Write(encoded)
	b.WriteString("\n\n")
	return nil
}

func (b *sse) comment(text string) { b.WriteString(": " + text + "\n\n") }

// tell writes one event of a conversation.
func (b *sse) tell(e postgres.StreamEvent) error {
	id, place := cursorID(e.StreamCursor), placeJSON{Session: e.Session, Seq: e.Seq, At: e.At.UTC()}
	switch e.Kind {
	case postgres.StreamTurn:
		return b.event(id, "turn", turnJSON{placeJSON: place, Message: e.Message, MessageID: e.ProviderID, ChannelUserID: e.ChannelUserID, Text: e.Text})
	case postgres.StreamToolCall:
		return b.event(id, "tool_call", toolCallJSON{placeJSON: place, ToolCall: e.Call, Name: e.Name, Arguments: e.Arguments})
	case postgres.StreamToolResult:
		result := toolResultJSON{placeJSON: place, ToolCall: e.Call, Name: e.Name, State: e.CallState, Result: e.Result}
		if e.Execution != "" {
			result.Execution = &executionJSON{Execution: e.Execution, State: e.ExecutionState, Reason: e.Reason, ExitCode: e.ExitCode}
		}
		return b.event(id, "tool_result", result)
	case postgres.StreamReply:
		return b.event(id, "reply", replyJSON{placeJSON: place, Message: e.Message, InReplyTo: e.InReplyTo, Text: e.Text, Choices: e.Choices})
	default: // a kind of the future: the cursor moves on
		return nil
	}
}

func cursorID(c postgres.StreamCursor) string {
	return string(c.Session) + "/" + strconv.FormatInt(c.Seq, 10)
}

// parseCursor reads what cursorID wrote.
func parseCursor(id string) (postgres.StreamCursor, bool) {
	session, seq, ok := strings.Cut(id, "/")
	n, err := strconv.ParseInt(seq, 10, 64)
	ok = ok && err == nil && n >= 0 && session != "" && len(session) <= maxID && utf8.ValidString(session) && !strings.Contains(session, "\x00")
	return postgres.StreamCursor{Session: harness.SessionID(session), Seq: n}, ok
}

// live is what a connection has sent of the output of calls that run.
type live map[harness.ToolCallID]*[2]int64 // bytes of stdout and stderr

var outputStreams = [2]string{"stdout", "stderr"}

func (l live) places(calls ...harness.ToolCallID) []postgres.OutputPlace {
	var places []postgres.OutputPlace
	for _, call := range calls {
		for i, stream := range outputStreams {
			place := postgres.OutputPlace{Call: call, Stream: stream}
			if sent := l[call]; sent != nil {
				place.Offset = sent[i]
			}
			places = append(places, place)
		}
	}
	return places
}

// output writes chunks and moves l on. A character that is cut at the end stays
// behind for the next time unless last says that there is none.
func (b *sse) output(l live, chunks []postgres.OutputChunk, last bool) error {
	for len(chunks) > 0 {
		first := chunks[0]
		data := first.Data
		chunks = chunks[1:]
		for len(chunks) > 0 && chunks[0].Call == first.Call && chunks[0].Stream == first.Stream && chunks[0].Offset == first.Offset+int64(len(data)) {
			data = append(data, chunks[0].Data...)
			chunks = chunks[1:]
		}
		if !last {
			data = data[:wholeRunes(data)]
		}
		if len(data) == 0 {
			continue
		}
		sent := l[first.Call]
		if sent == nil {
			sent = &[2]int64{}
			l[first.Call] = sent
		}
		for i, stream := range outputStreams {
			if stream == first.Stream {
				sent[i] = first.Offset + int64(len(data))
			}
		}
		text := strings.ToValidUTF8(string(data), "\uFFFD")
		if err := b.event("", "output", outputJSON{ToolCall: first.Call, Stream: first.Stream, Offset: first.Offset, Text: text}); err != nil {
			return err
		}
	}
	return nil
}

// wholeRunes is the length of data without a UTF-8 sequence that its end cuts.
func wholeRunes(data []byte) int {
	for back := 1; back < utf8.UTFMax && back <= len(data); back++ {
		if at := len(data) - back; utf8.RuneStart(data[at]) {
			if utf8.FullRune(data[at:]) {
				return len(data)
			}
			return at
		}
	}
	return len(data)
}
