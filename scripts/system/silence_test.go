//go:build system

package system_test

import (
	"context"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/devcluster"
)

// TestBrokerDeliversNothing: rows are the queue. With a broker that takes every
// event and delivers none, the sweep alone has everything done.
func TestBrokerDeliversNothing(t *testing.T) {
	agents := newAgents(2)
	var chats [][]message
	for i := range 4 {
		var chat []message
		for number := range 5 {
			m := message{id: chatName(i) + "-m" + string(rune('1'+number)), agent: agents[i%2], chat: chatName(i), number: number + 1}
			if (i+number)%2 == 0 {
				m.commands = []command{{id: m.id}}
				m.text = "run: " + m.commands[0].shell()
			} else {
				m.text = "note " + m.id
			}
			chat = append(chat, m)
		}
		chats = append(chats, chat)
	}
	w := newWorld(t, plan{agents: agents, faults: devcluster.Faults{DeliverNothing: true}, ageing: 15 * time.Second})
	ctx, cancel := context.WithTimeout(t.Context(), *flagPatience)
	defer cancel()
	calls := newCaller(w)
	began := time.Now()
	for _, err := range calls.converseAll(ctx, chats, 1) {
		t.Error(err)
	}
	answered := time.Now()
	left := w.awaitRest(5 * time.Minute)
	w.stop()
	v := w.judge(chats)
	w.report(newKiller(0, 1, 1), calls, v, false)
	t.Logf("%s to the last answer", answered.Sub(began).Round(time.Second))
	c := w.cluster.Counts()
	if c.Published == 0 || c.Matched == 0 || c.Dropped != c.Matched || c.Doubled != 0 {
		t.Errorf("the broker took %d events, %d matched a trigger and %d of these were dropped", c.Published, c.Matched, c.Dropped)
	}
	w.assertJudged(chats, v)
	if crashes := sum(c.Crashes); crashes != 0 {
		t.Errorf("%d processes ended by themselves", crashes)
	}
	if v.ran != v.commands {
		t.Errorf("%d of %d commands ran", v.ran, v.commands)
	}
	if left != "" {
		t.Errorf("the system did not come to rest: %s", left)
	}
	w.assertNothingRemains()
}
