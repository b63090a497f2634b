package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// The sweep's own role may do all that the archive and forgetting need, down to
// the end of a partition, which only the table's owner may bring about.
func TestTheSweepMayArchiveAndForget(t *testing.T) {
	ctx := context.Background()
	s, err := postgres.Open(postgrestest.DSN(t), postgres.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	agent(t, s)
	session := arrive(t, s, "a")[0].Session
	run(t, s, `UPDATE sessions SET state = 'IDLE', due_at = NULL`,
		`INSERT INTO agent_execution_logs_overflow (agent_name, session_id, node_id, level, message, created_at) SELECT 'coder', session_id, '', 'INFO', 'm', now() - interval '40 days' FROM sessions`,
		`INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce, ended_at)
			SELECT 'exe_1', session_id, 'coder', 'API', '1', 'true', '{}', 'd', 1, 'COMPLETED', 'n', now() - interval '40 days' FROM sessions`,
		`INSERT INTO execution_output (execution_id, stream, start_byte, data) VALUES ('exe_1', 'stdout', 0, convert_to(repeat('x', 30000), 'UTF8'))`,
		`SET ROLE tuluat_reaper_cron`)
	if _, err := s.CreateLogPartitions(ctx, 14); err != nil {
		t.Fatal(err)
	}
	days, err := s.LogDaysDue(ctx, 10)
	if err != nil || len(days) != 1 || days[0].Agent != "coder" {
		t.Fatalf("%v, %v", days, err)
	}
	a, err := s.NextLogPart(ctx, days[0])
	if err != nil || a.Part != 1 {
		t.Fatalf("%+v, %v", a, err)
	}
	if err := s.ReadLogDay(ctx, days[0], 10, func(v view.LogEntry) (bool, error) {
		a.Oldest = postgres.LogPlace{At: v.CreatedAt, ID: v.ID}
		a.Newest, a.Entries = a.Oldest, 1
		return true, nil
	}); err != nil {
		t.Fatal(err)
	}
	a.Key, a.SHA256 = "logs/v1/entries/k", "d"
	if err := errors.Join(s.PlanLogArchive(ctx, a, []harness.SessionID{session}), s.ArchivePut(ctx, a.Key)); err != nil {
		t.Fatal(err)
	}
	if done, err := s.LogArchiveVerified(ctx, a); err != nil || !done {
		t.Fatalf("%t, %v", done, err)
	}
	empty, err := s.EmptyLogDays(ctx, 10)
	if err != nil || len(empty) != 1 {
		t.Fatalf("%v, %v", empty, err)
	}
	if err := s.DropLogDay(ctx, empty[0]); err != nil {
		t.Fatal(err)
	}
	out := postgres.OutputArchive{Key: "logs/v1/output/k", Agent: "coder", Execution: "exe_1", Stream: "stdout", End: 30000, SHA256: "d"}
	if due, err := s.OutputsDue(ctx, 10); err != nil || len(due) != 1 {
		t.Fatalf("%v, %v", due, err)
	}
	for _, err := range []error{s.PlanOutputArchive(ctx, out), s.ArchivePut(ctx, out.Key), s.OutputArchiveVerified(ctx, out.Key), s.OutputArchived(ctx, "exe_1")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	run(t, s, `RESET ROLE`)
	f, err := s.Forget(ctx, harness.ChannelWebhook, "user", postgres.Audit{Actor: "ann", Action: "forget people.tuluat.ai"})
	if err != nil {
		t.Fatal(err)
	}
	run(t, s, `SET ROLE tuluat_reaper_cron`)
	if err := s.ForgetBegin(ctx, f.ID); err != nil {
		t.Fatal(err)
	}
	if n, err := s.ForgetLogs(ctx, f.ID, 10); err != nil || n != 0 {
		t.Fatalf("%d, %v", n, err)
	}
	old, next, sessions, found, err := s.ForgetArchive(ctx, f.ID)
	if err != nil || !found || old.Key != a.Key || next.Part != 2 || len(sessions) != 1 {
		t.Fatalf("%+v, %+v, %v, %t, %v", old, next, sessions, found, err)
	}
	if err := s.ForgetReplaced(ctx, f.ID, old, ""); err != nil {
		t.Fatal(err)
	}
	if left, err := s.ForgetOutput(ctx, f.ID); err != nil || left != 1 {
		t.Fatalf("%d, %v", left, err)
	}
	keys, err := s.ArchivesToRemove(ctx, 10)
	if err != nil || len(keys) != 2 {
		t.Fatalf("%v, %v", keys, err)
	}
	for _, key := range keys {
		if err := s.ArchiveRemoved(ctx, key); err != nil {
			t.Fatal(err)
		}
	}
	if files, err := s.ForgetFiles(ctx, f.ID, 10); err != nil || len(files) != 0 {
		t.Fatalf("%v, %v", files, err)
	}
	all, err := s.ForgetSessions(ctx, f.ID, 10)
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	if err := errors.Join(s.ForgetSession(ctx, f.ID, all[0]), s.ForgetPerson(ctx, f.ID)); err != nil {
		t.Fatal(err)
	}
	if f, err = s.GetForget(ctx, f.ID); err != nil || f.State != view.ForgetDone || f.Counts["sessions"] != 1 || f.Counts["executions"] != 1 {
		t.Errorf("%+v, %v", f, err)
	}
}

// What a sandbox takes with it is said, with the bytes, in the execution and the log.
func TestLostOutputIsSaid(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	session := arrive(t, s, "a")[0].Session
	running(t, s, session, "call_1", "exe_1")
	lease := postgres.Lease{Owner: "test", For: time.Minute}
	run(t, s, `UPDATE executions SET due_at = now(), lease_owner = NULL, lease_until = NULL`)
	claim, err := s.ClaimExecution(ctx, "exe_1", lease)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.StoreOutput(ctx, claim, []postgres.OutputPiece{{Stream: "stdout", Data: []byte("0123456789")}}); err != nil {
		t.Fatal(err)
	}
	events, err := s.FinishExecution(ctx, claim, postgres.ExecutionOutcome{
		State: harness.ExecutionOutOfMemory, Lost: "the sandbox was evicted", StdoutBytes: 25, Output: []postgres.OutputPiece{{Stream: "stderr", Data: []byte("oh")}},
	})
	if err != nil || len(events) == 0 || events[0].Type != event.ExecutionFinished {
		t.Fatalf("%v, %v", events, err)
	}
	e, err := s.GetExecution(ctx, "exe_1")
	if l := e.OutputLost; err != nil || l == nil || l.Reason != "the sandbox was evicted" || l.StdoutStart != 10 || l.StdoutEnd == nil || *l.StdoutEnd != 25 || l.StderrStart != 2 || l.StderrEnd != nil {
		t.Errorf("%+v, %v", l, err)
	}
	if line := value[string](t, s, `SELECT message FROM agent_execution_logs WHERE message LIKE '%exe_1%'`); line != "command exe_1 ended as OUT_OF_MEMORY; what it printed from byte 10 of stdout and 2 of stderr on is lost: the sandbox was evicted" {
		t.Errorf("%q", line)
	}
}
