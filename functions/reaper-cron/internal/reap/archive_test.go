package reap_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/functions/reaper-cron/internal/reap"
	"tuluat.ai/harness/shared/archive"
	"tuluat.ai/harness/shared/archive/archivetest"
	"tuluat.ai/harness/shared/archive/part"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

// archived is a world with a bucket.
type archived struct {
	*world
	bucket *archivetest.Bucket
	files  *archive.Store
}

func newArchived(t *testing.T) *archived {
	w := &archived{world: newWorld(t)}
	w.files, w.bucket = archivetest.New(t)
	w.agent()
	w.options.Objects, w.options.PartEntries = w.files, 3
	return w
}

// log writes n entries of an agent's day so many days ago, as an installation has
// them whose sweep made the partition in time.
func (w *archived) log(agent string, days, n int) {
	w.t.Helper()
	for i := range n {
		w.sql(fmt.Sprintf(`INSERT INTO agent_execution_logs_overflow (agent_name, session_id, node_id, level, message, created_at)
			VALUES ('%[1]s', 'ses_%[3]d', 'n', 'INFO', '%[1]s %[2]d.%[3]d <ü>', date_trunc('day', now()) - interval '%[2]d days' + interval '%[3]d minutes')`, agent, days, i))
	}
	w.sql(`SELECT create_log_partitions(14)`)
}

