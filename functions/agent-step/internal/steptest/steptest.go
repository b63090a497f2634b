// Package steptest gives tests an agent in a database of its own, somebody who
// writes to it, and a model that says what the test says. Tests of steps and of the
// blocks of agents use it; no production code does.
package steptest

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// Bench is one agent, coder, with the webhook hook that anybody may write to.
type Bench struct {
	T       *testing.T
	Store   *postgres.Store
	Agent   harness.Agent
	Session harness.SessionID // of what was said last

	Step   *step.Stepper // of Build
	Log    strings.Builder
	Secret string // is in nothing that Says looks at, nor in Log

	mu      sync.Mutex
	Answers []model.Response // what the model says next; behind them "no more"
	Asked   []model.Request
	Before  func() // runs while a question is in flight
}

// New returns a bench with an agent in revision 1.
func New(t *testing.T, agent harness.Agent) *Bench {
	t.Helper()
	b := &Bench{T: t, Store: postgrestest.New(t), Agent: agent}
	b.Exec(`INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('coder', 1, 'READY', 'd')`)
	b.Exec(`INSERT INTO agent_revisions (agent_name, revision, spec) VALUES ('coder', 1, $1)`, agent)
	b.Exec(`INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all) VALUES ('WEBHOOK', 'hook', 'coder', '{}', true)`)
	return b
}

// Coder is an agent of type t without any block.
func Coder(t harness.HarnessType) harness.Agent {
	return harness.Agent{
		Name: "coder", Budget: harness.DefaultBudget(), Model: harness.ModelSpec{MaxTokens: 1000},
		Harness: harness.HarnessSpec{Enabled: true, Type: t, Sandbox: harness.DefaultSandbox(), MaxSandboxes: 1},
	}
}

// Build makes Step work with tools, and the bench be its model.
func (b *Bench) Build(tools ...step.Tools) {
	b.Step = step.New(step.Options{
		Store: b.Store, Model: b, Log: slog.New(slog.DiscardHandler), ContextTokens: 100_000, Publish: func(context.Context, ...event.Event) {},
		Lease: postgres.Lease{Owner: "test", For: time.Minute}, Tools: tools,
	})
}

// Logger writes to Log.
func (b *Bench) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(&b.Log, nil)) }

// Change makes the agent what changed says, as a new revision.
func (b *Bench) Change(changed func(*harness.Agent)) {
	b.T.Helper()
	changed(&b.Agent)
	b.Exec(`INSERT INTO agent_revisions (agent_name, revision, spec) SELECT 'coder', max(revision) + 1, $1 FROM agent_revisions`, b.Agent)
	b.Exec(`UPDATE agents SET revision = revision + 1`)
}

// Complete implements step.Model.
func (b *Bench) Complete(_ context.Context, r model.Request) (model.Response, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Asked = append(b.Asked, r)
	if b.Before != nil {
		b.Before()
	}
	if len(b.Answers) == 0 {
		return model.Response{Text: "no more", Stop: model.StopEnd}, nil
	}
	next := b.Answers[0]
	b.Answers = b.Answers[1:]
	return next, nil
}

// Exec runs a statement.
func (b *Bench) Exec(sql string, args ...any) {
	b.T.Helper()
	if _, err := b.Store.Pool().Exec(b.T.Context(), sql, args...); err != nil {
		b.T.Fatal(err)
	}
}

// Text is the one value that a query returns.
func (b *Bench) Text(sql string, args ...any) string {
	b.T.Helper()
	var text string
	if err := b.Store.Pool().QueryRow(b.T.Context(), sql, args...).Scan(&text); err != nil {
		b.T.Fatalf("%s: %v", sql, err)
	}
	return text
}

// Say is a message with an id of its own.
func (b *Bench) Say(text string) { b.T.Helper(); b.SayAs(harness.NewID("m", time.Now()), text) }

// SayAs is a message with an id of the sender's.
func (b *Bench) SayAs(id, text string) {
	b.T.Helper()
	accepted, _, err := b.Store.Accept(b.T.Context(), harness.ChannelWebhook, postgres.Inbound{Arrivals: []postgres.Arrival{{
		Account: "hook", ProviderID: id, Chat: "chat", Message: harness.Message{ChannelUserID: "user", Text: text},
	}}}, "")
	if err != nil {
		b.T.Fatal(err)
	}
	b.Session = accepted[0].Session
}

// Wake has the session worked once.
func (b *Bench) Wake() {
	b.T.Helper()
	if err := b.Step.Session(b.T.Context(), event.Event{Payload: event.Payload{Session: b.Session}}); err != nil {
		b.T.Fatal(err)
	}
}

// State is the session's, and whether it has more to do now.
func (b *Bench) State() (state string, due bool) {
	b.T.Helper()
	state, more, _ := strings.Cut(b.Text(`SELECT state || ' ' || COALESCE(due_at <= now(), false) FROM sessions WHERE session_id = $1`, b.Session), " ")
	return state, more == "true"
}

// Until wakes the session until it is in a state with nothing due.
func (b *Bench) Until(want string) {
	b.T.Helper()
	for range 20 {
		b.Wake()
		if state, due := b.State(); state == want && !due {
			return
		}
	}
	state, _ := b.State()
	b.T.Fatalf("the session is %s, want %s", state, want)
}

// Uses has the model call a tool once and then answer.
func (b *Bench) Uses(name string, arguments any) {
	b.T.Helper()
	text, err := json.Marshal(arguments)
	if err != nil {
		b.T.Fatal(err)
	}
	b.Answers = append(b.Answers,
		model.Response{Stop: model.StopToolCalls, Calls: []model.Call{{ID: harness.NewID("c", time.Now()), Name: name, Arguments: string(text)}}},
		model.Response{Stop: model.StopEnd, Text: "Done."})
}

// Asks has the model call a tool once and then answer, in one turn, and returns what
// came of the call.
func (b *Bench) Asks(name string, arguments any) string {
	b.T.Helper()
	b.Uses(name, arguments)
	b.Say("go")
	b.Until("IDLE")
	return b.Result()
}

// Result is what came of the newest call.
func (b *Bench) Result() string {
	b.T.Helper()
	return b.Text(`SELECT state || ': ' || COALESCE(result, '') FROM tool_calls ORDER BY created_at DESC, seq DESC LIMIT 1`)
}

// Offered are the tools of blocks in the newest question.
func (b *Bench) Offered() []model.Tool {
	var tools []model.Tool
	for _, t := range b.Asked[len(b.Asked)-1].Tools {
		if t.Name != harness.ToolOfferChoices && t.Name != harness.ToolExecuteShell {
			tools = append(tools, t)
		}
	}
	return tools
}

// Same ends the test where got is not want.
func (b *Bench) Same(what, got, want string) {
	b.T.Helper()
	if got != want {
		b.T.Fatalf("%s: got %q, want %q", what, got, want)
	}
}

// Says looks that got has every part, and that Secret is nowhere.
func (b *Bench) Says(what, got string, parts ...string) {
	b.T.Helper()
	for _, part := range parts {
		if !strings.Contains(got, part) {
			b.T.Errorf("%s: %.400q does not say %q", what, got, part)
		}
	}
	if b.Secret != "" && (strings.Contains(got, b.Secret) || strings.Contains(b.Log.String(), b.Secret)) {
		b.T.Errorf("%s: what is secret is in a result or a log", what)
	}
}
