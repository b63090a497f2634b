package crd

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"

	"tuluat.ai/harness/shared/api/v1alpha1"
)

const (
	config     = "../../../config/"
	agentHead  = "apiVersion: tuluat.ai/v1alpha1\nkind: AiAgent\nmetadata: {name: a}\n"
	agentsFile = config + "crd/tuluat.ai_aiagents.yaml"
	flowsFile  = config + "crd/tuluat.ai_aiworkflows.yaml"
)

func open(t *testing.T, file string) *Resource {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Read(t.Context(), text)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return r
}

func (r *Resource) admit(t *testing.T, text string) (object map[string]any, refused []string) {
	t.Helper()
	object, refused, err := r.Admit(t.Context(), []byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return object, refused
}

// strict is what a folder's reader says.
func strict(t *testing.T, text string) (v1alpha1.Document, v1alpha1.Problems) {
	t.Helper()
	documents, err := v1alpha1.Read([]byte(text))
	if err != nil || len(documents) != 1 {
		t.Fatalf("%d documents, %v\n%s", len(documents), err, text)
	}
	return documents[0], documents[0].Validate(limits())
}

// limits are those of a platform that allows what everything uses.
func limits() v1alpha1.Limits {
	l := v1alpha1.DefaultLimits()
	l.RuntimeClasses = []string{"gvisor"}
	return l
}

// everything uses every field that can be used.
const everything = agentHead + `spec:
  description: d
  systemPrompt: p
  model: {provider: openai, name: m, maxTokens: 5, temperature: 1.5, images: true, fallbacks: [{provider: anthropic, name: f}, {name: g, images: true}]}
  skills: {items: [{name: s, description: d, text: t}, {name: c, configMapRef: {name: m, key: k}}, {name: all, configMapRef: {name: m}}, {name: f, folder: skills/f}, {name: i, imageRef: {image: "registry.example/skills:1", path: /i, pullSecretRef: {name: r}}}]}
  guardrails:
    input: [{name: p, type: PATTERN, action: redact, patterns: [secret]}, {name: l, type: LENGTH, maxBytes: 10}, {name: a, type: PATTERN, allow: ["^order [0-9]+$"], action: warn}, {name: c, type: CEL, rule: "text.size() > 10", action: ask}]
    toolCall: [{name: m, type: MODEL, prompt: judge it, model: {name: m}, tools: [executeShell], text: stop, timeoutSeconds: 5, onFailure: warn}]
    toolOutput: [{name: s, type: SECRET, action: redact}, {name: p, type: PII, detect: [EMAIL, IBAN], tools: [executeShell], action: ask}]
    output: [{name: h, type: HTTP, url: "https://example.com/judge", headersSecretRef: {name: s, key: k}, action: ask}]
  mcpServers: {servers: [{name: m, url: "https://example.com/mcp", headersSecretRef: {name: s, key: k}, allowedTools: [read, write], approvals: always, alwaysAsk: [write], neverAsk: [read], timeoutSeconds: 9}, {name: p, command: [serve, -x], env: [{name: LEVEL, value: all}]}]}
  a2a: {peers: [{name: p, description: d, url: "https://example.com/agent", headersSecretRef: {name: s, key: k}, approvals: always, timeoutSeconds: 9}]}
  harness:
    type: BOTH
    maxSandboxes: 2
    sandbox: {imageRef: python, command: [sh, -c], memory: 1Gi, volumeSize: 1Gi, timeoutSeconds: 9, ttlSeconds: 20, idleSeconds: 10, workdir: persistent, keepBackground: true, runtimeClassName: gvisor,
      egress: allowlist, egressAllow: [{cidr: 203.0.113.0/24, ports: [443, 8443]}, {cidr: "2606:4700::/32"}], cpu: 2}
    channels:
      - {type: WEBHOOK, name: h, secretRef: {name: s, key: k}, callbackURL: "https://example.com/", fields: {messageId: $.id, channelUserId: $.u, chat: $.c, text: $.t, metadata: $.m}, idleTTL: 48h, senders: {allow: [u]}}
      - {type: WHATSAPP, phoneNumberId: "100000000000001", phoneNumber: "+15550009999", verifyTokenSecretRef: {name: s, key: k}, appSecretSecretRef: {name: s, key: k}, accessTokenSecretRef: {name: s, key: k},
        template: {name: t, language: en}, groups: all, senders: {policy: pairing, pairingCodeSecretRef: {name: s, key: k}}}
      - {type: TELEGRAM, bot: "@a_bot", botTokenSecretRef: {name: s, key: k}, webhookSecretRef: {name: s, key: k}, transport: poll, senders: {policy: allowlist, allow: ["1"]}}
  approvals: {enabled: false, policy: byTool, quorum: 2, timeout: 2h, onTimeout: wait, tools: [executeShell], approvers: [{user: u}, {group: g}, {channel: TELEGRAM, channelUserId: "1"}], reminders: [15m]}
  budget: {maxSteps: 1, maxToolCalls: 2, maxTokens: 3, maxSeconds: 4, maxExecutions: 5}
`

// What is accepted means the same in a folder and in a cluster: a revision must
// not change because the API server filled in a default.
func TestAcceptedAgentsMeanTheSameInFolderAndCluster(t *testing.T) {
	agents := map[string]string{
		"nothing":      agentHead,
		"empty blocks": agentHead + "spec: {model: {}, harness: {type: BOTH, sandbox: {}, channels: [{type: WEBHOOK, name: h, secretRef: {name: s, key: k}, senders: {allow: [u]}}]}, budget: {}}\n",
		"short life":   agentHead + "spec: {harness: {type: CODE, sandbox: {ttlSeconds: 100}}}\n", "off": agentHead + "spec: {harness: {enabled: false}}\n",
		"null": agentHead + "spec: {description: null, harness: {type: CODE, sandbox: {ttlSeconds: null, egress: null}}}\n", "everything": everything,
	}
	files, err := filepath.Glob(config + "samples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	samples := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "kind: AiAgent") {
			agents[file] = string(text)
			samples++
		}
	}
	if samples < 3 {
		t.Fatalf("only %d samples", samples)
	}
	crd := open(t, agentsFile)
	for name, text := range agents {
		t.Run(filepath.Base(name), func(t *testing.T) {
			document, problems := strict(t, text)
			object, refused := crd.admit(t, text)
			if len(problems) > 0 || len(refused) > 0 {
				t.Fatalf("refused:\n%v\n%q", problems, refused)
			}
			stored, err := json.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			var agent v1alpha1.AiAgent
			if err := json.Unmarshal(stored, &agent); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(document.Agent.Agent(), agent.Agent()); diff != "" {
				t.Errorf("-folder +cluster:\n%s", diff)
			}
			if problems := agent.Validate(limits()); len(problems) > 0 {
				t.Errorf("as stored: %v", problems)
			}
		})
	}
}

