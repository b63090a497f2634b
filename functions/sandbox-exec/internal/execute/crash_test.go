//go:build local

package execute_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/functions/sandbox-exec/internal/execute"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/sandbox"
)

var errDied = errors.New("the process died")

// mortal is a process that dies at its nth step: before it, or after it but
// before it learns so. A dead process does nothing more: no call of it reaches
// the database or a sandbox.
type mortal struct {
	mu    sync.Mutex
	step  int
	dieAt int
	after bool
	dead  bool
	at    string // the step it died at
	die   context.CancelFunc
}

// do does the step unless the process is dead, or dies before it.
func (m *mortal) do(name string, step func()) error {
	m.mu.Lock()
	m.step++
	now := m.step == m.dieAt && !m.dead
	if now {
		m.dead, m.at = true, name
	}
	dead := m.dead
	m.mu.Unlock()
	if now && m.after {
		step()
	}
	if now {
		m.die()
	}
	if dead {
		return errDied
	}
	step()
	return nil
}

func (m *mortal) died() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead
}

type mortalStore struct {
	execute.Store
	*mortal
}

func (m mortalStore) ClaimExecution(ctx context.Context, id harness.ExecutionID, lease postgres.Lease) (c *postgres.ExecutionClaim, err error) {
	return c, errors.Join(m.do("claim", func() { c, err = m.Store.ClaimExecution(ctx, id, lease) }), err)
}

func (m mortalStore) AcquireSandbox(ctx context.Context, c *postgres.ExecutionClaim) (p postgres.Placement, err error) {
	return p, errors.Join(m.do("acquire", func() { p, err = m.Store.AcquireSandbox(ctx, c) }), err)
}

func (m mortalStore) BeginExecution(ctx context.Context, c *postgres.ExecutionClaim, id harness.SandboxID, uid string) (began bool, err error) {
	return began, errors.Join(m.do("begin", func() { began, err = m.Store.BeginExecution(ctx, c, id, uid) }), err)
}

func (m mortalStore) StoreOutput(ctx context.Context, c *postgres.ExecutionClaim, pieces []postgres.OutputPiece) (err error) {
	return errors.Join(m.do("output", func() { err = m.Store.StoreOutput(ctx, c, pieces) }), err)
}

func (m mortalStore) ReleaseExecution(ctx context.Context, c *postgres.ExecutionClaim, after time.Duration, progress bool, output []postgres.OutputPiece) (events []event.Event, err error) {
	return events, errors.Join(m.do("release", func() { events, err = m.Store.ReleaseExecution(ctx, c, after, progress, output) }), err)
}

func (m mortalStore) FinishExecution(ctx context.Context, c *postgres.ExecutionClaim, o postgres.ExecutionOutcome) (events []event.Event, err error) {
	return events, errors.Join(m.do("finish", func() { events, err = m.Store.FinishExecution(ctx, c, o) }), err)
}

func (m mortalStore) EndSandbox(ctx context.Context, id harness.SandboxID, agent harness.AgentName, reason, message string) (err error) {
	return errors.Join(m.do("end", func() { err = m.Store.EndSandbox(ctx, id, agent, reason, message) }), err)
}

func (m mortalStore) SandboxGone(ctx context.Context, id harness.SandboxID, agent harness.AgentName, reason string) (events []event.Event, err error) {
	return events, errors.Join(m.do("gone", func() { events, err = m.Store.SandboxGone(ctx, id, agent, reason) }), err)
}

type mortalDriver struct {
	sandbox.Driver
	*mortal
}

func (m mortalDriver) Start(ctx context.Context, sb sandbox.Sandbox) (uid string, err error) {
	return uid, errors.Join(m.do("start", func() { uid, err = m.Driver.Start(ctx, sb) }), err)
}

func (m mortalDriver) Terminate(ctx context.Context, sb sandbox.Sandbox) (err error) {
	return errors.Join(m.do("terminate", func() { err = m.Driver.Terminate(ctx, sb) }), err)
}

