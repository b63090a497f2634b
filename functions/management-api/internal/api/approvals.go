package api

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

type approvalStore interface {
	ListApprovals(ctx context.Context, f postgres.ApprovalFilter, after view.Place, limit int) ([]view.Approval, error)
	GetApproval(ctx context.Context, id harness.ApprovalID) (view.Approval, error)
	DecideApproval(ctx context.Context, d postgres.Decision) (view.Approval, []event.Event, error)
	CountApprovals(ctx context.Context) ([]view.ApprovalCount, error)
	ApprovalHead(ctx context.Context) (postgres.ApprovalCursor, error)
	ApprovalFeed(ctx context.Context, agent harness.AgentName, after postgres.ApprovalCursor, limit int) ([]postgres.ApprovalEvent, error)
}

type (
	listApprovalsInput struct {
		Page
		Status  []harness.ApprovalState `query:"status,explode" nullable:"false" enum:"PENDING,APPROVED,REJECTED,EXPIRED,CANCELLED"`
		Agent   harness.AgentName       `query:"agent" maxLength:"63"`
		Session harness.SessionID       `query:"session" maxLength:"64"`
		Since   time.Time               `query:"since" doc:"asked not before"`
	}
	approvalInput struct{ IDInput }
	decideInput   struct {
		IDInput
		Body decisionBody
	}
	approveInput struct {
		IDInput
		Body *approveBody
	}
	decisionBody struct {
		Decision decision `json:"decision" enum:"APPROVE,REJECT"`
		Reason   string   `json:"reason,omitempty" maxLength:"4096"`
		Digest   string   `json:"digest,omitempty" maxLength:"128" doc:"of the approval as the decider saw it: if it is another by now, nothing is decided"`

		Scope     harness.ApprovalScope `json:"scope,omitempty" enum:"ONCE,SESSION,ALWAYS" doc:"of APPROVE: this time, in this session, or whenever the agent asks for exactly the same again"`
		Arguments json.RawMessage       `json:"arguments,omitempty" doc:"of APPROVE: what is approved instead of what was asked, an object as the tool takes it; needs digest. What then runs has a digest of its own"`
	}
	approveBody struct {
		Decision decision           `json:"decision,omitempty" enum:"APPROVE,REJECT" default:"APPROVE"`
		Reason   string             `json:"reason,omitempty" maxLength:"4096"`
		Digest   string             `json:"digest,omitempty" maxLength:"128" doc:"of the approval as the decider saw it: if it is another by now, nothing is decided"`
		Approval harness.ApprovalID `json:"approval,omitempty" maxLength:"64" doc:"the one that is meant, where several may wait"`
	}
	approvalOutput struct{ Body view.Approval }
	decision       string
)

const (
	decideApprove decision = "APPROVE"
	decideReject  decision = "REJECT"
)

func (a *api) registerApprovals() {
	register(a, "list-approvals", a.listApprovals)
	register(a, "count-approvals", a.countApprovals)
	a.registerApprovalEvents()
	register(a, "get-approval", a.getApproval)
	register(a, "decide-approval", a.decideApproval)
	register(a, "approve-session", a.approveSession)
}

func (a *api) listApprovals(ctx context.Context, in *listApprovalsInput) (*listOutput[view.Approval], error) {
	if err := (Period{Since: in.Since}).check(a.Now()); err != nil {
		return nil, err
	}
	rows, err := a.Store.ListApprovals(ctx, postgres.ApprovalFilter{
		States: in.Status, Agent: in.Agent, Session: in.Session, Since: in.Since,
	}, in.place, in.more())
	if err != nil {
		return nil, err
	}
	return paged(&in.Page, rows, func(p view.Approval) view.Place { return view.Place{At: p.RequestedAt, ID: string(p.ID)} }), nil
}

func (a *api) getApproval(ctx context.Context, in *approvalInput) (*approvalOutput, error) {
	p, err := a.Store.GetApproval(ctx, harness.ApprovalID(in.ID))
	return &approvalOutput{p}, err
}

