package temporal_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/workflowservice/v1"
)

// A real Temporal server, whose workflows count what they get, and the real
// bridge, which is killed at every step.
func TestBridge(t *testing.T) {
	w := newWorld(t)
	w.start()
	t.Run("a decision arrives once, as it was decided", w.arrives)
	t.Run("the server drops the second of one request id", w.drops)
	t.Run("killed before it sends", w.killedBeforeSending)
	t.Run("killed before it has the answer", w.killedBeforeTheAnswer)
	t.Run("killed before it marks", w.killedBeforeMarking)
	t.Run("killed again and again", w.killedAgainAndAgain)
	t.Run("the workflow goes on in a new run", w.newRun)
	t.Run("no such workflow", w.noWorkflow)
	t.Run("the workflow has ended", w.endedWorkflow)
	t.Run("Temporal is down", w.down)
}

// once fails unless the workflow has got exactly the decisions of its session.
func (w *world) once(t *testing.T, workflow string) {
	t.Helper()
	var got []string
	for _, text := range w.received(workflow) {
		var decision struct {
			Approval string `json:"approval"`
		}
		if err := json.Unmarshal([]byte(text), &decision); err != nil {
			t.Fatal(err)
		}
		got = append(got, decision.Approval)
	}
	slices.Sort(got)
	want := w.query(`SELECT string_agg(approval_id, ' ' ORDER BY approval_id) FROM approvals WHERE session_id = $1`, "ses_"+workflow)
	if strings.Join(got, " ") != want {
		t.Errorf("workflow %s got %v, want %s", workflow, got, want)
	}
	if state := w.query(`SELECT string_agg(DISTINCT state, ' ') FROM temporal_signals WHERE session_id = $1`, "ses_"+workflow); state != "SENT" {
		t.Errorf("the signals of %s are %s", workflow, state)
	}
}

func (w *world) arrives(t *testing.T) {
	w.started("arrives")
	id := w.decided("arrives")
	for range 2 {
		if status := w.deliver("arrives"); status != 202 {
			t.Fatalf("answered %d", status)
		}
	}
	w.once(t, "arrives")
	at, err := time.Parse("2006-01-02T15:04:05.999999", w.query(`SELECT to_char(decided_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US') FROM approvals WHERE approval_id = $1`, id))
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`{"approval":"%s","session":"ses_arrives","state":"REJECTED","decidedBy":"ann","decidedVia":"WHATSAPP","reason":"not today","decidedAt":"%s","digest":"sha256:1","node":"ask"}`,
		id, at.Format(time.RFC3339Nano))
	if got := w.received("arrives"); len(got) != 1 || got[0] != want {
		t.Errorf("got %v\nwant %s", got, want)
	}
}

