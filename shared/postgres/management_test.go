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
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// say writes a message through the API.
func say(t *testing.T, s *postgres.Store, agent, chat, key string) postgres.Accepted {
	t.Helper()
	accepted, _, err := s.Accept(context.Background(), harness.ChannelAPI, postgres.Inbound{Arrivals: []postgres.Arrival{{
		Account: agent, ProviderID: key, Chat: chat, Message: harness.Message{Channel: harness.ChannelAPI, ChannelUserID: "ann", Text: "text " + key},
	}}}, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if err != nil {
		t.Fatal(err)
	}
	return accepted[0]
}

// running takes up the session's turn and asks for a command in it.
func running(t *testing.T, s *postgres.Store, session harness.SessionID, call, execution string) {
	t.Helper()
	ctx := context.Background()
	claim, err := s.ClaimSession(ctx, session, lease)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionAwaitingExecution, Start: true, Step: &postgres.NewStep{
		ID: harness.NewStepID(time.Now()), Text: "I look", Model: "m", Calls: []postgres.NewCall{{
			CallOutcome: postgres.CallOutcome{ID: harness.ToolCallID(call), State: harness.ToolCallRunning}, ProviderID: "p", Name: "executeShell", Arguments: "{}",
			Execution: &postgres.NewExecution{ID: harness.ExecutionID(execution), Command: "sleep 1", Spec: harness.DefaultSandbox(), MaxSandboxes: 1, Nonce: "nonce"},
		}},
	}})
	if err != nil {
		t.Fatal(err)
	}
}

func kindOf(t *testing.T, err error, want harness.Kind) {
	t.Helper()
	if harness.KindOf(err) != want {
		t.Fatalf("%v, want %s", err, want)
	}
}

// Every agent that is in use can be written to through the API, whatever its
// harness; what it answers is delivered as it is written, and nobody is asked to
// send it.
func TestAConversationThroughTheAPI(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	code := agentText("code", "b.yaml", "")
	code.Agent.Harness = harness.HarnessSpec{Enabled: true, Type: harness.HarnessCode}
	putAgents(t, s, nil, agentText("a", "a.yaml", "", "h"), code, refusedText("bad", "c.yaml", "spec.x is wrong"))
	routes := `SELECT COALESCE(string_agg(account || '=' || agent_name || ' ' || open_to_all, ', ' ORDER BY account), '') FROM channel_routes WHERE channel = 'API'`
	if got := value[string](t, s, routes); got != "a=a true, code=code true" {
		t.Errorf("routes %q", got)
	}
	first := say(t, s, "code", "case-1", "k1")
	if first.Outcome != postgres.ArrivalAccepted || say(t, s, "code", "case-1", "k1") != (postgres.Accepted{Outcome: postgres.ArrivalDuplicate, Session: first.Session, Message: first.Message}) {
		t.Fatalf("accepted %+v, and otherwise again", first)
	}
	if got := say(t, s, "bad", "case-1", "k2"); got.Outcome != postgres.ArrivalUnrouted {
		t.Errorf("an agent that never was in use: %+v", got)
	}
	claim, err := s.ClaimSession(ctx, first.Session, lease)
	if err != nil {
		t.Fatal(err)
	}
	events, err := s.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionIdle, Start: true, Reply: []string{"one", "two"}, Step: &postgres.NewStep{ID: "stp_1", Text: "onetwo"}})
	if err != nil || len(events) != 0 {
		t.Fatalf("published %+v, %v", events, err)
	}
	if n := value[int](t, s, `SELECT count(*) FROM outbox`); n != 0 {
		t.Errorf("%d announcements of what nobody has to do", n)
	}
	messages, err := s.ListMessages(ctx, first.Session, 0, 10)
	if err != nil || len(messages) != 2 || len(messages[1].Parts) != 2 {
		t.Fatalf("%+v, %v", messages, err)
	}
	for _, p := range messages[1].Parts {
		if p.State != harness.ReplyDelivered {
			t.Errorf("part %d is %s", p.Part, p.State)
		}
	}
	if messages[1].Text != "onetwo" || messages[1].InReplyTo != first.Message {
		t.Errorf("answer %+v", messages[1])
	}
	// Nothing of the sweep finds it.
	if _, err := s.ClaimReply(ctx, first.Session, postgres.ReplyLease{Lease: lease}); !errors.Is(err, postgres.ErrNothingDue) {
		t.Errorf("a reply is to be sent: %v", err)
	}
	if due, err := s.RepliesDue(ctx, 10); err != nil || len(due) != 0 {
		t.Errorf("due %+v, %v", due, err)
	}
	if next, ok, err := s.NextDue(ctx, time.Hour); err != nil || ok {
		t.Errorf("the sweep waits %s for something, %v", next, err)
	}
	if ended, err := s.CompleteIdle(ctx, 10); err != nil || ended != 0 {
		t.Errorf("%d ended at once, %v", ended, err)
	}
	run(t, s, `UPDATE sessions SET updated_at = now() - interval '25 hours'`)
	if ended, err := s.CompleteIdle(ctx, 10); err != nil || ended != 1 {
		t.Errorf("%d ended after a day, %v", ended, err)
	}
	if putAgents(t, s, nil, agentText("a", "a.yaml", "", "h")); value[string](t, s, routes) != "a=a true" {
		t.Errorf("routes %q", value[string](t, s, routes))
	}
	told, err := s.SessionEvents(ctx, first.Session, 0, 10)
	if err != nil || len(told) != 2 || told[0].Kind != postgres.StreamTurn || told[1].Kind != postgres.StreamReply || told[1].Text != "onetwo" {
		t.Errorf("events %+v, %v", told, err)
	}
	if rest, err := s.SessionEvents(ctx, first.Session, 1, 10); err != nil || len(rest) != 1 || rest[0].Seq != 2 {
		t.Errorf("events behind 1 %+v, %v", rest, err)
	}
}

