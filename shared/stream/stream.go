// Package stream sends what happens in a session as server-sent events. It
// polls inside the request: a process that is scaled to zero between requests
// has nothing to listen with.
//
// Events have an id, the place in the session's order. A reader that comes back
// with the id of the last event it has gets every later one, once and in order,
// from any process.
package stream

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

// Source is where the events of one stream come from.
type Source interface {
	// Open finds the place of after. harness.NotFound, or an answer without a
	// session, where Source knows of no session yet: it may come.
	Open(ctx context.Context, after postgres.StreamCursor) (Opening, error)
	// Events returns up to limit events behind after, in order.
	Events(ctx context.Context, after postgres.StreamCursor, limit int) ([]postgres.StreamEvent, error)
	// Output returns what is stored behind places, at most limit chunks.
	Output(ctx context.Context, places []postgres.OutputPlace, limit int) ([]postgres.OutputChunk, error)
	// Sent is told of events that have been written to the connection.
	Sent(ctx context.Context, events []postgres.StreamEvent) error
}

// Watched is a Source that knows where its session stands, so that the reader
// is told when that changes, and the stream ends with the session.
type Watched interface {
	Source
	Session(ctx context.Context) (view.StreamSession, error)
}

// Drafted is a Source whose reader sees an answer while it is written.
type Drafted interface {
	Source
	// Draft returns what is written now. harness.NotFound: nothing.
	Draft(ctx context.Context) (postgres.Draft, error)
}

// Opening is where a stream begins.
type Opening struct {
	Session view.StreamSession // where it stands; without one, there is none yet
	After   postgres.StreamCursor
	Past    bool // what comes first had happened before the reader came: old output is not repeated
	Running []harness.ToolCallID
}

// Options of one connection.
type Options struct {
	After  postgres.StreamCursor // zero: from the begin
	Follow bool                  // go on with what comes, else end with what there is
	Drain  <-chan struct{}       // closed when the process is to end
	Life   time.Duration         // the longest the connection lives
	Now    func() time.Time
}

const (
	pollTime      = 200 * time.Millisecond
	draftPolls    = 3 // a Drafted source is asked what is written every so many polls
	watchPolls    = 5 // a Watched source is asked where it stands every so many polls
	heartbeatTime = 15 * time.Second
	writeTime     = 15 * time.Second // a reader that takes nothing for so long is gone
	pageSize      = 100              // events of one poll
	outputRows    = 32               // of one poll
)

// Stream is one connection.
type Stream struct {
	Options
	source  Source
	w       http.ResponseWriter
	session view.StreamSession // as the reader knows it
	past    bool
	live    live // the calls that run
	buffer  buffer
	wrote   time.Time
	polls   int
	drafts  int
	draft   postgres.Draft // as the reader knows it
	caught  bool           // the reader has had what there was when it came
}

// Open finds the place and sends the head of the answer. When it fails, nothing
// has been written.
func Open(ctx context.Context, w http.ResponseWriter, source Source, o Options) (*Stream, error) {
	opening, err := source.Open(ctx, o.After)
	if err != nil && harness.KindOf(err) != harness.NotFound {
		return nil, err
	}
	s := &Stream{Options: o, source: source, w: w, live: live{}}
	s.head()
	s.After, s.past, s.session = opening.After, opening.Past, opening.Session
	if opening.Session.Session == "" {
		s.buffer.comment("nothing yet")
		return s, nil
	}
	for _, call := range opening.Running {
		s.live[call] = &[2]int64{}
	}
	return s, s.buffer.event("", eventSession, opening.Session)
}

func (s *Stream) head() {
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	h.Set("X-Content-Type-Options", "nosniff")
	s.w.WriteHeader(http.StatusOK)
}

