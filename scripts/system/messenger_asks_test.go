//go:build system

package system_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestApprovalsOverBothMessengers has a person on each messenger decide by what
// the messenger offers: a tap, and words.
func TestApprovalsOverBothMessengers(t *testing.T) {
	w := newWorld(t, plan{people: &crowd{asks: true}})
	for _, p := range w.people.phones() {
		c := &talker{phone: p, w: w, chat: p.join("Grace")}
		w.decide(c)
	}
	if left := w.awaitRest(2 * time.Minute); left != "" {
		t.Errorf("the system did not come to rest: %s", left)
	}
	w.stop()
	w.assertNothingRemains()
}

func (w *world) decide(c *talker) {
	w.t.Helper()
	asked := w.number("SELECT count(*)::int FROM approvals")
	c.say(c.chat, "run: echo approved-$((3+4))")
	card := c.hears("a card", 1)[0]
	c.wants("a card", card.Text, "echo approved-$((3+4))", "approve ")
	if len(card.Choices) != 3 || card.Choices[0].Title != "Approve" {
		w.t.Fatalf("%s: the card offers %+v", c.channel(), card.Choices)
	}
	c.press("Approve")
	if c.channel() == "TELEGRAM" { // the card itself is changed
		c.wants("an answer", c.hears("an answer", 1)[0].Text, "approved-7")
		edited := answers(c.lines(c.chat))[c.shown-2]
		c.wants("the card", edited.Text, "echo approved-$((3+4))", "Approved by telegram "+c.chat)
		if len(edited.Choices) != 0 || !edited.Edited {
			w.t.Errorf("the card still offers %+v", edited.Choices)
		}
		if n := c.counters()["queriesAnswered"]; n != 1 {
			w.t.Errorf("%d taps were answered, want 1", n)
		}
	} else {
		told := c.hears("the outcome and an answer", 2)
		c.wants("the outcome", told[0].Text, "Approved by whatsapp "+c.chat)
		c.wants("an answer", told[1].Text, "approved-7")
	}

	c.say(c.chat, "run: echo refused-$((3+4))")
	c.hears("a second card", 1)
	var code string
	w.must(w.db.QueryRow(w.t.Context(), "SELECT short_code FROM approvals WHERE state = 'PENDING'").Scan(&code))
	c.say(c.chat, fmt.Sprintf("reject %s not on a Friday", code))
	want := 1
	if c.channel() == "WHATSAPP" {
		want = 2
	}
	for _, l := range c.hears("what the agent makes of it", want) {
		if strings.Contains(l.Text, "refused-7") {
			w.t.Errorf("%s: a refused command ran: %q", c.channel(), l.Text)
		}
	}
	if n := w.number("SELECT count(*)::int FROM approvals"); n != asked+2 {
		w.t.Errorf("%s: %d questions, want 2", c.channel(), n-asked)
	}
	if n := w.number("SELECT count(*)::int FROM executions WHERE command LIKE '%refused%'"); n != 0 {
		w.t.Errorf("%s: %d refused commands have started", c.channel(), n)
	}
	var reason string
	w.must(w.db.QueryRow(w.t.Context(), "SELECT reason FROM approvals ORDER BY created_at DESC LIMIT 1").Scan(&reason))
	if reason != "not on a Friday" {
		w.t.Errorf("%s: the reason is %q", c.channel(), reason)
	}
}
