package workflow

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// Run is what is stored of a run.
type Run struct {
	ID      harness.SessionID
	Input   json.RawMessage // an object
	Started harness.Started
	Visits  []Visit // in the order in which they began

	// Unusable says why a node cannot be begun now, by its id: its agent is gone.
	Unusable map[string]string
}

// Visit is one visit of a node.
type Visit struct {
	ID       harness.VisitID
	Node     string
	Number   int // among those of its node, from 1
	State    harness.VisitState
	Attempt  int               // that is to start, runs or was the last, from 1
	Arrivals []harness.VisitID // over whose edges it came to be; none: the run began with it
	Output   json.RawMessage   // of an ended one: an object
	Reason   string            // for people: why it FAILED
	Due      time.Time         // PENDING: no start before; RUNNING, WAITING: times out then; zero: never

	// Outcome is what became of the effect of the attempt, of a visit that is
	// RUNNING or WAITING; nil: it has not ended.
	Outcome *Outcome
}

// Outcome is how an effect ended.
type Outcome struct {
	Failed bool           // it did not do what it is for
	Reason string         // why it Failed
	Output map[string]any // members as the type of the node has them
}

// Effect is what is to be done for one attempt of a visit. It goes with the
// visit's change to RUNNING, WAITING or, of a REPLY, DONE: both are stored
// together or not at all.
type Effect struct {
	Visit   harness.VisitID
	Attempt int
	Node    harness.Node
	Text    string // the prompt, command, question or reply, filled in
}

// Plan is what a run does next.
type Plan struct {
	Visits  []Visit              // that are new or have changed
	Effects []Effect             // of attempts that begin
	Cancel  []harness.VisitID    // whose effects are to end
	State   harness.SessionState // of the run
	Reason  string               // for people; empty when all is well
	Ended   bool
	Due     time.Time // when to look again, if nothing happens before; zero: then
}

// Advance says what run does at the time now. It changes nothing it is given.
// newID gives fresh ids.
func (p *Program) Advance(run Run, now time.Time, newID func() harness.VisitID) Plan {
	a := &advance{Program: p, run: run, now: now, newID: newID, changed: map[harness.VisitID]bool{}, left: costOfAll}
	a.visits = slices.Clone(run.Visits)
	a.nodesOf, a.newest = map[string]any{}, map[string]int{}
	for _, v := range a.visits {
		a.remember(v)
	}
	a.vars = map[string]any{"input": a.input(), "nodes": a.nodesOf, "message": a.message()}
	if len(a.visits) == 0 {
		a.arrive(p.Workflow.Start, "")
	}
	a.settle()
	for !a.ended && (a.follow() || a.start()) {
	}
	return a.plan()
}

// Abort ends a run that cannot be advanced.
func Abort(run Run, reason string) Plan {
	a := &advance{run: run, visits: slices.Clone(run.Visits), changed: map[harness.VisitID]bool{}}
	a.fail(reason)
	return a.plan()
}

type advance struct {
	*Program
	run     Run
	now     time.Time
	newID   func() harness.VisitID
	visits  []Visit
	changed map[harness.VisitID]bool
	fresh   []int // visits that ended and whose edges nobody has looked at
	left    uint64
	stuck   string         // where the last branch ended
	vars    map[string]any // of expressions; nodes among them, which Advance adds to
	nodesOf map[string]any // nodes of vars: the newest output of each
	newest  map[string]int // the number of the visit that it is of

	effects []Effect
	cancel  []harness.VisitID
	ended   bool
	state   harness.SessionState
	reason  string
}

func (a *advance) plan() Plan {
	plan := Plan{Effects: a.effects, Cancel: a.cancel, State: a.state, Reason: clip(a.reason), Ended: a.ended}
	if !a.ended {
		plan.State, plan.Due = a.waits()
	}
	for _, v := range a.visits {
		if a.changed[v.ID] {
			plan.Visits = append(plan.Visits, v)
		}
	}
	return plan
}

// waits says for what an open run waits, and until when at most.
func (a *advance) waits() (state harness.SessionState, due time.Time) {
	state = harness.SessionRunning
	for _, v := range a.visits {
		if v.State.Ended() {
			continue
		}
		if !v.Due.IsZero() && (due.IsZero() || v.Due.Before(due)) {
			due = v.Due
		}
		switch {
		case v.State == harness.VisitWaiting:
			state = harness.SessionAwaitingApproval
		case v.State == harness.VisitRunning && a.nodes[v.Node].Type == harness.NodeShell && state == harness.SessionRunning:
			state = harness.SessionAwaitingExecution
		}
	}
	return state, due
}

// settle ends the attempts whose effects have ended or took too long.
func (a *advance) settle() {
	for i := range a.visits {
		v := &a.visits[i]
		if v.State != harness.VisitRunning && v.State != harness.VisitWaiting {
			continue
		}
		outcome := v.Outcome
		if outcome == nil {
			if v.Due.IsZero() || v.Due.After(a.now) {
				continue
			}
			outcome = &Outcome{
				Failed: true, Reason: fmt.Sprintf("it took longer than its %d seconds", a.nodes[v.Node].TimeoutSeconds),
				Output: map[string]any{"state": string(harness.ExecutionTimedOut)},
			}
			a.cancel = append(a.cancel, v.ID)
		}
		a.end(i, *outcome)
	}
}

