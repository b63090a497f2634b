package postgres_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// halt throws a switch, of the install without a name.
func halt(t *testing.T, s *postgres.Store, agent harness.AgentName) []event.Event {
	t.Helper()
	h, events, err := s.Halt(context.Background(), agent, postgres.Audit{Actor: "ann"}, "it loops")
	if err != nil || !h.Halted || h.HaltedBy != "ann" || h.Reason != "it loops" {
		t.Fatalf("halt: %+v, %v", h, err)
	}
	return events
}

func resumed(t *testing.T, s *postgres.Store, agent harness.AgentName) []event.Event {
	t.Helper()
	before, events, err := s.Resume(context.Background(), agent, postgres.Audit{Actor: "ann"})
	if err != nil || !before.Halted {
		t.Fatalf("resume: %+v, %v", before, err)
	}
	return events
}

func types(events []event.Event) []event.Type {
	var all []event.Type
	for _, e := range events {
		all = append(all, e.Type)
	}
	return all
}

// quiet fails when anybody would be woken for a session or told that one is due.
func quiet(t *testing.T, s *postgres.Store, session harness.SessionID, what string) {
	t.Helper()
	ctx := context.Background()
	if _, err := s.ClaimSession(ctx, session, lease); !errors.Is(err, postgres.ErrNothingDue) {
		t.Errorf("%s: a claim: %v", what, err)
	}
	if _, _, err := s.DueIn(ctx, session); !errors.Is(err, postgres.ErrHeld) {
		t.Errorf("%s: due in: %v", what, err)
	}
	if due, err := s.DueSessions(ctx, "coder", 10); err != nil || len(due) > 0 {
		t.Errorf("%s: due sessions %v, %v", what, due, err)
	}
	run(t, s, `UPDATE sessions SET due_at = due_at - interval '1 hour', announced_at = NULL`)
	if unheard, err := s.SessionsUnheard(ctx, 10); err != nil || len(unheard) > 0 {
		t.Errorf("%s: unheard %v, %v", what, unheard, err)
	}
	run(t, s, `DELETE FROM outbox`)
	if next, _, err := s.NextDue(ctx, time.Hour); err != nil || next != 0 {
		t.Errorf("%s: next due in %s, %v", what, next, err)
	}
}

// Nobody works for a halted agent, and everybody finds what waited afterwards: by
// each switch, with a claim in between, with the one switch beside the other.
func TestHaltStopsClaims(t *testing.T) {
	ctx := context.Background()
	for name, agentName := range map[string]harness.AgentName{"agent": "coder", "install": ""} {
		t.Run(name, func(t *testing.T) {
			s := postgrestest.New(t)
			agent(t, s)
			session := arrive(t, s, "a")[0].Session
			if events := halt(t, s, agentName); len(events) > 0 {
				t.Errorf("published %v", events)
			}
			quiet(t, s, session, "halted")
			other := map[harness.AgentName]harness.AgentName{"coder": "", "": "coder"}[agentName]
			halt(t, s, other)
			if events := resumed(t, s, agentName); len(events) > 0 {
				t.Errorf("resumed beside the other switch: published %v", events)
			}
			quiet(t, s, session, "the other switch")
			if events := resumed(t, s, other); !slices.Equal(types(events), []event.Type{event.SessionDue}) || events[0].Payload.Session != session {
				t.Errorf("resumed: published %+v", events)
			}
			if unheard, err := s.SessionsUnheard(ctx, 10); err != nil || len(unheard) > 0 {
				t.Errorf("announced twice: %v, %v", unheard, err)
			}
			if claim, err := s.ClaimSession(ctx, session, lease); err != nil || claim.Used.Elapsed > time.Second {
				t.Errorf("%+v, %v", claim, err)
			}
			if before, events, err := s.Resume(ctx, agentName, postgres.Audit{Actor: "ann"}); err != nil || before.Halted || len(events) > 0 {
				t.Errorf("resumed again: %+v %v %v", before, events, err)
			}
		})
	}
	s := postgrestest.New(t)
	_, _, err := s.Halt(ctx, "none", postgres.Audit{Actor: "ann"}, "x")
	kindOf(t, err, harness.NotFound)
	_, _, err = s.Resume(ctx, "none", postgres.Audit{Actor: "ann"})
	kindOf(t, err, harness.NotFound)
}

