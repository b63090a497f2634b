package postgres_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

func pause(t *testing.T, s *postgres.Store, session harness.SessionID) {
	t.Helper()
	v, err := s.PauseSession(context.Background(), session, postgres.Audit{Actor: "ann"})
	if err != nil || v.PausedAt == nil || v.PausedBy != "ann" {
		t.Fatalf("pause: %+v, %v", v, err)
	}
}

func unpause(t *testing.T, s *postgres.Store, session harness.SessionID) []event.Event {
	t.Helper()
	v, events, err := s.UnpauseSession(context.Background(), session, postgres.Audit{Actor: "ann"})
	if err != nil || v.PausedAt != nil || v.PausedBy != "" {
		t.Fatalf("unpause: %+v, %v", v, err)
	}
	return events
}

// A person takes a conversation over in the middle of a turn, answers, and hands
// it back: the agent's answer in flight is not given, what it began is given up,
// and its model reads the person's words as its own.
func TestATakeover(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	session := arrive(t, s, "a")[0].Session
	running(t, s, session, "call_1", "exe_1")
	command := runIn(t, s, "exe_1")
	arrive(t, s, "b")
	claim, err := s.ClaimSession(ctx, session, lease)
	if err != nil {
		t.Fatal(err)
	}
	pause(t, s, session)
	if _, err := s.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionIdle, Reply: []string{"late"}, Step: &postgres.NewStep{ID: "stp_late", Text: "late"}}); !errors.Is(err, postgres.ErrLeaseLost) {
		t.Fatalf("an answer in flight: %v", err)
	}
	quiet(t, s, session, "taken over")
	if events, err := s.HoldSession(ctx, session, "stopped"); err != nil || len(events) > 0 {
		t.Errorf("the chat is told: %v, %v", events, err)
	}
	_, err = s.PauseSession(ctx, session, postgres.Audit{Actor: "ben"})
	kindOf(t, err, harness.Conflict)
	reply := postgres.PersonReply{Session: session, Text: "Ann here.", Author: "ann", Key: "k1"}
	message, fresh, events, err := s.Reply(ctx, reply)
	if err != nil || !fresh || message.Author != "ann" || message.Text != "Ann here." {
		t.Fatalf("%+v %v %v", message, fresh, err)
	}
	if got := types(events); !slices.Equal(got, []event.Type{event.MessageReply, event.ExecutionRequested}) {
		t.Errorf("published %v", got)
	}
	same, fresh, events, err := s.Reply(ctx, reply)
	if err != nil || fresh || same.ID != message.ID || len(events) > 0 {
		t.Errorf("a repeat: %+v %v %v %v", same, fresh, events, err)
	}
	reply.Text = "Something else."
	_, _, _, err = s.Reply(ctx, reply)
	kindOf(t, err, harness.Conflict)
	for sql, want := range map[string]string{
		`SELECT string_agg(direction || ' ' || state || ' ' || text || author, ', ' ORDER BY seq) FROM messages`: "INBOUND DONE text a, INBOUND DONE text b, OUTBOUND DONE Ann here.ann",
		`SELECT in_reply_to FROM messages WHERE direction = 'OUTBOUND'`:                                          value[string](t, s, `SELECT message_id FROM messages WHERE text = 'text b'`),
		`SELECT string_agg(state || ' ' || text, ', ') FROM replies`:                                             "PLANNED Ann here.",
		`SELECT state || ' ' || result FROM tool_calls`:                                                          "FAILED Interrupted: a person answered instead of you; the outcome of this call is unknown.",
		`SELECT state || ' ' || (cancelled_at IS NOT NULL) FROM executions`:                                      "RUNNING true",
		`SELECT state || ' ' || COALESCE(due_at::text, 'not due') FROM sessions`:                                 "IDLE not due",
		`SELECT string_agg(kind || ' ' || seq, ', ' ORDER BY seq) FROM session_events`:                           "TURN 1, TOOL_CALL 2, TOOL_RESULT 3, REPLY 4",
		`SELECT event_seq || ' ' || message_seq || ' ' || step_seq FROM sessions`:                                "4 3 2",
	} {
		if got := value[string](t, s, sql); got != want {
			t.Errorf("%s: %q, want %q", sql, got, want)
		}
	}
	finish(t, s, command, postgres.ExecutionOutcome{State: harness.ExecutionCancelled})
	reply.Key, reply.Text = "k2", "Still here." // nobody has asked anything
	if message, fresh, _, err := s.Reply(ctx, reply); err != nil || !fresh || message.InReplyTo != "" {
		t.Errorf("a second answer: %+v %v %v", message, fresh, err)
	}
	arrive(t, s, "c")
	quiet(t, s, session, "a message comes")
	if events := unpause(t, s, session); !slices.Equal(types(events), []event.Type{event.SessionDue}) {
		t.Errorf("handed back: %v", events)
	}
	_, _, err = s.UnpauseSession(ctx, session, postgres.Audit{Actor: "ann"})
	kindOf(t, err, harness.Conflict)
	_, _, _, err = s.Reply(ctx, postgres.PersonReply{Session: session, Text: "x", Author: "ann", Key: "k3"})
	kindOf(t, err, harness.Conflict)
	claim, err = s.ClaimSession(ctx, session, lease)
	if err != nil || len(claim.Turns) != 3 || claim.More {
		t.Fatalf("%+v, %v", claim, err)
	}
	var read []string
	for _, turn := range claim.Turns {
		read = append(read, turn.Text)
		for _, step := range turn.Steps {
			read = append(read, "> "+step.Text)
		}
	}
	if got, want := strings.Join(read, "|"), "text a|> I look|text b|> Ann here.|> Still here.|text c"; got != want {
		t.Errorf("the model reads %s, want %s", got, want)
	}
	for _, call := range claim.Calls {
		if !call.State.Ended() {
			t.Errorf("an open call: %+v", call)
		}
	}
	entries, _, err := s.Timeline(ctx, session, view.Place{}, 50)
	if err != nil {
		t.Fatal(err)
	}
	authors := 0
	for _, e := range entries {
		if e.Step != nil && e.Step.Author == "ann" || e.Message != nil && e.Message.Author == "ann" {
			authors++
		}
	}
	if authors != 4 {
		t.Errorf("%d entries name the person, want 4", authors)
	}
}

