package step_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/functions/agent-step/internal/steptest"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// scripted answers the questions of a test in order and refuses what a strict
// provider refuses: a history that is not well paired.
type scripted struct {
	mu      sync.Mutex
	t       *testing.T
	answers []any // model.Response or error
	asked   []model.Request
	before  func() // runs while the question is in flight
}

func (s *scripted) Complete(_ context.Context, r model.Request) (model.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	checkPaired(s.t, r.Turns)
	s.asked = append(s.asked, r)
	if s.before != nil {
		s.before()
	}
	if len(s.answers) == 0 {
		s.t.Fatalf("unexpected question: %+v", r.Turns[len(r.Turns)-1])
	}
	next := s.answers[0]
	s.answers = s.answers[1:]
	if err, ok := next.(error); ok {
		return model.Response{}, err
	}
	return next.(model.Response), nil
}

func checkPaired(t *testing.T, turns []model.Turn) {
	t.Helper()
	for i, turn := range turns {
		if len(turn.Calls) == 0 {
			continue
		}
		if i+1 >= len(turns) || len(turns[i+1].Results) != len(turn.Calls) {
			t.Fatalf("turn %d has calls without results", i)
		}
		for k, call := range turn.Calls {
			if turns[i+1].Results[k].CallID != call.ID || turns[i+1].Results[k].Text == "" {
				t.Fatalf("call %s has no result", call.ID)
			}
		}
	}
}

// bench is a bench whose model refuses what is not well paired, and whose events are
// kept.
type bench struct {
	*steptest.Bench
	t       *testing.T
	store   *postgres.Store
	model   *scripted
	options step.Options
	step    *step.Stepper
	events  []event.Event
	session harness.SessionID
}

func newBench(t *testing.T, agent harness.Agent, answers ...any) *bench {
	t.Helper()
	shared := steptest.New(t, agent)
	b := &bench{Bench: shared, t: t, store: shared.Store, model: &scripted{t: t, answers: answers}}
	b.options = step.Options{
		Store: b.store, Model: b.model, Log: slog.New(slog.DiscardHandler), ContextTokens: 10_000,
		Publish: b.published,
		Lease:   postgres.Lease{Owner: "test", For: time.Minute}, Secrets: []harness.Secret{"top-secret-value"},
	}
	b.step = step.New(b.options)
	return b
}

func (b *bench) published(_ context.Context, events ...event.Event) {
	b.events = append(b.events, events...)
}

func coder() harness.Agent {
	agent := steptest.Coder(harness.HarnessBoth)
	agent.SystemPrompt = "Be brief."
	return agent
}

func (b *bench) exec(sql string, args ...any) { b.t.Helper(); b.Exec(sql, args...) }

func (b *bench) text(sql string, args ...any) string { b.t.Helper(); return b.Text(sql, args...) }

func (b *bench) say(id, text string) {
	b.t.Helper()
	b.SayAs(id, text)
	b.session = b.Session
}

// wake delivers one wake twice, as every handler test does, and checks that the
// second changes nothing.
func (b *bench) wake() {
	b.t.Helper()
	e := event.Event{Type: event.SessionDue, Payload: event.Payload{Session: b.session}}
	if err := b.step.Session(b.t.Context(), e); err != nil {
		b.t.Fatal(err)
	}
	if b.text(`SELECT COALESCE(due_at <= now(), false)::text FROM sessions WHERE session_id = $1`, b.session) == "true" {
		return // it has more to do: a repeat is the next step
	}
	before := b.snapshot()
	if err := b.step.Session(b.t.Context(), e); err != nil {
		b.t.Fatal(err)
	}
	if diff := cmp.Diff(before, b.snapshot()); diff != "" {
		b.t.Fatalf("a repeated event changed the database:\n%s", diff)
	}
}

func (b *bench) snapshot() []string {
	var all []string
	for _, table := range []string{"sessions", "messages", "steps", "tool_calls", "executions", "replies", "session_events", "outbox", "agent_execution_logs"} {
		all = append(all, b.text(`SELECT COALESCE(string_agg(t::text, E'\n' ORDER BY t::text), '') FROM `+table+` t`))
	}
	return all
}

