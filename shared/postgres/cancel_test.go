package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// Everything of a session that has not ended ends with it, except what runs:
// that is announced to be ended.
func TestCancelSession(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	session := arrive(t, s, "a", "b")[0].Session
	running(t, s, session, "call_1", "exe_1")
	c := runIn(t, s, "exe_1")
	run(t, s, `INSERT INTO approvals (approval_id, session_id, agent_name, title, digest, state) SELECT 'apr_1', session_id, 'coder', 't', 'd', 'PENDING' FROM sessions`,
		`INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce, due_at)
			SELECT 'exe_2', session_id, 'coder', 'API', 'k', 'true', spec, spec_digest, 1, 'PENDING', 'n', now() FROM executions`)
	if open, err := s.OpenCalls(ctx, session); err != nil || len(open) != 1 || open[0] != "call_1" {
		t.Errorf("open calls %v, %v", open, err)
	}
	got, events, err := s.CancelSession(ctx, session, postgres.Audit{Actor: "ann"})
	if err != nil || got.State != harness.SessionCancelled || got.Reason != "cancelled by ann" || got.EndedAt == nil {
		t.Fatalf("%+v, %v", got, err)
	}
	var types []string
	for _, e := range events {
		types = append(types, string(e.Type)+" "+string(e.Payload.Execution))
	}
	if want := "ai.tuluat.session.changed.v1 |ai.tuluat.execution.requested.v1 exe_1"; strings.Join(types, "|") != want {
		t.Errorf("published %v", types)
	}
	for sql, want := range map[string]string{
		`SELECT string_agg(state, ' ' ORDER BY seq) FROM messages`:                                                                     "DONE DONE",
		`SELECT string_agg(state || ' ' || result, ' ') FROM tool_calls`:                                                               "FAILED Interrupted: the session was cancelled; the outcome of this call is unknown.",
		`SELECT string_agg(state || ' ' || (cancelled_at IS NOT NULL), ' ' ORDER BY execution_id) FROM executions`:                     "RUNNING true CANCELLED false",
		`SELECT state || ' ' || decided_by FROM approvals`:                                                                             "CANCELLED ann",
		`SELECT string_agg(kind || ' ' || seq, ' ' ORDER BY seq) FROM session_events`:                                                  "TURN 1 TOOL_CALL 2 TOOL_RESULT 3 APPROVAL 4",
		`SELECT string_agg(event_id, ' ' ORDER BY event_id) FROM outbox WHERE subject = 'exe_1'`:                                       "execution.requested:exe_1:cancel",
		`SELECT count(*)::text FROM outbox WHERE subject = '` + string(session) + `'`:                                                  "0",
		`SELECT COALESCE(lease_owner, '') || COALESCE(due_at::text, '') FROM sessions`:                                                 "",
		`SELECT message FROM agent_execution_logs WHERE level = 'WARN' AND session_id = '` + string(session) + `'`:                     "session cancelled by ann",
		`SELECT count(*)::text FROM session_events e JOIN sessions n USING (session_id) WHERE e.seq > n.event_seq OR n.event_seq <> 4`: "0",
	} {
		if got := value[string](t, s, sql); got != want {
			t.Errorf("%s: %q, want %q", sql, got, want)
		}
	}
	if got, events, err := s.CancelSession(ctx, session, postgres.Audit{Actor: "ben"}); harness.KindOf(err) != harness.Conflict || got.Reason != "cancelled by ann" || len(events) != 0 {
		t.Errorf("again: %+v %v %v", got, events, err)
	}
	_, _, err = s.CancelSession(ctx, "ses_none", postgres.Audit{Actor: "ann"})
	kindOf(t, err, harness.NotFound)
	// Who hears the announcement while another holds the command is told all it needs.
	if _, err := s.ClaimExecution(ctx, "exe_1", lease); !errors.Is(err, postgres.ErrNothingDue) {
		t.Fatalf("a second claim: %v", err)
	}
	other, err := s.Cancelled(ctx, "exe_1")
	if err != nil || other.Nonce != "nonce" || other.UID != "uid-"+c.Sandbox.Name || other.Sandbox.ID != c.Sandbox.ID {
		t.Fatalf("%+v, %v", other, err)
	}
	// A repeat of the announcement stays until the command has ended.
	if n := value[int](t, s, `SELECT count(*) FROM outbox WHERE subject = 'exe_1'`); n != 1 {
		t.Errorf("%d announcements", n)
	}
	finish(t, s, c, postgres.ExecutionOutcome{State: harness.ExecutionCancelled})
	if value[bool](t, s, `SELECT due_at IS NOT NULL FROM sessions`) {
		t.Error("a session that has ended is due")
	}
	if _, err := s.ClaimExecution(ctx, "exe_1", lease); !errors.Is(err, postgres.ErrNothingDue) || value[int](t, s, `SELECT count(*) FROM outbox WHERE subject = 'exe_1'`) != 0 {
		t.Errorf("the announcement of what has ended stays, %v", err)
	}
	_, err = s.Cancelled(ctx, "exe_1")
	kindOf(t, err, harness.NotFound)
	// The person's next message opens another session.
	if next := arrive(t, s, "c")[0]; next.Session == session || next.Outcome != postgres.ArrivalAccepted {
		t.Errorf("the next message: %+v", next)
	}
}

