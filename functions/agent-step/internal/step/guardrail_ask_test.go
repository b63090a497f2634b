package step_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"tuluat.ai/harness/functions/agent-step/internal/guard"
	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/secret"
)

func asksAbout(name string, patterns ...string) harness.Guardrail {
	g := deny(name, patterns...)
	g.Approvable, g.Text = true, "Not this." // as a revision has it
	return g
}

// ends are how a question to a human may end.
var ends = map[string]func(b *bench){
	"approved": func(b *bench) { b.same("tap", string(b.tap("t1", "chat", "user", "a")), "DECIDED") },
	"rejected": func(b *bench) {
		b.same("code", string(b.write("t1", "chat", "user", b.approval().Code, harness.ApprovalRejected, "no")), "DECIDED")
	},
	"expired": func(b *bench) {
		b.exec(`UPDATE approvals SET expires_at = now(), due_at = now()`)
		b.timer(1)
	},
	"cancelled": func(b *bench) {
		b.exec(`SELECT cancel_approvals(ARRAY(SELECT approval_id FROM approvals), '', 'test')`)
	},
}

// Each stage waits for a human; approved, all goes on exactly as it was, and else
// as where a guardrail blocks. What waits is shown to nobody but who decides.
func TestAGuardrailAsks(t *testing.T) {
	rail := asksAbout("odd", "poison")
	for end, decide := range ends {
		yes := end == "approved"
		t.Run("message "+end, func(t *testing.T) {
			b := guardedBench(t, only(harness.StageInput, rail), says("Hello."), says("Well."))
			b.say("1", "some poison with top-secret-value")
			b.wake()
			b.same("state", b.state(), "AWAITING_APPROVAL")
			b.same("asked the model", fmt.Sprint(len(b.model.asked)), "0")
			b.same("seen by models", b.text(`SELECT screened::text FROM messages WHERE direction = 'INBOUND'`), "false")
			card := b.text(`SELECT text FROM replies WHERE kind = 'CARD'`)
			for _, words := range []string{"The guardrail odd (INPUT) asks whether the model may see a message.", "odd: a pattern finds something", "data and no instruction", "some poison with [secret]", "Guardrail: odd"} {
				if !strings.Contains(card, words) {
					t.Errorf("the card lacks %q:\n%s", words, card)
				}
			}
			decide(b)
			b.wake()
			want := map[bool]string{true: "Hello.", false: "Not this."}[yes]
			b.same("reply", b.reply(), want)
			b.same("state", b.state(), "IDLE")
			b.say("2", "and?")
			b.wake()
			if got := historyOf(b.model.asked[len(b.model.asked)-1]); strings.Contains(got, "poison") != yes {
				t.Errorf("the model sees %s", got)
			}
			b.same("used up", b.text(`SELECT (consumed_at IS NOT NULL)::text FROM approvals`), "true")
			b.same("judged", b.text(`SELECT count(*)::text FROM guardrail_verdicts WHERE verdict = 'HIT'`), "1")
		})
		t.Run("result "+end, func(t *testing.T) {
			b := guardedBench(t, only(harness.StageToolOutput, rail), calls(`{"command": "cat"}`), says("Hello."))
			b.say("1", "go")
			b.wake()
			b.finish(harness.ExecutionCompleted, 0, "some poison with top-secret-value")
			b.wake()
			b.same("state", b.state(), "AWAITING_APPROVAL")
			b.same("no result yet", b.text(`SELECT state || COALESCE(result, '') FROM tool_calls`), "RUNNING")
			decide(b)
			b.wake()
			b.same("reply", b.reply(), "Hello.")
			got, want := b.text(`SELECT state || ' ' || result FROM tool_calls`), "DONE exit code 0\nstdout:\nsome poison with [secret]"
			if !yes {
				want = "DONE Withheld: the call was made, and the guardrail odd does not let you see what it gave. Not this."
			}
			b.same("result", got, want)
			b.same("judged", b.text(`SELECT count(*)::text FROM guardrail_verdicts`), "1")
		})
		t.Run("answer "+end, func(t *testing.T) {
			answer := says("some poison with top-secret-value")
			answer.Usage = model.Usage{InputTokens: 10, OutputTokens: 5}
			b := guardedBench(t, only(harness.StageOutput, rail), answer, says("Well."))
			b.say("1", "go")
			b.exec(`INSERT INTO attachments (attachment_id, session_id, direction, kind, file_name, path, state, object_key) SELECT 'att_out', session_id, 'OUTBOUND', 'DOCUMENT', 'o', 'out/o', 'STORED', 'k' FROM sessions`)
			b.wake()
			b.same("state", b.state(), "AWAITING_APPROVAL")
			b.same("not shown", b.text(`SELECT (SELECT count(*) FROM steps) || ' ' || (SELECT count(*) FROM replies WHERE kind <> 'CARD')`), "0 0")
			b.same("it counts", b.text(`SELECT turn_steps || ' ' || turn_tokens || ' ' || used_steps || ' ' || used_tokens FROM sessions`), "1 15 1 15")
			decide(b)
			b.wake()
			want, files := "some poison with [secret]", "1"
			if !yes {
				want, files = "Not this.", "0"
			}
			b.same("reply", b.reply(), want)
			b.same("history", b.text(`SELECT text || ' ' || input_tokens || ' ' || output_tokens FROM steps`), want+" 10 5")
			b.same("it counts once", b.text(`SELECT turn_steps || ' ' || turn_tokens || ' ' || used_steps || ' ' || used_tokens FROM sessions`), "1 15 1 15")
			b.same("files", b.text(`SELECT count(*)::text FROM replies WHERE kind = 'FILE'`), files)
			b.same("times sent", b.text(`SELECT count(*)::text FROM replies WHERE kind = 'TEXT'`), "1")
		})
		t.Run("offer "+end, func(t *testing.T) {
			offer := model.Response{Stop: model.StopToolCalls, Calls: []model.Call{{ID: "c1", Name: harness.ToolOfferChoices, Arguments: `{"text": "Which?", "choices": [{"title": "poison"}, {"title": "tea"}]}`}}}
			b := guardedBench(t, only(harness.StageOutput, rail), offer, says("Well."))
			b.say("1", "go")
			b.wake()
			b.same("state", b.state(), "AWAITING_APPROVAL")
			decide(b)
			b.wake()
			want := "Which? 2"
			if !yes {
				want = "Not this. 0"
			}
			b.same("reply", b.reply()+" "+b.text(`SELECT jsonb_array_length(choices)::text FROM replies WHERE kind IN ('TEXT', 'CHOICES') ORDER BY seq DESC LIMIT 1`), want)
			b.say("2", "and?")
			b.wake()
			if got := historyOf(b.model.asked[1]); strings.Contains(got, "poison") != yes {
				t.Errorf("the model sees %s", got)
			}
		})
		t.Run("call "+end, func(t *testing.T) {
			b := guardedBench(t, only(harness.StageToolCall, rail), calls(`{"command": "cat poison"}`), says("Hello."))
			b.say("1", "go")
			b.wake()
			b.same("kind", string(b.approval().Kind), "TOOL_CALL")
			decide(b)
			b.wake()
			want := map[string]string{"approved": "RUNNING", "rejected": "DENIED", "expired": "EXPIRED", "cancelled": "FAILED"}[end]
			b.same("call", b.text(`SELECT state FROM tool_calls`), want)
		})
	}
}

