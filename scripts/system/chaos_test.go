//go:build system

package system_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"tuluat.ai/harness/scripts/internal/devcluster"
)

// TestChaos sends many messages over many conversations while the broker loses,
// doubles, delays and so reorders events, functions and sandboxes are killed at
// drawn points, the receiver of replies breaks off, and PostgreSQL crashes once.
// Everything is judged from outside: by raw callbacks and by what commands left
// in a folder.
func TestChaos(t *testing.T) {
	seed := *flagSeed
	if seed == 0 {
		seed = rand.Uint64()>>1 + 1
	}
	t.Logf("seed %d: repeat with -seed=%[1]d", seed)
	began := time.Now()
	agents := newAgents(min(10, max(1, *flagSessions/2)))
	chats := newTraffic(agents, *flagSessions, *flagMessages, seed)
	k := newKiller(*flagKills, *flagMessages, seed)
	w := newWorld(t, plan{
		agents: agents, seed: seed, processes: 2, flaky: true, ageing: 3 * time.Second,
		faults: devcluster.Faults{Seed: seed, DropRate: 0.1, DoubleRate: 0.1, MaxDelay: 300 * time.Millisecond},
		atWire: k.atWire, onPublish: k.published,
	})
	ready := time.Now()
	calls := newCaller(w)
	k.arm(w)
	crashed := w.disturb(k, func(ctx context.Context) {
		for _, err := range calls.converseAll(ctx, chats, seed) {
			t.Error(err)
		}
	})
	answered := time.Now()
	left := w.awaitRest(5 * time.Minute)
	rested := time.Now()
	w.stop()

	v := w.judge(chats)
	w.report(k, calls, v, crashed)
	t.Logf("%s to start, %s to the last answer, %s until nothing was left",
		ready.Sub(began).Round(time.Second), answered.Sub(ready).Round(time.Second), rested.Sub(answered).Round(time.Second))
	w.assertJudged(chats, v)
	if left != "" {
		t.Errorf("the system did not come to rest: %s", left)
	}
	w.assertNothingRemains()
	if k.deaths < *flagKills {
		t.Errorf("%d kills of %d; not reached: %q", k.deaths, *flagKills, k.left())
	}
	if !crashed {
		t.Error("PostgreSQL was not restarted")
	}
}

// disturb runs work and all that disturbs it, and returns when nothing of it
// runs. It reports whether the database was crashed.
func (w *world) disturb(k *killer, work func(context.Context)) (crashed bool) {
	ctx, cancel := context.WithTimeout(context.Background(), *flagPatience)
	defer cancel()
	ended := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() { k.strike(ended) })
	all.Go(func() {
		follow, stop := context.WithCancel(ctx)
		defer stop()
		go func() { <-ended; stop() }()
		w.followEvidence(follow, k.evidence)
	})
	all.Go(func() {
		for {
			n, changed := w.receiver.answered("")
			if n >= *flagMessages/2 {
				break
			}
			select {
			case <-changed:
			case <-ended:
				return
			}
		}
		if err := w.crashDatabase(); err != nil {
			w.t.Error("PostgreSQL: ", err)
			return
		}
		crashed = true
	})
	all.Go(func() { w.progress(ended, k) })
	work(ctx)
	close(ended)
	all.Wait()
	return crashed
}

// progress prints a line now and then: a silent test is taken for a dead one.
func (w *world) progress(ended <-chan struct{}, k *killer) {
	ticker := time.NewTicker(15 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			return
		case <-ticker.C:
			n, _ := w.receiver.answered("")
			k.mu.Lock()
			w.t.Logf("%d answered, %d kills", n, k.deaths)
			k.mu.Unlock()
		}
	}
}

