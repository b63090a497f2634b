//go:build system

package system_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/pgproxy"
	archived "tuluat.ai/harness/shared/archive/part"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

var flagFault = flag.String("fault", "", "only the faults whose name matches this regular expression")

// fault is one thing that goes wrong. inject does it while people talk, and takes
// it away again.
type fault struct {
	name   string
	inject func(*trial)
}

// matrix is a world in which one fault follows on the other.
type matrix struct {
	*world
	wires *wires
	model *front
	clock *jumpingClock
	calls *caller
	rest  *rest
	both  []phone
	rows  []result
}

// result is a row of the table.
type result struct {
	fault, what           string
	took                  time.Duration
	leaked, lost, doubled int
	details               []string
}

// TestFaults injects faults one after the other into one world, each under
// traffic, and counts after each, when nothing is left to do, what is leaked,
// lost and doubled: by raw callbacks and phones, by what commands left in a
// folder, by SQL, by the driver of the sandboxes and by the list of the bucket.
// Timers run thirty times as fast as they would, and leases of dead processes
// end at once.
func TestFaults(t *testing.T) {
	wanted, err := regexp.Compile(*flagFault)
	if err != nil {
		t.Fatal("-fault: ", err)
	}
	all := slices.DeleteFunc(faults(), func(f fault) bool { return !wanted.MatchString(f.name) })
	m := &matrix{wires: &wires{}, model: &front{}, clock: &jumpingClock{}}
	if slices.ContainsFunc(all, func(f fault) bool { return strings.Contains(f.name, "clock") }) {
		m.clock = newJumpingClock(t)
	}
	agents := newAgents(9)
	m.world = newWorld(t, plan{
		agents: agents, people: &crowd{}, gated: true, archived: true, ageing: 30 * time.Second, atWire: m.wires.atWire,
		atModel: m.model.before, program: m.clock.program, more: m.clock.env,
	})
	m.calls, m.rest, m.both = newCaller(m.world), newREST(m.world), m.people.phones()
	ctx, cancel := context.WithCancel(context.Background())
	var burying sync.WaitGroup
	burying.Go(func() { m.buryAll(ctx) })
	defer burying.Wait()
	defer cancel()
	defer m.print() // also of those before one that ends the test
	for i, f := range all {
		m.try(i, f)
	}
	if left, ok := m.wait(4*time.Minute, m.atRest); !ok {
		t.Errorf("the system did not come to rest: %s", left)
	}
	m.stop()
	m.assertNothingRemains()
	if *flagFault == "" && len(m.rows) < 25 {
		t.Errorf("%d faults, want 25 at least", len(m.rows))
	}
}

// trial is one fault, and what people say meanwhile.
type trial struct {
	*matrix
	name   string // of its chats, unlike any other's
	agents []agent
	chats  [][]message
	talks  []*talk
	old    []string // log entries that are to be in the archive
	ctx    context.Context
	ended  time.Time // when the fault was over; zero: when it was injected

	talking sync.WaitGroup
	mu      sync.Mutex
	result
}

func (m *matrix) try(i int, f fault) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	c := &trial{matrix: m, name: fmt.Sprintf("f%02d", i), ctx: ctx, result: result{fault: f.name}}
	for j := range 3 {
		c.agents = append(c.agents, m.plan.agents[(3*i+j)%len(m.plan.agents)])
	}
	f.inject(c)
	c.heal()
	c.talking.Wait()
	state, settled := m.wait(2*time.Minute, c.settled)
	c.took = time.Since(c.ended)
	if !settled {
		c.detail("not settled: %s", state)
	}
	c.count()
	m.t.Logf("%s: %s; %s; leaked %d, lost %d, doubled %d", c.fault, c.what, c.took.Round(100*time.Millisecond), c.leaked, c.lost, c.doubled)
	for _, d := range c.details {
		m.t.Errorf("%s: %s", c.fault, d)
	}
	m.rows = append(m.rows, c.result)
}

