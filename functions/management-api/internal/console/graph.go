package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// graph is a workflow as it is drawn: nodes in layers from left to right, by the
// longest way from the start.
type graph struct {
	Width, Height int
	Nodes         []graphNode
	Edges         []graphEdge
	Note          string
}

type graphNode struct {
	ID, Type, Note string
	X, Y           int // of the middle
	Tone           string
	Visits         int
}

type graphEdge struct {
	Path, Head string // of an SVG path
	When       string
	X, Y       int // of what it says
}

// Left and Top are of the box of a node.
func (n graphNode) Left() int { return n.X - nodeWidth/2 }
func (n graphNode) Top() int  { return n.Y - nodeHeight/2 }

// Under is where the second line of a node stands.
func (n graphNode) Under() int { return n.Y + 16 }

const (
	nodeWidth  = 150
	nodeHeight = 48
	layerStep  = 215
	rowStep    = 84
	margin     = 20
)

// flow is what is drawn of an AiWorkflow.
type flow struct {
	Description string `json:"description"`
	Start       string `json:"start"`
	Nodes       []struct {
		ID    string            `json:"id"`
		Type  string            `json:"type"`
		Agent harness.AgentName `json:"agent"`
	} `json:"nodes"`
	Edges []struct {
		From string `json:"from"`
		To   string `json:"to"`
		When string `json:"when"`
	} `json:"edges"`
	Inputs []struct {
		Name     string `json:"name"`
		Type     string `json:"type"`
		Required bool   `json:"required"`
	} `json:"inputs"`
}

// mostDrawn is how many nodes are drawn: more are a list.
const mostDrawn = 200

// draw lays a workflow out. Edges that lead back are drawn below the rest.
func draw(f flow) *graph {
	if len(f.Nodes) == 0 || len(f.Nodes) > mostDrawn {
		return nil
	}
	index := map[string]int{}
	for i, n := range f.Nodes {
		index[n.ID] = i
	}
	next := make([][]int, len(f.Nodes))
	for _, e := range f.Edges {
		from, ok := index[e.From]
		to, known := index[e.To]
		if ok && known {
			next[from] = append(next[from], to)
		}
	}
	start, ok := index[f.Start]
	if !ok {
		start = 0
	}
	layers, back := layer(next, start)
	places := order(layers, next, back)
	g := &graph{}
	for i, n := range f.Nodes {
		x, y := margin+nodeWidth/2+layers[i]*layerStep, margin+nodeHeight/2+places[i]*rowStep
		g.Nodes = append(g.Nodes, graphNode{ID: n.ID, Type: n.Type, Note: string(n.Agent), X: x, Y: y, Tone: "calm"})
		g.Width, g.Height = max(g.Width, x+nodeWidth/2+margin), max(g.Height, y+nodeHeight/2+margin)
	}
	under := g.Height
	for _, e := range f.Edges {
		from, ok := index[e.From]
		to, known := index[e.To]
		if !ok || !known {
			continue
		}
		drawn := between(g.Nodes[from], g.Nodes[to], e.When)
		if layers[to] <= layers[from] {
			under += 26
			drawn = around(g.Nodes[from], g.Nodes[to], e.When, under-12)
		}
		g.Edges = append(g.Edges, drawn)
	}
	g.Height = under
	return g
}

// layer returns how many edges the longest way to each node has, without those that
// lead back to where a way has come from.
func layer(next [][]int, start int) (layers []int, back map[[2]int]bool) {
	const unseen, open, done = 0, 1, 2
	state, back := make([]int, len(next)), map[[2]int]bool{}
	var reversed []int
	var visit func(int)
	visit = func(n int) {
		state[n] = open
		for _, to := range next[n] {
			switch state[to] {
			case unseen:
				visit(to)
			case open:
				back[[2]int{n, to}] = true
			}
		}
		state[n] = done
		reversed = append(reversed, n)
	}
	visit(start)
	for n := range next {
		if state[n] == unseen {
			visit(n)
		}
	}
	layers = make([]int, len(next))
	for _, n := range slices.Backward(reversed) {
		for _, to := range next[n] {
			if !back[[2]int{n, to}] {
				layers[to] = max(layers[to], layers[n]+1)
			}
		}
	}
	return layers, back
}

