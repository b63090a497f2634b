package api

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/resource"
)

type (
	listResourcesInput struct {
		Page
		Status []harness.AgentPhase `query:"status,explode" nullable:"false" enum:"READY,DEGRADED,INVALID" doc:"only those in one of these phases"`
	}
	featuresInput struct {
		NameInput
		MatchInput
		DryRunInput
		Body features `required:"true"`
	}
	// features are the blocks of an agent that can be switched. Whether humans are
	// asked is none of them.
	features struct {
		Guardrails *bool `json:"guardrails,omitempty"`
		MCPServers *bool `json:"mcpServers,omitempty"`
		A2A        *bool `json:"a2a,omitempty"`
		Harness    *bool `json:"harness,omitempty"`
		Skills     *bool `json:"skills,omitempty"`
	}
)

type agentStore interface {
	AgentRows(ctx context.Context, names ...harness.AgentName) ([]postgres.AgentRow, error)
}

func (a *api) registerAgents() {
	s := &resources{api: a, kind: v1alpha1.KindAgent, word: access.Agents, path: "agents", stand: a.standAgents}
	of := schemaRef(v1alpha1.KindAgent)
	register(a, "list-agents", s.list, of.items)
	register(a, "create-agent", s.create, of.body, of.answer)
	register(a, "get-agent", s.get, of.answer)
	register(a, "replace-agent", s.replace, of.body, of.answer)
	register(a, "delete-agent", s.delete)
	register(a, "switch-agent-features", s.features, of.answer)
}

func (a *api) registerWorkflows() {
	s := &resources{
		api: a, kind: v1alpha1.KindWorkflow, word: access.Workflows, path: "workflows",
		stand: func(context.Context, []resource.Resource) error { return nil },
	}
	of := schemaRef(v1alpha1.KindWorkflow)
	register(a, "list-workflows", s.list, of.items)
	register(a, "create-workflow", s.create, of.body, of.answer)
	register(a, "get-workflow", s.get, of.answer)
	register(a, "replace-workflow", s.replace, of.body, of.answer)
	register(a, "delete-workflow", s.delete)
}

// inner is how many resources are read at once to find those in a phase.
const inner = 200

// list reads as many pages as it takes to find as many resources in one of the
// phases as are asked for.
func (s *resources) list(ctx context.Context, in *listResourcesInput) (*listOutput[json.RawMessage], error) {
	out := &listOutput[json.RawMessage]{Body: list[json.RawMessage]{Items: []json.RawMessage{}}}
	after, size := in.place.ID, in.Limit
	if len(in.Status) > 0 {
		size = inner
	}
	for {
		items, next, err := s.Resources.List(ctx, s.kind, after, size)
		if after != "" && harness.KindOf(err) == harness.Invalid {
			return nil, refuseCursor()
		}
		if err != nil {
			return nil, err
		}
		if err := s.stand(ctx, items); err != nil {
			return nil, err
		}
		for i, r := range items {
			if len(in.Status) > 0 && !slices.Contains(in.Status, phaseOf(r)) {
				continue
			}
			out.Body.Items = append(out.Body.Items, r.Object)
			if len(out.Body.Items) < in.Limit {
				continue
			}
			if i < len(items)-1 {
				next = resource.Behind(after, r.Name)
			}
			if next != "" {
				out.Body.Next = in.next(view.Place{ID: next})
			}
			return out, nil
		}
		if next == "" {
			return out, nil
		}
		after = next
	}
}

func phaseOf(r resource.Resource) harness.AgentPhase {
	var object struct {
		Status struct {
			Phase harness.AgentPhase `json:"phase"`
		} `json:"status"`
	}
	if err := json.Unmarshal(r.Object, &object); err != nil {
		return "" // somebody else's status says nothing
	}
	return object.Status.Phase
}

// features patches enabled of the blocks that are to change, and nothing else.
func (s *resources) features(ctx context.Context, in *featuresInput) (*resourceOutput, error) {
	m, err := in.read()
	if err != nil {
		return nil, err
	}
	wanted := map[string]bool{}
	for name, on := range map[string]*bool{
		"guardrails": in.Body.Guardrails, "mcpServers": in.Body.MCPServers, "a2a": in.Body.A2A, "harness": in.Body.Harness, "skills": in.Body.Skills,
	} {
		if on != nil {
			wanted[name] = *on
		}
	}
	if len(wanted) == 0 {
		return nil, refuseField("#", "names no block")
	}
	r, err := s.change(ctx, by(ctx, access.Patch, access.AgentFeatures), in.Name, m, in.DryRun, func(is resource.Resource, dryRun bool) (resource.Resource, error) {
		patch, err := switches(is, wanted)
		if err != nil || patch == nil {
			return is, err
		}
		return s.Resources.Patch(ctx, s.kind, in.Name, is.Version, patch, dryRun)
	})
	if err != nil {
		return nil, err
	}
	return s.output(ctx, r)
}