// drops shows what everything else relies on, without the bridge.
func (w *world) drops(t *testing.T) {
	run := w.started("drops")
	for _, request := range []string{"sig_x", "sig_x", "sig_y", "sig_x"} {
		if _, err := w.client.WorkflowService().SignalWorkflowExecution(context.Background(), &workflowservice.SignalWorkflowExecutionRequest{
			Namespace: namespace, WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: "drops", RunId: run}, SignalName: "ApprovalSignal", RequestId: request,
			Input: &commonpb.Payloads{Payloads: []*commonpb.Payload{{Metadata: map[string][]byte{"encoding": []byte("json/plain")}, Data: []byte(`"` + request + `"`)}}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.received("drops"); strings.Join(got, " ") != `"sig_x" "sig_y"` {
		t.Errorf("got %v", got)
	}
}

// in starts a delivery that ends when the bridge answers or dies.
func (w *world) in(workflow string) (ended func() int) {
	status := make(chan int, 1)
	go func() { status <- w.deliver(workflow) }()
	return func() int { return <-status }
}

// recovers starts the bridge again and delivers once more, when the dead one's
// lease is over.
func (w *world) recovers(t *testing.T, workflow string) {
	t.Helper()
	w.start()
	if status := w.deliver(workflow); status != 202 {
		t.Errorf("answered %d while the lease holds", status)
	}
	if state := w.query(`SELECT state FROM temporal_signals WHERE session_id = $1`, "ses_"+workflow); state != "PENDING" {
		t.Errorf("%s while the lease holds", state)
	}
	w.later()
	if status := w.deliver(workflow); status != 202 {
		t.Errorf("answered %d", status)
	}
	w.once(t, workflow)
}

func (w *world) claimed(workflow string) {
	w.await("1", `SELECT count(*)::text FROM temporal_signals WHERE session_id = $1 AND lease_owner IS NOT NULL`, "ses_"+workflow)
}

func (w *world) killedBeforeSending(t *testing.T) {
	w.started("before-sending")
	w.decided("before-sending")
	w.wire.hold(true, false)
	ended := w.in("before-sending")
	w.claimed("before-sending")
	w.kill()
	ended()
	w.wire.hold(false, false)
	if got := w.received("before-sending"); len(got) != 0 {
		t.Fatalf("got %v", got)
	}
	w.recovers(t, "before-sending")
}

func (w *world) killedBeforeTheAnswer(t *testing.T) {
	run := w.started("before-answer")
	w.decided("before-answer")
	w.warm(t)
	w.exec(`UPDATE temporal_signals SET pinned_run = $2 WHERE session_id = $1`, "ses_before-answer", run) // as one does that dies behind it
	w.wire.hold(false, true)
	ended := w.in("before-answer")
	w.until("the signal", func() bool { return len(w.received("before-answer")) == 1 })
	w.kill()
	ended()
	w.wire.hold(false, false)
	w.recovers(t, "before-answer")
}

func (w *world) killedBeforeMarking(t *testing.T) {
	run := w.started("before-mark")
	w.decided("before-mark")
	w.warm(t)
	w.exec(`UPDATE temporal_signals SET pinned_run = $2 WHERE session_id = $1`, "ses_before-mark", run)
	w.wire.hold(true, false)
	ended := w.in("before-mark")
	w.claimed("before-mark")
	tx, err := w.pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), `SELECT 1 FROM temporal_signals WHERE session_id = 'ses_before-mark' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	w.wire.hold(false, false)
	w.await("1", `SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	w.kill()
	ended()
	// What a dead process has asked for, Postgres may do all the same: not here.
	w.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	w.await("0", `SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := w.received("before-mark"); len(got) != 1 {
		t.Fatalf("got %v", got)
	}
	w.recovers(t, "before-mark")
}

// warm lets the bridge connect to Temporal.
func (w *world) warm(t *testing.T) {
	t.Helper()
	name := fmt.Sprintf("warm-%d", w.asked)
	w.started(name)
	w.decided(name)
	if status := w.deliver(name); status != 202 {
		t.Fatalf("answered %d", status)
	}
	w.once(t, name)
}

// killedAgainAndAgain kills the bridge at no moment in particular until everything
// is sent. How often that happens inside of an attempt is told. It lives a little
// longer each time, so that a slow machine comes to an end, too.
func (w *world) killedAgainAndAgain(t *testing.T) {
	const workflows, decisions = 4, 10
	var names []string
	for i := range workflows {
		names = append(names, fmt.Sprintf("again-%d", i))
		w.started(names[i])
		for range decisions {
			w.decided(names[i])
		}
	}
	kills, inside := 0, 0
	for w.query(`SELECT count(*)::text FROM temporal_signals WHERE state <> 'SENT'`) != "0" {
		if w.bridge == nil {
			w.start()
		}
		var deliveries sync.WaitGroup
		for _, name := range names {
			deliveries.Go(func() { w.deliver(name) })
		}
		time.Sleep(rand.N(80*time.Millisecond + time.Duration(kills)*5*time.Millisecond))
		w.kill()
		deliveries.Wait()
		kills++
		if w.query(`SELECT count(*)::text FROM temporal_signals WHERE lease_owner IS NOT NULL`) != "0" {
			inside++
		}
		w.later()
		if kills > 500 {
			t.Fatal("no end")
		}
	}
	w.start()
	t.Logf("%d kills, %d of them inside of an attempt; %s attempts for %d signals", kills, inside, w.query(`SELECT sum(attempts)::text FROM temporal_signals WHERE session_id LIKE 'ses_again%'`), workflows*decisions)
	for _, name := range names {
		w.once(t, name)
	}
}

// newRun: a workflow that goes on in a new run is told there, once, also when the
// run before has it already and nobody knows.
func (w *world) newRun(t *testing.T) {
	run := w.started("new-run")
	w.decided("new-run")
	w.warm(t)
	w.exec(`UPDATE temporal_signals SET pinned_run = $2 WHERE session_id = $1`, "ses_new-run", run)
	w.order("new-run", "again")
	if status := w.deliver("new-run"); status != 202 {
		t.Fatalf("answered %d", status)
	}
	w.once(t, "new-run") // the first run ended without it
	w.exec(`UPDATE temporal_signals SET state = 'PENDING', ended_at = NULL WHERE session_id = 'ses_new-run'`)
	w.order("new-run", "again")
	if status := w.deliver("new-run"); status != 202 {
		t.Fatalf("answered %d", status)
	}
	w.once(t, "new-run") // the second run has it, and has handed it on
}

func (w *world) refused(t *testing.T, workflow, reason string) {
	t.Helper()
	for _, want := range []string{"PENDING 1", "PENDING 2"} {
		w.deliver(workflow)
		if got := w.query(`SELECT state || ' ' || attempts FROM temporal_signals WHERE session_id = $1`, "ses_"+workflow); got != want {
			t.Fatalf("%s, want %s", got, want)
		}
		w.later()
	}
	w.exec(`UPDATE temporal_signals SET refused_at = refused_at - interval '5 minutes' WHERE session_id = $1`, "ses_"+workflow)
	w.deliver(workflow)
	if got := w.query(`SELECT state FROM temporal_signals WHERE session_id = $1 AND reason LIKE '%' || $2 || '%'`, "ses_"+workflow, reason); got != "FAILED" {
		t.Errorf("state %s, with %s", got, w.query(`SELECT reason FROM temporal_signals WHERE session_id = $1`, "ses_"+workflow))
	}
	logged := w.query(`SELECT message FROM agent_execution_logs WHERE session_id = $1 AND level = 'ERROR'`, "ses_"+workflow)
	if !strings.HasPrefix(logged, "the Temporal workflow "+workflow+" is never told that approval ") || !strings.Contains(logged, reason) {
		t.Errorf("the session's log says %q", logged)
	}
}

func (w *world) noWorkflow(t *testing.T) {
	w.session("unknown")
	w.decided("unknown")
	w.refused(t, "unknown", "not found")
}

func (w *world) endedWorkflow(t *testing.T) {
	w.started("ended")
	w.order("ended", "stop")
	w.decided("ended")
	w.refused(t, "ended", "already completed")
}

// down is the last: the server ends, and comes back on its file.
func (w *world) down(t *testing.T) {
	w.started("down")
	w.server.stop()
	w.decided("down")
	for range 3 {
		if status := w.deliver("down"); status != 202 {
			t.Errorf("answered %d", status)
		}
		w.later()
	}
	if got := w.query(`SELECT state || ' ' || attempts || ' ' || (refused_at IS NULL) FROM temporal_signals WHERE session_id = 'ses_down'`); got != "PENDING 3 true" {
		t.Errorf("while Temporal is down: %s", got)
	}
	w.server.start()
	w.until("the signal to be sent", func() bool {
		w.later()
		w.deliver("down")
		return w.query(`SELECT state FROM temporal_signals WHERE session_id = 'ses_down'`) == "SENT"
	})
	w.once(t, "down")
}
