package workflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/functions/agent-step/internal/workflow"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// bench is agent-step over a real database, with a model that answers by what it
// is asked and commands that end as a test says.
type bench struct {
	t      *testing.T
	store  *postgres.Store
	step   *step.Stepper
	crash  *crashing
	answer func(asked string) (string, error)
	run    func(command string) postgres.ExecutionOutcome

	mu       sync.Mutex
	asked    []string
	commands []string
	events   []event.Event
}

// crashing is a store whose commits of runs may fail before or after they are
// made, as when a process dies.
type crashing struct {
	*postgres.Store
	mu     sync.Mutex
	before int // so many commits are lost
	after  int // so many are made, and nobody hears of it
}

var errDied = harness.Errorf(harness.Unavailable, "the process died")

func (c *crashing) CommitRun(ctx context.Context, commit postgres.RunCommit) ([]event.Event, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.before > 0 {
		c.before--
		return nil, errDied
	}
	events, err := c.Store.CommitRun(ctx, commit)
	if c.after > 0 && err == nil {
		c.after--
		return nil, errDied
	}
	return events, err
}

func (b *bench) Complete(_ context.Context, r model.Request) (model.Response, error) {
	asked := r.Turns[len(r.Turns)-1].Text
	b.mu.Lock()
	b.asked = append(b.asked, asked)
	b.mu.Unlock()
	text, err := b.answer(asked)
	return model.Response{Stop: model.StopEnd, Text: text}, err
}

func newBench(t *testing.T) *bench {
	t.Helper()
	dsn := postgrestest.DSN(t)
	owner, err := postgres.Open(dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(owner.Close)
	ours, err := postgres.Open(dsn+"&role=tuluat_agent_step", postgres.Options{}) // what the function may do is enough
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ours.Close)
	b := &bench{
		t: t, store: owner, answer: func(asked string) (string, error) { return "answer to " + asked, nil },
		run: func(string) postgres.ExecutionOutcome { return exited(0, "out") },
	}
	b.crash = &crashing{Store: ours}
	b.step = step.New(step.Options{
		Store: ours, Model: b, Log: slog.New(slog.DiscardHandler), ContextTokens: 100_000, Lease: postgres.Lease{Owner: "test", For: time.Minute},
		Runs: workflow.New(workflow.Options{Store: b.crash, Log: slog.New(slog.DiscardHandler), Now: time.Now, Secrets: []harness.Secret{"top-secret-value"}}),
		Publish: func(_ context.Context, events ...event.Event) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.events = append(b.events, events...)
		},
	})
	coder := harness.Agent{
		Name: "coder", Budget: harness.DefaultBudget(), Model: harness.ModelSpec{MaxTokens: 1000},
		Harness: harness.HarnessSpec{Enabled: true, Type: harness.HarnessBoth, Sandbox: harness.DefaultSandbox(), MaxSandboxes: 1, Channels: []harness.ChannelSpec{
			{Type: harness.ChannelWebhook, Account: "hook", Senders: harness.ChannelSenders{Policy: harness.SendersOpen}},
		}},
	}
	talker := coder
	talker.Name, talker.Harness = "talker", harness.HarnessSpec{}
	if _, _, err := b.store.PutAgents(t.Context(), []postgres.AgentText{{Name: "coder", Agent: &coder}, {Name: "talker", Agent: &talker}}, nil); err != nil {
		t.Fatal(err)
	}
	return b
}

func exited(code int, out string) postgres.ExecutionOutcome {
	o := postgres.ExecutionOutcome{
		State: harness.ExecutionCompleted, ExitCode: &code, StdoutBytes: int64(len(out)), Output: []postgres.OutputPiece{{Stream: "stdout", Data: []byte(out)}},
	}
	if code != 0 {
		o.State = harness.ExecutionFailed
	}
	return o
}

