package api

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/workflow"
)

// startRun starts a run of a workflow.
func (a *api) startRun(ctx context.Context, in *startInput) (*acceptedOutput, error) {
	if in.Body.Agent != "" || in.Body.Text != "" || in.Body.Chat != "" {
		return nil, refuseField("#/workflow", "stands beside agent, text or chat, which are of a conversation: remove one or the other")
	}
	if err := a.linkable(in.Body.Temporal); err != nil {
		return nil, err
	}
	w, err := a.Store.GetWorkflow(ctx, in.Body.Workflow)
	switch {
	case harness.KindOf(err) == harness.NotFound:
		return nil, refuseField("#/workflow", "is no workflow")
	case err != nil:
		return nil, err
	case w.Workflow == nil:
		return nil, refuseField("#/workflow", "was never READY: "+w.Reason)
	}
	input, problems := workflow.Input(*w.Workflow, in.Body.Input)
	if len(problems) > 0 {
		var fields []view.ProblemField
		for _, p := range problems {
			fields = append(fields, view.ProblemField{Pointer: "#/input" + p.Path, Detail: p.What + ": " + p.Fix})
		}
		return nil, refuse(http.StatusUnprocessableEntity, "the input is not one of this workflow", fields...)
	}
	id, started, events, err := a.Store.StartRun(ctx, postgres.NewRun{
		ID: harness.NewSessionID(a.Now()), Workflow: w.Name, Revision: w.Revision, Agent: workflow.Agent(*w.Workflow), Key: a.identity(ctx, in.Key), Input: input,
		Temporal: in.Body.Temporal, TraceParent: event.TraceParent(in.TraceParent), Audit: by(ctx, access.Create, access.Sessions),
	})
	if err != nil {
		return nil, err
	}
	a.Publish(ctx, events...)
	out := &acceptedOutput{Location: location("sessions", string(id)), Body: accepted{Session: id, Duplicate: !started}}
	if !started {
		return out, a.sameRun(ctx, id, input, in.Body.Temporal)
	}
	return out, nil
}

// sameRun reports whether a known run is what its key is used for again.
func (a *api) sameRun(ctx context.Context, id harness.SessionID, input json.RawMessage, link *harness.TemporalLink) error {
	known, err := a.Store.GetSession(ctx, id)
	if err != nil {
		return err
	}
	var was, is any
	if json.Unmarshal(known.Input, &was) != nil || json.Unmarshal(input, &is) != nil || !reflect.DeepEqual(was, is) || !reflect.DeepEqual(known.Temporal, link) {
		return refuse(http.StatusConflict, "the Idempotency-Key belongs to another run",
			view.ProblemField{Pointer: "header/Idempotency-Key", Detail: "was used with another input or Temporal workflow"})
	}
	return nil
}
