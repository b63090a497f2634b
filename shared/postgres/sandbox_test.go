package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

var completed = postgres.ExecutionOutcome{State: harness.ExecutionCompleted}

func gone(t *testing.T, s *postgres.Store, sb *postgres.SandboxRecord, reason string) []event.Event {
	t.Helper()
	events, err := s.SandboxGone(context.Background(), sb.ID, sb.Agent, reason)
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// Cap 1, three sessions: they are served in the order they asked, each by ending
// the idle sandbox of the one before.
func TestWaitersAreServedInOrder(t *testing.T) {
	s := postgrestest.New(t)
	agent(t, s)
	ids := commands(t, s, 1, "ses_a", "ses_b", "ses_c", "ses_a")
	// The later ask first: they wait, as earlier ones are ahead.
	for _, n := range []int{2, 1} {
		acquire(t, s, claimExecution(t, s, ids[n]), postgres.PlaceWait)
	}
	a := runIn(t, s, ids[0])
	acquire(t, s, claimExecution(t, s, ids[3]), postgres.PlaceWait)
	// The session's own next command asked last: its sandbox goes to the second.
	if got := subjects(ids, finish(t, s, a, completed)); !slices.Equal(got, []int{-1, 2, 4}) {
		t.Fatalf("the end of the first wakes %v", got)
	}
	b := claimExecution(t, s, ids[1])
	evicted := acquire(t, s, b, postgres.PlaceEvict)
	if evicted.ID != a.Sandbox.ID || evicted.State != harness.SandboxTerminating || evicted.Reason != postgres.SandboxEvicted {
		t.Fatalf("evicted %+v", evicted)
	}
	acquire(t, s, claimExecution(t, s, ids[3]), postgres.PlaceWait) // its sandbox is being ended
	if got := subjects(ids, gone(t, s, evicted, "")); len(got) != 0 {
		t.Fatalf("wakes %v though the place belongs to the one that freed it", got)
	}
	made := acquire(t, s, b, postgres.PlaceCreate)
	if began, err := s.BeginExecution(context.Background(), b, made.ID, "uid-b"); err != nil || !began {
		t.Fatal(began, err)
	}
	if got := subjects(ids, finish(t, s, b, completed)); !slices.Equal(got, []int{-2, 3}) {
		t.Fatalf("the end of the second wakes %v", got)
	}
	c := claimExecution(t, s, ids[2])
	gone(t, s, acquire(t, s, c, postgres.PlaceEvict), "")
	made = acquire(t, s, c, postgres.PlaceCreate)
	if began, err := s.BeginExecution(context.Background(), c, made.ID, "uid-c"); err != nil || !began {
		t.Fatal(began, err)
	}
	if got := subjects(ids, finish(t, s, c, completed)); !slices.Equal(got, []int{-3, 4}) {
		t.Fatalf("the end of the third wakes %v", got)
	}
	d := claimExecution(t, s, ids[3])
	gone(t, s, acquire(t, s, d, postgres.PlaceEvict), "")
	acquire(t, s, d, postgres.PlaceCreate)
	reason := query[string](t, s, `SELECT reason FROM executions WHERE execution_id = $1`, ids[3])
	if want := "this was a new workspace without the files of earlier commands, because the last sandbox ended (EVICTED)"; reason != want {
		t.Fatalf("the session is told %q", reason)
	}
}

// The commands of one session run one after the other in one sandbox, in the
// order they were asked for, and do not stand in the way of other sessions.
func TestCommandsOfOneSession(t *testing.T) {
	s := postgrestest.New(t)
	agent(t, s)
	ids := commands(t, s, 2, "ses_a", "ses_a", "ses_a", "ses_b")
	acquire(t, s, claimExecution(t, s, ids[1]), postgres.PlaceWait)
	first := runIn(t, s, ids[0])
	acquire(t, s, claimExecution(t, s, ids[2]), postgres.PlaceWait)
	other := runIn(t, s, ids[3])
	if got := subjects(ids, finish(t, s, first, completed)); !slices.Equal(got, []int{-1, 2}) {
		t.Fatalf("the end of the first wakes %v", got)
	}
	second := claimExecution(t, s, ids[1])
	if second.Sandbox == nil || second.Sandbox.ID != first.Sandbox.ID {
		t.Fatalf("the claim shows %+v", second.Sandbox)
	}
	if got := acquire(t, s, second, postgres.PlaceRun); got.ID != first.Sandbox.ID {
		t.Fatalf("the second runs in %s", got.ID)
	}
	if state := query[string](t, s, `SELECT state || ' ' || sandbox_uid FROM executions WHERE execution_id = $1`, ids[1]); state != "RUNNING uid-"+first.Sandbox.Name {
		t.Fatalf("it is %q", state)
	}
	if got := subjects(ids, finish(t, s, other, completed)); !slices.Equal(got, []int{-4}) {
		t.Fatalf("the end of another session's command wakes %v", got)
	}
	if got := subjects(ids, finish(t, s, second, completed)); !slices.Equal(got, []int{-2, 3}) {
		t.Fatalf("the end of the second wakes %v", got)
	}
}

func TestAnOldSandboxIsReplaced(t *testing.T) {
	for name, change := range map[string]string{
		"near its end":  `UPDATE sandboxes SET created_at = now() - interval '590 seconds', expires_at = now() + interval '10 seconds'`,
		"idle too long": `UPDATE sandboxes SET last_activity_at = now() - interval '290 seconds'`,
	} {
		t.Run(name, func(t *testing.T) {
			s := postgrestest.New(t)
			agent(t, s)
			ids := commands(t, s, 1, "ses_a", "ses_a")
			first := runIn(t, s, ids[0])
			finish(t, s, first, completed)
			execSQL(t, s, change)
			second := claimExecution(t, s, ids[1])
			old := acquire(t, s, second, postgres.PlaceReplace)
			if old.ID != first.Sandbox.ID || old.Reason != postgres.SandboxExpired || old.UID == "" {
				t.Fatalf("replaces %+v", old)
			}
			gone(t, s, old, "")
			acquire(t, s, second, postgres.PlaceCreate)
		})
	}
}

func TestASandboxThatEndsWhileItStarts(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	ids := commands(t, s, 1, "ses_a", "ses_b")
	c := claimExecution(t, s, ids[0])
	sb := acquire(t, s, c, postgres.PlaceCreate)
	acquire(t, s, claimExecution(t, s, ids[1]), postgres.PlaceWait)
	if err := s.EndSandbox(ctx, sb.ID, "coder", "START_FAILED", "it did not come up"); err != nil {
		t.Fatal(err)
	}
	if began, err := s.BeginExecution(ctx, c, sb.ID, "uid"); err != nil || began {
		t.Fatalf("a command began in a sandbox that ends: %v %v", began, err)
	}
	acquire(t, s, c, postgres.PlaceWait) // the place is still taken, and the claim is given back
	if got := subjects(ids, gone(t, s, sb, "other")); !slices.Equal(got, []int{1}) {
		t.Fatalf("its end wakes %v", got)
	}
	if reason := query[string](t, s, `SELECT reason FROM sandboxes`); reason != "START_FAILED" {
		t.Fatalf("reason %q", reason)
	}
	if got := gone(t, s, sb, "again"); len(got) != 0 {
		t.Fatalf("said twice it wakes %v", subjects(ids, got))
	}
}

func TestSandboxesToEnd(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name, change, want string
		running            bool
	}{
		{name: "in use", change: `UPDATE sandboxes SET last_activity_at = now() - interval '1 hour'`, running: true},
		{name: "in use at its end of life", change: `UPDATE sandboxes SET expires_at = now() - interval '1 minute'`, running: true},
		{name: "in use long after its end of life", change: `UPDATE sandboxes SET expires_at = now() - interval '3 minutes'`, running: true, want: "TTL"},
		{name: "idle", change: `UPDATE sandboxes SET last_activity_at = now() - interval '301 seconds'`, want: "IDLE"},
		{name: "idle a little", change: `UPDATE sandboxes SET last_activity_at = now() - interval '200 seconds'`},
		{
			name: "idle with a command coming", want: "",
			change: `WITH s AS (UPDATE sandboxes SET last_activity_at = now() - interval '1 hour') INSERT INTO executions
				(execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce)
				SELECT 'exe_next', session_id, agent_name, cause, 'next', command, spec, spec_digest, 1, 'PENDING', nonce FROM executions`,
		},
		{name: "at its end of life", change: `UPDATE sandboxes SET expires_at = now() - interval '1 second'`, want: "TTL"},
		{name: "being ended", change: `UPDATE sandboxes SET state = 'TERMINATING', reason = 'EVICTED'`},
		{name: "left while being ended", change: `UPDATE sandboxes SET state = 'TERMINATING', reason = 'EVICTED', updated_at = now() - interval '3 minutes'`, want: "EVICTED"},
		{name: "coming up", change: `UPDATE sandboxes SET state = 'CREATING'`},
		{name: "stuck", change: `UPDATE sandboxes SET state = 'CREATING', updated_at = now() - interval '3 minutes'`, want: "STUCK"},
		{
			name: "coming up slowly", change: `WITH s AS (UPDATE sandboxes SET state = 'CREATING', updated_at = now() - interval '3 minutes')
			UPDATE executions SET state = 'PENDING', ended_at = NULL, lease_owner = 'x', lease_until = now() + interval '1 minute'`,
		},
		{name: "gone", change: `UPDATE sandboxes SET state = 'GONE', ended_at = now(), expires_at = now() - interval '1 hour'`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := postgrestest.New(t)
			agent(t, s)
			claim := runIn(t, s, commands(t, s, 1, "ses_a")[0])
			if !c.running {
				finish(t, s, claim, completed)
			}
			execSQL(t, s, c.change)
			ended, err := s.SandboxesToEnd(ctx, 10)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, r := range ended {
				got += r.Reason
				if r.State != harness.SandboxTerminating || r.UID == "" || r.Name != claim.Sandbox.Name {
					t.Errorf("ended %+v", r)
				}
			}
			if got != c.want {
				t.Fatalf("ended for %q, want %q", got, c.want)
			}
			if again, err := s.SandboxesToEnd(ctx, 10); err != nil || len(again) != 0 {
				t.Fatalf("a second pass gets %+v %v", again, err)
			}
			live, err := s.LiveSandboxes(ctx)
			if want := map[bool]int{true: 0, false: 1}[c.name == "gone"]; err != nil || len(live) != want {
				t.Fatalf("%d live, %v", len(live), err)
			}
		})
	}
}