// heal takes every fault away.
func (c *trial) heal() {
	c.wires.set(nil)
	c.model.set(moodWell, 0)
	c.bucket.set(moodWell, 0)
	c.gate.set(gateOpen)
	c.still.Store(false)
	if c.ended.IsZero() {
		c.ended = time.Now()
	}
}

func (c *trial) detail(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.details) < maxStories {
		c.details = append(c.details, fmt.Sprintf(format, args...))
	}
}

// words are the messages of one chat: notes, and commands for "run".
func (c *trial) words(a agent, chat string, kinds ...string) []message {
	var all []message
	for i, kind := range kinds {
		m := message{id: fmt.Sprintf("%s-%d", chat, i+1), agent: a, chat: chat, number: i + 1}
		switch kind {
		case "note":
			m.text = "note " + m.id
		case "run":
			m.commands = []command{{id: m.id}}
			m.text = "run: " + m.commands[0].shell()
		default: // a command of its own behind the evidence
			m.commands = []command{{id: m.id}}
			m.text = "run: " + strings.Replace(m.commands[0].shell(), "sleep 0.05", kind, 1)
		}
		all = append(all, m)
	}
	return all
}

// speak says messages in a new chat, one after the other's answer.
func (c *trial) speak(a agent, kinds ...string) []message {
	messages := c.words(a, fmt.Sprintf("%s-%d", c.name, len(c.chats)), kinds...)
	c.chats = append(c.chats, messages)
	c.talking.Go(func() {
		if err := c.calls.converse(c.ctx, messages, 1); err != nil {
			c.detail("%v", err)
		}
	})
	return messages
}

// traffic is what people say while a fault is there.
func (c *trial) traffic() {
	c.speak(c.agents[0], "note", "run", "note")
	c.speak(c.agents[1], "run", "note")
}

// phones has a person on each messenger say n things.
func (c *trial) phones(n int) {
	for _, p := range c.both {
		name := fmt.Sprintf("%s%s%d", c.name, strings.ToLower(p.channel()[:1]), len(c.talks))
		one := &talk{phone: p, chat: p.join(name), name: name}
		c.talks = append(c.talks, one)
		for range n {
			one.next()
		}
	}
}

// awaitAll returns when what was said so far is answered, or its time is over.
func (c *trial) awaitAll() {
	c.talking.Wait()
	_, _ = c.wait(time.Minute, func() (bool, string) { return c.unansweredOnPhones() == 0, "" })
}

func (c *trial) unansweredOnPhones() (open int) {
	for _, one := range c.talks {
		open += max(0, len(one.said)-len(one.order())-c.unknown(one))
	}
	return open
}

// unknown is how many answers of a chat are said to be unknown for good: their
// sender died while it could not know.
func (c *trial) unknown(one *talk) (n int) {
	_ = c.db.QueryRow(c.ctx, `SELECT count(*) FROM replies r JOIN messages o USING (message_id) JOIN messages m ON m.message_id = o.in_reply_to
		WHERE m.text LIKE $1 AND r.state = 'UNKNOWN' AND r.due_at IS NULL AND r.provider_id = ''`, "note "+one.name+"-%").Scan(&n) // while the database is away nothing is known
	return n
}