// Run sends what there is and, to who follows, what comes, until ctx ends, its
// life is over, the process drains or the session has ended. The reader comes
// back with the id of the last event it has. An error says that the reader is
// gone or that the store failed.
func (s *Stream) Run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.Life)
	defer cancel()
	err := s.run(ctx)
	if err == nil {
		// The connection goes on to its next request, which has no such deadline.
		err = deadline(http.NewResponseController(s.w), time.Time{})
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// deadline sets until when writes may take; some writers of tests have none.
func deadline(control *http.ResponseController, at time.Time) error {
	if err := control.SetWriteDeadline(at); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

func (s *Stream) run(ctx context.Context) error {
	ticker := time.NewTicker(pollTime)
	defer ticker.Stop()
	for {
		// Looked at before the events are read: those of an ended session are all there.
		ended, err := s.watch(ctx)
		if err != nil {
			return err
		}
		full, err := s.poll(ctx)
		if err != nil {
			return err
		}
		if full {
			continue
		}
		if ended {
			return s.end()
		}
		if !s.Follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.Drain:
			return nil
		case <-ticker.C:
		}
	}
}

// watch tells where the session stands when that has changed, and whether
// nothing more will happen in it.
func (s *Stream) watch(ctx context.Context) (ended bool, err error) {
	watched, ok := s.source.(Watched)
	if !ok || !s.Follow {
		return false, nil
	}
	if s.polls++; s.polls%watchPolls == 1 {
		now, err := watched.Session(ctx)
		if err != nil {
			return false, err
		}
		if now.State != s.session.State {
			if err := s.buffer.event("", eventSession, now); err != nil {
				return false, err
			}
		}
		s.session = now
	}
	return s.session.State.Ended(), nil
}

// end says that the session has ended, so that a reader does not come back.
func (s *Stream) end() error {
	if err := s.buffer.event("", eventEnd, s.session); err != nil {
		return err
	}
	return s.flush()
}

// poll sends one page and reports whether it was full.
func (s *Stream) poll(ctx context.Context) (bool, error) {
	if err := s.written(ctx); err != nil { // before the events: an answer comes behind its draft
		return false, err
	}
	page, err := s.source.Events(ctx, s.After, pageSize)
	if err != nil {
		return false, err
	}
	for _, e := range page {
		if err := s.tell(ctx, e); err != nil {
			return false, err
		}
	}
	full := len(page) == pageSize
	if !full {
		s.past, s.caught = false, true
		if err := s.running(ctx); err != nil {
			return false, err
		}
	}
	if err := s.flush(); err != nil {
		return false, err
	}
	return full, s.source.Sent(ctx, page)
}

// written tells what is written of an answer, where it has grown. It has no id: a
// reader that comes back is told the whole of it.
func (s *Stream) written(ctx context.Context) error {
	drafted, ok := s.source.(Drafted)
	if !ok || !s.Follow || !s.caught {
		return nil
	}
	if s.drafts++; s.drafts%draftPolls != 0 {
		return nil
	}
	d, err := drafted.Draft(ctx)
	if harness.KindOf(err) == harness.NotFound || err == nil && d == s.draft {
		return nil
	}
	if err != nil {
		return err
	}
	s.draft = d
	return s.buffer.event("", eventDraft, view.StreamDraft{Session: d.Session, InReplyTo: d.Message, Revision: d.Revision, Text: d.Text})
}

// tell sends one event, and before a call's result the rest of its output.
func (s *Stream) tell(ctx context.Context, e postgres.StreamEvent) error {
	switch e.Kind {
	case postgres.StreamToolCall:
		s.live[e.Call] = &[2]int64{}
	case postgres.StreamToolResult:
		if err := s.rest(ctx, e); err != nil {
			return err
		}
		delete(s.live, e.Call)
	case postgres.StreamReply:
		if e.InReplyTo != "" { // the turn's end is the end of its calls
			clear(s.live)
		}
	}
	s.After = e.StreamCursor
	return s.buffer.tell(e)
}

func (s *Stream) rest(ctx context.Context, e postgres.StreamEvent) error {
	for !s.past && e.Execution != "" {
		chunks, err := s.source.Output(ctx, s.live.places(e.Call), outputRows)
		if err != nil {
			return err
		}
		if err := s.buffer.output(s.live, chunks, len(chunks) < outputRows); err != nil {
			return err
		}
		if len(chunks) < outputRows {
			return nil
		}
		if err := s.flush(); err != nil {
			return err
		}
	}
	return nil
}

// running sends what the calls that run have printed.
func (s *Stream) running(ctx context.Context) error {
	if len(s.live) == 0 || !s.Follow {
		return nil
	}
	chunks, err := s.source.Output(ctx, s.live.places(slices.Sorted(maps.Keys(s.live))...), outputRows)
	if err != nil {
		return err
	}
	return s.buffer.output(s.live, chunks, false)
}

// flush writes what has gathered, or a heartbeat when it is time for one.
func (s *Stream) flush() error {
	if s.buffer.Len() == 0 && s.Now().Sub(s.wrote) >= heartbeatTime {
		s.buffer.comment("heartbeat")
	}
	if s.buffer.Len() == 0 {
		return nil
	}
	control := http.NewResponseController(s.w)
	if err := deadline(control, time.Now().Add(writeTime)); err != nil {
		return err
	}
	if _, err := io.Copy(s.w, &s.buffer); err != nil {
		return err
	}
	s.wrote = s.Now()
	return control.Flush()
}