func (m mortalDriver) Inspect(ctx context.Context, sb sandbox.Sandbox) (c sandbox.Condition, err error) {
	return c, errors.Join(m.do("inspect", func() { c, err = m.Driver.Inspect(ctx, sb) }), err)
}

// Stream that dies after its step was cut while the command runs, once it has
// printed something.
func (m mortalDriver) Stream(ctx context.Context, sb sandbox.Sandbox, argv []string, stdin io.Reader, stdout, stderr io.Writer) (err error) {
	return errors.Join(m.do("stream "+argv[0], func() {
		if m.died() {
			cut, cancel := context.WithCancel(ctx)
			defer cancel()
			stdout = cutter{stdout, cancel}
			ctx = cut
		}
		err = m.Driver.Stream(ctx, sb, argv, stdin, stdout, stderr)
	}), err)
}

type cutter struct {
	io.Writer
	cut context.CancelFunc
}

func (c cutter) Write(p []byte) (int, error) {
	c.cut()
	return c.Writer.Write(p)
}

// recover is what the sweep and the broker do after a crash: the lease runs out,
// what is due is announced and delivered, until the execution has ended.
func (w *world) recover(e event.Event) {
	w.Helper()
	ctx := context.Background()
	for range 10 {
		if query[bool](w, `SELECT ended_at IS NOT NULL FROM executions WHERE execution_id = $1`, e.Payload.Execution) {
			return
		}
		w.sql(`UPDATE executions SET lease_until = now() - interval '1 second' WHERE lease_owner IS NOT NULL`)
		w.sql(`UPDATE executions SET due_at = now() WHERE due_at > now()`)
		w.sql(`UPDATE outbox SET due_at = now()`)
		w.sql(`UPDATE sandboxes SET updated_at = now() - interval '1 hour' WHERE state = 'TERMINATING'`)
		ending, err := w.store.SandboxesToEnd(ctx, 10)
		if err != nil {
			w.Fatal(err)
		}
		for _, r := range ending {
			if err := w.driver.Terminate(ctx, sandbox.Sandbox{Name: r.Name, UID: r.UID}); err != nil {
				w.Fatal(err)
			}
			events, err := w.store.SandboxGone(ctx, r.ID, r.Agent, r.Reason)
			if err != nil {
				w.Fatal(err)
			}
			w.publish(ctx, events...)
		}
		due, err := w.store.ExecutionsDue(ctx, 10)
		if err != nil {
			w.Fatal(err)
		}
		w.publish(ctx, due...)
		unheard, err := w.store.TakeUnheard(ctx, 10)
		if err != nil {
			w.Fatal(err)
		}
		for _, u := range unheard {
			w.publish(ctx, u.Event)
		}
		w.drain()
	}
	w.Fatalf("never ended: %v", w.dump()["executions"])
}

// dieAt delivers e to a process that dies at the given step, and says where that
// was; empty when it lived to the end.
func (w *world) dieAt(e event.Event, step int, after bool) string {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	m := &mortal{dieAt: step, after: after, die: cancel}
	o := w.options
	o.Store, o.Driver = mortalStore{w.store, m}, mortalDriver{w.driver, m}
	o.Publish = func(ctx context.Context, events ...event.Event) {
		if hintsOnly(events) && !m.died() { // said beside the steps; nothing follows from it
			w.publish(ctx, events...)
			return
		}
		if m.do("publish", func() { w.publish(ctx, events...) }) != nil {
			return
		}
	}
	err := execute.New(o).ExecutionRequested(ctx, e)
	if err == nil && !m.died() {
		return ""
	}
	if !m.died() {
		w.Fatalf("delivery: %v", err)
	}
	return fmt.Sprintf("%s %s", map[bool]string{false: "before", true: "after"}[after], m.at)
}

