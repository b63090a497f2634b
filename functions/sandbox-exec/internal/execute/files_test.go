//go:build local

package execute_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/functions/sandbox-exec/internal/execute"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/sandbox"
)

// memory is an object store without a network.
type memory struct {
	mu    sync.Mutex
	files map[string][]byte
	puts  int
	err   error // of every call
}

func (m *memory) Put(_ context.Context, key string, body io.Reader, size int64, _ string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	data, err := io.ReadAll(body)
	if err != nil || int64(len(data)) != size {
		return fmt.Errorf("%d bytes of %d: %w", len(data), size, err)
	}
	m.files[key] = data
	m.puts++
	return nil
}

func (m *memory) Get(_ context.Context, key string) (io.ReadCloser, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.files[key]
	switch {
	case m.err != nil:
		return nil, 0, m.err
	case !ok:
		return nil, 0, harness.Errorf(harness.NotFound, "the object store does not have the file (any more)")
	}
	return io.NopCloser(bytes.NewReader(data)), int64(len(data)), nil
}

// withFiles is a world with an object store.
func withFiles(t *testing.T) (*world, *memory) {
	w := newWorld(t)
	m := &memory{files: map[string][]byte{}}
	w.options.Objects = m
	return w, m
}

// receive writes a message with files, which its turn is about, and returns the
// files' ids.
func (w *world) receive(session string, names ...string) []string {
	w.Helper()
	w.sql(`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state) VALUES ($1, 'coder', 'TELEGRAM', 'bot', $1, 'AWAITING_EXECUTION') ON CONFLICT DO NOTHING`, session)
	message := harness.NewMessageID(time.Now())
	w.sql(`UPDATE messages SET state = 'DONE' WHERE session_id = $1`, session)
	w.sql(`INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text) SELECT $1, $2, count(*), 'INBOUND', 'RUNNING', 'u', '' FROM messages`, message, session)
	var ids []string
	for _, name := range names {
		id := harness.NewAttachmentID(time.Now())
		w.sql(`INSERT INTO attachments (attachment_id, session_id, message_id, direction, kind, file_name, path, state) VALUES ($1, $2, $3, 'INBOUND', 'DOCUMENT', $4, $5, 'OFFERED')`,
			id, session, message, name, "in/"+harness.SafeFileName(name))
		ids = append(ids, string(id))
	}
	return ids
}

// stored makes a file one that the channel's function has fetched.
func (w *world) stored(m *memory, id, text string) {
	w.Helper()
	sum := sha256.Sum256([]byte(text))
	m.mu.Lock()
	m.files["k-"+id] = []byte(text)
	m.mu.Unlock()
	w.sql(`UPDATE attachments SET state = 'STORED', object_key = 'k-' || $1, size_bytes = $2, digest = $3, updated_at = now() WHERE attachment_id = $1`,
		id, len(text), hex.EncodeToString(sum[:]))
}

// made are the files that commands left for the chat.
func (w *world) made() []string {
	w.Helper()
	return strings.Split(query[string](w, `SELECT COALESCE(string_agg(concat_ws('|', kind, file_name, mime_type, size_bytes, replace(path, E'\n', '\n')), E'\n' ORDER BY created_at, path COLLATE "C"), '') FROM attachments WHERE direction = 'OUTBOUND'`), "\n")
}

func (w *world) reason(e event.Event) string {
	w.Helper()
	return query[string](w, `SELECT reason FROM executions WHERE execution_id = $1`, e.Payload.Execution)
}

