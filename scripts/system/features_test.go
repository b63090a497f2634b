//go:build system

package system_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/fake"
	"tuluat.ai/harness/shared/harness"
)

// feature is a block of an agent that the management API switches, and what it does
// to one conversation.
type feature struct {
	name   string   // in PATCH /agents/{name}/features
	text   string   // what the person says
	on     string   // what the answer says while the block is on
	off    string   // and while it is off
	tools  []string // that the model has while it is on, and only then
	traces []string // what a question to the model says beside the tools, only while it is on
	insist string   // has the model call a tool of the block whether it has it or not; empty: there is none
	counts string   // SQL: what the block did so far; it does nothing while it is off
	path   string   // of what answers while it is on, and is not there while it is off
}

// noTool is what a model is told that calls what its agent does not have.
const noTool = "Not run: there is no tool of this name."

func features(agent string) []feature {
	calls := func(block string) string {
		return `SELECT count(*) FROM tool_calls WHERE state = 'DONE' AND remote ->> 'block' = '` + block + `'`
	}
	return []feature{
		{
			name: "guardrails", text: "the word is forbidden", on: "Not that word.", off: "what you said: the word is forbidden",
			counts: `SELECT count(*) FROM guardrail_verdicts`,
		},
		{
			name: "mcpServers", text: "use: api__list_agents", on: agent, off: `I have no tool "api__list_agents"`,
			tools: []string{"api__list_agents"}, insist: "insist on mcp", counts: calls(harness.BlockMCP),
		},
		{
			name: "a2a", text: `use: other__send {"text": "count"}`, on: "You have sent 1 messages", off: `I have no tool "other__send"`,
			tools: []string{"other__send", "other__task"}, insist: "insist on a2a", counts: calls(harness.BlockA2A),
			path: "/a2a/" + agent + "/.well-known/agent-card.json",
		},
		{
			name: "skills", text: `use: loadSkill {"name": "greeting"}`, on: "Say hello to everybody.", off: `I have no tool "loadSkill"`,
			tools: []string{harness.ToolLoadSkill}, traces: []string{"For greeting people."}, insist: "insist on skills", counts: calls(harness.BlockSkills),
		},
		{
			name: "harness", text: "run: echo from the sandbox", on: "from the sandbox", off: "I cannot run commands here",
			tools: []string{harness.ToolExecuteShell, harness.ToolOfferChoices}, traces: []string{"isolated, short-lived Linux sandbox"},
			insist: "insist on harness", counts: `SELECT count(*) FROM executions`,
		},
	}
}

// insists has the model call what it was offered once, also when it is not any more.
const insists = `rules:
- {match: {exact: insist on mcp}, respond: {calls: [{name: api__list_agents, arguments: {}}]}}
- {match: {exact: insist on a2a}, respond: {calls: [{name: other__send, arguments: {text: count}}]}}
- {match: {exact: insist on skills}, respond: {calls: [{name: loadSkill, arguments: {name: greeting}}]}}
- {match: {exact: insist on harness}, respond: {calls: [{name: executeShell, arguments: {command: echo in spite of it}}]}}
`

