//go:build system

package system_test

import (
	"context"
	"strings"
	"testing"
	"time"
)

// TestStopStartKeepsConversation stops everything in order and starts it again
// on the same rows.
func TestStopStartKeepsConversation(t *testing.T) {
	agents := newAgents(1)
	w := newWorld(t, plan{agents: agents})
	calls := newCaller(w)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	say := func(number int, id, text string) string {
		t.Helper()
		m := message{id: id, agent: agents[0], chat: "kept", number: number, text: text}
		if err := calls.send(ctx, m); err != nil {
			t.Fatal(err)
		}
		if err := calls.awaitAnswers(ctx, m.chat, number); err != nil {
			t.Fatal(err, "\n", w.story(m))
		}
		c, _ := w.receiver.answer(m.id)
		return c.Text
	}
	say(1, "m1", "the password is swordfish")
	if got := say(2, "m2", "run: echo before > kept; cat kept"); !strings.Contains(got, "before") {
		t.Errorf("the command's answer: %q", got)
	}
	w.stop()
	if crashes := sum(w.cluster.Counts().Crashes); crashes != 0 {
		t.Errorf("%d processes ended by themselves", crashes)
	}
	if _, counts, err := w.unfinished(); err != nil || counts["leases held"] != 0 {
		t.Errorf("after SIGTERM: %d leases held, %v", counts["leases held"], err)
	}
	w.start(programDir(t))
	got := say(3, "m3", "history")
	for _, earlier := range []string{"the password is swordfish", "run: echo before > kept; cat kept"} {
		if !strings.Contains(got, earlier) {
			t.Errorf("after the restart the agent does not know of %q: %q", earlier, got)
		}
	}
	if session := w.strings("SELECT session_id FROM sessions"); len(session) != 1 {
		t.Errorf("%d sessions, one conversation", len(session))
	}
	if left := w.awaitRest(4 * time.Minute); left != "" {
		t.Errorf("the system did not come to rest: %s", left)
	}
	w.stop()
	w.assertNothingRemains()
}
