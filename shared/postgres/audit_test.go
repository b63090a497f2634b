package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// Writes are kept as they were said, whatever is in them.
func TestAudit(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	for i := range 5 {
		w, err := s.BeginWrite(ctx, postgres.Write{
			Audit: postgres.Audit{Actor: fmt.Sprint("person", i%2), Action: "update aiagents", RequestID: "r"}, Object: "a",
			Before: json.RawMessage(fmt.Sprintf(`{"n": %d, "list": ["a\u0000b"]}`, i)), After: json.RawMessage(`{"\u0000": null}`),
		})
		if err != nil || w.ID == 0 {
			t.Fatal(w, err)
		}
	}
	if _, err := s.BeginWrite(ctx, postgres.Write{Audit: postgres.Audit{Actor: "ann", Action: "delete aiagents"}, Object: "b"}); err != nil {
		t.Fatal(err)
	}
	all, err := s.ListAudit(ctx, postgres.AuditFilter{}, view.Place{}, 10)
	if err != nil || len(all) != 6 || all[0].Object != "b" || all[0].Before != nil || string(all[1].Before) != `{"n": 4, "list": ["ab"]}` || string(all[1].After) != `{"": null}` {
		t.Fatalf("%+v, %v", all, err)
	}
	next, err := s.ListAudit(ctx, postgres.AuditFilter{Actor: "person0", Object: "a", Since: time.Now().Add(-time.Hour)}, view.Place{At: all[1].CreatedAt, ID: fmt.Sprint(all[1].ID)}, 10)
	if err != nil || len(next) != 2 || next[0].ID >= all[1].ID {
		t.Errorf("%+v, %v", next, err)
	}
	_, err = s.ListAudit(ctx, postgres.AuditFilter{}, view.Place{ID: "x"}, 10)
	kindOf(t, err, harness.Invalid)
}

// What is kept elsewhere has its row before it is written; what came of it is said
// once, and a key belongs to one request until that is refused.
func TestWritesOfWhatIsElsewhere(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	ann := postgres.Audit{Actor: "ann", Action: "create aiagents", RequestID: "r1"}
	begin := func(key, digest string) postgres.Write {
		t.Helper()
		w, err := s.BeginWrite(ctx, postgres.Write{Audit: ann, Object: "a", After: json.RawMessage(`{"is": "wanted"}`), Key: key, Digest: digest, State: view.AuditDone, Reason: "no"})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	row := func(w postgres.Write) string {
		t.Helper()
		return value[string](t, s, `SELECT concat_ws(' ', state, reason, before, after) FROM audit_log WHERE audit_log_id = $1`, w.ID)
	}
	end := func(w postgres.Write, state view.AuditState, reason string) {
		t.Helper()
		w.Before, w.After, w.State, w.Reason = json.RawMessage(`{"is": "old"}`), json.RawMessage(`{"is": "made"}`), state, reason
		if err := s.EndWrite(ctx, w); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.WriteOf(ctx, "k")
	kindOf(t, err, harness.NotFound)
	first := begin("k", "d1")
	if got := row(first); got != `UNKNOWN  {"is": "wanted"}` {
		t.Errorf("before it is done: %s", got)
	}
	if again := begin("k", "d2"); again.ID != first.ID || again.Digest != "d1" || again.State != view.AuditUnknown || again.RequestID != "r1" {
		t.Errorf("the key again: %+v", again)
	}
	end(first, view.AuditUnknown, "no answer") // and later somebody knows
	end(first, view.AuditDone, "")
	end(first, view.AuditRefused, "late")
	if got := row(first); got != `DONE  {"is": "old"} {"is": "made"}` {
		t.Errorf("complete: %s", got)
	}
	if known, err := s.WriteOf(ctx, "k"); err != nil || known.ID != first.ID || known.State != view.AuditDone || string(known.After) != `{"is": "made"}` {
		t.Errorf("%+v, %v", known, err)
	}
	refused := begin("l", "d1")
	end(refused, view.AuditRefused, "too late")
	if again := begin("l", "d2"); again.ID == refused.ID || again.Digest != "d2" {
		t.Errorf("the key of what was refused: %+v", again)
	}
	if one, two := begin("", ""), begin("", ""); one.ID == two.ID {
		t.Error("what has no key is one write")
	}
	ids := make(chan int64, 10)
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() { ids <- begin("m", "d").ID })
	}
	all.Wait()
	one := <-ids
	for range 9 {
		if other := <-ids; other != one {
			t.Errorf("two writes of one key: %d and %d", one, other)
		}
	}
}

// written is one way of the API to change rows.
type written struct {
	object        string // empty: a new session
	before, after string // JSON, with ids of which only the prefix counts
	do            func(postgres.Audit) error
}