// switches returns the patch that makes enabled of blocks what is wanted, nil
// where they are so already. A block that is there is enabled unless it says
// otherwise; one that is not there is off, and cannot be switched on.
func switches(r resource.Resource, wanted map[string]bool) ([]byte, error) {
	var object struct {
		Spec map[string]json.RawMessage `json:"spec"`
	}
	if err := json.Unmarshal(r.Object, &object); err != nil {
		return nil, harness.Wrap(harness.Internal, err, "the agent cannot be read")
	}
	spec := map[string]any{}
	for name, on := range wanted {
		var block *struct {
			Enabled *bool `json:"enabled"`
		}
		if text, ok := object.Spec[name]; ok {
			if err := json.Unmarshal(text, &block); err != nil {
				return nil, refuse(http.StatusConflict, "a block of the agent is not what it should be: replace the agent", view.ProblemField{Pointer: "#/" + name, Detail: "is no object"})
			}
		}
		switch {
		case block == nil && on:
			return nil, refuseField("#/"+name, "is a block that the agent does not have: replace the agent by one that has it")
		case block == nil || (block.Enabled == nil || *block.Enabled) == on:
		default:
			spec[name] = map[string]bool{"enabled": on}
		}
	}
	if len(spec) == 0 {
		return nil, nil
	}
	return json.Marshal(map[string]any{"spec": spec})
}

// standAgents gives agents that have no status, because nobody writes into their
// files, the one that the rows say.
func (a *api) standAgents(ctx context.Context, items []resource.Resource) error {
	objects := map[harness.AgentName]map[string]json.RawMessage{}
	var names []harness.AgentName
	for _, r := range items {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(r.Object, &object); err != nil {
			return harness.Wrap(harness.Internal, err, "the agent cannot be read")
		}
		if _, ok := object["status"]; !ok {
			objects[harness.AgentName(r.Name)] = object
			names = append(names, harness.AgentName(r.Name))
		}
	}
	if len(names) == 0 {
		return nil
	}
	rows, err := a.Store.AgentRows(ctx, names...)
	if err != nil {
		return err
	}
	stands := map[harness.AgentName]postgres.AgentRow{}
	for _, row := range rows {
		stands[row.Name] = row
	}
	for i, r := range items {
		object, ok := objects[harness.AgentName(r.Name)]
		row, known := stands[harness.AgentName(r.Name)]
		if !ok || !known {
			continue
		}
		if object["status"], err = json.Marshal(statusOf(row)); err != nil {
			return harness.Wrap(harness.Internal, err, "the status cannot be written")
		}
		if items[i].Object, err = json.Marshal(object); err != nil {
			return harness.Wrap(harness.Internal, err, "the agent cannot be written")
		}
	}
	return nil
}

// statusOf is the part of a status that rows say of agents that are no resources
// of a cluster. In use, but with a reason, is an agent that lacks a channel.
func statusOf(row postgres.AgentRow) v1alpha1.Status {
	s := v1alpha1.Status{Phase: row.Phase, Revision: row.Revision, ActiveSessions: row.Sessions, ActiveSandboxes: row.Sandboxes}
	if row.Execution != nil {
		at := row.Execution.At.UTC()
		s.LastExecutionAt, s.LastExecutionStatus = &at, row.Execution.State
	}
	ready := v1alpha1.Condition{Type: v1alpha1.ConditionReady, Status: v1alpha1.ConditionTrue, Reason: "Ready", LastTransitionTime: row.UpdatedAt.UTC()}
	accepted := ready
	accepted.Type, accepted.Reason = v1alpha1.ConditionAccepted, "Accepted"
	s.Conditions = []v1alpha1.Condition{ready, accepted}
	switch {
	case row.Phase == harness.AgentInvalid:
		for i := range s.Conditions {
			s.Conditions[i].Status, s.Conditions[i].Reason, s.Conditions[i].Message = v1alpha1.ConditionFalse, "Refused", row.Reason
		}
	case row.Reason != "":
		s.Phase = harness.AgentDegraded
		s.Conditions[0].Status, s.Conditions[0].Reason, s.Conditions[0].Message = v1alpha1.ConditionFalse, "RouteConflict", row.Reason
		routed := s.Conditions[0]
		routed.Type = v1alpha1.ConditionRouted
		s.Conditions = append(s.Conditions, routed)
	}
	if row.Halted != "" {
		halted := v1alpha1.Condition{Type: v1alpha1.ConditionRunning, Status: v1alpha1.ConditionFalse, Reason: "Halted", Message: row.Halted, LastTransitionTime: row.UpdatedAt.UTC()}
		if s.Conditions = append(s.Conditions, halted); s.Phase == harness.AgentReady {
			s.Phase = harness.AgentDegraded
			s.Conditions[0].Status, s.Conditions[0].Reason, s.Conditions[0].Message = halted.Status, halted.Reason, halted.Message
		}
	}
	return s
}
