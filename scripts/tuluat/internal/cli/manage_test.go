package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

const hostile = "a\\u001b[31mred\\u001b[0m\\u202egnp\\u009b\\nnext"

func TestEmptyListsAreLists(t *testing.T) {
	f := newFake(t)
	for path, command := range map[string][]string{
		"agents": {"get", "agent"}, "workflows": {"get", "workflow"}, "sessions": {"session", "list"}, "approvals": {"approval", "list"}, "sandboxes": {"sandbox", "list"},
		"executions": {"execution", "list"}, "deadletters": {"deadletter", "list"}, "channels": {"channel", "list"}, "audit": {"audit", "list"}, "logs": {"logs"},
		"sessions/ses_1/messages": {"session", "messages", "ses_1"}, "sessions/ses_1/timeline": {"session", "timeline", "ses_1"},
	} {
		if path != "agents" {
			f.say("GET /api/v1/"+path, 200, `{"items":[]}`)
		}
		for _, format := range []string{"json", "yaml"} {
			if got := f.run(append(command, "-o", format)...); got.code != 0 || got.out != "[]\n" || got.errOut != "" {
				t.Errorf("%v -o %s: %+v", command, format, got)
			}
		}
	}
	if got := f.run("get", "agents"); got.code != 0 || got.out != "" || got.errOut != "There are no agents.\n" {
		t.Errorf("%+v", got)
	}
}

func TestHostileTexts(t *testing.T) {
	f := newFake(t)
	f.say("GET /api/v1/sessions", 200, `{"items":[{"id":"ses_1","agent":"`+hostile+`","state":"IDLE","channel":"API","chat":"`+hostile+`","reason":"`+hostile+`"}]}`)
	f.say("GET /api/v1/sessions/ses_1", 200, `{"id":"ses_1","agent":"`+hostile+`","state":"IDLE","chat":"`+hostile+`"}`)
	f.say("GET /api/v1/sessions/ses_1/messages", 200, `{"items":[{"id":"msg_1","direction":"INBOUND","state":"DONE","channelUserId":"`+hostile+`","text":"`+hostile+`","attachments":[{"fileName":"`+hostile+`","state":"`+hostile+`"}]},
		{"id":"msg_2","direction":"OUTBOUND","state":"DONE","text":"x","parts":[{"state":"FAILED","reason":"`+hostile+`"}]}]}`)
	f.say("GET /api/v1/sessions/ses_1/timeline", 200, `{"items":[{"kind":"TOOL_CALL","id":"`+hostile+`","toolCall":{"name":"executeShell","arguments":"{\"command\":\"`+hostile+`\"}","state":"DONE"}}]}`)
	f.say("GET /api/v1/logs", 200, `{"items":[{"id":1,"agent":"`+hostile+`","level":"INFO","message":"`+hostile+`","node":"`+hostile+`"}]}`)
	f.say("GET /api/v1/audit", 200, `{"items":[{"id":1,"actor":"`+hostile+`","object":"`+hostile+`","state":"REFUSED","reason":"`+hostile+`"}]}`)
	f.say("GET /api/v1/approvals/apr_1", 200, `{"id":"apr_1","agent":"a","state":"PENDING","title":"`+hostile+`","input":{"command":"`+hostile+`","`+hostile+`":{"a":["`+hostile+`"]}},"digest":"d"}`)
	f.say("GET /api/v1/deadletters/1", 200, `{"id":1,"type":"`+hostile+`","cause":"`+hostile+`","payload":{"`+hostile+`":"`+hostile+`"}}`)
	f.say("GET /api/v1/executions/exe_1", 200, `{"id":"exe_1","state":"FAILED","command":"`+hostile+`","reason":"`+hostile+`"}`)
	f.say("GET /api/v1/executions/exe_2", 404, `{"detail":"`+hostile+`","errors":[{"pointer":"`+hostile+`","detail":"`+hostile+`"}]}`)
	f.agent("x", "metadata: {labels: {\"a\": \"\\u202egnp\"}}\nspec: {description: \"red \\u001b[31m\"}\nstatus: {phase: READY, conditions: [{type: Accepted, status: \"False\", reason: R, message: \"\\u001b]0;title\\u0007\\nline\"}]}")
	f.say("GET /api/v1/agents/x/sandboxes", 200, `{"items":[]}`)
	f.say("GET /api/v1/agents/x/logs", 403, `{"detail":"`+hostile+`"}`)
	for _, command := range []string{
		"session list", "session show ses_1", "session messages ses_1", "session timeline ses_1", "logs", "audit list", "approval show apr_1", "deadletter show 1", "execution show exe_1", "execution show exe_2",
		"get agent x", "describe agent x", "approval approve apr_1",
	} {
		args := strings.Fields(command)
		f.run(args...) // run looks for control characters
		if slices.Contains([]string{"describe", "approval"}, args[0]) || args[0] == "execution" && args[2] == "exe_2" {
			continue
		}
		for _, format := range []string{"json", "yaml"} {
			got := f.run(append(args, "-o", format)...)
			var value any
			if err := yaml.Unmarshal([]byte(got.out), &value); err != nil || got.code != 0 {
				t.Errorf("%s -o %s: %v %+v", command, format, err, got)
				continue
			}
			// The escapes mean the same: what is read back holds the text itself.
			if text := fmt.Sprint(value); !strings.Contains(text, "\x1b") && !strings.Contains(text, "\u202e") {
				t.Errorf("%s -o %s has lost text: %q", command, format, got.out)
			}
		}
	}
	got := f.run("session", "messages", "ses_1")
	if !strings.Contains(got.out, "  a^[[31mred^[[0m<U+202E>gnp<U+009B>\n  next\n") || !strings.Contains(got.out, "(failed: a^[[31mred") {
		t.Errorf("%q", got.out)
	}
	if got := f.run("session", "list"); strings.Count(got.out, "\n") != 2 {
		t.Errorf("a text has broken its line: %q", got.out)
	}
}

