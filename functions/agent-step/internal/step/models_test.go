package step_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

var (
	rejected   = &model.Error{Kind: harness.Denied, Reason: model.ReasonKeyRejected, Message: "the model key was rejected"}
	overloaded = &model.Error{Kind: harness.Unavailable, Reason: model.ReasonOverloaded, Message: "the model provider has a problem"}
	tooLong    = &model.Error{Kind: harness.Invalid, Reason: model.ReasonContextFull, Message: "the conversation is longer than the model can read"}
	comeLater  = &model.Error{Kind: harness.Unavailable, Reason: model.ReasonRateLimited, Message: "slow down", RetryAfter: 30 * time.Second}
)

// chained is an agent with a second and a third model.
func chained() harness.Agent {
	agent := coder()
	agent.Model.Name, agent.Model.Provider = "first", harness.ProviderOpenAI
	agent.Model.Fallbacks = []harness.ModelRef{{Provider: harness.ProviderAnthropic, Name: "second"}, {Name: "third"}}
	return agent
}

// names are the models that were asked, in order.
func (b *bench) names() string {
	var all []string
	for _, r := range b.model.asked {
		all = append(all, r.Agent.Name)
	}
	return strings.Join(all, " ")
}

// due makes what waits due at once.
func (b *bench) due() {
	b.exec(`UPDATE sessions SET retry_at = NULL, due_at = now() WHERE due_at IS NOT NULL`)
}

func TestAnotherModelIsAskedWhenOneFails(t *testing.T) {
	for name, c := range map[string]struct {
		answers []any
		names   string
		reply   string
	}{
		"it refuses":                {[]any{rejected, says("hi")}, "first second", "hi"},
		"the history is too long":   {[]any{tooLong, says("hi")}, "first second", "hi"},
		"a problem that passes":     {[]any{overloaded, says("hi")}, "first first", "hi"},
		"a problem that stays":      {[]any{overloaded, overloaded, says("hi")}, "first first second", "hi"},
		"it asks to wait":           {[]any{comeLater, says("hi")}, "first second", "hi"},
		"two of them refuse":        {[]any{rejected, tooLong, says("hi")}, "first second third", "hi"},
		"all of them refuse":        {[]any{rejected, rejected, tooLong}, "first second third", "longer than my model can read"},
		"one refuses, others crash": {[]any{rejected, overloaded, overloaded, overloaded, overloaded, overloaded, says("hi")}, "first second second third third third third", "hi"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, chained(), c.answers...)
			b.say("1", "hello")
			for range c.answers {
				b.due()
				b.wake()
			}
			if got := b.names(); got != c.names {
				t.Errorf("asked %s, want %s", got, c.names)
			}
			if got := b.reply(); !strings.Contains(got, c.reply) {
				t.Errorf("the reply is %q, want %q", got, c.reply)
			}
			if got := b.text(`SELECT string_agg(model, ' ' ORDER BY model_attempt_id) FROM model_attempts`); got != c.names {
				t.Errorf("the rows say %s, want %s", got, c.names)
			}
			if got := b.text(`SELECT count(DISTINCT step_seq)::text FROM model_attempts`); got != "1" {
				t.Errorf("the attempts belong to %s steps", got)
			}
		})
	}
}

