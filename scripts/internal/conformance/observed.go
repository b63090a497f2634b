package conformance

import (
	"encoding/json"
	"time"
)

// Observed is everything that came of one case.
type Observed struct {
	Answers    []Answer
	Messages   []Stored // in the order of their sessions and turns
	Wakes      []string // the sessions that message.received events named; nil: nobody listened
	Records    []map[string]string
	NextOffset int64 // of the poller's next getUpdates; 0: it asked for nothing more
	Faults     []string

	Reply    *Reply // of a case about sending
	Requests []Sent // in order
	Errors   []string
	Watched  bool // the functions' log was read: Errors are all there are
}

// Answer is one HTTP answer of a function.
type Answer struct {
	Status      int
	Body        string
	ContentType string
	NoSniff     bool
	Took        time.Duration
}

// Stored is a message as it is in its row.
type Stored struct {
	Session       string
	Channel       string
	ChannelUserID string
	ProviderID    string
	Text          string
	Metadata      map[string]any // numbers are json.Number
}

// Reply is what became of a planned reply.
type Reply struct {
	State       string // of its first part
	Reason      string
	Parts       int
	Open        bool    // a part is still PLANNED or UNKNOWN
	Wait        float64 // seconds until the next attempt, from the first delivery on
	Text        string  // that was planned
	OtherServed *bool   // a reply to another person was SENT meanwhile; nil: not tried
}

// Sent is one request by which something was sent to a provider.
type Sent struct {
	Path string
	Body map[string]any // numbers are json.Number
}

// messageID is the provider's id of m.
func (m *Stored) messageID() string {
	if id := scalar(m.Metadata["messageId"]); id != "" {
		return id
	}
	return m.ProviderID
}

// scalar is the exact decimal or other text of a JSON scalar; the JSON of
// anything else.
func scalar(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case json.Number:
		return v.String()
	}
	text, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(text)
}

// scalarOf is scalar of a raw value.
func scalarOf(raw json.RawMessage) string {
	v, err := decode(raw)
	if err != nil {
		return string(raw)
	}
	return scalar(v)
}
