//go:build local

package execute_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/sandbox"
)

// ticking leaves a line of evidence every 20 ms, in the background too, and does
// not mind being asked to end.
const ticking = `trap '' TERM; (while :; do echo tick >> /evidence/ticks; sleep 0.02; done) & echo begun; wait`

// begin delivers e to a request of its own, and returns when its command has
// begun. The channel is closed when the request is over.
func (w *world) begin(e event.Event) <-chan struct{} {
	w.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.deliver(e)
	}()
	w.await(`SELECT EXISTS (SELECT 1 FROM execution_output WHERE data = convert_to('begun' || chr(10), 'UTF8'))`)
	return done
}

// left begins e's command and then ends the request that waits for it, as a
// process does that is to end.
func (w *world) left(e event.Event) {
	w.Helper()
	stop := make(chan struct{})
	w.options.Stop = stop
	done := w.begin(e)
	close(stop)
	<-done
	w.options.Stop = nil
	w.expect(e, "RUNNING")
}

// cancelSession returns the announcement of the command that is to be ended.
func (w *world) cancelSession(session string) event.Event {
	w.Helper()
	_, events, err := w.store.CancelSession(context.Background(), harness.SessionID(session), postgres.Audit{Actor: "ann"})
	if err != nil || len(events) != 2 || events[1].Type != event.ExecutionRequested {
		w.Fatalf("published %+v, %v", events, err)
	}
	return events[1]
}

// still fails if anything of the command goes on.
func (w *world) still() {
	w.Helper()
	before := len(w.lines("ticks"))
	time.Sleep(100 * time.Millisecond) // five times what one tick takes: the proof of nothing needs a while
	if after := len(w.lines("ticks")); before == 0 || after != before {
		w.Errorf("the command goes on: %d lines, then %d", before, after)
	}
}

// A command that one request waits for is ended by another one that hears of it.
func TestARunningCommandIsCancelled(t *testing.T) {
	w := newWorld(t)
	e := w.ask("ses_a", ticking)
	done := w.begin(e)
	w.deliver(w.cancelSession("ses_a"))
	<-done
	w.expect(e, "CANCELLED")
	w.still()
	if out := w.printed(e, "stdout"); out != "begun\n" {
		t.Errorf("printed %q", out)
	}
	if due := query[bool](w, `SELECT due_at IS NOT NULL FROM sessions`); due {
		t.Error("the session that has ended is due")
	}
}

// Nobody waits for it: whoever hears of it ends it and stores how it ended. The
// first announcement was lost; the sweep has it again.
func TestACommandThatNobodyWaitsForIsCancelled(t *testing.T) {
	w := newWorld(t)
	e := w.ask("ses_a", ticking)
	w.left(e)
	w.cancelSession("ses_a")
	w.sql(`UPDATE outbox SET due_at = now()`)
	unheard, err := w.store.TakeUnheard(t.Context(), 10)
	if err != nil || len(unheard) == 0 {
		t.Fatal(unheard, err)
	}
	for _, u := range unheard {
		w.deliver(u.Event)
	}
	w.expect(e, "CANCELLED")
	w.still()
	if n := query[int](w, `SELECT count(*) FROM outbox WHERE subject = $1`, e.Payload.Execution); n != 0 {
		t.Errorf("%d announcements are left", n)
	}
}

// A command is cancelled before it begins: it never does.
func TestACommandIsCancelledBeforeItBegins(t *testing.T) {
	w := newWorld(t)
	w.deliver(w.ask("ses_a", "true"))
	e := w.ask("ses_a", ticking)
	claim, err := w.store.ClaimExecution(t.Context(), e.Payload.Execution, w.options.Lease)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := w.store.AcquireSandbox(t.Context(), claim); err != nil || p.Kind != "RUN" {
		t.Fatal(p, err)
	}
	cancel := w.cancelSession("ses_a")
	w.deliver(cancel)                                                  // the runner hears of it first
	w.sql(`UPDATE executions SET lease_until = now() - interval '1s'`) // and its holder died
	w.deliver(e)
	w.expect(e, "CANCELLED")
	if ran := w.lines("ticks"); len(ran) != 0 {
		t.Errorf("it ran: %d lines", len(ran))
	}
}

// A sandbox that somebody wants ended loses its command first, and is then the
// sweep's; without a sandbox there is nothing to cancel.
func TestACommandOfATerminatedSandboxIsCancelled(t *testing.T) {
	w := newWorld(t)
	e := w.ask("ses_a", ticking)
	done := w.begin(e)
	id := query[string](w, `SELECT sandbox_id FROM sandboxes`)
	_, events, err := w.store.TerminateSandbox(t.Context(), harness.SandboxID(id), postgres.Audit{Actor: "ann"})
	if err != nil || len(events) != 1 {
		t.Fatal(events, err)
	}
	w.deliver(events[0])
	<-done
	w.expect(e, "CANCELLED")
	w.still()
	if due := query[bool](w, `SELECT due_at <= now() FROM sessions`); !due {
		t.Error("the session is not told")
	}
	ended, err := w.store.SandboxesToEnd(t.Context(), 10)
	if err != nil || len(ended) != 1 || string(ended[0].ID) != id {
		t.Errorf("the sweep ends %+v, %v", ended, err)
	}
}

func TestCancelWithoutASandbox(t *testing.T) {
	w := newWorld(t)
	e := w.ask("ses_a", ticking)
	w.left(e)
	for _, name := range w.existing() {
		if err := w.driver.Terminate(t.Context(), sandbox.Sandbox{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	w.deliver(w.cancelSession("ses_a"))
	if got := query[string](w, `SELECT state FROM executions`); !strings.HasPrefix(got, "SANDBOX_GONE") {
		t.Errorf("it is %s", got)
	}
	w.still()
}
