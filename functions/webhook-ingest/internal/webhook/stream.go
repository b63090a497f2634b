package webhook

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// stream sends what happens in a chat's conversations as server-sent events:
// GET Path{name}/stream. It polls inside the request: a process that is scaled
// to zero between requests has nothing to listen with.
type stream struct {
	store streamStore
	hooks *hooks
	log   *slog.Logger
	now   func() time.Time
	drain <-chan struct{}
	life  time.Duration
}

type streamStore interface {
	Conversation(ctx context.Context, channel harness.Channel, account, chat string, asked harness.SessionID) (postgres.Conversation, error)
	Stream(ctx context.Context, channel harness.Channel, account, chat string, after postgres.StreamCursor, limit int) ([]postgres.StreamEvent, error)
	Output(ctx context.Context, places []postgres.OutputPlace, limit int) ([]postgres.OutputChunk, error)
	MarkFetched(ctx context.Context, session harness.SessionID, messages []harness.MessageID) error
}

const (
	pollTime      = 200 * time.Millisecond
	heartbeatTime = 15 * time.Second
	writeTime     = 15 * time.Second // a reader that takes nothing for so long is gone
	pageSize      = 100              // events of one poll
	outputRows    = 32               // of one poll
)

func newStream(o Options, found *hooks) *stream {
	return &stream{store: o.Store, hooks: found, log: o.Log, now: o.Now, drain: o.Drain, life: o.StreamTime}
}

func (s *stream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	reader, err := s.open(w, r)
	if err == nil {
		err = reader.begin(r.Context())
	}
	if err != nil {
		writeError(w, s.log, r.PathValue("name"), err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.life)
	defer cancel()
	if err := reader.run(ctx); err != nil && ctx.Err() == nil {
		// The reader comes back with the id of the last event it has.
		s.log.Warn("stream ended early", "hook", reader.account, "kind", string(harness.KindOf(err)), "err", err)
	}
}

func (s *stream) open(w http.ResponseWriter, r *http.Request) (*reader, error) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		return nil, refuse(http.StatusMethodNotAllowed, "GET a stream here")
	}
	name := r.PathValue("name")
	hook, err := s.hooks.find(r.Context(), name)
	if err != nil {
		return nil, err
	}
	stamp, err := readStamp(r.Header, s.now())
	if err != nil {
		return nil, err
	}
	if !stamp.fits(hook.keys, []byte(r.RequestURI)) {
		return nil, errSignature
	}
	query := r.URL.Query()
	chat, err := checkIdentifier("chat", query.Get("chat"))
	if err != nil {
		return nil, err
	}
	c := &reader{stream: s, w: w, account: name, chat: chat, mailbox: hook.spec.CallbackURL == "", follow: query.Get("follow") != "false", live: live{}}
	after := query.Get("after")
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		after = last // newer than the address the client began with
	}
	if after != "" {
		var ok bool
		if c.after, ok = parseCursor(after); !ok {
			return nil, refuse(http.StatusBadRequest, "after must be the id of an event of this stream")
		}
	}
	return c, nil
}

// reader is one connection.
type reader struct {
	*stream
	w       http.ResponseWriter
	account string
	chat    string
	mailbox bool // the stream is where replies are delivered
	follow  bool

	after  postgres.StreamCursor
	past   bool // what is sent had happened before the reader came: old output is not repeated
	live   live // the calls that run
	buffer sse
	wrote  time.Time
}

// begin finds the place and sends the head of the answer.
func (c *reader) begin(ctx context.Context) error {
	conversation, err := c.store.Conversation(ctx, harness.ChannelWebhook, c.account, c.chat, c.after.Session)
	if err != nil && harness.KindOf(err) != harness.NotFound {
		return err
	}
	h := c.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	h.Set("X-Content-Type-Options", "nosniff")
	c.w.WriteHeader(http.StatusOK)
	if err != nil {
		c.after = postgres.StreamCursor{}
		c.buffer.comment("nothing yet")
		return nil
	}
	for _, call := range conversation.Open {
		c.live[call] = &[2]int64{}
	}
	if !conversation.Holds {
		c.after, c.past = postgres.StreamCursor{Session: conversation.Session}, true
	}
	return c.buffer.event("", "session", sessionJSON{Session: conversation.Session, State: conversation.State, Turns: conversation.Turns})
}

