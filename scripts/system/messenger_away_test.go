//go:build system

package system_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	flagAway = flag.Duration("away", 20*time.Second, "how long the broker is away")
	flagDown = flag.Duration("down", 8*time.Second, "how long PostgreSQL is down")
)

// talk is one chat of a test with what was said in it.
type talk struct {
	phone
	chat, name string
	said       []string // ids, in order
}

func (c *talk) words(i int) string { return fmt.Sprintf("note %s-%03d.", c.name, i) }

// next says the next thing.
func (c *talk) next() { c.said = append(c.said, c.say(c.chat, c.words(len(c.said)))) }

// order returns the numbers of what our side's lines answer, as they stand.
func (c *talk) order() []int {
	var all []int
	for _, l := range answers(c.lines(c.chat)) {
		n := -1
		if _, rest, found := strings.Cut(l.Text, "note "+c.name+"-"); found {
			if _, err := fmt.Sscanf(rest, "%03d.", &n); err != nil {
				n = -1
			}
		}
		all = append(all, n)
	}
	return all
}

func (w *world) talks(perPhone int) []*talk {
	var all []*talk
	for _, p := range w.people.phones() {
		for i := range perPhone {
			name := fmt.Sprintf("%s%02d", strings.ToLower(p.channel()[:2]), i)
			all = append(all, &talk{phone: p, chat: p.join(name), name: name})
		}
	}
	return all
}

// sayDuring says one more thing in every chat, and again every pause until told
// to stop or most are said. With inOrder, nobody says a thing before the webhook
// of the last was answered.
func (w *world) sayDuring(talks []*talk, most int, pause time.Duration, inOrder bool) {
	w.t.Helper()
	for range most {
		for _, c := range talks {
			c.next()
		}
		if inOrder {
			w.awaitTold(talks)
		}
		time.Sleep(pause) // people take their time; nothing depends on it
	}
}

func (w *world) awaitTold(talks []*talk) {
	w.t.Helper()
	w.await(2*time.Minute, "every webhook is answered 200", func() (bool, string) {
		for _, c := range talks {
			for _, id := range c.said {
				if !told(c.lines(c.chat), id) {
					return false, c.name + " " + id
				}
			}
		}
		return true, ""
	})
}

// awaitAnswered returns when every chat has as many answers as things were said.
func (w *world) awaitAnswered(talks []*talk, patience time.Duration) {
	w.t.Helper()
	w.await(patience, "everything is answered", func() (bool, string) {
		open := 0
		for _, c := range talks {
			open += max(0, len(c.said)-len(c.order()))
		}
		return open == 0, fmt.Sprintf("%d answers are missing", open)
	})
}

// assertAnsweredOnce: each thing that was said is one row and one answer, in the
// order in which it was said where that is certain.
func (w *world) assertAnsweredOnce(talks []*talk, ordered func(*talk) bool) {
	w.t.Helper()
	for _, c := range talks {
		got := c.order()
		want := make([]int, len(c.said))
		for i := range want {
			want[i] = i
		}
		if !ordered(c) {
			slices.Sort(got)
		}
		if !slices.Equal(got, want) {
			w.t.Errorf("%s chat %s: the answers are to %v, want each of %d once in order", c.channel(), c.name, got, len(want))
		}
		if n := w.strings("SELECT count(*)::text FROM messages WHERE direction = 'INBOUND' AND text LIKE $1", "note "+c.name+"-%"); n[0] != fmt.Sprint(len(c.said)) {
			w.t.Errorf("%s chat %s: %s rows of %d things said", c.channel(), c.name, n[0], len(c.said))
		}
	}
}

func answeredNow(talks []*talk) (n int) {
	for _, c := range talks {
		n += len(c.order())
	}
	return n
}

// awaitPeopleRest returns when there is nothing to do for anybody. A reply that
// nobody can settle stays UNKNOWN, and one that its provider's word settled may
// keep the lease of a sender that died and an announcement, which the sweep takes
// away after ten minutes: neither is work.
func (w *world) awaitPeopleRest(patience time.Duration) {
	w.t.Helper()
	w.await(patience, "nothing is left to do", func() (bool, string) {
		left := w.strings(`SELECT what || ': ' || n FROM (
			SELECT 'sessions' AS what, count(*) AS n FROM sessions WHERE due_at IS NOT NULL OR lease_owner IS NOT NULL OR state NOT IN ('IDLE', 'BLOCKED', 'FAILED', 'COMPLETED')
			UNION ALL SELECT 'messages', count(*) FROM messages WHERE state <> 'DONE'
			UNION ALL SELECT 'replies', count(*) FROM replies WHERE state = 'PLANNED' OR state = 'UNKNOWN' AND due_at IS NOT NULL
			UNION ALL SELECT 'announcements', count(*) FROM outbox o WHERE event_type <> 'ai.tuluat.message.reply.v1'
				OR EXISTS (SELECT 1 FROM replies r WHERE r.message_id = o.subject AND (r.state = 'PLANNED' OR r.state = 'UNKNOWN' AND r.due_at IS NOT NULL))) x WHERE n > 0`)
		return len(left) == 0, strings.Join(left, ", ")
	})
}

