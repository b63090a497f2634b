//go:build system

package system_test

import (
	"fmt"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/fake"
)

// A model that loops, over the real functions and at the wire of the played model:
// it is asked exactly as often as the budget of the day says, over two sessions
// that race, and both people are told.
func TestALoopingModelStopsAtItsBudget(t *testing.T) {
	script, err := fake.ParseScript([]byte(`rules: [{respond: {calls: [{name: executeShell, arguments: {command: "echo again"}}]}}]`))
	if err != nil {
		t.Fatal(err)
	}
	const most = 7
	agents := newAgents(2)[1:]
	agents[0].commands, agents[0].budget = 30, fmt.Sprintf("    perAgentDay: {maxSteps: %d}\n", most)
	w := newWorld(t, plan{agents: agents, script: script})
	calls := newCaller(w)
	for i := range 2 {
		w.must(calls.send(t.Context(), message{id: chatName(i) + "-m1", agent: agents[0], chat: chatName(i), number: 1, text: "loop for ever"}))
	}
	w.await(3*time.Minute, "both turns have ended", func() (bool, string) {
		n := w.number(`SELECT count(*) FROM sessions WHERE state = 'BLOCKED'`)
		return n == 2, fmt.Sprint(n, " are BLOCKED")
	})
	for sql, want := range map[string]int{
		`SELECT used_steps FROM budget_usage WHERE scope = 'AGENT_DAY'`:                                                                     most,
		`SELECT reserved_steps + reserved_tokens FROM budget_usage WHERE scope = 'AGENT_DAY'`:                                               0,
		`SELECT count(*) FROM steps WHERE model <> ''`:                                                                                      most,
		fmt.Sprintf(`SELECT count(*) FROM messages WHERE direction = 'OUTBOUND' AND text LIKE '%%its limit of %d steps for today%%'`, most): 2,
	} {
		if got := w.number(sql); got != want {
			t.Errorf("%s: %d, want %d", sql, got, want)
		}
	}
	n := w.model.Count()
	t.Logf("asked %d times, by two conversations that share %d steps a day", n, most)
	if n != most {
		t.Errorf("the model was asked %d times, want %d", n, most)
	}
}