func TestProblems(t *testing.T) {
	for status, c := range map[int]struct {
		code int
		want []string
	}{
		400: {1, []string{"bad (400)", "  query/limit: is too much"}},
		401: {5, []string{"does not know the token", "tuluat login"}},
		403: {5, []string{"bad (403)", "tuluat whoami", "tuluat-viewer"}},
		404: {3, []string{"session ses_1: bad (404)"}},
		409: {6, []string{"bad (409)"}},
		412: {6, []string{"Somebody has changed it", "nothing was done"}},
		413: {1, []string{"1 MiB"}},
		422: {1, []string{"bad (422)", "  spec.harness.channels[2].name: is missing"}},
		428: {6, []string{"tuluat of its version"}},
		429: {1, []string{"Try again in 1h0m0s."}},
		500: {1, []string{"bad (500)", "request req_1"}},
		503: {1, []string{"bad (503)", "Try again."}},
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			f := newFake(t)
			f.mux.HandleFunc("GET /api/v1/sessions/ses_1", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "3600")
				f.problem(w, status, "bad", map[int][]string{400: {"query/limit", "is too much"}, 422: {"#/spec/harness/channels/2/name", "is missing"}}[status]...)
			})
			got := f.run("session", "show", "ses_1")
			if got.code != c.code || got.out != "" {
				t.Errorf("%+v", got)
			}
			for _, want := range c.want {
				if !strings.Contains(got.errOut, want) {
					t.Errorf("%q lacks %q", got.errOut, want)
				}
			}
		})
	}
}

