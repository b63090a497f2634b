package api

import (
	"context"
	"strings"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

type takeoverStore interface {
	PauseSession(ctx context.Context, id harness.SessionID, by postgres.Audit) (view.Session, error)
	UnpauseSession(ctx context.Context, id harness.SessionID, by postgres.Audit) (view.Session, []event.Event, error)
	Reply(ctx context.Context, r postgres.PersonReply) (view.Message, bool, []event.Event, error)
}

type (
	replyInput struct {
		IDInput
		KeyInput
		Body sendBody
	}
	messageOutput struct{ Body view.Message }
)

func (a *api) registerTakeovers() {
	register(a, "pause-session", a.pauseSession)
	register(a, "resume-session", a.resumeSession)
	register(a, "reply-in-session", a.replyInSession)
}

func (a *api) pauseSession(ctx context.Context, in *sessionInput) (*sessionOutput, error) {
	s, err := a.Store.PauseSession(ctx, in.session(), by(ctx, access.Takeover, access.Sessions))
	if err != nil {
		return nil, err
	}
	return &sessionOutput{s}, nil
}

func (a *api) resumeSession(ctx context.Context, in *sessionInput) (*sessionOutput, error) {
	s, events, err := a.Store.UnpauseSession(ctx, in.session(), by(ctx, access.Takeover, access.Sessions))
	if err != nil {
		return nil, err
	}
	a.Publish(ctx, events...)
	return &sessionOutput{s}, nil
}

func (a *api) replyInSession(ctx context.Context, in *replyInput) (*messageOutput, error) {
	if strings.TrimSpace(harness.CleanText(in.Body.Text)) == "" {
		return nil, refuseField("#/text", "is empty")
	}
	m, fresh, events, err := a.Store.Reply(ctx, postgres.PersonReply{
		Session: in.session(), Text: in.Body.Text, Author: callerName(ctx), Key: a.identity(ctx, in.Key),
		Audit: by(ctx, access.Takeover, access.Sessions),
	})
	if err != nil {
		return nil, err
	}
	if fresh {
		a.Publish(ctx, events...)
	}
	return &messageOutput{m}, nil
}