// From the first wish for a file to a second sandbox that has it too.
func TestFilesComeIn(t *testing.T) {
	w, m := withFiles(t)
	ids := w.receive("ses_a", "report.txt", "../../etc/pass\nwd")
	e := w.ask("ses_a", "cat in/*; echo changed > in/report.txt")
	events := w.deliverTwice(e)
	if len(events) != 1 || events[0].Type != event.MediaRequested || events[0].Channel != harness.ChannelTelegram || events[0].Session != "ses_a" {
		t.Fatalf("published %+v", events)
	}
	if got := query[string](w, `SELECT concat_ws(' ', state, lease_owner IS NULL, due_at > now() + interval '10 seconds', (SELECT count(*) FROM sandboxes)) FROM executions`); got != "PENDING t t 0" {
		t.Fatalf("the command waits as %s", got)
	}
	w.sql(`DELETE FROM outbox WHERE subject = 'media:ses_a'`)
	for i, id := range ids {
		c, err := w.store.ClaimMedia(t.Context(), "ses_a", postgres.Lease{Owner: "channel", For: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		text := "text of " + string(c.ID[len(c.ID)-1:])
		m.files["k"+string(c.ID)] = []byte(text)
		sum := sha256.Sum256([]byte(text))
		woken, err := w.store.MarkMedia(t.Context(), c, postgres.MediaOutcome{State: harness.AttachmentStored, ObjectKey: "k" + string(c.ID), Digest: hex.EncodeToString(sum[:]), Bytes: int64(len(text))})
		if err != nil || (len(woken) == 1) != (i == len(ids)-1) {
			t.Fatalf("%s woke %+v, %v", id, woken, err)
		}
		w.publish(t.Context(), woken...)
	}
	w.drain()
	w.expect(e, "COMPLETED 0")
	if out := w.printed(e, "stdout"); strings.Count(out, "text of ") != 2 {
		t.Errorf("printed %q", out)
	}
	again := w.ask("ses_a", "cat in/report.txt; ls -la in")
	w.deliverTwice(again)
	w.expect(again, "COMPLETED 0")
	if out := w.printed(again, "stdout"); !strings.HasPrefix(out, "changed\n") || strings.Contains(out, "tuluat-") {
		t.Errorf("a file that is there was brought again, or something was left: %q", out)
	}
	if n := query[int](w, `SELECT count(*) FROM attachment_placements`); n != 2 {
		t.Errorf("%d placements", n)
	}
	if err := w.driver.Terminate(t.Context(), w.sandboxOf(again)); err != nil {
		t.Fatal(err)
	}
	third := w.ask("ses_a", "grep -c text in/*")
	w.deliverTwice(third)
	if got := w.printed(third, "stdout"); strings.Count(got, ":1") != 2 {
		t.Errorf("in a new sandbox: %q, %s", got, w.reason(third))
	}
}

// What cannot be brought in is no reason not to run, and is told.
func TestFilesThatAreMissing(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(w *world, m *memory, id string)
		command string
		want    string
	}{
		"no object store": {func(w *world, _ *memory, _ string) { w.options.Objects = nil }, "true", `COMPLETED 0 (not in the workspace: "in/x.bin" (this system keeps no files))`},
		"failed": {func(w *world, _ *memory, id string) {
			w.sql(`UPDATE attachments SET state = 'FAILED', reason = 'the provider has deleted it'`)
		}, "true", `COMPLETED 0 (not in the workspace: "in/x.bin" (the provider has deleted it))`},
		"nobody brings it": {func(w *world, _ *memory, _ string) {
			w.sql(`UPDATE attachments SET state = 'REQUESTED', due_at = now(), updated_at = now() - interval '91 seconds'`)
		}, "true", `COMPLETED 0 (not in the workspace: "in/x.bin" (it has not arrived yet))`},
		"object deleted": {func(w *world, m *memory, id string) {
			w.stored(m, id, "abc")
			delete(m.files, "k-"+id)
		}, "true", `COMPLETED 0 (not in the workspace: "in/x.bin" (the object store does not have the file (any more)))`},
		"object replaced": {func(w *world, m *memory, id string) {
			w.stored(m, id, "abc")
			m.files["k-"+id] = []byte("abcdef")
		}, "true", `COMPLETED 0 (not in the workspace: "in/x.bin" (the object store has another file in its place))`},
		"object replaced by one of its size": {func(w *world, m *memory, id string) {
			w.stored(m, id, "abc")
			m.files["k-"+id] = []byte("abd")
		}, `test -z "$(ls -A in)"`, `COMPLETED 0 (not in the workspace: "in/x.bin" (the object store has another file in its place))`},
		"object of one byte replaced": {func(w *world, m *memory, id string) {
			w.stored(m, id, "a")
			m.files["k-"+id] = []byte("b")
		}, "test ! -e in/x.bin", `COMPLETED 0 (not in the workspace: "in/x.bin" (the object store has another file in its place))`},
		"object of no bytes that is not what was stored": {func(w *world, m *memory, id string) {
			w.stored(m, id, "")
			w.sql(`UPDATE attachments SET digest = repeat('0', 64)`)
		}, "test ! -e in/x.bin", `COMPLETED 0 (not in the workspace: "in/x.bin" (the object store has another file in its place))`},
		"nothing: a file of no bytes": {func(w *world, m *memory, id string) { w.stored(m, id, "") }, "test -f in/x.bin", "COMPLETED 0"},
		"too large for the workspace": {func(w *world, m *memory, id string) {
			w.stored(m, id, "abc")
			w.sql(`UPDATE attachments SET size_bytes = 200 << 20`)
		}, "true", `COMPLETED 0 (not in the workspace: "in/x.bin" (the workspace has no room for it))`},
		"store down for ever": {func(w *world, m *memory, id string) {
			w.stored(m, id, "abc")
			m.err = harness.Errorf(harness.Unavailable, "the object store does not answer")
		}, "true", `COMPLETED 0 (not in the workspace: "in/x.bin" (the object store does not answer))`},
	} {
		t.Run(name, func(t *testing.T) {
			w, m := withFiles(t)
			id := w.receive("ses_a", "x.bin")[0]
			c.prepare(w, m, id)
			e := w.ask("ses_a", c.command)
			for range 5 { // a store that is down makes the event come again
				if err := execute.New(w.options).ExecutionRequested(t.Context(), e); err == nil {
					break
				} else if harness.KindOf(err) != harness.Unavailable {
					t.Fatal(err)
				}
			}
			w.expect(e, c.want)
			if n, told := query[int](w, `SELECT count(*) FROM attachment_placements`), w.reason(e) != ""; (n == 0) != told {
				t.Errorf("%d placements, told %v", n, told)
			}
		})
	}
}

// A command may put anything in the way of what comes in: nothing of it is
// followed, and nothing outside the workspace is touched.
func TestWhatIsInTheWayOfFiles(t *testing.T) {
	for name, trap := range map[string]string{
		"a link to a folder":     "ln -s /evidence in",
		"a pipe":                 "mkfifo in",
		"a file":                 "echo > in",
		"a closed folder":        "mkdir in; chmod 000 in",
		"a folder of that name":  "mkdir -p in/x.bin",
		"a link of that name":    "mkdir in; ln -s /evidence/x in/x.bin",
		"a pipe of that name":    "mkdir in; mkfifo in/x.bin",
		"a closed workspace":     "chmod 000 /workspace",
		"a link to PID 1's self": "ln -s /proc/1 in",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, m := withFiles(t)
			w.receive("ses_a")
			w.deliver(w.ask("ses_a", trap))
			id := w.receive("ses_a", "x.bin")[0]
			w.stored(m, id, "abc")
			e := w.ask("ses_a", "cat /workspace/in/x.bin")
			w.deliverTwice(e)
			placed := query[int](w, `SELECT count(*) FROM attachment_placements`)
			if arrived := w.printed(e, "stdout") == "abc"; arrived != (placed == 1) || !arrived && !strings.Contains(w.reason(e), `not in the workspace: "in/x.bin" (`) {
				t.Errorf("arrived %v, placed %d, told %q", arrived, placed, w.reason(e))
			}
			entries, err := os.ReadDir(w.evidence)
			if err != nil || len(entries) > 0 {
				t.Errorf("outside the workspace: %v %v", entries, err)
			}
		})
	}
}

