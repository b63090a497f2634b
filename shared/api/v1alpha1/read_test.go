package v1alpha1_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
)

const head = "apiVersion: tuluat.ai/v1alpha1\nkind: AiAgent\nmetadata:\n  name: a\n"

func TestEverySampleIsAccepted(t *testing.T) {
	files, err := filepath.Glob("../../../config/samples/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d samples, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		documents, err := v1alpha1.Read(text)
		if err != nil || len(documents) != 1 {
			t.Fatalf("%s: %d documents, %v", file, len(documents), err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		if problems := documents[0].Validate(v1alpha1.DefaultLimits()); len(problems) > 0 {
			t.Errorf("%s:\n%v", file, problems)
		}
		if documents[0].Kind == v1alpha1.KindWorkflow {
			if documents[0].Name() != name {
				t.Errorf("%s: the workflow must be named after the file: %s", file, documents[0].Name())
			}
			continue
		}
		agent := documents[0].Agent.Agent()
		if string(agent.Name) != name || agent.Harness.Channels[0].Account != name || agent.Harness.Channels[0].Secret.Name != name+"-hook" {
			t.Errorf("%s: agent, hook and secret must be named after the file: %+v", file, agent)
		}
	}
}

// The form of a file is refused with document, line and field path.
func TestRefusedForms(t *testing.T) {
	tests := map[string]struct{ file, want string }{
		"unknown field": {
			head + "spec:\n  harness:\n    type: CODE\n    sandbox:\n      memry: 512Mi\n",
			`document 1, line 9: spec.harness.sandbox.memry is not a field: did you mean memory?`,
		},
		"unknown field in the second document": {
			head + "---\n" + head + "spec:\n  colour: red\n",
			`document 2, line 11: spec.colour is not a field: the fields here are description, model, systemPrompt, skills, guardrails, mcpServers, a2a, harness, approvals, budget, logs`,
		},
		"unknown field in a list": {
			head + "spec:\n  harness:\n    channels:\n      - type: WEBHOOK\n        secretref: {}\n",
			`document 1, line 9: spec.harness.channels[0].secretref is not a field: did you mean secretRef?`,
		},
		"another kind": {
			"apiVersion: tuluat.ai/v1alpha1\nkind: Pod\nspec: {containers: []}\n",
			`document 1, line 2: kind is "Pod", which this release does not know: write AiAgent or AiWorkflow`,
		},
		"another version": {
			"apiVersion: tuluat.ai/v2\nkind: AiAgent\n",
			`document 1, line 1: apiVersion is "tuluat.ai/v2", which this release does not know: write tuluat.ai/v1alpha1`,
		},
		"no kind":               {"apiVersion: tuluat.ai/v1alpha1\n", `document 1, line 1: kind is missing: write kind: AiAgent or AiWorkflow`},
		"a list":                {"- a\n", `document 1, line 1: is not an object: begin with apiVersion: tuluat.ai/v1alpha1`},
		"written twice":         {head + "kind: AiAgent\n", `document 1, line 5: kind is written twice: keep one of them`},
		"number as text":        {head + "spec:\n  description: 12\n", `document 1, line 6: spec.description must be text: put it in quotes`},
		"YAML 1.1 boolean":      {head + "spec:\n  description: yes\n", `document 1, line 6: spec.description must be text, and this word alone is a boolean: put it in quotes`},
		"boolean as label":      {head + "  labels:\n    x: true\n", `document 1, line 6: metadata.labels.x must be text: put it in quotes`},
		"text as number":        {head + "spec:\n  budget:\n    maxSteps: \"4\"\n", `document 1, line 7: spec.budget.maxSteps must be a whole number`},
		"number too large":      {head + "spec:\n  budget:\n    maxSteps: 99999999999999999999\n", `document 1, line 7: spec.budget.maxSteps must be a whole number`},
		"fraction as number":    {head + "spec:\n  budget:\n    maxSteps: 4.5\n", `document 1, line 7: spec.budget.maxSteps must be a whole number`},
		"text as boolean":       {head + "spec:\n  harness:\n    enabled: \"true\"\n", `document 1, line 7: spec.harness.enabled must be true or false`},
		"object as text":        {head + "spec:\n  description: {a: b}\n", `document 1, line 6: spec.description must be a single value`},
		"text as object":        {head + "spec: text\n", `document 1, line 5: spec must be an object: write its fields below it, indented`},
		"object as list":        {head + "spec:\n  harness:\n    channels: {}\n", `document 1, line 7: spec.harness.channels must be a list: begin each entry with a dash`},
		"alias":                 {head + "spec:\n  description: &d text\n  systemPrompt: *d\n", "document 1, line 6: spec.description uses a YAML anchor or alias: write the value out\ndocument 1, line 7: spec.systemPrompt uses a YAML anchor or alias: write the value out"},
		"NUL":                   {head + "spec:\n  description: \"a\\0b\"\n", `document 1, line 6: spec.description contains a NUL character: remove it`},
		"a key that is no text": {head + "spec:\n  1: x\n", `document 1, line 6: spec has a key that is not text: write the key as text`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			agents, err := v1alpha1.Parse([]byte(test.file))
			if agents != nil || harness.KindOf(err) != harness.Invalid {
				t.Fatalf("got %v, %v", agents, err)
			}
			if diff := cmp.Diff(test.want, err.Error()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestBrokenYAMLKeepsTheDocumentsBeforeIt(t *testing.T) {
	documents, err := v1alpha1.Read([]byte(head + "---\n" + "apiVersion: [\n"))
	if harness.KindOf(err) != harness.Invalid || !strings.HasPrefix(err.Error(), "document 2: is not YAML: ") {
		t.Errorf("error: %v", err)
	}
	if len(documents) != 1 || documents[0].Agent.Metadata.Name != "a" {
		t.Errorf("documents: %+v", documents)
	}
}

func TestOversizeFile(t *testing.T) {
	if _, err := v1alpha1.Read(make([]byte, v1alpha1.MaxFileBytes+1)); harness.KindOf(err) != harness.Invalid {
		t.Errorf("got %v", err)
	}
}

func TestEmptyDocumentsAndJSON(t *testing.T) {
	file := "# nothing yet\n---\n---\n" + `{"apiVersion": "tuluat.ai/v1alpha1", "kind": "AiAgent", "metadata": {"name": "a"},
		"spec": {"harness": {"type": "CODE", "sandbox": {"cpu": 2, "memory": "1Gi", "ttlSeconds": null}}}}`
	agents, err := v1alpha1.Parse([]byte(file))
	if err != nil || len(agents) != 1 {
		t.Fatalf("%v, %v", agents, err)
	}
	if s := agents[0].Agent().Harness.Sandbox; s.CPUMillis != 2000 || s.MemoryBytes != 1<<30 || s.TTLSeconds != 600 {
		t.Errorf("sandbox %+v", s)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(head))
	f.Add([]byte(head + "spec:\n  harness: {type: CODE, channels: [{}]}\n---\n- x\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		documents, _ := v1alpha1.Read(file)
		for _, d := range documents {
			if len(d.Validate(v1alpha1.DefaultLimits())) == 0 {
				d.Agent.Agent()
			}
		}
	})
}