func (b *bench) put(w harness.Workflow) {
	b.t.Helper()
	if w.MaxVisits == 0 {
		w.MaxVisits = 100
	}
	if w.Start == "" {
		w.Start = w.Nodes[0].ID
	}
	if _, err := b.store.PutWorkflows(b.t.Context(), []postgres.WorkflowText{{Name: w.Name, Source: "w.yaml", Workflow: &w}}, nil); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) start(name harness.WorkflowName, input string, origin harness.SessionID) harness.SessionID {
	b.t.Helper()
	in, err := b.store.GetWorkflow(b.t.Context(), name)
	if err != nil {
		b.t.Fatal(err)
	}
	id, started, events, err := b.store.StartRun(b.t.Context(), postgres.NewRun{
		ID: harness.NewSessionID(time.Now()), Workflow: name, Revision: in.Revision, Agent: "coder", Key: harness.NewID("key", time.Now()), Origin: origin, Input: json.RawMessage(input),
	})
	if err != nil || !started || len(events) != 1 {
		b.t.Fatalf("%v %v %v", started, events, err)
	}
	return id
}

// drive lets everybody work until nothing is due.
func (b *bench) drive() {
	b.t.Helper()
	for range 200 {
		if !b.pass() {
			return
		}
	}
	b.t.Fatal("it never comes to rest")
}

// pass delivers one event for every session that is due and runs every command
// that waits. It reports whether there was anything.
func (b *bench) pass() bool {
	b.t.Helper()
	moved := false
	for _, id := range b.list(`SELECT session_id FROM sessions WHERE due_at <= now() AND state NOT IN ('COMPLETED', 'CANCELLED') ORDER BY session_id`) {
		moved = true
		err := b.step.Session(b.t.Context(), event.Event{Type: event.SessionDue, Payload: event.Payload{Session: harness.SessionID(id)}})
		if errors.Is(err, errDied) { // its lease runs out
			b.exec(`UPDATE sessions SET lease_until = now() - interval '1 second', due_at = now() WHERE session_id = $1 AND lease_owner IS NOT NULL`, id)
		} else if err != nil {
			b.t.Fatal(err)
		}
	}
	for _, id := range b.list(`SELECT execution_id FROM executions WHERE state = 'PENDING' AND lease_owner IS NULL ORDER BY seq`) {
		claim, err := b.store.ClaimExecution(b.t.Context(), harness.ExecutionID(id), postgres.Lease{Owner: "exec", For: time.Minute})
		if errors.Is(err, postgres.ErrNothingDue) {
			continue
		}
		if err != nil {
			b.t.Fatal(err)
		}
		outcome := b.run(claim.Command)
		if outcome.State == "" {
			continue // it goes on
		}
		moved = true
		b.commands = append(b.commands, claim.Command)
		if _, err := b.store.FinishExecution(b.t.Context(), claim, outcome); err != nil {
			b.t.Fatal(err)
		}
	}
	return moved
}

func (b *bench) list(sql string, args ...any) []string {
	b.t.Helper()
	rows, err := b.store.Pool().Query(b.t.Context(), sql, args...)
	if err != nil {
		b.t.Fatal(err)
	}
	defer rows.Close()
	var list []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			b.t.Fatal(err)
		}
		list = append(list, text)
	}
	if err := rows.Err(); err != nil {
		b.t.Fatal(err)
	}
	return list
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.store.Pool().Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