// report prints the counts.
func (w *world) report(k *killer, calls *caller, v *verdict, crashed bool) {
	c := w.cluster.Counts()
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(what string, n any) { fmt.Fprintf(table, "  %s\t%v\n", what, n) }
	row("messages sent", v.messages)
	row("posts to the webhook", calls.posts)
	row("  of these without a usable answer", calls.retries)
	row("  of these known already", calls.duplicates)
	row("messages answered", v.answered)
	row("raw callbacks taken", len(w.receiver.raw))
	row("  duplicates", v.duplicates)
	row("  out of order in their session", v.misplaced)
	row("  that answer something else", v.wrong)
	row("callbacks broken off after they were taken", w.receiver.lost)
	row("callbacks refused with 503", w.receiver.refused)
	row("questions whether a reply arrived", w.receiver.asked)
	row("commands asked for", v.commands)
	row("commands started, by evidence", v.started)
	row("  started more than once", v.twice)
	row("told with their output and exit code", v.ran)
	row("told as not started", v.notStarted)
	row("told as unknown, begun by evidence", v.unknownBegun)
	row("told as unknown, not begun by evidence", v.unknownNot)
	row("told as ended by a limit", v.ended)
	row("not told at all", v.untold)
	row("told otherwise than the evidence shows", v.untrue)
	row("events published", c.Published)
	row("  matches of a trigger", c.Matched)
	row("  dropped", c.Dropped)
	row("  doubled", c.Doubled)
	row("  dead letters", c.DeadLettered)
	row("  lost by the broker for good", c.Lost)
	row("sweeps", c.Ticks)
	row("functions killed at a point", k.deaths)
	row("processes that died of it", sum(c.Kills))
	row("processes that ended by themselves", sum(c.Crashes))
	row("processes started", sum(c.Starts))
	row("sandboxes killed", k.boxes)
	row("sandboxes in all", len(w.sandboxNames()))
	row("PostgreSQL crashes", map[bool]int{true: 1}[crashed])
	if order, counts, err := w.unfinished(); err == nil {
		for _, name := range order {
			row(name, counts[name])
		}
	}
	for _, line := range w.strings("SELECT 'dead letters ' || state || ' ' || event_type || E'\t' || count(*) FROM dead_letters GROUP BY state, event_type ORDER BY 1") {
		fmt.Fprintf(table, "  %s\n", line)
	}
	_ = table.Flush() // to memory
	w.t.Logf("counts\n%s", b.String())
	b.Reset()
	var names []string
	for name := range k.done {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(table, "  %s\t%d\n", name, k.done[name])
	}
	_ = table.Flush()
	w.t.Logf("kills by point\n%s", b.String())
}

func sum(counts map[string]int) (n int) {
	for _, of := range counts {
		n += of
	}
	return n
}

// maxStories bounds how much a failure prints.
const maxStories = 10

func (w *world) assertJudged(chats [][]message, v *verdict) {
	w.t.Helper()
	w.receiver.mu.Lock()
	for _, what := range w.receiver.broken {
		w.t.Error("a callback breaks the contract: ", what)
	}
	w.receiver.mu.Unlock()
	shown := 0
	for _, chat := range chats {
		for _, m := range chat {
			faults := v.bad[m.id]
			if len(faults) == 0 {
				continue
			}
			delete(v.bad, m.id)
			if shown++; shown <= maxStories {
				w.t.Errorf("%s\n%s", strings.Join(faults, "\n"), w.story(m))
			}
		}
	}
	if shown > maxStories {
		w.t.Errorf("and %d more messages like these", shown-maxStories)
	}
	for id, faults := range v.bad {
		w.t.Errorf("%s: %s", id, strings.Join(faults, "\n"))
	}
}

// assertNothingRemains: no sandbox of the test is left on this machine.
func (w *world) assertNothingRemains() {
	w.t.Helper()
	listed, processes, cgroups := w.remains()
	w.t.Logf("left on this machine: %d sandboxes, %d processes, %d cgroups of theirs", len(listed), len(processes), len(cgroups))
	if len(listed) > 0 || len(processes) > 0 || len(cgroups) > 0 {
		w.t.Errorf("sandboxes remain: listed %q, processes %q, cgroups %q", listed, processes, cgroups)
	}
}
