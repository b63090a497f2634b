package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/fake"
	"tuluat.ai/harness/scripts/internal/figure"
	"tuluat.ai/harness/scripts/internal/localpg"
)

const (
	maxRoundTrips = 12    // the promise for a plain turn: message in, answer out
	turnP50       = 25.0  // milliseconds, the model instant
	turnP99       = 100.0 // the same
	turnRate      = 150.0 // per second on two cores
)

// turns measures a message from its POST to the callback with its answer, with an
// instant model, through every function as a process of its own: alone beside the
// barest service that does as much, at 1 to 1,000 sessions at once, and with its
// statements counted at the wire.
func turns(ctx context.Context, o options, bin string, pg *localpg.Server) ([]figure.Figure, error) {
	if err := durable(ctx, pg); err != nil {
		return nil, err
	}
	figures, err := loaded(ctx, o, bin, pg)
	if err != nil {
		return nil, err
	}
	more, err := counted(ctx, o, bin, pg)
	return append(figures, more...), err
}

// durable makes sure that a commit here is one that a power cut keeps.
func durable(ctx context.Context, pg *localpg.Server) error {
	conn, err := pgx.Connect(ctx, pg.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var sync, commit string
	if err := conn.QueryRow(ctx, `SELECT current_setting('fsync'), current_setting('synchronous_commit')`).Scan(&sync, &commit); err != nil {
		return err
	}
	if sync != "on" || commit != "on" {
		return fmt.Errorf("fsync is %s and synchronous_commit %s: what is measured would not be durable", sync, commit)
	}
	return nil
}

// loaded measures turns without anything between the functions and the server.
func loaded(ctx context.Context, o options, bin string, pg *localpg.Server) ([]figure.Figure, error) {
	w, err := startWorld(ctx, bin, pg, worldOptions{database: "bench_turn", model: instant, profile: o.profile})
	if err != nil {
		return nil, err
	}
	figures, err := w.loaded(ctx, o, bin, pg)
	w.stop()
	if err == nil && o.profile != "" {
		err = drawProfiles(o.profile)
	}
	return figures, err
}

func (w *world) loaded(ctx context.Context, o options, bin string, pg *localpg.Server) ([]figure.Figure, error) {
	bare, err := startBareTurns(ctx, bin, pg)
	if err != nil {
		return nil, err
	}
	defer bare.stop()
	for n := range 10 { // processes start, caches warm up
		if _, err := w.turn(ctx, fmt.Sprint("warm-", n), "hello"); err != nil {
			return nil, err
		}
		if _, err := bare.turn(ctx); err != nil {
			return nil, err
		}
	}
	say("turns: %d messages, one after the other, and as many of the bare service, in turn", o.messages)
	var took, bareTook, over []float64
	for n := range o.messages {
		// A new person every ten messages: conversations have few turns.
		d, err := w.turn(ctx, fmt.Sprint("one-", n/10), "hello")
		if err != nil {
			return nil, err
		}
		b, err := bare.turn(ctx)
		if err != nil {
			return nil, err
		}
		took, bareTook = append(took, figure.Milliseconds(d)), append(bareTook, figure.Milliseconds(b))
		over = append(over, figure.Milliseconds(d)/figure.Milliseconds(b))
	}
	figures := []figure.Figure{
		figure.Quantile("message to reply, plain turn: p50", "ms", 0.5, took).AtMost(turnP50, "at most 25 ms"),
		figure.Quantile("message to reply, plain turn: p99", "ms", 0.99, took).AtMost(turnP99, "at most 100 ms"),
		figure.Quantile("message to reply, bare service (2 commits, model, callback): p50", "ms", 0.5, bareTook),
		figure.Quantile("message to reply, bare service: p99", "ms", 0.99, bareTook),
		figure.Of("message to reply, ours / bare", "ratio", over...),
	}
	runs := map[int][]atOnceResult{}
	for n := range o.pairs { // in turn: what else the machine does falls on all alike
		for _, sessions := range atOnce {
			r, err := w.atOnce(ctx, o, pg, n, sessions)
			if err != nil {
				return nil, fmt.Errorf("%d sessions at once: %w", sessions, err)
			}
			say("run %d, %4d sessions at once: %5.1f turns/s, p50 %.0f ms, p99 %.0f ms; CPU per turn: functions %.1f ms (%s), Postgres %.1f ms, platform and load %.1f ms",
				n+1, sessions, r.rate, r.p50, r.p99, r.functions, r.words, r.postgres, r.platform)
			runs[sessions] = append(runs[sessions], r)
		}
	}
	return append(figures, atOnceFigures(runs)...), nil
}

// atOnce is how many sessions have a turn at once.
var atOnce = []int{1, 10, 100, 1000}

type atOnceResult struct {
	rate, p50, p99                float64 // turns per second; milliseconds
	functions, postgres, platform float64 // CPU milliseconds per turn
	words                         string
}

// atOnce lets every session send its next message when its last one is answered.
func (w *world) atOnce(ctx context.Context, o options, pg *localpg.Server, run, sessions int) (atOnceResult, error) {
	before, err := readUsage(pg)
	if err != nil {
		return atOnceResult{}, err
	}
	var mu sync.Mutex
	var took []float64
	var failed error
	var running sync.WaitGroup
	began := time.Now()
	for s := range sessions {
		running.Go(func() {
			user := fmt.Sprintf("at-%d-%d-%d", sessions, run, s)
			for n := 0; time.Since(began) < o.seconds; n++ {
				d, err := w.turn(ctx, fmt.Sprint(user, "-", n/10), "hello")
				mu.Lock()
				took = append(took, figure.Milliseconds(d))
				failed = errors.Join(failed, err)
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	running.Wait()
	elapsed := time.Since(began)
	if failed != nil {
		return atOnceResult{}, failed
	}
	after, err := readUsage(pg)
	if err != nil {
		return atOnceResult{}, err
	}
	n := float64(len(took))
	slices.Sort(took)
	r := atOnceResult{rate: n / elapsed.Seconds(), p50: figure.At(took, 0.5), p99: figure.At(took, 0.99)}
	used := after.minus(before)
	r.postgres, r.platform = figure.Milliseconds(used.postgres)/n, figure.Milliseconds(used.self)/n
	for _, name := range slices.Sorted(maps.Keys(used.functions)) {
		ms := figure.Milliseconds(used.functions[name]) / n
		if r.functions += ms; ms >= 0.1 {
			r.words += fmt.Sprintf(" %s %.1f", name, ms)
		}
	}
	r.words = strings.TrimSpace(r.words)
	return r, nil
}

func atOnceFigures(runs map[int][]atOnceResult) []figure.Figure {
	each := func(sessions int, value func(atOnceResult) float64) (values []float64) {
		for _, r := range runs[sessions] {
			values = append(values, value(r))
		}
		return values
	}
	rate := func(r atOnceResult) float64 { return r.rate }
	var figures []figure.Figure
	for _, n := range atOnce {
		name := fmt.Sprintf("%d sessions at once: ", n)
		figures = append(figures,
			figure.Of(name+"turns per second", "/s", each(n, rate)...),
			figure.Of(name+"p50", "ms", each(n, func(r atOnceResult) float64 { return r.p50 })...),
			figure.Of(name+"p99", "ms", each(n, func(r atOnceResult) float64 { return r.p99 })...),
			figure.Of(name+"turns per core second of the functions", "", each(n, func(r atOnceResult) float64 { return 1000 / r.functions })...),
			figure.Of(name+"turns per core second of Postgres", "", each(n, func(r atOnceResult) float64 { return 1000 / r.postgres })...),
			figure.Of(name+"turns per core second of both", "", each(n, func(r atOnceResult) float64 { return 1000 / (r.functions + r.postgres) })...),
		)
	}
	var best, last []float64
	for n := range runs[atOnce[0]] {
		most := 0.0
		for _, sessions := range atOnce {
			most = max(most, runs[sessions][n].rate)
		}
		best, last = append(best, most), append(last, runs[1000][n].rate/runs[100][n].rate)
	}
	return append(figures,
		figure.Of("turns per second at the best of these, the players' share of the cores in it", "/s", best...).AtLeast(turnRate, "at least 150"),
		figure.Of("turns per second at 1,000 sessions / at 100", "ratio", last...).AtLeast(0.9, "at least 0.9: more sessions cost nothing"),
	)
}

// counted counts at the wire what a turn says to the database.
func counted(ctx context.Context, o options, bin string, pg *localpg.Server) ([]figure.Figure, error) {
	w, err := startWorld(ctx, bin, pg, worldOptions{database: "bench_turn_counted", model: fake.NewModel(fake.ModelOptions{}), counted: true})
	if err != nil {
		return nil, err
	}
	defer w.stop()
	var figures []figure.Figure
	for _, kind := range []struct{ name, text string }{{"plain", "hello"}, {"command", "run: echo hi"}} {
		for range 5 { // processes start, caches and the sandbox warm up
			if _, err := w.turn(ctx, "user", kind.text); err != nil {
				return nil, err
			}
		}
		say("turns: %d %s messages, one after the other, counted", o.messages, kind.name)
		time.Sleep(settleTime)
		before := w.traffic()
		var took []float64
		for range o.messages {
			d, err := w.turn(ctx, "user", kind.text)
			if err != nil {
				return nil, err
			}
			took = append(took, figure.Milliseconds(d))
		}
		time.Sleep(settleTime)
		after, n := w.traffic(), float64(o.messages)
		trips := figure.Of("SQL round trips per "+kind.name+" turn", "", float64(after.trips-before.trips)/n)
		if kind.name == "plain" {
			trips = trips.AtMost(maxRoundTrips, "at most 12")
		} else {
			figures = append(figures, figure.Quantile("message to reply, command turn, counted at the wire: p50", "ms", 0.5, took),
				figure.Quantile("message to reply, command turn, counted at the wire: p99", "ms", 0.99, took))
		}
		figures = append(figures, trips, figure.Of("SQL bytes per "+kind.name+" turn, both ways", "B", float64(after.bytes-before.bytes)/n))
		for _, name := range slices.Sorted(maps.Keys(after.by)) {
			if more := after.by[name] - before.by[name]; more > 0 {
				say("  %.2f round trips of %s", float64(more)/n, name)
			}
		}
	}
	return figures, nil
}

// settleTime is for what a turn still writes when its answer is out.
const settleTime = 500 * time.Millisecond
