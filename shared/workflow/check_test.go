package workflow_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/workflow"
)

func TestWhatIsWrongIsNamed(t *testing.T) {
	good := func() harness.Workflow {
		return flow([]harness.Node{agentNode("ask"), shellNode("build", "make"), approvalNode("a-b"), replyNode("tell", "done"), endNode},
			"ask > build", "build > a-b", "a-b > tell", "tell > end")
	}
	if problems := workflow.Check(good()); len(problems) > 0 {
		t.Fatal(problems)
	}
	for name, c := range map[string]struct {
		change func(w *harness.Workflow)
		want   string // empty: nothing is wrong
	}{
		"id twice":        {func(w *harness.Workflow) { w.Nodes[1].ID = "ask" }, `nodes[1].id is "ask", as in an earlier entry`},
		"unknown start":   {func(w *harness.Workflow) { w.Start = "x" }, `start is "x", which is no node`},
		"edge to nowhere": {func(w *harness.Workflow) { w.Edges[3].To = "x" }, `edges[3].to is "x", which is no node`},
		"edge out of END": {func(w *harness.Workflow) { w.Edges[0].From = "end" }, `edges[0].from is "end", which is of type END`},
		"edge twice":      {func(w *harness.Workflow) { w.Edges = append(w.Edges, w.Edges[0]) }, "edges[4] is the same as edges[0]"},
		"no END":          {func(w *harness.Workflow) { w.Nodes[4].Type = harness.NodeReply }, "nodes have none of type END"},
		"unreachable":     {func(w *harness.Workflow) { w.Start = "build" }, `nodes[0] has no way in: no edges lead from "build" to "ask"`},
		"no exit": {func(w *harness.Workflow) {
			w.Edges[3].To = "ask"
			w.Edges = append(w.Edges, harness.Edge{From: "ask", To: "end", When: "false"})
			w.Edges[4].From = "x"
		}, `edges[4].from is "x"`},
		"cycle without exit": {func(w *harness.Workflow) {
			w.Edges = append(w.Edges, harness.Edge{From: "ask", To: "end"})
			w.Edges[3].To = "build"
		}, `nodes[1] has no way out: no edges lead from "build" to a node of type END`},
		"no agent": {func(w *harness.Workflow) {
			*w = flow([]harness.Node{replyNode("tell", "x"), endNode}, "tell > end")
		}, "nodes have none of type AGENT or SHELL"},

		"no condition":        {func(w *harness.Workflow) { w.Edges[0].When = "nodes.build.exitCode" }, "edges[0].when is a int and neither true nor false"},
		"types":               {func(w *harness.Workflow) { w.Edges[0].When = "nodes.build.exitCode == 'x'" }, "edges[0].when is not CEL that fits: found no matching overload for '_==_'"},
		"unknown name":        {func(w *harness.Workflow) { w.Edges[0].When = "node.build.exitCode == 0" }, "edges[0].when is not CEL that fits: undeclared reference to 'node'"},
		"syntax":              {func(w *harness.Workflow) { w.Edges[0].When = "nodes.build.exitCode ==" }, "edges[0].when is not CEL that fits: Syntax error"},
		"unknown node":        {func(w *harness.Workflow) { w.Edges[0].When = "nodes.bild.exitCode == 0" }, `edges[0].when looks at the node "bild", which is no node`},
		"unknown node by key": {func(w *harness.Workflow) { w.Edges[0].When = "has(nodes['bild'].exitCode)" }, `looks at the node "bild"`},
		"unknown output":      {func(w *harness.Workflow) { w.Edges[0].When = "nodes.build.exit == 0" }, "edges[0].when is not CEL that fits: undefined field 'exit'"},
		"another's output":    {func(w *harness.Workflow) { w.Edges[0].When = "nodes.ask.exitCode == 0" }, "looks at exitCode of the node \"ask\", and one of type AGENT has state, text, reason"},
		"pattern from a chat": {func(w *harness.Workflow) { w.Edges[0].When = "message.text.matches(message.text)" }, "has a pattern that is no literal"},
		"a dash in an id":     {func(w *harness.Workflow) { w.Edges[3].When = `nodes["a-b"].state == "APPROVED" && has(nodes.build)` }, ""},
		"everything": {func(w *harness.Workflow) {
			w.Edges[0].When = "message.match['1'] == 'x' && message.metadata.a == 1 && run.visits < 9 && input.x == 2 && size(message.channelUserId) > 0"
		}, ""},
		"deep": {func(w *harness.Workflow) {
			w.Edges[0].When = strings.Repeat("(", 500) + "true" + strings.Repeat(")", 500)
		}, "edges[0].when is not CEL that fits"},
		"long": {func(w *harness.Workflow) { w.Nodes[0].Prompt = "${'" + strings.Repeat("x", 5000) + "'}" }, "which is over 4096 bytes"},
		"too much in all": {func(w *harness.Workflow) {
			w.Nodes[0].Prompt = strings.Repeat("${'"+strings.Repeat("x", 3000)+"'}", 30)
		}, "makes all expressions together longer"},
		"a template":           {func(w *harness.Workflow) { w.Nodes[0].Prompt = "${ {'a': '}'}.a } and $${this}" }, ""},
		"no closing brace":     {func(w *harness.Workflow) { w.Nodes[3].Text = "x ${input.a" }, "nodes[3].text has a ${ that no } closes, at byte 2"},
		"a wrong template":     {func(w *harness.Workflow) { w.Nodes[3].Text = "x ${nodes.no.text}" }, `nodes[3].text has ${nodes.no.text}, which looks at the node "no"`},
		"the shell's variable": {func(w *harness.Workflow) { w.Nodes[1].Command = `echo "${HOME}"` }, "write $${…} for a variable of the shell"},
		"the shell's default":  {func(w *harness.Workflow) { w.Nodes[1].Command = `echo "${HOME:-/root}"` }, "write $${…} for a variable of the shell"},
		"the shell's, escaped": {func(w *harness.Workflow) { w.Nodes[1].Command = `echo "$${HOME}" "${input.x}"` }, ""},
		"without quotes":       {func(w *harness.Workflow) { w.Nodes[1].Command = "rm ${input.x}" }, `nodes[1].command has ${input.x} outside of double quotes`},
		"in single quotes":     {func(w *harness.Workflow) { w.Nodes[1].Command = "echo \"a\" # it's\necho '${input.x}'" }, `outside of double quotes`},
		"after a comment":      {func(w *harness.Workflow) { w.Nodes[1].Command = "# it's\necho \"${input.x}\"" }, ""},
		"a here-document":      {func(w *harness.Workflow) { w.Nodes[1].Command = "cat <<E\nit's ${input.x}\nE" }, ""},
		"a number":             {func(w *harness.Workflow) { w.Nodes[1].Command = "exit ${run.visits}" }, ""},

		"join":               {func(w *harness.Workflow) { w.Nodes[1].Join = "some" }, `nodes[1].join is "some"`},
		"visits":             {func(w *harness.Workflow) { w.MaxVisits = 0 }, "maxVisits is 0: use 1 to 1000"},
		"retries of a reply": {func(w *harness.Workflow) { w.Nodes[3].Retries = harness.Retries{Max: 1, BackoffSeconds: 1} }, "nodes[3].retries are of types AGENT and SHELL"},
		"many retries":       {func(w *harness.Workflow) { w.Nodes[0].Retries = harness.Retries{Max: 11, BackoffSeconds: 1} }, "nodes[0].retries.max is 11"},
		"no backoff":         {func(w *harness.Workflow) { w.Nodes[0].Retries = harness.Retries{Max: 1} }, "nodes[0].retries.backoffSeconds is 0"},

		"trigger type":    {func(w *harness.Workflow) { w.Triggers = []harness.Trigger{{Type: "MAIL"}} }, `triggers[0].type is "MAIL"`},
		"trigger pattern": {func(w *harness.Workflow) { w.Triggers = []harness.Trigger{{Type: "CHANNEL", Agent: "a", Pattern: "("}} }, "triggers[0].pattern is not a regular expression"},
		"trigger agent":   {func(w *harness.Workflow) { w.Triggers = []harness.Trigger{{Type: "CHANNEL", Pattern: "x"}} }, "triggers[0].agent is missing"},
		"trigger fields": {func(w *harness.Workflow) {
			w.Triggers = []harness.Trigger{{Type: "SCHEDULE", Schedule: "0 7 * * *", Pattern: "x"}}
		}, "triggers[0].pattern is of type CHANNEL"},
		"schedule": {func(w *harness.Workflow) {
			w.Triggers = []harness.Trigger{{Type: "SCHEDULE", Schedule: "0 7 * * MON-FRI", TimeZone: "Europe/Berlin"}}
		}, ""},
		"no schedule": {func(w *harness.Workflow) { w.Triggers = []harness.Trigger{{Type: "SCHEDULE", Schedule: "61 7 * * *"}} }, "triggers[0].schedule is not a schedule"},
		"six fields":  {func(w *harness.Workflow) { w.Triggers = []harness.Trigger{{Type: "SCHEDULE", Schedule: "0 0 7 * * *"}} }, "triggers[0].schedule is not five fields"},
		"every":       {func(w *harness.Workflow) { w.Triggers = []harness.Trigger{{Type: "SCHEDULE", Schedule: "@every 1s"}} }, "triggers[0].schedule is not five fields"},
		"never":       {func(w *harness.Workflow) { w.Triggers = []harness.Trigger{{Type: "SCHEDULE", Schedule: "0 7 31 2 *"}} }, "triggers[0].schedule never comes"},
		"time zone": {func(w *harness.Workflow) {
			w.Triggers = []harness.Trigger{{Type: "SCHEDULE", Schedule: "0 7 * * *", TimeZone: "Mars/Base"}}
		}, `triggers[0].timeZone is "Mars/Base"`},

		"input name": {func(w *harness.Workflow) { w.Inputs = []harness.WorkflowInput{{Name: "a-b", Type: "string"}} }, `inputs[0].name is "a-b"`},
		"input type": {func(w *harness.Workflow) { w.Inputs = []harness.WorkflowInput{{Name: "a", Type: "text"}} }, `inputs[0].type is "text"`},
		"unknown input": {func(w *harness.Workflow) {
			w.Inputs = []harness.WorkflowInput{{Name: "a", Type: "string"}}
			w.Edges[0].When = "input.b == ''"
		}, "edges[0].when is not CEL that fits: undefined field 'b'"},
		"input typed": {func(w *harness.Workflow) {
			w.Inputs = []harness.WorkflowInput{{Name: "a", Type: "integer"}}
			w.Edges[0].When = "input.a == ''"
		}, "found no matching overload"},
	} {
		t.Run(name, func(t *testing.T) {
			w := good()
			c.change(&w)
			var told []string
			for _, p := range workflow.Check(w) {
				if p.Fix == "" || p.Path == "" {
					t.Errorf("no field or no fix: %+v", p)
				}
				told = append(told, p.String())
			}
			if all := strings.Join(told, "\n"); c.want == "" && all != "" || !strings.Contains(all, c.want) {
				t.Errorf("got\n%s\nwant %q", all, c.want)
			}
		})
	}
}