func TestUsageOfManagement(t *testing.T) {
	f := newFake(t)
	for command, want := range map[string]string{
		"get":                                         "",
		"get pods":                                    "unknown command",
		"get agent -o xml":                            "table, json or yaml",
		"get agent --limit -1":                        "0 or more",
		"get agent --status LAZY":                     "READY, DEGRADED, INVALID",
		"session list --since yesterday":              "neither like 10m",
		"session list --channel pigeon":               "WHATSAPP",
		"session messages ses_1 -f -o yaml":           "-o json",
		"session messages ses_1 --after x":            "-f -o json",
		"apply":                                       "-f",
		"apply -f x --dry-run --wait":                 "no meaning",
		"agent enable a speed":                        "guardrails, mcpServers, a2a, harness, skills",
		"agent enable a":                              "arg(s)",
		"delete agent":                                "arg(s)",
		"deadletter replay abc":                       "numbers",
		"logs --level LOUD":                           "DEBUG",
		"logs -f -o yaml":                             "-f goes with",
		"execution output exe_1 --stream both":        "stdout or stderr",
		"login":                                       "arg(s)",
		"login https://a --kubeconfig --token-file x": "none of the others can be",
	} {
		got := f.run(strings.Fields(command)...)
		if want == "" {
			if got.code != 0 || !strings.Contains(got.out, "Available Commands") {
				t.Errorf("%s: %+v", command, got)
			}
			continue
		}
		if got.code != 2 || !strings.Contains(got.errOut, want) || got.out != "" {
			t.Errorf("%s: %+v, want %q", command, got, want)
		}
	}
	if all := f.asked(); len(all) > 0 {
		t.Errorf("usage errors have asked for %q", all)
	}
	f.agent("a", "spec: {}")
	for _, command := range []string{"delete agent a", "session cancel ses_1", "sandbox kill sbx_1", "deadletter discard 1"} {
		if got := f.run(strings.Fields(command)...); got.code != 2 || !strings.Contains(got.errOut, "--yes") {
			t.Errorf("%s without a terminal: %+v", command, got)
		}
	}
	for _, asked := range f.asked() {
		if !strings.HasPrefix(asked, "GET ") {
			t.Errorf("without consent it has asked for %s", asked)
		}
	}
}

func TestGetAndDelete(t *testing.T) {
	f := newFake(t)
	f.agent("coder", "spec: {harness: {type: CODE}, guardrails: {enabled: false}, skills: {}, later: {x: 1.50}}\nstatus: {phase: DEGRADED, activeSessions: 2, activeSandboxes: 1, lastExecutionAt: \"2026-01-02T03:04:05Z\", lastExecutionStatus: FAILED, conditions: [{type: Ready, status: \"False\", reason: NotReady}, {type: SecretsAvailable, status: \"False\", reason: SecretNotFound, message: \"Secret a has no key b\"}]}")
	f.agent("talker", "spec: {description: hi}")
	got := f.run("get", "agent")
	if rows := strings.Split(got.out, "\n"); got.code != 0 || len(rows) != 4 || !strings.HasPrefix(rows[0], "NAME     PHASE      SESSIONS   SANDBOXES") ||
		!strings.Contains(rows[1], "harness,skills") || !strings.HasSuffix(rows[1], "SecretNotFound: Secret a has no key b") || rows[2] != strings.TrimRight(rows[2], " ") {
		t.Errorf("%+v", got)
	}
	got = f.run("get", "aiagent", "coder", "-o", "yaml")
	var o map[string]any
	if err := yaml.Unmarshal([]byte(got.out), &o); err != nil || o["kind"] != "AiAgent" || !strings.Contains(got.out, "later:\n    x: 1.5\n") {
		t.Errorf("%v %+v", err, got)
	}
	if got = f.run("get", "agent", "coder", "none"); got.code != 3 || !strings.Contains(got.errOut, "agent none: there is no agent of this name (404)") {
		t.Errorf("%+v", got)
	}
	if got = f.run("get", "agent", "coder", "talker", "-o", "json"); !json.Valid([]byte(got.out)) || !strings.HasPrefix(got.out, "[") {
		t.Errorf("%+v", got)
	}
	f.asked()
	if got = f.run("delete", "agent", "coder", "none", "--yes"); got.code != 3 || len(f.asked()) != 2 {
		t.Errorf("one of two does not exist, so none is deleted: %+v", got)
	}
	if got = f.run("delete", "agent", "coder", "none", "-y", "--ignore-not-found"); got.code != 0 || got.out != "agent/coder deleted\n" {
		t.Errorf("%+v", got)
	}
	f.mu.Lock()
	match := f.headers[2].Get("If-Match")
	f.mu.Unlock()
	if all := f.asked(); len(all) != 3 || all[2] != "DELETE /api/v1/agents/coder" || match != `"1"` {
		t.Errorf("asked %q, If-Match %s", all, match)
	}
}

