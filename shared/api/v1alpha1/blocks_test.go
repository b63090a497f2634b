package v1alpha1_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
)

// What a revision is compared by: were it to change for a text that did not, an
// upgrade would give every agent a new revision and every sandbox an end.
func TestWhatAnAgentSaysIsWrittenAsBefore(t *testing.T) {
	const want = `{"name":"a","model":{"maxTokens":4096},"harness":{"enabled":true,"type":"BOTH","sandbox":{"imageRef":"python","command":["sh","-c"],"cpuMillis":1000,` +
		`"memoryBytes":536870912,"timeoutSeconds":300,"ttlSeconds":600,"idleSeconds":300,"volumeBytes":268435456,"workdir":"emptyDir","egress":"default","keepBackground":false},` +
		`"maxSandboxes":1,"channels":[{"type":"WEBHOOK","account":"h","secretRef":{"name":"s","key":"k"},"senders":{"policy":"allowlist","allow":["u"]},"idleTTL":86400000000000}]},` +
		`"budget":{"maxSteps":40,"maxToolCalls":30,"maxTokens":500000,"maxSeconds":3600,"maxExecutions":30}}`
	agent := read(t, head+"spec:\n  harness:\n    type: BOTH\n    sandbox: {imageRef: python}\n    channels: [{type: WEBHOOK, name: h, secretRef: {name: s, key: k}, senders: {allow: [u]}}]\n").Agent.Agent()
	got, err := json.Marshal(agent)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	if got := agent.Harness.Sandbox.Digest(); got != "60d0cfd9c011b7b8c3e1b80be7a4d86c" {
		t.Errorf("sandbox %s", got)
	}
}

