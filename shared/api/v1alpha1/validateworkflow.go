package v1alpha1

import (
	"fmt"
	"slices"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/workflow"
)

// Validate returns everything that is wrong with w under the platform's limits:
// its fields, its graph and its expressions. Whether its agents exist is not
// looked at.
func (w AiWorkflow) Validate(limits Limits) Problems {
	c := &check{limits: limits}
	if w.APIVersion != APIVersion {
		c.fail("apiVersion", "is not known", "write "+APIVersion)
	}
	if w.Kind != KindWorkflow {
		c.fail("kind", "is not known", "write "+KindWorkflow)
	}
	c.name("metadata.name", Name(w.Metadata.Name), "of the workflow")
	c.length("spec.description", w.Spec.Description, 1024, "say it shorter")
	c.few("spec.inputs", len(w.Spec.Inputs), 32)
	c.few("spec.triggers", len(w.Spec.Triggers), 20)
	for i, in := range w.Spec.Inputs {
		c.length(fmt.Sprintf("spec.inputs[%d].description", i), in.Description, 1024, "say it shorter")
	}
	c.nodes(w.Spec.Nodes)
	c.few("spec.edges", len(w.Spec.Edges), 200)
	for i, e := range w.Spec.Edges[:min(len(w.Spec.Edges), 200)] {
		c.length(fmt.Sprintf("spec.edges[%d].when", i), e.When, 1024, "shorten it")
	}
	for i, t := range w.Spec.Triggers[:min(len(w.Spec.Triggers), 20)] {
		if t.Agent != "" {
			c.name(fmt.Sprintf("spec.triggers[%d].agent", i), t.Agent, "of the agent")
		}
	}
	c.graph(w)
	return c.problems
}

// graph adds what the engine finds, where nothing is known to be wrong yet. What
// is too much is not compiled.
func (c *check) graph(w AiWorkflow) {
	if len(w.Spec.Nodes) > 100 || len(w.Spec.Edges) > 200 || len(w.Spec.Inputs) > 32 || len(w.Spec.Triggers) > 20 {
		return
	}
	for _, p := range workflow.Check(w.Workflow()) {
		path := "spec." + p.Path
		if c.problems.Full() {
			return
		}
		if !slices.ContainsFunc(c.problems, func(known Problem) bool { return known.Path == path }) {
			c.fail(path, p.What, p.Fix)
		}
	}
}

func (c *check) nodes(nodes []Node) {
	if len(nodes) == 0 {
		c.fail("spec.nodes", "are missing", "give at least one of type END")
	}
	c.few("spec.nodes", len(nodes), 100)
	seen := names{}
	for i, n := range nodes {
		path := fmt.Sprintf("spec.nodes[%d]", i)
		c.once(path+".id", n.ID, "of the node", seen)
		switch n.Type {
		case harness.NodeAgent, harness.NodeShell, harness.NodeApproval, harness.NodeReply, harness.NodeEnd:
			c.node(path, n)
		case "":
			c.fail(path+".type", "is missing", nodeTypes)
		default: // then it is not known whose fields the others are
			c.fail(path+".type", fmt.Sprintf("is %q", n.Type), nodeTypes)
		}
	}
}

const nodeTypes = "use AGENT, SHELL, APPROVAL, REPLY or END"

