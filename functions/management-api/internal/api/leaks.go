package api

import (
	"context"
	"net/url"
	"strings"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

type leakStore interface {
	ListLeaks(ctx context.Context) ([]view.Leaks, error)
	LastSweep(ctx context.Context) (view.Sweep, error)
	RecordWebhook(ctx context.Context, channel harness.Channel, account, url string, by postgres.Audit) error
}

type (
	sweepOutput  struct{ Body view.Sweep }
	webhookInput struct{ Body webhookBody }
	webhookBody  struct {
		Channel harness.Channel `json:"channel" enum:"WHATSAPP,TELEGRAM"`
		Account string          `json:"account" minLength:"1" maxLength:"256" doc:"as agents name it"`
		URL     string          `json:"url" maxLength:"2048" doc:"where the provider sends updates to; empty: nowhere any more"`
	}
)

func (a *api) registerLeaks() {
	register(a, "list-leaks", a.listLeaks)
	register(a, "get-sweep", a.getSweep)
	register(a, "record-webhook", a.recordWebhook)
}

func (a *api) listLeaks(ctx context.Context, _ *noInput) (*listOutput[view.Leaks], error) {
	rows, err := a.Store.ListLeaks(ctx)
	if rows == nil {
		rows = []view.Leaks{}
	}
	return &listOutput[view.Leaks]{Body: list[view.Leaks]{Items: rows}}, err
}

func (a *api) getSweep(ctx context.Context, _ *noInput) (*sweepOutput, error) {
	sweep, err := a.Store.LastSweep(ctx)
	return &sweepOutput{sweep}, err
}

func (a *api) recordWebhook(ctx context.Context, in *webhookInput) (*emptyOutput, error) {
	account := strings.TrimSpace(harness.CleanText(in.Body.Account))
	if account == "" || strings.Contains(account, "/") {
		return nil, refuseField("#/account", "is no account of a channel")
	}
	if u, err := url.Parse(in.Body.URL); in.Body.URL != "" && (err != nil || u.Host == "" || u.User != nil || u.RawQuery != "") {
		return nil, refuseField("#/url", "must be an absolute URL without a user, a password or a query")
	}
	return nil, a.Store.RecordWebhook(ctx, in.Body.Channel, account, in.Body.URL, by(ctx, access.Update, access.Channels))
}
