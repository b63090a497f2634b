package workflow_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/workflow"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// bench is a run in memory: whoever advances it stores the plan at once.
type bench struct {
	t       *testing.T
	program *workflow.Program
	run     workflow.Run
	now     time.Time
	last    workflow.Plan
	effects []workflow.Effect
	ids     int
}

func newBench(t *testing.T, w harness.Workflow) *bench {
	t.Helper()
	program, problems := workflow.Compile(w)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return &bench{t: t, program: program, now: began, run: workflow.Run{ID: "ses_run", Input: json.RawMessage(`{"n": 3, "text": "hi", "list": [1, 2]}`)}}
}

func (b *bench) id() harness.VisitID {
	b.ids++
	return harness.VisitID(fmt.Sprintf("vis_%d", b.ids))
}

// advance makes one step and stores it. It returns the effects that it began.
func (b *bench) advance() []string {
	b.t.Helper()
	b.last = b.program.Advance(b.run, b.now, b.id)
	store(&b.run, b.last)
	b.effects = append(b.effects, b.last.Effects...)
	var begun []string
	for _, e := range b.last.Effects {
		begun = append(begun, fmt.Sprintf("%s#%d", e.Node.ID, e.Attempt))
	}
	return begun
}

func store(run *workflow.Run, plan workflow.Plan) {
	for _, v := range plan.Visits {
		if i := slices.IndexFunc(run.Visits, func(old workflow.Visit) bool { return old.ID == v.ID }); i >= 0 {
			run.Visits[i] = v
		} else {
			run.Visits = append(run.Visits, v)
		}
	}
}

// ends says how the newest visit of a node ended.
func (b *bench) ends(node string, o workflow.Outcome) {
	b.t.Helper()
	for i := len(b.run.Visits) - 1; i >= 0; i-- {
		if v := &b.run.Visits[i]; v.Node == node && (v.State == harness.VisitRunning || v.State == harness.VisitWaiting) {
			v.Outcome = &o
			return
		}
	}
	b.t.Fatalf("no open visit of %s: %+v", node, b.run.Visits)
}

func (b *bench) says(node string, state harness.ApprovalState) {
	b.ends(node, workflow.Outcome{Output: map[string]any{"state": string(state), "decidedBy": "ann", "reason": "because"}})
}

func (b *bench) exits(node string, code int) {
	b.ends(node, workflow.Outcome{Output: map[string]any{"state": "COMPLETED", "exitCode": code, "stdout": "out", "stderr": ""}})
}

func (b *bench) want(t *testing.T, begun []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, begun); diff != "" {
		t.Errorf("effects (-want +got):\n%s", diff)
	}
}

func (b *bench) over(state harness.SessionState, reason string) {
	b.t.Helper()
	if !b.last.Ended || b.last.State != state || !strings.Contains(b.last.Reason, reason) || (reason == "") != (b.last.Reason == "") {
		b.t.Errorf("the run is %v %s %q, want %s %q", b.last.Ended, b.last.State, b.last.Reason, state, reason)
	}
	for _, v := range b.run.Visits {
		if !v.State.Ended() {
			b.t.Errorf("visit %d of %s is %s in a run that is over", v.Number, v.Node, v.State)
		}
	}
}

func flow(nodes []harness.Node, edges ...string) harness.Workflow {
	w := harness.Workflow{Name: "w", Start: nodes[0].ID, MaxVisits: 100, Nodes: nodes}
	for _, e := range edges { // from > to [when]
		from, rest, _ := strings.Cut(e, " > ")
		to, when, _ := strings.Cut(rest, " ")
		w.Edges = append(w.Edges, harness.Edge{From: from, To: to, When: when})
	}
	return w
}

func agentNode(id string) harness.Node {
	return harness.Node{ID: id, Type: harness.NodeAgent, Agent: "a", Prompt: "do " + id}
}

func shellNode(id, command string) harness.Node {
	return harness.Node{ID: id, Type: harness.NodeShell, Agent: "a", Command: command}
}

func approvalNode(id string) harness.Node {
	return harness.Node{ID: id, Type: harness.NodeApproval, Text: "may " + id + "?"}
}

func replyNode(id, text string) harness.Node {
	return harness.Node{ID: id, Type: harness.NodeReply, Text: text}
}