// Of two who decide one wins, and the other learns who.
func TestDecisions(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	session := arrive(t, s, "a")[0].Session
	run(t, s, `UPDATE sessions SET state = 'AWAITING_APPROVAL', due_at = NULL`, `DELETE FROM outbox`,
		`INSERT INTO approvals (approval_id, session_id, agent_name, title, input, digest, state, expires_at)
			SELECT 'apr_' || n, session_id, 'coder', 'run it', '{"command": "rm x"}', 'digest' || n, 'PENDING', CASE WHEN n = 3 THEN now() - interval '1 second' END FROM sessions, generate_series(1, 3) n`)
	type answer struct {
		got    view.Approval
		events []event.Event
		err    error
	}
	answers := make(chan answer, 10)
	var deciding sync.WaitGroup
	for i := range 10 {
		deciding.Go(func() {
			state := harness.ApprovalApproved
			if i%2 == 1 {
				state = harness.ApprovalRejected
			}
			got, events, err := s.DecideApproval(ctx, postgres.Decision{ID: "apr_1", State: state, By: fmt.Sprint("person", i), Via: harness.ChannelAPI, Reason: "because\x00", Digest: "digest1"})
			answers <- answer{got, events, err}
		})
	}
	deciding.Wait()
	close(answers)
	stored, err := s.GetApproval(ctx, "apr_1")
	if err != nil || stored.DecidedAt == nil || stored.Reason != "because" || stored.DecidedVia != "API" || string(stored.Input) != `{"command": "rm x"}` {
		t.Fatalf("%+v, %v", stored, err)
	}
	won := 0
	for a := range answers {
		if diff := cmp.Diff(stored, a.got); diff != "" {
			t.Errorf("somebody was told something else: %s", diff)
		}
		if a.err == nil {
			won++
			if len(a.events) != 1 || a.events[0].ID != "approval.decided:apr_1" || a.events[0].Payload.Session != session {
				t.Errorf("published %+v", a.events)
			}
			continue
		}
		kindOf(t, a.err, harness.Conflict)
	}
	if won != 1 || !value[bool](t, s, `SELECT due_at <= now() FROM sessions`) || value[int](t, s, `SELECT count(*) FROM outbox WHERE subject = $1`, session) != 1 {
		t.Errorf("%d won; the session must be due and announced once", won)
	}
	_, _, err = s.DecideApproval(ctx, postgres.Decision{ID: "apr_2", State: harness.ApprovalApproved, By: "ann", Via: harness.ChannelAPI, Digest: "other"})
	kindOf(t, err, harness.Conflict)
	_, _, err = s.DecideApproval(ctx, postgres.Decision{ID: "apr_3", State: harness.ApprovalApproved, By: "ann", Via: harness.ChannelAPI})
	kindOf(t, err, harness.Conflict)
	_, _, err = s.DecideApproval(ctx, postgres.Decision{ID: "apr_4", State: harness.ApprovalApproved})
	kindOf(t, err, harness.NotFound)
	_, _, err = s.DecideApproval(ctx, postgres.Decision{ID: "apr_2", State: harness.ApprovalExpired})
	kindOf(t, err, harness.Invalid)
	for what, c := range map[string]struct {
		f    postgres.ApprovalFilter
		want []harness.ApprovalID
	}{
		"all":     {postgres.ApprovalFilter{}, []harness.ApprovalID{"apr_3", "apr_2", "apr_1"}},
		"pending": {postgres.ApprovalFilter{States: []harness.ApprovalState{harness.ApprovalPending}, Agent: "coder", Session: session}, []harness.ApprovalID{"apr_3", "apr_2"}},
		"others":  {postgres.ApprovalFilter{Agent: "other"}, nil},
	} {
		found, err := s.ListApprovals(ctx, c.f, view.Place{}, 10)
		var ids []harness.ApprovalID
		for _, a := range found {
			ids = append(ids, a.ID)
		}
		if err != nil || !slices.Equal(ids, c.want) {
			t.Errorf("%s: %v, %v", what, ids, err)
		}
	}
}

