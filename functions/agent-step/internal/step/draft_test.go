package step_test

import (
	"context"
	"errors"
	"fmt"
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

// growing is a model that writes an answer text by text.
type growing struct {
	texts  []string
	pause  time.Duration // after each
	each   func(i int)   // then
	answer model.Response
	told   bool // that somebody wants to see it grow
}

func (g *growing) Complete(ctx context.Context, r model.Request) (model.Response, error) {
	g.told = r.Partial != nil
	for i, text := range g.texts {
		if g.told {
			r.Partial(text)
		}
		time.Sleep(g.pause)
		if g.each != nil {
			g.each(i)
		}
	}
	if ctx.Err() != nil {
		return model.Response{}, context.Cause(ctx)
	}
	return g.answer, nil
}

// growingBench is an agent whose model writes as g says.
func growingBench(t *testing.T, g *growing, change func(*harness.Agent)) *bench {
	t.Helper()
	agent := coder()
	agent.Model.Stream = true
	if change != nil {
		change(&agent)
	}
	b := newBench(t, agent)
	guards := guard.New(guard.Options{Model: b.model, Secrets: secret.Environment(func(string) string { return "" })})
	t.Cleanup(guards.Close)
	b.options.Model, b.options.Guard = g, guards
	b.step = step.New(b.options)
	return b
}

func (b *bench) drafts() string {
	b.t.Helper()
	return b.text(`SELECT COALESCE(string_agg(revision || ' ' || text, ',' ORDER BY updated_at), '') FROM drafts`)
}

// What is written is kept at most every 1.2 s, and is gone with the answer.
func TestDraftsAreBounded(t *testing.T) {
	g := &growing{pause: 100 * time.Millisecond, answer: says("all of it")}
	for i := range 40 {
		g.texts = append(g.texts, strings.Repeat("word ", i+1))
	}
	b := growingBench(t, g, nil)
	revisions := map[string]bool{}
	began := time.Now()
	g.each = func(int) { revisions[b.text(`SELECT COALESCE(max(revision), 0)::text FROM drafts`)] = true }
	b.say("1", "go")
	b.exec(`UPDATE sessions SET channel = 'TELEGRAM'`)
	b.exec(`UPDATE channel_routes SET channel = 'TELEGRAM'`)
	b.wake()
	kept := len(revisions) - 1 // without that of nothing
	if most := int(time.Since(began) / (1200 * time.Millisecond)); kept < 2 || kept > most {
		t.Errorf("%d drafts were kept in %s", kept, time.Since(began))
	}
	published := 0
	for _, e := range b.events {
		if e.Type != event.MessageDraft {
			continue
		}
		published++
		if e.Channel != harness.ChannelTelegram || e.Session != b.session || e.Payload.Message == "" || !strings.HasSuffix(e.ID, fmt.Sprint(":", published)) {
			t.Errorf("published %+v", e)
		}
	}
	if published != kept {
		t.Errorf("%d of %d were published", published, kept)
	}
	if got := b.drafts(); got != "" || b.reply() != "all of it" {
		t.Errorf("the answer is %q, and drafts are left: %q", b.reply(), got)
	}
}

// No half of a secret or of a rune is seen, wherever the pieces break.
func TestDraftsHideSecrets(t *testing.T) {
	g := &growing{
		pause: 1250 * time.Millisecond, answer: says("done"),
		texts: []string{"wait", "Key: top-", "Key: top-secret-valu", "Key: top-secret-value and \xf0\x9f\x98", "Key: top-secret-value and 😀 top"},
	}
	b := growingBench(t, g, nil)
	var seen []string
	g.each = func(int) { seen = append(seen, b.text(`SELECT COALESCE((SELECT text FROM drafts), '-')`)) }
	b.say("1", "go")
	b.wake()
	if got, want := strings.Join(seen, "|"), "-|Key:|Key:|Key: [secret] and|Key: [secret] and 😀"; got != want {
		t.Errorf("seen\n%s\nwant\n%s", got, want)
	}
}

// Nobody sees what has not been judged, and nothing changes where nobody asked for it.
func TestNoDrafts(t *testing.T) {
	for name, change := range map[string]func(*harness.Agent){
		"output guardrails": func(a *harness.Agent) {
			a.Guardrails = &harness.Guardrails{Output: []harness.Guardrail{deny("out", "venom")}}
		},
		"not asked for": func(a *harness.Agent) { a.Model.Stream = false },
	} {
		t.Run(name, func(t *testing.T) {
			g := &growing{texts: []string{"some venom"}, answer: says("words")}
			b := growingBench(t, g, change)
			b.say("1", "go")
			b.wake()
			if g.told || b.reply() != "words" {
				t.Errorf("told: %v, answer %q", g.told, b.reply())
			}
		})
	}
	g := &growing{texts: []string{"w"}, answer: says("words")}
	b := growingBench(t, g, func(a *harness.Agent) {
		a.Guardrails = &harness.Guardrails{Input: []harness.Guardrail{deny("in", "poison")}}
	})
	b.say("1", "go")
	b.wake()
	if !g.told {
		t.Error("guardrails on what comes in hide what is written")
	}
}

// A step that has lost its session writes no more, and what it wrote is not seen.
func TestDraftsOfALostSession(t *testing.T) {
	g := &growing{texts: []string{"wait", "one", "one two"}, pause: 1250 * time.Millisecond, answer: says("done")}
	b := growingBench(t, g, nil)
	ctx := t.Context()
	g.each = func(i int) {
		d, err := b.store.Draft(ctx, b.session)
		switch i {
		case 1:
			if err != nil || d.Text != "one" {
				t.Errorf("seen %+v, %v", d, err)
			}
			b.exec(`UPDATE sessions SET lease_token = lease_token + 1, lease_owner = 'other'`)
			fallthrough
		case 2:
			if _, err := b.store.Draft(ctx, b.session); harness.KindOf(err) != harness.NotFound {
				t.Errorf("after text %d another's draft is seen: %v", i, err)
			}
		}
	}
	b.say("1", "go")
	if err := b.step.Session(ctx, event.Event{Type: event.SessionDue, Payload: event.Payload{Session: b.session}}); err != nil && !errors.Is(err, postgres.ErrLeaseLost) {
		t.Fatal(err)
	}
	if got := b.drafts(); got != "1 one" {
		t.Errorf("kept %q", got)
	}
	if got := b.text(`SELECT count(*)::text FROM replies`); got != "0" {
		t.Errorf("%s replies", got)
	}
}

// The words of a step that calls tools are no answer: they are seen until it is
// committed, and the next step's take their place.
func TestDraftsOfAStepThatCalls(t *testing.T) {
	g := &growing{texts: []string{"wait", "Let me see"}, pause: 1250 * time.Millisecond, answer: calls(`{"command": "ls"}`)}
	b := growingBench(t, g, nil)
	b.say("1", "go")
	b.wake()
	if _, err := b.store.Draft(t.Context(), b.session); harness.KindOf(err) != harness.NotFound {
		t.Errorf("after the step its words are still seen: %v", err)
	}
	b.finish(harness.ExecutionCompleted, 0, "a")
	g.texts, g.answer = []string{"wait", "There is"}, says("There is a.")
	g.each = func(i int) {
		if d, err := b.store.Draft(t.Context(), b.session); i == 1 && (err != nil || d.Text != "There is" || d.Revision != 2) {
			t.Errorf("seen %+v, %v", d, err)
		}
	}
	b.wake()
	if got := b.drafts(); got != "" || b.reply() != "There is a." {
		t.Errorf("the answer is %q, drafts %q", b.reply(), got)
	}
}
