//go:build system

package system_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/localpg"
	archived "tuluat.ai/harness/shared/archive/part"
)

// TestRestore saves the database at a moment A, while messages, commands and
// answers are under way, goes on until B, and restores A beside the sandboxes and
// the bucket of B. What was under way at A is told as unknown and not done again;
// sandboxes that no row knows any more end; entries that went to the bucket after
// A go there again, as the same objects; what is said later is answered.
func TestRestore(t *testing.T) {
	agents := newAgents(3)
	w := newWorld(t, plan{agents: agents, people: &crowd{}, gated: true, archived: true, ageing: 30 * time.Second})
	m := &matrix{world: w, wires: &wires{}, model: &front{}, clock: &jumpingClock{}, calls: newCaller(w), both: w.people.phones()}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	part := func(name string) *trial {
		return &trial{matrix: m, name: name, agents: agents, ctx: ctx, result: result{fault: name}}
	}
	before := part("before")
	before.traffic()
	before.log(20)
	before.awaitAll()
	w.await(time.Minute, "it is settled", before.settled)

	// At A, one command runs, one waits for its place, one message was heard by
	// nobody, and one answer is not sent.
	during := part("during")
	during.speak(agents[1], "sleep 6")
	w.await(time.Minute, "a command runs", func() (bool, string) {
		n := w.number(`SELECT count(*) FROM executions WHERE state = 'RUNNING' AND command LIKE '%during-%'`)
		return n == 1, fmt.Sprint(n)
	})
	w.still.Store(true)
	w.gate.set(gateLosing)
	during.speak(agents[2], "run")
	during.log(20)
	w.await(time.Minute, "a message waits", func() (bool, string) {
		n := w.number(`SELECT count(*) FROM messages WHERE state = 'PENDING' AND provider_id LIKE 'during-1-%'`)
		return n == 1, fmt.Sprint(n)
	})
	dump := filepath.Join(w.dir, "A.dump")
	w.dumpDatabase(dump)
	atA := w.strings(`SELECT sandbox_name FROM sandboxes WHERE state <> 'GONE'`)

	w.gate.set(gateOpen)
	w.still.Store(false)
	during.awaitAll()
	after := part("after")
	after.traffic()
	after.speak(agents[2], "run")
	after.awaitAll()
	w.await(time.Minute, "it is settled", after.settled)
	newer := slices.DeleteFunc(w.listed(), func(name string) bool { return slices.Contains(atA, name) })
	keys := w.bucket.objects.Keys()
	if len(newer) == 0 {
		t.Error("no sandbox is newer than A")
	}
	if len(keys) < 2 {
		t.Errorf("%d objects are in the bucket", len(keys))
	}
	// One object of A is lost, whoever did it.
	lost := w.strings(`SELECT object_key FROM log_archives ORDER BY created_at LIMIT 1`)[0]

	w.stop()
	w.restoreDatabase(dump)
	rows, err := w.db.Query(ctx, `SELECT what || ' ' || n FROM restored() ORDER BY 1`)
	w.must(err)
	ended, err := pgx.CollectRows(rows, pgx.RowTo[string])
	w.must(err)
	t.Logf("ended by restored(): %q", ended)
	if again := w.strings(`SELECT what FROM restored() WHERE n > 0`); len(again) > 0 {
		t.Errorf("restored() a second time ends %q", again)
	}
	kept := w.bucket.objects.Object(lost)
	w.bucket.objects.Set(lost, nil)
	w.start(programDir(t))
	w.people.connect()
	back := time.Now()
	later := part("later")
	later.traffic()
	later.phones(1)
	later.awaitAll()
	w.await(3*time.Minute, "it converges", func() (bool, string) {
		left, err := m.left()
		left = slices.DeleteFunc(left, func(what string) bool { return what == "row without its object: "+lost })
		return err == nil && len(left) == 0, fmt.Sprint(left, err)
	})
	t.Logf("converged %s after the restored system began", time.Since(back).Round(time.Second))
	w.assertRestored(during, later, lost)
	w.bucket.objects.Set(lost, kept)
	during.countLog() // entries that were archived between A and B: once, by the same key
	if during.lost+during.doubled > 0 {
		t.Errorf("log entries archived after A: lost %d, doubled %d: %q", during.lost, during.doubled, during.details)
	}
	if left := w.awaitRest(3 * time.Minute); left != "" && !strings.HasPrefix(left, "leases held") {
		t.Errorf("the system did not come to rest: %s", left)
	}
	w.stop()
	w.assertNothingRemains()
}