// A command that somebody asks for by the API runs in the sandbox, once per key,
// and is none of the session's turn.
func TestCommandsThroughTheAPI(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	first := runIn(t, s, commands(t, s, 2, "ses_a")[0])
	finish(t, s, first, completed)
	run(t, s, `UPDATE sessions SET due_at = NULL`, `DELETE FROM outbox`)
	ask := postgres.ExecutionRequest{Sandbox: first.Sandbox.ID, Command: "ls", Key: "key"}
	made, fresh, events, err := s.RequestExecution(ctx, ask)
	if err != nil || !fresh || len(events) != 1 || events[0].Payload.Execution != made.ID || made.Session != "ses_a" || made.Cause != harness.CauseAPI || made.CauseID != "key" {
		t.Fatalf("%+v %v %+v %v", made, fresh, events, err)
	}
	if again, fresh, events, err := s.RequestExecution(ctx, ask); err != nil || fresh || len(events) != 0 || again.ID != made.ID {
		t.Errorf("again: %+v %v %v %v", again, fresh, events, err)
	}
	if max := value[int](t, s, `SELECT max_sandboxes FROM executions WHERE execution_id = $1`, made.ID); max != 2 {
		t.Errorf("the cap is %d", max)
	}
	_, _, _, err = s.RequestExecution(ctx, postgres.ExecutionRequest{Sandbox: first.Sandbox.ID, Command: "rm", Key: "key"})
	kindOf(t, err, harness.Conflict)
	c := claimExecution(t, s, made.ID)
	acquire(t, s, c, postgres.PlaceRun)
	if err := s.StoreOutput(ctx, c, []postgres.OutputPiece{{Stream: "stdout", Start: 0, Data: []byte("file\n")}}); err != nil {
		t.Fatal(err)
	}
	for _, e := range finish(t, s, c, postgres.ExecutionOutcome{State: harness.ExecutionCompleted, StdoutBytes: 5}) {
		if e.Type == event.ExecutionFinished {
			t.Errorf("the session is woken: %+v", e)
		}
	}
	if value[bool](t, s, `SELECT due_at IS NOT NULL FROM sessions`) {
		t.Error("the session is due because of it")
	}
	run(t, s, `UPDATE sandboxes SET state = 'TERMINATING'`)
	_, _, _, err = s.RequestExecution(ctx, postgres.ExecutionRequest{Sandbox: first.Sandbox.ID, Command: "ls", Key: "late"})
	kindOf(t, err, harness.Conflict)
	_, _, _, err = s.RequestExecution(ctx, postgres.ExecutionRequest{Sandbox: "sbx_none", Command: "ls", Key: "none"})
	kindOf(t, err, harness.NotFound)
}

// What a command printed is read by offset; where not all was kept, its end is.
func TestReadOutput(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	c := runIn(t, s, commands(t, s, 1, "ses_a")[0])
	if err := s.StoreOutput(ctx, c, []postgres.OutputPiece{{Stream: "stdout", Start: 0, Data: []byte("0123456789")}, {Stream: "stdout", Start: 10, Data: []byte("abcdef")}}); err != nil {
		t.Fatal(err)
	}
	read := func(offset int64, max int) string {
		t.Helper()
		o, err := s.ReadOutput(ctx, c.ID, "stdout", offset, max)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%d %s %d/%d %v", o.Offset, o.Data, o.Next, o.Total, o.Ended)
	}
	for _, r := range []struct {
		offset int64
		max    int
		want   string
	}{
		{0, 100, "0 0123456789abcdef 16/16 false"}, {8, 4, "8 89ab 12/16 false"}, {16, 4, "16  16/16 false"}, {20, 4, "20  20/16 false"}, {3, 2, "3 34 5/16 false"},
	} {
		if got := read(r.offset, r.max); got != r.want {
			t.Errorf("%d+%d: %q, want %q", r.offset, r.max, got, r.want)
		}
	}
	finish(t, s, c, postgres.ExecutionOutcome{State: harness.ExecutionCompleted, StdoutBytes: 1000, StdoutTail: []byte("the end")})
	for _, r := range []struct {
		offset int64
		max    int
		want   string
	}{
		{10, 100, "10 abcdef 16/1000 false"}, {16, 100, "993 the end 1000/1000 true"}, {16, 3, "993 the 996/1000 false"}, {996, 9, "996  end 1000/1000 true"}, {1000, 9, "1000  1000/1000 true"},
	} {
		if got := read(r.offset, r.max); got != r.want {
			t.Errorf("ended, %d+%d: %q, want %q", r.offset, r.max, got, r.want)
		}
	}
	_, err := s.ReadOutput(ctx, "exe_none", "stdout", 0, 1)
	kindOf(t, err, harness.NotFound)
	_, err = s.ReadOutput(ctx, c.ID, "stdin", 0, 1)
	kindOf(t, err, harness.Invalid)
}