// writes makes rows, and every way to change them.
func writes(t *testing.T, s *postgres.Store) map[string]written {
	t.Helper()
	ctx := context.Background()
	code := agentText("code", "b.yaml", "")
	code.Agent.Harness = harness.HarnessSpec{Enabled: true, Type: harness.HarnessCode}
	idle := agentText("idle", "c.yaml", "")
	idle.Agent.Harness = code.Agent.Harness
	putAgents(t, s, nil, code, idle)
	run(t, s, `UPDATE agents SET halted_at = now(), halted_by = 'ben', halt_reason = 'it loops' WHERE agent_name = 'idle'`,
		`INSERT INTO workflows (workflow_name, revision, phase, digest) VALUES ('release', 1, 'READY', 'd')`)
	had := say(t, s, "code", "had", "k0").Session
	run(t, s, `UPDATE sessions SET paused_at = now(), paused_by = 'ben' WHERE chat = 'had'`)
	ended, asked := say(t, s, "code", "ended", "k1").Session, say(t, s, "code", "asked", "k2").Session
	running(t, s, asked, "call_1", "exe_1")
	c := runIn(t, s, "exe_1")
	run(t, s, `INSERT INTO approvals (approval_id, session_id, agent_name, tool_call_id, title, digest, state)
			SELECT 'apr_1', session_id, agent_name, tool_call_id, 't', 'd1', 'PENDING' FROM tool_calls JOIN sessions USING (session_id)`,
		`INSERT INTO approvals (approval_id, session_id, agent_name, title, input, digest, state, quorum)
			SELECT id, session_id, agent_name, 't', '{"tool": "executeShell"}', 'd1', 'PENDING', n FROM sessions, (VALUES ('apr_2', 2), ('apr_3', 1)) more (id, n) WHERE chat = 'asked'`,
		`UPDATE sessions SET due_at = now() + interval '1 hour' WHERE chat = 'asked'`)
	pwd := harness.ApprovalSubject{Tool: harness.ToolExecuteShell, Arguments: json.RawMessage(`{"command":"pwd"}`)}
	letter := event.Event{ID: "e1", Type: event.SessionDue, Session: asked, Payload: event.Payload{Session: asked}}
	if state, err := s.PutDeadLetter(ctx, postgres.DeadLetter{Event: letter, Destination: "d"}); err != nil || state != postgres.DeadLetterOpen {
		t.Fatal(state, err)
	}
	send := func(chat string, only harness.SessionID) func(postgres.Audit) error {
		return func(a postgres.Audit) error {
			_, _, err := s.Accept(ctx, harness.ChannelAPI, postgres.Inbound{Audit: a, Arrivals: []postgres.Arrival{{
				Account: "code", ProviderID: "k3", Chat: chat, Only: only, Message: harness.Message{Channel: harness.ChannelAPI, ChannelUserID: "ann", Text: "x"},
			}}}, "")
			return err
		}
	}
	return map[string]written{
		"start": {"", ``, `{"agent": "code", "session": "ses_", "message": "msg_"}`, send("new", "")},
		"send":  {string(asked), ``, `{"agent": "code", "session": "ses_", "message": "msg_"}`, send("asked", asked)},
		"command": {
			string(c.Sandbox.ID), ``,
			`{"agent": "code", "session": "ses_", "execution": "exe_", "state": "PENDING", "digest": "c7b68ac37f364473e922936708e7f43c293dd07b295171566c07ff5fe024fab9"}`,
			func(a postgres.Audit) error {
				_, _, _, err := s.RequestExecution(ctx, postgres.ExecutionRequest{Sandbox: c.Sandbox.ID, Command: "ls", Key: "k", Audit: a})
				return err
			},
		},
		"decide": {
			"apr_1", `{"agent": "code", "session": "ses_", "toolCall": "call_", "digest": "d1", "state": "PENDING"}`,
			`{"agent": "code", "session": "ses_", "toolCall": "call_", "digest": "d1", "state": "APPROVED"}`, func(a postgres.Audit) error {
				_, _, err := s.DecideApproval(ctx, postgres.Decision{ID: "apr_1", State: harness.ApprovalApproved, By: a.Actor, Via: harness.ChannelAPI, Reason: "secret", Audit: a})
				return err
			},
		},
		"vote": {
			"apr_2", `{"agent": "code", "session": "ses_", "digest": "d1", "state": "PENDING"}`,
			`{"agent": "code", "session": "ses_", "digest": "d1", "state": "PENDING", "decision": "APPROVED"}`, func(a postgres.Audit) error {
				_, _, err := s.DecideApproval(ctx, postgres.Decision{ID: "apr_2", State: harness.ApprovalApproved, By: a.Actor, Via: harness.ChannelAPI, Audit: a})
				return err
			},
		},
		"change and decide": {
			"apr_3", `{"agent": "code", "session": "ses_", "digest": "d1", "state": "PENDING"}`,
			`{"agent": "code", "session": "ses_", "digest": "` + pwd.Digest() + `", "state": "APPROVED", "scope": "SESSION"}`, func(a postgres.Audit) error {
				_, _, err := s.DecideApproval(ctx, postgres.Decision{
					ID: "apr_3", State: harness.ApprovalApproved, By: a.Actor, Via: harness.ChannelAPI, Digest: "d1", Arguments: pwd.Arguments, Scope: harness.GrantSession, Audit: a,
				})
				return err
			},
		},
		"replay": {
			"1", `{"event": "e1", "type": "ai.tuluat.session.due.v1", "session": "ses_", "state": "OPEN", "decidedBy": ""}`,
			`{"event": "e1", "type": "ai.tuluat.session.due.v1", "session": "ses_", "state": "REPLAYED", "decidedBy": "ann"}`, func(a postgres.Audit) error {
				_, _, err := s.ReplayDeadLetter(ctx, 1, a)
				return err
			},
		},
		"discard": {
			"1", `{"event": "e1", "type": "ai.tuluat.session.due.v1", "session": "ses_", "state": "OPEN", "decidedBy": ""}`,
			`{"event": "e1", "type": "ai.tuluat.session.due.v1", "session": "ses_", "state": "DISCARDED", "decidedBy": "ann"}`, func(a postgres.Audit) error {
				_, err := s.DiscardDeadLetter(ctx, 1, a)
				return err
			},
		},
		"terminate": {
			string(c.Sandbox.ID), `{"agent": "code", "session": "ses_", "state": "READY", "reason": ""}`,
			`{"agent": "code", "session": "ses_", "state": "TERMINATING", "reason": "` + postgres.SandboxOperator + `", "executions": ["exe_"]}`, func(a postgres.Audit) error {
				_, _, err := s.TerminateSandbox(ctx, c.Sandbox.ID, a)
				return err
			},
		},
		"halt": {
			"code", `{"halted": false}`, `{"halted": true, "haltedAt": "time", "haltedBy": "ann", "reason": "why"}`, func(a postgres.Audit) error {
				_, _, err := s.Halt(ctx, "code", a, "why")
				return err
			},
		},
		"halt all": {
			"install", `{"halted": false}`, `{"halted": true, "haltedAt": "time", "haltedBy": "ann", "reason": "why"}`, func(a postgres.Audit) error {
				_, _, err := s.Halt(ctx, "", a, "why")
				return err
			},
		},
		"resume": {
			"idle", `{"halted": true, "haltedAt": "time", "haltedBy": "ben", "reason": "it loops"}`, `{"halted": false}`, func(a postgres.Audit) error {
				_, _, err := s.Resume(ctx, "idle", a)
				return err
			},
		},
		"pause": {
			string(ended), `{"agent": "code", "state": "PENDING", "pausedBy": ""}`, `{"agent": "code", "state": "PENDING", "pausedBy": "ann"}`, func(a postgres.Audit) error {
				_, err := s.PauseSession(ctx, ended, a)
				return err
			},
		},
		"unpause": {
			string(had), `{"agent": "code", "state": "PENDING", "pausedBy": "ben"}`, `{"agent": "code", "state": "PENDING", "pausedBy": ""}`, func(a postgres.Audit) error {
				_, _, err := s.UnpauseSession(ctx, had, a)
				return err
			},
		},
		"reply": {
			string(had), ``, `{"agent": "code", "session": "ses_", "message": "msg_"}`, func(a postgres.Audit) error {
				_, _, _, err := s.Reply(ctx, postgres.PersonReply{Session: had, Text: "x", Author: a.Actor, Key: "k", Audit: a})
				return err
			},
		},
		"run": {
			"ses_run", ``, `{"agent": "code", "session": "ses_", "workflow": "release"}`, func(a postgres.Audit) error {
				_, _, _, err := s.StartRun(ctx, postgres.NewRun{ID: "ses_run", Workflow: "release", Revision: 1, Agent: "code", Key: "k", Audit: a})
				return err
			},
		},
		"cancel": {
			string(ended), `{"agent": "code", "state": "PENDING", "reason": ""}`, `{"agent": "code", "state": "CANCELLED", "reason": "cancelled by ann"}`, func(a postgres.Audit) error {
				_, _, err := s.CancelSession(ctx, ended, a)
				return err
			},
		},
	}
}

