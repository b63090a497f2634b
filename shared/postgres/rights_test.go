package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// agent-status reads what its SQL needs of commands and sandboxes, and nothing of
// what they run, say or prove themselves by.
func TestAgentStatusReadsNoCommand(t *testing.T) {
	ctx := context.Background()
	owner, err := postgres.Open(postgrestest.DSN(t), postgres.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	run(t, owner, `SET ROLE tuluat_agent_status`)
	for sql, allowed := range map[string]bool{
		`SELECT agent_name, seq, state, started_at, created_at FROM executions`:                          true,
		`SELECT agent_name, state, spec_digest, created_at, sandbox_uid, reason, message FROM sandboxes`: true,
		`SELECT * FROM secret_checks`:         true,
		`SELECT nonce FROM executions`:        false,
		`SELECT command FROM executions`:      false,
		`SELECT e::text FROM executions e`:    false,
		`SELECT spec FROM sandboxes`:          false,
		`SELECT * FROM execution_output`:      false,
		`UPDATE executions SET state = state`: false,
	} {
		code := ""
		if _, err := owner.Pool().Exec(ctx, sql); err != nil {
			var refused *pgconn.PgError
			if !errors.As(err, &refused) {
				t.Fatal(err)
			}
			code = refused.Code
		}
		if refused := code == "42501"; refused == allowed || !refused && code != "" {
			t.Errorf("%s: %q", sql, code)
		}
	}
}

// What the functions do with statuses they may do.
func TestRolesMayKeepStatuses(t *testing.T) {
	ctx := context.Background()
	s, err := postgres.Open(postgrestest.DSN(t), postgres.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	run(t, s, `SET ROLE tuluat_agent_status`)
	text := agentText("a", "agents/a", "one", "h1")
	text.Generation = 1
	put(t, s, text)
	a := standing(t, s, "a")
	token, err := s.ClaimStatus(ctx, "a", postgres.StatusEvery)
	if err != nil {
		t.Fatal(err)
	}
	if token, err = s.RenewStatus(ctx, "a", token); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.StatusIs(ctx, []postgres.Standing{a}), s.StatusWritten(ctx, "a", token, a.Digest), s.StatusIsNot(ctx, standing(t, s, "a"))); err != nil {
		t.Fatal(err)
	}
	run(t, s, `SET ROLE tuluat_reaper_cron`)
	if names, err := s.StatusDirty(ctx, 0, 10); err != nil || len(names) != 1 || names[0] != harness.AgentName("a") {
		t.Errorf("the sweep: %v, %v", names, err)
	}
}

// management-api shows, accepts, cancels, decides and replays with its role, and
// sees nothing that proves a command's outcome; it changes no audit.
func TestManagementAPIDoesItsWork(t *testing.T) {
	ctx := context.Background()
	s, err := postgres.Open(postgrestest.DSN(t), postgres.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	put(t, s, agentText("a", "a.yaml", ""))
	first := say(t, s, "a", "one", "k1").Session
	running(t, s, first, "call_1", "exe_1")
	c := runIn(t, s, "exe_1")
	run(t, s, `INSERT INTO approvals (approval_id, session_id, agent_name, title, digest, state) SELECT 'apr_1', session_id, 'a', 't', 'd', 'PENDING' FROM sessions`)
	dead := func(e event.Event) {
		t.Helper()
		if _, err := s.PutDeadLetter(ctx, postgres.DeadLetter{Event: e, Destination: "d"}); err != nil {
			t.Fatal(err)
		}
	}
	dead(event.Event{ID: "1", Type: event.SessionDue, Payload: event.Payload{Session: first}})
	dead(event.Event{ID: "2", Type: event.ExecutionRequested, Payload: event.Payload{Execution: "exe_1"}})
	dead(event.Event{ID: "3", Type: event.MessageReply, Payload: event.Payload{Message: "msg_1"}})

	run(t, s, `SET ROLE tuluat_management_api`)
	ann := postgres.Audit{Actor: "ann", Action: "write"}
	second := say(t, s, "a", "two", "k2")
	if again := say(t, s, "a", "two", "k2"); again.Session != second.Session {
		t.Errorf("%+v", again)
	}
	refused, _, err := s.Accept(ctx, harness.ChannelAPI, postgres.Inbound{Audit: ann, Arrivals: []postgres.Arrival{{Account: "none", ProviderID: "k3", Chat: "x", Message: harness.Message{Channel: harness.ChannelAPI, Text: "x"}}}}, "")
	if err != nil || refused[0].Outcome != postgres.ArrivalUnrouted {
		t.Error(refused, err)
	}
	for what, do := range map[string]func() error{
		"sessions": func() error {
			_, err := s.ListSessions(ctx, postgres.SessionFilter{ChannelUserID: "ann"}, view.Place{}, 9)
			return err
		},
		"sessions, state": func() error {
			_, err := s.ListSessions(ctx, postgres.SessionFilter{States: harness.SessionStates()}, view.Place{}, 9)
			return err
		},
		"session":  func() error { _, err := s.GetSession(ctx, first); return err },
		"messages": func() error { _, err := s.ListMessages(ctx, first, 0, 9); return err },
		"timeline": func() error { _, _, err := s.Timeline(ctx, first, view.Place{}, 9); return err },
		"newest":   func() error { _, _, err := s.NewestTimeline(ctx, first, view.Place{}, 9); return err },
		"events":   func() error { _, err := s.SessionEvents(ctx, first, 0, 9); return err },
		"calls":    func() error { _, err := s.OpenCalls(ctx, first); return err },
		"live output": func() error {
			_, err := s.Output(ctx, []postgres.OutputPlace{{Call: "call_1", Stream: "stdout"}}, 9)
			return err
		},
		"executions": func() error {
			_, err := s.ListExecutions(ctx, postgres.ExecutionFilter{Agent: "a", Sandbox: c.Sandbox.ID}, view.Place{}, 9)
			return err
		},
		"execution": func() error { _, err := s.GetExecution(ctx, "exe_1"); return err },
		"output":    func() error { _, err := s.ReadOutput(ctx, "exe_1", "stdout", 0, 9); return err },
		"sandboxes": func() error {
			_, err := s.ListSandboxes(ctx, postgres.SandboxFilter{Agent: "a"}, view.Place{}, 9)
			return err
		},
		"command": func() error {
			_, _, _, err := s.RequestExecution(ctx, postgres.ExecutionRequest{Sandbox: c.Sandbox.ID, Command: "ls", Key: "k", Audit: ann})
			return err
		},
		"logs":      func() error { _, _, err := s.ListLogs(ctx, postgres.LogFilter{Text: "x"}, view.Place{}, 9); return err },
		"mark":      func() error { _, err := s.MarkLogs(ctx, postgres.LogMark{}); return err },
		"channels":  func() error { _, err := s.ListChannels(ctx, "", 9); return err },
		"agents":    func() error { _, err := s.AgentRows(ctx); return err },
		"approvals": func() error { _, err := s.ListApprovals(ctx, postgres.ApprovalFilter{}, view.Place{}, 9); return err },
		"decision": func() error {
			_, _, err := s.DecideApproval(ctx, postgres.Decision{ID: "apr_1", State: harness.ApprovalRejected, By: "ann", Via: harness.ChannelAPI, Audit: ann})
			return err
		},
		"halt": func() error {
			_, _, err := s.Halt(ctx, "", ann, "x")
			if err == nil {
				_, _, err = s.Resume(ctx, "", ann)
			}
			return err
		},
		"takeover": func() error {
			_, err := s.PauseSession(ctx, second.Session, ann)
			if err == nil {
				_, _, _, err = s.Reply(ctx, postgres.PersonReply{Session: second.Session, Text: "x", Author: "ann", Key: "k", Audit: ann})
			}
			if err == nil {
				_, _, err = s.UnpauseSession(ctx, second.Session, ann)
			}
			return err
		},
		"usage": func() error { _, err := s.ListModelUsage(ctx, postgres.UsageFilter{Agent: "a"}, 9); return err },
		"letters": func() error {
			_, err := s.ListDeadLetters(ctx, postgres.DeadLetterFilter{}, view.Place{}, 9)
			return err
		},
		"replay 1": func() error { _, _, err := s.ReplayDeadLetter(ctx, 1, ann); return err },
		"replay 2": func() error { _, _, err := s.ReplayDeadLetter(ctx, 2, ann); return err },
		"replay 3": func() error { _, _, err := s.ReplayDeadLetter(ctx, 3, ann); return err },
		"audit": func() error {
			w, err := s.BeginWrite(ctx, postgres.Write{Audit: ann, Key: "k", State: view.AuditDone})
			if err == nil {
				_, err = s.WriteOf(ctx, "k")
			}
			w.State = view.AuditDone
			return errors.Join(err, s.EndWrite(ctx, w))
		},
		"audits": func() error { _, err := s.ListAudit(ctx, postgres.AuditFilter{}, view.Place{}, 9); return err },
	} {
		if err := do(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.DiscardDeadLetter(ctx, 3, ann); err != nil {
		t.Error(err)
	}
	if _, _, err := s.TerminateSandbox(ctx, c.Sandbox.ID, ann); err != nil {
		t.Error(err)
	}
	for _, id := range []harness.SessionID{first, second.Session} {
		if _, _, err := s.CancelSession(ctx, id, ann); err != nil {
			t.Error(err)
		}
	}
	for _, sql := range []string{
		`SELECT nonce FROM executions`, `SELECT e::text FROM executions e`, `UPDATE audit_log SET actor = 'x'`, `UPDATE audit_log SET state = 'UNKNOWN'`, `DELETE FROM audit_log`, `UPDATE executions SET command = 'x'`,
		`UPDATE messages SET text = 'x'`, `INSERT INTO approvals SELECT * FROM approvals`, `UPDATE approvals SET title = 'x'`, `DELETE FROM approval_grants`, `UPDATE approval_votes SET decided_by = 'x'`, `SELECT * FROM agent_revisions`, `SELECT * FROM pairings`, `DELETE FROM sessions`,
		`UPDATE channel_routes SET open_to_all = true`, `UPDATE replies SET text = 'x'`, `INSERT INTO sandboxes SELECT * FROM sandboxes`,
	} {
		_, err := s.Pool().Exec(ctx, sql)
		if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg.Code != "42501" {
			t.Errorf("%s: %v", sql, err)
		}
	}
}
