package stream

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

// The names of events. Those of a session's own events have an id; what it has not
// in its history, such as a draft, has none.
const (
	eventSession    = "session"
	eventTurn       = "turn"
	eventToolCall   = "tool_call"
	eventToolResult = "tool_result"
	eventOutput     = "output"
	eventDraft      = "draft"
	eventReply      = "reply"
	eventApproval   = "approval"
	eventEnd        = "end"
)

// buffer collects events in the wire form of server-sent events.
type buffer struct{ bytes.Buffer }

func (b *buffer) event(id, name string, data any) error {
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

func (b *buffer) comment(text string) { b.WriteString(": " + text + "\n\n") }

// tell writes one event of a session.
func (b *buffer) tell(e postgres.StreamEvent) error {
	id, place := CursorID(e.StreamCursor), view.StreamPlace{Session: e.Session, Seq: e.Seq, At: e.At.UTC()}
	switch e.Kind {
	case postgres.StreamTurn:
		return b.event(id, eventTurn, view.StreamTurn{StreamPlace: place, Message: e.Message, MessageID: e.ProviderID, ChannelUserID: e.ChannelUserID, Text: e.Text})
	case postgres.StreamToolCall:
		return b.event(id, eventToolCall, view.StreamToolCall{StreamPlace: place, ToolCall: e.Call, Name: e.Name, Arguments: e.Arguments})
	case postgres.StreamToolResult:
		result := view.StreamToolResult{StreamPlace: place, ToolCall: e.Call, Name: e.Name, State: e.CallState, Result: e.Result}
		if e.Execution != "" {
			result.Execution = &view.StreamExecution{Execution: e.Execution, State: e.ExecutionState, Reason: e.Reason, ExitCode: e.ExitCode}
		}
		return b.event(id, eventToolResult, result)
	case postgres.StreamReply:
		return b.event(id, eventReply, view.StreamReply{StreamPlace: place, Message: e.Message, InReplyTo: e.InReplyTo, Text: e.Text, Choices: e.Choices})
	case postgres.StreamApproval:
		return b.event(id, eventApproval, view.StreamApproval{StreamPlace: place, Approval: e.Approval, State: e.ApprovalState, Title: e.Title})
	default: // a kind of the future: the cursor moves on
		return nil
	}
}

// maxCursor is the longest session id that a cursor may hold, in bytes.
const maxCursor = 200

// CursorID is the id of the event at c.
func CursorID(c postgres.StreamCursor) string {
	return string(c.Session) + "/" + strconv.FormatInt(c.Seq, 10)
}

// ParseCursor reads what CursorID wrote; false: it did not write that.
func ParseCursor(id string) (postgres.StreamCursor, bool) {
	session, seq, ok := strings.Cut(id, "/")
	n, err := strconv.ParseInt(seq, 10, 64)
	ok = ok && err == nil && n >= 0 && session != "" && len(session) <= maxCursor && utf8.ValidString(session) && !strings.Contains(session, "\x00")
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
func (b *buffer) output(l live, chunks []postgres.OutputChunk, last bool) error {
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
		if err := b.event("", eventOutput, view.StreamOutput{ToolCall: first.Call, Stream: first.Stream, Offset: first.Offset, Text: text}); err != nil {
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