// end ends an attempt: the visit with it, or it is tried again.
func (a *advance) end(i int, o Outcome) {
	v := &a.visits[i]
	n := a.nodes[v.Node]
	v.Outcome, v.Due = nil, time.Time{}
	a.changed[v.ID] = true
	if o.Failed && v.Attempt <= n.Retries.Max {
		wait := min(n.Retries.BackoffSeconds<<min(v.Attempt-1, 20), maxWait)
		v.State, v.Reason, v.Due = harness.VisitPending, clip(o.Reason), a.now.Add(time.Duration(wait)*time.Second)
		v.Attempt++
		return
	}
	if v.State, v.Reason = harness.VisitDone, ""; o.Failed {
		v.State, v.Reason = harness.VisitFailed, clip(o.Reason)
	}
	v.Output = output(n.Type, o)
	a.remember(*v)
	a.fresh = append(a.fresh, i)
}

// output has every member that expressions may look at, so that a condition on
// a failed node fails no run for want of a value.
func output(kind harness.NodeType, o Outcome) json.RawMessage {
	members := map[string]any{}
	for _, name := range outputs[kind] {
		switch value, ok := o.Output[name]; {
		case ok:
			members[name] = value
		case name == "exitCode":
			members[name] = -1
		case name == "reason":
			members[name] = o.Reason
		case name == "state" && o.Failed:
			members[name] = string(harness.SessionFailed)
		case name == "state":
			members[name] = string(harness.SessionCompleted)
		default:
			members[name] = ""
		}
	}
	text, err := json.Marshal(members)
	if err != nil { // outcomes are plain values
		panic(err)
	}
	return text
}

// follow looks at the edges of a visit that has ended, and reports whether there
// was one.
func (a *advance) follow() bool {
	if len(a.fresh) == 0 {
		return false
	}
	v := a.visits[a.fresh[0]]
	a.fresh = a.fresh[1:]
	n := a.nodes[v.Node]
	did := v.State == harness.VisitDone && (n.Type != harness.NodeApproval || approved(v))
	values, followed := a.values(), 0
	for _, e := range n.out {
		held := did && e.when == nil
		if e.when != nil {
			var err error
			held, err = values.holds(e.when)
			if errors.Is(err, errCost) || err != nil && did {
				a.fail(fmt.Sprintf("the condition of the edge from %s to %s could not be decided: %v", e.From, e.To, err))
				return true
			}
		}
		if !held {
			continue
		}
		followed++
		if !a.arrive(e.To, v.ID) {
			return true
		}
	}
	a.left = values.left
	switch {
	case followed > 0:
	case did:
		a.stuck = v.Node
	case v.State == harness.VisitFailed:
		a.fail(fmt.Sprintf("the node %s failed: %s", v.Node, cmp.Or(v.Reason, "nobody said why")))
	default:
		a.fail("the node " + v.Node + " was not approved" + a.why(v))
	}
	return true
}

// approved reports whether the output of an APPROVAL says yes. What humans did
// not agree to goes on only where an edge says so in words.
func approved(v Visit) bool {
	var said struct {
		State harness.ApprovalState `json:"state"`
	}
	return json.Unmarshal(v.Output, &said) == nil && said.State == harness.ApprovalApproved
}

func (a *advance) why(v Visit) string {
	var said struct {
		State     harness.ApprovalState `json:"state"`
		DecidedBy string                `json:"decidedBy"`
		Reason    string                `json:"reason"`
	}
	if err := json.Unmarshal(v.Output, &said); err != nil {
		return ""
	}
	words := ": " + string(said.State)
	if said.DecidedBy != "" {
		words += " by " + said.DecidedBy
	}
	if said.Reason != "" {
		words += ", who said: " + said.Reason
	}
	return words
}

// arrive brings the run to a node, over an edge behind the visit from. It
// reports whether the run goes on.
func (a *advance) arrive(id string, from harness.VisitID) bool {
	n := a.nodes[id]
	var arrivals []harness.VisitID
	if from != "" {
		arrivals = []harness.VisitID{from}
	}
	number := 1
	for i := range a.visits {
		v := &a.visits[i]
		if v.Node != id {
			continue
		}
		if number++; n.Join == JoinAll && v.State == harness.VisitPending && v.Attempt == 1 {
			v.Arrivals = append(slices.Clone(v.Arrivals), arrivals...)
			a.changed[v.ID] = true
			return true
		}
	}
	if len(a.visits) >= a.Workflow.MaxVisits {
		a.fail(fmt.Sprintf("it made its %d visits of nodes without coming to an end (maxVisits), the last before %s", a.Workflow.MaxVisits, id))
		return false
	}
	v := Visit{ID: a.newID(), Node: id, Number: number, State: harness.VisitPending, Attempt: 1, Arrivals: arrivals}
	a.visits = append(a.visits, v)
	a.changed[v.ID] = true
	return true
}