// openSQL counts, by name, what is to be done. A sandbox that serves on is none.
const openSQL = `
SELECT 'sessions in a working state', count(*) FROM sessions WHERE state NOT IN ('IDLE', 'BLOCKED', 'FAILED', 'COMPLETED', 'CANCELLED')
UNION ALL SELECT 'sessions due', count(*) FROM sessions WHERE due_at IS NOT NULL
UNION ALL SELECT 'messages not answered', count(*) FROM messages WHERE state <> 'DONE'
UNION ALL SELECT 'tool calls without a result', count(*) FROM tool_calls WHERE state IN ('PENDING', 'RUNNING')
UNION ALL SELECT 'executions open', count(*) FROM executions WHERE ended_at IS NULL
UNION ALL SELECT 'replies open', count(*) FROM replies WHERE state = 'PLANNED' OR state = 'UNKNOWN' AND due_at IS NOT NULL
UNION ALL SELECT 'replies failed', count(*) FROM replies WHERE state = 'FAILED'
UNION ALL SELECT 'leases held', (SELECT count(*) FROM sessions WHERE lease_owner IS NOT NULL) + (SELECT count(*) FROM executions WHERE lease_owner IS NOT NULL)
    + (SELECT count(*) FROM replies WHERE lease_until > now())
UNION ALL SELECT 'announcements', count(*) FROM outbox
UNION ALL SELECT 'sandboxes half made or half removed', count(*) FROM sandboxes WHERE state IN ('CREATING', 'TERMINATING')
UNION ALL SELECT 'log entries that wait for their partition', count(*) FROM agent_execution_logs_overflow
UNION ALL SELECT 'log entries that wait for the archive', count(*) FROM agent_execution_logs WHERE created_at < now() - interval '35 days'
UNION ALL SELECT 'objects of the archive that are not verified', count(*) FROM log_archives WHERE state <> 'VERIFIED'`

// settled reports whether nothing is left to do and nothing is leaked.
func (c *trial) settled() (bool, string) {
	left, err := c.left()
	if err != nil {
		return false, err.Error()
	}
	if n := c.unansweredOnPhones(); n > 0 {
		left = append(left, fmt.Sprintf("answers that are not on phones: %d", n))
	}
	return len(left) == 0, strings.Join(left, ", ")
}

// atRest reports whether nothing is left to do and no sandbox lives any more.
// Answers of whose fate nobody can tell stay UNKNOWN.
func (m *matrix) atRest() (bool, string) {
	left, err := m.left()
	if err != nil {
		return false, err.Error()
	}
	if live := m.listed(); len(live) > 0 {
		left = append(left, fmt.Sprintf("sandboxes: %d", len(live)))
	}
	return len(left) == 0, strings.Join(left, ", ")
}

// left is what is to be done, or is on one side only: in the rows, among the
// sandboxes, in the bucket.
func (m *matrix) left() ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	rows, err := m.db.Query(ctx, openSQL)
	if err != nil {
		return nil, err
	}
	var left []string
	var name string
	var n int
	if _, err = pgx.ForEachRow(rows, []any{&name, &n}, func() error {
		if n > 0 {
			left = append(left, fmt.Sprintf("%s: %d", name, n))
		}
		return nil
	}); err != nil {
		return nil, err
	}
	column := func(sql string) (all []string) {
		if err == nil {
			var rows pgx.Rows
			if rows, err = m.db.Query(ctx, sql); err == nil {
				all, err = pgx.CollectRows(rows, pgx.RowTo[string])
			}
		}
		return all
	}
	ready := column(`SELECT sandbox_name FROM sandboxes WHERE state = 'READY'`)
	objects := m.listed()
	live := column(`SELECT sandbox_name FROM sandboxes WHERE state <> 'GONE'`)
	still := column(`SELECT sandbox_name FROM sandboxes WHERE state = 'READY'`)
	for _, name := range objects {
		if !slices.Contains(live, name) {
			left = append(left, "sandbox without a row: "+name)
		}
	}
	for _, name := range ready {
		if !slices.Contains(objects, name) && slices.Contains(still, name) {
			left = append(left, "row without its sandbox: "+name)
		}
	}
	known, keys := column(`SELECT object_key FROM log_archives`), m.bucket.objects.Keys()
	for _, key := range keys {
		if !slices.Contains(known, key) {
			left = append(left, "object without a row: "+key)
		}
	}
	for _, key := range known {
		if !slices.Contains(keys, key) {
			left = append(left, "row without its object: "+key)
		}
	}
	return left, err
}

// listed are the sandboxes that there are, with a process or without.
func (w *world) listed() (names []string) {
	entries, err := os.ReadDir(w.sandboxs)
	if err != nil {
		w.t.Error(err)
	}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names
}

