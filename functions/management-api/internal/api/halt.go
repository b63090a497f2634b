package api

import (
	"context"
	"time"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

type haltStore interface {
	GetHalt(ctx context.Context, agent harness.AgentName) (view.Halt, error)
	Halt(ctx context.Context, agent harness.AgentName, by postgres.Audit, reason string) (view.Halt, []event.Event, error)
	Resume(ctx context.Context, agent harness.AgentName, by postgres.Audit) (view.Halt, []event.Event, error)
	ListUsage(ctx context.Context, agent harness.AgentName, since time.Time, limit int) ([]view.Usage, error)
}

type (
	haltAgentInput struct {
		NameInput
		Body haltBody
	}
	haltInstallInput struct{ Body haltBody }
	haltBody         struct {
		Reason string `json:"reason" minLength:"1" maxLength:"1024" doc:"why, for people who look at it later; who waits in a chat is not told it"`
	}
	haltOutput struct{ Body view.Halt }
	usageInput struct {
		NameInput
		Since time.Time `query:"since" doc:"the first day; without it thirty days are shown"`
	}
	usageOutput struct {
		Body struct {
			Items []view.Usage `json:"items" nullable:"false"`
		}
	}
)

func (a *api) registerHalts() {
	register(a, "get-agent-halt", func(ctx context.Context, in *NameInput) (*haltOutput, error) { return a.getHalt(ctx, in.Name) })
	register(a, "halt-agent", func(ctx context.Context, in *haltAgentInput) (*haltOutput, error) {
		return a.halt(ctx, in.Name, in.Body.Reason)
	})
	register(a, "resume-agent", func(ctx context.Context, in *NameInput) (*emptyOutput, error) { return nil, a.resume(ctx, in.Name) })
	register(a, "list-agent-usage", a.listUsage)
	register(a, "get-halt", func(ctx context.Context, _ *noInput) (*haltOutput, error) { return a.getHalt(ctx, "") })
	register(a, "halt", func(ctx context.Context, in *haltInstallInput) (*haltOutput, error) {
		return a.halt(ctx, "", in.Body.Reason)
	})
	register(a, "resume", func(ctx context.Context, _ *noInput) (*emptyOutput, error) { return nil, a.resume(ctx, "") })
}

// getHalt shows the switch of an agent, or of the install where there is no name.
func (a *api) getHalt(ctx context.Context, agent string) (*haltOutput, error) {
	h, err := a.Store.GetHalt(ctx, harness.AgentName(agent))
	return &haltOutput{h}, err
}

func (a *api) halt(ctx context.Context, agent, reason string) (*haltOutput, error) {
	after, events, err := a.Store.Halt(ctx, harness.AgentName(agent), by(ctx, access.Halt, access.Agents), reason)
	if err != nil {
		return nil, err
	}
	a.Publish(ctx, events...)
	return &haltOutput{after}, nil
}

const (
	usageDays = 30  // shown without since
	usageMost = 400 // days at once
)

// listUsage shows what an agent has spent, day by day.
func (a *api) listUsage(ctx context.Context, in *usageInput) (*usageOutput, error) {
	if err := (Period{Since: in.Since}).check(a.Now()); err != nil {
		return nil, err
	}
	if _, err := a.Store.GetHalt(ctx, harness.AgentName(in.Name)); err != nil { // there is such an agent
		return nil, err
	}
	since := in.Since
	if since.IsZero() {
		since = a.Now().AddDate(0, 0, -usageDays)
	}
	days, err := a.Store.ListUsage(ctx, harness.AgentName(in.Name), since, usageMost)
	out := &usageOutput{}
	out.Body.Items = append([]view.Usage{}, days...)
	return out, err
}

// resume ends a halt. Where there is none, there is nothing to do.
func (a *api) resume(ctx context.Context, agent string) error {
	_, events, err := a.Store.Resume(ctx, harness.AgentName(agent), by(ctx, access.Halt, access.Agents))
	if err != nil {
		return err
	}
	a.Publish(ctx, events...)
	return nil
}