func (b *bench) finish(state harness.ExecutionState, code int, stdout string) {
	b.t.Helper()
	id := b.text(`SELECT execution_id FROM executions WHERE ended_at IS NULL`)
	b.exec(`INSERT INTO execution_output VALUES ($1, 'stdout', 0, $2)`, id, []byte(stdout))
	b.exec(`UPDATE executions SET state = $2, exit_code = $3, stdout_bytes = $4, ended_at = now() WHERE execution_id = $1`, id, state, code, len(stdout))
	b.exec(`UPDATE sessions SET due_at = now()`)
}

func (b *bench) reply() string {
	b.t.Helper()
	return b.text(`SELECT text FROM messages WHERE direction = 'OUTBOUND' AND session_id = $1 ORDER BY seq DESC LIMIT 1`, b.session)
}

func (b *bench) state() string {
	b.t.Helper()
	return b.text(`SELECT state FROM sessions WHERE session_id = $1`, b.session)
}

func says(text string) model.Response { return model.Response{Text: text, Stop: model.StopEnd} }

func calls(arguments ...string) model.Response {
	r := model.Response{Stop: model.StopToolCalls, Usage: model.Usage{InputTokens: 10, OutputTokens: 5}}
	for _, a := range arguments {
		call := model.Call{ID: harness.NewID("c", time.Now()), Name: harness.ToolExecuteShell, Arguments: a}
		if !strings.HasSuffix(a, "}") {
			call.Malformed = "it breaks off"
		}
		r.Calls = append(r.Calls, call)
	}
	return r
}

func TestACommandAndItsAnswer(t *testing.T) {
	b := newBench(t, coder(), calls(`{"command": "echo 42"}`), says("It printed 42."), says("Yes, 42."))
	b.say("1", "print 42")
	b.wake()
	if got := b.state(); got != "AWAITING_EXECUTION" {
		t.Fatalf("state %s", got)
	}
	if got := b.text(`SELECT command FROM executions`); got != "echo 42" {
		t.Fatalf("command %q", got)
	}
	b.finish(harness.ExecutionCompleted, 0, "42 top-secret-value\n")
	b.wake()
	if got := b.reply(); got != "It printed 42." || b.state() != "IDLE" {
		t.Fatalf("reply %q, state %s", got, b.state())
	}
	if got := b.text(`SELECT result FROM tool_calls`); got != "exit code 0\nstdout:\n42 [secret]\n" {
		t.Fatalf("result %q", got)
	}
	b.say("2", "sure?")
	b.wake()
	last := b.model.asked[2].Turns
	if len(last) != 5 || last[0].Text != "print 42" || last[3].Text != "It printed 42." || last[4].Text != "sure?" {
		t.Fatalf("history %+v", last)
	}
}