var endNode = harness.Node{ID: "end", Type: harness.NodeEnd, State: harness.SessionCompleted}

func TestOneAfterTheOther(t *testing.T) {
	b := newBench(t, flow([]harness.Node{agentNode("ask"), approvalNode("may"), shellNode("build", `make "${nodes.ask.text}"`), replyNode("tell", "exit ${nodes.build.exitCode}"), endNode},
		"ask > may", "may > build", "build > tell", "tell > end"))
	b.want(t, b.advance(), "ask#1")
	if b.last.State != harness.SessionRunning || b.last.Effects[0].Text != "do ask" {
		t.Errorf("%+v", b.last)
	}
	b.want(t, b.advance()) // nothing new: nothing again
	b.ends("ask", workflow.Outcome{Output: map[string]any{"text": "it's $(reboot)"}})
	b.want(t, b.advance(), "may#1")
	if b.last.State != harness.SessionAwaitingApproval {
		t.Errorf("state %s", b.last.State)
	}
	b.says("may", harness.ApprovalApproved)
	b.want(t, b.advance(), "build#1")
	if got, want := b.last.Effects[0].Text, "V1='it'\\''s $(reboot)'\nmake \"${V1}\""; got != want || b.last.State != harness.SessionAwaitingExecution {
		t.Errorf("command %q, want %q; state %s", got, want, b.last.State)
	}
	b.exits("build", 2)
	b.want(t, b.advance(), "tell#1")
	if b.last.Effects[0].Text != "exit 2" {
		t.Errorf("reply %q", b.last.Effects[0].Text)
	}
	b.over(harness.SessionCompleted, "")
}

func TestEdgesAndTheirConditions(t *testing.T) {
	nodes := []harness.Node{shellNode("build", "make"), agentNode("good"), agentNode("bad"), endNode}
	w := flow(nodes, "build > good nodes.build.exitCode == 0 && input.n == 3", "build > bad nodes['build'].exitCode != 0", "good > end", "bad > end")
	for code, want := range map[int]string{0: "good#1", 1: "bad#1"} {
		b := newBench(t, w)
		b.advance()
		b.exits("build", code)
		b.want(t, b.advance(), want)
	}
	// What failed goes on only where an edge says so in words.
	failed := workflow.Outcome{Failed: true, Reason: "the sandbox is gone", Output: map[string]any{"state": "SANDBOX_GONE"}}
	b := newBench(t, w)
	b.advance()
	b.ends("build", failed)
	b.want(t, b.advance(), "bad#1") // its exit code is -1
	b = newBench(t, flow(nodes, "build > good", "build > bad nodes.build.state == 'TIMED_OUT'", "good > end", "bad > end"))
	b.advance()
	b.ends("build", failed)
	b.want(t, b.advance())
	b.over(harness.SessionFailed, "the node build failed: the sandbox is gone")
	// A condition that cannot be decided ends the run rather than be guessed.
	b = newBench(t, flow(nodes, "build > good nodes.bad.text == 'x'", "build > bad", "good > end", "bad > end"))
	b.advance()
	b.exits("build", 0)
	b.want(t, b.advance())
	b.over(harness.SessionFailed, "the condition of the edge from build to good could not be decided")
	// So does a run that stops short of an END.
	b = newBench(t, flow([]harness.Node{nodes[0], endNode}, "build > end false"))
	b.advance()
	b.exits("build", 0)
	b.advance()
	b.over(harness.SessionFailed, "it stopped at the node build")
}

func TestWhatIsNotApprovedGoesNowhereByItself(t *testing.T) {
	nodes := []harness.Node{approvalNode("may"), shellNode("ship", "ship"), agentNode("no"), endNode}
	for state, want := range map[harness.ApprovalState]string{harness.ApprovalApproved: "ship#1", harness.ApprovalRejected: "no#1", harness.ApprovalExpired: "no#1"} {
		b := newBench(t, flow(nodes, "may > ship", "may > no nodes.may.state != 'APPROVED'", "ship > end", "no > end"))
		b.advance()
		b.says("may", state)
		b.want(t, b.advance(), want)
	}
	b := newBench(t, flow(append(nodes[:2:2], endNode), "may > ship", "ship > end"))
	b.advance()
	b.says("may", harness.ApprovalRejected)
	b.want(t, b.advance())
	b.over(harness.SessionFailed, "the node may was not approved: REJECTED by ann, who said: because")
}