// node checks the fields that each type has of its own.
func (c *check) node(path string, n Node) {
	works := n.Type == harness.NodeAgent || n.Type == harness.NodeShell
	for _, f := range []struct {
		name        string
		set         bool
		has, needed bool // by n's type
	}{
		{"agent", n.Agent != "", works, true},
		{"prompt", n.Prompt != "", n.Type == harness.NodeAgent, true},
		{"command", n.Command != "", n.Type == harness.NodeShell, true},
		{"timeoutSeconds", n.TimeoutSeconds != nil, n.Type != harness.NodeEnd, false},
		{"retries", n.Retries != nil, works, false},
		{"text", n.Text != "", n.Type == harness.NodeApproval || n.Type == harness.NodeReply, true},
		{"approval", n.Approval != nil, n.Type == harness.NodeApproval, false},
		{"state", n.State != "", n.Type == harness.NodeEnd, false},
	} {
		switch {
		case f.set && !f.has:
			c.fail(path+"."+f.name, fmt.Sprintf("is of another type of node than %s", n.Type), "remove it, or change type")
		case f.has && f.needed && !f.set:
			c.fail(path+"."+f.name, fmt.Sprintf("is missing, which a node of type %s needs", n.Type), "add it, or change type")
		}
	}
	if n.Agent != "" {
		c.name(path+".agent", n.Agent, "of an AiAgent")
	}
	c.length(path+".prompt", n.Prompt, maxText, "shorten it")
	c.length(path+".command", n.Command, maxText, "shorten it")
	c.length(path+".text", n.Text, maxText, "shorten it")
	most := maxNodeSeconds
	if n.Type == harness.NodeShell {
		most = c.limits.TimeoutSeconds
	}
	c.between(path+".timeoutSeconds", n.TimeoutSeconds, 1, most)
	if n.Retries != nil {
		c.between(path+".retries.max", &n.Retries.Max, 1, workflow.MaxRetries)
		c.between(path+".retries.backoffSeconds", n.Retries.BackoffSeconds, 1, workflow.MaxBackoff)
	}
	if n.Approval != nil {
		c.terms(path+".approval", *n.Approval)
	}
	if n.State != "" && n.State != harness.SessionCompleted && n.State != harness.SessionFailed {
		c.fail(path+".state", fmt.Sprintf("is %q", n.State), "use COMPLETED or FAILED")
	}
}

// maxNodeSeconds is the longest that a node may wait for somebody.
const maxNodeSeconds = 30 * 24 * 3600

// Workflow returns w as the rest of the system knows it, with defaults filled in.
func (w AiWorkflow) Workflow() harness.Workflow {
	spec := w.Spec
	flow := harness.Workflow{
		Name: harness.WorkflowName(w.Metadata.Name), Description: spec.Description, Start: string(spec.Start), MaxVisits: or(spec.MaxVisits, workflow.DefaultMaxVisits),
	}
	if flow.Start == "" && len(spec.Nodes) > 0 {
		flow.Start = string(spec.Nodes[0].ID)
	}
	for _, in := range spec.Inputs {
		flow.Inputs = append(flow.Inputs, harness.WorkflowInput{Name: in.Name, Type: in.Type, Required: in.Required})
	}
	for _, n := range spec.Nodes {
		flow.Nodes = append(flow.Nodes, n.node())
	}
	for _, e := range spec.Edges {
		flow.Edges = append(flow.Edges, harness.Edge{From: string(e.From), To: string(e.To), When: e.When})
	}
	for _, t := range spec.Triggers {
		flow.Triggers = append(flow.Triggers, harness.Trigger{
			Type: t.Type, Agent: harness.AgentName(t.Agent), Pattern: t.Pattern, Schedule: t.Schedule, TimeZone: t.TimeZone,
		})
	}
	return flow
}

func (n Node) node() harness.Node {
	node := harness.Node{
		ID: string(n.ID), Type: n.Type, Agent: harness.AgentName(n.Agent), Prompt: n.Prompt, Command: n.Command, Text: n.Text,
		State: n.State, Join: n.Join, TimeoutSeconds: or(n.TimeoutSeconds, 0),
	}
	if node.Type == harness.NodeEnd && node.State == "" {
		node.State = harness.SessionCompleted
	}
	if node.Join == harness.JoinAny {
		node.Join = ""
	}
	if n.Retries != nil {
		node.Retries = harness.Retries{Max: n.Retries.Max, BackoffSeconds: or(n.Retries.BackoffSeconds, workflow.DefaultBackoff)}
	}
	if n.Type == harness.NodeApproval {
		terms := ApprovalTerms{}
		if n.Approval != nil {
			terms = *n.Approval
		}
		spec := terms.spec()
		node.Approval = &spec
	}
	return node
}