// Every failure of a model leaves an outcome in the store, words for the person
// and a session that takes the next message.
func TestWhatModelsDoWrong(t *testing.T) {
	truncated := model.Response{Stop: model.StopTruncated, Calls: []model.Call{{ID: "t", Name: harness.ToolExecuteShell, Arguments: `{"command": "rm -r`}}}
	same := calls(`{"command": "ls"}`)
	for name, c := range map[string]struct {
		answers []any
		runs    int    // executions that ran
		steps   int    // wakes until the turn ends
		reply   string // part of the answer
		state   string
	}{
		"broken arguments":        {[]any{calls(`{"command": "l`), says("sorry")}, 0, 2, "sorry", "IDLE"},
		"wrong arguments":         {[]any{calls(`{"cmd": "ls"}`), says("sorry")}, 0, 2, "sorry", "IDLE"},
		"cut off once":            {[]any{truncated, says("sorry")}, 0, 2, "sorry", "IDLE"},
		"cut off for ever":        {[]any{truncated, truncated, truncated}, 0, 3, "cut off", "BLOCKED"},
		"refused for good":        {[]any{&model.Error{Kind: harness.Invalid, Reason: model.ReasonKeyRejected, Message: "the model key was rejected"}}, 0, 1, "the model key was rejected", "FAILED"},
		"history too long":        {[]any{&model.Error{Kind: harness.Invalid, Reason: model.ReasonContextFull, Message: "too long"}}, 0, 1, "/new", "FAILED"},
		"a NUL in names":          {[]any{model.Response{Stop: model.StopToolCalls, Model: "m\x00x", Calls: []model.Call{{ID: "n\x00", Name: "rm\x00rf" + strings.Repeat("x", 1<<20), Arguments: "{}"}}}, says("sorry")}, 0, 2, "sorry", "IDLE"},
		"a wait of a day":         {[]any{&model.Error{Kind: harness.Unavailable, Reason: model.ReasonRateLimited, Message: "too many requests", RetryAfter: 24 * time.Hour}}, 0, 1, "24h", "FAILED"},
		"a command with a secret": {[]any{calls(`{"command": "echo top-secret-v\u0061lue"}`), says("sorry")}, 0, 2, "sorry", "IDLE"},
		"a secret in pieces":      {[]any{says("the key is top-sec\x00ret-value!")}, 0, 1, "the key is [secret]!", "IDLE"},
		"declined":                {[]any{model.Response{Stop: model.StopRefused}}, 0, 1, "declined", "IDLE"},
		"same call for ever":      {[]any{same, same, same, same, same, same, same}, 5, 6, "same call", "BLOCKED"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, coder(), c.answers...)
			b.say("1", "go")
			for range c.steps {
				b.wake()
				if b.text(`SELECT count(*)::text FROM executions WHERE ended_at IS NULL`) == "1" {
					b.finish(harness.ExecutionCompleted, 0, "same\n")
				}
			}
			if got := b.reply(); !strings.Contains(got, c.reply) || b.state() != c.state {
				t.Errorf("reply %q, state %s; want %q, %s", got, b.state(), c.reply, c.state)
			}
			if got := b.text(`SELECT count(*)::text FROM executions WHERE state = 'COMPLETED'`); got != string(rune('0'+c.runs)) {
				t.Errorf("%s commands ran, want %d", got, c.runs)
			}
			if got := b.text(`SELECT count(*)::text FROM tool_calls WHERE result IS NULL`); got != "0" {
				t.Errorf("%s calls have no result", got)
			}
			b.model.answers = []any{says("still here")}
			b.say("2", "hello?")
			b.wake()
			if got := b.reply(); got != "still here" {
				t.Errorf("the next message got %q", got)
			}
		})
	}
}

// A provider's Retry-After is a row, not a sleep: nothing is asked before, not
// even when another message arrives.
func TestRetryAfterIsKept(t *testing.T) {
	limited := &model.Error{Kind: harness.Unavailable, Reason: model.ReasonRateLimited, Message: "too many requests", RetryAfter: 30 * time.Second}
	b := newBench(t, coder(), limited, says("done"))
	b.say("1", "go")
	b.wake()
	b.say("2", "are you there?")
	b.wake()
	if len(b.model.asked) != 1 {
		t.Fatalf("asked %d times within the wait", len(b.model.asked))
	}
	if got := b.text(`SELECT (retry_at - now() > interval '25 seconds')::text FROM sessions`); got != "true" {
		t.Fatal("the wait is shorter than the provider asked for")
	}
	b.exec(`UPDATE sessions SET retry_at = now(), due_at = now()`)
	b.wake()
	if got := b.reply(); got != "done" {
		t.Fatalf("reply %q", got)
	}
}

func TestAModelThatNeverAnswers(t *testing.T) {
	b := newBench(t, coder())
	b.say("1", "go")
	for range 8 {
		b.model.answers = []any{&model.Error{Kind: harness.Unavailable, Reason: model.ReasonOverloaded, Message: "the model is overloaded"}}
		b.exec(`UPDATE sessions SET retry_at = NULL, due_at = now()`)
		b.wake()
	}
	if got := b.reply(); !strings.Contains(got, "the model is overloaded") || b.state() != "FAILED" {
		t.Fatalf("reply %q, state %s", got, b.state())
	}
}

