//go:build system

package system_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/fake/botapi"
	"tuluat.ai/harness/scripts/internal/fake/graph"
	"tuluat.ai/harness/scripts/internal/fake/person"
	"tuluat.ai/harness/scripts/internal/pgproxy"
)

var flagChats = flag.Int("chats", 10, "chats per provider while senders are killed")

// evidence is what WhatsApp's statuses of a chat do.
type evidence string

const (
	evidencePrompt    evidence = "prompt"
	evidenceLate      evidence = "late"
	evidenceReordered evidence = "out of order"
	evidenceWithheld  evidence = "withheld, then all at once and backwards"
	evidenceNever     evidence = "never"
)

var evidences = []evidence{evidencePrompt, evidenceLate, evidenceReordered, evidenceWithheld, evidenceNever}

// faults of statuses that make it so.
var evidenceFaults = map[evidence]person.Fault{
	evidenceLate:      {On: "status", Do: "delay", Delay: person.Duration(3 * time.Second), Times: -1},
	evidenceReordered: {On: "status", Do: "reorder", Times: -1},
	evidenceWithheld:  {On: "status", Do: "withhold", Times: -1},
	evidenceNever:     {On: "status", Do: "drop", Times: -1},
}

// TestKilledSenders kills the senders of both channels at every point of a send,
// many times, and compares what the database says with what stands on phones.
func TestKilledSenders(t *testing.T) {
	seed := *flagSeed
	if seed == 0 {
		seed = rand.Uint64()>>1 + 1
	}
	t.Logf("seed %d: repeat with -seed=%[1]d", seed)
	killers := map[string]*executioner{}
	for i, service := range []string{"whatsapp-ingest-events", "telegram-ingest-events"} {
		killers[service] = newExecutioner(service, (*flagKills+i)/2, seed)
	}
	w := newWorld(t, plan{
		processes: 2, seed: seed, ageing: 3 * time.Second,
		atWire: func(service string) (before, after func(pgproxy.Exchange) bool) {
			if k := killers[service]; k != nil {
				return k.atWire(beforeServer), k.atWire(afterServer)
			}
			return nil, nil
		},
		people: &crowd{
			onWhatsApp: func(graph.Sending) { killers["whatsapp-ingest-events"].sending() },
			onTelegram: func(botapi.Sending) { killers["telegram-ingest-events"].sending() },
		},
	})
	talks := w.talks(*flagChats)
	of := map[string]evidence{}
	for i, c := range talks {
		if c.channel() != "WHATSAPP" {
			continue
		}
		of[c.name] = evidences[i%len(evidences)]
		if f, ok := evidenceFaults[of[c.name]]; ok {
			f.Chat = c.chat
			w.must(w.people.whatsapp.Fault(f))
		}
	}
	began := time.Now()
	u := &undertaker{doubtful: map[string]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var burying sync.WaitGroup
	burying.Go(func() { u.bury(ctx, w) })
	for _, k := range killers {
		k.arm(w)
	}
	w.keepTalking(talks, killers)
	talked := time.Now()
	w.awaitPeopleRest(3 * time.Minute)
	cancel()
	burying.Wait()
	t.Logf("%s of killing, %s until nothing was left", talked.Sub(began).Round(time.Second), time.Since(talked).Round(time.Second))
	w.awaitEvidence(talks, of, false)
	withheld := w.judgeSends(talks, of, u, false)
	released := w.people.whatsapp.Release(true)
	w.awaitEvidence(talks, of, true)
	final := w.judgeSends(talks, of, u, true)
	w.reportSends(killers, u, final, withheld, released)
	for service, k := range killers {
		if k.left() > 0 {
			t.Errorf("%s: %d deaths did not come to be, the next at %s", service, k.left(), k.due[0])
		}
	}
}

// keepTalking has people write until everybody has died who was to. Each is at
// most two answers ahead.
func (w *world) keepTalking(talks []*talk, killers map[string]*executioner) {
	w.t.Helper()
	byName := map[string]*talk{}
	for _, c := range talks {
		byName[c.name] = c
	}
	w.await(*flagPatience, "all deaths have come to be", func() (bool, string) {
		left := map[string]int{}
		for service, k := range killers {
			left[strings.ToUpper(service[:8])] = k.left()
		}
		if left["WHATSAPP"]+left["TELEGRAM"] == 0 {
			return true, ""
		}
		for name, p := range w.talkProgress() {
			if c := byName[name]; p.stored == len(c.said) && p.settled >= len(c.said)-1 && left[c.channel()] > 0 {
				c.next()
			}
		}
		for _, c := range talks {
			if len(c.said) == 0 {
				c.next()
			}
		}
		return false, fmt.Sprint(left)
	})
	w.awaitTold(talks)
}

type talkProgress struct{ stored, settled int }

// talkProgress returns, by chat, what of its words is stored and what is sent
// or given up.
func (w *world) talkProgress() map[string]talkProgress {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), `SELECT substr(m.text, 6, 4), count(DISTINCT m.message_id),
			count(*) FILTER (WHERE r.state IN ('SENT', 'DELIVERED', 'READ', 'FAILED') OR r.state = 'UNKNOWN' AND r.due_at IS NULL)
		FROM messages m LEFT JOIN messages o ON o.in_reply_to = m.message_id LEFT JOIN replies r ON r.message_id = o.message_id
		WHERE m.direction = 'INBOUND' GROUP BY 1`)
	w.must(err)
	all := map[string]talkProgress{}
	var name string
	var p talkProgress
	_, err = pgx.ForEachRow(rows, []any{&name, &p.stored, &p.settled}, func() error { all[name] = p; return nil })
	w.must(err)
	return all
}

