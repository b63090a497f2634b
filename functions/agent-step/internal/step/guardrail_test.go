package step_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/guard"
	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/secret"
)

// guardedBench is an agent with guardrails whose model is scripted, for itself and
// as a judge.
func guardedBench(t *testing.T, g *harness.Guardrails, answers ...any) *bench {
	t.Helper()
	agent := coder()
	agent.Guardrails = g
	b := newBench(t, agent, answers...)
	guards := guard.New(guard.Options{Model: b.model, Secrets: secret.Environment(func(string) string { return "" })})
	t.Cleanup(guards.Close)
	b.step = step.New(step.Options{
		Store: b.store, Model: b.model, Guard: guards, Log: slog.New(slog.DiscardHandler), ContextTokens: 10_000, Publish: b.published,
		Lease: postgres.Lease{Owner: "test", For: time.Minute}, Secrets: []harness.Secret{"top-secret-value"}, Prices: map[string]harness.Price{"judge": {Input: 1e6, Output: 2e6}},
	})
	return b
}

func deny(name string, patterns ...string) harness.Guardrail {
	return harness.Guardrail{Name: name, Type: harness.GuardrailPattern, Action: harness.GuardrailBlock, Patterns: patterns}
}

func black(name string, patterns ...string) harness.Guardrail {
	return harness.Guardrail{Name: name, Type: harness.GuardrailPattern, Action: harness.GuardrailRedact, Patterns: patterns}
}

func historyOf(r model.Request) string { return fmt.Sprintf("%+v", r.Turns) }

func TestWhatIsBlockedIsInNoHistory(t *testing.T) {
	b := guardedBench(t, &harness.Guardrails{Input: []harness.Guardrail{deny("in", "poison")}, Output: []harness.Guardrail{deny("out", "venom")}}, says("some venom"), says("well"))
	b.say("1", "here is poison")
	b.wake()
	if got := b.state(); got != "IDLE" || len(b.model.asked) != 0 {
		t.Fatalf("state %s, asked %d times", got, len(b.model.asked))
	}
	b.say("2", "and now?")
	b.wake()
	b.say("3", "and then?")
	b.wake()
	got := historyOf(b.model.asked[1])
	for _, word := range []string{"poison", "venom"} {
		if strings.Contains(got, word) {
			t.Errorf("the model sees %q: %s", word, got)
		}
	}
	for _, words := range []string{"A guardrail withheld it.", "I cannot take this message", "and now?", "I have an answer, but"} {
		if !strings.Contains(got, words) {
			t.Errorf("the history lacks %q: %s", words, got)
		}
	}
	if kept := b.text(`SELECT text FROM messages WHERE direction = 'INBOUND' ORDER BY seq LIMIT 1`); kept != "here is poison" {
		t.Errorf("operators see %q", kept)
	}
}

