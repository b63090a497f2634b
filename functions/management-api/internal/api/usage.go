package api

import (
	"context"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

type usageStore interface {
	ListModelUsage(ctx context.Context, f postgres.UsageFilter, limit int) ([]view.ModelUsage, error)
}

type (
	modelUsageInput struct {
		Agent string    `query:"agent" maxLength:"63" doc:"only this one"`
		Since time.Time `query:"since" doc:"the first day; without it thirty days are shown"`
	}
	modelUsageOutput struct {
		Body struct {
			Items []view.ModelUsage `json:"items" nullable:"false"`
		}
	}
)

func (a *api) registerUsage() { register(a, "list-usage", a.listModelUsage) }

// modelUsageMost is how many entries there are at once.
const modelUsageMost = 1000

// listModelUsage shows what agents have asked models. Of an agent that there is not
// it shows nothing: one that was deleted has used what it has used.
func (a *api) listModelUsage(ctx context.Context, in *modelUsageInput) (*modelUsageOutput, error) {
	if err := (Period{Since: in.Since}).check(a.Now()); err != nil {
		return nil, err
	}
	since := in.Since
	if since.IsZero() {
		since = a.Now().AddDate(0, 0, -usageDays)
	}
	items, err := a.Store.ListModelUsage(ctx, postgres.UsageFilter{Agent: harness.AgentName(in.Agent), Since: since}, modelUsageMost)
	out := &modelUsageOutput{}
	out.Body.Items = append([]view.ModelUsage{}, items...)
	return out, err
}
