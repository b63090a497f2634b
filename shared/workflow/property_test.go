package workflow_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/workflow"
)

// world is a store with effects in it, as a run meets them: commits are whole or
// not at all and carry a token, and processes die between any two writes.
type world struct {
	t       *testing.T
	r       *rand.Rand
	program *workflow.Program
	run     workflow.Run
	over    workflow.Plan
	due     time.Time
	marked  bool // somebody has added work to the run
	token   int
	now     time.Time
	ids     int
	effects map[string]*job // by visit and attempt
}

type job struct {
	visit     harness.VisitID
	kind      harness.NodeType
	done      bool
	cancelled bool
}

func (w *world) id() harness.VisitID {
	w.ids++
	return harness.VisitID(fmt.Sprintf("vis_%04d", w.ids))
}

// commit stores a plan that was made under a token, if that is still the newest.
func (w *world) commit(token int, plan workflow.Plan) {
	w.t.Helper()
	if token != w.token || w.over.Ended {
		return // somebody has claimed the run since
	}
	w.token++ // the lease is released: nobody commits under it again
	for _, v := range plan.Visits {
		if i := slices.IndexFunc(w.run.Visits, func(old workflow.Visit) bool { return old.ID == v.ID }); i >= 0 {
			if old := w.run.Visits[i].State; old != v.State && !old.May(v.State) {
				w.t.Fatalf("visit %s goes from %s to %s", v.ID, old, v.State)
			}
		}
	}
	store(&w.run, plan)
	for _, e := range plan.Effects {
		key := fmt.Sprintf("%s#%d", e.Visit, e.Attempt)
		if w.effects[key] != nil {
			w.t.Fatalf("the effect %s is asked for twice", key)
		}
		w.effects[key] = &job{visit: e.Visit, kind: e.Node.Type, done: e.Node.Type == harness.NodeReply}
	}
	for _, id := range plan.Cancel {
		for _, j := range w.effects {
			if j.visit == id && !j.done {
				j.cancelled = true
			}
		}
	}
	w.due = plan.Due
	if plan.Ended {
		w.over = plan
	}
}

// read is the run as a claim reads it, with what became of its effects.
func (w *world) read() workflow.Run {
	run := w.run
	run.Visits = slices.Clone(run.Visits)
	for i := range run.Visits {
		v := &run.Visits[i]
		j := w.effects[fmt.Sprintf("%s#%d", v.ID, v.Attempt)]
		if j == nil || !j.done || v.State != harness.VisitRunning && v.State != harness.VisitWaiting {
			continue
		}
		// The same at each look, as rows are.
		r := rand.New(rand.NewPCG(uint64(len(v.ID)), uint64(v.Number)*1000+uint64(v.Attempt)))
		switch {
		case j.kind == harness.NodeApproval:
			v.Outcome = &workflow.Outcome{Output: map[string]any{"state": []string{"APPROVED", "REJECTED", "EXPIRED"}[r.IntN(3)]}}
		case r.IntN(3) == 0:
			v.Outcome = &workflow.Outcome{Failed: true, Reason: "it failed", Output: map[string]any{"state": "FAILED"}}
		default:
			v.Outcome = &workflow.Outcome{Output: map[string]any{"state": "COMPLETED", "exitCode": r.IntN(2), "text": "t", "stdout": "o"}}
		}
	}
	return run
}

// step is one thing that happens: a claim that comes to its commit, or dies, or
// is overtaken; an effect that ends; time.
func (w *world) step() {
	switch w.r.IntN(5) {
	case 0, 1:
		token := w.token
		plan := w.program.Advance(w.read(), w.now, w.id)
		again := w.program.Advance(w.read(), w.now, w.id) // another process that claims it, too
		switch w.r.IntN(4) {
		case 0: // the process dies before its commit
		case 1: // both come to their commit: one is too late
			w.commit(token, again)
			w.commit(token, plan)
		default:
			w.commit(token, plan)
		}
	case 2, 3:
		for _, key := range sorted(w.effects) {
			if j := w.effects[key]; !j.done && !j.cancelled {
				j.done, w.marked = true, true
				return
			}
		}
	case 4:
		w.now = w.now.Add(time.Duration(w.r.IntN(40)) * time.Second)
	}
}