// A step that is being worked when its session is cancelled writes nothing; one
// that was faster is what is cancelled.
func TestCancelRacesAStep(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	answered, refused := 0, 0
	for i := range 20 {
		session := arrive(t, s, string(rune('a'+i)))[0].Session
		claim, err := s.ClaimSession(ctx, session, lease)
		if err != nil {
			t.Fatal(err)
		}
		var racing sync.WaitGroup
		var failed error
		racing.Go(func() {
			_, failed = s.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionIdle, Start: true, Reply: []string{"x"}, Step: &postgres.NewStep{ID: harness.NewStepID(time.Now()), Text: "x"}})
		})
		racing.Go(func() {
			if _, _, err := s.CancelSession(ctx, session, postgres.Audit{Actor: "ann"}); err != nil {
				t.Error(err)
			}
		})
		racing.Wait()
		replies := value[int](t, s, `SELECT count(*) FROM replies WHERE session_id = $1`, session)
		switch {
		case failed == nil && replies == 1:
			answered++
		case errors.Is(failed, postgres.ErrLeaseLost) && replies == 0:
			refused++
		default:
			t.Errorf("the step: %v, and %d replies", failed, replies)
		}
		if got := value[string](t, s, `SELECT state || ' ' || (SELECT string_agg(DISTINCT m.state, ' ') FROM messages m WHERE m.session_id = s.session_id) FROM sessions s WHERE session_id = $1`, session); got != "CANCELLED DONE" {
			t.Errorf("%s", got)
		}
	}
	t.Logf("the step was first %d times, the cancel %d times", answered, refused)
}

// A command that is being started when its session is cancelled either does not
// start or is announced to be ended, and whoever waits behind it is woken.
func TestCancelRacesAStart(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	for range 10 {
		ids := commands(t, s, 1, "ses_a", "ses_b")
		c := claimExecution(t, s, ids[0])
		sb := acquire(t, s, c, postgres.PlaceCreate)
		acquire(t, s, claimExecution(t, s, ids[1]), postgres.PlaceWait)
		var racing sync.WaitGroup
		var began bool
		var failed error
		var events []event.Event
		racing.Go(func() { began, failed = s.BeginExecution(ctx, c, sb.ID, "uid-"+sb.Name) })
		racing.Go(func() {
			var err error
			if _, events, err = s.CancelSession(ctx, "ses_a", postgres.Audit{Actor: "ann"}); err != nil {
				t.Error(err)
			}
		})
		racing.Wait()
		state := value[string](t, s, `SELECT state || ' ' || (cancelled_at IS NOT NULL) FROM executions WHERE execution_id = $1`, ids[0])
		switch {
		case began && failed == nil && state == "RUNNING true":
			if len(events) != 2 || events[1].Payload.Execution != ids[0] {
				t.Errorf("published %+v", events)
			}
			finish(t, s, c, postgres.ExecutionOutcome{State: harness.ExecutionCancelled})
		case !began && errors.Is(failed, postgres.ErrNothingDue) && state == "CANCELLED false":
		default:
			t.Errorf("began %v, %v, and it is %s", began, failed, state)
		}
		// Whoever waited may have the place now: the idle sandbox is ended for it.
		if _, err := s.WakeExecutions(ctx, "coder"); err != nil {
			t.Fatal(err)
		}
		if !value[bool](t, s, `SELECT due_at <= now() FROM executions WHERE execution_id = $1`, ids[1]) {
			t.Error("whoever waits is not woken")
		}
		run(t, s, `TRUNCATE agents, sessions CASCADE`)
		agent(t, s)
	}
}

// A sandbox is ended by the sweep once its command has been cancelled.
func TestTerminateSandbox(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	ids := commands(t, s, 1, "ses_a", "ses_a")
	c := runIn(t, s, ids[0])
	got, events, err := s.TerminateSandbox(ctx, c.Sandbox.ID, postgres.Audit{Actor: "ann"})
	if err != nil || got.State != harness.SandboxTerminating || got.Reason != postgres.SandboxOperator || got.Message != "" {
		t.Fatalf("%+v, %v", got, err)
	}
	if len(events) != 1 || events[0].ID != "execution.requested:"+string(ids[0])+":cancel" {
		t.Errorf("published %+v", events)
	}
	if _, events, err := s.TerminateSandbox(ctx, c.Sandbox.ID, postgres.Audit{Actor: "ann"}); err != nil || len(events) != 0 {
		t.Errorf("again: %v, %v", events, err)
	}
	if ended, err := s.SandboxesToEnd(ctx, 10); err != nil || len(ended) != 0 {
		t.Errorf("it is ended under its command: %+v, %v", ended, err)
	}
	finish(t, s, c, postgres.ExecutionOutcome{State: harness.ExecutionCancelled})
	ended, err := s.SandboxesToEnd(ctx, 10)
	if err != nil || len(ended) != 1 || ended[0].Reason != postgres.SandboxOperator {
		t.Fatalf("to end: %+v, %v", ended, err)
	}
	gone(t, s, &ended[0], "")
	if got, _, err := s.TerminateSandbox(ctx, c.Sandbox.ID, postgres.Audit{Actor: "ann"}); harness.KindOf(err) != harness.Conflict || got.State != harness.SandboxGone {
		t.Errorf("gone: %+v, %v", got, err)
	}
	_, _, err = s.TerminateSandbox(ctx, "sbx_none", postgres.Audit{Actor: "ann"})
	kindOf(t, err, harness.NotFound)
	// The session's next command has another sandbox.
	acquire(t, s, claimExecution(t, s, ids[1]), postgres.PlaceCreate)
}

