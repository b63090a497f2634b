//go:build local

package execute_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/functions/sandbox-exec/internal/execute"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

func TestCommands(t *testing.T) {
	w := newWorld(t)
	first := w.ask("ses_a", "echo hello; echo trouble >&2; echo kept > file; echo ran >> /evidence/first")
	events := w.deliverTwice(first)
	if len(events) != 2 || events[0].Type != event.SandboxChanged || events[1].Type != event.ExecutionFinished || events[1].Payload.Session != "ses_a" {
		t.Errorf("published %+v", events)
	}
	w.expect(first, "COMPLETED 0")
	if out, err := w.printed(first, "stdout"), w.printed(first, "stderr"); out != "hello\n" || err != "trouble\n" {
		t.Errorf("printed %q and %q", out, err)
	}
	if due := query[bool](w, `SELECT due_at <= now() FROM sessions`); !due {
		t.Error("the session is not marked")
	}
	for _, c := range []struct{ command, want, stdout string }{
		{command: "cat file; exit 3", want: "FAILED 3", stdout: "kept\n"},
		{command: "echo start; sleep 30", want: "TIMED_OUT", stdout: "start\n"},
		{command: "kill -KILL $$", want: "FAILED 137 (ended by SIGKILL)"},
		{command: "env | grep -i -e database -e broker -e nonce -e secret; true", want: "COMPLETED 0"},
		{command: "cat file", want: "COMPLETED 0", stdout: "kept\n"},
	} {
		e := w.ask("ses_a", c.command)
		if c.want == "TIMED_OUT" { // a shorter limit is another spec; this one is the command's alone
			w.sql(`UPDATE executions SET spec = jsonb_set(spec, '{timeoutSeconds}', '1') WHERE execution_id = $1`, e.Payload.Execution)
		}
		w.deliverTwice(e)
		got := query[string](w, `SELECT concat_ws(' ', state, exit_code, NULLIF('(' || reason || ')', '()')) FROM executions WHERE execution_id = $1`, e.Payload.Execution)
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %q, want %q", c.command, got, c.want)
		}
		if out := w.printed(e, "stdout"); out != c.stdout {
			t.Errorf("%s printed %q, want %q", c.command, out, c.stdout)
		}
	}
	if n := query[int](w, `SELECT count(*) FROM sandboxes`); n != 1 || len(w.existing()) != 1 {
		t.Errorf("%d sandboxes, %v exist, want one for all commands", n, w.existing())
	}
	if ran := w.lines("first"); len(ran) != 1 {
		t.Errorf("the first command ran %d times", len(ran))
	}
}

func TestEventsThatNameNothing(t *testing.T) {
	w := newWorld(t)
	x := execute.New(w.options)
	if err := x.ExecutionRequested(t.Context(), event.Event{}); harness.KindOf(err) != harness.Invalid {
		t.Errorf("an event without an execution: %v", err)
	}
	if err := x.ExecutionRequested(t.Context(), event.Event{Payload: event.Payload{Execution: "exe_none"}}); err != nil {
		t.Errorf("an execution that does not exist: %v", err)
	}
}

// A person sees what a command prints while it runs.
func TestOutputIsLive(t *testing.T) {
	w := newWorld(t)
	e := w.ask("ses_a", "printf first; until [ -e /evidence/go ]; do sleep 0.02; done; printf last")
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.deliver(e)
	}()
	w.await(`SELECT EXISTS (SELECT 1 FROM execution_output WHERE data = 'first')`)
	w.await(`SELECT EXISTS (SELECT 1 FROM executions WHERE state = 'RUNNING')`)
	w.touch("go")
	<-done
	w.expect(e, "COMPLETED 0")
	if out := w.printed(e, "stdout"); out != "firstlast" {
		t.Errorf("printed %q", out)
	}
}

// Output over the limit is counted, its two ends are kept.
func TestLongOutput(t *testing.T) {
	w := newWorld(t)
	w.options.MaxOutput = 300 << 10
	e := w.ask("ses_a", "head -c 2000000 /dev/zero | tr '\\0' x; printf end")
	w.deliverTwice(e)
	w.expect(e, "COMPLETED 0")
	var printed, stored int64
	var tail string
	if err := w.store.Pool().QueryRow(t.Context(), `SELECT stdout_bytes, (SELECT sum(length(data)) FROM execution_output), convert_from(stdout_tail, 'UTF8') FROM executions`).
		Scan(&printed, &stored, &tail); err != nil {
		t.Fatal(err)
	}
	if printed != 2000003 || stored != 300<<10 || !strings.HasSuffix(tail, "xend") {
		t.Errorf("%d printed, %d stored, ends with %q", printed, stored, tail[max(0, len(tail)-8):])
	}
}

