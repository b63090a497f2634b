package main

import (
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// TestATurnReadsNoHistory runs turns in a database with a past, and counts the
// rows that Postgres reads by going through whole tables: a turn finds what it
// needs by indexes, so that it takes what it took on the first day.
func TestATurnReadsNoHistory(t *testing.T) {
	ctx := t.Context()
	s := postgrestest.New(t)
	if err := load(ctx, s.Pool().Config().ConnString(), options{sessions: 20_000, logs: 3000}); err != nil {
		t.Fatal(err)
	}
	const large = 1000 // rows; below it going through a table is as good as an index
	read := func() map[string]int64 {
		t.Helper()
		if _, err := s.Pool().Exec(ctx, `SELECT pg_stat_force_next_flush()`); err != nil {
			t.Fatal(err)
		}
		rows, err := s.Pool().Query(ctx, `SELECT relname, seq_tup_read FROM pg_stat_user_tables WHERE n_live_tup >= $1`, large)
		if err != nil {
			t.Fatal(err)
		}
		counts := map[string]int64{}
		var table string
		var n int64
		if _, err := pgx.ForEachRow(rows, []any{&table, &n}, func() error { counts[table] = n; return nil }); err != nil {
			t.Fatal(err)
		}
		return counts
	}
	if err := turn(ctx, s, "first", agentOf(0)); err != nil { // what a connection reads once
		t.Fatal(err)
	}
	s.Pool().Reset() // a connection that ends has said what it read
	time.Sleep(100 * time.Millisecond)
	before := read()
	for n := range 5 {
		if err := turn(ctx, s, "turn-"+strconv.Itoa(n), agentOf(n)); err != nil {
			t.Fatal(err)
		}
	}
	s.Pool().Reset()
	time.Sleep(100 * time.Millisecond)
	after := read()
	for _, table := range []string{"sessions", "messages", "replies", "steps", "tool_calls", "session_events", "sandboxes", "executions"} {
		if _, known := before[table]; !known {
			t.Errorf("%s has fewer than %d rows: the test shows nothing of it", table, large)
		}
	}
	for table, n := range after {
		if n > before[table] {
			t.Errorf("five turns went through %s and read %d rows of it", table, n-before[table])
		}
	}
}
