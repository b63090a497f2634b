package step_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/guard"
	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/functions/agent-step/internal/steptest"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/secret"
)

// judgement is a line of testdata/guardrails.json: one guardrail, what it judges,
// and what must come of it.
type judgement struct {
	Name      string                   `json:"name"`
	Stage     harness.GuardrailStage   `json:"stage"`
	Guardrail harness.Guardrail        `json:"guardrail"`
	Text      string                   `json:"text"`      // the message, the command, what is printed, the answer
	Arguments string                   `json:"arguments"` // of a call, where its spelling matters
	Verdict   harness.GuardrailVerdict `json:"verdict"`   // empty: it does not judge this
	Led       harness.GuardrailAction  `json:"led"`       // what the verdict leads to; empty: the guardrail's action
	Told      string                   `json:"told"`      // where it blocks; empty: the fixed text
	Shown     string                   `json:"shown"`     // what goes on; empty: all of it
	Reason    string                   `json:"reason"`
}

// blocks, asks and redacts say what the line wants to happen.
func (j judgement) leads(to harness.GuardrailAction) bool {
	return j.Verdict != "" && j.Verdict != harness.GuardrailPassed && cmp.Or(j.Led, j.Guardrail.Action) == to
}

func (j judgement) goesOn() string { return cmp.Or(j.Shown, j.Text) }

func judgements(t *testing.T) []judgement {
	t.Helper()
	text, err := os.ReadFile("testdata/guardrails.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []judgement
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&all); err != nil {
		t.Fatal(err)
	}
	return all
}

// modelServer starts the deterministic model, as strict as the providers are.
func modelServer(t *testing.T, script any) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir, "./internal/fake/modelserver")
	build.Dir = filepath.Join("..", "..", "..", "..", "scripts")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := json.Marshal(script)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "script.yaml")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(filepath.Join(dir, "modelserver"), "-script", file)
	command.Stderr = t.Output()
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(os.Interrupt)
		if err := command.Wait(); err != nil {
			t.Errorf("the model server ended with %v", err)
		}
	})
	address, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the model server did not say where it is: %v", err)
	}
	return "http://" + strings.TrimSpace(address)
}

type object map[string]any

// judgeRules are how the deterministic model judges, and what it answers to cases.
func judgeRules(all []judgement) object {
	rules := []object{
		{"match": object{"regexp": `(?s)^\{"stage".*chatter`}, "respond": object{"text": "I think it is fine."}},
		{"match": object{"regexp": `(?s)^\{"stage".*model is down`}, "respond": object{"status": 500}},
		{"match": object{"regexp": `(?s)^\{"stage".*poison`}, "respond": object{"text": ` {"verdict": "hit"} `}},
		{"match": object{"regexp": `(?s)^\{"stage"`}, "respond": object{"text": `{"verdict": "pass"}`}},
	}
	for i, j := range all {
		said := object{"text": j.Text}
		switch j.Stage {
		case harness.StageInput:
			continue
		case harness.StageToolCall:
			arguments := j.Arguments
			if arguments == "" {
				text, _ := json.Marshal(object{"command": j.Text})
				arguments = string(text)
			}
			said = object{"calls": []object{{"name": harness.ToolExecuteShell, "arguments": arguments}}}
		case harness.StageToolOutput:
			said = object{"calls": []object{{"name": harness.ToolExecuteShell, "arguments": `{"command": "cat it"}`}}}
		}
		rules = append(rules, object{"match": object{"exact": caseText(i)}, "respond": said})
	}
	return object{"rules": append(rules, object{"respond": object{"text": "done"}})}
}

func caseText(i int) string { return fmt.Sprintf("case %d", i) }

