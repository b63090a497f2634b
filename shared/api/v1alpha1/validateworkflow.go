package v1alpha1

import (
	"fmt"
	"slices"

	"tuluat.ai/harness/shared/harness"
)

// Validate returns everything that is wrong with w under the platform's limits.
// This release runs no workflow, so there is always one problem, at kind.
func (w AiWorkflow) Validate(limits Limits) Problems {
	c := &check{limits: limits}
	if w.APIVersion != APIVersion {
		c.fail("apiVersion", "is not known", "write "+APIVersion)
	}
	if w.Kind != KindWorkflow {
		c.fail("kind", "is not known", "write "+KindWorkflow)
	} else {
		c.fail("kind", "is AiWorkflow, which is not in this release yet", "remove it")
	}
	c.name("metadata.name", Name(w.Metadata.Name), "of the workflow")
	c.length("spec.description", w.Spec.Description, 1024, "say it shorter")
	c.nodes(w.Spec.Nodes)
	c.edges(w.Spec)
	return c.problems
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
		case NodeAgent, NodeShell, NodeApproval, NodeReply, NodeEnd:
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
	for _, f := range []struct {
		name        string
		set         bool
		has, needed bool // by n's type
	}{
		{"agent", n.Agent != "", n.Type == NodeAgent || n.Type == NodeShell, true},
		{"prompt", n.Prompt != "", n.Type == NodeAgent, true},
		{"command", n.Command != "", n.Type == NodeShell, true},
		{"timeoutSeconds", n.TimeoutSeconds != nil, n.Type == NodeShell, false},
		{"text", n.Text != "", n.Type == NodeApproval || n.Type == NodeReply, true},
		{"approval", n.Approval != nil, n.Type == NodeApproval, false},
		{"state", n.State != "", n.Type == NodeEnd, false},
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
	c.between(path+".timeoutSeconds", n.TimeoutSeconds, 1, c.limits.TimeoutSeconds)
	if n.Approval != nil {
		c.terms(path+".approval", *n.Approval)
	}
	if n.State != "" && n.State != harness.SessionCompleted && n.State != harness.SessionFailed {
		c.fail(path+".state", fmt.Sprintf("is %q", n.State), "use COMPLETED or FAILED")
	}
}

// edges checks that a run can go through the graph: from its start to every
// node, and from every node to an END.
func (c *check) edges(s WorkflowSpec) {
	types := map[Name]NodeType{}
	for _, n := range slices.Backward(s.Nodes) { // of two with one id, the first
		types[n.ID] = n.Type
	}
	c.few("spec.edges", len(s.Edges), 200)
	forward, backward, whole := map[Name][]Name{}, map[Name][]Name{}, true
	for i, e := range s.Edges {
		path := fmt.Sprintf("spec.edges[%d]", i)
		known := c.nodeID(path+".from", e.From, types)
		known = c.nodeID(path+".to", e.To, types) && known
		c.length(path+".when", e.When, 1024, "shorten it")
		if types[e.From] == NodeEnd {
			c.fail(path+".from", fmt.Sprintf("is %q, which is of type END and ends the run", e.From), "remove the edge")
		}
		forward[e.From] = append(forward[e.From], e.To)
		backward[e.To] = append(backward[e.To], e.From)
		whole = whole && known
	}
	start, ends := s.Start, []Name{}
	if start == "" && len(s.Nodes) > 0 {
		start = s.Nodes[0].ID
	} else if start != "" {
		whole = c.nodeID("spec.start", start, types) && whole
	}
	for _, n := range s.Nodes {
		if n.Type == NodeEnd {
			ends = append(ends, n.ID)
		}
	}
	if len(s.Nodes) > 0 && len(ends) == 0 {
		c.fail("spec.nodes", "have none of type END, so a run could never end", "add one")
		whole = false
	}
	if !whole {
		return // what cannot be reached may only lack what is wrong above
	}
	reached, ending := reach(forward, start), reach(backward, ends...)
	for i, n := range s.Nodes {
		path := fmt.Sprintf("spec.nodes[%d]", i)
		switch {
		case !reached[n.ID]:
			c.fail(path, fmt.Sprintf("has no way in: no edges lead from %q to %q", start, n.ID), "add an edge to it, or remove it")
		case !ending[n.ID]:
			c.fail(path, fmt.Sprintf("has no way out: no edges lead from %q to a node of type END", n.ID), "add an edge from it")
		}
	}
}

// nodeID checks a reference to a node and reports whether it holds.
func (c *check) nodeID(path string, id Name, types map[Name]NodeType) bool {
	_, ok := types[id]
	switch {
	case id == "":
		c.fail(path, "is missing", "use the id of a node")
	case !ok:
		c.fail(path, fmt.Sprintf("is %q, which is no node", id), "use the id of a node")
	}
	return ok && id != ""
}

// reach returns all that the edges lead to from some nodes, with those.
func reach(edges map[Name][]Name, from ...Name) map[Name]bool {
	reached := map[Name]bool{}
	for len(from) > 0 {
		next := from[len(from)-1]
		from = from[:len(from)-1]
		if !reached[next] {
			reached[next] = true
			from = append(from, edges[next]...)
		}
	}
	return reached
}