// A person answers while an approval waits: nobody decides about it any more.
func TestATakeoverEndsApprovals(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	session := arrive(t, s, "a")[0].Session
	running(t, s, session, "call_1", "exe_1")
	run(t, s, `INSERT INTO approvals (approval_id, session_id, agent_name, title, digest, state) SELECT 'apr_1', session_id, 'coder', 't', 'd', 'PENDING' FROM sessions`)
	pause(t, s, session)
	if _, _, _, err := s.Reply(ctx, postgres.PersonReply{Session: session, Text: "no", Author: "ann", Key: "k"}); err != nil {
		t.Fatal(err)
	}
	if got := value[string](t, s, `SELECT a.state || ' ' || a.decided_by || ' ' || e.state FROM approvals a, executions e`); got != "CANCELLED ann CANCELLED" {
		t.Error(got)
	}
}

// What ends while it is taken over ends as always, and takes no answer then.
func TestATakeoverEnds(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	cancelled := arrive(t, s, "a")[0].Session
	pause(t, s, cancelled)
	if n, err := s.CompleteIdle(ctx, 10); err != nil || n > 0 {
		t.Errorf("%d idle, %v", n, err)
	}
	if _, _, err := s.CancelSession(ctx, cancelled, postgres.Audit{Actor: "ben"}); err != nil {
		t.Fatal(err)
	}
	idle := arrive(t, s, "b")[0].Session
	pause(t, s, idle)
	run(t, s, `UPDATE sessions SET idle_seconds = 60, updated_at = now() - interval '1 hour'`)
	if n, err := s.CompleteIdle(ctx, 10); err != nil || n > 0 {
		t.Errorf("somebody waits for an answer: %d idle, %v", n, err)
	}
	if _, _, _, err := s.Reply(ctx, postgres.PersonReply{Session: idle, Text: "x", Author: "ann", Key: "k1"}); err != nil {
		t.Fatal(err)
	}
	if n, err := s.CompleteIdle(ctx, 10); err != nil || n > 0 {
		t.Errorf("it was answered just now: %d idle, %v", n, err)
	}
	run(t, s, `UPDATE sessions SET updated_at = now() - interval '1 hour'`)
	if n, err := s.CompleteIdle(ctx, 10); err != nil || n != 1 {
		t.Errorf("%d idle, %v", n, err)
	}
	for _, id := range []harness.SessionID{cancelled, idle} {
		_, err := s.PauseSession(ctx, id, postgres.Audit{Actor: "ann"})
		kindOf(t, err, harness.Conflict)
		_, _, err = s.UnpauseSession(ctx, id, postgres.Audit{Actor: "ann"})
		kindOf(t, err, harness.Conflict)
		_, _, _, err = s.Reply(ctx, postgres.PersonReply{Session: id, Text: "x", Author: "ann", Key: "k2"})
		kindOf(t, err, harness.Conflict)
	}
	_, err := s.PauseSession(ctx, "ses_none", postgres.Audit{Actor: "ann"})
	kindOf(t, err, harness.NotFound)
	_, _, err = s.UnpauseSession(ctx, "ses_none", postgres.Audit{Actor: "ann"})
	kindOf(t, err, harness.NotFound)
	_, _, _, err = s.Reply(ctx, postgres.PersonReply{Session: "ses_none", Text: "x", Author: "ann", Key: "k3"})
	kindOf(t, err, harness.NotFound)
	// The next message is the agent's again.
	if _, err := s.ClaimSession(ctx, arrive(t, s, "c")[0].Session, lease); err != nil {
		t.Error(err)
	}
}