// run sends what there is and, unless the reader only wants that, what comes,
// until ctx ends or the process drains.
func (c *reader) run(ctx context.Context) error {
	ticker := time.NewTicker(pollTime)
	defer ticker.Stop()
	for {
		full, err := c.poll(ctx)
		if err != nil {
			return err
		}
		if full {
			continue
		}
		if !c.follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.drain:
			return nil
		case <-ticker.C:
		}
	}
}

// poll sends one page and reports whether it was full.
func (c *reader) poll(ctx context.Context) (bool, error) {
	if c.after.Session == "" {
		conversation, err := c.store.Conversation(ctx, harness.ChannelWebhook, c.account, c.chat, "")
		if err != nil && harness.KindOf(err) != harness.NotFound {
			return false, err
		}
		c.after.Session = conversation.Session
	}
	var page []postgres.StreamEvent
	if c.after.Session != "" {
		var err error
		if page, err = c.store.Stream(ctx, harness.ChannelWebhook, c.account, c.chat, c.after, pageSize); err != nil {
			return false, err
		}
	}
	for _, e := range page {
		if err := c.tell(ctx, e); err != nil {
			return false, err
		}
	}
	full := len(page) == pageSize
	if !full {
		c.past = false
		if err := c.running(ctx); err != nil {
			return false, err
		}
	}
	if err := c.flush(); err != nil {
		return false, err
	}
	return full, c.fetched(ctx, page)
}

// tell sends one event, and before a call's result the rest of its output.
func (c *reader) tell(ctx context.Context, e postgres.StreamEvent) error {
	switch e.Kind {
	case postgres.StreamToolCall:
		c.live[e.Call] = &[2]int64{}
	case postgres.StreamToolResult:
		if err := c.rest(ctx, e); err != nil {
			return err
		}
		delete(c.live, e.Call)
	case postgres.StreamReply: // the turn's end is the end of its calls
		clear(c.live)
	}
	c.after = e.StreamCursor
	return c.buffer.tell(e)
}

func (c *reader) rest(ctx context.Context, e postgres.StreamEvent) error {
	for !c.past && e.Execution != "" {
		chunks, err := c.store.Output(ctx, c.live.places(e.Call), outputRows)
		if err != nil {
			return err
		}
		if err := c.buffer.output(c.live, chunks, len(chunks) < outputRows); err != nil {
			return err
		}
		if len(chunks) < outputRows {
			return nil
		}
		if err := c.flush(); err != nil {
			return err
		}
	}
	return nil
}

// running sends what the calls that run have printed.
func (c *reader) running(ctx context.Context) error {
	if len(c.live) == 0 || !c.follow {
		return nil
	}
	chunks, err := c.store.Output(ctx, c.live.places(slices.Sorted(maps.Keys(c.live))...), outputRows)
	if err != nil {
		return err
	}
	return c.buffer.output(c.live, chunks, false)
}

// flush writes what has gathered, or a heartbeat when it is time for one.
func (c *reader) flush() error {
	if c.buffer.Len() == 0 && c.now().Sub(c.wrote) >= heartbeatTime {
		c.buffer.comment("heartbeat")
	}
	if c.buffer.Len() == 0 {
		return nil
	}
	control := http.NewResponseController(c.w)
	if err := control.SetWriteDeadline(time.Now().Add(writeTime)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := io.Copy(c.w, &c.buffer); err != nil {
		return err
	}
	c.wrote = c.now()
	return control.Flush()
}

// fetched records that a mailbox's replies have been handed over.
func (c *reader) fetched(ctx context.Context, page []postgres.StreamEvent) error {
	if !c.mailbox {
		return nil
	}
	replies := map[harness.SessionID][]harness.MessageID{}
	for _, e := range page {
		if e.Kind == postgres.StreamReply {
			replies[e.Session] = append(replies[e.Session], e.Message)
		}
	}
	for _, session := range slices.Sorted(maps.Keys(replies)) {
		if err := c.store.MarkFetched(ctx, session, replies[session]); err != nil {
			return err
		}
	}
	return nil
}