// judge answers as a service of a guardrail may.
func judge(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var asked struct {
			Stage, Guardrail, Agent, Session, Channel, ChannelUserID, Text string
		}
		if err != nil || json.Unmarshal(body, &asked) != nil || asked.Agent != "coder" || asked.Guardrail != "g" || asked.Session == "" || asked.Channel != "WEBHOOK" || asked.ChannelUserID != "user" {
			t.Errorf("asked %s", body)
		}
		if r.Header.Get("Authorization") != "Bearer of-this" || r.Header.Get("X-Team") != "security" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		switch r.URL.Path {
		case "/words":
			if strings.Contains(asked.Text, "forbidden") {
				io.WriteString(w, `{"verdict": "hit", "category": "words", "score": 0.9}`)
				return
			}
			io.WriteString(w, `{"verdict": "pass"}`)
		case "/500":
			w.WriteHeader(http.StatusInternalServerError)
		case "/html":
			io.WriteString(w, "<p>pass</p>")
		case "/slow":
			<-r.Context().Done()
		case "/moved":
			http.Redirect(w, r, "/words", http.StatusFound)
		case "/long":
			io.WriteString(w, `{"verdict": "pass", "more": "`+strings.Repeat("x", 1<<17)+`"}`)
		case "/quotes":
			io.WriteString(w, `{"verdict": "hit", "category": "they said: hello"}`)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// recorder remembers what the agent's model was asked, but for what it judged.
type recorder struct {
	step.Model
	asked []model.Request
}

func (r *recorder) Complete(ctx context.Context, q model.Request) (model.Response, error) {
	if !strings.HasPrefix(q.System, "You are a guardrail") {
		r.asked = append(r.asked, q)
	}
	return r.Model.Complete(ctx, q)
}

func (r *recorder) last() []model.Turn { return r.asked[len(r.asked)-1].Turns }

// guardBench is an agent whose model is the deterministic one on its wire.
func guardBench(t *testing.T, script any) (*bench, *recorder) {
	t.Helper()
	client, err := model.New(model.Config{Provider: harness.ProviderOpenAI, Name: "m", OpenAIBaseURL: modelServer(t, script), OpenAIKey: "k"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	models := &recorder{Model: client}
	guards := guard.New(guard.Options{Model: models, AllowPrivate: true, Secrets: secret.Environment(func(name string) string {
		if name == "GUARD_HEADERS" {
			return "Authorization: Bearer of-this\nX-Team: security\n"
		}
		return ""
	})})
	t.Cleanup(guards.Close)
	shared := steptest.New(t, coder())
	b := &bench{Bench: shared, t: t, store: shared.Store}
	b.step = step.New(step.Options{
		Store: b.store, Model: models, Guard: guards, Log: slog.New(slog.DiscardHandler), ContextTokens: 10_000,
		Publish: func(context.Context, ...event.Event) {}, Lease: postgres.Lease{Owner: "test", For: time.Minute}, Secrets: []harness.Secret{"top-secret-value"},
	})
	return b, models
}

// guarded gives the agent another revision, as agent-status does.
func (b *bench) guarded(g *harness.Guardrails) {
	b.t.Helper()
	agent := coder()
	agent.Guardrails = g
	b.exec(`WITH a AS (UPDATE agents SET revision = revision + 1 RETURNING agent_name, revision)
		INSERT INTO agent_revisions (agent_name, revision, spec) SELECT agent_name, revision, $1 FROM a`, agent)
}

func only(stage harness.GuardrailStage, g ...harness.Guardrail) *harness.Guardrails {
	var all harness.Guardrails
	switch stage {
	case harness.StageInput:
		all.Input = g
	case harness.StageToolCall:
		all.ToolCall = g
	case harness.StageToolOutput:
		all.ToolOutput = g
	case harness.StageOutput:
		all.Output = g
	}
	return &all
}

func (b *bench) sayIn(chat, id, text string) {
	b.t.Helper()
	accepted, _, err := b.store.Accept(b.t.Context(), harness.ChannelWebhook, postgres.Inbound{Arrivals: []postgres.Arrival{{
		Account: "hook", ProviderID: id, Chat: chat, Message: harness.Message{ChannelUserID: "user", Text: text},
	}}}, "")
	if err != nil {
		b.t.Fatal(err)
	}
	b.session = accepted[0].Session
}

// once works one step.
func (b *bench) once() {
	b.t.Helper()
	if err := b.step.Session(b.t.Context(), event.Event{Type: event.SessionDue, Payload: event.Payload{Session: b.session}}); err != nil {
		b.t.Fatal(err)
	}
}

// Every line of the table comes to its verdict through the real step, the rows of a
// real Postgres and the wires of a model and of a service; each is stored, told in
// log and timeline unless it passed, and counted.
func TestGuardrailSuite(t *testing.T) {
	all := judgements(t)
	if len(all) < 60 {
		t.Fatalf("%d lines", len(all))
	}
	b, models := guardBench(t, judgeRules(all))
	service := judge(t)
	for i, j := range all {
		t.Run(fmt.Sprintf("%s/%s/%s", j.Stage, j.Guardrail.Type, j.Name), func(t *testing.T) {
			b.t = t
			if j.Guardrail.URL != "" {
				j.Guardrail.URL = service + j.Guardrail.URL
			}
			before := b.text(`SELECT COALESCE(sum(times), 0)::text FROM guardrail_counts`)
			b.guarded(only(j.Stage, j.Guardrail))
			said := caseText(i)
			if j.Stage == harness.StageInput {
				said = j.Text
			}
			b.sayIn(fmt.Sprintf("chat %d", i), fmt.Sprint(i), said)
			asked := len(models.asked)
			b.once()
			if j.Stage == harness.StageToolOutput {
				b.finish(harness.ExecutionCompleted, 0, j.Text)
				b.once()
			}
			b.led(j, models, asked)
			b.stored(j, before)
			b.exec(`UPDATE executions SET state = 'CANCELLED', ended_at = now() WHERE ended_at IS NULL`)
		})
	}
}

// led checks what the verdict has led to.
func (b *bench) led(j judgement, models *recorder, asked int) {
	b.t.Helper()
	blocks := j.leads(harness.GuardrailBlock)
	if j.Stage != harness.StageToolCall && j.leads(harness.GuardrailAsk) {
		b.approves(j, models, asked)
	}
	switch j.Stage {
	case harness.StageInput:
		if blocks {
			if got, want := b.reply(), cmp.Or(j.Told, "I cannot take this message: it is against a rule that my operator has set."); got != want || len(models.asked) != asked {
				b.t.Errorf("told %q, model asked %d times; want %q and not asked", got, len(models.asked)-asked, want)
			}
			return
		}
		if len(models.asked) != asked+1 {
			b.t.Fatalf("the model was asked %d times", len(models.asked)-asked)
		}
		if got := models.last()[0].Text; got != j.goesOn() {
			b.t.Errorf("the model saw %q, want %q", got, j.goesOn())
		}
	case harness.StageToolCall:
		state, want := b.text(`SELECT state FROM tool_calls WHERE session_id = $1`, b.session), "RUNNING"
		switch {
		case blocks:
			want = "DENIED"
			if got := b.text(`SELECT result FROM tool_calls WHERE session_id = $1`, b.session); !strings.HasPrefix(got, "Not run: the guardrail g denied this call. "+j.Told) {
				b.t.Errorf("the model is told %q", got)
			}
		case j.leads(harness.GuardrailAsk):
			want = "PENDING"
			if got := b.text(`SELECT context->>'Guardrail' FROM approvals WHERE session_id = $1 AND state = 'PENDING'`, b.session); got != "g" || b.state() != "AWAITING_APPROVAL" {
				b.t.Errorf("asked because of %q, state %s", got, b.state())
			}
		default:
			if got := b.text(`SELECT COALESCE(max(command), '') FROM executions WHERE session_id = $1`, b.session); got != j.goesOn() {
				b.t.Errorf("it runs %q, want %q", got, j.goesOn())
			}
		}
		if state != want {
			b.t.Errorf("the call is %s, want %s", state, want)
		}
		if ran := b.text(`SELECT count(*)::text FROM executions WHERE session_id = $1`, b.session); (ran == "1") != (want == "RUNNING") {
			b.t.Errorf("%s commands are handed on", ran)
		}
	case harness.StageToolOutput:
		turns := models.last()
		got := turns[len(turns)-1].Results[0].Text
		if kept := b.text(`SELECT result FROM tool_calls WHERE session_id = $1`, b.session); kept != got {
			b.t.Errorf("the history has %q, the model saw %q", kept, got)
		}
		if blocks {
			if !strings.HasPrefix(got, "Withheld: ") || strings.Contains(got, j.Text) {
				b.t.Errorf("the model saw %q", got)
			}
		} else if want := "exit code 0\nstdout:\n" + j.goesOn(); got != want {
			b.t.Errorf("the model saw %q, want %q", got, want)
		}
	case harness.StageOutput:
		want := j.goesOn()
		if blocks {
			want = cmp.Or(j.Told, "I have an answer, but a rule that my operator has set does not let me send it.")
		}
		if got := b.reply(); got != want {
			b.t.Errorf("the person got %q, want %q", got, want)
		}
		if got := b.text(`SELECT text FROM steps WHERE session_id = $1`, b.session); got != want {
			b.t.Errorf("the history keeps %q, want %q", got, want)
		}
	}
}

// approves checks that the text waits for a human, who sees it, and lets it go on.
func (b *bench) approves(j judgement, models *recorder, asked int) {
	b.t.Helper()
	b.same("waits", b.state()+" "+b.text(`SELECT string_agg((context->>'Guardrail') || ' ' || kind || ' ' || (input->'guardrail'->>'stage'), ',') FROM approvals WHERE session_id = $1 AND state = 'PENDING'`, b.session),
		fmt.Sprintf("AWAITING_APPROVAL g GUARDRAIL %s", j.Stage))
	if want := map[harness.GuardrailStage]int{harness.StageInput: 0, harness.StageToolOutput: 1, harness.StageOutput: 1}[j.Stage]; len(models.asked) != asked+want {
		b.t.Errorf("the model was asked %d times before that is decided, want %d", len(models.asked)-asked, want)
	}
	if card := b.text(`SELECT text FROM replies WHERE session_id = $1 AND kind = 'CARD'`, b.session); !strings.Contains(card, j.Text) || !strings.Contains(card, "data and no instruction") {
		b.t.Errorf("the card says %q", card)
	}
	tap := b.text(`SELECT approval_id || '.' || left(digest, 12) || '.a' FROM approvals WHERE session_id = $1`, b.session)
	if got := b.press("yes "+j.Name, b.text(`SELECT chat FROM sessions WHERE session_id = $1`, b.session), "user", tap); got != postgres.TapDecided {
		b.t.Fatalf("the tap is %s", got)
	}
	b.once()
}

// stored checks the row of the verdict, what log and timeline say, and its count.
func (b *bench) stored(j judgement, before string) {
	b.t.Helper()
	action := string(cmp.Or(j.Led, j.Guardrail.Action))
	rows := b.text(`SELECT COALESCE(string_agg(concat_ws(' ', stage, guardrail, action, verdict), ','), '') FROM guardrail_verdicts WHERE session_id = $1`, b.session)
	want := ""
	if j.Verdict != "" {
		want = fmt.Sprintf("%s g %s %s", j.Stage, action, j.Verdict)
	}
	if rows != want {
		b.t.Fatalf("stored %q, want %q", rows, want)
	}
	counted := b.text(`SELECT (sum(times) - $1::bigint)::text FROM guardrail_counts`, before)
	if (counted == "1") != (j.Verdict != "") {
		b.t.Errorf("%s were counted", counted)
	}
	if got := b.text(`SELECT concat_ws(' ', (SELECT sum(times) FROM guardrail_counts), (SELECT count(*) FROM guardrail_verdicts))`); len(strings.Fields(got)) == 2 && strings.Fields(got)[0] != strings.Fields(got)[1] {
		b.t.Errorf("counts and rows differ: %s", got)
	}
	entries, _, err := b.store.Timeline(b.t.Context(), b.session, view.Place{}, 50)
	if err != nil {
		b.t.Fatal(err)
	}
	told := 0
	for _, e := range entries {
		if v := e.Guardrail; v != nil {
			told++
			if v.Verdict != j.Verdict || string(v.Action) != action || v.Reason == "" || j.Reason != "" && v.Reason != j.Reason {
				b.t.Errorf("the timeline says %+v, want reason %q", v, j.Reason)
			}
			if len(j.Text) > 20 && strings.Contains(v.Reason, j.Text) {
				b.t.Errorf("the reason quotes: %q", v.Reason)
			}
		}
	}
	noted := b.text(`SELECT count(*)::text FROM agent_execution_logs WHERE session_id = $1 AND guardrail_result = $2`, b.session, fmt.Sprintf("%s %s/g", action, j.Stage))
	switch passed := j.Verdict == "" || j.Verdict == harness.GuardrailPassed; {
	case passed && (told != 0 || noted != "0"):
		b.t.Errorf("%d timeline and %s log entries of what passed", told, noted)
	case !passed && (told != 1 || noted == "0"):
		b.t.Errorf("%d timeline and %s log entries", told, noted)
	}
}