// A command that somebody asks for while the session is cancelled is refused, or
// is cancelled with it.
func TestCancelRacesARequest(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	made, refused := 0, 0
	for i := range 20 {
		c := runIn(t, s, commands(t, s, 1, "ses_a")[0])
		finish(t, s, c, completed)
		var racing sync.WaitGroup
		var failed error
		racing.Go(func() {
			_, _, _, failed = s.RequestExecution(ctx, postgres.ExecutionRequest{Sandbox: c.Sandbox.ID, Command: "ls", Key: "key"})
		})
		racing.Go(func() {
			time.Sleep(time.Duration(i) * 100 * time.Microsecond) // to meet in many ways
			if _, _, err := s.CancelSession(ctx, "ses_a", postgres.Audit{Actor: "ann"}); err != nil {
				t.Error(err)
			}
		})
		racing.Wait()
		state := value[string](t, s, `SELECT COALESCE((SELECT state FROM executions WHERE cause = 'API'), '')`)
		switch {
		case failed == nil && state == "CANCELLED":
			made++
		case harness.KindOf(failed) == harness.Conflict && state == "":
			refused++
		default:
			t.Errorf("%v, and the command is %q", failed, state)
		}
		_, _, _, err := s.RequestExecution(ctx, postgres.ExecutionRequest{Sandbox: c.Sandbox.ID, Command: "ls", Key: "late"})
		kindOf(t, err, harness.Conflict)
		run(t, s, `TRUNCATE agents, sessions CASCADE`)
		agent(t, s)
	}
	t.Logf("the request was first %d times, the cancel %d times", made, refused)
}

// What was asked for by the API of a sandbox does not start when it is ended:
// before or after, and neither does it once its session has ended.
func TestRequestsEndWithTheirSandbox(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	ids := commands(t, s, 1, "ses_a", "ses_a")
	c := runIn(t, s, ids[0])
	ask := func(key string) harness.ExecutionID {
		t.Helper()
		e, _, _, err := s.RequestExecution(ctx, postgres.ExecutionRequest{Sandbox: c.Sandbox.ID, Command: "ls", Key: key})
		if err != nil {
			t.Fatal(err)
		}
		return e.ID
	}
	asked := ask("first")
	if got, _, err := s.TerminateSandbox(ctx, c.Sandbox.ID, postgres.Audit{Actor: "ann"}); err != nil || got.State != harness.SandboxTerminating {
		t.Fatal(got, err)
	}
	states := `SELECT string_agg(state || ' ' || reason, ', ' ORDER BY seq) FROM executions`
	if got := value[string](t, s, states); got != "RUNNING , PENDING , CANCELLED the sandbox was ended by ann" {
		t.Errorf("%s", got)
	}
	if _, err := s.ClaimExecution(ctx, asked, lease); !errors.Is(err, postgres.ErrNothingDue) {
		t.Errorf("it is claimed: %v", err)
	}
	finish(t, s, c, postgres.ExecutionOutcome{State: harness.ExecutionCancelled})
	gone(t, s, c.Sandbox, "")
	c = runIn(t, s, ids[1])
	asked = ask("second")
	finish(t, s, c, completed)
	run(t, s, `UPDATE sessions SET state = 'COMPLETED', due_at = NULL, ended_at = now()`, `UPDATE sandboxes SET state = 'GONE', ended_at = now()`)
	claim := claimExecution(t, s, asked)
	if p, err := s.AcquireSandbox(ctx, claim); !errors.Is(err, postgres.ErrNothingDue) {
		t.Errorf("placed as %+v, %v", p, err)
	}
	got, err := s.GetExecution(ctx, asked)
	if err != nil || got.State != harness.ExecutionCancelled || got.Reason != "the session had ended before the command could start" || got.EndedAt == nil {
		t.Errorf("%+v, %v", got, err)
	}
	if n := value[int](t, s, `SELECT count(*) FROM sandboxes`); n != 2 {
		t.Errorf("%d sandboxes", n)
	}
}