func TestBranchesAndJoins(t *testing.T) {
	join := agentNode("join")
	join.Join = harness.JoinAll
	w := flow([]harness.Node{agentNode("start"), agentNode("left"), agentNode("right"), agentNode("more"), join, endNode},
		"start > left", "start > right", "left > join", "right > more", "more > join", "join > end")
	b := newBench(t, w)
	b.advance()
	b.ends("start", workflow.Outcome{})
	b.want(t, b.advance(), "left#1", "right#1")
	b.ends("left", workflow.Outcome{})
	b.want(t, b.advance()) // right may still lead to it
	b.ends("right", workflow.Outcome{})
	b.want(t, b.advance(), "more#1")
	b.ends("more", workflow.Outcome{})
	b.want(t, b.advance(), "join#1")
	if v := b.run.Visits[len(b.run.Visits)-2]; v.Node != "join" || len(v.Arrivals) != 2 {
		t.Errorf("%+v", b.run.Visits)
	}
	// A branch that is not taken is not waited for.
	w.Edges[1].When = "false"
	b = newBench(t, w)
	b.advance()
	b.ends("start", workflow.Outcome{})
	b.want(t, b.advance(), "left#1")
	b.ends("left", workflow.Outcome{})
	b.want(t, b.advance(), "join#1")
	// Without join each arrival is a visit.
	w.Edges[1].When, w.Nodes[4].Join = "", ""
	b = newBench(t, w)
	b.advance()
	b.ends("start", workflow.Outcome{})
	b.advance()
	b.ends("left", workflow.Outcome{})
	b.want(t, b.advance(), "join#1")
	b.ends("right", workflow.Outcome{})
	b.advance()
	b.ends("more", workflow.Outcome{})
	b.want(t, b.advance(), "join#1")
	// The END that comes first ends the others.
	b.ends("join", workflow.Outcome{})
	b.advance()
	b.over(harness.SessionCompleted, "")
	if len(b.last.Cancel) != 1 {
		t.Errorf("cancelled %v", b.last.Cancel)
	}
}

// Joins that wait for each other start one after the other.
func TestJoinsThatWaitForEachOther(t *testing.T) {
	one, two := agentNode("one"), agentNode("two")
	one.Join, two.Join = harness.JoinAll, harness.JoinAll
	b := newBench(t, flow([]harness.Node{agentNode("start"), one, two, endNode}, "start > one", "start > two", "one > two", "two > one", "one > end nodes.one.text == 'enough'"))
	b.advance()
	b.ends("start", workflow.Outcome{})
	b.want(t, b.advance(), "one#1")
}

func TestRetriesAndTimeouts(t *testing.T) {
	n := agentNode("ask")
	n.Retries, n.TimeoutSeconds = harness.Retries{Max: 2, BackoffSeconds: 30}, 60
	b := newBench(t, flow([]harness.Node{n, endNode}, "ask > end"))
	b.want(t, b.advance(), "ask#1")
	if b.last.Due != began.Add(time.Minute) {
		t.Errorf("due %s", b.last.Due)
	}
	b.now = b.now.Add(59 * time.Second)
	b.want(t, b.advance())
	b.now = b.now.Add(time.Second)
	b.want(t, b.advance())
	if len(b.last.Cancel) != 1 || b.last.Due != b.now.Add(30*time.Second) || b.run.Visits[0].State != harness.VisitPending {
		t.Errorf("after the timeout: %+v", b.last)
	}
	b.now = b.now.Add(30 * time.Second)
	b.want(t, b.advance(), "ask#2")
	b.ends("ask", workflow.Outcome{Failed: true, Reason: "no"})
	b.advance()
	if b.last.Due != b.now.Add(time.Minute) { // twice as long
		t.Errorf("due %s", b.last.Due)
	}
	b.now = b.last.Due
	b.want(t, b.advance(), "ask#3")
	b.ends("ask", workflow.Outcome{Failed: true, Reason: "no more"})
	b.want(t, b.advance())
	b.over(harness.SessionFailed, "the node ask failed: no more")
}