// Whoever lost the lease while the model thought writes nothing.
func TestALostLeaseWritesNothing(t *testing.T) {
	b := newBench(t, coder(), says("too late"))
	b.say("1", "go")
	b.model.before = func() {
		b.exec(`UPDATE sessions SET lease_token = lease_token + 1, lease_owner = 'other', lease_until = now() + interval '1 hour'`)
	}
	if err := b.step.Session(t.Context(), event.Event{Payload: event.Payload{Session: b.session}}); err != nil {
		t.Fatal(err)
	}
	if got := b.text(`SELECT count(*)::text FROM messages WHERE direction = 'OUTBOUND'`); got != "0" {
		t.Fatal("an answer was written without the lease")
	}
}

// A message that arrives while a step works is not lost between the step's look
// and its release: the release returns the mark as a wake.
func TestAMarkDuringAStepIsReturned(t *testing.T) {
	b := newBench(t, coder(), says("first"))
	b.say("1", "one")
	b.model.before = func() { b.model.before = nil; b.say("2", "two") }
	if err := b.step.Session(t.Context(), event.Event{Payload: event.Payload{Session: b.session}}); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(b.events, func(e event.Event) bool { return e.Type == event.SessionDue && e.Session == b.session }) {
		t.Fatalf("the release announced %+v", b.events)
	}
}

func TestBudgets(t *testing.T) {
	for name, c := range map[string]struct {
		budget func(*harness.Budget)
		want   string
	}{
		"steps":      {func(b *harness.Budget) { b.MaxSteps = 1 }, "1 steps"},
		"tokens":     {func(b *harness.Budget) { b.MaxTokens = 100 }, "100 tokens"},
		"tool calls": {func(b *harness.Budget) { b.MaxToolCalls = 0 }, "0 tool calls"},
		"commands":   {func(b *harness.Budget) { b.MaxExecutions = 0 }, "0 commands"},
	} {
		t.Run(name, func(t *testing.T) {
			agent := coder()
			c.budget(&agent.Budget)
			b := newBench(t, agent, calls(`{"command": "ls"}`), says("never asked"))
			b.say("1", "go")
			b.wake()
			if b.state() == "AWAITING_EXECUTION" {
				b.finish(harness.ExecutionCompleted, 0, "x")
				b.wake()
			}
			if got := b.reply(); !strings.Contains(got, c.want) || b.state() != "BLOCKED" {
				t.Fatalf("reply %q, state %s", got, b.state())
			}
		})
	}
}

func TestNewEndsTheConversation(t *testing.T) {
	b := newBench(t, coder(), says("hi"))
	b.say("1", "hello")
	b.wake()
	b.say("2", " /new ")
	b.wake()
	old := b.session
	if b.state() != "COMPLETED" {
		t.Fatalf("state %s", b.state())
	}
	b.say("3", "hello again")
	if b.session == old {
		t.Fatal("the next message joined the old conversation")
	}
}

// In groups the bot is named with the command.
func TestNewWithTheBotsName(t *testing.T) {
	b := newBench(t, coder())
	for i, c := range []struct {
		text string
		ends bool
	}{
		{"/new@coder_bot", true},
		{" /NEW@Coder_Bot\n", true},
		{"@coder_bot /new", true},
		{"@coder_bot\n/new@coder_bot", true},
		{"/newer@coder_bot", false},
		{"/new@coder_bot please", false},
		{"@coder_bot /new please", false},
		{"@coder_bot @other /new", false},
		{"hey /new", false},
		{"@coder_bot", false},
		{"me@new", false},
	} {
		b.model.answers = []any{says("hi")}
		b.say(fmt.Sprint(i), c.text)
		b.wake()
		if ends := b.state() == "COMPLETED"; ends != c.ends {
			t.Errorf("%q left the conversation %s", c.text, b.state())
		}
	}
}

func TestAnAgentThatIsGone(t *testing.T) {
	b := newBench(t, coder())
	b.say("1", "hello")
	b.exec(`UPDATE agents SET phase = 'DELETED'`)
	b.wake()
	if got := b.reply(); !strings.Contains(got, "no longer exists") {
		t.Fatalf("reply %q", got)
	}
}