// everything is each entry that Postgres has or a verified object of the bucket,
// with how often, and how many are still in Postgres.
func (w *archived) everything() (found map[string]int, live int) {
	w.t.Helper()
	found = map[string]int{}
	for _, message := range strings.Split(query[string](w.world, `SELECT COALESCE(string_agg(message, '|'), '') FROM (SELECT message FROM agent_execution_logs UNION ALL SELECT message FROM agent_execution_logs_overflow) l`), "|") {
		if message != "" {
			found[message]++
			live++
		}
	}
	archives, err := w.store.LogArchives(context.Background(), postgres.LogFilter{}, view.Place{}, postgres.LogArchive{}, 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, a := range archives {
		data, err := part.Fetch(context.Background(), w.files, a.Key, part.Sum{SHA256: a.SHA256, Size: a.Size})
		if err != nil {
			w.t.Fatal(err)
		}
		last := view.LogEntry{CreatedAt: a.Newest.At, ID: a.Newest.ID}
		n := 0
		if err := part.ReadEntries(data, view.Place{}, func(v view.LogEntry) (bool, error) {
			if n > 0 && (v.CreatedAt.After(last.CreatedAt) || v.CreatedAt.Equal(last.CreatedAt) && v.ID >= last.ID) || n == 0 && (v.ID != last.ID || !v.CreatedAt.Equal(last.CreatedAt)) {
				w.t.Errorf("%s: entry %d of %s comes behind %s", a.Key, n, v.CreatedAt, last.CreatedAt)
			}
			if v.Agent != a.Agent || v.Node != "n" || v.Level != "INFO" {
				w.t.Errorf("%s has %+v", a.Key, v)
			}
			n, last = n+1, v
			found[v.Message]++
			return true, nil
		}); err != nil || n != a.Entries || last.ID != a.Oldest.ID {
			w.t.Errorf("%s: %d entries to %d, want %d to %d: %v", a.Key, n, last.ID, a.Entries, a.Oldest.ID, err)
		}
	}
	return found, live
}

// whole fails unless each of the entries is there once, and the bucket has what
// the rows say and nothing else.
func (w *archived) whole(what string, want map[string]int, live int) {
	w.t.Helper()
	found, left := w.everything()
	if diff := cmp.Diff(want, found); diff != "" || left != live {
		w.t.Errorf("%s: %d entries in Postgres, want %d; all of them: %s", what, left, live, diff)
	}
	rows := strings.Fields(query[string](w.world, `SELECT COALESCE(string_agg(object_key, ' ' ORDER BY object_key), '') FROM log_archives`))
	if diff := cmp.Diff(w.bucket.Keys(), append([]string{}, rows...)); diff != "" {
		w.t.Errorf("%s: the bucket and the rows differ: %s", what, diff)
	}
}

func entries(agent string, days, n int) map[string]int {
	all := map[string]int{}
	for i := range n {
		all[fmt.Sprintf("%s %d.%d <ü>", agent, days, i)] = 1
	}
	return all
}

func united(sets ...map[string]int) map[string]int {
	all := map[string]int{}
	for _, set := range sets {
		maps.Copy(all, set)
	}
	return all
}

func (w *archived) partition(days int) bool {
	return query[bool](w.world, fmt.Sprintf(`SELECT to_regclass('agent_execution_logs_' || to_char(now() AT TIME ZONE 'UTC' - interval '%d days', 'YYYYMMDD')) IS NOT NULL`, days))
}

// Days that are old for their agent go to the bucket, and their partition goes
// when nobody's entries are in it. What comes late is a further part.
func TestLogsAreArchived(t *testing.T) {
	w := newArchived(t)
	w.sql(`UPDATE agent_revisions SET spec = spec || '{"logs": {"retentionDays": 5, "archiveDays": 10}}'`) // coder's
	w.log("coder", 40, 4)                                                                                  // too old for the archive too
	w.log("coder", 8, 7)
	w.log("gone", 8, 2) // an agent that no row knows any more: the default
	w.log("gone", 33, 4)
	w.log("coder", 5, 2) // its last moment is not five days ago
	all := united(entries("coder", 8, 7), entries("gone", 8, 2), entries("gone", 33, 4), entries("coder", 5, 2))

	w.pass()
	w.pass()
	w.whole("after two passes", all, 4)
	if keys := w.bucket.Keys(); len(keys) != 3+2 || !strings.HasPrefix(keys[0], part.Prefix+"entries/") || strings.Contains(strings.Join(keys, " "), "coder") {
		t.Errorf("objects %v", keys)
	}
	if w.partition(40) || w.partition(33) || !w.partition(8) || !w.partition(5) || !w.partition(0) {
		t.Error("the partitions of days with entries are there, and no others")
	}
	if report := w.pass(); len(report) != 0 {
		t.Errorf("a pass with nothing to do: %v", report)
	}

	w.log("gone", 33, 1)
	w.sql(`UPDATE agent_execution_logs SET message = 'late' WHERE created_at < now() - interval '30 days'`)
	w.pass()
	w.whole("with a late entry", united(all, map[string]int{"late": 1}), 4)
	if w.partition(33) || query[int](w.world, `SELECT max(part) FROM log_archives WHERE agent_name = 'gone'`) != 3 {
		t.Error("a late entry is no further part")
	}

	w.sql(`UPDATE log_archives SET day = day - 1000 WHERE agent_name = 'gone'`)
	w.pass()
	w.whole("when the archive's own time is over", united(entries("coder", 8, 7), entries("gone", 8, 2), entries("coder", 5, 2)), 4)
}

// The same entries make the same object, byte for byte.
func TestObjectsAreTheSameAgain(t *testing.T) {
	w := newArchived(t)
	w.log("coder", 40, 2)
	w.bucket.Fail(func(method, _ string) int {
		if method == "GET" {
			return 503
		}
		return 0
	})
	w.pass()
	keys := w.bucket.Keys()
	if state := query[string](w.world, `SELECT state FROM log_archives`); state != "STORED" || len(keys) != 1 {
		t.Fatalf("%s, %v", state, keys)
	}
	first := w.bucket.Object(keys[0])
	w.bucket.Set(keys[0], nil)
	w.bucket.Fail(nil)
	w.pass() // it is not there
	w.pass()
	if again := w.bucket.Object(keys[0]); string(again) != string(first) {
		t.Errorf("%d bytes, then %d others", len(first), len(again))
	}
	w.whole("put again", entries("coder", 40, 2), 0)
}

// A byte that is another when it is read back: nothing is dropped, and it is put
// again.
func TestAWrongObjectIsNotBelieved(t *testing.T) {
	w := newArchived(t)
	w.log("coder", 40, 3)
	w.options.Objects = &flipping{Objects: w.files, bucket: w.bucket}
	if f := w.pass()["archive"]; !strings.Contains(f.Error, "not what was stored") || f.Done != 0 {
		t.Errorf("%+v", f)
	}
	if _, live := w.everything(); live != 3 {
		t.Errorf("%d entries in Postgres, want 3", live)
	}
	w.pass()
	w.whole("afterwards", entries("coder", 40, 3), 0)
}

type flipping struct {
	reap.Objects
	bucket *archivetest.Bucket
	done   bool
}

func (f *flipping) Put(ctx context.Context, key string, body io.Reader, size int64, mimeType string) error {
	err := f.Objects.Put(ctx, key, body, size, mimeType)
	if data := f.bucket.Object(key); !f.done && len(data) > 0 {
		data[len(data)/2] ^= 1
		f.bucket.Set(key, data)
		f.done = true
	}
	return err
}

// A bucket that is down, or that nobody configured: everything stays, and the
// report says why.
func TestWithoutABucketNothingGoes(t *testing.T) {
	w := newArchived(t)
	w.log("coder", 40, 4)
	w.sql(`INSERT INTO agent_execution_logs_overflow (agent_name, session_id, node_id, level, message, created_at) VALUES ('coder', '', '', 'INFO', 'x', now() - interval '60 days')`,
		`SELECT create_log_partitions(14)`, `DELETE FROM agent_execution_logs WHERE message = 'x'`)
	none := w.options
	none.Objects = nil
	for range 2 {
		if err := w.sweep(none); err != nil {
			t.Fatal(err)
		}
		if f := w.report()["archive"]; f.Left != 1 || !strings.Contains(f.Note, "S3_BUCKET") || f.Error != "" {
			t.Errorf("without a bucket: %+v", f)
		}
	}
	if !w.partition(60) {
		t.Error("a partition was dropped without a bucket")
	}
	w.bucket.Fail(func(string, string) int { return 503 })
	if f := w.pass()["archive"]; f.Error == "" || f.Done != 0 {
		t.Errorf("with a bucket that is down: %+v", f)
	}
	if _, live := w.everything(); live != 4 {
		t.Errorf("%d entries in Postgres, want 4", live)
	}
	w.bucket.Fail(nil)
	w.pass()
	w.whole("when it is up again", entries("coder", 40, 4), 0)
}

// An entry that is committed while its part is on its way is in neither the part
// nor lost.
func TestAnEntryBetweenTwoStatements(t *testing.T) {
	w := newArchived(t)
	w.log("coder", 40, 2)
	once := false
	w.bucket.Fail(func(method, _ string) int {
		if method == "GET" && !once {
			once = true
			w.log("coder", 40, 1)
			w.sql(`UPDATE agent_execution_logs SET message = 'between' WHERE log_id = (SELECT max(log_id) FROM agent_execution_logs)`)
		}
		return 0
	})
	w.pass()
	w.pass()
	w.whole("afterwards", united(entries("coder", 40, 2), map[string]int{"between": 1}), 0)
}

var errKilled = errors.New("killed")

// killed is a store and a bucket of which the call number at, and each behind it,
// fails: with after set when that one has done its work.
type killed struct {
	*postgres.Store
	reap.Objects
	at    int
	after bool
	calls int
}

func (k *killed) call(do func() error) error {
	k.calls++
	switch {
	case k.calls > k.at, k.calls == k.at && !k.after:
		return errKilled
	case k.calls == k.at:
		return errors.Join(do(), errKilled)
	}
	return do()
}

func (k *killed) PlanLogArchive(ctx context.Context, a postgres.LogArchive, s []harness.SessionID) error {
	return k.call(func() error { return k.Store.PlanLogArchive(ctx, a, s) })
}

func (k *killed) ArchivePut(ctx context.Context, key string) error {
	return k.call(func() error { return k.Store.ArchivePut(ctx, key) })
}

func (k *killed) ArchiveFailed(ctx context.Context, key, why string) error {
	return k.call(func() error { return k.Store.ArchiveFailed(ctx, key, why) })
}

func (k *killed) LogArchiveVerified(ctx context.Context, a postgres.LogArchive) (done bool, err error) {
	err = k.call(func() error { done, err = k.Store.LogArchiveVerified(ctx, a); return err })
	return done, err
}

func (k *killed) PlanOutputArchive(ctx context.Context, a postgres.OutputArchive) error {
	return k.call(func() error { return k.Store.PlanOutputArchive(ctx, a) })
}

func (k *killed) OutputArchiveVerified(ctx context.Context, key string) error {
	return k.call(func() error { return k.Store.OutputArchiveVerified(ctx, key) })
}

func (k *killed) OutputArchived(ctx context.Context, id harness.ExecutionID) error {
	return k.call(func() error { return k.Store.OutputArchived(ctx, id) })
}

func (k *killed) ArchivesToRemove(ctx context.Context, n int) (keys []string, err error) {
	err = k.call(func() error { keys, err = k.Store.ArchivesToRemove(ctx, n); return err })
	return keys, err
}

func (k *killed) ArchiveRemoved(ctx context.Context, key string) error {
	return k.call(func() error { return k.Store.ArchiveRemoved(ctx, key) })
}

func (k *killed) DropLogDay(ctx context.Context, day time.Time) error {
	return k.call(func() error { return k.Store.DropLogDay(ctx, day) })
}

func (k *killed) Put(ctx context.Context, key string, body io.Reader, size int64, mimeType string) error {
	return k.call(func() error { return k.Objects.Put(ctx, key, body, size, mimeType) })
}

func (k *killed) Get(ctx context.Context, key string) (body io.ReadCloser, n int64, err error) {
	err = k.call(func() error { body, n, err = k.Objects.Get(ctx, key); return err })
	if err != nil && body != nil {
		err = errors.Join(err, body.Close())
	}
	return body, n, err
}

func (k *killed) Delete(ctx context.Context, key string) error {
	return k.call(func() error { return k.Objects.Delete(ctx, key) })
}

// Killed before and after any statement or request of the archive, or cut off from
// either store: the next passes lose nothing and double nothing.
func TestArchiveKilledAnywhere(t *testing.T) {
	for at := 1; ; at++ {
		over := false
		for _, after := range []bool{false, true} {
			w := newArchived(t)
			w.log("coder", 40, 5)
			w.command("exe_1", 3*postgres.OutputWindow+1)
			w.sql(`INSERT INTO log_archives (object_key, kind, agent_name, state, digest, size_bytes, day, part, first_at, first_log_id, last_at, last_log_id)
				VALUES ('logs/v1/entries/old', 'ENTRIES', 'coder', 'REMOVING', '', 0, '2020-01-01', 1, now(), 1, now(), 1)`)
			w.bucket.Set("logs/v1/entries/old", []byte("x"))
			k := &killed{Store: w.store, Objects: w.files, at: at, after: after}
			o := w.options
			o.Store, o.Objects = k, k
			if err := w.sweep(o); err != nil {
				t.Fatal(err)
			}
			over = k.calls < at
			found, _ := w.everything()
			if diff := cmp.Diff(entries("coder", 40, 5), found); diff != "" {
				t.Errorf("killed at %d (%t): %s", at, after, diff)
			}
			w.pass()
			w.pass()
			w.whole(fmt.Sprintf("killed at %d (%t)", at, after), entries("coder", 40, 5), 0)
			w.printed("exe_1", 3*postgres.OutputWindow+1)
			if w.partition(40) {
				t.Errorf("killed at %d (%t): the partition is left", at, after)
			}
		}
		if over {
			if at < 20 {
				t.Errorf("only %d places to be killed at", at)
			}
			return
		}
	}
}

// What is interrupted between a partition's end and its table's is finished.
func TestDetachedDaysAreDropped(t *testing.T) {
	w := newArchived(t)
	w.log("coder", 40, 1)
	w.log("coder", 41, 1)
	name := query[string](w.world, `SELECT 'agent_execution_logs_' || to_char(now() AT TIME ZONE 'UTC' - interval '40 days', 'YYYYMMDD')`)
	w.sql(`ALTER TABLE agent_execution_logs DETACH PARTITION `+name,
		`INSERT INTO agent_execution_logs_overflow (agent_name, session_id, node_id, level, message, created_at) SELECT agent_name, session_id, node_id, level, 'waits', created_at FROM `+name)
	for range 3 {
		w.pass()
	}
	w.whole("afterwards", united(entries("coder", 40, 1), entries("coder", 41, 1), map[string]int{"waits": 1}), 0)
	if w.partition(40) || w.partition(41) {
		t.Error("partitions are left")
	}
}

// command makes an old command that printed n bytes to stdout, in pieces.
func (w *archived) command(id string, n int) {
	w.t.Helper()
	w.session("ses_of_"+id, `state = 'IDLE'`)
	w.execution(id, "ses_of_"+id, fmt.Sprintf(`state = 'COMPLETED', ended_at = now() - interval '40 days', stdout_bytes = %d`, n))
	text := output(n)
	for at := 0; at < n; at += 5000 {
		w.sql(fmt.Sprintf(`INSERT INTO execution_output (execution_id, stream, start_byte, data) VALUES ('%s', 'stdout', %d, '%s')`, id, at, text[at:min(n, at+5000)]))
	}
}

func output(n int) string {
	text := strings.Builder{}
	for i := 0; text.Len() < n; i++ {
		fmt.Fprintf(&text, "line %d\n", i)
	}
	return text.String()[:n]
}

// printed fails unless the bucket has what the command printed and Postgres its ends.
func (w *archived) printed(id harness.ExecutionID, n int) {
	w.t.Helper()
	parts, err := w.store.OutputParts(context.Background(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	var text []byte
	for _, p := range parts {
		data, err := part.Fetch(context.Background(), w.files, p.Key, part.Sum{SHA256: p.SHA256, Size: p.Size})
		if err != nil || p.State != postgres.ArchiveVerified || p.Start != int64(len(text)) {
			w.t.Fatalf("%+v behind %d: %v", p, len(text), err)
		}
		r, err := part.Decompressed(data)
		if err != nil {
			w.t.Fatal(err)
		}
		printed, err := io.ReadAll(r)
		text = append(text, printed...)
		if err = errors.Join(err, r.Close()); err != nil {
			w.t.Fatal(err)
		}
	}
	if string(text) != output(n) {
		w.t.Errorf("the archive has %d bytes, want %d", len(text), n)
	}
	kept := query[string](w.world, `SELECT string_agg(start_byte || '+' || length(data), ' ' ORDER BY start_byte) FROM execution_output`)
	if want := fmt.Sprintf("0+%d %d+%d", 2*postgres.OutputWindow, n-postgres.OutputWindow, postgres.OutputWindow); kept != want {
		w.t.Errorf("Postgres has %s, want %s", kept, want)
	}
	for _, at := range []int{0, 2*postgres.OutputWindow - 10, n - postgres.OutputWindow, n - 3} {
		o, err := w.store.ReadOutput(context.Background(), id, "stdout", int64(at), 10)
		if want := output(n)[at:min(n, at+10)]; err != nil || string(o.Data) != want {
			w.t.Errorf("at %d: %q, %v; want %q", at, o.Data, err, want)
		}
	}
	if _, err := w.store.ReadOutput(context.Background(), id, "stdout", 2*postgres.OutputWindow, 10); !errors.Is(err, postgres.ErrArchived) && n > 3*postgres.OutputWindow {
		w.t.Errorf("between the ends: %v", err)
	}
}

// A command that printed more than one object holds, and one whose output is short.
func TestOutputIsArchived(t *testing.T) {
	w := newArchived(t)
	const n = part.MaxOutput + 100_000
	w.session("ses_big", `state = 'IDLE'`)
	w.execution("exe_big", "ses_big", fmt.Sprintf(`state = 'COMPLETED', ended_at = now() - interval '40 days', stdout_bytes = %d`, n))
	text := output(n)
	for at := 0; at < n; at += 1 << 20 {
		w.sql(fmt.Sprintf(`INSERT INTO execution_output (execution_id, stream, start_byte, data) VALUES ('exe_big', 'stdout', %d, '%s')`, at, text[at:min(n, at+1<<20)]))
	}
	w.pass()
	w.printed("exe_big", n)
	if keys := w.bucket.Keys(); len(keys) != 2 {
		t.Errorf("objects %v", keys)
	}
	w.sql(`DELETE FROM execution_output`)
	w.command("exe_short", 100)
	w.pass()
	if n := query[int](w.world, `SELECT count(*) FROM execution_output WHERE execution_id = 'exe_short'`); n != 1 || len(w.bucket.Keys()) != 2 {
		t.Errorf("short output: %d pieces, %v", n, w.bucket.Keys())
	}
	if report := w.pass(); len(report) != 0 {
		t.Errorf("again: %v", report)
	}
	if !slices.Contains(w.bucket.Keys(), part.OutputKey("exe_big", "stdout", 0, part.Sum{SHA256: keyPart(w.bucket.Keys()[0])})) {
		t.Errorf("keys %v", w.bucket.Keys())
	}
}

// keyPart is what a key has of the digest.
func keyPart(key string) string {
	_, sum, _ := strings.Cut(key[strings.LastIndex(key, "/"):], "-")
	return sum[:16]
}