func TestALoopHasALimit(t *testing.T) {
	w := flow([]harness.Node{agentNode("a"), replyNode("say", "${run.visits}"), endNode}, "a > say", "say > a input.n == 3", "say > end input.n == 4")
	w.MaxVisits = 10
	b := newBench(t, w)
	for range 20 {
		if b.advance(); b.last.Ended {
			break
		}
		b.ends("a", workflow.Outcome{})
	}
	b.over(harness.SessionFailed, "10 visits")
	if len(b.run.Visits) != 10 || len(b.effects) != 10 {
		t.Errorf("%d visits, %d effects", len(b.run.Visits), len(b.effects))
	}
}

// What conditions cost together is bounded, not only what each does.
func TestConditionsCannotBurnTheCPU(t *testing.T) {
	nodes := []harness.Node{replyNode("a", "."), agentNode("x"), endNode}
	bomb := "input.list.all(a, input.list.all(b, input.list.all(c, input.list.all(d, input.list.all(e, a + b + c + d + e > 0)))))"
	w := flow(nodes, "a > a "+bomb, "a > x false", "x > end")
	w.MaxVisits = 1000
	b := newBench(t, w)
	list := make([]int, 20)
	for i := range list {
		list[i] = i + 1
	}
	text, err := json.Marshal(map[string]any{"list": list})
	if err != nil {
		t.Fatal(err)
	}
	b.run.Input = text
	b.advance()
	b.over(harness.SessionFailed, "could not be decided")
	// Many cheap ones.
	w.Edges[0].When = "input.list.all(a, input.list.all(b, input.list.all(c, a + b + c > 0)))"
	b = newBench(t, w)
	b.run.Input = text
	b.advance()
	b.over(harness.SessionFailed, "cost too much together")
}

func TestATextThatCannotBeFilledInFails(t *testing.T) {
	b := newBench(t, flow([]harness.Node{shellNode("a", `x "${input.missing}"`), agentNode("no"), endNode}, "a > no nodes.a.state == 'FAILED'", "a > end", "no > end"))
	b.want(t, b.advance(), "no#1")
	if v := b.run.Visits[0]; v.State != harness.VisitFailed || !strings.Contains(v.Reason, "missing") {
		t.Errorf("%+v", v)
	}
	b = newBench(t, flow([]harness.Node{agentNode("a"), replyNode("say", " ${nodes.a.text}"), endNode}, "a > say", "say > end"))
	b.advance()
	b.ends("a", workflow.Outcome{})
	b.want(t, b.advance()) // nobody is sent nothing
	b.over(harness.SessionFailed, "the node say failed: its text could not be filled in: it is empty")
	w := flow([]harness.Node{agentNode("a"), endNode}, "a > end")
	w.Nodes[0].Prompt = "${input.list.map(x, input.big).map(y, y + y + y + y)}"
	b = newBench(t, w)
	text, err := json.Marshal(map[string]any{"list": []int{1, 2, 3}, "big": strings.Repeat("x", 60_000)})
	if err != nil {
		t.Fatal(err)
	}
	b.run.Input = text
	b.advance()
	b.over(harness.SessionFailed, "the node a failed: its text could not be filled in")
}

// The newest visit of a node is the one that expressions see.
func TestTheNewestOutputCounts(t *testing.T) {
	b := newBench(t, flow([]harness.Node{agentNode("ask"), approvalNode("may"), endNode}, "ask > may", "may > ask nodes.may.state == 'REJECTED'", "may > end"))
	for i, state := range []harness.ApprovalState{harness.ApprovalRejected, harness.ApprovalRejected, harness.ApprovalApproved} {
		b.advance()
		b.ends("ask", workflow.Outcome{Output: map[string]any{"text": fmt.Sprint(i)}})
		b.advance()
		b.says("may", state)
	}
	b.advance()
	b.over(harness.SessionCompleted, "")
	if got := len(b.run.Visits); got != 7 {
		t.Errorf("%d visits", got)
	}
	if v := b.run.Visits[5]; v.Node != "may" || v.Number != 3 {
		t.Errorf("%+v", v)
	}
}