func TestFilesGoOut(t *testing.T) {
	w, m := withFiles(t)
	e := w.ask("ses_a", `mkdir -p out/sub; printf hello > out/a.txt; printf '\211PNG\r\n\032\n0000' > out/sub/picture.dat; printf x > "$(printf 'out/..\n..;rm -rf.pdf')"
		ln -s /etc/passwd out/link; ln -s /proc/1 out/proc; mkfifo out/pipe; : > out/empty; mkdir out/shut; echo y > out/shut/y; chmod 000 out/shut; echo z > out/z; chmod 000 out/z`)
	w.deliverTwice(e)
	if diff := cmp.Diff([]string{
		`DOCUMENT|rm_-rf.pdf|application/pdf|1|out/..\n..;rm -rf.pdf`, "DOCUMENT|a.txt|text/plain; charset=utf-8|5|out/a.txt", "IMAGE|picture.dat|image/png|12|out/sub/picture.dat",
	}, w.made()); diff != "" {
		t.Errorf("made (-want +got):\n%s", diff)
	}
	if n := query[int](w, `SELECT count(*) FROM attachments WHERE execution_id = $1 AND state = 'STORED' AND message_id IS NULL`, e.Payload.Execution); n != 3 {
		t.Errorf("%d files: %v", n, w.made())
	}
	reason := w.reason(e)
	for _, want := range []string{`"out/shut" (it cannot be opened)`, `"out/z" (it cannot be opened)`, `"out/empty" (empty)`, `"out/link" (a link or a special file)`, `"out/pipe" (a link or a special file)`, " and 1 more"} {
		if !strings.Contains(reason, want) {
			t.Errorf("%s is not told: %s", want, reason)
		}
	}
	for key, data := range m.files {
		if !strings.HasPrefix(key, "media/ses_a/out/") || bytes.Contains(data, []byte("root:")) {
			t.Errorf("stored %s: %q", key, data)
		}
	}
	puts := m.puts
	unchanged := w.ask("ses_a", "cat out/a.txt")
	w.deliverTwice(unchanged)
	w.expect(unchanged, "COMPLETED 0")
	if m.puts != puts {
		t.Error("files that did not change were sent again")
	}
	changed := w.ask("ses_a", "printf more >> out/a.txt")
	w.deliverTwice(changed)
	if got := query[string](w, `SELECT concat_ws(' ', path, size_bytes) FROM attachments WHERE execution_id = $1`, changed.Payload.Execution); got != "out/a.txt 9" {
		t.Errorf("changed: %s", got)
	}
	failing := w.ask("ses_a", "echo partial > out/partial; exit 7")
	w.deliverTwice(failing)
	w.expect(failing, "FAILED 7")
	if n := query[int](w, `SELECT count(*) FROM attachments WHERE execution_id = $1`, failing.Payload.Execution); n != 1 {
		t.Errorf("a command that failed left %d files", n)
	}
}