func (w *world) assertRestored(during, later *trial, lost string) {
	w.t.Helper()
	later.count()
	if later.leaked > 1 || later.lost+later.doubled > 0 { // the lost object is one
		w.t.Errorf("what was said later: leaked %d, lost %d, doubled %d: %q", later.leaked, later.lost, later.doubled, later.details)
	}
	starts := w.readEvidence(startsFile)
	for id, lines := range starts {
		if len(lines) > 1 {
			w.t.Errorf("command %s was started %d times", id, len(lines))
		}
	}
	// Who had something under way at A has heard of it twice: its answer of then, and
	// that nothing is known of it now.
	for _, messages := range during.chats {
		var texts []string
		for _, c := range w.receiver.callbacks() {
			if c.InReplyTo == messages[0].id {
				texts = append(texts, c.Text)
			}
		}
		if len(texts) != 2 || !strings.Contains(texts[1], "restored to an earlier moment") {
			w.t.Errorf("%s, under way when the database was saved, is told %q", messages[0].id, texts)
		}
	}
	if n := w.number(`SELECT count(*) FROM executions WHERE state = 'UNKNOWN' AND reason LIKE '%restored%'`); n != 1 {
		w.t.Errorf("%d commands are UNKNOWN because of it, want 1", n)
	}
	if n := w.number(`SELECT count(*) FROM messages WHERE provider_id LIKE 'after-%'`); n != 0 {
		w.t.Errorf("%d messages of after the moment are there", n)
	}
	// What is said to be in the bucket and is not is found by whoever reads it back.
	missing := 0
	for _, key := range w.strings(`SELECT object_key FROM log_archives WHERE state = 'VERIFIED'`) {
		var sum archived.Sum
		w.must(w.db.QueryRow(w.t.Context(), `SELECT digest, size_bytes FROM log_archives WHERE object_key = $1`, key).Scan(&sum.SHA256, &sum.Size))
		if err := archived.Verify(w.t.Context(), w.bucket.store, key, sum); err != nil {
			missing++
			if key != lost {
				w.t.Errorf("%s: %v", key, err)
			}
		}
	}
	if missing != 1 {
		w.t.Errorf("%d objects are told as missing, want the one that is", missing)
	}
}

// postgresTool runs a program of PostgreSQL against the world's server.
func (w *world) postgresTool(name string, args ...string) {
	w.t.Helper()
	install, err := localpg.Find()
	w.must(err)
	var complaint bytes.Buffer
	cmd := exec.CommandContext(w.t.Context(), filepath.Join(install.Bin, name), args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), "LC_ALL=C"), &complaint
	if err := cmd.Run(); err != nil {
		w.t.Fatalf("%s: %v\n%s", name, err, complaint.String())
	}
}

func (w *world) dumpDatabase(file string) {
	w.t.Helper()
	w.postgresTool("pg_dump", "--format=custom", "--file="+file, "--dbname="+w.dsn)
}

// restoreDatabase puts a dump in the place of the database. Nobody may be connected.
func (w *world) restoreDatabase(file string) {
	w.t.Helper()
	w.db.Reset()
	admin := w.pool("postgres")
	for _, sql := range []string{"DROP DATABASE " + database + " WITH (FORCE)", "CREATE DATABASE " + database} {
		_, err := admin.Exec(w.t.Context(), sql)
		w.must(err)
	}
	admin.Close()
	w.postgresTool("pg_restore", "--exit-on-error", "--dbname="+w.dsn, file)
}
