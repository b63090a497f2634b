//go:build system

package system_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// processes are those of this machine that belong to the test: of functions and
// the runner, of PostgreSQL, and of sandboxes.
func (w *world) processes() []string {
	w.t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*")
	w.must(err)
	var all []string
	for _, dir := range found {
		exe, err := os.Readlink(filepath.Join(dir, "exe"))
		if err != nil {
			continue // it has ended, or is the kernel's
		}
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue
		}
		if strings.HasPrefix(exe, programDir(w.t)+"/") || bytes.Contains(line, []byte(w.dir+"/")) {
			all = append(all, filepath.Base(dir)+" "+filepath.Base(exe))
		}
	}
	return all
}

// TestRestartWhileApprovalsWait stops every process and PostgreSQL while
// approvals wait, lets timers fall due meanwhile, and has every surface decide
// once all runs again.
func TestRestartWhileApprovalsWait(t *testing.T) {
	askers := newAskers(1)
	ways := []actor{
		{surface: "user ann", approve: true},
		{surface: "user bob"},
		{surface: "WHATSAPP", approve: true},
		{surface: "WHATSAPP", typed: true},
		{surface: "TELEGRAM", approve: true},
		{surface: "TELEGRAM", typed: true},
		{surface: "the clock"},
		{surface: "user ann", approve: true}, // after a reminder that fell due meanwhile
	}
	const expires, reminds = 6, 7
	var all []*asked
	for i, who := range ways {
		all = append(all, &asked{command: command{id: fmt.Sprintf("%s-r%d", askers[0].name, i)}, asker: askers[0], actors: []*actor{&who}})
	}
	w := newWorld(t, plan{people: &crowd{askers: askers}, ageing: time.Second})
	w.greet()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	api := newREST(w)
	for i, q := range all {
		body := map[string]string{"agent": q.asker.name, "chat": q.id, "text": "run: " + q.shell()}
		if status, answer, _, err := api.call(ctx, "ann", http.MethodPost, "/sessions", fmt.Sprint("ask-", i), body); err != nil || status/100 != 2 {
			t.Fatalf("a message: %d %s %v", status, answer, err)
		}
	}
	cards := make([]map[string]person.Line, len(all))
	w.await(3*time.Minute, "every question is on both phones", func() (bool, string) {
		for i, q := range all {
			cards[i] = map[string]person.Line{}
			for _, channel := range []string{"WHATSAPP", "TELEGRAM"} {
				card, ok := w.card(q, channel)
				if cards[i][channel] = card; !ok {
					return false, q.id + " " + channel
				}
			}
		}
		return true, ""
	})
	for _, q := range all {
		found := w.strings(`SELECT approval_id || ' ' || short_code FROM approvals WHERE input #>> '{arguments,command}' LIKE '%' || $1 || ' %'`, q.id)
		if len(found) != 1 {
			t.Fatalf("%s: approvals %q", q.id, found)
		}
		q.approval, q.code, _ = strings.Cut(found[0], " ")
	}
	w.await(time.Minute, "sessions wait", func() (bool, string) {
		left := w.strings(`SELECT session_id FROM sessions WHERE lease_owner IS NOT NULL OR due_at IS NOT NULL`)
		return len(left) == 0, fmt.Sprint(left)
	})
	running := len(w.processes())
	_, err := w.db.Exec(ctx, `UPDATE approvals SET expires_at = now() + interval '20 seconds', due_at = now() + interval '20 seconds' WHERE approval_id = $1`, all[expires].approval)
	w.must(err)
	_, err = w.db.Exec(ctx, `UPDATE approvals SET reminders = ARRAY[now() + interval '20 seconds', now() + interval '21 seconds'], due_at = now() + interval '20 seconds' WHERE approval_id = $1`, all[reminds].approval)
	w.must(err)
	changed := time.Now()
	w.stop()
	if early := w.strings(`SELECT approval_id FROM approvals WHERE state <> 'PENDING'`); len(early) > 0 {
		t.Fatalf("decided before everything stood still: %q", early)
	}
	w.db.Reset()
	w.must(w.server.Stop())
	stopped := w.processes()
	t.Logf("%d processes before, %d while everything stands still %q", running, len(stopped), stopped)
	if len(stopped) != 0 {
		t.Errorf("%d processes run: %q", len(stopped), stopped)
	}
	time.Sleep(max(0, time.Until(changed.Add(22*time.Second)))) // the timers fall due
	w.must(w.reviveDatabase())
	w.start(programDir(t))
	w.people.connect()
	w.await(2*time.Minute, "timers that fell due have fired", func() (bool, string) {
		left := w.strings(`SELECT approval_id FROM approvals WHERE due_at <= now()`)
		return len(left) == 0, fmt.Sprint(left)
	})
	for i, q := range all {
		if i != expires {
			w.act(ctx, api, q, q.actors[0], cards[i][q.actors[0].surface])
		}
		q.actors[0].acted = true
	}
	if left := w.awaitDecided(10 * time.Minute); left != "" {
		t.Errorf("the system did not come to rest: %s", left)
	}
	w.must(w.people.whatsapp.Settled(ctx))
	w.judgeApprovals(all, newApprovalKiller(0, 1, 1))
	outcomes := w.outcomes()
	for i, q := range all {
		want := "REJECTED"
		switch {
		case i == expires:
			want = "EXPIRED"
		case ways[i].approve:
			want = "APPROVED"
		}
		if got := outcomes[q.approval]; got.state != want {
			t.Errorf("%s, decided by %s after the restart, is %s", q.id, ways[i].surface, got.says())
		}
	}
	reminded := w.strings(`SELECT n.channel FROM replies r JOIN sessions n USING (session_id) WHERE r.text LIKE 'Reminder: %' ORDER BY 1`)
	if !slices.Equal(reminded, []string{"TELEGRAM", "WHATSAPP"}) {
		t.Errorf("reminded in %q, want once in each chat", reminded)
	}
	if crashes := sum(w.cluster.Counts().Crashes); crashes != 0 {
		t.Errorf("%d processes ended by themselves", crashes)
	}
	w.stop()
	w.assertNothingRemains()
}