// TestBrokerAway: while the broker answers nothing, and then refuses, webhooks
// are answered 200; when it is back, everything is answered, in order, once.
func TestBrokerAway(t *testing.T) {
	const each = 5
	w := newWorld(t, plan{people: &crowd{}, gated: true, ageing: 5 * time.Second})
	talks := w.talks(4)
	w.sayDuring(talks, 1, 0, true) // everything runs once
	w.awaitAnswered(talks, time.Minute)
	began := time.Now()
	w.gate.set(gateSilent)
	w.sayDuring(talks, each, *flagAway/2/each, true)
	w.gate.set(gateRefusing)
	w.sayDuring(talks, each, *flagAway/2/each, true)
	if rest := *flagAway - time.Since(began); rest > 0 {
		time.Sleep(rest) // it is away for as long as was asked for
	}
	before := answeredNow(talks)
	back := time.Now()
	w.gate.set(gateOpen)
	statuses, longest := w.people.door.statuses(began, back)
	w.awaitAnswered(talks, 5*time.Minute)
	caught := time.Since(back)
	w.awaitPeopleRest(2 * time.Minute)
	t.Logf("the broker was away for %s (half silent, half refusing) and was asked %d times; %d chats said %d things meanwhile",
		back.Sub(began).Round(time.Second), w.gate.held, len(talks), len(talks)*2*each)
	t.Logf("webhooks meanwhile: %v, the longest answer took %s", statuses, longest.Round(time.Millisecond))
	t.Logf("answered while it was away, by the sweep: %d; the rest within %s of its return", before-len(talks), caught.Round(time.Second))
	for status := range statuses {
		if !strings.HasSuffix(status, " 200") {
			t.Errorf("webhooks were answered %s %d times", status, statuses[status])
		}
	}
	for _, p := range w.people.phones() {
		if c := p.counters(); c["webhookRetries"]+c["webhookFailures"] > 0 {
			t.Errorf("%s had to post %d times again", p.channel(), c["webhookRetries"])
		}
		if statuses[p.channel()+" 200"] < 4*2*each {
			t.Errorf("%s posted %d webhooks while the broker was away", p.channel(), statuses[p.channel()+" 200"])
		}
	}
	w.assertAnsweredOnce(talks, func(*talk) bool { return true })
}

// TestPostgresAway: while PostgreSQL is down webhooks are answered 503, and the
// providers' own repeats bring every message in once.
func TestPostgresAway(t *testing.T) {
	const each = 3
	w := newWorld(t, plan{people: &crowd{}, ageing: 5 * time.Second})
	talks := w.talks(4)
	w.sayDuring(talks, 1, 0, true)
	w.awaitAnswered(talks, time.Minute)
	began := time.Now()
	w.must(w.endDatabase())
	w.sayDuring(talks, each, *flagDown/each, false)
	end := time.Now()
	w.must(w.reviveDatabase())
	back := time.Now()
	statuses, longest := w.people.door.statuses(began, end)
	w.awaitTold(talks)
	toldAll := time.Since(back)
	w.awaitAnswered(talks, 5*time.Minute)
	t.Logf("PostgreSQL was down for %s; %d chats said %d things meanwhile", back.Sub(began).Round(100*time.Millisecond), len(talks), len(talks)*each)
	t.Logf("webhooks meanwhile: %v, the longest answer took %s", statuses, longest.Round(time.Millisecond))
	t.Logf("all told within %s and answered within %s of its return", toldAll.Round(100*time.Millisecond), time.Since(back).Round(100*time.Millisecond))
	w.awaitPeopleRest(2 * time.Minute)
	for status, n := range statuses {
		if !strings.HasSuffix(status, " 503") {
			t.Errorf("webhooks were answered %s %d times while PostgreSQL was down", status, n)
		}
	}
	for _, p := range w.people.phones() {
		c := p.counters()
		t.Logf("%s: %d posts, %d of them again", p.channel(), c["webhookPosts"], c["webhookRetries"])
		if statuses[p.channel()+" 503"] == 0 || c["webhookRetries"] == 0 {
			t.Errorf("%s was never refused: %v", p.channel(), c)
		}
	}
	// WhatsApp's repeats overtake each other; Telegram holds a chat's updates back.
	w.assertAnsweredOnce(talks, func(c *talk) bool { return c.channel() == "TELEGRAM" })
}