// order returns the place of each node in its layer: near those that lead to it.
func order(layers []int, next [][]int, back map[[2]int]bool) []int {
	places, members := make([]int, len(layers)), make([][]int, slices.Max(layers)+1)
	for n, l := range layers {
		places[n] = len(members[l])
		members[l] = append(members[l], n)
	}
	weight := make([]float64, len(layers))
	for l := 1; l < len(members); l++ {
		for _, n := range members[l] {
			sum, count := 0.0, 0.0
			for from, all := range next {
				if slices.Contains(all, n) && !back[[2]int{from, n}] {
					sum, count = sum+float64(places[from]), count+1
				}
			}
			weight[n] = sum / max(1, count)
		}
		slices.SortStableFunc(members[l], func(a, b int) int { return cmp.Compare(weight[a], weight[b]) })
		for i, n := range members[l] {
			places[n] = i
		}
	}
	return places
}

func between(from, to graphNode, when string) graphEdge {
	x1, x2 := from.X+nodeWidth/2, to.X-nodeWidth/2-7
	bend := (x2 - x1) / 2
	return graphEdge{
		Path: fmt.Sprintf("M%d %d C%d %d %d %d %d %d", x1, from.Y, x1+bend, from.Y, x2-bend, to.Y, x2, to.Y), Head: head(x2, to.Y),
		When: when, X: (x1 + x2) / 2, Y: (from.Y+to.Y)/2 - 6,
	}
}

// around goes back below all nodes.
func around(from, to graphNode, when string, y int) graphEdge {
	return graphEdge{
		Path: fmt.Sprintf("M%d %d C%d %d %d %d %d %d L%d %d C%d %d %d %d %d %d", from.X, from.Y+nodeHeight/2, from.X, y, from.X, y, from.X-20, y, to.X+20, y, to.X, y, to.X, y, to.X, to.Y+nodeHeight/2+8),
		Head: fmt.Sprintf("M%d %d l-5 8 h10 z", to.X, to.Y+nodeHeight/2), When: when, X: (from.X + to.X) / 2, Y: y - 4,
	}
}

func head(x, y int) string { return fmt.Sprintf("M%d %d l-8 -5 v10 z", x+7, y) }

// visitTone is the look of a node by its newest visit.
func visitTone(state string) string {
	switch state {
	case "RUNNING", "OPEN", "PENDING", "WAITING":
		return "live"
	}
	return tone(state)
}

// runGraph draws a run: what its visits say of the nodes.
func (p *page) runGraph(s view.Session, entries []view.Entry) (*graph, error) {
	var object struct {
		Spec   flow `json:"spec"`
		Status struct {
			Revision int64 `json:"revision"`
		} `json:"status"`
	}
	if known, err := p.optional(at("workflows", string(s.Workflow)), nil, &object); err != nil || !known {
		return nil, err
	}
	g := draw(object.Spec)
	if g == nil {
		return nil, nil
	}
	for _, e := range entries {
		if e.Visit == nil {
			continue
		}
		for i := range g.Nodes {
			if g.Nodes[i].ID == e.Visit.Node {
				g.Nodes[i].Tone, g.Nodes[i].Visits = visitTone(string(e.Visit.State)), g.Nodes[i].Visits+1
			}
		}
	}
	for i := range g.Nodes {
		if g.Nodes[i].ID == s.CurrentNode && !s.State.Ended() {
			g.Nodes[i].Tone = "live"
		}
	}
	if r := object.Status.Revision; r != 0 && r != s.WorkflowRevision {
		g.Note = fmt.Sprintf("The run keeps to revision %d; revision %d is drawn.", s.WorkflowRevision, r)
	}
	return g, nil
}

// readFlow reads what is drawn of an AiWorkflow.
func readFlow(text json.RawMessage) (name string, f flow) {
	var object struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Spec flow `json:"spec"`
	}
	_ = json.Unmarshal(text, &object) // what cannot be read is not drawn
	return object.Metadata.Name, object.Spec
}