// A message that nobody screened, since a person answered it or a limit was used
// up, is judged when a model is to see it.
func TestWhatNobodyScreenedIsJudgedLater(t *testing.T) {
	b := guardedBench(t, only(harness.StageInput, deny("in", "poison")), says("hello"), says("well"))
	b.say("1", "hello")
	b.wake()
	if _, err := b.store.PauseSession(t.Context(), b.session, postgres.Audit{Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	b.say("2", "a person gets poison")
	if _, _, _, err := b.store.Reply(t.Context(), postgres.PersonReply{Session: b.session, Text: "Thanks.", Author: "ann", Key: "k"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.store.UnpauseSession(t.Context(), b.session, postgres.Audit{Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	b.say("3", "and now?")
	b.wake()
	got := historyOf(b.model.asked[1])
	if strings.Contains(got, "poison") || !strings.Contains(got, "Thanks.") || !strings.Contains(got, "and now?") {
		t.Errorf("the model sees %s", got)
	}
	if rows := b.text(`SELECT string_agg(verdict, ',' ORDER BY guardrail_verdict_id) FROM guardrail_verdicts`); !slices.Contains([]string{"PASSED,HIT,PASSED", "PASSED,PASSED,HIT"}, rows) {
		t.Errorf("verdicts %s", rows)
	}
}

// A block that is off is in no revision: from the next step on nothing of it holds,
// and once it is on again it does.
func TestGuardrailsAreSwitchedBetweenTwoSteps(t *testing.T) {
	on := &harness.Guardrails{ToolOutput: []harness.Guardrail{deny("out", "poison")}, ToolCall: []harness.Guardrail{deny("call", "^rm")}}
	b := guardedBench(t, on, calls(`{"command": "rm x"}`), calls(`{"command": "rm y"}`), calls(`{"command": "rm z"}`), says("done"))
	b.say("1", "go")
	b.wake()
	b.guarded(nil)
	b.wake()
	if got := b.text(`SELECT string_agg(state, ',' ORDER BY created_at, tool_call_id) FROM tool_calls`); got != "DENIED,RUNNING" {
		t.Fatalf("calls %s, want the first denied by what was on, the second made", got)
	}
	b.guarded(on)
	b.finish(harness.ExecutionCompleted, 0, "poison")
	b.wake()
	if got := b.text(`SELECT string_agg(state, ',' ORDER BY created_at, tool_call_id) FROM tool_calls`); got != "DENIED,DONE,DENIED" {
		t.Fatalf("calls %s", got)
	}
	if got := historyOf(b.model.asked[2]); strings.Contains(got, "poison") || !strings.Contains(got, "Withheld") {
		t.Errorf("the model sees %s", got)
	}
	b.wake()
	if got := b.reply(); got != "done" {
		t.Errorf("reply %q", got)
	}
}

// Each guardrail judges what the one before has left, and the first that blocks is
// the last that is asked.
func TestGuardrailsOfAListRunInItsOrder(t *testing.T) {
	b := guardedBench(t, only(harness.StageInput, black("one", "secret-[0-9]+"), deny("two", "secret-[0-9]+"), deny("three", "bad"), deny("four", "bad")), says("ok"))
	b.say("1", "secret-1 is good")
	b.wake()
	if got := b.model.asked[0].Turns[0].Text; got != "[redacted] is good" {
		t.Errorf("the model sees %q", got)
	}
	b.say("2", "bad")
	b.wake()
	if got := b.text(`SELECT string_agg(guardrail || ' ' || verdict, ', ' ORDER BY created_at, guardrail) FROM guardrail_verdicts`); got != "four PASSED, one HIT, three PASSED, two PASSED, one PASSED, three HIT, two PASSED" {
		t.Errorf("verdicts %s", got)
	}
	if got := b.text(`SELECT string_agg(DISTINCT guardrail_result, ', ') FROM agent_execution_logs WHERE message LIKE 'model % answered%'`); got != "redact INPUT/one" {
		t.Errorf("the log of the step says %q", got)
	}
}

// What a guardrail asks about is an approval like any other; what a human writes
// instead is judged before it runs.
func TestAHumanIsAskedByAGuardrail(t *testing.T) {
	ask := deny("push", "^git push")
	ask.Action = harness.GuardrailAsk
	for name, c := range map[string]struct {
		arguments string
		state     string
		command   string
	}{
		"as it is":               {"", "RUNNING", "git push origin main"},
		"another one":            {`{"command": "git push origin test"}`, "RUNNING", "git push origin test"},
		"another that is denied": {`{"command": "git push --force"}`, "DENIED", ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := guardedBench(t, only(harness.StageToolCall, ask, deny("force", "--force")), calls(`{"command": "git push origin main"}`), says("done"))
			b.say("1", "push it")
			b.wake()
			a := b.text(`SELECT approval_id || ' ' || digest FROM approvals WHERE state = 'PENDING' AND context->>'Guardrail' = 'push' AND approvers::text LIKE '%user%'`)
			id, digest, _ := strings.Cut(a, " ")
			b.exec(`UPDATE approvals SET approvers = '[{"user": "ann"}]'`)
			d := postgres.Decision{ID: harness.ApprovalID(id), State: harness.ApprovalApproved, By: "ann", Via: harness.ChannelAPI, Digest: digest}
			if c.arguments != "" {
				d.Arguments = json.RawMessage(c.arguments)
			}
			if _, _, err := b.store.DecideApproval(t.Context(), d); err != nil {
				t.Fatal(err)
			}
			b.wake()
			if got := b.text(`SELECT state FROM tool_calls`); got != c.state {
				t.Errorf("the call is %s, want %s", got, c.state)
			}
			if got := b.text(`SELECT COALESCE(max(command), '') FROM executions`); got != c.command {
				t.Errorf("it runs %q, want %q", got, c.command)
			}
		})
	}
}

func TestAnOfferIsAnAnswer(t *testing.T) {
	offer := model.Response{Stop: model.StopToolCalls, Text: "venom-1", Calls: []model.Call{{ID: "c1", Name: harness.ToolOfferChoices, Arguments: `{"text": "Which?", "choices": [{"title": "venom-1"}, {"title": "tea"}]}`}}}
	for name, c := range map[string]struct {
		guardrail harness.Guardrail
		want      string
		choices   string
	}{
		"passed":   {deny("out", "coffee"), "Which?", "2"},
		"blocked":  {deny("out", "venom"), "I have an answer, but a rule that my operator has set does not let me send it.", "0"},
		"redacted": {black("out", "venom-[0-9]"), "Which?\n[redacted]\ntea", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			b := guardedBench(t, only(harness.StageOutput, c.guardrail), offer, says("ok"))
			b.say("1", "offer")
			b.wake()
			if got := b.reply(); got != c.want {
				t.Errorf("reply %q, want %q", got, c.want)
			}
			if got := b.text(`SELECT jsonb_array_length(choices)::text FROM replies`); got != c.choices {
				t.Errorf("%s choices, want %s", got, c.choices)
			}
			b.say("2", "and?")
			b.wake()
			if got := historyOf(b.model.asked[1]); strings.Contains(got, "venom") != (c.choices == "2") {
				t.Errorf("history %s", got)
			}
		})
	}
}

// Files go where the words go that they came with.
func TestFilesAreHeldBackWithTheirMessageAndAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		text, file string
		in, told   string
		reply      string
		out        string
	}{
		"all well":          {"look", "a.txt", "OFFERED", "/workspace/in/", "fine", "1"},
		"text is blocked":   {"poison", "a.txt", "FAILED", "", "I cannot take this message: it is against a rule that my operator has set.", ""},
		"name is blocked":   {"look", "poison.txt", "FAILED", "", "I cannot take this message: it is against a rule that my operator has set.", ""},
		"name is redacted":  {"look", "secret-7.txt", "FAILED", "look", "fine", "1"},
		"answer is blocked": {"look", "a.txt", "OFFERED", "/workspace/in/", "I have an answer, but a rule that my operator has set does not let me send it.", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			g := &harness.Guardrails{Input: []harness.Guardrail{deny("in", "poison"), black("secrets", "secret-[0-9]")}}
			if name == "answer is blocked" {
				g.Output = []harness.Guardrail{deny("out", "fine")}
			}
			b := guardedBench(t, g, says("fine"))
			b.say("1", c.text)
			b.exec(`INSERT INTO attachments (attachment_id, session_id, message_id, direction, kind, file_name, mime_type, path, state)
				SELECT 'att_in', session_id, message_id, 'INBOUND', 'DOCUMENT', $1, 'text/plain', 'in/' || $1, 'OFFERED' FROM messages`, c.file)
			b.exec(`INSERT INTO attachments (attachment_id, session_id, direction, kind, file_name, path, state, object_key) SELECT 'att_out', session_id, 'OUTBOUND', 'DOCUMENT', 'o', 'out/o', 'STORED', 'k' FROM sessions`)
			b.wake()
			if got := b.text(`SELECT state FROM attachments WHERE attachment_id = 'att_in'`); got != c.in {
				t.Errorf("the file is %s, want %s", got, c.in)
			}
			if got := b.reply(); got != c.reply {
				t.Errorf("reply %q, want %q", got, c.reply)
			}
			if c.told != "" {
				if got := b.model.asked[0].Turns[0].Text; !strings.Contains(got, c.told) || strings.Contains(got, "secret-7") {
					t.Errorf("the model is told %q", got)
				}
			}
			if got := b.text(`SELECT count(*)::text FROM replies WHERE kind = 'FILE'`); c.out != "" && got != c.out {
				t.Errorf("%s files go out, want %s", got, c.out)
			}
		})
	}
}

// Whoever lost the lease while a guardrail judged writes nothing; who takes over
// judges again.
func TestALeaseLostWhileJudgingWritesNothing(t *testing.T) {
	rail := harness.Guardrail{Name: "judge", Type: harness.GuardrailModel, Action: harness.GuardrailBlock, Prompt: "p", Model: &harness.ModelSpec{Name: "judge", MaxTokens: 10}}
	hit := model.Response{Text: `{"verdict":"hit"}`, Stop: model.StopEnd, Usage: model.Usage{InputTokens: 100, OutputTokens: 10}}
	b := guardedBench(t, only(harness.StageInput, rail), hit, hit)
	b.say("1", "go")
	b.model.before = func() {
		b.model.before = nil
		b.exec(`UPDATE sessions SET lease_token = lease_token + 1, lease_owner = 'other', lease_until = now() + interval '1 hour'`)
	}
	if err := b.step.Session(t.Context(), event.Event{Payload: event.Payload{Session: b.session}}); err != nil {
		t.Fatal(err)
	}
	if got := b.text(`SELECT concat_ws(' ', (SELECT count(*) FROM guardrail_verdicts), (SELECT count(*) FROM guardrail_counts), (SELECT count(*) FROM messages WHERE screened))`); got != "0 0 0" {
		t.Fatalf("written without the lease: %s", got)
	}
	b.exec(`UPDATE sessions SET lease_until = now() - interval '1 second'`)
	b.wake()
	if got := b.text(`SELECT concat_ws(' ', used_tokens, used_cost, used_steps) FROM sessions`); got != "110 120 0" {
		t.Errorf("tokens, cost and steps of the verdict: %s", got)
	}
}

// An agent whose guardrails nobody can judge by is not worked: nothing passes
// unjudged.
func TestWithoutAGuardNothingPasses(t *testing.T) {
	agent := coder()
	agent.Guardrails = only(harness.StageInput, deny("in", "poison"))
	b := newBench(t, agent)
	b.say("1", "hello")
	if err := b.step.Session(t.Context(), event.Event{Payload: event.Payload{Session: b.session}}); err == nil {
		t.Error("it was worked")
	}
	if len(b.model.asked) != 0 {
		t.Error("the model saw it")
	}
}

func TestTheLongestTextAndThePrivateAddress(t *testing.T) {
	http := harness.Guardrail{Name: "inside", Type: harness.GuardrailHTTP, Action: harness.GuardrailBlock, URL: "http://127.0.0.1:1/judge", Failure: harness.GuardrailBlock, Timeout: 5}
	for name, c := range map[string]struct {
		guardrail harness.Guardrail
		text      string
		reason    string
	}{
		"long":    {deny("in", "poison"), strings.Repeat("x", 70_000), "it has 70000 bytes, and more than 65536 are not judged"},
		"private": {http, "hello", "its address is not public"},
	} {
		t.Run(name, func(t *testing.T) {
			b := guardedBench(t, only(harness.StageInput, c.guardrail))
			b.say("1", c.text)
			b.wake()
			if got := b.text(`SELECT verdict || ' ' || action || ': ' || reason FROM guardrail_verdicts`); got != "FAILED block: "+c.reason {
				t.Errorf("got %s", got)
			}
			if len(b.model.asked) != 0 {
				t.Error("the model saw it")
			}
		})
	}
}