// A claim whose holder died while the agent was halted is found afterwards.
func TestHaltOutlivesAClaim(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	session := arrive(t, s, "a")[0].Session
	if _, err := s.ClaimSession(ctx, session, lease); err != nil {
		t.Fatal(err)
	}
	halt(t, s, "coder")
	run(t, s, `UPDATE sessions SET lease_until = now() - interval '1 second'`)
	quiet(t, s, session, "its holder died")
	resumed(t, s, "coder")
	if unheard, err := s.SessionsUnheard(ctx, 10); err != nil || len(unheard) != 1 {
		t.Errorf("%v, %v", unheard, err)
	}
}

// Whoever waits in a chat is told once per halt, and the announcement that woke us
// is heard: nobody is woken for nothing.
func TestAHaltIsToldOncePerChat(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	tell := func(session harness.SessionID) []event.Event {
		t.Helper()
		events, err := s.HoldSession(ctx, session, "stopped")
		if err != nil {
			t.Fatal(err)
		}
		return events
	}
	session := arrive(t, s, "a")[0].Session
	if events := tell(session); len(events) > 0 || value[int](t, s, `SELECT count(*) FROM outbox`) != 1 {
		t.Errorf("nobody holds it: %v", events)
	}
	halt(t, s, "coder")
	events := tell(session)
	if len(events) != 1 || events[0].Type != event.MessageReply || events[0].Agent != "coder" || events[0].Channel != harness.ChannelWebhook {
		t.Fatalf("published %+v", events)
	}
	var racing sync.WaitGroup
	for range 8 {
		racing.Go(func() {
			if events, err := s.HoldSession(ctx, session, "stopped"); err != nil || len(events) > 0 {
				t.Errorf("again: %v, %v", events, err)
			}
		})
	}
	racing.Wait()
	for sql, want := range map[string]string{
		`SELECT string_agg(direction || ' ' || state || ' ' || text, ', ' ORDER BY seq) FROM messages`:          "INBOUND PENDING text a, OUTBOUND DONE stopped",
		`SELECT string_agg(state || ' ' || text, ', ') FROM replies`:                                            "PLANNED stopped",
		`SELECT string_agg(event_id, ', ') FROM outbox`:                                                         events[0].ID,
		`SELECT string_agg(kind || ' ' || seq, ', ') FROM session_events`:                                       "REPLY 1",
		`SELECT state || ' ' || (due_at <= now()) || ' ' || attempts || message_seq || event_seq FROM sessions`: "PENDING true 021",
	} {
		if got := value[string](t, s, sql); got != want {
			t.Errorf("%s: %q, want %q", sql, got, want)
		}
	}
	// The agent goes on, answers, and the notice is no part of what its model reads.
	resumed(t, s, "coder")
	claim, err := s.ClaimSession(ctx, session, lease)
	if err != nil || len(claim.Turns) != 1 {
		t.Fatalf("%+v, %v", claim, err)
	}
	if _, err := s.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionIdle, Start: true, Reply: []string{"x"}, Step: &postgres.NewStep{ID: "stp_1", Text: "x"}}); err != nil {
		t.Fatal(err)
	}
	halt(t, s, "")
	if events := tell(session); len(events) > 0 {
		t.Errorf("nobody waits: %v", events)
	}
	arrive(t, s, "b")
	if events := tell(session); len(events) != 1 {
		t.Errorf("the next halt: %v", events)
	}
	// Nobody is told through the API, where the session itself is looked at.
	run(t, s, `INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all) VALUES ('API', 'coder', 'coder', '{}', true)`)
	if events := tell(say(t, s, "coder", "chat", "k").Session); len(events) > 0 {
		t.Errorf("channel API: %v", events)
	}
}

