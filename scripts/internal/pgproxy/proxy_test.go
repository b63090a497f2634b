package pgproxy_test

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"tuluat.ai/harness/scripts/internal/pgproxy"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watch records exchanges and lets a test answer for the hooks.
type watch struct {
	mu     sync.Mutex
	before []pgproxy.Exchange
	after  []pgproxy.Exchange
	cut    func(point string, e pgproxy.Exchange) bool
}

func (w *watch) options(target string) pgproxy.Options {
	hook := func(point string, list *[]pgproxy.Exchange) func(pgproxy.Exchange) bool {
		return func(e pgproxy.Exchange) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			*list = append(*list, e)
			return w.cut == nil || !w.cut(point, e)
		}
	}
	return pgproxy.Options{Target: target, Before: hook("before", &w.before), After: hook("after", &w.after)}
}

func (w *watch) statements() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, e := range w.after {
		all = append(all, strings.Join(e.Statements, "; "))
	}
	return all
}

// setup returns a proxy to an empty database, and how to reach it around the proxy.
func setup(t *testing.T, w *watch) (p *pgproxy.Proxy, through, direct string) {
	t.Helper()
	direct = postgrestest.Empty(t).Reveal()
	u, err := url.Parse(direct)
	if err != nil {
		t.Fatal(err)
	}
	if p, err = pgproxy.Listen(w.options(u.Host)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	if through, err = p.DSN(direct); err != nil {
		t.Fatal(err)
	}
	return p, through, direct
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // cut, in some tests
	return conn
}

func exec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, conn *pgx.Conn) (n int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM notes").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestEveryRoundTripIsCountedWithItsStatements(t *testing.T) {
	w := &watch{}
	p, through, _ := setup(t, w)
	conn := connect(t, through)
	if p.RoundTrips() != 0 {
		t.Errorf("opening a connection counted as %d round trips", p.RoundTrips())
	}
	exec(t, conn, "CREATE TABLE notes (n int PRIMARY KEY)")
	const insert = "INSERT INTO notes VALUES ($1)"
	exec(t, conn, insert, 1) // prepares, then executes
	before := p.RoundTrips()
	exec(t, conn, insert, 2)
	if got := p.RoundTrips() - before; got != 1 {
		t.Errorf("a prepared statement took %d round trips", got)
	}
	batch := &pgx.Batch{}
	batch.Queue(insert, 3)
	batch.Queue(insert, 4)
	before = p.RoundTrips()
	if err := conn.SendBatch(t.Context(), batch).Close(); err != nil {
		t.Fatal(err)
	}
	if got := p.RoundTrips() - before; got != 1 {
		t.Errorf("a batch of prepared statements took %d round trips", got)
	}
	all := w.statements()
	if last := all[len(all)-1]; last != insert+"; "+insert {
		t.Errorf("the batch was seen as %q", last)
	}
	if !slices.Contains(all, "") { // the round trip that only prepares
		t.Errorf("no round trip without a statement in %q", all)
	}
	if n := count(t, conn); n != 4 {
		t.Errorf("%d rows came through", n)
	}
}

func TestErrorsAndTransactionsAreSeen(t *testing.T) {
	w := &watch{}
	_, through, _ := setup(t, w)
	conn := connect(t, through)
	exec(t, conn, "CREATE TABLE notes (n int PRIMARY KEY)")
	if _, err := conn.Exec(t.Context(), "INSERT INTO notes VALUES (1), (1)"); err == nil {
		t.Fatal("the server's error did not come through")
	}
	exec(t, conn, "BEGIN")
	exec(t, conn, "ROLLBACK")
	w.mu.Lock()
	defer w.mu.Unlock()
	failed, open := 0, 0
	for _, e := range w.after {
		if e.Failed {
			failed++
		}
		if e.Open {
			open++
			if strings.Join(e.Statements, "") != "begin" && !strings.EqualFold(e.Statements[0], "begin") {
				t.Errorf("open after %q", e.Statements)
			}
		}
	}
	if failed != 1 || open != 1 {
		t.Errorf("%d failed and %d open round trips, 1 of each expected", failed, open)
	}
}

func TestCopyComesThrough(t *testing.T) {
	w := &watch{}
	_, through, _ := setup(t, w)
	conn := connect(t, through)
	exec(t, conn, "CREATE TABLE notes (n int PRIMARY KEY)")
	rows := pgx.CopyFromSlice(5000, func(i int) ([]any, error) { return []any{i}, nil })
	if n, err := conn.CopyFrom(t.Context(), pgx.Identifier{"notes"}, []string{"n"}, rows); err != nil || n != 5000 {
		t.Fatalf("%d rows copied, %v", n, err)
	}
	if n := count(t, conn); n != 5000 {
		t.Errorf("%d rows", n)
	}
}

// What is cut before the server saw it did not happen; what is cut after the
// server's answer did, and the client cannot know.
func TestACutFallsOnTheRightSideOfTheCommit(t *testing.T) {
	for point, rows := range map[string]int{"before": 0, "after": 1} {
		t.Run(point, func(t *testing.T) {
			w := &watch{cut: func(at string, e pgproxy.Exchange) bool {
				return at == point && len(e.Statements) > 0 && strings.HasPrefix(e.Statements[0], "INSERT")
			}}
			_, through, direct := setup(t, w)
			beside := connect(t, direct)
			exec(t, beside, "CREATE TABLE notes (n int PRIMARY KEY)")
			conn := connect(t, through)
			if _, err := conn.Exec(t.Context(), "INSERT INTO notes VALUES ($1)", 1); err == nil {
				t.Error("the client heard of a round trip that was cut")
			}
			if !conn.IsClosed() {
				t.Error("the connection was not cut")
			}
			if n := count(t, beside); n != rows {
				t.Errorf("%d rows, %d expected", n, rows)
			}
		})
	}
}

func TestAServerThatIsDownAndOneThatMoved(t *testing.T) {
	w := &watch{}
	p, through, direct := setup(t, w)
	u, err := url.Parse(direct)
	if err != nil {
		t.Fatal(err)
	}
	p.SetTarget("127.0.0.1:1") // nothing listens there
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if conn, err := pgx.Connect(ctx, through); err == nil {
		_ = conn.Close(ctx)
		t.Error("connected to nothing")
	}
	p.SetTarget(u.Host)
	exec(t, connect(t, through), "SELECT 1")
}

func TestCloseCutsWhatIsOpen(t *testing.T) {
	w := &watch{}
	p, through, _ := setup(t, w)
	conn := connect(t, through)
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "SELECT pg_sleep(60)")
		ended <- err
	}()
	for !slices.ContainsFunc(seen(w), func(e pgproxy.Exchange) bool { return strings.Contains(strings.Join(e.Statements, ""), "pg_sleep") }) {
		time.Sleep(time.Millisecond)
	}
	p.Close()
	if err := <-ended; err == nil {
		t.Error("a statement came through a closed proxy")
	}
}

func seen(w *watch) []pgproxy.Exchange {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.before)
}

// A cut ends what is open, and nothing else: the next connection is taken.
func TestCut(t *testing.T) {
	p, through, _ := setup(t, &watch{})
	old := connect(t, through)
	if _, err := old.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	if _, err := old.Exec(t.Context(), "SELECT 1"); err == nil {
		t.Error("the connection outlives the cut")
	}
	if _, err := connect(t, through).Exec(t.Context(), "SELECT 1"); err != nil {
		t.Errorf("after the cut: %v", err)
	}
}
