package step_test

import (
	"testing"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

func asks(text, command string) model.Response {
	return model.Response{Text: text, Stop: model.StopToolCalls, Calls: []model.Call{{ID: "p1", Name: "executeShell", Arguments: `{"command":"` + command + `"}`}}}
}

// The answer of a model that was asked before its agent was halted is kept and not
// acted on: its command waits. The person is told once, and nobody is asked until
// the agent goes on.
func TestAHaltedAgentAsksNobody(t *testing.T) {
	b := newBench(t, coder(), asks("", "ls"))
	b.say("m1", "hello")
	b.model.before = func() {
		if _, _, err := b.store.Halt(t.Context(), "coder", postgres.Audit{Actor: "ann"}, "it loops"); err != nil {
			t.Error(err)
		}
	}
	due := event.Event{Type: event.SessionDue, Payload: event.Payload{Session: b.session}}
	if err := b.step.Session(t.Context(), due); err != nil {
		t.Fatal(err)
	}
	if got := b.text(`SELECT s.state || ' ' || e.state FROM sessions s, executions e`); got != "AWAITING_EXECUTION PENDING" {
		t.Fatal(got)
	}
	b.model.before = nil
	b.say("m2", "are you there?")
	b.events = nil
	for range 2 {
		if err := b.step.Session(t.Context(), due); err != nil {
			t.Fatal(err)
		}
	}
	if len(b.events) != 1 || b.events[0].Type != event.MessageReply {
		t.Errorf("published %+v", b.events)
	}
	if got, want := b.text(`SELECT string_agg(text, '|') FROM replies`), "This agent has been stopped by its operator. Your message waits, and is answered when the agent goes on."; got != want {
		t.Errorf("the person is told %q", got)
	}
	if len(b.model.asked) != 1 {
		t.Errorf("the model was asked %d times", len(b.model.asked))
	}
	if _, _, err := b.store.Resume(t.Context(), "coder", postgres.Audit{Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	b.exec(`UPDATE executions SET state = 'CANCELLED', ended_at = now()`)
	b.model.answers = []any{says("done"), says("I am here")}
	b.wake()
	b.wake()
	if got := b.text(`SELECT string_agg(text, '|' ORDER BY seq) FROM messages WHERE in_reply_to IS NOT NULL`); got != "done|I am here" {
		t.Errorf("answered %q", got)
	}
}

// What a person says in a session that they have taken over is the model's own
// turn to it, also when it was about to run a command.
func TestTheModelReadsWhatAPersonSaid(t *testing.T) {
	b := newBench(t, coder(), asks("I look", "ls"), says("thanks"))
	b.say("m1", "hello")
	b.wake()
	b.say("m2", "hello?")
	ctx := t.Context()
	if _, err := b.store.PauseSession(ctx, b.session, postgres.Audit{Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := b.store.Reply(ctx, postgres.PersonReply{Session: b.session, Text: "Ann here.", Author: "ann", Key: "k"}); err != nil {
		t.Fatal(err)
	}
	b.say("m3", "thank you")
	b.wake()
	if len(b.model.asked) != 1 {
		t.Fatal("the model is asked while a person has the session")
	}
	if _, _, err := b.store.UnpauseSession(ctx, b.session, postgres.Audit{Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	b.wake()
	turns := b.model.asked[1].Turns
	var said []string
	for _, turn := range turns {
		said = append(said, string(turn.Role)+": "+turn.Text)
	}
	want := []string{"user: hello", "assistant: I look", "tool: ", "user: hello?", "assistant: Ann here.", "user: thank you"}
	if len(said) != len(want) {
		t.Fatalf("the model reads %q", said)
	}
	for i := range want {
		if said[i] != want[i] {
			t.Errorf("turn %d: %q, want %q", i, said[i], want[i])
		}
	}
	if turns[1].Role != model.RoleAssistant || b.text(`SELECT state FROM sessions`) != string(harness.SessionIdle) {
		t.Error("the conversation does not go on")
	}
}
