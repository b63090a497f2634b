//go:build system

package system_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"tuluat.ai/harness/scripts/internal/pgproxy"
)

// maxPlainTrips is what one message and its answer may cost, without a command.
const maxPlainTrips = 12

// trips collects the round trips of the functions that work a turn.
type trips struct {
	mu  sync.Mutex
	all map[string]int // by Service and the start of the first statement
}

func (r *trips) atWire(service string) (before, after func(pgproxy.Exchange) bool) {
	if service == "reaper-cron" || service == "agent-status" {
		return nil, nil // not part of a turn
	}
	return nil, func(e pgproxy.Exchange) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all[service+"\t"+firstWords(e)]++
		return true
	}
}

func firstWords(e pgproxy.Exchange) string {
	if len(e.Statements) == 0 {
		return "(prepares)"
	}
	text := strings.Join(strings.Fields(e.Statements[len(e.Statements)-1]), " ")
	if len(e.Statements) > 1 {
		text = fmt.Sprintf("%d statements, the last: %s", len(e.Statements), text)
	}
	return text[:min(len(text), 90)]
}

func (r *trips) take() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.all
	r.all = map[string]int{}
	return taken
}

// TestRoundTripsPerTurn counts at the wire what one turn costs the database.
func TestRoundTripsPerTurn(t *testing.T) {
	const turns = 20
	agents := newAgents(1)
	r := &trips{all: map[string]int{}}
	w := newWorld(t, plan{agents: agents, atWire: r.atWire, lease: time.Minute, noTicks: true})
	calls := newCaller(w)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	number := 0
	turn := func(text string) {
		number++
		m := message{id: fmt.Sprintf("m%d", number), agent: agents[0], chat: "trips", number: number, text: text}
		if err := calls.send(ctx, m); err != nil {
			t.Fatal(err)
		}
		if err := calls.awaitAnswers(ctx, m.chat, number); err != nil {
			t.Fatal(err, "\n", w.story(m))
		}
		// The answer is here before it is marked as sent.
		w.await(time.Minute, "nothing is open", func() (bool, string) {
			_, counts, err := w.unfinished()
			return err == nil && counts["replies open"]+counts["leases held"]+counts["sessions in a working state"] == 0, fmt.Sprint(counts, err)
		})
	}
	measure := func(text string, n int) float64 {
		r.take()
		for range n {
			turn(text)
		}
		counted := r.take()
		total := sum(counted)
		var b strings.Builder
		table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		var names []string
		for name := range counted {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			fmt.Fprintf(table, "  %.2f\t%s\n", float64(counted[name])/float64(n), name)
		}
		_ = table.Flush() // to memory
		each := float64(total) / float64(n)
		t.Logf("%q: %.2f SQL round trips per turn\n%s", text, each, b.String())
		return each
	}
	measure("the first one", 1) // connections and statements are new
	plain := measure("hello", turns)
	measure("run: echo first", 1) // so is the sandbox
	withCommand := measure("run: echo again", turns)
	t.Logf("SQL round trips per turn: plain %.2f (at most %d), with a command %.2f", plain, maxPlainTrips, withCommand)
	if plain > maxPlainTrips {
		t.Errorf("a plain turn takes %.2f SQL round trips", plain)
	}
	if plain < 3 {
		t.Errorf("a plain turn cannot take %.2f SQL round trips: the count is wrong", plain)
	}
}