// sent is one reply row and what stands on the phone.
type sent struct {
	id, state, providerID, reason string
	chat                          string
	number                        int // what it answers
	arrived                       []person.Line
}

func (w *world) sends(talks []*talk) []sent {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), `SELECT r.reply_id, r.state, r.provider_id, r.reason, substr(m.text, 6, 4), substr(m.text, 11, 3)::int
		FROM replies r JOIN messages o USING (message_id) JOIN messages m ON m.message_id = o.in_reply_to ORDER BY 5, 6`)
	w.must(err)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s sent, err error) {
		err = row.Scan(&s.id, &s.state, &s.providerID, &s.reason, &s.chat, &s.number)
		return s, err
	})
	w.must(err)
	for _, c := range talks {
		order := c.order()
		for at, l := range answers(c.lines(c.chat)) {
			found := false
			for i := range all {
				if all[i].chat == c.name && all[i].number == order[at] && (l.Opaque == "" || l.Opaque == all[i].id) {
					all[i].arrived, found = append(all[i].arrived, l), true
				}
			}
			if !found {
				w.t.Errorf("chat %s shows what no row says: %q", c.name, l.Text)
			}
		}
	}
	return all
}

// isTold reports whether every status of a chat has been told.
func isTold(of evidence, released bool) bool {
	return of == evidencePrompt || of == evidenceLate || of == evidenceReordered || of == evidenceWithheld && released
}

// awaitEvidence returns when the statuses that were told have moved the rows, or
// leaves it to the judge that they have not.
func (w *world) awaitEvidence(talks []*talk, of map[string]evidence, released bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	w.must(w.people.whatsapp.Settled(ctx))
	_, _ = w.wait(10*time.Second, func() (bool, string) {
		for _, s := range w.sends(talks) {
			if isTold(of[s.chat], released) && len(s.arrived) > 0 && s.state != "READ" {
				return false, s.id
			}
		}
		return true, ""
	})
}