// What somebody wrote in a chat is data in a command, whatever it looks like.
func TestNoValueBecomesPartOfACommand(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh")
	}
	for _, text := range []string{
		`$(touch pwned)`, "`touch pwned`", `'; touch pwned; '`, `"; touch pwned; "`, `${V1:-$(touch pwned)}`, "a\ntouch pwned\n", `\'; touch pwned #`,
		`$V1`, `'\''; touch pwned; '\''`, "E\ntouch pwned\ncat <<E", "-n", "*", "a  b", "%s%n", `!!`, "\\", `''`, "$${HOME}", "${HOME}", "é🙂",
	} {
		b := newBench(t, flow([]harness.Node{shellNode("a", "printf '%s' \"<${input.text}>${message.text}\"\ncat <<E >/dev/null\n${input.text}\nE\nV1x=1 # V2 is mine"), endNode}, "a > end"))
		if b.run.Input, err = json.Marshal(map[string]string{"text": text}); err != nil {
			t.Fatal(err)
		}
		b.run.Started.Text = text
		b.advance()
		command := exec.Command(sh, "-c", b.last.Effects[0].Text)
		command.Dir = t.TempDir()
		out, err := command.CombinedOutput()
		if want := "<" + text + ">" + text; err != nil || string(out) != want {
			t.Errorf("%q: printed %q, want %q, %v\n%s", text, out, want, err, b.last.Effects[0].Text)
		}
		if left, err := exec.Command("ls", "-A", command.Dir).Output(); err != nil || len(left) > 0 {
			t.Errorf("%q ran: %s %v", text, left, err)
		}
	}
	// NUL cannot be in an argument.
	b := newBench(t, flow([]harness.Node{shellNode("a", `echo "${input.text}"`), endNode}, "a > end"))
	b.run.Input = json.RawMessage(`{"text": "a\u0000b"}`)
	b.advance()
	if got := b.last.Effects[0].Text; strings.ContainsRune(got, 0) {
		t.Errorf("%q", got)
	}
}

