package fake

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

// eventStream writes server-sent events, each at once.
type eventStream struct {
	w     http.ResponseWriter
	flush func()
	pace  time.Duration // between two events
}

func newEventStream(w http.ResponseWriter, pace time.Duration) *eventStream {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	return &eventStream{w: w, pace: pace, flush: func() { _ = control.Flush() }} // a writer without Flush sends it all at the end
}

// send writes one event; without a name it is data only.
func (s *eventStream) send(name string, data any) {
	text, err := json.Marshal(data)
	if err != nil { // plain values of this package
		panic(err)
	}
	if name != "" {
		name = "event: " + name + "\n"
	}
	s.raw(name + "data: " + string(text) + "\n\n")
}

func (s *eventStream) raw(text string) {
	if _, err := s.w.Write([]byte(text)); err != nil { // a client that is gone has nothing to be told
		s.pace = 0
	}
	s.flush()
	time.Sleep(s.pace)
}

// pieces cuts text as a model would send it, so that whoever puts it together
// is tested: after every blank, and inside long words.
func pieces(text string) []string {
	var out []string
	for _, word := range strings.SplitAfter(text, " ") {
		for runes := []rune(word); len(runes) > 0; {
			n := min(len(runes), 12)
			out = append(out, string(runes[:n]))
			runes = runes[n:]
		}
	}
	return out
}

// tokens counts four bytes as a token.
func tokens(chat conversation, a answer) (input, output int) {
	for _, t := range chat.Turns {
		input += len(t.Text) + 8
		for _, c := range t.Calls {
			input += len(c.Name) + len(c.Arguments)
		}
		for _, r := range t.Results {
			input += len(r.Text)
		}
	}
	output = len(a.Text)
	for _, c := range a.Calls {
		output += len(c.Name) + len(c.Arguments)
	}
	return input/4 + 1, output/4 + 1
}

// prefixed adds a wire's prefix to an id made here; a script's ids, also
// missing ones, stay as they are.
func prefixed(prefix, id string) string {
	if len(id) == 24 && strings.Trim(id, "0123456789abcdef") == "" {
		return prefix + id
	}
	return id
}
