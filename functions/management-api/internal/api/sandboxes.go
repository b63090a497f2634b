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

type sandboxStore interface {
	ListSandboxes(ctx context.Context, f postgres.SandboxFilter, after view.Place, limit int) ([]view.Sandbox, error)
	GetSandbox(ctx context.Context, id harness.SandboxID) (view.Sandbox, error)
	TerminateSandbox(ctx context.Context, id harness.SandboxID, by postgres.Audit) (view.Sandbox, []event.Event, error)
}

type executionStore interface {
	ListExecutions(ctx context.Context, f postgres.ExecutionFilter, after view.Place, limit int) ([]view.Execution, error)
	GetExecution(ctx context.Context, id harness.ExecutionID) (view.Execution, error)
	RequestExecution(ctx context.Context, r postgres.ExecutionRequest) (view.Execution, bool, []event.Event, error)
}

type (
	listSandboxesInput struct {
		Page
		Status  []harness.SandboxState `query:"status,explode" nullable:"false" enum:"CREATING,READY,TERMINATING,GONE"`
		Agent   harness.AgentName      `query:"agent" maxLength:"63"`
		Session harness.SessionID      `query:"session" maxLength:"64"`
	}
	agentSandboxesInput struct {
		NameInput
		Page
		Status []harness.SandboxState `query:"status,explode" nullable:"false" enum:"CREATING,READY,TERMINATING,GONE"`
	}
	sandboxInput   struct{ IDInput }
	sandboxOutput  struct{ Body view.Sandbox }
	locatedSandbox struct {
		Location string `header:"Location"`
		Body     view.Sandbox
	}

	listExecutionsInput struct {
		Page
		Period
		Status  []harness.ExecutionState `query:"status,explode" nullable:"false" enum:"PENDING,RUNNING,COMPLETED,FAILED,TIMED_OUT,OUT_OF_MEMORY,DISK_LIMIT,SANDBOX_GONE,CANCELLED,UNKNOWN"`
		Agent   harness.AgentName        `query:"agent" maxLength:"63"`
		Session harness.SessionID        `query:"session" maxLength:"64"`
		Sandbox harness.SandboxID        `query:"sandbox" maxLength:"64"`
	}
	sandboxExecutionsInput struct {
		IDInput
		Page
		Status []harness.ExecutionState `query:"status,explode" nullable:"false" enum:"PENDING,RUNNING,COMPLETED,FAILED,TIMED_OUT,OUT_OF_MEMORY,DISK_LIMIT,SANDBOX_GONE,CANCELLED,UNKNOWN"`
	}
	runInput struct {
		IDInput
		KeyInput
		Body runBody
	}
	runBody struct {
		Command string `json:"command" minLength:"1" maxLength:"65536" doc:"given to the sandbox's shell"`
	}
	executionInput   struct{ IDInput }
	executionOutput  struct{ Body view.Execution }
	locatedExecution struct {
		Location string `header:"Location"`
		Body     view.Execution
	}
	readOutputInput struct {
		IDInput
		Stream string `query:"stream" enum:"stdout,stderr" default:"stdout"`
		Offset int64  `query:"offset" minimum:"0" maximum:"1152921504606846976" doc:"of the first byte"`
		Max    int    `query:"max" minimum:"1" maximum:"1048576" default:"65536" doc:"the most bytes"`
	}
	readOutput struct{ Body view.Output }
)

func (a *api) registerSandboxes() {
	register(a, "list-sandboxes", a.listSandboxes)
	register(a, "list-agent-sandboxes", a.listAgentSandboxes)
	register(a, "get-sandbox", a.getSandbox)
	register(a, "terminate-sandbox", a.terminateSandbox)
}

func (a *api) registerExecutions() {
	register(a, "list-sandbox-executions", a.listSandboxExecutions)
	register(a, "run-command", a.runCommand)
	register(a, "list-executions", a.listExecutions)
	register(a, "get-execution", a.getExecution)
	register(a, "read-output", a.readOutput)
}