// A replay has the identity of what was lost: what is done stays done, what is
// not is due at once.
func TestReplayOfDeadLetters(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	accepted := arrive(t, s, "a")[0]
	lost := event.Event{
		ID: "message.received:" + string(accepted.Message), Type: event.MessageReceived, Session: accepted.Session, Agent: "coder", Channel: harness.ChannelWebhook,
		Payload: event.Payload{Session: accepted.Session, Message: accepted.Message},
	}
	if state, err := s.PutDeadLetter(ctx, postgres.DeadLetter{Event: lost, Destination: "http://agent-step", StatusCode: 500}); err != nil || state != postgres.DeadLetterOpen {
		t.Fatal(state, err)
	}
	run(t, s, `UPDATE sessions SET due_at = now() + interval '1 hour', retry_at = now() + interval '1 hour'`)
	letters, err := s.ListDeadLetters(ctx, postgres.DeadLetterFilter{States: []postgres.DeadLetterState{postgres.DeadLetterOpen}, Type: string(event.MessageReceived)}, view.Place{}, 10)
	if err != nil || len(letters) != 1 || !strings.Contains(string(letters[0].Payload), `"session": "`+string(accepted.Session)+`"`) {
		t.Fatal(letters, err)
	}
	letter, again, err := s.ReplayDeadLetter(ctx, letters[0].ID, postgres.Audit{Actor: "ann"})
	if err != nil || letter.State != "REPLAYED" || letter.DecidedBy != "ann" {
		t.Fatal(letter, err)
	}
	if diff := cmp.Diff(lost, again); diff != "" {
		t.Error(diff)
	}
	claim, err := s.ClaimSession(ctx, accepted.Session, lease)
	if err != nil {
		t.Fatal("the session is not due: ", err)
	}
	if _, err := s.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionIdle, Start: true, Reply: []string{"done"}, Step: &postgres.NewStep{ID: "stp_1", Text: "done"}}); err != nil {
		t.Fatal(err)
	}
	tables := []string{"sessions", "messages", "replies", "steps", "outbox", "executions"}
	before := postgrestest.Dump(t, s, tables...)
	if _, _, err := s.ReplayDeadLetter(ctx, letter.ID, postgres.Audit{Actor: "ben"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ClaimSession(ctx, accepted.Session, lease); !errors.Is(err, postgres.ErrNothingDue) {
		t.Errorf("work that is done is done again: %v", err)
	}
	if diff := cmp.Diff(before, postgrestest.Dump(t, s, tables...)); diff != "" {
		t.Errorf("a replay of what is done changed (-before +after):\n%s", diff)
	}
	if letter, err = s.DiscardDeadLetter(ctx, letter.ID, postgres.Audit{Actor: "ann"}); err != nil || letter.State != "DISCARDED" {
		t.Fatal(letter, err)
	}
	_, err = s.DiscardDeadLetter(ctx, letter.ID, postgres.Audit{Actor: "ann"})
	kindOf(t, err, harness.Conflict)
	_, _, err = s.ReplayDeadLetter(ctx, letter.ID, postgres.Audit{Actor: "ann"})
	kindOf(t, err, harness.Conflict)
	_, _, err = s.ReplayDeadLetter(ctx, 99, postgres.Audit{Actor: "ann"})
	kindOf(t, err, harness.NotFound)
	if _, err := s.PutDeadLetter(ctx, postgres.DeadLetter{Event: event.Event{ID: "1", Type: event.Ping}, Destination: "d"}); err != nil {
		t.Fatal(err)
	}
	_, _, err = s.ReplayDeadLetter(ctx, value[int64](t, s, `SELECT max(dead_letter_id) FROM dead_letters`), postgres.Audit{Actor: "ann"})
	kindOf(t, err, harness.Conflict)
}
