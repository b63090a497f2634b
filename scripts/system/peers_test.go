//go:build system

package system_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// What one agent's model is told of the other's task.
var namesOfTask = regexp.MustCompile(`task: (\S+)\s+context: (\S+)`)

// Two agents talk over HTTP, by the Agent2Agent protocol: what one's model asks by a
// tool is a conversation with the other, which asks back before it runs a command.
func TestAgentsAskEachOther(t *testing.T) {
	agents := newAgents(2)
	agents[1].budget = "  approvals: {timeout: 1h, approvers: [{user: ann}]}\n  a2a: {}\n"
	w := newWorld(t, plan{agents: agents})
	agents[0].budget = fmt.Sprintf("  a2a: {peers: [{name: other, url: %q, headersSecretRef: {name: peer, key: headers}, timeoutSeconds: 120}]}\n", w.cluster.GatewayURL()+"/a2a/"+agents[1].name)
	w.must(writeAgents(w.agentsDir(), agents, w.receiver.url))
	w.await(time.Minute, "the agent has its peer", func() (bool, string) {
		n := w.number(`SELECT count(*) FROM agents JOIN agent_revisions r USING (agent_name, revision) WHERE r.spec ? 'peers'`)
		return n == 1, fmt.Sprint(n)
	})
	calls := newCaller(w)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	said := 0
	use := func(arguments, want string) (task, conversation string) {
		t.Helper()
		said++
		m := message{id: fmt.Sprint("m", said), agent: agents[0], chat: "asks", number: said, text: "use: other__send " + arguments}
		w.must(calls.send(ctx, m))
		if err := calls.awaitAnswers(ctx, m.chat, said); err != nil {
			t.Fatal(err, "\n", w.story(m))
		}
		c, _ := w.receiver.answer(m.id)
		found := namesOfTask.FindStringSubmatch(c.Text)
		if !strings.Contains(c.Text, want) || found == nil {
			t.Fatalf("%s was answered by %q; want %q, a task and a context", m.text, c.Text, want)
		}
		return found[1], found[2]
	}
	_, conversation := use(`{"text": "count"}`, "You have sent 1 messages")
	task, same := use(fmt.Sprintf(`{"text": "run: echo from far away", "context": %q}`, conversation), "The agent other asks for something before it goes on.")
	if same != conversation {
		t.Errorf("the conversation is %s, and was %s", same, conversation)
	}
	if n := w.number(`SELECT count(*) FROM executions`); n != 0 {
		t.Errorf("%d commands before the decision", n)
	}
	use(fmt.Sprintf(`{"text": "Approve", "task": %q, "context": %q}`, task, conversation), "The agent other has completed the task.")
	use(fmt.Sprintf(`{"text": "count", "context": %q}`, conversation), "You have sent 3 messages")
	for sql, want := range map[string]int{
		`SELECT count(*) FROM sessions`:                                    2,
		`SELECT count(*) FROM executions WHERE state = 'COMPLETED'`:        1,
		`SELECT count(*) FROM executions`:                                  1,
		`SELECT count(*) FROM tool_calls WHERE remote ->> 'block' = 'a2a'`: 4,
	} {
		if got := w.number(sql); got != want {
			t.Errorf("%s: %d, want %d", sql, got, want)
		}
	}
}
