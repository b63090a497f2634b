//go:build system

package system_test

import (
	"context"
	"strings"
	"testing"
	"time"
)

// A skill with a script, over the real functions with the rights of their roles:
// the model finds it, loads it, and runs its script in the sandbox.
func TestASkillIsFoundLoadedAndRun(t *testing.T) {
	agents := newAgents(2)[1:]
	a := &agents[0]
	a.budget = "  skills:\n    items:\n      - name: greeting\n        folder: skills/greeting\n"
	a.files = map[string]string{
		"skills/greeting/SKILL.md":         "---\nname: greeting\ndescription: For greeting people.\n---\nRun scripts/greet.sh with the name.\n",
		"skills/greeting/scripts/greet.sh": "echo \"Hello, $1, from a script\"\n",
	}
	w := newWorld(t, plan{agents: agents})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	const chat = "s000"
	script := "/workspace/skills/greeting/scripts/greet.sh"
	var messages []message
	wants := []string{
		"no such file", // nothing is there before the skill is loaded
		"Run scripts/greet.sh with the name.\n\nThe skill's files are in /workspace/skills/greeting when your next command runs (start a script by its interpreter, as in sh FILE):\n" + script,
		"stdout:\nHello, Ann, from a script",
	}
	for i, text := range []string{"run: sh " + script + " Ann || echo no such file", `use: loadSkill {"name": "greeting"}`, "run: sh " + script + " Ann"} {
		messages = append(messages, message{id: chat + "-m" + string(rune('1'+i)), agent: *a, chat: chat, number: i + 1, text: text})
	}
	w.must(newCaller(w).converse(ctx, messages, 1))
	for i, m := range messages {
		if got, _ := w.receiver.answer(m.id); !strings.Contains(got.Text, wants[i]) {
			t.Errorf("%s: got %q, want %q", m.text, got.Text, wants[i])
		}
	}
	if !strings.Contains(string(w.model.Requests()[0].Body), "greeting: For greeting people.") {
		t.Errorf("the model was not told of the skill: %s", w.model.Requests()[0].Body)
	}
	for sql, want := range map[string]int{
		`SELECT count(*) FROM session_skills JOIN skill_files USING (digest)`:                  1,
		`SELECT count(*) FROM skill_placements`:                                                1,
		`SELECT count(*) FROM tool_calls WHERE state = 'DONE' AND remote->>'block' = 'skills'`: 1,
	} {
		if got := w.number(sql); got != want {
			t.Errorf("%s: %d, want %d", sql, got, want)
		}
	}
}