// Every block of a live agent is switched off between two steps of a conversation, and
// on again, by the management API and over the real functions: the second step has
// nothing of it, neither offered nor told nor to be called, and the third has it again.
func TestTheNextStepObeysASwitch(t *testing.T) {
	script, err := fake.ParseScript([]byte(insists))
	if err != nil {
		t.Fatal(err)
	}
	agents := newAgents(2)
	agents[0].commands = 10
	agents[1].budget = "  a2a: {}\n"
	w := newWorld(t, plan{agents: agents, script: script})
	agents[0].budget = fmt.Sprintf(`  a2a: {peers: [{name: other, url: %[1]q, headersSecretRef: {name: peer, key: headers}, timeoutSeconds: 120}]}
  mcpServers: {servers: [{name: api, url: %[2]q, headersSecretRef: {name: peer, key: headers}, allowedTools: [list_agents], approvals: never}]}
  skills: {items: [{name: greeting, description: For greeting people., text: "Say hello to everybody."}]}
  guardrails: {input: [{name: word, type: PATTERN, patterns: [forbidden], text: Not that word.}]}
`, w.cluster.GatewayURL()+"/a2a/"+agents[1].name, w.cluster.GatewayURL()+"/mcp")
	w.must(writeAgents(w.agentsDir(), agents, w.receiver.url))
	w.await(time.Minute, "the agent has its blocks", func() (bool, string) {
		n := w.number(`SELECT count(*) FROM agents JOIN agent_revisions r USING (agent_name, revision)
			WHERE r.spec ? 'peers' AND r.spec ? 'mcpServers' AND r.spec ? 'skills' AND r.spec ? 'guardrails'`)
		return n == 1, fmt.Sprint(n)
	})
	for _, f := range features(agents[0].name) {
		t.Run(f.name, func(t *testing.T) {
			c := &conversation{t: t, world: w, rest: newREST(w), agent: agents[0].name, chat: f.name}
			c.has(f, "before")
			c.turn(map[string]bool{f.name: false})
			c.lacks(f, "while it is off")
			c.turn(map[string]bool{f.name: true})
			c.has(f, "on again")
		})
	}
	t.Run("all", func(t *testing.T) {
		c := &conversation{t: t, world: w, rest: newREST(w), agent: agents[0].name, chat: "all"}
		off, on := map[string]bool{}, map[string]bool{}
		for _, f := range features(agents[0].name) {
			off[f.name], on[f.name] = false, true
			c.has(f, "before")
		}
		c.turn(off)
		for _, f := range features(agents[0].name) {
			c.lacks(f, "while all are off")
		}
		c.turn(on)
		for _, f := range features(agents[0].name) {
			c.has(f, "on again")
		}
	})
}

// conversation is one by the management API.
type conversation struct {
	t       *testing.T
	world   *world
	rest    *rest
	agent   string
	chat    string
	session string
	said    int
}

// has says what f is for, and looks that it does it.
func (c *conversation) has(f feature, when string) {
	c.t.Helper()
	before := c.world.number(f.counts)
	answer, asked := c.say(f.text)
	if !strings.Contains(answer, f.on) {
		c.t.Errorf("%s: %q was answered by %q, want %q", when, f.text, answer, f.on)
	}
	if n := c.world.number(f.counts) - before; n < 1 {
		c.t.Errorf("%s: %s: %d more, want at least 1", when, f.counts, n)
	}
	names, told := definitions(c.t, asked)
	for _, tool := range f.tools {
		if !slices.Contains(names, tool) {
			c.t.Errorf("%s: %s is not among the tools %v", when, tool, names)
		}
	}
	for _, trace := range f.traces {
		if !strings.Contains(told, trace) {
			c.t.Errorf("%s: the model is not told %q", when, trace)
		}
	}
	c.endpoint(f, when, http.StatusOK)
}

// lacks says the same, and looks that nothing of f is there.
func (c *conversation) lacks(f feature, when string) {
	c.t.Helper()
	before := c.world.number(f.counts)
	answers := map[string]string{f.text: f.off}
	if f.insist != "" {
		answers[f.insist] = noTool
	}
	for text, want := range answers {
		answer, asked := c.say(text)
		if !strings.Contains(answer, want) {
			c.t.Errorf("%s: %q was answered by %q, want %q", when, text, answer, want)
		}
		names, told := definitions(c.t, asked)
		for _, tool := range f.tools {
			if slices.Contains(names, tool) {
				c.t.Errorf("%s: %s is among the tools %v", when, tool, names)
			}
		}
		for _, trace := range append(f.traces, f.tools...) {
			if strings.Contains(told, trace) {
				c.t.Errorf("%s: the model is told %q: %s", when, trace, told)
			}
		}
	}
	if n := c.world.number(f.counts) - before; n != 0 {
		c.t.Errorf("%s: %s: %d more, want 0", when, f.counts, n)
	}
	c.endpoint(f, when, http.StatusNotFound)
}

func (c *conversation) endpoint(f feature, when string, want int) {
	c.t.Helper()
	if f.path == "" {
		return
	}
	if status := c.ask(http.MethodGet, c.world.cluster.GatewayURL()+f.path, nil); status != want {
		c.t.Errorf("%s: %s: %d, want %d", when, f.path, status, want)
	}
}

