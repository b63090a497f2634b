package api

import (
	"context"
	"net/http"
	"reflect"
	"strconv"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/stream"
)

type streamStore interface {
	SessionEvents(ctx context.Context, session harness.SessionID, afterSeq int64, limit int) ([]postgres.StreamEvent, error)
	OpenCalls(ctx context.Context, session harness.SessionID) ([]harness.ToolCallID, error)
	Draft(ctx context.Context, session harness.SessionID) (postgres.Draft, error)
	Output(ctx context.Context, places []postgres.OutputPlace, limit int) ([]postgres.OutputChunk, error)
}

type (
	watchInput struct {
		IDInput
		After  string `query:"after" maxLength:"256" doc:"the id of an event, or its seq: what comes behind it is sent; nothing: from the begin"`
		Last   string `header:"Last-Event-ID" maxLength:"256" doc:"the same, and wins"`
		Follow bool   `query:"follow" default:"true" doc:"go on with what comes; else end with what there is"`
	}
	watchOutput struct{ Body func(huma.Context) }
)

const typeEvents = "text/event-stream"

const (
	maxStreams      = 200 // of a process
	maxCallersShare = 20  // of them of one caller
)

// streams counts those that are open, by caller.
type streams struct {
	mu   sync.Mutex
	all  int
	open map[string]int
}

// take counts one more until release is called, or says that there are too many.
func (s *streams) take(caller string) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.open[caller] >= maxCallersShare:
		return nil, harness.Errorf(harness.Exhausted, "the caller has %d streams open: that is the most", maxCallersShare)
	case s.all >= maxStreams:
		return nil, harness.Errorf(harness.Unavailable, "%d streams are open: that is the most", maxStreams)
	case s.open == nil:
		s.open = map[string]int{}
	}
	s.all++
	s.open[caller]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		if s.open[caller]--; s.open[caller] == 0 {
			delete(s.open, caller)
		}
	}, nil
}

func (a *api) registerEvents() {
	registry := a.huma.OpenAPI().Components.Schemas
	for _, data := range []any{
		view.StreamSession{}, view.StreamTurn{}, view.StreamToolCall{}, view.StreamToolResult{}, view.StreamOutput{}, view.StreamDraft{}, view.StreamReply{}, view.StreamApproval{},
	} {
		registry.Schema(reflect.TypeOf(data), true, "")
	}
	register(a, "watch-session", a.watch, func(op *huma.Operation) {
		op.Responses["200"] = &huma.Response{
			Description: "Events: session and end with StreamSession, turn with StreamTurn, tool_call with StreamToolCall, tool_result with StreamToolResult, output with StreamOutput, draft with StreamDraft (an answer that is still written; it has no id), reply with StreamReply, approval with StreamApproval",
			Content:     map[string]*huma.MediaType{typeEvents: {Schema: &huma.Schema{Type: huma.TypeString}}},
		}
	})
}

// watched is the events of one session.
type watched struct {
	*api
	id harness.SessionID
}

func (a *api) watch(ctx context.Context, in *watchInput) (*watchOutput, error) {
	options := stream.Options{Follow: in.Follow, Drain: a.Drain, Life: a.StreamTime, Now: a.Now}
	after, pointer := in.After, "query/after"
	if in.Last != "" {
		after, pointer = in.Last, "header/Last-Event-ID"
	}
	if after != "" {
		seq, ok := place(in.session(), after)
		if !ok {
			return nil, refuse(http.StatusBadRequest, "the request is not valid", view.ProblemField{Pointer: pointer, Detail: "is not the id of an event of this session"})
		}
		options.After = postgres.StreamCursor{Session: in.session(), Seq: seq}
	}
	source := watched{api: a, id: in.session()}
	if _, err := source.Session(ctx); err != nil { // while a problem can still be answered
		return nil, err
	}
	return &watchOutput{Body: func(hc huma.Context) { a.serveStream(hc, source, options) }}, nil
}

func place(session harness.SessionID, after string) (int64, bool) {
	if seq, err := strconv.ParseInt(after, 10, 64); err == nil {
		return seq, seq >= 0
	}
	cursor, ok := stream.ParseCursor(after)
	return cursor.Seq, ok && cursor.Session == session
}

func (a *api) serveStream(hc huma.Context, source watched, options stream.Options) {
	a.serveEvents(hc, "watch-session", func(ctx context.Context, w http.ResponseWriter) error {
		opened, err := stream.Open(ctx, w, source, options)
		if err != nil {
			a.answer(hc, "watch-session", err)
			return nil
		}
		return opened.Run(ctx)
	})
}

// serveEvents sends events by run, as long as the caller may have one more open.
func (a *api) serveEvents(hc huma.Context, operation string, run func(ctx context.Context, w http.ResponseWriter) error) {
	r, w := humago.Unwrap(hc)
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", typeEvents)
		return
	}
	ctx := r.Context()
	release, err := a.streams.take(callerName(ctx))
	if err != nil {
		a.answer(hc, operation, err)
		return
	}
	defer release()
	if err := run(ctx, w); err != nil && ctx.Err() == nil {
		// The reader comes back with the id of the last event it has.
		a.Log.Warn("stream ended early", "operation", operation, "path", r.URL.Path, "request", access.RequestID(ctx), "kind", string(harness.KindOf(err)), "err", err)
	}
}

// Session implements stream.Watched.
func (s watched) Session(ctx context.Context) (view.StreamSession, error) {
	session, err := s.Store.GetSession(ctx, s.id)
	return view.StreamSession{Session: s.id, State: session.State}, err
}

// Open implements stream.Source.
func (s watched) Open(ctx context.Context, after postgres.StreamCursor) (stream.Opening, error) {
	session, err := s.Session(ctx)
	if err != nil {
		return stream.Opening{}, err
	}
	opening := stream.Opening{Session: session, After: after}
	if after.Session == "" {
		opening.After, opening.Past = postgres.StreamCursor{Session: s.id}, true
		return opening, nil
	}
	opening.Running, err = s.Store.OpenCalls(ctx, s.id)
	return opening, err
}

// Events implements stream.Source.
func (s watched) Events(ctx context.Context, after postgres.StreamCursor, limit int) ([]postgres.StreamEvent, error) {
	return s.Store.SessionEvents(ctx, s.id, after.Seq, limit)
}

// Output implements stream.Source.
func (s watched) Output(ctx context.Context, places []postgres.OutputPlace, limit int) ([]postgres.OutputChunk, error) {
	return s.Store.Output(ctx, places, limit)
}

// Draft implements stream.Drafted.
func (s watched) Draft(ctx context.Context) (postgres.Draft, error) {
	return s.Store.Draft(ctx, s.id)
}

// Sent implements stream.Source: nothing is delivered by being watched.
func (s watched) Sent(context.Context, []postgres.StreamEvent) error { return nil }
