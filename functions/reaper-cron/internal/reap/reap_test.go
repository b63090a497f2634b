package reap_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// neglect makes a database in which every item finds something, beside rows that
// every item must leave alone.
func (w *world) neglect() {
	w.t.Helper()
	w.agent()
	// sessions
	w.session("ses_due", `due_at = now() - interval '1 hour', lease_token = 1`)
	w.session("ses_dead", `lease_owner = 'x', lease_until = now() - interval '1 hour', lease_token = 2`)
	w.session("ses_leased", `due_at = now() - interval '1 hour', lease_owner = 'x', lease_until = now() + interval '1 hour'`)
	w.session("ses_idle", `state = 'IDLE'`)
	// announcements
	w.announcement("message.received:msg_1", event.MessageReceived, "ses_leased", `due_at = now() - interval '1 minute'`)
	w.announcement("message.received:msg_2", event.MessageReceived, "ses_leased", `due_at = now() + interval '1 hour'`)
	// executions
	w.execution("exe_due", "ses_idle", `due_at = now() - interval '1 hour', lease_token = 3`)
	w.execution("exe_later", "ses_idle", `due_at = now() + interval '1 hour'`)
	// replies
	w.session("ses_reply", `state = 'IDLE'`)
	w.reply("due", "ses_reply", `due_at = now() - interval '1 hour'`)
	// sandboxes
	w.sandbox("expired", `expires_at = now() - interval '1 hour'`, true)
	w.sandbox("idle", `last_activity_at = now() - interval '1 hour'`, true)
	w.sandbox("halfway", `state = 'TERMINATING', reason = 'IDLE', updated_at = now() - interval '1 hour'`, false)
	w.sandbox("fine", `state = 'READY'`, true)
	// leaks
	w.sandbox("lost", `state = 'READY'`, false)
	w.objects.add("leaked", time.Now().Add(-time.Hour))
	w.objects.add("starting", time.Now())
	// orphans
	w.sandbox("gone", `state = 'GONE', ended_at = now()`, false)
	w.execution("exe_orphan", "ses_of_gone", `state = 'RUNNING', sandbox_id = 'sbx_gone', sandbox_uid = 'uid-gone', lease_owner = 'x', lease_until = now() - interval '1 hour', lease_token = 1`)
	// conversations
	w.session("ses_over", `state = 'IDLE', idle_seconds = 60, updated_at = now() - interval '1 hour'`)
	// log partitions: an entry of a day that has none
	w.sql(`INSERT INTO agent_execution_logs_overflow (agent_name, session_id, node_id, level, message, created_at) VALUES ('coder', 's', '1', 'INFO', 'm', now() - interval '40 days')`)
	// old rows
	w.sql(`INSERT INTO inbox (channel, account, provider_id, message_id, received_at) VALUES ('WEBHOOK', 'hook', '1', 'm', now() - interval '31 days'), ('WEBHOOK', 'hook', '2', 'm', now())`)
	w.announcement("session.due:ses_idle:1", event.SessionDue, "ses_idle", `due_at = now() - interval '1 minute', created_at = now() - interval '1 hour'`)
	w.sql(`INSERT INTO sweep_reports (started_at, completed_at, findings) VALUES (now(), now() - interval '30 days', '{}')`)
}

// settled is what matters of the database after the sweep.
func (w *world) settled() string {
	w.t.Helper()
	return query[string](w, `SELECT string_agg(line, E'\n' ORDER BY line) FROM (
		SELECT session_id || ' ' || state AS line FROM sessions UNION ALL
		SELECT sandbox_id || ' ' || state || ' ' || reason FROM sandboxes UNION ALL
		SELECT execution_id || ' ' || state FROM executions UNION ALL
		SELECT 'announced ' || event_id FROM outbox WHERE subject NOT IN ('ses_of_gone') UNION ALL
		SELECT 'inbox ' || provider_id FROM inbox UNION ALL
		SELECT 'log ' || message FROM agent_execution_logs) x`)
}

const everythingSettled = `announced execution.requested:exe_due:3
announced message.received:msg_1
announced message.received:msg_2
announced message.reply:msg_due
exe_due PENDING
exe_later PENDING
exe_orphan UNKNOWN
inbox 2
log command exe_orphan ended as UNKNOWN; what it printed from byte 0 of stdout and 0 of stderr on is lost: the sandbox is gone
log m
sbx_expired GONE TTL
sbx_fine READY 
sbx_gone GONE 
sbx_halfway GONE IDLE
sbx_idle GONE IDLE
sbx_lost GONE LOST
ses_dead PENDING
ses_due PENDING
ses_idle IDLE
ses_leased PENDING
ses_of_expired IDLE
ses_of_fine IDLE
ses_of_gone IDLE
ses_of_halfway IDLE
ses_of_idle IDLE
ses_of_lost IDLE
ses_over COMPLETED
ses_reply IDLE`

// counted is found without the figures, each of whose changes is a row: it looks
// that all of them were added.
func (w *world) counted(found map[string]postgres.Finding) map[string]postgres.Finding {
	w.t.Helper()
	if f := found["figures"]; f.Done == 0 || f.Done != f.Found {
		w.t.Errorf("of %d changes of figures %d were added", f.Found, f.Done)
	}
	delete(found, "figures")
	return found
}