func TestThreeDeliveriesAtOnce(t *testing.T) {
	w := newWorld(t)
	e := w.ask("ses_a", "echo ran >> /evidence/ran; sleep 0.5")
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := execute.New(w.options).ExecutionRequested(context.Background(), e); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	w.expect(e, "COMPLETED 0")
	if ran := w.lines("ran"); len(ran) != 1 {
		t.Errorf("the command ran %d times", len(ran))
	}
}

// Cap 1, three sessions: each gets its turn in the order they asked, by ending
// the idle sandbox of the one before; never are there two.
func TestCapAndOrder(t *testing.T) {
	w := newWorld(t)
	command := "printf '%s ' NAME >> /evidence/order; ls /workspace | wc -l"
	var events []event.Event
	for _, session := range []string{"a", "b", "c", "a"} {
		events = append(events, w.ask("ses_"+session, strings.Replace(command, "NAME", session, 1)+"; touch /workspace/mine"))
	}
	for _, n := range []int{2, 3, 1} { // those ahead are not there yet
		w.deliverTwice(events[n])
		w.expect(events[n], "PENDING")
	}
	if len(w.existing()) != 0 {
		t.Fatalf("sandboxes %v before the first in line came", w.existing())
	}
	w.deliver(events[0])
	w.drain()
	if got := w.lines("order"); !slices.Equal(got, []string{"a", "b", "c", "a"}) {
		t.Errorf("served in the order %v", got)
	}
	for i, e := range events {
		want := "COMPLETED 0"
		if i == 3 {
			want += " (this was a new workspace without the files of earlier commands, because the last sandbox ended (EVICTED))"
		}
		w.expect(e, want)
		if out := strings.TrimSpace(w.printed(e, "stdout")); out != "0" {
			t.Errorf("command %d found %s files of others", i, out)
		}
	}
	states := query[string](w, `SELECT string_agg(concat_ws(' ', state, reason), ', ' ORDER BY created_at) FROM sandboxes`)
	if states != "GONE EVICTED, GONE EVICTED, GONE EVICTED, READY " && states != "GONE EVICTED, GONE EVICTED, GONE EVICTED, READY" {
		t.Errorf("sandboxes %q", states)
	}
	if len(w.existing()) != 1 {
		t.Errorf("existing %v", w.existing())
	}
}

// A command that takes longer than one request is attached to by the next ones.
func TestLongerThanARequest(t *testing.T) {
	w := newWorld(t)
	w.options.Budget = 2 * time.Second
	e := w.ask("ses_a", "echo ran >> /evidence/ran; for i in 1 2 3 4 5; do echo $i; sleep 1; done")
	deliveries, ids := 0, map[string]bool{}
	for next := []event.Event{e}; len(next) > 0 && next[0].Type == event.ExecutionRequested; next = w.takeWork() {
		began := time.Now()
		w.deliver(next[0])
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("a request took %s", took)
		}
		if ids[next[0].ID] {
			t.Errorf("the event id %s was used twice", next[0].ID)
		}
		ids[next[0].ID] = true
		deliveries++
	}
	w.expect(e, "COMPLETED 0")
	if out := w.printed(e, "stdout"); out != "1\n2\n3\n4\n5\n" || deliveries < 2 {
		t.Errorf("%d deliveries printed %q", deliveries, out)
	}
	if ran := w.lines("ran"); len(ran) != 1 {
		t.Errorf("the command ran %d times", len(ran))
	}
}

// On SIGTERM a request does not wait for its command: the claim is given back.
func TestStop(t *testing.T) {
	w := newWorld(t)
	stop := make(chan struct{})
	w.options.Stop = stop
	e := w.ask("ses_a", "echo ran >> /evidence/ran; echo begun; until [ -e /evidence/go ]; do sleep 0.02; done; echo done")
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.deliver(e)
	}()
	w.await(`SELECT EXISTS (SELECT 1 FROM execution_output)`)
	close(stop)
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the request goes on")
	}
	if free := query[bool](w, `SELECT lease_owner IS NULL AND due_at <= now() AND state = 'RUNNING' FROM executions`); !free {
		t.Error("the claim was not given back")
	}
	events := w.takeWork()
	if len(events) != 1 || events[0].Type != event.ExecutionRequested || events[0].ID == e.ID {
		t.Fatalf("published %+v", events)
	}
	w.touch("go")
	w.options.Stop = nil
	w.deliverTwice(events[0])
	w.expect(e, "COMPLETED 0")
	if out := w.printed(e, "stdout"); out != "begun\ndone\n" || len(w.lines("ran")) != 1 {
		t.Errorf("printed %q, ran %d times", out, len(w.lines("ran")))
	}
}