func hintsOnly(events []event.Event) bool {
	return len(events) > 0 && !slices.ContainsFunc(events, func(e event.Event) bool { return e.Type != event.SandboxChanged })
}

// steps is how many things a process does for a command whose sandbox's place is
// taken by an idle one; what is only said of sandboxes is no step.
const steps = 12

// A process that dies before or after any of its steps: the command still runs
// exactly once, as counted outside the sandbox, and its output is whole.
func TestCrashAtEveryStep(t *testing.T) {
	var mu sync.Mutex
	var places []string
	t.Run("die", func(t *testing.T) {
		for n := range 2*steps + 1 {
			step, after := n/2+1, n%2 == 1
			t.Run(fmt.Sprintf("step %d after %v", step, after), func(t *testing.T) {
				t.Parallel()
				at := dieOnce(t, step, after)
				if lives := step > steps; lives != (at == "") {
					t.Errorf("died %q", at)
				}
				mu.Lock()
				defer mu.Unlock()
				places = append(places, at)
			})
		}
	})
	for _, step := range []string{"claim", "acquire", "terminate", "gone", "start", "begin", "stream run", "output", "finish", "publish"} {
		for _, at := range []string{"before " + step, "after " + step} {
			if !slices.Contains(places, at) {
				t.Errorf("no process died %s", at)
			}
		}
	}
}

func dieOnce(t *testing.T, step int, after bool) (at string) {
	w := newWorld(t)
	w.deliver(w.ask("ses_idle", "true"))
	w.take()
	e := w.ask("ses_a", "echo ran >> /evidence/ran; echo begun; sleep 0.5; echo done")
	at = w.dieAt(e, step, after)
	w.recover(e)
	w.expect(e, "COMPLETED 0")
	if ran := w.lines("ran"); len(ran) != 1 {
		t.Errorf("%s: the command ran %d times", at, len(ran))
	}
	if out := w.printed(e, "stdout"); out != "begun\ndone\n" {
		t.Errorf("%s: printed %q", at, out)
	}
	if names := w.existing(); len(names) != 1 {
		t.Errorf("%s: sandboxes %v", at, names)
	}
	return at
}