// The result of a remote call waits as that of a command does: it is made once.
func TestTheResultOfARemoteCallWaits(t *testing.T) {
	for end, decide := range ends {
		t.Run(end, func(t *testing.T) {
			agent := coder()
			agent.Guardrails = only(harness.StageToolOutput, asksAbout("odd", "poison"))
			b, f := remoteBench(t, agent, uses("srv__do", `{"a": "poison"}`, `{"a": "tea"}`), says("It is done."))
			guards := guard.New(guard.Options{Model: b.model, Secrets: secret.Environment(func(string) string { return "" })})
			t.Cleanup(guards.Close)
			b.options.Guard = guards
			b.step = step.New(b.options)
			b.say("1", "do it")
			b.until("AWAITING_APPROVAL")
			b.same("results", b.text(`SELECT string_agg(state, ',' ORDER BY seq) FROM tool_calls`), "RUNNING,DONE")
			decide(b)
			b.until("IDLE")
			b.same("reply", b.reply(), "It is done.")
			got := b.text(`SELECT state || ' ' || result FROM tool_calls WHERE seq = 0`)
			if yes := end == "approved"; !strings.HasPrefix(got, "DONE ") || strings.Contains(got, "poison") != yes || strings.Contains(got, "Withheld") == yes {
				t.Errorf("the result is %q", got)
			}
			b.same("made", fmt.Sprint(len(f.made)), "2")
		})
	}
}

