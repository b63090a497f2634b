package api

import (
	"context"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/stream"
)

type (
	approvalCountsOutput struct{ Body view.ApprovalCounts }
	watchApprovalsInput  struct {
		Agent  harness.AgentName `query:"agent" maxLength:"63" doc:"only its"`
		After  string            `query:"after" maxLength:"64" doc:"the id of an event: what comes behind it is sent; nothing: first what waits"`
		Last   string            `header:"Last-Event-ID" maxLength:"64" doc:"the same, and wins"`
		Follow bool              `query:"follow" default:"true" doc:"go on with what comes; else end with what there is"`
	}
)

func (a *api) countApprovals(ctx context.Context, _ *struct{}) (*approvalCountsOutput, error) {
	agents, err := a.Store.CountApprovals(ctx)
	counts := view.ApprovalCounts{Agents: agents}
	for _, c := range agents {
		counts.Pending += c.Pending
	}
	if counts.Agents == nil {
		counts.Agents = []view.ApprovalCount{}
	}
	return &approvalCountsOutput{counts}, err
}

func (a *api) registerApprovalEvents() {
	register(a, "watch-approvals", a.watchApprovals, func(op *huma.Operation) {
		op.Responses["200"] = &huma.Response{
			Description: "Events: approval with Approval",
			Content:     map[string]*huma.MediaType{typeEvents: {Schema: &huma.Schema{Type: huma.TypeString}}},
		}
	})
}

func (a *api) watchApprovals(_ context.Context, in *watchApprovalsInput) (*watchOutput, error) {
	feed := &approvalFeed{store: a.Store, agent: in.Agent}
	after, pointer := in.After, "query/after"
	if in.Last != "" {
		after, pointer = in.Last, "header/Last-Event-ID"
	}
	if after != "" {
		at, ok := postgres.ParseApprovalCursor(after)
		if !ok {
			return nil, refuse(http.StatusBadRequest, "the request is not valid", view.ProblemField{Pointer: pointer, Detail: "is not the id of an event of approvals"})
		}
		feed.at, feed.opened = at, true
	}
	options := stream.Options{Follow: in.Follow, Drain: a.Drain, Life: a.StreamTime, Now: a.Now}
	return &watchOutput{Body: func(hc huma.Context) {
		a.serveEvents(hc, "watch-approvals", func(ctx context.Context, w http.ResponseWriter) error { return stream.Feed(ctx, w, feed, options) })
	}}, nil
}

// approvalFeed is all approvals: first those that wait, then what becomes of any.
type approvalFeed struct {
	store  approvalStore
	agent  harness.AgentName
	at     postgres.ApprovalCursor
	headed bool       // at is where the feed begins
	opened bool       // what waits has been sent
	place  view.Place // while what waits is sent: behind the last that was
}

const feedPage = 100

// Next implements stream.FeedSource.
func (f *approvalFeed) Next(ctx context.Context) ([]stream.FeedEvent, bool, error) {
	if !f.opened {
		return f.waiting(ctx)
	}
	found, err := f.store.ApprovalFeed(ctx, f.agent, f.at, feedPage)
	if err != nil {
		return nil, false, err
	}
	events := make([]stream.FeedEvent, 0, len(found))
	for _, e := range found {
		f.at = e.At
		events = append(events, stream.FeedEvent{ID: e.At.String(), Name: "approval", Data: e.Approval})
	}
	return events, len(found) == feedPage, nil
}

// waiting sends a page of what waits. Its events have no id but the last one, the
// place where the feed begins, which was taken before the first was read: whoever
// leaves in between begins anew.
func (f *approvalFeed) waiting(ctx context.Context) ([]stream.FeedEvent, bool, error) {
	if !f.headed {
		head, err := f.store.ApprovalHead(ctx)
		if err != nil {
			return nil, false, err
		}
		f.at, f.headed = head, true
	}
	page, err := f.store.ListApprovals(ctx, postgres.ApprovalFilter{States: []harness.ApprovalState{harness.ApprovalPending}, Agent: f.agent}, f.place, feedPage)
	if err != nil {
		return nil, false, err
	}
	events := make([]stream.FeedEvent, 0, len(page))
	for _, p := range page {
		f.place = view.Place{At: p.RequestedAt, ID: string(p.ID)}
		events = append(events, stream.FeedEvent{Name: "approval", Data: p})
	}
	if f.opened = len(page) < feedPage; f.opened {
		if len(events) == 0 {
			return nil, true, nil
		}
		events[len(events)-1].ID = f.at.String()
	}
	return slices.Clip(events), true, nil
}