// The process died after it had committed the command to a sandbox, and the
// sandbox is gone: nobody can say whether it ran. It is told, and not run again.
func TestUnknown(t *testing.T) {
	w := newWorld(t)
	e := w.ask("ses_a", "echo ran >> /evidence/ran")
	for step := 1; ; step++ {
		at := w.dieAt(e, step, true)
		if at == "" {
			t.Fatal("no step commits the command")
		}
		if at == "after begin" {
			break
		}
		w.sql(`UPDATE executions SET lease_until = now() - interval '1 second'`)
	}
	sb := w.sandboxOf(e)
	if err := w.driver.Terminate(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	w.recover(e)
	if got := query[string](w, `SELECT state FROM executions`); got != "UNKNOWN" {
		t.Errorf("it ended as %s", got)
	}
	if n := len(w.lines("ran")); n != 0 {
		t.Errorf("it ran %d times", n)
	}
	if got := query[string](w, `SELECT string_agg(state, ' ') FROM sandboxes`); got != "GONE" || len(w.existing()) != 0 {
		t.Errorf("sandboxes %s, %v exist", got, w.existing())
	}
}

// A sandbox that disappears while a command runs in it.
func TestSandboxGone(t *testing.T) {
	for _, held := range []bool{true, false} {
		t.Run(fmt.Sprintf("held %v", held), func(t *testing.T) {
			w := newWorld(t)
			e := w.ask("ses_a", "echo ran >> /evidence/ran; echo begun; sleep 60")
			waiting := w.ask("ses_b", "echo next")
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			m := &mortal{die: cancel}
			o := w.options
			o.Store, o.Driver = mortalStore{w.store, m}, mortalDriver{w.driver, m}
			done := make(chan error, 1)
			go func() { done <- execute.New(o).ExecutionRequested(ctx, e) }()
			w.await(`SELECT EXISTS (SELECT 1 FROM execution_output)`)
			w.deliver(waiting)
			w.expect(waiting, "PENDING")
			if !held { // the process dies first
				m.mu.Lock()
				m.dead = true
				m.mu.Unlock()
				cancel()
				if err := <-done; err == nil {
					t.Fatal("a dead process says that all is well")
				}
			}
			if err := w.driver.Terminate(context.Background(), w.sandboxOf(e)); err != nil {
				t.Fatal(err)
			}
			if held {
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			} else {
				w.recover(e)
			}
			w.drain()
			if got := query[string](w, `SELECT state FROM executions WHERE execution_id = $1`, e.Payload.Execution); got != "SANDBOX_GONE" {
				t.Errorf("it ended as %s", got)
			}
			if due := query[bool](w, `SELECT due_at <= now() FROM sessions WHERE session_id = 'ses_a'`); !due {
				t.Error("its session is not marked")
			}
			w.expect(waiting, "COMPLETED 0")
			if n := len(w.lines("ran")); n != 1 {
				t.Errorf("it ran %d times", n)
			}
		})
	}
}

// A holder that was slow, and whose lease another took: both attach, one writes.
func TestTwoHolders(t *testing.T) {
	w := newWorld(t)
	w.options.Lease.For = 600 * time.Millisecond
	e := w.ask("ses_a", "echo ran >> /evidence/ran; echo begun; until [ -e /evidence/go ]; do sleep 0.02; done; echo done")
	done := make(chan error, 2)
	first := w.options
	go func() { done <- execute.New(first).ExecutionRequested(context.Background(), e) }()
	w.await(`SELECT EXISTS (SELECT 1 FROM execution_output)`)
	w.sql(`UPDATE executions SET lease_until = now() - interval '1 hour', lease_token = lease_token + 100`)
	second := w.options
	second.Lease.For = time.Minute
	go func() { done <- execute.New(second).ExecutionRequested(context.Background(), e) }()
	w.await(`SELECT lease_token > 100 AND lease_until > now() FROM executions`)
	if err := <-done; err != nil { // the first notices at its next extension, though the command runs on
		t.Fatal(err)
	}
	w.expect(e, "RUNNING")
	w.touch("go")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	w.expect(e, "COMPLETED 0")
	if out := w.printed(e, "stdout"); out != "begun\ndone\n" || len(w.lines("ran")) != 1 {
		t.Errorf("printed %q, ran %d times", out, len(w.lines("ran")))
	}
}

// failing is a platform that has no room for now.
type failing struct {
	sandbox.Driver
	left int
}

func (f *failing) Start(ctx context.Context, sb sandbox.Sandbox) (string, error) {
	if f.left > 0 {
		f.left--
		return "", sandbox.Fail(harness.Unavailable, sandbox.ReasonCapacity, "the platform has no room", nil)
	}
	return f.Driver.Start(ctx, sb)
}

func TestStartsThatFailForNow(t *testing.T) {
	for failures, want := range map[int]string{2: "COMPLETED 0", 100: "FAILED (no sandbox could be had: the platform has no room; nothing was started)"} {
		t.Run(fmt.Sprint(failures), func(t *testing.T) {
			w := newWorld(t)
			w.options.Driver = &failing{Driver: w.driver, left: failures}
			e := w.ask("ses_a", "true")
			w.deliverTwice(e)
			if later := query[bool](w, `SELECT state = 'PENDING' AND due_at > now() AND lease_owner IS NULL FROM executions`); !later {
				t.Error("it does not wait for a while")
			}
			w.recover(e)
			w.expect(e, want)
			if tries := query[int](w, `SELECT count(*) FROM sandboxes WHERE state = 'GONE' AND reason = 'CAPACITY'`); tries != min(failures, 5) {
				t.Errorf("%d sandboxes did not come up", tries)
			}
		})
	}
}