// count fills the row of the table.
func (c *trial) count() {
	left, err := c.left()
	if err != nil {
		c.t.Errorf("%s: %v", c.fault, err)
	}
	c.leaked += len(left)
	callbacks := slices.DeleteFunc(c.receiver.callbacks(), func(b callback) bool { return !strings.HasPrefix(b.Chat, c.name+"-") })
	starts := c.readEvidence(startsFile)
	for id := range starts {
		if !strings.HasPrefix(id, c.name+"-") {
			delete(starts, id)
		}
	}
	v := c.judgeThese(c.chats, callbacks, starts)
	c.lost += v.messages - v.answered + v.untold + v.untrue + v.wrong
	c.doubled += v.duplicates + v.twice
	for _, messages := range c.chats {
		for _, m := range messages {
			if bad := v.bad[m.id]; len(bad) > 0 {
				c.detail("%s\n%s", strings.Join(bad, "\n"), c.story(m))
			}
		}
	}
	unknown := 0
	for _, one := range c.talks {
		order := one.order()
		once := slices.Compact(slices.Sorted(slices.Values(order)))
		told := c.unknown(one)
		unknown += told
		if n := len(one.said) - len(once) - told; n > 0 {
			c.lost += n
			c.detail("%s chat %s: %d things were said, answered are %v", one.channel(), one.name, len(one.said), order)
		}
		if n := len(order) - len(once); n > 0 {
			c.doubled += n
			c.detail("%s chat %s: answers stand twice: %v", one.channel(), one.name, order)
		}
	}
	if unknown > 0 {
		c.what += fmt.Sprintf("; %d answers on phones told as UNKNOWN", unknown)
	}
	c.countLog()
	overlapping := c.strings(`SELECT a.sweep_report_id::text FROM sweep_reports a JOIN sweep_reports b ON a.sweep_report_id <> b.sweep_report_id
		AND a.started_at > b.started_at AND a.started_at < b.completed_at`)
	if len(overlapping) > 0 {
		c.doubled += len(overlapping)
		c.detail("%d passes of the sweep ran beside another", len(overlapping))
	}
}

// countLog looks for each old log entry of the trial, in Postgres and in the
// bucket, whose objects it reads as anybody would.
func (c *trial) countLog() {
	if len(c.old) == 0 {
		return
	}
	found := map[string]int{}
	for _, text := range c.strings(`SELECT message FROM agent_execution_logs WHERE message LIKE $1 UNION ALL SELECT message FROM agent_execution_logs_overflow WHERE message LIKE $1`, c.name+" %") {
		found[text]++
	}
	rows, err := c.db.Query(c.ctx, `SELECT object_key, digest, size_bytes FROM log_archives WHERE kind = 'ENTRIES'`)
	c.must(err)
	archives, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a postgres.LogArchive, err error) {
		err = row.Scan(&a.Key, &a.SHA256, &a.Size)
		return a, err
	})
	c.must(err)
	for _, a := range archives {
		data, err := archived.Fetch(c.ctx, c.bucket.store, a.Key, archived.Sum{SHA256: a.SHA256, Size: a.Size})
		if err == nil {
			err = archived.ReadEntries(data, view.Place{}, func(v view.LogEntry) (bool, error) { found[v.Message]++; return true, nil })
		}
		if err != nil {
			c.lost++
			c.detail("%s cannot be read: %v", a.Key, err)
		}
	}
	for _, text := range c.old {
		switch n := found[text]; {
		case n == 0:
			c.lost++
			c.detail("the log entry %q is nowhere", text)
		case n > 1:
			c.doubled += n - 1
			c.detail("the log entry %q is there %d times", text, n)
		}
	}
}