func TestSwitches(t *testing.T) {
	f := newFake(t)
	f.agent("coder", "spec: {harness: {type: CODE}, guardrails: {enabled: false}}")
	for _, c := range []struct{ command, want string }{
		{"agent enable coder guardrails harness", "agent/coder guardrails, harness enabled\n"},
		{"agent enable coder guardrails", "agent/coder guardrails already enabled\n"},
		{"agent disable coder guardrails", "agent/coder guardrails disabled\n"},
	} {
		if got := f.run(strings.Fields(c.command)...); got.code != 0 || got.out != c.want {
			t.Errorf("%s: %+v", c.command, got)
		}
	}
	if got := f.run("agent", "enable", "coder", "skills"); got.code != 1 || !strings.Contains(got.errOut, "skills: is a block that the agent does not have") {
		t.Errorf("%+v", got)
	}
}

func TestApply(t *testing.T) {
	f := newFake(t)
	folder := t.TempDir()
	write(t, folder, "a.yaml", "# the first\n"+agentYAML("one", "  harness: {type: CODE}\n")+"---\n"+agentYAML("two", ""))
	write(t, folder, "b.yml", "---\n# nothing\n---\napiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n")
	write(t, folder, "note.txt", "kind: [")
	got := f.run("apply", "-f", folder, "--dry-run")
	if got.code != 0 || got.out != "agent/one created (dry run)\nagent/two created (dry run)\n" || !strings.Contains(got.errOut, "b.yml:4: a Kustomization") || len(f.objects) != 0 {
		t.Fatalf("%+v", got)
	}
	if got = f.run("apply", "-f", folder); got.out != "agent/one created\nagent/two created\n" || len(f.objects) != 2 {
		t.Fatalf("%+v", got)
	}
	f.mu.Lock()
	sent := f.bodies[len(f.bodies)-2]
	f.mu.Unlock()
	if sent != "# the first\n"+agentYAML("one", "  harness: {type: CODE}\n") {
		t.Errorf("a document is not sent as its author wrote it: %q", sent)
	}
	write(t, folder, "a.yaml", agentYAML("one", "  harness: {type: CODE}\n")+"---\n"+agentYAML("two", "  skills: {}\n"))
	f.asked()
	if got = f.run("apply", "-f", folder, "--dry-run"); got.out != "agent/one unchanged (dry run)\nagent/two configured (dry run)\n" {
		t.Errorf("%+v", got)
	}
	if got = f.run("apply", "-f", folder); got.out != "agent/one unchanged\nagent/two configured\n" {
		t.Errorf("%+v", got)
	}
	if got = f.run("apply", "-f", folder); got.out != "agent/one unchanged\nagent/two unchanged\n" {
		t.Errorf("again: %+v", got)
	}
	written := 0
	for _, asked := range f.asked() {
		if !strings.HasPrefix(asked, "GET ") && !strings.HasSuffix(asked, "?dryRun=true") {
			written++
		}
	}
	if written != 1 {
		t.Errorf("%d writes for one change", written)
	}
	if got = f.with(f.env(), agentYAML("three", ""), "apply", "-f", "-", "-o", "json"); got.code != 0 || !strings.HasPrefix(got.out, "[\n") || !strings.Contains(got.out, `"name": "three"`) {
		t.Errorf("%+v", got)
	}
}

func TestApplyRefused(t *testing.T) {
	f := newFake(t)
	folder := t.TempDir()
	file := write(t, folder, "all.yaml", agentYAML("good", "")+"---\n"+agentYAML("bad", "  harness:\n    channels:\n      - {}\n      - type: WEBHOOK\n  colour: red\n"))
	got := f.run("apply", "-f", file)
	want := fmt.Sprintf("tuluat: %[1]s:18: spec.colour: is no field: remove it\n%[1]s:17: spec.harness.channels[1].name: is ^[[31mmissing\nNothing was applied.\n", file)
	if got.code != 1 || got.errOut != want || got.out != "" || len(f.objects) != 0 {
		t.Errorf("%+v\nwant %s", got, want)
	}
	for name, c := range map[string]struct{ text, want string }{
		"no YAML":        {"a: [", ":1: yaml:"},
		"a key twice":    {agentYAML("a", "  description: again\n"), "already defined"},
		"no name":        {"kind: AiAgent\nmetadata: {}\n", "metadata.name is missing"},
		"another kind":   {"kind: Pod\nmetadata: {name: a}\n", `kind is "Pod"`},
		"a list":         {"- a\n", "is not a mapping"},
		"twice":          {agentYAML("a", "") + "---\n" + agentYAML("a", ""), "is there twice, first at"},
		"nothing":        {"# nothing\n---\n", "holds no AiAgent and no AiWorkflow"},
		"a number key":   {"kind: AiAgent\nmetadata: {name: a}\nspec: {1: {2: 3}}\n", "is no text"},
		"not a number":   {"kind: AiAgent\nmetadata: {name: a}\nspec: {x: .nan}\n", "JSON has not"},
		"a second error": {"kind: Pod\n---\nkind: Secret\n", `"Secret"`},
		"a bomb":         {"a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n", "excessive aliasing"},
	} {
		f.asked()
		if got := f.run("apply", "-f", write(t, folder, "x.yaml", c.text)); got.code != 1 || !strings.Contains(got.errOut, c.want) || len(f.asked()) != 0 {
			t.Errorf("%s: %+v, want %q", name, got, c.want)
		}
	}
	if got := f.run("apply", "-f", filepath.Join(folder, "none.yaml")); got.code != 1 || !strings.Contains(got.errOut, "none.yaml") {
		t.Errorf("%+v", got)
	}
}