// decide answers the open question of the node.
func (b *bench) decide(node string, state harness.ApprovalState) {
	b.t.Helper()
	ids := b.list(`SELECT approval_id FROM approvals WHERE node_id = $1 AND state = 'PENDING'`, node)
	if len(ids) != 1 {
		b.t.Fatalf("open questions of %s: %v", node, ids)
	}
	if _, _, err := b.store.DecideApproval(b.t.Context(), postgres.Decision{ID: harness.ApprovalID(ids[0]), State: state, By: "ann", Via: harness.ChannelAPI, Reason: "why"}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) session(id harness.SessionID) view.Session {
	b.t.Helper()
	s, err := b.store.GetSession(b.t.Context(), id)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// is compares the state of a run and of its visits.
func (b *bench) is(id harness.SessionID, state harness.SessionState, visits ...string) {
	b.t.Helper()
	if s := b.session(id); s.State != state {
		b.t.Errorf("the run is %s (%s), want %s", s.State, s.Reason, state)
	}
	if diff := cmp.Diff(visits, b.list(`SELECT node_id || ' ' || visit || ' ' || state || CASE WHEN attempts > 1 THEN ' #' || attempts ELSE '' END FROM node_visits WHERE session_id = $1 ORDER BY seq`, id)); diff != "" {
		b.t.Errorf("visits (-want +got):\n%s", diff)
	}
}

func (b *bench) conversation() harness.SessionID {
	b.t.Helper()
	accepted, _, err := b.store.Accept(b.t.Context(), harness.ChannelWebhook, postgres.Inbound{Arrivals: []postgres.Arrival{{
		Account: "hook", ProviderID: harness.NewID("p", time.Now()), Chat: "chat", Message: harness.Message{ChannelUserID: "user", Text: "hello"},
	}}}, "")
	if err != nil {
		b.t.Fatal(err)
	}
	b.drive()
	return accepted[0].Session
}

func release() harness.Workflow {
	return harness.Workflow{
		Name: "release",
		Nodes: []harness.Node{
			{ID: "plan", Type: harness.NodeAgent, Agent: "talker", Prompt: "Plan ${input.service}"},
			{ID: "may", Type: harness.NodeApproval, Text: "Ship ${input.service}? ${nodes.plan.text}"},
			{ID: "ship", Type: harness.NodeShell, Agent: "coder", Command: `ship "${input.service}"`},
			{ID: "tell", Type: harness.NodeReply, Text: "${nodes.ship.stdout} and ${nodes.ship.exitCode}, said ${nodes.may.decidedBy}"},
			{ID: "no", Type: harness.NodeReply, Text: "no: ${nodes.may.reason}"},
			{ID: "end", Type: harness.NodeEnd, State: harness.SessionCompleted},
		},
		Edges: []harness.Edge{
			{From: "plan", To: "may"},
			{From: "may", To: "ship"},
			{From: "may", To: "no", When: "nodes.may.state == 'REJECTED'"},
			{From: "ship", To: "tell"},
			{From: "tell", To: "end"},
			{From: "no", To: "end"},
		},
	}
}

// Every type of node, from the start to the reply in the chat that it came from.
func TestARunWithEveryTypeOfNode(t *testing.T) {
	b := newBench(t)
	b.put(release())
	origin := b.conversation()
	id := b.start("release", `{"service": "it's; touch x"}`, origin)
	b.drive()
	b.is(id, harness.SessionAwaitingApproval, "plan 1 DONE", "may 1 WAITING")
	if s := b.session(id); s.CurrentNode != "may" || s.Workflow != "release" || s.WorkflowRevision != 1 || s.Origin != origin || s.Agent != "coder" {
		t.Errorf("%+v", s)
	}
	if got := b.list(`SELECT title || '|' || state FROM approvals`); !cmp.Equal(got, []string{"Ship it's; touch x? answer to Plan it's; touch x|PENDING"}) {
		t.Errorf("asked %q", got)
	}
	b.decide("may", harness.ApprovalApproved)
	b.drive()
	b.is(id, harness.SessionCompleted, "plan 1 DONE", "may 1 DONE", "ship 1 DONE", "tell 1 DONE", "end 1 DONE")
	if !cmp.Equal(b.commands, []string{"V1='it'\\''s; touch x'\nship \"${V1}\""}) || !cmp.Equal(b.asked, []string{"hello", "Plan it's; touch x"}) {
		t.Errorf("ran %q, asked %q", b.commands, b.asked)
	}
	if got := b.list(`SELECT r.text || '|' || r.state FROM replies r WHERE r.session_id = $1 AND r.kind = 'TEXT' ORDER BY seq`, origin); !cmp.Equal(got, []string{"answer to hello|PLANNED", "out and 0, said ann|PLANNED"}) {
		t.Errorf("replies %q", got)
	}
	if got := b.list(`SELECT kind || ' ' || state FROM replies WHERE session_id = $1 AND kind <> 'TEXT' ORDER BY seq`, origin); !cmp.Equal(got, []string{"CARD PLANNED", "DECISION PLANNED"}) {
		t.Errorf("of the question the chat was told %q", got)
	}
	entries, _, err := b.store.Timeline(t.Context(), id, view.Place{}, 50)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, e := range entries {
		kind := string(e.Kind)
		if e.Visit != nil {
			kind += " " + e.Visit.Node
		}
		kinds = append(kinds, kind)
	}
	if diff := cmp.Diff([]string{"VISIT plan", "VISIT may", "APPROVAL", "VISIT ship", "EXECUTION", "VISIT tell", "VISIT end"}, kinds); diff != "" {
		t.Errorf("timeline (-want +got):\n%s", diff)
	}
	var paged []string
	for after, more := (view.Place{}), true; more; more = after.ID != "" {
		page, next, err := b.store.Timeline(t.Context(), id, after, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page {
			paged = append(paged, e.ID)
		}
		after = next
	}
	if len(paged) != len(entries) {
		t.Errorf("by pages %d entries, at once %d: %v", len(paged), len(entries), paged)
	}
	if left := b.list(`SELECT event_type || ' ' || subject FROM outbox WHERE event_type <> 'ai.tuluat.message.reply.v1'`); len(left) > 0 {
		t.Errorf("still announced: %v", left)
	}
	if n := b.list(`SELECT DISTINCT node_id FROM agent_execution_logs WHERE session_id = $1 ORDER BY 1`, id); !cmp.Equal(n, []string{"end", "may", "plan", "ship", "tell"}) {
		t.Errorf("logged nodes %v", n)
	}
}

func TestWhatIsRejectedDoesNotRun(t *testing.T) {
	b := newBench(t)
	b.put(release())
	id := b.start("release", `{"service": "x"}`, "")
	b.drive()
	b.decide("may", harness.ApprovalRejected)
	b.drive()
	b.is(id, harness.SessionCompleted, "plan 1 DONE", "may 1 DONE", "no 1 DONE", "end 1 DONE")
	if len(b.commands) > 0 {
		t.Errorf("ran %q", b.commands)
	}
	// Without a conversation, what it replies is kept in the run.
	if got := b.list(`SELECT m.text || '|' || m.direction FROM messages m JOIN replies r USING (message_id) WHERE m.session_id = $1 AND r.kind = 'TEXT'`, id); !cmp.Equal(got, []string{"no: why|OUTBOUND"}) {
		t.Errorf("%q", got)
	}
}

// A process that dies at its commit, before it or right behind it, does nothing
// twice; nor do two that race.
func TestCrashesAndRaces(t *testing.T) {
	for name, crash := range map[string]func(c *crashing){
		"before": func(c *crashing) { c.before = 1 },
		"after":  func(c *crashing) { c.after = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.put(release())
			id := b.start("release", `{"service": "x"}`, b.conversation())
			for range 60 {
				crash(b.crash)
				moved := b.pass()
				if !moved && b.session(id).State == harness.SessionAwaitingApproval {
					b.decide("may", harness.ApprovalApproved)
				} else if !moved {
					break
				}
				if b.session(id).EndedAt != nil {
					break
				}
				b.crash.before, b.crash.after = 0, 0
				b.pass()
			}
			b.drive()
			b.is(id, harness.SessionCompleted, "plan 1 DONE", "may 1 DONE", "ship 1 DONE", "tell 1 DONE", "end 1 DONE")
			b.once()
		})
	}
	t.Run("race", func(t *testing.T) {
		b := newBench(t)
		b.put(release())
		var runs []harness.SessionID
		for range 5 {
			runs = append(runs, b.start("release", `{"service": "x"}`, ""))
		}
		for range 30 {
			var all sync.WaitGroup
			for _, id := range runs {
				for range 3 {
					all.Go(func() {
						e := event.Event{Type: event.SessionDue, Payload: event.Payload{Session: id}}
						if err := b.step.Session(context.Background(), e); err != nil {
							t.Error(err)
						}
					})
				}
			}
			all.Wait()
			b.pass()
			for _, id := range b.list(`SELECT approval_id FROM approvals WHERE state = 'PENDING'`) {
				if _, _, err := b.store.DecideApproval(t.Context(), postgres.Decision{ID: harness.ApprovalID(id), State: harness.ApprovalApproved, By: "ann", Via: harness.ChannelAPI}); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, id := range runs {
			b.is(id, harness.SessionCompleted, "plan 1 DONE", "may 1 DONE", "ship 1 DONE", "tell 1 DONE", "end 1 DONE")
		}
		b.once()
	})
}

// once checks that no visit had two effects of one attempt.
func (b *bench) once() {
	b.t.Helper()
	for _, sql := range []string{
		`SELECT parent_visit FROM sessions WHERE parent_visit IS NOT NULL GROUP BY 1 HAVING count(*) > 1`,
		`SELECT cause_id FROM executions GROUP BY 1 HAVING count(*) > 1`,
		`SELECT visit_id FROM approvals GROUP BY 1 HAVING count(*) > 1`,
		`SELECT text FROM messages WHERE text LIKE 'out and%' GROUP BY text, session_id HAVING count(*) > 1`,
	} {
		if twice := b.list(sql); len(twice) > 0 {
			b.t.Errorf("twice: %v (%s)", twice, sql)
		}
	}
}

// A run keeps the revision that it started with; a deleted workflow's runs go on.
func TestAnUpdatedWorkflowLeavesItsRunsAlone(t *testing.T) {
	b := newBench(t)
	b.put(release())
	old := b.start("release", `{"service": "x"}`, "")
	b.drive()
	changed := release()
	changed.Nodes[3].Text = "changed"
	changed.Nodes[1].Text = "changed?"
	b.put(changed)
	fresh := b.start("release", `{"service": "x"}`, "")
	b.drive()
	if _, err := b.store.PutWorkflows(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.store.GetWorkflow(t.Context(), "release"); harness.KindOf(err) != harness.NotFound {
		t.Errorf("a deleted workflow: %v", err)
	}
	for _, id := range b.list(`SELECT approval_id FROM approvals ORDER BY 1`) {
		if _, _, err := b.store.DecideApproval(t.Context(), postgres.Decision{ID: harness.ApprovalID(id), State: harness.ApprovalApproved, By: "ann", Via: harness.ChannelAPI}); err != nil {
			t.Fatal(err)
		}
	}
	b.drive()
	for id, want := range map[harness.SessionID]string{old: "out and 0, said ann", fresh: "changed"} {
		if got := b.list(`SELECT text FROM replies WHERE session_id = $1 AND kind = 'TEXT'`, id); !cmp.Equal(got, []string{want}) {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}
	if a, b := b.session(old), b.session(fresh); a.WorkflowRevision != 1 || b.WorkflowRevision != 2 {
		t.Errorf("revisions %d and %d", a.WorkflowRevision, b.WorkflowRevision)
	}
}

func TestRetriesTimeoutsAndWhatFails(t *testing.T) {
	b := newBench(t)
	w := release()
	w.Nodes[0].TimeoutSeconds, w.Nodes[0].Retries = 60, harness.Retries{Max: 1, BackoffSeconds: 30}
	w.Nodes[2].Retries = harness.Retries{Max: 1, BackoffSeconds: 30}
	b.put(w)
	id := b.start("release", `{"service": "x"}`, b.conversation())
	b.pass() // the run's first step; the agent's conversation is due now
	child := b.list(`SELECT session_id FROM sessions WHERE parent_visit IS NOT NULL`)[0]
	b.exec(`UPDATE sessions SET due_at = NULL WHERE session_id = $1`, child) // nobody hears it
	if due := b.list(`SELECT (due_at - started_at BETWEEN interval '50 seconds' AND interval '60 seconds')::text FROM node_visits`); !cmp.Equal(due, []string{"true"}) {
		t.Errorf("due in %v", due)
	}
	if due := b.list(`SELECT (o.due_at = s.due_at)::text FROM outbox o JOIN sessions s ON s.session_id = o.subject WHERE s.session_id = $1`, id); !cmp.Equal(due, []string{"true"}) {
		t.Errorf("the timer has no announcement: %v", due)
	}
	b.exec(`UPDATE node_visits SET due_at = now() - interval '1 second'`)
	b.exec(`UPDATE sessions SET due_at = now() WHERE session_id = $1`, id)
	b.drive()
	b.is(id, harness.SessionRunning, "plan 1 PENDING #2")
	if got := b.list(`SELECT state FROM sessions WHERE session_id = $1`, child); !cmp.Equal(got, []string{"CANCELLED"}) {
		t.Errorf("the conversation that took too long is %v", got)
	}
	later := func() {
		b.exec(`UPDATE node_visits SET due_at = now() WHERE due_at IS NOT NULL AND state = 'PENDING'`)
		b.exec(`UPDATE sessions SET due_at = now() WHERE session_id = $1`, id)
		b.drive()
	}
	later()
	b.decide("may", harness.ApprovalApproved)
	b.run = func(string) postgres.ExecutionOutcome {
		return postgres.ExecutionOutcome{State: harness.ExecutionSandboxGone, Reason: "evicted"}
	}
	b.drive()
	b.is(id, harness.SessionRunning, "plan 1 DONE #2", "may 1 DONE", "ship 1 PENDING #2")
	later()
	b.is(id, harness.SessionFailed, "plan 1 DONE #2", "may 1 DONE", "ship 1 FAILED #2")
	if got := b.list(`SELECT cause_attempt::text FROM executions ORDER BY seq`); !cmp.Equal(got, []string{"1", "2"}) {
		t.Errorf("attempts %v", got)
	}
	s := b.session(id)
	if want := "the node ship failed: the command ended as SANDBOX_GONE: evicted"; s.Reason != want || s.EndedAt == nil {
		t.Errorf("%+v", s)
	}
	if got := b.list(`SELECT text FROM messages WHERE session_id = $1 AND direction = 'OUTBOUND' ORDER BY seq DESC LIMIT 1`, s.Origin); !cmp.Equal(got, []string{"The workflow release failed: " + s.Reason}) {
		t.Errorf("the person was told %q", got)
	}
	// What has failed stays so, whoever wakes it or wants it ended.
	b.exec(`UPDATE sessions SET due_at = now() WHERE session_id = $1`, id)
	b.drive()
	if again := b.session(id); again.State != harness.SessionFailed || again.Reason != s.Reason || !again.EndedAt.Equal(*s.EndedAt) {
		t.Errorf("%+v", again)
	}
	if _, _, err := b.store.CancelSession(t.Context(), id, postgres.Audit{Actor: "ben"}); harness.KindOf(err) != harness.Conflict {
		t.Errorf("cancelled: %v", err)
	}
}

// The end of a conversation that is a node's wakes the run, however it ends.
func TestAnAgentThatCannotDoIt(t *testing.T) {
	b := newBench(t)
	w := release()
	w.Edges = append(w.Edges, harness.Edge{From: "plan", To: "no", When: "nodes.plan.state == 'FAILED'"})
	w.Nodes[4].Text = "failed: ${nodes.plan.reason}"
	b.put(w)
	b.answer = func(string) (string, error) {
		return "", &model.Error{Kind: harness.Invalid, Message: "no such model"}
	}
	id := b.start("release", `{"service": "x"}`, "")
	b.drive()
	b.is(id, harness.SessionCompleted, "plan 1 FAILED", "no 1 DONE", "end 1 DONE")
	if got := b.list(`SELECT text FROM messages WHERE session_id = $1`, id); len(got) != 1 || !strings.Contains(got[0], "no such model") {
		t.Errorf("%q", got)
	}
	// An operator ends the conversation.
	id = b.start("release", `{"service": "x"}`, "")
	if err := b.step.Session(t.Context(), event.Event{Payload: event.Payload{Session: id}}); err != nil {
		t.Fatal(err)
	}
	child := b.list(`SELECT child_session FROM node_visits WHERE session_id = $1`, id)[0]
	_, events, err := b.store.CancelSession(t.Context(), harness.SessionID(child), postgres.Audit{Actor: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	woken := ""
	for _, e := range events {
		if e.Type == event.SessionDue {
			woken = string(e.Payload.Session)
		}
	}
	if woken != string(id) {
		t.Errorf("events %v do not wake the run", events)
	}
	b.drive()
	b.is(id, harness.SessionFailed, "plan 1 FAILED")
	// The agent is gone.
	id = b.start("release", `{"service": "x"}`, "")
	b.exec(`UPDATE agents SET phase = 'DELETED' WHERE agent_name = 'talker'`)
	b.drive()
	b.is(id, harness.SessionCompleted, "plan 1 FAILED", "no 1 DONE", "end 1 DONE")
}

// Cancelling a run ends all that it asked for.
func TestCancellingARun(t *testing.T) {
	b := newBench(t)
	w := harness.Workflow{
		Name: "wide",
		Nodes: []harness.Node{
			{ID: "start", Type: harness.NodeReply, Text: "go"},
			{ID: "ask", Type: harness.NodeAgent, Agent: "talker", Prompt: "p"},
			{ID: "run", Type: harness.NodeShell, Agent: "coder", Command: "sleep 1"},
			{ID: "may", Type: harness.NodeApproval, Text: "?"},
			{ID: "end", Type: harness.NodeEnd, State: harness.SessionCompleted},
		},
		Edges: []harness.Edge{
			{From: "start", To: "ask"}, {From: "start", To: "run"}, {From: "start", To: "may"}, {From: "ask", To: "end"}, {From: "run", To: "end"}, {From: "may", To: "end"},
		},
	}
	for name, end := range map[string]func(id harness.SessionID){
		"by an operator": func(id harness.SessionID) {
			if s, _, err := b.store.CancelSession(t.Context(), id, postgres.Audit{Actor: "ann"}); err != nil || s.State != harness.SessionCancelled {
				t.Errorf("%+v %v", s, err)
			}
		},
		"by its END": func(id harness.SessionID) {
			b.decide("may", harness.ApprovalApproved)
			if err := b.step.Session(t.Context(), event.Event{Payload: event.Payload{Session: id}}); err != nil {
				t.Error(err)
			}
		},
	} {
		b.put(w)
		id := b.start("wide", `{}`, "")
		if err := b.step.Session(t.Context(), event.Event{Payload: event.Payload{Session: id}}); err != nil {
			t.Fatal(err)
		}
		child := b.list(`SELECT child_session FROM node_visits WHERE session_id = $1 AND node_id = 'ask'`, id)[0]
		end(id)
		if open := b.list(`SELECT node_id FROM node_visits WHERE session_id = $1 AND ended_at IS NULL`, id); len(open) > 0 {
			t.Errorf("%s: open visits %v", name, open)
		}
		for sql, want := range map[string]string{
			`SELECT state FROM sessions WHERE session_id = '` + child + `'`:                                      "CANCELLED",
			`SELECT state FROM executions WHERE session_id = '` + string(id) + `'`:                               "CANCELLED",
			`SELECT string_agg(DISTINCT state, ' ') FROM messages WHERE session_id = '` + child + `'`:            "DONE",
			`SELECT count(*)::text FROM approvals WHERE state = 'PENDING' AND session_id = '` + string(id) + `'`: "0",
		} {
			if got := b.list(sql); !cmp.Equal(got, []string{want}) {
				t.Errorf("%s: %s: %v, want %s", name, sql, got, want)
			}
		}
		b.drive()
		if len(b.asked) > 0 || len(b.commands) > 0 {
			t.Errorf("%s: asked %v, ran %v", name, b.asked, b.commands)
		}
	}
}

func TestSecretsDoNotLeaveARun(t *testing.T) {
	b := newBench(t)
	b.put(release())
	b.run = func(string) postgres.ExecutionOutcome { return exited(0, "top-secret-value") }
	id := b.start("release", `{"service": "x"}`, "")
	b.drive()
	b.decide("may", harness.ApprovalApproved)
	b.drive()
	if got := fmt.Sprint(b.list(`SELECT output::text || input FROM node_visits`), b.list(`SELECT text FROM messages WHERE session_id = $1`, id)); strings.Contains(got, "top-secret") {
		t.Errorf("%s", got)
	}
}
