package api

import (
	"context"
	"strings"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

type forgetStore interface {
	Forget(ctx context.Context, channel harness.Channel, user string, by postgres.Audit) (view.Forget, error)
	GetForget(ctx context.Context, id string) (view.Forget, error)
	ListForgets(ctx context.Context, after view.Place, limit int) ([]view.Forget, error)
}

type (
	forgetInput struct{ Body forgetBody }
	forgetBody  struct {
		Channel       harness.Channel `json:"channel" enum:"WHATSAPP,TELEGRAM,WEBHOOK,API"`
		ChannelUserID string          `json:"channelUserId" minLength:"1" maxLength:"256" doc:"the person, as the channel names them"`
	}
	getForgetInput   struct{ IDInput }
	listForgetsInput struct{ Page }
	forgetOutput     struct{ Body view.Forget }
	locatedForget    struct {
		Location string `header:"Location"`
		Body     view.Forget
	}
)

func (a *api) registerForgets() {
	register(a, "forget-person", a.forgetPerson)
	register(a, "list-forgets", a.listForgets)
	register(a, "get-forget", a.getForget)
}

func (a *api) forgetPerson(ctx context.Context, in *forgetInput) (*locatedForget, error) {
	user := strings.TrimSpace(harness.CleanText(in.Body.ChannelUserID))
	if user == "" {
		return nil, refuseField("#/channelUserId", "is empty")
	}
	f, err := a.Store.Forget(ctx, in.Body.Channel, user, by(ctx, access.Forget, access.People))
	return &locatedForget{Location: location("forgets", f.ID), Body: f}, err
}

func (a *api) getForget(ctx context.Context, in *getForgetInput) (*forgetOutput, error) {
	f, err := a.Store.GetForget(ctx, in.ID)
	return &forgetOutput{f}, err
}

func (a *api) listForgets(ctx context.Context, in *listForgetsInput) (*listOutput[view.Forget], error) {
	rows, err := a.Store.ListForgets(ctx, in.place, in.more())
	if err != nil {
		return nil, err
	}
	return paged(&in.Page, rows, func(f view.Forget) view.Place { return view.Place{At: f.CreatedAt, ID: f.ID} }), nil
}
