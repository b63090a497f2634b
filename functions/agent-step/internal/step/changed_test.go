package step_test

import (
	"slices"
	"strings"
	"testing"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// changes are the session.changed published since the last call.
func (b *bench) changes() int {
	n := 0
	for _, e := range b.events {
		if e.Type == event.SessionChanged {
			n++
			if e.Session != b.session || e.Agent != "coder" || !strings.HasPrefix(e.ID, "session.changed:"+string(b.session)+":") {
				b.t.Errorf("%+v", e)
			}
		}
	}
	b.events = nil
	return n
}

// One event when a turn begins and one when it ends, one for both at once, and
// none for what is between.
func TestATurnSaysThatItBeginsAndEnds(t *testing.T) {
	b := newBench(t, coder(), calls(`{"command": "echo 1"}`), calls(`{"command": "echo 2"}`), says("Done."), says("Hello."))
	b.say("1", "count")
	for i, want := range []int{1, 0, 1} {
		b.wake()
		if got := b.changes(); got != want {
			t.Errorf("step %d: %d events, want %d", i, got, want)
		}
		if i < 2 {
			b.finish(harness.ExecutionCompleted, 0, "n\n")
		}
	}
	b.say("2", "hello")
	b.wake()
	if got := b.changes(); got != 1 {
		t.Errorf("a turn of one step: %d events", got)
	}
}

// An agent whose text was refused from the start answers every message once with
// what is to be mended: no question to a model, no command.
func TestARefusedAgentSaysWhatToMend(t *testing.T) {
	b := newBench(t, coder())
	b.exec(`DELETE FROM agent_revisions`)
	b.exec(`UPDATE agents SET revision = 0, phase = 'INVALID', reason = 'spec.harness.sandbox.imageRef is "perl": use java, python, node or golang'
		|| E'\nRouteConflict: WEBHOOK x belongs to the agent payroll: name another account here'`)
	for _, id := range []string{"1", "2"} {
		b.say(id, "hello "+id)
		b.wake()
	}
	answers := b.text(`SELECT string_agg(text, '|') FROM replies`)
	want := `This agent is not set up: spec.harness.sandbox.imageRef is "perl": use java, python, node or golang`
	if answers != want+"|"+want || b.state() != "FAILED" || b.text(`SELECT count(*)::text FROM executions`) != "0" {
		t.Errorf("answers %q, state %s", answers, b.state())
	}
	b.exec(`UPDATE agents SET reason = $1`, strings.Repeat("line é\n", 1000))
	b.say("3", "hello")
	b.wake()
	if got := b.reply(); len(got) > 2000 || !strings.HasSuffix(got, "…") || slices.Contains([]rune(got), '\uFFFD') {
		t.Errorf("a long list: %d bytes, %q", len(got), got)
	}
	// Mended: the next message is answered by the model.
	b.exec(`INSERT INTO agent_revisions (agent_name, revision, spec) SELECT 'coder', 1, '{"name": "coder", "budget": {"maxSteps": 5, "maxSeconds": 60, "maxTokens": 100000, "maxToolCalls": 1}}'`)
	b.exec(`UPDATE agents SET revision = 1, phase = 'READY', reason = ''`)
	b.model.answers = []any{says("Hi.")}
	b.say("4", "hello")
	b.wake()
	if got := b.reply(); got != "Hi." || b.state() != "IDLE" {
		t.Errorf("mended: %q", got)
	}
}

// An event that asks for a look at Secrets names no agent: it is nothing to us,
// and no failure that a broker would deliver again.
func TestAStatusEventOfNoAgentIsNothing(t *testing.T) {
	b := newBench(t, coder())
	b.say("1", "hello")
	before := b.text(`SELECT string_agg(s::text, '|') FROM sessions s`)
	if err := b.step.AgentStatusChanged(t.Context(), event.Event{ID: "1", Type: event.AgentStatusChanged}); err != nil {
		t.Error(err)
	}
	if after := b.text(`SELECT string_agg(s::text, '|') FROM sessions s`); after != before {
		t.Errorf("%s became %s", before, after)
	}
}

// A sandbox that could not be had is the command's result, and the turn ends in
// an answer.
func TestACommandWithoutASandboxEndsInAnAnswer(t *testing.T) {
	b := newBench(t, coder(), calls(`{"command": "true"}`), says("I have no sandbox."))
	b.say("1", "do it")
	b.wake()
	b.exec(`UPDATE executions SET state = 'FAILED', reason = 'no sandbox could be had: the image example.org/no cannot be pulled; nothing was started', ended_at = now(), due_at = NULL`)
	b.exec(`UPDATE sessions SET due_at = now()`)
	b.wake()
	if got := b.text(`SELECT result FROM tool_calls`); !strings.Contains(got, "the image example.org/no cannot be pulled") {
		t.Errorf("the model is told %q", got)
	}
	if b.reply() != "I have no sandbox." || b.state() != "IDLE" {
		t.Errorf("reply %q, state %s", b.reply(), b.state())
	}
}