// No command of a halted agent begins, at whatever point it was, and one that runs
// is announced to be ended. Afterwards all of them move.
func TestHaltStopsCommands(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	ids := commands(t, s, 2, "ses_a", "ses_b", "ses_c", "ses_d")
	ran := runIn(t, s, ids[0])
	placed := claimExecution(t, s, ids[1])
	starting := acquire(t, s, placed, postgres.PlaceCreate)
	claimed := claimExecution(t, s, ids[2])
	events := halt(t, s, "coder")
	if got := subjects(ids, events); !slices.Equal(got, []int{1}) {
		t.Fatalf("the halt announces %v", got)
	}
	if again := halt(t, s, "coder"); len(again) > 0 {
		t.Errorf("halted again: %v", again)
	}
	if other, err := s.Cancelled(ctx, ids[0]); err != nil || !other.Cancelled {
		t.Errorf("what ran: %+v, %v", other, err)
	}
	if began, err := s.BeginExecution(ctx, placed, starting.ID, "uid-b"); err != nil || began {
		t.Errorf("one whose sandbox came up begins: %v, %v", began, err)
	}
	acquire(t, s, placed, postgres.PlaceWait)
	acquire(t, s, claimed, postgres.PlaceWait)
	if _, err := s.ClaimExecution(ctx, ids[3], lease); !errors.Is(err, postgres.ErrNothingDue) {
		t.Errorf("a claim: %v", err)
	}
	if n := value[int](t, s, `SELECT count(*) FROM outbox WHERE subject = $1`, ids[3]); n != 0 {
		t.Errorf("it is still announced: %d", n)
	}
	finish(t, s, ran, postgres.ExecutionOutcome{State: harness.ExecutionCancelled})
	if due, err := s.ExecutionsDue(ctx, 10); err != nil || len(due) > 0 {
		t.Errorf("the sweep announces %v, %v", subjects(ids, due), err)
	}
	if woken, err := s.WakeExecutions(ctx, "coder"); err != nil || len(woken) > 0 {
		t.Errorf("woken %v, %v", subjects(ids, woken), err)
	}
	var moved []event.Event
	for _, e := range resumed(t, s, "coder") {
		if e.Type == event.ExecutionRequested {
			moved = append(moved, e)
		}
	}
	if got := subjects(ids, moved); !slices.Equal(got, []int{2, 3, 4}) {
		t.Errorf("resumed: %v", got)
	}
	again := claimExecution(t, s, ids[1])
	acquire(t, s, again, postgres.PlaceRun)
}

// Commands that are about to begin while the switch is thrown: each has begun and
// is announced to be ended, or does not begin.
func TestHaltRacesAStart(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	for round := range 10 {
		name := harness.AgentName("coder")
		if round%2 == 1 {
			name = ""
		}
		sessions := []string{"ses_" + string(rune('a'+3*round)), "ses_" + string(rune('b'+3*round)), "ses_" + string(rune('c'+3*round))}
		ids := commands(t, s, 100, sessions...)
		var racing sync.WaitGroup
		var events []event.Event
		for _, id := range ids {
			c := claimExecution(t, s, id)
			sb := acquire(t, s, c, postgres.PlaceCreate)
			racing.Go(func() {
				if _, err := s.BeginExecution(ctx, c, sb.ID, "uid-"+sb.Name); err != nil {
					t.Error(err)
				}
			})
		}
		racing.Go(func() { events = halt(t, s, name) })
		racing.Wait()
		runs := value[int](t, s, `SELECT count(*) FROM executions WHERE state = 'RUNNING' AND execution_id = ANY ($1)`, ids)
		marked := value[int](t, s, `SELECT count(*) FROM executions WHERE state = 'RUNNING' AND cancelled_at IS NOT NULL AND execution_id = ANY ($1)`, ids)
		if runs != marked || len(events) != marked {
			t.Fatalf("%d run, %d are to be ended, %d announced", runs, marked, len(events))
		}
		resumed(t, s, name)
	}
}

// The time for which an agent was halted is none of a turn's.
func TestHaltStopsTheClock(t *testing.T) {
	s := postgrestest.New(t)
	agent(t, s)
	session := arrive(t, s, "a")[0].Session
	running(t, s, session, "call_1", "exe_1")
	run(t, s, `UPDATE sessions SET turn_started_at = now() - interval '2 hours'`)
	halt(t, s, "coder")
	run(t, s, `UPDATE agents SET halted_at = now() - interval '1 hour'`)
	resumed(t, s, "coder")
	if minutes := value[int](t, s, `SELECT round(extract(epoch FROM now() - turn_started_at) / 60)::int FROM sessions`); minutes != 60 {
		t.Errorf("the turn has taken %d minutes, want 60", minutes)
	}
}

// An agent that is edited while it is halted stays so.
func TestHaltOutlivesARevision(t *testing.T) {
	s := postgrestest.New(t)
	putAgents(t, s, nil, agentText("a", "a.yaml", "one", "h"))
	halt(t, s, "a")
	putAgents(t, s, nil)
	putAgents(t, s, nil, agentText("a", "a.yaml", "two", "h"))
	if h, err := s.GetHalt(context.Background(), "a"); err != nil || !h.Halted {
		t.Errorf("%+v, %v", h, err)
	}
}