// What was asked is told with the step that it was asked for, and in the log.
func TestAttemptsAreSeenInTheTimeline(t *testing.T) {
	agent := chained()
	b := newBench(t, agent, overloaded, overloaded, model.Response{
		Text: "hi", Stop: model.StopEnd, Model: "second-2026", Usage: model.Usage{InputTokens: 1000, CacheReadTokens: 600, CacheWriteTokens: 100, OutputTokens: 10},
	})
	cached, written := harness.Micros(100_000), harness.Micros(1_250_000)
	b.options.Prices = map[string]harness.Price{"second": {Input: 1_000_000, Output: 5_000_000, CachedInput: &cached, CacheWrite: &written}}
	b.step = step.New(b.options)
	b.say("1", "hello")
	for range 3 {
		b.due()
		b.wake()
	}
	entries, _, err := b.store.Timeline(t.Context(), b.session, view.Place{}, 50)
	if err != nil {
		t.Fatal(err)
	}
	var steps []view.Step
	for _, e := range entries {
		if e.Step != nil {
			steps = append(steps, *e.Step)
		}
	}
	if len(steps) != 1 || steps[0].Model != "second-2026" || steps[0].CacheReadTokens != 600 || steps[0].CacheWriteTokens != 100 {
		t.Fatalf("steps %+v", steps)
	}
	var got []string
	for _, a := range steps[0].ModelAttempts {
		got = append(got, fmt.Sprintf("%s %d %s/%s %q %d %d %q", a.Purpose, a.Attempts, a.Provider, a.Model, a.Reason, a.InputTokens, a.OutputTokens, a.Cost))
	}
	want := []string{`TURN 1 openai/first "OVERLOADED" 0 0 ""`, `TURN 2 openai/first "OVERLOADED" 0 0 ""`, `TURN 1 anthropic/second "" 1000 10 "0.000535"`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := b.text(`SELECT used_cost::text FROM sessions`); got != "535" { // 300 in, 600 kept, 100 to keep, 10 out
		t.Errorf("the session has cost %s", got)
	}
	if got := b.text(`SELECT string_agg(message, E'\n') FROM agent_execution_logs`); !strings.Contains(got, "no answer from the model first (attempt 2), now second is asked") ||
		!strings.Contains(got, "second-2026 (in the place of first) answered") {
		t.Errorf("the log: %s", got)
	}
	usage, err := b.store.ListModelUsage(t.Context(), postgres.UsageFilter{Agent: "coder", Since: time.Now().AddDate(0, 0, -1)}, 10)
	if err != nil {
		t.Fatal(err)
	}
	got = nil
	for _, u := range usage {
		got = append(got, fmt.Sprintf("%s/%s %d %d %d %d %d %d %q %d", u.Provider, u.Model, u.Asked, u.Unanswered, u.InputTokens, u.CacheReadTokens, u.CacheWriteTokens, u.OutputTokens, u.Cost, u.Unpriced))
	}
	want = []string{`anthropic/second 1 0 1000 600 100 10 "0.000535" 0`, `openai/first 2 2 0 0 0 0 "" 2`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if usage, err = b.store.ListModelUsage(t.Context(), postgres.UsageFilter{Agent: "another"}, 10); err != nil || len(usage) > 0 {
		t.Errorf("another agent: %v, %v", usage, err)
	}
}

// A turn begins with the first model, unless that has failed within the last
// minute, in whatever session; and goes on with the one that answered.
func TestTheNextTurnBeginsWithTheFirstModel(t *testing.T) {
	b := newBench(t, chained(), rejected, calls(`{"command": "ls"}`), says("one"), says("two"), says("three"))
	b.say("1", "hello")
	b.wake()
	b.wake()
	b.exec(`UPDATE model_attempts SET created_at = created_at - interval '2 minutes'`)
	b.finish(harness.ExecutionCompleted, 0, "x")
	b.wake() // the same turn
	b.say("2", "again")
	b.wake() // more than a minute after the failure, which is of another turn
	if got := b.names(); got != "first second second first" {
		t.Fatalf("asked %s", got)
	}
	b.exec(`UPDATE model_attempts SET created_at = now(), reason = 'OVERLOADED' WHERE model = 'first'`)
	b.exec(`INSERT INTO model_attempts (session_id, agent_name, message_id, step_seq, attempts, purpose, provider, model, reason, millis)
		SELECT session_id, agent_name, message_id, step_seq, 1, 'TURN', 'openai', 'first', 'OVERLOADED', 1 FROM model_attempts LIMIT 1`)
	if _, _, err := b.store.Accept(t.Context(), harness.ChannelWebhook, postgres.Inbound{Arrivals: []postgres.Arrival{{
		Account: "hook", ProviderID: "3", Chat: "another", Message: harness.Message{ChannelUserID: "user", Text: "hello"},
	}}}, ""); err != nil {
		t.Fatal(err)
	}
	b.session = harness.SessionID(b.text(`SELECT session_id FROM sessions WHERE chat = 'another'`))
	b.wake()
	if got := b.names(); got != "first second second first second" {
		t.Errorf("a session of the same agent asked %s", got)
	}
}

// Where nobody has said what the other model costs, it is not asked for money.
func TestAFallbackWithoutAPriceIsNotAsked(t *testing.T) {
	agent := chained()
	agent.Budget.MaxCost = 5_000_000
	b := newBench(t, agent, rejected)
	b.step = step.New(step.Options{
		Store: b.store, Model: b.model, Log: slog.New(slog.DiscardHandler), ContextTokens: 100_000, Publish: b.published,
		Lease: postgres.Lease{Owner: "test", For: time.Minute}, Prices: map[string]harness.Price{"first": {Input: 1, Output: 1}},
	})
	b.say("1", "hello")
	b.wake()
	b.wake()
	if got := b.reply(); b.names() != "first" || !strings.Contains(got, "no price known for model second") {
		t.Errorf("asked %s, and said %q", b.names(), got)
	}
}
