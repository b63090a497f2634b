package webhook

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/stream"
)

// streams sends what happens in a chat's conversations as server-sent events:
// GET Path{name}/stream.
type streams struct {
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
	ChatDraft(ctx context.Context, channel harness.Channel, account, chat string) (postgres.Draft, error)
	Output(ctx context.Context, places []postgres.OutputPlace, limit int) ([]postgres.OutputChunk, error)
	MarkFetched(ctx context.Context, session harness.SessionID, messages []harness.MessageID) error
}

func newStreams(o Options, found *hooks) *streams {
	return &streams{store: o.Store, hooks: found, log: o.Log, now: o.Now, drain: o.Drain, life: o.StreamTime}
}

func (s *streams) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	source, options, err := s.open(w, r)
	var opened *stream.Stream
	if err == nil {
		opened, err = stream.Open(r.Context(), w, source, options)
	}
	if err != nil {
		writeError(w, s.log, r.PathValue("name"), err)
		return
	}
	if err := opened.Run(r.Context()); err != nil && r.Context().Err() == nil {
		// The reader comes back with the id of the last event it has.
		s.log.Warn("stream ended early", "hook", source.account, "kind", string(harness.KindOf(err)), "err", err)
	}
}

func (s *streams) open(w http.ResponseWriter, r *http.Request) (*chat, stream.Options, error) {
	options := stream.Options{Drain: s.drain, Life: s.life, Now: s.now}
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		return nil, options, refuse(http.StatusMethodNotAllowed, "GET a stream here")
	}
	name := r.PathValue("name")
	hook, err := s.hooks.find(r.Context(), name)
	if err != nil {
		return nil, options, err
	}
	stamp, err := readStamp(r.Header, s.now())
	if err != nil {
		return nil, options, err
	}
	if !stamp.fits(hook.keys, []byte(r.RequestURI)) {
		return nil, options, errSignature
	}
	query := r.URL.Query()
	id, err := checkIdentifier("chat", query.Get("chat"))
	if err != nil {
		return nil, options, err
	}
	options.Follow = query.Get("follow") != "false"
	after := query.Get("after")
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		after = last // newer than the address the client began with
	}
	if after != "" {
		var ok bool
		if options.After, ok = stream.ParseCursor(after); !ok {
			return nil, options, refuse(http.StatusBadRequest, "after must be the id of an event of this stream")
		}
	}
	return &chat{streamStore: s.store, account: name, chat: id, mailbox: hook.spec.CallbackURL == ""}, options, nil
}

// chat is the conversations of one chat, one after the other.
type chat struct {
	streamStore
	account string
	chat    string
	mailbox bool // the stream is where replies are delivered
}

// Open implements stream.Source.
func (c *chat) Open(ctx context.Context, after postgres.StreamCursor) (stream.Opening, error) {
	found, err := c.Conversation(ctx, harness.ChannelWebhook, c.account, c.chat, after.Session)
	if err != nil {
		return stream.Opening{}, err
	}
	opening := stream.Opening{
		Session: view.StreamSession{Session: found.Session, State: found.State, Turns: found.Turns}, After: after, Running: found.Open,
	}
	if !found.Holds {
		opening.After, opening.Past = postgres.StreamCursor{Session: found.Session}, true
	}
	return opening, nil
}

// Events implements stream.Source.
func (c *chat) Events(ctx context.Context, after postgres.StreamCursor, limit int) ([]postgres.StreamEvent, error) {
	if after.Session == "" { // nobody had spoken
		found, err := c.Conversation(ctx, harness.ChannelWebhook, c.account, c.chat, "")
		if harness.KindOf(err) == harness.NotFound {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		after.Session = found.Session
	}
	return c.Stream(ctx, harness.ChannelWebhook, c.account, c.chat, after, limit)
}

// Draft implements stream.Drafted.
func (c *chat) Draft(ctx context.Context) (postgres.Draft, error) {
	return c.ChatDraft(ctx, harness.ChannelWebhook, c.account, c.chat)
}

// Sent records that a mailbox's replies have been handed over.
func (c *chat) Sent(ctx context.Context, page []postgres.StreamEvent) error {
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
		if err := c.MarkFetched(ctx, session, replies[session]); err != nil {
			return err
		}
	}
	return nil
}