// Files that nobody misses take no place from the one that was meant.
func TestEmptyFilesKeepNothingBack(t *testing.T) {
	for name, c := range map[string]struct{ command, made, want string }{
		"empty": {
			"mkdir out; for n in 10 11 12 13 14 15 16 17 18 19 20; do : > out/$n; done; echo real > out/z.txt", "DOCUMENT|z.txt|text/plain; charset=utf-8|5|out/z.txt",
			`COMPLETED 0 (not sent: "out/10" (empty), "out/11" (empty), "out/12" (empty), "out/13" (empty), "out/14" (empty) and 6 more)`,
		},
		"names": {
			"mkdir out; for n in $(seq 100 199); do : > out/$n; ln -s / out/l$n; done; truncate -s 100M out/z.txt", "",
			`COMPLETED 0 (not sent: "out/z.txt" (too large), "out/100" (empty), "out/101" (empty), "out/102" (empty), "out/103" (empty) and 196 more; of one command at most 10 files are sent, each of at most 20 MB, all together of at most 40 MB)`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _ := withFiles(t)
			e := w.ask("ses_a", c.command)
			w.deliverTwice(e)
			w.expect(e, c.want)
			if diff := cmp.Diff([]string{c.made}, w.made()); diff != "" {
				t.Errorf("made (-want +got):\n%s", diff)
			}
			next := w.ask("ses_a", "true")
			w.deliverTwice(next)
			w.expect(next, "COMPLETED 0")
		})
	}
}

// What the limits of one command leave goes with the next, unchanged or not.
func TestFilesThatWaitForTheNextCommand(t *testing.T) {
	w, _ := withFiles(t)
	paths := func(e event.Event) string {
		return query[string](w, `SELECT COALESCE(string_agg(substr(path, 5), ' ' ORDER BY path COLLATE "C"), '') FROM attachments WHERE execution_id = $1`, e.Payload.Execution)
	}
	first := w.ask("ses_a", "mkdir out; for n in $(seq 10 24); do echo $n > out/$n; done")
	w.deliverTwice(first)
	if got := paths(first); got != "10 11 12 13 14 15 16 17 18 19" {
		t.Errorf("of 15 files went out: %s", got)
	}
	w.expect(first, `COMPLETED 0 (not sent: "out/20" (too many files), "out/21" (too many files), "out/22" (too many files), "out/23" (too many files), "out/24" (too many files); `+
		`of one command at most 10 files are sent, each of at most 20 MB, all together of at most 40 MB; files that were too many or too much go with your next command; remove those that the person shall not get)`)
	second := w.ask("ses_a", "rm out/21")
	w.deliverTwice(second)
	w.expect(second, "COMPLETED 0")
	if got := paths(second); got != "20 22 23 24" {
		t.Errorf("after the next command went out: %s", got)
	}
	third := w.ask("ses_a", "true")
	w.deliverTwice(third)
	if got := paths(third); got != "" {
		t.Errorf("sent again: %s", got)
	}
}