// What other tools have written beside the spec stays; our own follows the file.
func TestApplyKeepsWhatOtherToolsWrote(t *testing.T) {
	f := newFake(t)
	f.agent("one", "metadata: {labels: {plain: a, argocd.argoproj.io/instance: x}, annotations: {tuluat.ai/allow-open-code: \"true\", deploy.example.com/by: ann}}\nspec: {description: An agent.}")
	file := write(t, t.TempDir(), "one.yaml", agentYAML("one", ""))
	if got := f.run("apply", "-f", file); got.out != "agent/one configured\n" {
		t.Errorf("%+v", got)
	}
	metadata := f.objects["one"]["metadata"].(map[string]any)
	if text := fmt.Sprint(metadata["labels"], metadata["annotations"]); text != "map[argocd.argoproj.io/instance:x] map[deploy.example.com/by:ann]" {
		t.Error(text)
	}
	if got := f.run("apply", "-f", file); got.out != "agent/one unchanged\n" {
		t.Errorf("%+v", got)
	}
}

// Somebody writes between our look and our write.
func TestApplyConflict(t *testing.T) {
	f := newFake(t)
	f.agent("one", "spec: {description: old}")
	f.mux.HandleFunc("PUT /api/v1/agents/one", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("dryRun") == "" {
			f.agent("one", "spec: {description: theirs}")
		}
		r.SetPathValue("name", "one")
		f.put(w, r)
	})
	got := f.run("apply", "-f", write(t, t.TempDir(), "one.yaml", agentYAML("one", "")))
	if got.code != 6 || !strings.Contains(got.errOut, "Somebody has changed it meanwhile") || f.objects["one"]["spec"].(map[string]any)["description"] != "theirs" {
		t.Errorf("%+v", got)
	}
}

func TestApplyWait(t *testing.T) {
	condition := func(kind, status, reason, message string) map[string]any {
		return map[string]any{"type": kind, "status": status, "reason": reason, "message": message}
	}
	f := newFake(t)
	file := write(t, t.TempDir(), "one.yaml", agentYAML("one", ""))
	f.status = map[string]any{"phase": "READY", "observedGeneration": 1}
	if got := f.run("apply", "-f", file, "--wait"); got.code != 0 || got.errOut != "agent/one is READY\n" {
		t.Errorf("%+v", got)
	}
	f.status = map[string]any{"phase": "INVALID", "observedGeneration": 2, "conditions": []any{condition("Accepted", "False", "Invalid", "spec.model.name is missing\nwrite one")}}
	got := f.run("apply", "-f", write(t, t.TempDir(), "one.yaml", agentYAML("one", "  skills: {}\n")), "--wait")
	if got.code != 1 || !strings.Contains(got.errOut, "agent/one was refused:\n  Accepted is False (Invalid): spec.model.name is missing\n    write one\n") {
		t.Errorf("%+v", got)
	}
	// READY is said of an older text, and then the new one lacks a Secret.
	f.status = map[string]any{"phase": "READY", "observedGeneration": 2}
	file = write(t, t.TempDir(), "one.yaml", agentYAML("one", "  skills: {items: []}\n"))
	looks := 0
	f.mux.HandleFunc("GET /api/v1/agents/one", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		if looks++; looks == 3 {
			f.objects["one"]["status"] = map[string]any{"phase": "DEGRADED", "observedGeneration": 3, "conditions": []any{condition("SecretsAvailable", "False", "SecretNotFound", "no Secret a")}}
		}
		f.mu.Unlock()
		r.SetPathValue("name", "one")
		f.get(w, r)
	})
	got = f.run("apply", "-f", file, "--wait", "--timeout", "2500ms")
	if got.code != 4 || !strings.Contains(got.errOut, "agent/one: nobody has looked at it yet\nagent/one: is DEGRADED: SecretNotFound: no Secret a\n") ||
		!strings.Contains(got.errOut, "is not READY within 2.5s:\n  SecretsAvailable is False (SecretNotFound): no Secret a\n") {
		t.Errorf("%+v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if got := f.through(ctx, f.env(), strings.NewReader(""), "apply", "-f", file, "--wait"); got.code != 130 {
		t.Errorf("interrupted: %+v", got)
	}
}