// The session's sandbox died while nobody used it: the next command finds
// another one, and is told.
func TestALostSandboxIsReplaced(t *testing.T) {
	w := newWorld(t)
	w.deliver(w.ask("ses_a", "touch file"))
	w.take()
	if err := w.driver.Terminate(t.Context(), w.sandboxOf(event.Event{Payload: event.Payload{Execution: query[harness.ExecutionID](w, `SELECT execution_id FROM executions`)}})); err != nil {
		t.Fatal(err)
	}
	e := w.ask("ses_a", "ls")
	w.deliverTwice(e)
	w.expect(e, "COMPLETED 0 (this was a new workspace without the files of earlier commands, because the last sandbox ended (LOST))")
	if got := query[string](w, `SELECT string_agg(state, ' ' ORDER BY created_at) FROM sandboxes`); got != "GONE READY" {
		t.Errorf("sandboxes %s", got)
	}
}

func TestGivenUp(t *testing.T) {
	w := newWorld(t)
	pending, running := w.ask("ses_a", "echo ran >> /evidence/ran"), w.ask("ses_b", "echo ran >> /evidence/ran")
	w.sql(`UPDATE executions SET attempts = 10`)
	w.sql(`INSERT INTO sandboxes (sandbox_id, sandbox_name, agent_name, session_id, spec, spec_digest, state, sandbox_uid, expires_at)
		SELECT 'sbx_x', 'tuluat-x', agent_name, session_id, spec, spec_digest, 'READY', 'uid', now() + interval '10 minutes' FROM executions WHERE session_id = 'ses_b'`)
	w.sql(`UPDATE executions SET state = 'RUNNING', sandbox_id = 'sbx_x', sandbox_uid = 'uid' WHERE session_id = 'ses_b'`)
	w.deliverTwice(pending)
	w.expect(pending, "FAILED (no sandbox could be had in 10 attempts; nothing was started)")
	w.deliverTwice(running)
	w.expect(running, "UNKNOWN (its outcome could not be had in 10 attempts)")
	if got := query[string](w, `SELECT state || ' ' || reason FROM sandboxes`); got != "GONE UNPROVED" {
		t.Errorf("its sandbox is %s", got)
	}
	if len(w.lines("ran")) != 0 {
		t.Error("a command that was given up ran")
	}
}

func TestASpecThatNoSandboxCanHave(t *testing.T) {
	w := newWorld(t)
	e := w.ask("ses_a", "true", func(s *harness.SandboxSpec) { s.MemoryBytes = 0 })
	w.deliverTwice(e)
	got := query[string](w, `SELECT state || ' ' || reason FROM executions`)
	if !strings.HasPrefix(got, "FAILED no sandbox could be had: ") || !strings.HasSuffix(got, "; nothing was started") {
		t.Errorf("it ended as %q", got)
	}
	if got := query[string](w, `SELECT state || ' ' || reason FROM sandboxes`); got != "GONE SPEC" || len(w.existing()) != 0 {
		t.Errorf("its sandbox is %s, %v exist", got, w.existing())
	}
	if message := query[string](w, `SELECT message FROM sandboxes`); message == "" || !strings.Contains(got, message) {
		t.Errorf("its row says %q, the execution %q", message, got)
	}
	if next := w.ask("ses_a", "echo ok"); true {
		w.deliver(next)
		w.expect(next, "COMPLETED 0")
	}
}

// A sandbox in which no command starts says so in its row until one does, and
// its coming and going are told.
func TestAnImageWithoutAShell(t *testing.T) {
	w := newWorld(t)
	e := w.ask("ses_a", "true", func(s *harness.SandboxSpec) { s.Command = []string{"/no/such/shell", "-c"} })
	published := w.deliverTwice(e)
	if got := query[string](w, `SELECT state || ' ' || reason FROM executions`); !strings.HasPrefix(got, "FAILED ") || !strings.Contains(got, "/no/such/shell") {
		t.Errorf("it ended as %q", got)
	}
	if got := query[string](w, `SELECT state || ' ' || message FROM sandboxes`); !strings.HasPrefix(got, "READY ") || !strings.Contains(got, "/no/such/shell") {
		t.Errorf("its sandbox is %q", got)
	}
	sb := w.sandboxOf(e)
	if !slices.ContainsFunc(published, func(e event.Event) bool {
		return e.ID == "sandbox.changed:"+string(sb.ID)+":READY" && e.Session == "ses_a" && e.Agent != ""
	}) {
		t.Errorf("published %+v", published)
	}
	next := w.ask("ses_a", "true", func(s *harness.SandboxSpec) { s.Command = []string{"/no/such/shell", "-c"} })
	w.sql(`UPDATE executions SET spec = jsonb_set(spec, '{command}', '["sh", "-c"]') WHERE ended_at IS NULL`) // as if the shell were there now
	for _, e := range w.deliverTwice(next) {
		if e.Type == event.SandboxChanged {
			t.Errorf("a sandbox that stays is told of: %+v", e)
		}
	}
	if got := query[string](w, `SELECT state || ' ' || message FROM sandboxes`); got != "READY " {
		t.Errorf("after a command that started it is %q", got)
	}
}