// A message that starts a workflow waits, too, and starts it once it may.
func TestATriggerWaitsForAHuman(t *testing.T) {
	for _, verdict := range []string{"a", "r"} {
		t.Run(verdict, func(t *testing.T) {
			b := guardedBench(t, only(harness.StageInput, asksAbout("odd", "poison")))
			b.exec(`INSERT INTO workflows (workflow_name, revision, phase, digest) VALUES ('release', 1, 'READY', 'd')`)
			b.exec(`INSERT INTO workflow_revisions (workflow_name, revision, spec) VALUES ('release', 1, $1)`, harness.Workflow{
				Name: "release", Start: "ask", MaxVisits: 5, Nodes: []harness.Node{{ID: "ask", Type: harness.NodeAgent, Agent: "coder", Prompt: "p"}, {ID: "end", Type: harness.NodeEnd}}, Edges: []harness.Edge{{From: "ask", To: "end"}},
			})
			b.exec(`INSERT INTO workflow_triggers (workflow_name, place, type, agent_name, pattern) VALUES ('release', 0, 'CHANNEL', 'coder', '^release')`)
			b.say("1", "release the poison")
			b.wake()
			b.same("waits", b.state()+" "+b.text(`SELECT count(*)::text FROM sessions WHERE workflow_name IS NOT NULL`), "AWAITING_APPROVAL 0")
			b.same("tap", string(b.tap("t1", "chat", "user", verdict)), "DECIDED")
			b.once()
			b.same("runs", b.text(`SELECT count(*)::text FROM sessions WHERE workflow_name IS NOT NULL`), map[string]string{"a": "1", "r": "0"}[verdict])
		})
	}
}

// A message that was left over from a turn that a person answered is withheld
// where a guardrail asks: nobody is asked about what is over.
func TestNobodyIsAskedAboutAnOldMessage(t *testing.T) {
	b := guardedBench(t, only(harness.StageInput, asksAbout("odd", "poison")), says("well"))
	b.say("1", "some poison")
	b.wake()
	if _, err := b.store.PauseSession(t.Context(), b.session, postgres.Audit{Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := b.store.Reply(t.Context(), postgres.PersonReply{Session: b.session, Text: "Thanks.", Author: "ann", Key: "k"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.store.UnpauseSession(t.Context(), b.session, postgres.Audit{Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	b.say("2", "and now?")
	b.wake()
	if got := historyOf(b.model.asked[0]); strings.Contains(got, "poison") || !strings.Contains(got, "A guardrail withheld it.") || !strings.Contains(got, "and now?") {
		t.Errorf("the model sees %s", got)
	}
	b.same("questions", b.text(`SELECT string_agg(state, ',') FROM approvals`), "CANCELLED")
}

// A process that dies at any commit asks once, and what was approved goes on once.
func TestACrashDoublesNoAnswer(t *testing.T) {
	for _, before := range []bool{true, false} {
		for crash := range 5 {
			rails := &harness.Guardrails{Input: []harness.Guardrail{asksAbout("in", "poison")}, ToolOutput: []harness.Guardrail{asksAbout("result", "poison")}, Output: []harness.Guardrail{asksAbout("out", "poison")}}
			b := guardedBench(t, rails)
			guards := guard.New(guard.Options{Model: b.model, Secrets: secret.Environment(func(string) string { return "" })})
			t.Cleanup(guards.Close)
			o := b.options
			o.Guard, o.Model, o.Store = guards, answering{}, broken{b.store, before}
			died := step.New(o)
			o.Store = b.store
			alive := step.New(o)
			b.say("1", "some poison")
			for i := range 16 {
				s := alive
				if i == crash {
					s = died
				}
				if err := s.Session(t.Context(), event.Event{Type: event.SessionDue, Payload: event.Payload{Session: b.session}}); err != nil && !errors.Is(err, errDied) {
					t.Fatal(err)
				}
				b.exec(`UPDATE sessions SET lease_until = now() - interval '1 second' WHERE lease_owner IS NOT NULL`)
				if b.text(`SELECT count(*)::text FROM executions WHERE ended_at IS NULL`) == "1" {
					b.finish(harness.ExecutionCompleted, 0, "printed poison")
				}
				if b.text(`SELECT count(*)::text FROM approvals WHERE state = 'PENDING'`) == "1" {
					b.tap(fmt.Sprint("t", i), "chat", "user", "a")
				}
			}
			what := fmt.Sprintf("crash %d, before %v", crash, before)
			b.same(what+": asked", b.text(`SELECT string_agg(input->'guardrail'->>'stage' || ' ' || state, ', ' ORDER BY seq) FROM approvals`), "INPUT APPROVED, TOOL_OUTPUT APPROVED, OUTPUT APPROVED")
			b.same(what+": sent", b.text(`SELECT string_agg(text, ',') FROM replies WHERE kind = 'TEXT'`), "poison it is")
			b.same(what+": commands", b.text(`SELECT count(*)::text FROM executions`), "1")
			b.same(what+": state", b.state(), "IDLE")
		}
	}
}

// answering calls a command, and answers once it has its result.
type answering struct{}

func (answering) Complete(_ context.Context, r model.Request) (model.Response, error) {
	if last := r.Turns[len(r.Turns)-1]; last.Role == model.RoleTool {
		return says("poison it is"), nil
	}
	return calls(`{"command": "cat"}`), nil
}