func TestLogin(t *testing.T) {
	f := newFake(t)
	home := t.TempDir()
	env := map[string]string{"XDG_CONFIG_HOME": home, "HOME": home}
	config := filepath.Join(home, "tuluat", "config.json")
	if got := f.with(env, "", "whoami"); got.code != 3 || !strings.Contains(got.errOut, "tuluat login URL") {
		t.Errorf("before: %+v", got)
	}
	if got := f.with(env, "wrong\n", "login", f.url); got.code != 5 || !strings.Contains(got.errOut, "does not know the token") {
		t.Errorf("a wrong token: %+v", got)
	}
	if _, err := os.Stat(config); !os.IsNotExist(err) {
		t.Errorf("a wrong token is kept: %v", err)
	}
	for _, stdin := range []string{"", "two words", "Zeile\u00e9"} {
		if got := f.with(env, stdin, "login", f.url); got.code != 1 {
			t.Errorf("%q as token: %+v", stdin, got)
		}
	}
	if got := f.with(env, "x", "login", "http://agents.example.com"); got.code != 1 || !strings.Contains(got.errOut, "--plain-http") {
		t.Errorf("without encryption: %+v", got)
	}
	if got := f.with(env, apiToken+"\n", "login", f.url+"/api/v1/"); got.code != 0 || !strings.Contains(got.out, "as ann") {
		t.Fatalf("%+v", got)
	}
	for name, mode := range map[string]os.FileMode{config: 0o600, filepath.Dir(config): 0o700} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
	if got := f.with(env, "", "whoami"); got.code != 0 || !strings.Contains(got.out, config) || !strings.Contains(got.out, "tuluat-operators") {
		t.Errorf("%+v", got)
	}
	// A token goes nowhere but where it was stored for.
	other := newFake(t)
	if got := f.with(map[string]string{"XDG_CONFIG_HOME": home, "TULUAT_URL": other.url}, "", "whoami"); got.code != 5 || other.headers[0].Get("Authorization") != "" {
		t.Errorf("elsewhere: %+v", got)
	}
	if got := f.with(env, "", "logout"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if got := f.with(env, "", "logout"); got.code != 0 || !strings.Contains(got.errOut, "no login") {
		t.Errorf("again: %+v", got)
	}
}

func TestTokensOfFiles(t *testing.T) {
	f := newFake(t)
	home := t.TempDir()
	file := write(t, home, "token", "old")
	env := map[string]string{"HOME": home, "TULUAT_CONFIG": filepath.Join(home, "c.json")}
	if got := f.with(env, "", "login", f.url, "--token-file", file); got.code != 5 {
		t.Errorf("an old token: %+v", got)
	}
	write(t, home, "token", apiToken+"\n")
	if got := f.with(env, "", "login", f.url, "--token-file", file); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if text, err := os.ReadFile(env["TULUAT_CONFIG"]); err != nil || strings.Contains(string(text), apiToken) {
		t.Errorf("the token of a file is copied: %s %v", text, err)
	}
	write(t, home, "token", "renewed")
	if got := f.with(env, "", "whoami"); got.code != 5 {
		t.Errorf("a file is not read again: %+v", got)
	}
	write(t, home, "dev.json", `{"url":"http://127.0.0.1:1","api":{"url":"`+f.url+`/api/v1","tokenFile":"dev-token"}}`)
	write(t, home, "dev-token", apiToken)
	if got := f.with(map[string]string{"TULUAT_HOME": home}, "", "get", "agent"); got.code != 0 {
		t.Errorf("dev.json: %+v", got)
	}
	write(t, home, "dev.json", `{"url":"http://127.0.0.1:1"}`)
	if got := f.with(map[string]string{"TULUAT_HOME": home}, "", "get", "agent"); got.code != 3 || !strings.Contains(got.errOut, "no management API") {
		t.Errorf("dev.json without: %+v", got)
	}
	config := write(t, home, "kube", `
current-context: b
contexts: [{name: a, context: {user: x}}, {name: b, context: {user: y}}]
users: [{name: x, user: {exec: {command: aws}}}, {name: y, user: {tokenFile: dev-token}}, {name: z, user: {client-certificate: c}}]
`)
	kube := map[string]string{"TULUAT_URL": f.url, "KUBECONFIG": filepath.Join(home, "none") + ":" + config}
	if got := f.with(kube, "", "whoami"); got.code != 0 {
		t.Errorf("a kubeconfig: %+v", got)
	}
	for user, want := range map[string]string{"x": "from a program", "z": "client certificates are not taken", "none": "no current context"} {
		write(t, home, "other", "current-context: c\ncontexts: [{name: c, context: {user: "+user+"}}]\n")
		kube["KUBECONFIG"] = filepath.Join(home, "other") + ":" + config
		if got := f.with(kube, "", "whoami"); got.code != 1 || !strings.Contains(got.errOut, want) {
			t.Errorf("user %s: %+v", user, got)
		}
	}
}

func TestPluginAndCompletion(t *testing.T) {
	f := newFake(t)
	f.agent("coder", "spec: {}\nstatus: {phase: READY}")
	f.agent("talker", "spec: {}")
	f.say("GET /api/v1/approvals", 200, `{"items":[{"id":"apr_1","agent":"coder","title":"rm\u001b[2J -rf\tx"}]}`)
	f.say("GET /api/v1/sandboxes", 503, `{"detail":"no"}`)
	if got := f.with(f.env("NAME", "/usr/bin/kubectl-tuluat"), "", "get", "agent", "--help"); !strings.Contains(got.out, "kubectl tuluat get agent [NAME...]") {
		t.Errorf("%+v", got)
	}
	if got := f.with(f.env("NAME", "/usr/bin/kubectl-tuluat"), "", "get", "agent", "coder", "-o", "yaml"); got.code != 0 || !strings.Contains(got.out, "name: coder") {
		t.Errorf("%+v", got)
	}
	for command, want := range map[string]string{
		"get agent ":                "coder\tREADY\ntalker\n",
		"delete agents coder ":      "talker\n",
		"describe agent coder ":     "",
		"describe agent t":          "talker\n",
		"agent disable coder ":      "guardrails\nmcpServers\na2a\nharness\nskills\n",
		"approval approve ":         "apr_1\tcoder: rm^[[2J -rf x\n",
		"sandbox kill ":             "",
		"session list --status COM": "PENDING\nRUNNING\n", // the shell takes what fits
		"logs --agent":              "",
	} {
		args := append([]string{"__complete"}, strings.Split(command, " ")...)
		got := f.run(args...)
		words, _, _ := strings.Cut(got.out, "\n:")
		if !strings.HasPrefix(words+"\n", want) || want == "" && strings.ContainsAny(words, "\t_") {
			t.Errorf("%s: %q, want %q", command, got.out, want)
		}
	}
	f.with(map[string]string{"TULUAT_URL": "http://127.0.0.1:1"}, "", "__complete", "get", "agent", "")
}

func TestNothingListens(t *testing.T) {
	f := newFake(t)
	began := time.Now()
	got := f.with(map[string]string{"TULUAT_URL": "http://127.0.0.1:1", "TULUAT_TOKEN": "x"}, "", "get", "agent")
	if got.code != 1 || !strings.Contains(got.errOut, "nothing listens at http://127.0.0.1:1 (from TULUAT_URL)") || time.Since(began) > 5*time.Second {
		t.Errorf("%+v", got)
	}
}