func TestEgressAllowlist(t *testing.T) {
	public := v1alpha1.DefaultLimits()
	private := public
	private.AllowPrivateEgress = true
	inside := public
	inside.ClusterRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	const file = head + "spec:\n  harness:\n    type: CODE\n    sandbox:\n      egress: allowlist\n      egressAllow: [{cidr: \"CIDR\", ports: [443]}]\n"
	const private10 = "covers addresses of 10.0.0.0/8, which are private or the cluster's"
	for cidr, want := range map[string]struct{ public, private, inside string }{
		"203.0.113.0/24": {}, "203.0.113.7/32": {}, "2606:4700::/32": {}, "2606:4700::1111/128": {}, "1.0.0.0/8": {},
		"198.51.100.7/32":    {inside: "covers addresses of 198.51.100.0/24, which are private or the cluster's"},
		"198.51.0.0/16":      {inside: "covers addresses of 198.51.100.0/24, which are private or the cluster's"},
		"10.1.0.0/16":        {public: private10, inside: private10},
		"8.0.0.0/6":          {public: private10, inside: private10},
		"100.64.0.0/10":      {public: "covers addresses of 100.64.0.0/10, which are private or the cluster's", inside: "covers addresses of 100.64.0.0/10, which are private or the cluster's"},
		"fd00::/64":          {public: "covers addresses of fc00::/7, which are private or the cluster's", inside: "covers addresses of fc00::/7, which are private or the cluster's"},
		"0.0.0.0/0":          same("covers addresses of 0.0.0.0/8, which no sandbox may reach"),
		"::/0":               same("covers addresses of ::/96, which no sandbox may reach"),
		"169.254.169.254/32": same("covers addresses of 169.254.0.0/16, which no sandbox may reach"),
		"127.0.0.1/32":       same("covers addresses of 127.0.0.0/8, which no sandbox may reach"),
		"::ffff:a00:0/104":   same("covers addresses of ::ffff:0.0.0.0/96, which no sandbox may reach"),
		"64:ff9b::a00:0/104": same("covers addresses of 64:ff9b::/96, which no sandbox may reach"),
		"fe80::/10":          same("covers addresses of fe80::/10, which no sandbox may reach"),
		"203.0.113.7/24":     same("begins inside its range"),
		"203.0.113.7":        same("is not a range of addresses"),
		"203.0.113.0/33":     same("is not a range of addresses"),
		"example.com":        same("is not a range of addresses"),
	} {
		d := read(t, strings.Replace(file, "CIDR", cidr, 1))
		for _, test := range []struct {
			name   string
			limits v1alpha1.Limits
			want   string
		}{{"public", public, want.public}, {"private allowed", private, want.private}, {"cluster known", inside, want.inside}} {
			got := ""
			if problems := d.Validate(test.limits); len(problems) > 0 {
				got = problems[0].What
				if problems[0].Path != "spec.harness.sandbox.egressAllow[0].cidr" || problems[0].Line != 10 || problems[0].Fix == "" || len(problems) > 1 {
					t.Errorf("%s: %v", cidr, problems)
				}
			}
			if got != test.want {
				t.Errorf("%s, %s: %q, want %q", cidr, test.name, got, test.want)
			}
		}
	}
	got := read(t, strings.Replace(file, "CIDR", "203.0.113.0/24", 1)).Agent.Agent().Harness.Sandbox
	want := harness.DefaultSandbox()
	want.Egress, want.EgressAllow = harness.EgressAllowlist, []harness.EgressRule{{CIDR: "203.0.113.0/24", Ports: []int{443}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func same(what string) struct{ public, private, inside string } {
	return struct{ public, private, inside string }{what, what, what}
}

func TestImagesOfThePlatform(t *testing.T) {
	limits := v1alpha1.DefaultLimits()
	file := func(ref string) string {
		return head + "spec:\n  harness:\n    type: CODE\n    sandbox: {imageRef: " + ref + "}\n"
	}
	if got := read(t, file("ruby")).Validate(limits); len(got) != 1 || got[0].Fix != "use one of java, python, node, golang, or image with a full reference" || got[0].Line != 8 {
		t.Errorf("%v", got)
	}
	limits.ImageRefs = []string{"python", "ruby"}
	if got := read(t, file("ruby")).Validate(limits); len(got) > 0 {
		t.Errorf("%v", got)
	}
	if got := read(t, file("java")).Validate(limits); len(got) != 1 || got[0].Fix != "use one of python, ruby, or image with a full reference" {
		t.Errorf("%v", got)
	}
}

// What a block says is checked also where it is switched off.
func TestABlockThatIsOffIsChecked(t *testing.T) {
	d := read(t, head+"spec:\n  approvals: {enabled: false, polices: never, quorum: 3, reminders: [2h, soon]}\n")
	want := []string{
		"document 1, line 6: spec.approvals.polices is not a field: did you mean policy?",
		"document 1, line 6: spec.approvals.quorum is 3: use 1 to 1, or leave it out for the default",
		"document 1, line 6: spec.approvals.reminders[0] is 2h: use 1m0s to 1h0m0s, like 15m",
		"document 1, line 6: spec.approvals.reminders[1] is not a duration: use 1m0s to 1h0m0s, like 15m",
	}
	if diff := cmp.Diff(strings.Join(want, "\n"), d.Validate(v1alpha1.DefaultLimits()).Error()); diff != "" {
		t.Error(diff)
	}
}

// What an agent's revision has of MCP servers: nothing while the block is off, so
// that no step lists or calls them.
func TestMCPServers(t *testing.T) {
	const servers = `servers: [{name: gh, url: "https://example.com/mcp", headersSecretRef: {name: s, key: k}, allowedTools: [read, drop], approvals: %s, alwaysAsk: [drop], neverAsk: [read], timeoutSeconds: 9}, {name: other, url: "https://example.org/", approvals: asAgent}]`
	for enabled, want := range map[string]int{"": 2, "enabled: true, ": 2, "enabled: false, ": 0} {
		d := read(t, head+"spec:\n  mcpServers: {"+enabled+fmt.Sprintf(servers, "always")+"}\n")
		if problems := d.Validate(v1alpha1.DefaultLimits()); len(problems) > 0 {
			t.Fatal(problems)
		}
		got := d.Agent.Agent().MCPServers
		if len(got) != want {
			t.Fatalf("%q gives %+v", enabled, got)
		}
		if want == 0 {
			continue
		}
		if got[0].Policy("drop") != harness.RemoteAlways || got[0].Policy("read") != harness.RemoteNever || got[0].Policy("write") != harness.RemoteAlways || got[1].Policy("x") != harness.RemoteAsAgent {
			t.Errorf("policies %v %v %v %v", got[0].Policy("drop"), got[0].Policy("read"), got[0].Policy("write"), got[1].Policy("x"))
		}
		if got[0].Allows("write") || !got[0].Allows("read") || !got[1].Allows("write") || got[0].Timeout() != 9*time.Second || got[1].Timeout() != time.Minute {
			t.Errorf("%+v", got)
		}
	}
	d := read(t, head+"spec:\n  mcpServers: {enabled: false, servers: [{name: a, url: \"https://a\", allowedTools: [x], approvals: maybe, alwaysAsk: [x, z], neverAsk: [x], timeoutSeconds: 181}]}\n")
	want := []string{
		`document 1, line 6: spec.mcpServers.servers[0].approvals is "maybe": use asAgent, always or never`,
		`document 1, line 6: spec.mcpServers.servers[0].neverAsk[0] is "x", as an entry of alwaysAsk: keep it in one of them`,
		`document 1, line 6: spec.mcpServers.servers[0].alwaysAsk[1] is "z", which allowedTools does not list: add it there, or remove it here`,
		`document 1, line 6: spec.mcpServers.servers[0].timeoutSeconds is 181: use 1 to 180, or leave it out for the default`,
	}
	if diff := cmp.Diff(strings.Join(want, "\n"), d.Validate(v1alpha1.DefaultLimits()).Error()); diff != "" {
		t.Error(diff)
	}
}

// A block of guardrails that is off, or says nothing, leaves nothing in a revision:
// that is its switch. What is left out has its default there.
func TestGuardrailsOfARevision(t *testing.T) {
	const list = `input: [{name: j, type: MODEL, prompt: p, model: {name: m}}, {name: s, type: SECRET, action: redact}], toolCall: [{name: h, type: HTTP, url: "https://example.com/", headersSecretRef: {name: s, key: k}, timeoutSeconds: 5, onFailure: warn, tools: [x]}]`
	for text, want := range map[string]string{
		"guardrails: {}": "", "guardrails: {enabled: false, " + list + "}": "", "guardrails: null": "",
		"guardrails: {" + list + "}": `{"input":[{"name":"j","type":"MODEL","action":"block","prompt":"p","model":{"name":"m","maxTokens":4096},"timeoutSeconds":10,"onFailure":"block"},` +
			`{"name":"s","type":"SECRET","action":"redact"}],"toolCall":[{"name":"h","type":"HTTP","action":"block","tools":["x"],"url":"https://example.com/","headersSecretRef":{"name":"s","key":"k"},"timeoutSeconds":5,"onFailure":"warn"}]}`,
		"guardrails: {input: [{name: i, type: SECRET, action: ask}], toolCall: [{name: c, type: SECRET, action: ask}], toolOutput: [{name: t, type: SECRET, action: ask}], output: [{name: o, type: SECRET, action: ask}]}": `{"input":[{"name":"i","type":"SECRET","action":"block","approvable":true}],` +
			`"toolCall":[{"name":"c","type":"SECRET","action":"ask"}],"toolOutput":[{"name":"t","type":"SECRET","action":"block","approvable":true}],"output":[{"name":"o","type":"SECRET","action":"block","approvable":true}]}`,
	} {
		d := read(t, head+"spec:\n  "+text+"\n")
		if problems := d.Validate(v1alpha1.DefaultLimits()); len(problems) > 0 {
			t.Errorf("%s: %v", text, problems)
		}
		got := ""
		if g := d.Agent.Agent().Guardrails; g != nil {
			said, err := json.Marshal(g)
			if err != nil {
				t.Fatal(err)
			}
			got = string(said)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", text, diff)
		}
	}
}

// A file may hold both kinds; each has its own rules, and Parse gives the agents.
func TestAgentsAndWorkflowsInOneFile(t *testing.T) {
	file := `apiVersion: tuluat.ai/v1alpha1
kind: AiWorkflow
metadata: {name: w}
spec:
  start: b
  nodes:
    - {id: a, type: REPLY, text: hello}
    - {id: b, type: SHELL, agent: coder, command: make, colour: red}
    - {id: c, type: REPLY}
    - {id: d, type: END}
    - {id: d, type: MAGIC}
  edges:
    - {from: b, to: c, when: "nodes.b.exitCode == 0"}
    - {from: b, to: x}
    - {from: d, to: b}
---
` + head
	documents, err := v1alpha1.Read([]byte(file))
	if err != nil || len(documents) != 2 {
		t.Fatalf("%v, %v", documents, err)
	}
	if d := documents[0]; d.Kind != v1alpha1.KindWorkflow || d.Name() != "w" || len(d.Workflow.Spec.Nodes) != 5 || d.Workflow.Spec.Edges[0].When == "" {
		t.Errorf("%+v", d)
	}
	if d := documents[1]; d.Kind != v1alpha1.KindAgent || d.Name() != "a" || len(d.Validate(v1alpha1.DefaultLimits())) > 0 {
		t.Errorf("%+v", d)
	}
	want := []string{
		"document 1, line 8: spec.nodes[1].colour is not a field: the fields here are id, type, agent, prompt, command, timeoutSeconds, retries, join, text, approval, state",
		"document 1, line 9: spec.nodes[2].text is missing, which a node of type REPLY needs: add it, or change type",
		`document 1, line 11: spec.nodes[4].id is "d", as in an earlier entry: name each once`,
		`document 1, line 11: spec.nodes[4].type is "MAGIC": use AGENT, SHELL, APPROVAL, REPLY or END`,
		`document 1, line 14: spec.edges[1].to is "x", which is no node: use the id of a node`,
		`document 1, line 15: spec.edges[2].from is "d", which is of type END and ends the run: remove the edge`,
	}
	if diff := cmp.Diff(strings.Join(want, "\n"), documents[0].Validate(v1alpha1.DefaultLimits()).Error()); diff != "" {
		t.Error(diff)
	}
	linked := strings.NewReplacer("to: x", "to: d", "{from: d, to: b}", "{from: c, to: b}", ", colour: red", "", "id: c, type: REPLY", "id: c, type: REPLY, text: t", "{id: d, type: MAGIC}", "{id: e, type: REPLY, text: t}").Replace(file)
	documents, err = v1alpha1.Read([]byte(strings.Replace(linked, "  edges:", "  edges:\n    - {from: b, to: e}", 1)))
	if err != nil {
		t.Fatal(err)
	}
	want = []string{
		`document 1, line 7: spec.nodes[0] has no way in: no edges lead from "b" to "a": add an edge to it, or remove it`,
		`document 1, line 11: spec.nodes[4] has no way out: no edges lead from "e" to a node of type END: add an edge from it`,
	}
	if diff := cmp.Diff(strings.Join(want, "\n"), documents[0].Validate(v1alpha1.DefaultLimits()).Error()); diff != "" {
		t.Error(diff)
	}
	if _, err := v1alpha1.Parse([]byte(file)); err == nil || !strings.Contains(err.Error(), "colour") {
		t.Errorf("%v", err)
	}
	agents, err := v1alpha1.Parse([]byte(strings.Replace(file, ", colour: red", "", 1)))
	if err != nil || len(agents) != 1 || agents[0].Metadata.Name != "a" {
		t.Errorf("%v, %v", agents, err)
	}
}

// What an agent's revision has of peers: nothing while the block is off, which is
// also the switch for being one.
func TestPeers(t *testing.T) {
	const peers = `peers: [{name: p, description: d, url: "https://example.com/a2a/p", headersSecretRef: {name: s, key: k}, approvals: always, timeoutSeconds: 180}, {name: q, url: "https://example.org/", approvals: asAgent}]`
	for enabled, want := range map[string][]harness.Peer{
		"": {
			{Name: "p", URL: "https://example.com/a2a/p", Description: "d", Headers: harness.SecretRef{Name: "s", Key: "k"}, Approvals: harness.RemoteAlways, TimeoutSeconds: 180},
			{Name: "q", URL: "https://example.org/"},
		},
		"enabled: false, ": nil,
	} {
		d := read(t, head+"spec:\n  a2a: {"+enabled+peers+"}\n")
		if problems := d.Validate(v1alpha1.DefaultLimits()); len(problems) > 0 {
			t.Fatal(problems)
		}
		got := d.Agent.Agent().Peers
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%q: %s", enabled, diff)
		}
		if want != nil && (got[0].Policy() != harness.RemoteAlways || got[1].Policy() != harness.RemoteAsAgent || got[0].Timeout() != 3*time.Minute || got[1].Timeout() != time.Minute) {
			t.Errorf("%+v", got)
		}
	}
	for _, text := range []string{"{}", "{enabled: true}"} { // a peer of others, with none of its own
		d := read(t, head+"spec:\n  a2a: "+text+"\n")
		if problems := d.Validate(v1alpha1.DefaultLimits()); len(problems) > 0 || d.Agent.Agent().Peers != nil {
			t.Errorf("%s: %v, %v", text, problems, d.Agent.Agent().Peers)
		}
	}
	d := read(t, head+"spec:\n  a2a: {enabled: false, peers: [{name: a, url: \"ftp://a\", approvals: maybe, timeoutSeconds: 181}]}\n")
	want := []string{
		`document 1, line 6: spec.a2a.peers[0].approvals is "maybe": use asAgent, always or never`,
		`document 1, line 6: spec.a2a.peers[0].timeoutSeconds is 181: use 1 to 180, or leave it out for the default`,
	}
	got := d.Validate(v1alpha1.DefaultLimits()).Error()
	for _, line := range want {
		if !strings.Contains(got, line) {
			t.Errorf("%s\ndoes not say %s", got, line)
		}
	}
}
