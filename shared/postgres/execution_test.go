package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// commands writes an execution per session, in order, announced as a step does.
func commands(t *testing.T, s *postgres.Store, cap int, sessions ...string) []harness.ExecutionID {
	t.Helper()
	spec := harness.DefaultSandbox()
	var ids []harness.ExecutionID
	for _, session := range sessions {
		execSQL(t, s, `INSERT INTO sessions (session_id, agent_name, channel, account, chat, state, traceparent) VALUES ($1, 'coder', 'WEBHOOK', 'hook', $1, 'AWAITING_EXECUTION', 'trace') ON CONFLICT DO NOTHING`, session)
		id := harness.NewExecutionID(time.Now())
		execSQL(t, s, `INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce, due_at)
			VALUES ($1, $2, 'coder', 'TOOL_CALL', $1, 'true', $3, $4, $5, 'PENDING', 'nonce', now())`, id, session, spec, spec.Digest(), cap)
		execSQL(t, s, `INSERT INTO outbox (event_id, event_type, subject, payload, due_at) VALUES ('execution.requested:' || $1, $2, $1, '{}', now() + interval '30 seconds')`, id, event.ExecutionRequested)
		ids = append(ids, id)
	}
	return ids
}

func execSQL(t *testing.T, s *postgres.Store, sql string, args ...any) {
	t.Helper()
	if _, err := s.Pool().Exec(context.Background(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func query[T any](t *testing.T, s *postgres.Store, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := s.Pool().QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatal(sql, err)
	}
	return v
}

func claimExecution(t *testing.T, s *postgres.Store, id harness.ExecutionID) *postgres.ExecutionClaim {
	t.Helper()
	c, err := s.ClaimExecution(context.Background(), id, lease)
	if err != nil {
		t.Fatalf("claim of %s: %v", id, err)
	}
	return c
}

func acquire(t *testing.T, s *postgres.Store, c *postgres.ExecutionClaim, want postgres.PlacementKind) *postgres.SandboxRecord {
	t.Helper()
	p, err := s.AcquireSandbox(context.Background(), c)
	if err != nil || p.Kind != want {
		t.Fatalf("placement of %s: %+v %v, want %s", c.ID, p, err, want)
	}
	return p.Sandbox
}

// runIn claims id, makes its sandbox and commits it to it.
func runIn(t *testing.T, s *postgres.Store, id harness.ExecutionID) *postgres.ExecutionClaim {
	t.Helper()
	c := claimExecution(t, s, id)
	sb := acquire(t, s, c, postgres.PlaceCreate)
	if began, err := s.BeginExecution(context.Background(), c, sb.ID, "uid-"+sb.Name); err != nil || !began {
		t.Fatalf("begin: %v %v", began, err)
	}
	c.Sandbox = sb
	return c
}

func finish(t *testing.T, s *postgres.Store, c *postgres.ExecutionClaim, o postgres.ExecutionOutcome) []event.Event {
	t.Helper()
	events, err := s.FinishExecution(context.Background(), c, o)
	if err != nil {
		t.Fatalf("finish of %s: %v", c.ID, err)
	}
	return events
}

// subjects are the executions that events announce, by place in ids; the finish
// of an execution is negative.
func subjects(ids []harness.ExecutionID, events []event.Event) []int {
	found := []int{}
	for _, e := range events {
		n := slices.Index(ids, e.Payload.Execution) + 1
		if e.Type == event.ExecutionFinished {
			n = -n
		}
		found = append(found, n)
	}
	return found
}

func TestOneExecution(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	id := commands(t, s, 1, "ses_a")[0]
	stale := claimExecution(t, s, id)
	if _, err := s.ClaimExecution(ctx, id, lease); !errors.Is(err, postgres.ErrNothingDue) {
		t.Fatalf("a second claim: %v", err)
	}
	if n := query[int](t, s, `SELECT count(*) FROM outbox`); n != 0 {
		t.Fatalf("%d announcements after the claim heard it", n)
	}
	execSQL(t, s, `UPDATE executions SET lease_until = now() - interval '1 second'`) // its holder died
	c := claimExecution(t, s, id)
	if c.Attempts != 2 || c.State != harness.ExecutionPending || c.Sandbox != nil || c.TraceParent != "trace" || c.Spec.TTLSeconds != 600 {
		t.Fatalf("claim reads %+v", c)
	}
	sb := acquire(t, s, c, postgres.PlaceCreate)
	if again := acquire(t, s, c, postgres.PlaceStart); again.ID != sb.ID || len(sb.Name) != 23 || !strings.HasPrefix(sb.Name, "tuluat-") {
		t.Fatalf("a crash before the start gave another sandbox: %+v, %+v", sb, again)
	}
	if began, err := s.BeginExecution(ctx, c, sb.ID, "uid"); err != nil || !began {
		t.Fatalf("begin: %v %v", began, err)
	}
	piece := func(start int64, text string) []postgres.OutputPiece {
		return []postgres.OutputPiece{{Stream: "stdout", Start: start, Data: []byte(text)}}
	}
	for range 2 {
		if err := s.StoreOutput(ctx, c, piece(0, "hello ")); err != nil {
			t.Fatal(err)
		}
	}
	stalePlacement := func() error { _, err := s.AcquireSandbox(ctx, stale); return err }
	staleBegin := func() error { _, err := s.BeginExecution(ctx, stale, sb.ID, "uid"); return err }
	staleRelease := func() error { _, err := s.ReleaseExecution(ctx, stale, 0, true, nil); return err }
	staleFinish := func() error {
		_, err := s.FinishExecution(ctx, stale, postgres.ExecutionOutcome{State: harness.ExecutionFailed})
		return err
	}
	staleOutput := func() error { return s.StoreOutput(ctx, stale, piece(100, "x")) }
	staleExtend := func() error { return s.ExtendExecution(ctx, stale, lease) }
	for name, write := range map[string]func() error{
		"acquire": stalePlacement, "begin": staleBegin, "release": staleRelease, "finish": staleFinish, "output": staleOutput, "extend": staleExtend,
	} {
		if err := write(); !errors.Is(err, postgres.ErrLeaseLost) {
			t.Errorf("%s under a lease that was lost: %v", name, err)
		}
	}
	events, err := s.ReleaseExecution(ctx, c, 0, true, piece(6, "world"))
	if err != nil || len(events) != 1 || events[0].ID != fmt.Sprintf("execution.requested:%s:2", id) {
		t.Fatalf("release: %+v %v", events, err)
	}
	c = claimExecution(t, s, id)
	if c.State != harness.ExecutionRunning || c.StdoutStored != 11 || c.Attempts != 1 || c.UID != "uid" || c.Sandbox == nil || c.Sandbox.ID != sb.ID {
		t.Fatalf("the next claim reads %+v", c)
	}
	code := 3
	events = finish(t, s, c, postgres.ExecutionOutcome{
		State: harness.ExecutionFailed, ExitCode: &code, StdoutBytes: 11, StderrBytes: 2,
		Output: []postgres.OutputPiece{{Stream: "stderr", Start: 0, Data: []byte("no")}},
	})
	want := []event.Event{{
		ID: "execution.finished:" + string(id), Type: event.ExecutionFinished, Session: "ses_a", Agent: "coder", TraceParent: "trace",
		Payload: event.Payload{Session: "ses_a", Execution: id},
	}}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Fatal(diff)
	}
	if due := query[bool](t, s, `SELECT due_at <= now() FROM sessions`); !due {
		t.Error("the session is not marked")
	}
	if subject := query[string](t, s, `SELECT string_agg(subject, ',') FROM outbox`); subject != "ses_a" {
		t.Errorf("announced to %q, want the session alone", subject)
	}
	if log := query[string](t, s, `SELECT level || ' ' || message FROM agent_execution_logs`); log != "WARN command "+string(id)+" ended as FAILED exit code 3" {
		t.Errorf("log %q", log)
	}
	if _, err := s.ClaimExecution(ctx, id, lease); !errors.Is(err, postgres.ErrNothingDue) {
		t.Fatalf("claim of an ended execution: %v", err)
	}
}

func TestClaimsAtOnce(t *testing.T) {
	s := postgrestest.New(t)
	agent(t, s)
	id := commands(t, s, 1, "ses_a")[0]
	var wg sync.WaitGroup
	won := make(chan bool, 12)
	for range 12 {
		wg.Go(func() {
			_, err := s.ClaimExecution(context.Background(), id, lease)
			if err != nil && !errors.Is(err, postgres.ErrNothingDue) {
				t.Error(err)
			}
			won <- err == nil
		})
	}
	wg.Wait()
	close(won)
	n := 0
	for w := range won {
		if w {
			n++
		}
	}
	if n != 1 {
		t.Fatalf("%d claims of one execution", n)
	}
}

func TestAnExecutionEndedMeanwhile(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	ids := commands(t, s, 1, "ses_a", "ses_b")
	c := claimExecution(t, s, ids[0])
	sb := acquire(t, s, c, postgres.PlaceCreate)
	acquire(t, s, claimExecution(t, s, ids[1]), postgres.PlaceWait)
	execSQL(t, s, `UPDATE executions SET state = 'CANCELLED', ended_at = now() WHERE execution_id = $1`, ids[0])
	if _, err := s.BeginExecution(ctx, c, sb.ID, "uid"); !errors.Is(err, postgres.ErrNothingDue) {
		t.Fatalf("begin of a cancelled execution: %v", err)
	}
	if _, err := s.AcquireSandbox(ctx, c); !errors.Is(err, postgres.ErrNothingDue) {
		t.Fatalf("placement of a cancelled execution: %v", err)
	}
	if events := finish(t, s, c, postgres.ExecutionOutcome{State: harness.ExecutionFailed}); !slices.Equal(subjects(ids, events), []int{2}) {
		t.Fatalf("finish of a cancelled execution says %v", subjects(ids, events))
	}
	if state := query[string](t, s, `SELECT state FROM executions WHERE execution_id = $1`, ids[0]); state != "CANCELLED" {
		t.Fatalf("it is %s", state)
	}
	// The sandbox that was made for it is ready and idle: the next in line gets its place.
	if got := acquire(t, s, claimExecution(t, s, ids[1]), postgres.PlaceEvict); got.ID != sb.ID {
		t.Fatalf("evicts %s", got.ID)
	}
}

func TestBackoffIsLeftToTheSweep(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	id := commands(t, s, 1, "ses_a")[0]
	c := claimExecution(t, s, id)
	if events, err := s.ReleaseExecution(ctx, c, time.Hour, false, nil); err != nil || len(events) != 0 {
		t.Fatalf("release: %v %v", events, err)
	}
	if _, err := s.ClaimExecution(ctx, id, lease); !errors.Is(err, postgres.ErrNothingDue) {
		t.Fatalf("claim before its time: %v", err)
	}
	if n := query[int](t, s, `SELECT count(*) FROM outbox WHERE subject = $1 AND due_at > now() + interval '59 minutes'`, id); n != 1 {
		t.Fatalf("%d announcements wait for its time", n)
	}
	execSQL(t, s, `UPDATE executions SET due_at = now()`)
	if c := claimExecution(t, s, id); c.Attempts != 2 {
		t.Fatalf("attempts %d", c.Attempts)
	}
}

func TestExecutionsDue(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	ids := commands(t, s, 1, "ses_a", "ses_b", "ses_c")
	due := func(want ...int) {
		t.Helper()
		events, err := s.ExecutionsDue(ctx, 10)
		if got := subjects(ids, events); err != nil || !slices.Equal(got, append([]int{}, want...)) {
			t.Fatalf("due: %v %v, want %v", got, err, want)
		}
	}
	due() // all are announced
	c := runIn(t, s, ids[0])
	acquire(t, s, claimExecution(t, s, ids[1]), postgres.PlaceWait)
	due() // one is worked on, one waits, one is announced
	execSQL(t, s, `UPDATE executions SET lease_until = now() - interval '1 second' WHERE execution_id = $1`, ids[0])
	due(1)
	due() // announced now
	c = claimExecution(t, s, c.ID)
	execSQL(t, s, `DELETE FROM outbox`) // lost, as after a dead letter was dropped
	due(3)
	if _, err := s.FinishExecution(ctx, c, postgres.ExecutionOutcome{State: harness.ExecutionCompleted}); err != nil {
		t.Fatal(err)
	}
	execSQL(t, s, `UPDATE executions SET due_at = NULL WHERE execution_id = $1`, ids[1]) // a wake that never was
	execSQL(t, s, `DELETE FROM outbox`)
	due(3, 2) // the second may take the idle sandbox's place
}

func TestEndOrphans(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	ids := commands(t, s, 3, "ses_a", "ses_b", "ses_c")
	for i, id := range ids {
		c := runIn(t, s, id)
		if i == 0 {
			if err := s.StoreOutput(ctx, c, []postgres.OutputPiece{{Stream: "stdout", Data: []byte("begun")}}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.SandboxGone(ctx, c.Sandbox.ID, "coder", "OOM"); err != nil {
			t.Fatal(err)
		}
	}
	if events, err := s.EndOrphans(ctx, lease, 10); err != nil || len(events) != 0 {
		t.Fatalf("orphans while their claims are held: %v %v", events, err)
	}
	execSQL(t, s, `UPDATE executions SET lease_until = now() - interval '1 second' WHERE execution_id <> $1`, ids[2])
	events, err := s.EndOrphans(ctx, lease, 10)
	if got := subjects(ids, events); err != nil || !slices.Equal(got, []int{-1, -2}) {
		t.Fatalf("orphans: %v %v", got, err)
	}
	got := query[string](t, s, `SELECT string_agg(state || ' ' || stdout_bytes || ' ' || reason, ', ' ORDER BY seq) FROM executions`)
	if want := "SANDBOX_GONE 5 the sandbox ended (OOM), UNKNOWN 0 the sandbox ended (OOM), RUNNING 0 "; got != want {
		t.Fatalf("outcomes %q, want %q", got, want)
	}
}