func TestInputs(t *testing.T) {
	w := harness.Workflow{Inputs: []harness.WorkflowInput{{Name: "service", Type: "string", Required: true}, {Name: "n", Type: "integer"}, {Name: "x", Type: "number"}, {Name: "o", Type: "object"}}}
	for text, want := range map[string]string{
		`{"service": "a", "n": 1, "x": 2, "o": {"y": [1.5, 9007199254740993]}}`: `{"n":1,"o":{"y":[1.5,9007199254740993]},"service":"a","x":2}`,
		`{"service": 1}`:             "/service is of another type",
		`{"n": 1.5, "service": ""}`:  "/n is of another type",
		`{}`:                         "/service is missing",
		`{"service": "", "more": 1}`: "/more is no input of the workflow",
		`[]`:                         " is not a JSON object",
		`null`:                       " is not a JSON object",
		`{"service": ""} {}`:         " is not a JSON object",
		`{"service": "a\u0000b"}`:    `{"service":"ab"}`,
		"":                           "/service is missing",
		`{"service": "` + strings.Repeat("x", 10<<20) + `"}`: "is over 262144 bytes",
	} {
		got, problems := workflow.Input(w, json.RawMessage(text))
		said := string(got)
		if len(problems) > 0 {
			said = fmt.Sprint(problems)
		}
		if !strings.Contains(said, want) {
			t.Errorf("%.100q: %q, want %q", text, said, want)
		}
	}
	if got, problems := workflow.Input(harness.Workflow{}, json.RawMessage(`{"any": [1]}`)); len(problems) > 0 || string(got) != `{"any":[1]}` {
		t.Errorf("%s %v", got, problems)
	}
}

func TestSchedules(t *testing.T) {
	s, problem := workflow.Schedule(harness.Trigger{Type: "SCHEDULE", Schedule: "30 2 * * *", TimeZone: "Europe/Berlin"})
	if problem != nil {
		t.Fatal(problem)
	}
	if got, want := s.Next(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)).UTC(), time.Date(2026, 1, 2, 1, 30, 0, 0, time.UTC); !got.Equal(want) {
		t.Errorf("next %s, want %s", got, want)
	}
}
