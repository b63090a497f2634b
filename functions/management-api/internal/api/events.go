package api

import (
	"context"
	"net/http"
	"reflect"
	"strconv"

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

func (a *api) registerEvents() {
	registry := a.huma.OpenAPI().Components.Schemas
	for _, data := range []any{
		view.StreamSession{}, view.StreamTurn{}, view.StreamToolCall{}, view.StreamToolResult{}, view.StreamOutput{}, view.StreamReply{},
	} {
		registry.Schema(reflect.TypeOf(data), true, "")
	}
	register(a, "watch-session", a.watch, func(op *huma.Operation) {
		op.Responses["200"] = &huma.Response{
			Description: "Events: session and end with StreamSession, turn with StreamTurn, tool_call with StreamToolCall, tool_result with StreamToolResult, output with StreamOutput, reply with StreamReply",
			Content:     map[string]*huma.MediaType{"text/event-stream": {Schema: &huma.Schema{Type: huma.TypeString}}},
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
	r, w := humago.Unwrap(hc)
	ctx := r.Context()
	opened, err := stream.Open(ctx, w, source, options)
	if err != nil {
		p := a.problemOf(ctx, "watch-session", err)
		writeProblem(w, r, p.Status, p.Detail)
		return
	}
	if err := opened.Run(ctx); err != nil && ctx.Err() == nil {
		// The reader comes back with the id of the last event it has.
		a.Log.Warn("stream ended early", "session", string(source.id), "request", access.RequestID(ctx), "kind", string(harness.KindOf(err)), "err", err)
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

// Sent implements stream.Source: nothing is delivered by being watched.
func (s watched) Sent(context.Context, []postgres.StreamEvent) error { return nil }