// judgeSends counts the replies by channel and what became of them, and reports
// every one that breaks the rules.
func (w *world) judgeSends(talks []*talk, of map[string]evidence, u *undertaker, released bool) map[string]int {
	w.t.Helper()
	counts := map[string]int{}
	last := map[string]int{}
	seen := map[string]int{}
	for _, s := range w.sends(talks) {
		channel := "Telegram"
		if of[s.chat] != "" {
			channel = "WhatsApp"
		}
		count := func(what string) { counts[channel+" "+what]++ }
		fault := func(format string, args ...any) {
			w.t.Errorf("%s, statuses %q, answer to %d of %s (%s, %s): %s", s.id, of[s.chat], s.number, s.chat, s.state, s.reason, fmt.Sprintf(format, args...))
		}
		seen[s.chat]++
		count("replies")
		count("rows " + s.state)
		doubtful := u.doubtful[s.id]
		switch n := len(s.arrived); {
		case n > 1:
			count("doubled at the provider")
			fault("stands %d times on the phone", n)
			continue
		case n == 0 && s.state == "UNKNOWN" && doubtful:
			count("UNKNOWN, and never arrived")
			continue
		case n == 0:
			count("lost")
			fault("is not on the phone, and its sender did not die while it could not know")
			continue
		}
		switch {
		case s.state == "UNKNOWN" && !doubtful:
			fault("it is UNKNOWN and nobody died in its send")
		case s.state == "UNKNOWN" && isTold(of[s.chat], released):
			fault("it is UNKNOWN and its statuses were told")
		case s.state == "UNKNOWN":
			count("UNKNOWN, and arrived")
		case isTold(of[s.chat], released) && s.state != "READ":
			fault("its statuses say READ")
		case s.state != "SENT" && s.state != "DELIVERED" && s.state != "READ":
			fault("it stands on the phone")
		case s.providerID != s.arrived[0].ID:
			fault("it is called %q here and %q there", s.providerID, s.arrived[0].ID)
		}
		if doubtful && s.state != "UNKNOWN" {
			count("in doubt, settled by statuses")
		}
		if s.number < last[s.chat] {
			count("out of order")
			fault("it arrived after the answer to %d", last[s.chat])
		}
		last[s.chat] = s.number
	}
	for _, c := range talks {
		if seen[c.name] != len(c.said) {
			w.t.Errorf("chat %s: %d replies to %d messages", c.name, seen[c.name], len(c.said))
		}
		if order := c.order(); !slices.IsSorted(order) {
			w.t.Errorf("chat %s: answers stand in the order %v", c.name, order)
		}
	}
	return counts
}

func (w *world) reportSends(killers map[string]*executioner, u *undertaker, final, withheld map[string]int, released int) {
	w.t.Helper()
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, service := range slices.Sorted(maps.Keys(killers)) {
		k := killers[service]
		fmt.Fprintf(table, "  %s\t%d deaths, %d processes\n", service, k.deaths, k.died)
		for _, at := range slices.Sorted(maps.Keys(k.done)) {
			fmt.Fprintf(table, "    %s\t%d\n", at, k.done[at])
		}
	}
	fmt.Fprintf(table, "  parts under a dead sender's lease: surely not sent\t%d\n", u.planned)
	fmt.Fprintf(table, "  parts under a dead sender's lease: in doubt\t%d\n", len(u.doubtful))
	fmt.Fprintf(table, "  announcements and leases left of settled replies\t%s, %s\n", w.strings("SELECT count(*)::text FROM outbox")[0],
		w.strings("SELECT count(*)::text FROM replies WHERE lease_owner IS NOT NULL")[0])
	fmt.Fprintf(table, "  WhatsApp UNKNOWN before the withheld statuses came\t%d\n", withheld["WhatsApp rows UNKNOWN"])
	fmt.Fprintf(table, "  statuses told late, backwards, in one POST\t%d\n", released)
	for _, always := range []string{"doubled at the provider", "lost", "out of order", "UNKNOWN, and arrived", "UNKNOWN, and never arrived"} {
		for _, channel := range []string{"WhatsApp ", "Telegram "} {
			final[channel+always] += 0
		}
	}
	for _, what := range slices.Sorted(maps.Keys(final)) {
		fmt.Fprintf(table, "  %s\t%d\n", what, final[what])
	}
	for channel, c := range map[string]map[string]int{"WhatsApp": w.people.whatsapp.Counters(), "Telegram": w.people.telegram.Counters()} {
		fmt.Fprintf(table, "  %s: messages taken by the provider, of calls\t%d of %d\n", channel, c["sent"], c["sends"])
	}
	_ = table.Flush() // to memory
	w.t.Logf("counts\n%s", b.String())
}
