package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/shared/postgres"
)

const (
	pageRows = 50   // of a page, as the API's default
	deepPage = 1000 // measured beside the first
	walkRows = 200  // of a page on the way there, the API's most
)

// page is where a list goes on and how many rows came.
type page[P any] struct {
	next P
	rows int
	end  bool // nothing follows
}

// measured is what one list did at one page.
type measured struct {
	what, where string
	rows        int
	p50, p99    time.Duration // as the caller sees it
	cpu99       time.Duration // of the server's process, p99: what is left on a machine that does nothing else
}

// lists measures every list and prints the table. It returns how many pages are
// over the target.
func lists(ctx context.Context, store *postgres.Store, o options) (over int, err error) {
	say("measuring lists, %d runs of each", o.runs)
	fmt.Printf("%-52s %-6s %5s %9s %9s %11s\n", "list", "page", "rows", "p50 ms", "p99 ms", "CPU p99 ms")
	cases, err := casesOf(ctx, store)
	if err != nil {
		return 0, err
	}
	for _, c := range cases {
		if !strings.HasPrefix(c.name(), o.only) {
			continue
		}
		results, err := c.measure(ctx, o.runs)
		if err != nil {
			return over, fmt.Errorf("%s: %w", c.name(), err)
		}
		for _, m := range results {
			mark := ""
			if m.judged(o) > o.target {
				over, mark = over+1, "  over the target"
			}
			fmt.Printf("%-52s %-6s %5d %9.2f %9.2f %11.2f%s\n", m.what, m.where, m.rows, ms(m.p50), ms(m.p99), ms(m.cpu99), mark)
		}
	}
	return over, nil
}

// judged is the time that must be under the target.
func (m measured) judged(o options) time.Duration {
	if o.busy {
		return m.cpu99
	}
	return m.p99
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// listCase is one list with one filter.
type listCase interface {
	name() string
	measure(ctx context.Context, runs int) ([]measured, error)
}

// ask reads one page of a list. Runs are numbered, so that they may ask for
// different agents or sessions.
type ask[P any] struct {
	what  string
	store *postgres.Store
	get   func(ctx context.Context, run int, after P, limit int) (page[P], error)
}

func (a ask[P]) name() string { return a.what }

// measure measures the first page, and the 1,000th or the last of the list that
// run 0 asks for.
func (a ask[P]) measure(ctx context.Context, runs int) ([]measured, error) {
	var begin P
	first, err := a.at(ctx, runs, "first", begin, true)
	if err != nil {
		return nil, err
	}
	place, before, pages := begin, begin, 0
	for pages < deepPage-1 {
		rows := walkRows
		if deepPage-1-pages < walkRows/pageRows {
			rows = pageRows
		}
		p, err := a.get(ctx, 0, place, rows)
		if err != nil {
			return nil, err
		}
		if p.end || p.rows == 0 {
			break
		}
		pages += rows / pageRows
		before, place = place, p.next
	}
	where := fmt.Sprintf("%d", pages+1)
	if pages < deepPage-1 {
		where, place = "last", before
		if pages == 0 {
			return []measured{first}, nil
		}
	}
	deep, err := a.at(ctx, runs, where, place, false)
	return []measured{first, deep}, err
}

func (a ask[P]) at(ctx context.Context, runs int, where string, place P, varied bool) (measured, error) {
	var times, cpu []time.Duration
	watch, err := watchBackend(ctx, a.store)
	if err != nil {
		return measured{}, err
	}
	m := measured{what: a.what, where: where}
	for run := range runs {
		number := run
		if !varied {
			number = 0
		}
		used, begun := watch.used(), time.Now()
		p, err := a.get(ctx, number, place, pageRows)
		if err != nil {
			return m, err
		}
		times, cpu = append(times, time.Since(begun)), append(cpu, watch.used()-used)
		m.rows = max(m.rows, p.rows)
	}
	m.p50, m.p99, m.cpu99 = quantile(times, 50), quantile(times, 99), quantile(cpu, 99)
	return m, nil
}

func quantile(times []time.Duration, percent int) time.Duration {
	slices.Sort(times)
	return times[min(len(times)*percent/100, len(times)-1)]
}

// backend is the server's process of the store's only connection.
type backend struct{ file string }

// watchBackend finds it. The store must have one connection.
func watchBackend(ctx context.Context, store *postgres.Store) (*backend, error) {
	var pid int
	err := store.Pool().QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid)
	return &backend{file: fmt.Sprintf("/proc/%d/schedstat", pid)}, err
}

// used is how long the process was on a CPU so far; 0 where the system does not
// say.
func (b *backend) used() time.Duration {
	text, err := os.ReadFile(b.file)
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	n, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(n)
}