func TestLimitsOfWhatGoesOut(t *testing.T) {
	w, m := withFiles(t)
	many := w.ask("ses_a", "mkdir out; cd out; seq 10000 | xargs touch; for f in *; do echo $f > $f; done")
	w.deliverTwice(many)
	if n := len(w.made()); n != 10 {
		t.Errorf("%d files of 10000 went out", n)
	}
	if reason := w.reason(many); !strings.Contains(reason, "(too many files)") || !strings.Contains(reason, "and 9985 more") || !strings.Contains(reason, "at most 10 files") || len(reason) > 1000 {
		t.Errorf("told: %s", reason)
	}
	next := w.ask("ses_a", "rm -rf out")
	w.deliverTwice(next)
	w.expect(next, "COMPLETED 0")
	sizes := w.ask("ses_a", "mkdir out; truncate -s 100M out/a-large; for n in 1 2 3; do head -c 15000000 /dev/urandom > out/b$n; done; echo small > out/c")
	w.deliverTwice(sizes)
	if got := query[string](w, `SELECT string_agg(path, ' ' ORDER BY path) FROM attachments WHERE execution_id = $1`, sizes.Payload.Execution); got != "out/b1 out/b2 out/c" {
		t.Errorf("went out: %s; %s", got, w.reason(sizes))
	}
	if reason := w.reason(sizes); !strings.Contains(reason, `"out/a-large" (too large)`) || !strings.Contains(reason, `"out/b3" (all files together are too large)`) {
		t.Errorf("told: %s", reason)
	}
	w.options.Objects = nil
	puts := m.puts
	none := w.ask("ses_a", "echo new > out/new")
	w.deliverTwice(none)
	w.expect(none, "COMPLETED 0 (files in /workspace/out cannot be sent: this system keeps no files)")
	if m.puts != puts {
		t.Error("something was stored")
	}
}

// What is being written while it is read is never taken for whole.
func TestFilesThatGrowWhileTheyAreRead(t *testing.T) {
	w, _ := withFiles(t)
	e := w.ask("ses_a", `mkdir out; head -c 8000000 /dev/zero > out/grows; (while :; do printf x >> out/grows; done) >/dev/null 2>&1 & sleep 0.3; echo still > out/still`,
		func(s *harness.SandboxSpec) { s.KeepBackground = true })
	w.deliver(e)
	if got := query[string](w, `SELECT string_agg(path, ' ') FROM attachments`); got != "out/still" {
		t.Errorf("went out: %s", got)
	}
	if reason := w.reason(e); reason != `not sent: "out/grows" (it changed while it was read)` {
		t.Errorf("told: %s", reason)
	}
}

// The object store is down while files are to go out: the event comes again, the
// command does not, and in the end its result comes without them.
func TestTheStoreIsDownAfterACommand(t *testing.T) {
	for _, back := range []bool{true, false} {
		t.Run(fmt.Sprintf("back %v", back), func(t *testing.T) {
			w, m := withFiles(t)
			m.err = harness.Errorf(harness.Unavailable, "the object store does not answer")
			e := w.ask("ses_a", "echo ran >> /evidence/ran; mkdir out; echo x > out/x; echo printed")
			if err := execute.New(w.options).ExecutionRequested(t.Context(), e); harness.KindOf(err) != harness.Unavailable {
				t.Fatal(err)
			}
			w.expect(e, "RUNNING")
			if back {
				m.err = nil
			}
			for range 4 {
				if err := execute.New(w.options).ExecutionRequested(t.Context(), e); err != nil && harness.KindOf(err) != harness.Unavailable {
					t.Fatal(err)
				}
			}
			want := "COMPLETED 0"
			if !back {
				want = `COMPLETED 0 (not sent: "out/x" (the object store does not answer))`
			}
			w.expect(e, want)
			if n := len(w.lines("ran")); n != 1 || w.printed(e, "stdout") != "printed\n" {
				t.Errorf("it ran %d times and printed %q", n, w.printed(e, "stdout"))
			}
			if n := query[int](w, `SELECT count(*) FROM attachments`); (n == 1) != back {
				t.Errorf("%d files", n)
			}
		})
	}
}