// Many commands of many sessions by many workers that know nothing but the
// events they are given: the cap holds at every moment, no wake is lost (there
// is no sweep here), and the commands of a session keep their order.
func TestTheCapUnderLoad(t *testing.T) {
	const limit, sessions, each, workers = 3, 7, 6, 8
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := postgrestest.New(t)
	agent(t, s)
	var names []string
	for range each {
		for n := range sessions {
			names = append(names, fmt.Sprint("ses_", n))
		}
	}
	ids := commands(t, s, limit, names...)
	events := make(chan harness.ExecutionID, 100*len(ids))
	for _, id := range ids {
		events <- id
	}
	publish := func(all []event.Event) {
		for _, e := range all {
			if e.Type == event.ExecutionRequested {
				events <- e.Payload.Execution
			}
		}
	}
	var ended, live, most atomic.Int64
	var mu sync.Mutex
	last := map[harness.SessionID]harness.ExecutionID{}
	work := func(id harness.ExecutionID) error {
		c, err := s.ClaimExecution(ctx, id, lease)
		if errors.Is(err, postgres.ErrNothingDue) {
			return nil
		}
		if err != nil {
			return err
		}
		for {
			p, err := s.AcquireSandbox(ctx, c)
			if err != nil {
				return err
			}
			switch p.Kind {
			case postgres.PlaceWait:
				return nil
			case postgres.PlaceEvict, postgres.PlaceReplace:
				live.Add(-1)
				woken, err := s.SandboxGone(ctx, p.Sandbox.ID, p.Sandbox.Agent, "")
				if err != nil {
					return err
				}
				publish(woken)
				continue
			case postgres.PlaceCreate:
				for now := live.Add(1); ; {
					if old := most.Load(); now <= old || most.CompareAndSwap(old, now) {
						break
					}
				}
				if began, err := s.BeginExecution(ctx, c, p.Sandbox.ID, "uid"); err != nil || !began {
					return fmt.Errorf("begin: %v %w", began, err)
				}
			}
			mu.Lock()
			if slices.Index(ids, last[c.Session]) > slices.Index(ids, id) {
				t.Errorf("%s ran after %s", id, last[c.Session])
			}
			last[c.Session] = id
			mu.Unlock()
			finished, err := s.FinishExecution(ctx, c, completed)
			if err != nil {
				return err
			}
			publish(finished)
			if ended.Add(1) == int64(len(ids)) {
				close(events)
			}
			return nil
		}
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					t.Error("nobody is woken any more")
					return
				case id, more := <-events:
					if !more {
						return
					}
					if err := work(id); err != nil {
						t.Error(id, err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if most.Load() > limit || most.Load() < 2 {
		t.Errorf("%d sandboxes at once, cap %d", most.Load(), limit)
	}
	if n := query[int](t, s, `SELECT count(*) FROM executions WHERE state <> 'COMPLETED'`); n != 0 {
		t.Errorf("%d executions not run", n)
	}
}