// start starts the first visit that can, and reports whether there was one. With
// nothing open the run is over.
func (a *advance) start() bool {
	open, joins := 0, -1
	for i, v := range a.visits {
		if v.State.Ended() {
			continue
		}
		open++
		if v.State != harness.VisitPending || v.Due.After(a.now) {
			continue
		}
		if a.blocked(i) {
			if joins < 0 {
				joins = i
			}
			continue
		}
		a.begin(i)
		return true
	}
	if open == 0 {
		a.fail(fmt.Sprintf("it stopped at the node %s: none of its edges was to be followed, and no node of type END was reached", a.stuck))
		return false
	}
	if joins >= 0 && !slices.ContainsFunc(a.visits, func(v Visit) bool { return !v.State.Ended() && !a.joining(v) }) {
		a.begin(joins) // joins that wait for each other would do so for ever
		return true
	}
	return false
}

// joining reports whether v is a join that has not started.
func (a *advance) joining(v Visit) bool {
	return v.State == harness.VisitPending && v.Attempt == 1 && a.nodes[v.Node].Join == JoinAll
}

// blocked reports whether a PENDING visit is a join to which something open may
// still lead.
func (a *advance) blocked(i int) bool {
	if !a.joining(a.visits[i]) {
		return false
	}
	for j, v := range a.visits {
		if j != i && !v.State.Ended() && a.reach[v.Node][a.visits[i].Node] {
			return true
		}
	}
	return false
}

// begin starts an attempt of a visit.
func (a *advance) begin(i int) {
	v := &a.visits[i]
	n := a.nodes[v.Node]
	v.Due = time.Time{}
	a.changed[v.ID] = true
	if n.Type == harness.NodeEnd {
		v.State, v.Output = harness.VisitDone, output(n.Type, Outcome{Output: map[string]any{"state": string(n.State)}})
		a.finish(n.State, "")
		if n.State == harness.SessionFailed {
			a.reason = "the workflow ended at " + n.ID + ", which says FAILED"
		}
		return
	}
	if why := a.run.Unusable[n.ID]; why != "" {
		a.end(i, Outcome{Failed: true, Reason: why})
		return
	}
	text, err := a.fill(n)
	if err != nil {
		// No retry would fill it in: what it looks at does not change.
		v.State, v.Reason = harness.VisitFailed, clip("its text could not be filled in: "+err.Error())
		v.Output = output(n.Type, Outcome{Failed: true, Reason: v.Reason})
		a.remember(*v)
		a.fresh = append(a.fresh, i)
		return
	}
	a.effects = append(a.effects, Effect{Visit: v.ID, Attempt: v.Attempt, Node: n.Node, Text: text})
	switch n.Type {
	case harness.NodeReply:
		a.end(i, Outcome{})
		return
	case harness.NodeApproval:
		v.State = harness.VisitWaiting
	default:
		v.State = harness.VisitRunning
	}
	if n.TimeoutSeconds > 0 {
		seconds := n.TimeoutSeconds
		if n.Type == harness.NodeShell { // counts from when the command begins, which its runner does
			seconds += startSlackSeconds
		}
		v.Due = a.now.Add(time.Duration(seconds) * time.Second)
	}
}

func (a *advance) fill(n *node) (string, error) {
	values := a.values()
	defer func() { a.left = values.left }()
	if n.Type == harness.NodeShell {
		return n.text.command(values, maxCommand)
	}
	text, err := n.text.render(values, maxText)
	if err == nil && strings.TrimSpace(text) == "" {
		err = errors.New("it is empty")
	}
	return text, err
}

// finish ends the run and all that is open in it.
func (a *advance) finish(state harness.SessionState, reason string) {
	a.ended, a.state, a.reason = true, cmp.Or(state, harness.SessionCompleted), reason
	begun := map[harness.VisitID]bool{}
	for _, e := range a.effects {
		begun[e.Visit] = true
	}
	for i := range a.visits {
		v := &a.visits[i]
		if v.State.Ended() {
			continue
		}
		if (v.State == harness.VisitRunning || v.State == harness.VisitWaiting) && !begun[v.ID] {
			a.cancel = append(a.cancel, v.ID)
		}
		v.State, v.Due, v.Outcome = harness.VisitCancelled, time.Time{}, nil
		a.changed[v.ID] = true
	}
	// What was to begin just now need not.
	a.effects = slices.DeleteFunc(a.effects, func(e Effect) bool { return e.Node.Type != harness.NodeReply })
}

func (a *advance) fail(reason string) { a.finish(harness.SessionFailed, reason) }

// remember makes the output of a visit that has ended what expressions see of
// its node. Visits come in the order in which they began: the newest one stays.
func (a *advance) remember(v Visit) {
	if (v.State != harness.VisitDone && v.State != harness.VisitFailed) || len(v.Output) == 0 {
		return
	}
	members, err := object(v.Output)
	if err != nil {
		return
	}
	if v.Number >= a.newest[v.Node] {
		a.newest[v.Node], a.nodesOf[v.Node] = v.Number, members
	}
}
