//go:build local

package execute_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"tuluat.ai/harness/functions/sandbox-exec/internal/execute"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/driver"
)

// runner is the binary that all tests of this package use.
var runner string

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "tr")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	runner = filepath.Join(dir, "runner")
	build := exec.Command("go", "build", "-o", runner, "../../runner")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build the runner: %w: %s", err, out)
	}
	code := m.Run()
	if code == 0 {
		err = goleak.Find()
	}
	return code, err
}

// world is a database, a driver whose sandboxes can write evidence, and what was
// published.
type world struct {
	*testing.T
	store    *postgres.Store
	driver   sandbox.Driver
	evidence string // a folder of this machine, /evidence inside
	options  execute.Options

	mu        sync.Mutex
	published []event.Event
}

func newWorld(t *testing.T) *world {
	t.Helper()
	root, err := os.MkdirTemp("", "ts")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	w := &world{T: t, store: postgrestest.New(t), evidence: filepath.Join(root, "e")}
	for dir, mode := range map[string]os.FileMode{root: 0o755, w.evidence: 0o777} {
		if err := os.MkdirAll(dir, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	w.driver, err = driver.New(driver.Options{
		Driver: driver.Local, LocalDir: filepath.Join(root, "s"), LocalRunner: runner, LocalBinds: []string{w.evidence + ":/evidence"},
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.removeAll)
	w.options = execute.Options{
		Store: w.store, Driver: w.driver, Publish: w.publish, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Lease: postgres.Lease{Owner: "test", For: time.Minute}, Budget: time.Minute,
	}
	w.sql(`INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('coder', 1, 'READY', 'd')`)
	return w
}

func (w *world) removeAll() {
	found, err := w.driver.List(context.Background())
	if err != nil {
		w.Error(err)
	}
	for _, f := range found {
		if err := w.driver.Terminate(context.Background(), sandbox.Sandbox{Name: f.Name, UID: f.UID}); err != nil {
			w.Error(err)
		}
	}
}

func (w *world) publish(_ context.Context, events ...event.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.published = append(w.published, events...)
}

// take returns what was published since the last call.
func (w *world) take() []event.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	events := w.published
	w.published = nil
	return events
}

// takeWork is take without what is said of sandboxes, beside the work.
func (w *world) takeWork() []event.Event {
	return slices.DeleteFunc(w.take(), func(e event.Event) bool { return e.Type == event.SandboxChanged })
}

func (w *world) sql(sql string, args ...any) {
	w.Helper()
	if _, err := w.store.Pool().Exec(context.Background(), sql, args...); err != nil {
		w.Fatal(err)
	}
}

func query[T any](w *world, sql string, args ...any) T {
	w.Helper()
	var v T
	if err := w.store.Pool().QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		w.Fatal(sql, err)
	}
	return v
}

// ask writes an execution as a step does, and returns its event.
func (w *world) ask(session, command string, change ...func(*harness.SandboxSpec)) event.Event {
	w.Helper()
	spec := harness.DefaultSandbox()
	for _, c := range change {
		c(&spec)
	}
	w.sql(`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state) VALUES ($1, 'coder', 'WEBHOOK', 'hook', $1, 'AWAITING_EXECUTION') ON CONFLICT DO NOTHING`, session)
	id := harness.NewExecutionID(time.Now())
	w.sql(`INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce, due_at)
		VALUES ($1, $2, 'coder', 'TOOL_CALL', $1, $3, $4, $5, 1, 'PENDING', 'nonce' || $1, now())`, id, session, command, spec, spec.Digest())
	e := event.Event{
		ID: "execution.requested:" + string(id), Type: event.ExecutionRequested, Session: harness.SessionID(session), Agent: "coder",
		Payload: event.Payload{Session: harness.SessionID(session), Execution: id},
	}
	w.sql(`INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, payload, due_at) VALUES ($1, $2, $3, $4, 'coder', $5, now() + interval '30 seconds')`,
		e.ID, e.Type, id, session, e.Payload)
	return e
}

func (w *world) deliver(e event.Event) {
	w.Helper()
	if err := execute.New(w.options).ExecutionRequested(context.Background(), e); err != nil {
		w.Errorf("delivery of %s: %v", e.ID, err)
	}
}

// deliverTwice delivers e and then again, and fails when the repeat changes the
// database, the sandboxes or what is published.
func (w *world) deliverTwice(e event.Event) []event.Event {
	w.Helper()
	w.deliver(e)
	before, published := w.dump(), w.take()
	w.deliver(e)
	if diff := cmp.Diff(before, w.dump()); diff != "" {
		w.Fatalf("a repeat of %s changed (-once +twice):\n%s", e.ID, diff)
	}
	if again := w.take(); len(again) > 0 {
		w.Fatalf("a repeat of %s published %+v", e.ID, again)
	}
	return published
}

// dump is every row that an execution touches, and every sandbox that exists.
func (w *world) dump() map[string][]string {
	w.Helper()
	all := map[string][]string{}
	for _, table := range []string{"sessions", "executions", "execution_output", "sandboxes", "outbox", "agent_execution_logs", "attachments", "attachment_placements", "session_skills", "skill_placements"} {
		var rows json.RawMessage
		if err := w.store.Pool().QueryRow(context.Background(), `SELECT COALESCE(json_agg(t::text ORDER BY t::text), '[]') FROM `+table+` t`).Scan(&rows); err != nil {
			w.Fatal(err)
		}
		var texts []string
		if err := json.Unmarshal(rows, &texts); err != nil {
			w.Fatal(err)
		}
		all[table] = texts
	}
	all["existing"] = w.existing()
	return all
}

// existing are the names of the sandboxes that the driver has.
func (w *world) existing() []string {
	w.Helper()
	found, err := w.driver.List(context.Background())
	if err != nil {
		w.Fatal(err)
	}
	var names []string
	for _, f := range found {
		names = append(names, f.Name)
	}
	slices.Sort(names)
	return names
}

// drain delivers what was published, and what that publishes, until nothing is.
func (w *world) drain() {
	w.Helper()
	for events := w.take(); len(events) > 0; events = w.take() {
		for _, e := range events {
			if e.Type == event.ExecutionRequested {
				w.deliver(e)
			}
		}
	}
}

// expect compares "STATE exit reason" of the execution.
func (w *world) expect(e event.Event, want string) {
	w.Helper()
	got := query[string](w, `SELECT concat_ws(' ', state, exit_code, NULLIF('(' || reason || ')', '()')) FROM executions WHERE execution_id = $1`, e.Payload.Execution)
	if got != want {
		w.Errorf("execution ended as %q, want %q", got, want)
	}
}

// printed is what is stored of a stream.
func (w *world) printed(e event.Event, stream string) string {
	w.Helper()
	return query[string](w, `SELECT COALESCE(convert_from(string_agg(data, ''::bytea ORDER BY start_byte), 'UTF8'), '') FROM execution_output WHERE execution_id = $1 AND stream = $2`,
		e.Payload.Execution, stream)
}

// lines are those of a file of evidence, none when there is no such file.
func (w *world) lines(name string) []string {
	w.Helper()
	text, err := os.ReadFile(filepath.Join(w.evidence, name))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		w.Fatal(err)
	}
	return strings.Fields(string(text))
}

func (w *world) touch(name string) {
	w.Helper()
	if err := os.WriteFile(filepath.Join(w.evidence, name), nil, 0o644); err != nil {
		w.Fatal(err)
	}
}

// await returns when the query yields true.
func (w *world) await(sql string, args ...any) {
	w.Helper()
	for deadline := time.Now().Add(30 * time.Second); !query[bool](w, sql, args...); {
		if time.Now().After(deadline) {
			w.Fatalf("never true: %s", sql)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// sandboxOf is the sandbox that the execution is committed to.
func (w *world) sandboxOf(e event.Event) sandbox.Sandbox {
	w.Helper()
	var sb sandbox.Sandbox
	if err := w.store.Pool().QueryRow(context.Background(), `SELECT s.sandbox_id, s.sandbox_name, s.sandbox_uid FROM sandboxes s JOIN executions e USING (sandbox_id) WHERE execution_id = $1`,
		e.Payload.Execution).Scan(&sb.ID, &sb.Name, &sb.UID); err != nil {
		w.Fatal(err)
	}
	return sb
}