// turn switches blocks, and returns when the agent's newest revision says so.
func (c *conversation) turn(blocks map[string]bool) {
	c.t.Helper()
	const revision = `SELECT revision FROM agents WHERE agent_name = $1`
	before := c.world.number(revision, c.agent)
	body, err := json.Marshal(blocks)
	c.must(err)
	if status := c.ask(http.MethodPatch, c.world.cluster.GatewayURL()+"/api/v1/agents/"+c.agent+"/features", body); status != http.StatusOK {
		c.t.Fatalf("the switch %s: %d", body, status)
	}
	c.world.await(time.Minute, "the switch is known", func() (bool, string) {
		now := c.world.number(revision, c.agent)
		return now > before, fmt.Sprint("revision ", now)
	})
}

func (c *conversation) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *conversation) ask(method, url string, body []byte) int {
	c.t.Helper()
	request, err := http.NewRequestWithContext(c.t.Context(), method, url, strings.NewReader(string(body)))
	c.must(err)
	request.Header.Set("Authorization", "Bearer "+tokenOf("ann"))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("If-Match", "*")
	response, err := c.rest.client.Do(request)
	c.must(err)
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	c.must(err)
	if response.StatusCode >= 400 && response.StatusCode != http.StatusNotFound {
		c.t.Logf("%s %s: %s", method, url, text)
	}
	return response.StatusCode
}

// say sends a message and returns its answer, and the newest question to the model
// of this conversation.
func (c *conversation) say(text string) (answer string, asked fake.ModelRequest) {
	c.t.Helper()
	c.said++
	key := fmt.Sprintf("%s-%d", c.chat, c.said)
	status, body, _, err := c.rest.call(c.t.Context(), "ann", http.MethodPost, "/sessions", key, map[string]string{"agent": c.agent, "chat": c.chat, "text": text})
	c.must(err)
	var accepted struct{ Session, Message string }
	if status != http.StatusAccepted || json.Unmarshal(body, &accepted) != nil {
		c.t.Fatalf("%q: %d %s", text, status, body)
	}
	if c.session == "" {
		c.session = accepted.Session
	}
	if accepted.Session != c.session {
		c.t.Fatalf("%q went to the session %s, and the conversation is %s", text, accepted.Session, c.session)
	}
	c.world.await(2*time.Minute, fmt.Sprintf("%q is answered", text), func() (bool, string) {
		err := c.world.db.QueryRow(c.t.Context(), `SELECT COALESCE((SELECT text FROM messages WHERE session_id = $1 AND direction = 'OUTBOUND' AND in_reply_to = $2 ORDER BY seq DESC LIMIT 1), '')`,
			c.session, accepted.Message).Scan(&answer)
		return err == nil && answer != "", fmt.Sprint(err)
	})
	for _, r := range c.world.model.Requests() {
		if r.Session == c.session {
			asked = r
		}
	}
	return answer, asked
}

// definitions are the names of the tools of a question to the model, and all that
// it is told before the conversation: its system prompt and what the tools are.
func definitions(t *testing.T, r fake.ModelRequest) (names []string, told string) {
	t.Helper()
	if r.Body == nil { // it was never asked
		return nil, ""
	}
	var question struct {
		System   json.RawMessage `json:"system"`
		Tools    json.RawMessage `json:"tools"`
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
	}
	if err := json.Unmarshal(r.Body, &question); err != nil {
		t.Fatalf("%v: %s", err, r.Body)
	}
	var tools []struct {
		Name     string                `json:"name"`
		Function struct{ Name string } `json:"function"`
	}
	if question.Tools != nil {
		if err := json.Unmarshal(question.Tools, &tools); err != nil {
			t.Fatal(err)
		}
	}
	for _, tool := range tools {
		names = append(names, tool.Name+tool.Function.Name)
	}
	told = string(question.System) + string(question.Tools)
	for _, m := range question.Messages {
		if m.Role == "system" || m.Role == "developer" {
			told += string(m.Content)
		}
	}
	return names, told
}
