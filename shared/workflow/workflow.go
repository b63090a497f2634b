// Package workflow is the engine of workflows: what is wrong with a definition
// (Check), what its expressions are worth, and what a run does next (Advance).
// It is pure: it knows no store, no clock and no network.
//
// A run is a set of visits. A visit begins PENDING, by an arrival over an edge;
// it starts, and hands one effect per attempt to whoever advances the run; it
// ends when that effect has, and then the edges that leave its node are looked
// at. All of it is in the visits: whoever reads them again after a crash
// decides the same again, and nothing is decided that is not stored.
//
// Expressions are CEL. They see input, nodes (the output of the newest ended
// visit of each node), message (that started the run) and run. What one may cost
// is bounded, and what all those of one Advance may cost together.
package workflow

import (
	"fmt"
	"slices"

	"tuluat.ai/harness/shared/harness"
)

// Problem is one thing that is wrong with a workflow.
type Problem struct {
	Path string // of the field below spec, as in nodes[0].prompt
	What string // what is wrong
	Fix  string // what to write instead
}

func (p Problem) String() string { return p.Path + " " + p.What + ": " + p.Fix }

// The most that a workflow may ask for, and what it gets that asks for nothing.
const (
	MaxVisits          = 1000
	DefaultMaxVisits   = 100
	MaxRetries         = 10
	DefaultBackoff     = 10    // seconds
	MaxBackoff         = 86400 // seconds
	MaxInputBytes      = 256 << 10
	maxExpression      = 4096     // bytes of one
	maxExpressions     = 64 << 10 // bytes of all of a workflow
	maxText            = 128 << 10
	maxCommand         = 100 << 10 // what a kernel takes as one argument is 128 KiB
	maxReason          = 1 << 10
	maxWait            = MaxBackoff
	costOfOne          = 100_000   // of CEL's units: some milliseconds
	costOfAll          = 2_000_000 // of one Advance
	startSlackSeconds  = 300       // what a command may wait for its sandbox beside its timeout
	maxPattern         = 256
	maxTriggerPattern  = 1000
	maxExpressionDepth = 50
)

// Program is a workflow that Check finds nothing wrong with, ready to run. It is
// safe for concurrent use.
type Program struct {
	Workflow harness.Workflow
	nodes    map[string]*node
	reach    map[string]map[string]bool // to what edges lead from a node, in one step or more
}

type node struct {
	harness.Node
	text *template // of the prompt, command or text
	out  []edge
}

type edge struct {
	harness.Edge
	when *expression // nil: none
}

// Check returns everything that is wrong with w.
func Check(w harness.Workflow) []Problem {
	_, problems := Compile(w)
	return problems
}

// Compile makes w ready to run. With problems there is no Program.
func Compile(w harness.Workflow) (*Program, []Problem) {
	c := &checker{workflow: w, types: map[string]harness.NodeType{}}
	p := &Program{Workflow: w, nodes: map[string]*node{}}
	for _, n := range slices.Backward(w.Nodes) { // of two with one id, the first
		c.types[n.ID] = n.Type
		p.nodes[n.ID] = &node{Node: n}
	}
	c.ids()
	c.limits()
	c.triggers()
	c.inputs()
	p.reach = c.graph()
	c.expressions(p)
	if len(c.problems) > 0 {
		return nil, c.problems
	}
	return p, nil
}

// Agent returns the agent that a run of w belongs to: that of the first node
// with one on the way from the start, near nodes first. Empty: there is none.
func Agent(w harness.Workflow) harness.AgentName {
	nodes, next := map[string]harness.Node{}, map[string][]string{}
	for _, n := range slices.Backward(w.Nodes) {
		nodes[n.ID] = n
	}
	for _, e := range w.Edges {
		next[e.From] = append(next[e.From], e.To)
	}
	seen := map[string]bool{w.Start: true}
	for queue := []string{w.Start}; len(queue) > 0; queue = queue[1:] {
		if agent := nodes[queue[0]].Agent; agent != "" {
			return agent
		}
		for _, to := range next[queue[0]] {
			if !seen[to] {
				seen[to] = true
				queue = append(queue, to)
			}
		}
	}
	return ""
}

// Agents returns every agent that w names, each once, in order.
func Agents(w harness.Workflow) []harness.AgentName {
	var agents []harness.AgentName
	for _, n := range w.Nodes {
		if n.Agent != "" {
			agents = append(agents, n.Agent)
		}
	}
	for _, t := range w.Triggers {
		if t.Agent != "" {
			agents = append(agents, t.Agent)
		}
	}
	slices.Sort(agents)
	return slices.Compact(agents)
}

// checker collects what is wrong with a workflow.
type checker struct {
	workflow harness.Workflow
	types    map[string]harness.NodeType
	problems []Problem
}

func (c *checker) fail(path, what, fix string) {
	c.problems = append(c.problems, Problem{Path: path, What: what, Fix: fix})
}

func at(list string, i int, field string) string {
	return fmt.Sprintf("%s[%d].%s", list, i, field)
}