func (m mortalStore) AwaitMedia(ctx context.Context, c *postgres.ExecutionClaim, wait postgres.MediaWait) (waits bool, events []event.Event, err error) {
	return waits, events, errors.Join(m.do("await", func() { waits, events, err = m.Store.AwaitMedia(ctx, c, wait) }), err)
}

func (m mortalStore) PlaceFile(ctx context.Context, id harness.SandboxID, file harness.AttachmentID) (err error) {
	return errors.Join(m.do("place", func() { err = m.Store.PlaceFile(ctx, id, file) }), err)
}

func (m mortalStore) PlanFiles(ctx context.Context, c *postgres.ExecutionClaim, keys []string) (err error) {
	return errors.Join(m.do("plan", func() { err = m.Store.PlanFiles(ctx, c, keys) }), err)
}

func (m mortalStore) StoreMadeFiles(ctx context.Context, c *postgres.ExecutionClaim, files []postgres.MadeFile) (err error) {
	return errors.Join(m.do("made", func() { err = m.Store.StoreMadeFiles(ctx, c, files) }), err)
}

// A process that dies at any step on the way of files in and out: the command
// runs once, finds its file, and what it made is there once.
func TestCrashesWhileFilesMove(t *testing.T) {
	var mu sync.Mutex
	var places []string
	t.Run("die", func(t *testing.T) {
		for step := 1; step <= 18; step++ {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("step %d after %v", step, after), func(t *testing.T) {
					t.Parallel()
					w, m := withFiles(t)
					w.stored(m, w.receive("ses_a", "x.bin")[0], "abc")
					e := w.ask("ses_a", "echo ran >> /evidence/ran; mkdir -p out; cat in/x.bin in/x.bin > out/twice; cat in/x.bin")
					at := w.dieAt(e, step, after)
					w.recover(e)
					w.expect(e, "COMPLETED 0")
					if ran := len(w.lines("ran")); ran != 1 {
						t.Errorf("%s: the command ran %d times", at, ran)
					}
					if out, made := w.printed(e, "stdout"), w.made(); out != "abc" || len(made) != 1 || !strings.HasSuffix(made[0], "|6|out/twice") {
						t.Errorf("%s: printed %q, made %v", at, out, made)
					}
					if n := len(m.files); n != 2 {
						t.Errorf("%s: %d objects", at, n)
					}
					if n := query[int](w, `SELECT count(*) FROM outside_objects`); n != 0 {
						t.Errorf("%s: %d rows of planned files are left beside their attachments", at, n)
					}
					mu.Lock()
					defer mu.Unlock()
					places = append(places, at)
				})
			}
		}
	})
	for _, step := range []string{"await", "stream put", "place", "begin", "stream run", "stream out", "plan", "made", "finish", "publish"} {
		for _, at := range []string{"before " + step, "after " + step} {
			if !slices.Contains(places, at) {
				t.Errorf("no process died %s, only %v", at, places)
			}
		}
	}
}

// vanishing is a sandbox that disappears when a file is brought to it.
type vanishing struct {
	sandbox.Driver
	once sync.Once
}

func (v *vanishing) Stream(ctx context.Context, sb sandbox.Sandbox, argv []string, stdin io.Reader, stdout, stderr io.Writer) (err error) {
	if argv[0] == "put" {
		v.once.Do(func() { err = v.Driver.Terminate(ctx, sb) })
	}
	return errors.Join(err, v.Driver.Stream(ctx, sb, argv, stdin, stdout, stderr))
}

// Nothing was committed to a sandbox that disappears while files come in: the
// command finds another.
func TestASandboxDisappearsWhileFilesComeIn(t *testing.T) {
	for _, used := range []bool{false, true} {
		t.Run(fmt.Sprintf("used %v", used), func(t *testing.T) {
			w, m := withFiles(t)
			if used {
				w.receive("ses_a")
				w.deliver(w.ask("ses_a", "true"))
				w.take()
			}
			w.stored(m, w.receive("ses_a", "x.bin")[0], "abc")
			w.options.Driver = &vanishing{Driver: w.driver}
			e := w.ask("ses_a", "cat in/x.bin")
			w.deliver(e)
			w.recover(e)
			if got := query[string](w, `SELECT state FROM executions WHERE execution_id = $1`, e.Payload.Execution); got != "COMPLETED" || w.printed(e, "stdout") != "abc" {
				t.Errorf("%s (%s), printed %q", got, w.reason(e), w.printed(e, "stdout"))
			}
		})
	}
}