func (a *api) sandboxes(ctx context.Context, page *Page, f postgres.SandboxFilter) (*listOutput[view.Sandbox], error) {
	rows, err := a.Store.ListSandboxes(ctx, f, page.place, page.more())
	if err != nil {
		return nil, err
	}
	return paged(page, rows, func(s view.Sandbox) view.Place { return view.Place{At: s.CreatedAt, ID: string(s.ID)} }), nil
}

func (a *api) listSandboxes(ctx context.Context, in *listSandboxesInput) (*listOutput[view.Sandbox], error) {
	return a.sandboxes(ctx, &in.Page, postgres.SandboxFilter{Agent: in.Agent, Session: in.Session, States: in.Status})
}

func (a *api) listAgentSandboxes(ctx context.Context, in *agentSandboxesInput) (*listOutput[view.Sandbox], error) {
	return a.sandboxes(ctx, &in.Page, postgres.SandboxFilter{Agent: harness.AgentName(in.Name), States: in.Status})
}

func (a *api) getSandbox(ctx context.Context, in *sandboxInput) (*sandboxOutput, error) {
	s, err := a.Store.GetSandbox(ctx, harness.SandboxID(in.ID))
	return &sandboxOutput{s}, err
}

func (a *api) terminateSandbox(ctx context.Context, in *sandboxInput) (*locatedSandbox, error) {
	after, events, err := a.Store.TerminateSandbox(ctx, harness.SandboxID(in.ID), by(ctx, access.Delete, access.Sandboxes))
	if err != nil {
		return nil, err
	}
	a.Publish(ctx, events...)
	return &locatedSandbox{Location: location("sandboxes", in.ID), Body: after}, nil
}

func (a *api) executions(ctx context.Context, page *Page, f postgres.ExecutionFilter) (*listOutput[view.Execution], error) {
	rows, err := a.Store.ListExecutions(ctx, f, page.place, page.more())
	if err != nil {
		return nil, err
	}
	return paged(page, rows, func(e view.Execution) view.Place { return view.Place{At: e.CreatedAt, ID: string(e.ID)} }), nil
}

func (a *api) listExecutions(ctx context.Context, in *listExecutionsInput) (*listOutput[view.Execution], error) {
	if err := in.check(a.Now()); err != nil {
		return nil, err
	}
	return a.executions(ctx, &in.Page, postgres.ExecutionFilter{
		Agent: in.Agent, Session: in.Session, Sandbox: in.Sandbox, States: in.Status, Since: in.Since, Until: in.Until,
	})
}

func (a *api) listSandboxExecutions(ctx context.Context, in *sandboxExecutionsInput) (*listOutput[view.Execution], error) {
	id := harness.SandboxID(in.ID)
	if _, err := a.Store.GetSandbox(ctx, id); err != nil {
		return nil, err
	}
	return a.executions(ctx, &in.Page, postgres.ExecutionFilter{Sandbox: id, States: in.Status})
}

func (a *api) runCommand(ctx context.Context, in *runInput) (*locatedExecution, error) {
	command := harness.CleanText(in.Body.Command)
	if strings.TrimSpace(command) == "" {
		return nil, refuseField("#/command", "is empty")
	}
	e, _, events, err := a.Store.RequestExecution(ctx, postgres.ExecutionRequest{
		Sandbox: harness.SandboxID(in.ID), Command: command, Key: a.identity(ctx, in.Key), Audit: by(ctx, access.Exec, access.Sandboxes),
	})
	if err != nil {
		return nil, err
	}
	a.Publish(ctx, events...)
	return &locatedExecution{Location: location("executions", string(e.ID)), Body: e}, nil
}

func (a *api) getExecution(ctx context.Context, in *executionInput) (*executionOutput, error) {
	e, err := a.Store.GetExecution(ctx, harness.ExecutionID(in.ID))
	return &executionOutput{e}, err
}

func (a *api) readOutput(ctx context.Context, in *readOutputInput) (*readOutput, error) {
	o, err := a.records.Output(ctx, harness.ExecutionID(in.ID), in.Stream, in.Offset, in.Max)
	if o.Data == nil {
		o.Data = []byte{} // an empty text, not null
	}
	return &readOutput{o}, err
}