// print prints the table and fails where a figure is not 0.
func (m *matrix) print() {
	m.t.Helper()
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "  fault\twhat happened\tseconds\tleaked\tlost\tdoubled")
	var sum result
	for _, r := range m.rows {
		fmt.Fprintf(table, "  %s\t%s\t%.1f\t%d\t%d\t%d\n", r.fault, r.what, r.took.Seconds(), r.leaked, r.lost, r.doubled)
		sum.leaked, sum.lost, sum.doubled = sum.leaked+r.leaked, sum.lost+r.lost, sum.doubled+r.doubled
	}
	fmt.Fprintf(table, "  %d faults\t\t\t%d\t%d\t%d\n", len(m.rows), sum.leaked, sum.lost, sum.doubled)
	_ = table.Flush() // to memory
	m.t.Logf("fault matrix\n%s", b.String())
	if sum.leaked+sum.lost+sum.doubled > 0 {
		m.t.Errorf("leaked %d, lost %d, doubled %d", sum.leaked, sum.lost, sum.doubled)
	}
}

// halfMadeSQL makes sandboxes older that were left half made or half removed.
const halfMadeSQL = `UPDATE sandboxes s SET updated_at = updated_at - interval '5 seconds' WHERE state IN ('CREATING', 'TERMINATING')
	AND NOT EXISTS (SELECT 1 FROM executions e WHERE e.session_id = s.session_id AND e.lease_owner IS NOT NULL)`

// buryAll ends the leases that dead processes leave, which the system would wait
// for, and makes what they left half done older, until ctx ends.
func (w *world) buryAll(ctx context.Context) {
	seen := map[string]bool{}
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := map[string]bool{}
		for table, key := range map[string]string{"sessions": "session_id", "executions": "execution_id", "replies": "reply_id", "sweeps": "sweep_name"} {
			rows, err := w.db.Query(ctx, fmt.Sprintf("SELECT %s, lease_owner FROM %s WHERE lease_owner IS NOT NULL AND lease_until > now()", key, table))
			if err != nil {
				continue // while it is asked again
			}
			var id, owner string
			dead := map[string]string{}
			_, err = pgx.ForEachRow(rows, []any{&id, &owner}, func() error {
				if !alive(owner) {
					dead[id] = owner
				}
				return nil
			})
			if err != nil {
				continue
			}
			for id, owner := range dead {
				of := table + " " + id + " " + owner
				now[of] = true
				if !seen[of] { // what it had on its way to the server may come yet
					continue
				}
				_, _ = w.db.Exec(ctx, fmt.Sprintf("UPDATE %s SET lease_until = now() - interval '1 second' WHERE %s = $1 AND lease_owner = $2 AND lease_until > now()", table, key), id, owner) // else at the next look
			}
		}
		seen = now
		if !w.still.Load() {
			_, _ = w.db.Exec(ctx, halfMadeSQL) // else at the next look
		}
	}
}

// dies kills every process of a Service before and after each of its writes, each
// once, while people talk, until a round of talk has no write that is new.
func (c *trial) dies(service string, talk func()) {
	var mu sync.Mutex
	seen, deaths := map[string]bool{}, 0
	c.wires.set(func(of string, at moment, e pgproxy.Exchange) bool {
		if of != service {
			return true
		}
		name := writing(e)
		if name == "" {
			return true
		}
		mu.Lock()
		defer mu.Unlock()
		if key := string(at) + " " + name; !seen[key] && c.cluster.Kill(service) > 0 {
			seen[key] = true
			deaths++
			c.ended = time.Now()
			return false
		}
		return true
	})
	for round, before := 0, -1; round < 12 && deaths != before && c.ctx.Err() == nil; round++ {
		before = deaths
		talk()
		c.awaitAll()
	}
	c.wires.set(nil)
	mu.Lock()
	defer mu.Unlock()
	c.what = fmt.Sprintf("%d deaths at its writes", deaths)
	if deaths == 0 {
		c.detail("nobody died")
	}
}

// knows sends a request until it is answered with a status of success.
func (c *trial) knows(method, path string, body any) {
	status, answer, _, err := c.rest.call(c.ctx, "ann", method, path, fmt.Sprint(c.name, "-", time.Now().UnixNano()), body)
	if err != nil || status >= http.StatusMultipleChoices {
		c.detail("%s %s: %d %s %v", method, path, status, answer, err)
	}
}