func TestAFullPass(t *testing.T) {
	w := newWorld(t)
	w.neglect()
	one := func(n int) postgres.Finding { return postgres.Finding{Found: n, Done: n} }
	want := map[string]postgres.Finding{
		"sessions": one(2), "announcements": one(2), "executions": one(2), "replies": one(1), "sandboxes": one(3), "leaks": {Found: 2, Done: 2, Objects: 1, Rows: 1}, "orphans": one(1),
		"conversations": one(1), "log_partitions": one(1), "old_inbox": one(1), "old_reports": one(1),
	}
	waits := map[string]postgres.Finding{"archive": {Found: 1, Left: 1, Note: "no bucket is configured (S3_BUCKET): what is old stays in Postgres and nothing is dropped"}}
	maps.Copy(want, waits)
	if diff := cmp.Diff(want, w.counted(w.pass())); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
	heard := w.broker.heard()
	for _, id := range []string{"session.due:ses_due:1", "session.due:ses_dead:2", "message.received:msg_1", "execution.requested:exe_due:3", "message.reply:msg_due"} {
		if n := strings.Count(strings.Join(heard, "\n")+"\n", id+"\n"); n != 1 {
			t.Errorf("the broker got %s %d times", id, n)
		}
	}
	if diff := cmp.Diff(everythingSettled, w.settled()); diff != "" {
		t.Errorf("settled (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"fine", "starting"}, w.objects.names()); diff != "" {
		t.Errorf("objects: %s", diff)
	}
	if full := query[bool](w, `SELECT completed_at > now() - interval '1 minute' AND lease_owner IS NULL FROM sweeps`); !full {
		t.Error("the pass is not marked full, or its lease is kept")
	}
	// The same tick again: nothing is left to find, and nothing changes.
	tables := []string{"sessions", "outbox", "executions", "replies", "sandboxes", "inbox", "agent_execution_logs"}
	before := postgrestest.Dump(t, w.store, tables...)
	if diff := cmp.Diff(waits, w.pass()); diff != "" {
		t.Errorf("the second pass found (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, postgrestest.Dump(t, w.store, tables...)); diff != "" {
		t.Errorf("the second pass changed rows:\n%s", diff)
	}
	if heard := w.broker.heard(); len(heard) != 0 {
		t.Errorf("the second pass said %v", heard)
	}
}

func TestABusySweepIsASuccess(t *testing.T) {
	w := newWorld(t)
	w.neglect()
	if _, err := w.store.ClaimSweep(context.Background(), postgres.Lease{Owner: "another", For: time.Minute}); err != nil {
		t.Fatal(err)
	}
	before := w.settled()
	if err := w.sweep(w.options); err != nil {
		t.Errorf("busy: %v", err)
	}
	if after := w.settled(); after != before || len(w.broker.heard()) != 0 {
		t.Error("a second sweep did something")
	}
}

func TestOneFailingItemStopsNoOther(t *testing.T) {
	w := newWorld(t)
	w.neglect()
	w.objects.listErr = errDown
	w.objects.terminate = func(name string) error {
		if name == "expired" {
			panic("a driver's fault")
		}
		return nil
	}
	got := w.pass()
	if f := got["leaks"]; f.Error != harness.MessageOf(errDown) {
		t.Errorf("leaks: %+v", f)
	}
	if f := got["sandboxes"]; f.Found != 3 || f.Done != 2 || f.Left != 1 || f.Error != "internal error" {
		t.Errorf("sandboxes: %+v", f)
	}
	for _, item := range []string{"sessions", "announcements", "executions", "replies", "orphans", "conversations", "log_partitions", "old_inbox", "old_reports"} {
		if f := got[item]; f.Done == 0 || f.Left != 0 || f.Error != "" {
			t.Errorf("%s: %+v", item, f)
		}
	}
	if full := query[bool](w, `SELECT completed_at IS NOT NULL FROM sweeps`); full {
		t.Error("the pass counts as full")
	}
	if state := query[string](w, `SELECT state FROM sandboxes WHERE sandbox_id = 'sbx_expired'`); state != "TERMINATING" {
		t.Errorf("the sandbox that was not removed is %s", state)
	}
}

// mortal dies after so many calls: every later one fails, as nothing of a killed
// process reaches the store.
type mortal struct {
	*postgres.Store
	left atomic.Int64 // calls it still makes; negative: it is dead
}

func (m *mortal) alive() error {
	if m.left.Add(-1) < 0 {
		return errDown
	}
	return nil
}

func (m *mortal) SessionsUnheard(ctx context.Context, n int) ([]postgres.Unheard, error) {
	if err := m.alive(); err != nil {
		return nil, err
	}
	return m.Store.SessionsUnheard(ctx, n)
}

func (m *mortal) TakeUnheard(ctx context.Context, n int) ([]postgres.Unheard, error) {
	if err := m.alive(); err != nil {
		return nil, err
	}
	return m.Store.TakeUnheard(ctx, n)
}

func (m *mortal) ExecutionsDue(ctx context.Context, n int) ([]event.Event, error) {
	if err := m.alive(); err != nil {
		return nil, err
	}
	return m.Store.ExecutionsDue(ctx, n)
}

func (m *mortal) KeepAnnouncing(ctx context.Context, e []event.Event) error {
	if err := m.alive(); err != nil {
		return err
	}
	return m.Store.KeepAnnouncing(ctx, e)
}

func (m *mortal) SandboxesToEnd(ctx context.Context, n int) ([]postgres.SandboxRecord, error) {
	if err := m.alive(); err != nil {
		return nil, err
	}
	return m.Store.SandboxesToEnd(ctx, n)
}

func (m *mortal) SandboxGone(ctx context.Context, id harness.SandboxID, a harness.AgentName, reason string) ([]event.Event, error) {
	if err := m.alive(); err != nil {
		return nil, err
	}
	return m.Store.SandboxGone(ctx, id, a, reason)
}

func (m *mortal) EndOrphans(ctx context.Context, l postgres.Lease, n int) ([]event.Event, error) {
	if err := m.alive(); err != nil {
		return nil, err
	}
	return m.Store.EndOrphans(ctx, l, n)
}

func (m *mortal) CompleteIdle(ctx context.Context, n int) (int, error) {
	if err := m.alive(); err != nil {
		return 0, err
	}
	return m.Store.CompleteIdle(ctx, n)
}

func (m *mortal) CreateLogPartitions(ctx context.Context, n int) (int, error) {
	if err := m.alive(); err != nil {
		return 0, err
	}
	return m.Store.CreateLogPartitions(ctx, n)
}

func (m *mortal) DeleteOldInbox(ctx context.Context, keep time.Duration, n int) (int, error) {
	if err := m.alive(); err != nil {
		return 0, err
	}
	return m.Store.DeleteOldInbox(ctx, keep, n)
}

func (m *mortal) DeleteMootAnnouncements(ctx context.Context, n int) (int, error) {
	if err := m.alive(); err != nil {
		return 0, err
	}
	return m.Store.DeleteMootAnnouncements(ctx, n)
}

func (m *mortal) ReportSweep(ctx context.Context, c postgres.SweepClaim, d time.Duration, f map[string]postgres.Finding, full bool) error {
	if err := m.alive(); err != nil {
		return err
	}
	return m.Store.ReportSweep(ctx, c, d, f, full)
}

func (m *mortal) ReleaseSweep(ctx context.Context, c postgres.SweepClaim) error {
	if err := m.alive(); err != nil {
		return err
	}
	return m.Store.ReleaseSweep(ctx, c)
}

// A pass that is killed after any of its writes is made good by a later one.
func TestAPassKilledHalfWay(t *testing.T) {
	if testing.Short() {
		t.Skip("a database for each place to die")
	}
	for calls := 0; ; calls++ {
		w := newWorld(t)
		w.neglect()
		o, m := w.options, &mortal{Store: w.store}
		m.left.Store(int64(calls))
		o.Store = m
		err := w.sweep(o)
		if m.left.Load() >= 0 {
			if calls < 15 {
				t.Errorf("a whole pass made only %d writes", calls)
			}
			return // it lived to the end
		}
		if err == nil {
			t.Errorf("killed after %d writes, and nobody was told", calls)
		}
		if _, busy := w.store.ClaimSweep(context.Background(), postgres.Lease{Owner: "t", For: time.Minute}); !errors.Is(busy, postgres.ErrNothingDue) {
			t.Fatalf("the dead pass's lease is free at once: %v", busy)
		}
		// Time passes: leases run out, and what was begun is old.
		w.sql(`UPDATE sweeps SET lease_until = now() - interval '1 second'`,
			`UPDATE sandboxes SET updated_at = updated_at - interval '10 minutes'`,
			`UPDATE sessions SET announced_at = announced_at - interval '10 minutes'`,
			`UPDATE executions SET lease_until = lease_until - interval '10 minutes'`)
		w.pass()
		if diff := cmp.Diff(everythingSettled, w.settled()); diff != "" {
			t.Fatalf("killed after %d writes, then a whole pass (-want +got):\n%s", calls, diff)
		}
		if diff := cmp.Diff([]string{"fine", "starting"}, w.objects.names()); diff != "" {
			t.Fatalf("killed after %d writes: objects %s", calls, diff)
		}
	}
}

// More rows than a batch are all done in one pass, a batch at a time.
func TestBatches(t *testing.T) {
	w := newWorld(t)
	w.agent()
	for i := range 7 {
		w.session(fmt.Sprint("ses_", i), `due_at = now() - interval '1 hour'`)
	}
	w.options.Batch = 3
	if diff := cmp.Diff(map[string]postgres.Finding{"sessions": {Found: 7, Done: 7}}, w.counted(w.pass())); diff != "" {
		t.Error(diff)
	}
	if heard := w.broker.heard(); len(heard) != 7 {
		t.Errorf("the broker got %v", heard)
	}
}