func (a *api) decideApproval(ctx context.Context, in *decideInput) (*approvalOutput, error) {
	return a.decide(ctx, harness.ApprovalID(in.ID), in.Body)
}

// approveSession decides the one approval that waits.
func (a *api) approveSession(ctx context.Context, in *approveInput) (*approvalOutput, error) {
	if _, err := a.Store.GetSession(ctx, in.session()); err != nil {
		return nil, err
	}
	var body approveBody
	if in.Body != nil {
		body = *in.Body
	}
	said := decisionBody{Decision: decideApprove, Reason: body.Reason, Digest: body.Digest}
	if body.Decision != "" {
		said.Decision = body.Decision
	}
	if body.Approval != "" {
		named, err := a.Store.GetApproval(ctx, body.Approval)
		switch {
		case err == nil && named.Session == in.session():
			return a.decide(ctx, named.ID, said)
		case err == nil || harness.KindOf(err) == harness.NotFound:
			return nil, refuse(http.StatusConflict, "the session does not wait for this approval", view.ProblemField{Pointer: "#/approval", Detail: "is none of this session"})
		}
		return nil, err
	}
	const most = 200
	waiting, err := a.Store.ListApprovals(ctx, postgres.ApprovalFilter{States: []harness.ApprovalState{harness.ApprovalPending}, Session: in.session()}, view.Place{}, most)
	if err != nil {
		return nil, err
	}
	now := a.Now()
	waiting = slices.DeleteFunc(waiting, func(w view.Approval) bool { return w.ExpiresAt != nil && !w.ExpiresAt.After(now) })
	if len(waiting) == 1 {
		return a.decide(ctx, waiting[0].ID, said)
	}
	p := refuse(http.StatusConflict, "the session waits for no approval")
	if len(waiting) > 0 {
		p = refuse(http.StatusConflict, "the session waits for several approvals: name the one that is meant")
	}
	p.Approvals = waiting
	return nil, p
}

// decide answers who comes second with the decision of who was first.
func (a *api) decide(ctx context.Context, id harness.ApprovalID, said decisionBody) (*approvalOutput, error) {
	var state harness.ApprovalState
	switch said.Decision {
	case decideApprove:
		state = harness.ApprovalApproved
	case decideReject:
		state = harness.ApprovalRejected
	default:
		return nil, refuseField("#/decision", "is neither APPROVE nor REJECT")
	}
	if said.Arguments != nil && state != harness.ApprovalApproved {
		return nil, refuseField("#/arguments", "go with APPROVE: leave them out, or say in reason what to do instead")
	}
	if said.Scope != "" && state != harness.ApprovalApproved {
		return nil, refuseField("#/scope", "goes with APPROVE")
	}
	if said.Arguments != nil && said.Digest == "" {
		return nil, refuseField("#/digest", "goes with arguments: whoever changes what is approved names what they have seen")
	}
	after, events, err := a.Store.DecideApproval(ctx, postgres.Decision{
		ID: id, State: state, By: callerName(ctx), Groups: callerGroups(ctx), Via: harness.ChannelAPI, Reason: harness.CleanText(said.Reason), Digest: said.Digest,
		Scope: said.Scope, Arguments: said.Arguments, Audit: by(ctx, access.Decide, access.Approvals),
	})
	if harness.KindOf(err) == harness.Invalid && said.Arguments != nil {
		return nil, refuseField("#/arguments", harness.MessageOf(err))
	}
	if harness.KindOf(err) == harness.Invalid && said.Scope != "" {
		return nil, refuseField("#/scope", harness.MessageOf(err))
	}
	if harness.KindOf(err) == harness.Conflict {
		p := refuse(http.StatusConflict, harness.MessageOf(err))
		if after.State == harness.ApprovalPending && said.Digest != "" && said.Digest != after.Digest {
			p.Errors = []view.ProblemField{{Pointer: "#/digest", Detail: "is not that of the approval"}}
		}
		if after.ID != "" {
			p.Approvals = []view.Approval{after}
		}
		return nil, p
	}
	if err != nil {
		return nil, err
	}
	a.Publish(ctx, events...)
	return &approvalOutput{after}, nil
}