var (
	anyID     = regexp.MustCompile(`"(msg|ses|exe|call)_[0-9a-z]+"`)
	anyTime   = regexp.MustCompile(`"2[0-9]{3}-[^"]+"`)
	rowTables = []string{"agents", "switches", "steps", "replies", "workflow_starts", "approval_votes", "sessions", "messages", "inbox", "outbox", "executions", "sandboxes", "approvals", "approval_grants", "dead_letters", "tool_calls", "session_events", "agent_execution_logs", "audit_log"}
)

// alike compares JSON but for the numbers of ids, and times.
func alike(t *testing.T, want string, got json.RawMessage) string {
	t.Helper()
	var a, b any
	if want != "" {
		if err := json.Unmarshal([]byte(want), &a); err != nil {
			t.Fatal(err)
		}
	}
	if got != nil {
		if err := json.Unmarshal(anyTime.ReplaceAll(anyID.ReplaceAll(got, []byte(`"${1}_"`)), []byte(`"time"`)), &b); err != nil {
			t.Fatal(err)
		}
	}
	return cmp.Diff(a, b)
}

// Every write of rows commits with one row of the audit, that has what it was and
// what it became; the same again changes nothing, and has none.
func TestAWriteAndItsRowAreOne(t *testing.T) {
	ctx := context.Background()
	ann := postgres.Audit{Actor: "ann", Action: "do things", RequestID: "r1"}
	for name := range writes(t, postgrestest.New(t)) {
		t.Run(name, func(t *testing.T) {
			s := postgrestest.New(t)
			w := writes(t, s)[name]
			if err := w.do(ann); err != nil {
				t.Fatal(err)
			}
			rows, err := s.ListAudit(ctx, postgres.AuditFilter{}, view.Place{}, 10)
			if err != nil || len(rows) != 1 {
				t.Fatalf("%d rows, %v", len(rows), err)
			}
			got := rows[0]
			if w.object == "" {
				w.object = value[string](t, s, `SELECT session_id FROM sessions WHERE chat = 'new'`)
			}
			if got.Actor != "ann" || got.Action != "do things" || got.RequestID != "r1" || got.Object != w.object || got.State != view.AuditDone || got.Reason != "" {
				t.Errorf("%+v, want object %s", got, w.object)
			}
			if diff := alike(t, w.before, got.Before) + alike(t, w.after, got.After); diff != "" {
				t.Errorf("before and after (-want +got):\n%s", diff)
			}
			before := postgrestest.Dump(t, s, rowTables...)
			if err := w.do(ann); err != nil && harness.KindOf(err) != harness.Conflict {
				t.Error(err)
			}
			if diff := cmp.Diff(before, postgrestest.Dump(t, s, rowTables...)); diff != "" {
				t.Errorf("again (-before +after):\n%s", diff)
			}
		})
		t.Run(name+", of no API", func(t *testing.T) {
			s := postgrestest.New(t)
			before := postgrestest.Dump(t, s, rowTables...)
			if err := writes(t, s)[name].do(postgres.Audit{Actor: "ann"}); err != nil {
				t.Fatal(err)
			}
			after := postgrestest.Dump(t, s, rowTables...)
			if len(after["audit_log"]) != 0 || cmp.Equal(before, after) {
				t.Errorf("rows %v", after["audit_log"])
			}
		})
		t.Run(name+", where the row cannot be", func(t *testing.T) {
			s := postgrestest.New(t)
			w := writes(t, s)[name]
			run(t, s, `ALTER TABLE audit_log ADD CONSTRAINT nobody CHECK (actor <> 'ann')`)
			before := postgrestest.Dump(t, s, rowTables...)
			if err := w.do(ann); harness.KindOf(err) != harness.Internal {
				t.Errorf("done: %v", err)
			}
			if diff := cmp.Diff(before, postgrestest.Dump(t, s, rowTables...)); diff != "" {
				t.Errorf("a change without its row (-before +after):\n%s", diff)
			}
		})
	}
}

// To end a sandbox that ends already may end a command in it: that is a change.
func TestTerminatingWhatEndsIsRecorded(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	w := writes(t, s)["terminate"]
	run(t, s, `UPDATE sandboxes SET state = 'TERMINATING', reason = 'TTL'`)
	for range 2 {
		if err := w.do(postgres.Audit{Actor: "ann", Action: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := s.ListAudit(ctx, postgres.AuditFilter{Object: w.object}, view.Place{}, 10)
	if err != nil || len(rows) != 1 {
		t.Fatalf("%+v, %v", rows, err)
	}
	if diff := alike(t, `{"agent": "code", "session": "ses_", "state": "TERMINATING", "reason": "TTL", "executions": ["exe_"]}`, rows[0].After); diff != "" {
		t.Error(diff)
	}
	if got := value[string](t, s, `SELECT count(*) || ' ' || count(cancelled_at) FROM executions`); got != "1 1" {
		t.Errorf("commands and those that are to end: %s", got)
	}
}