// Both sides know the same fields, of spec and of status.
func TestFolderAndClusterKnowTheSameFields(t *testing.T) {
	agents, flows := open(t, agentsFile), open(t, flowsFile)
	for _, test := range []struct {
		path   string
		schema schema.Structural
		typ    reflect.Type
	}{
		{"AiAgent.spec", agents.Schema.Properties["spec"], reflect.TypeFor[v1alpha1.Spec]()},
		{"AiAgent.status", agents.Schema.Properties["status"], reflect.TypeFor[v1alpha1.Status]()},
		{"AiWorkflow.spec", flows.Schema.Properties["spec"], reflect.TypeFor[v1alpha1.WorkflowSpec]()},
		{"AiWorkflow.status", flows.Schema.Properties["status"], reflect.TypeFor[v1alpha1.WorkflowStatus]()},
	} {
		if n := same(t, test.path, test.schema, test.typ); n < 5 {
			t.Errorf("%s: only %d fields were compared", test.path, n)
		}
	}
}

// same compares a schema with a type, and says how many fields it saw.
func same(t *testing.T, path string, s schema.Structural, typ reflect.Type) int {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if s.Generic.Description == "" && !strings.HasSuffix(path, "[]") {
		t.Errorf("%s has no description", path)
	}
	kind := map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Int: "integer", reflect.Int64: "integer", reflect.Float64: "number", reflect.Slice: "array", reflect.Struct: "object"}[typ.Kind()]
	switch typ.String() {
	case "time.Time":
		kind = "string"
	case "v1alpha1.Quantity":
		kind = ""
		if !s.XIntOrString {
			t.Errorf("%s is no int-or-string", path)
		}
	}
	if s.Type != kind {
		t.Errorf("%s is of type %q, and %s in Go", path, s.Type, typ)
	}
	switch kind {
	case "array":
		return same(t, path+"[]", *s.Items, typ.Elem())
	case "object":
		var known []string
		fields := 0
		for _, f := range reflect.VisibleFields(typ) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Anonymous {
				continue
			}
			known = append(known, name)
			property, ok := s.Properties[name]
			if !ok {
				t.Errorf("the cluster does not know %s.%s", path, name)
				continue
			}
			fields += 1 + same(t, path+"."+name, property, f.Type)
		}
		for name := range s.Properties {
			if !slices.Contains(known, name) {
				t.Errorf("the reader does not know %s.%s", path, name)
			}
		}
		return fields
	}
	return 0
}

// What an API server stores without a bound, anyone who may write an agent
// could fill its database with.
func TestEverythingHasABound(t *testing.T) {
	for _, file := range []string{agentsFile, flowsFile} {
		r := open(t, file)
		bounded(t, r.Kind+".spec", r.Schema.Properties["spec"])
	}
}

func bounded(t *testing.T, path string, s schema.Structural) {
	v := s.ValueValidation
	switch {
	case v == nil:
		v = &schema.ValueValidation{}
		fallthrough
	case s.Type == "string":
		if s.Type == "string" && v.MaxLength == nil && len(v.Enum) == 0 && v.Pattern == "" {
			t.Errorf("%s: a text of any length", path)
		}
	case s.Type == "array" && v.MaxItems == nil:
		t.Errorf("%s: a list of any length", path)
	case (s.Type == "integer" || s.Type == "number") && (v.Minimum == nil || v.Maximum == nil):
		t.Errorf("%s: a number of any size", path)
	}
	for name, property := range s.Properties {
		bounded(t, path+"."+name, property)
	}
	if s.Items != nil {
		bounded(t, path+"[]", *s.Items)
	}
}

func TestHowKubectlShowsThem(t *testing.T) {
	for file, want := range map[string]string{
		agentsFile: "aia tuluat [Phase:.status.phase Sandboxes:.status.activeSandboxes Last Execution:.status.lastExecutionStatus Age:.metadata.creationTimestamp]",
		flowsFile:  "aiw tuluat [Phase:.status.phase Sessions:.status.activeSessions Age:.metadata.creationTimestamp]",
	} {
		crd := definitionOf(t, file)
		var columns []string
		for _, c := range crd.Spec.Versions[0].AdditionalPrinterColumns {
			columns = append(columns, c.Name+":"+c.JSONPath)
		}
		got := fmt.Sprint(strings.Join(crd.Spec.Names.ShortNames, ","), " ", strings.Join(crd.Spec.Names.Categories, ","), " ", columns)
		if got != want || crd.Spec.Versions[0].Subresources.Status == nil {
			t.Errorf("%s: %s", file, got)
		}
	}
}