func sorted(jobs map[string]*job) []string {
	var keys []string
	for key := range jobs {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// settle lets everything come to its end without further crashes. It reports
// whether the run ended.
func (w *world) settle() {
	for range 3000 {
		if w.over.Ended {
			return
		}
		w.commit(w.token, w.program.Advance(w.read(), w.now, w.id))
		moved := false
		for _, key := range sorted(w.effects) {
			if j := w.effects[key]; !j.done && !j.cancelled {
				j.done, moved = true, true
				break
			}
		}
		if !moved && !w.over.Ended {
			if w.due.IsZero() {
				w.t.Fatalf("the run neither ended nor waits for anything: %+v", w.run.Visits)
			}
			if w.due.After(w.now) {
				w.now = w.due
			}
		}
	}
	w.t.Fatalf("the run does not come to an end: %d visits", len(w.run.Visits))
}

// randomWorkflow is a graph of some nodes; Check says whether it is one.
func randomWorkflow(r *rand.Rand) harness.Workflow {
	n := 2 + r.IntN(7)
	w := harness.Workflow{Name: "w", Start: "n0", MaxVisits: 5 + r.IntN(40)}
	for i := range n {
		id := fmt.Sprintf("n%d", i)
		node := harness.Node{ID: id, Type: []harness.NodeType{harness.NodeAgent, harness.NodeShell, harness.NodeApproval, harness.NodeReply}[r.IntN(4)]}
		switch node.Type {
		case harness.NodeAgent:
			node.Agent, node.Prompt = "a", "visits ${run.visits}"
		case harness.NodeShell:
			node.Agent, node.Command = "a", `echo "${nodes.n0.state}"` // fails where n0 was not visited
		default:
			node.Text = "text"
		}
		if r.IntN(3) == 0 {
			node.Join = harness.JoinAll
		}
		if r.IntN(3) == 0 {
			node.TimeoutSeconds = 1 + r.IntN(100)
		}
		if node.Agent != "" && r.IntN(2) == 0 {
			node.Retries = harness.Retries{Max: 1 + r.IntN(3), BackoffSeconds: 1 + r.IntN(60)}
		}
		w.Nodes = append(w.Nodes, node)
	}
	w.Nodes = append(w.Nodes, harness.Node{ID: "end", Type: harness.NodeEnd, State: harness.SessionCompleted})
	if r.IntN(3) == 0 {
		w.Nodes[n].Join = harness.JoinAll
	}
	conditions := []string{"", "", "", "true", "false", "run.visits % 2 == 0", "run.visits > 6", "nodes.n0.state == 'COMPLETED'", "nodes.n1.state == 'FAILED'", "nodes.n1.state != 'APPROVED'"}
	node := func(i int) string {
		if i >= n {
			return "end"
		}
		return fmt.Sprintf("n%d", i)
	}
	seen := map[harness.Edge]bool{}
	add := func(from, to int) {
		e := harness.Edge{From: node(from), To: node(to), When: conditions[r.IntN(len(conditions))]}
		if !seen[e] {
			seen[e] = true
			w.Edges = append(w.Edges, e)
		}
	}
	for i := range n { // a way in and a way out for each
		if i > 0 {
			add(r.IntN(i), i)
		}
		add(i, i+1+r.IntN(n-i))
	}
	for range r.IntN(n) { // back, too
		add(r.IntN(n), r.IntN(n+1))
	}
	return w
}

// Random graphs, random outcomes, and crashes and races between any two writes:
// each effect is asked for once, each visit ends in a stored outcome, and each
// run ends or waits.
func TestRunsOfRandomGraphsThroughCrashes(t *testing.T) {
	wanted := 150
	if testing.Short() {
		wanted = 50
	}
	var ended, completed, tried int
	for seed := uint64(1); ended < wanted; seed++ {
		r := rand.New(rand.NewPCG(seed, 6))
		definition := randomWorkflow(r)
		program, problems := workflow.Compile(definition)
		if tried++; tried > 3*wanted {
			t.Fatalf("hardly any of the graphs is a workflow: %v", problems)
		}
		if len(problems) > 0 {
			continue
		}
		w := &world{t: t, r: r, program: program, now: began, effects: map[string]*job{}, run: workflow.Run{ID: "ses_run", Input: json.RawMessage(`{}`)}}
		for range 10 + r.IntN(60) {
			w.step()
		}
		w.settle()
		if t.Failed() {
			t.Fatalf("seed %d: %+v", seed, definition)
		}
		for _, v := range w.run.Visits {
			if !v.State.Ended() || v.State != harness.VisitCancelled && len(v.Output) == 0 {
				t.Fatalf("seed %d: visit %+v of a run that is over", seed, v)
			}
		}
		for key, j := range w.effects {
			if !j.done && !j.cancelled {
				t.Fatalf("seed %d: %s goes on after the run", seed, key)
			}
		}
		if len(w.run.Visits) > definition.MaxVisits {
			t.Fatalf("seed %d: %d visits, at most %d", seed, len(w.run.Visits), definition.MaxVisits)
		}
		if ended++; w.over.State == harness.SessionCompleted {
			completed++
		}
	}
	t.Logf("%d runs of %d graphs, %d of them COMPLETED", ended, tried, completed)
	if completed < ended/20 {
		t.Errorf("%d of %d runs came to their END: the graphs test little", completed, ended)
	}
}
