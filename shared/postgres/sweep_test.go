package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

func TestOneSweepAtATime(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	first, err := s.ClaimSweep(ctx, lease)
	if err != nil || first.Age != nil {
		t.Fatalf("first claim: %+v, %v", first, err)
	}
	if _, err := s.ClaimSweep(ctx, lease); !errors.Is(err, postgres.ErrNothingDue) {
		t.Fatalf("second claim: %v", err)
	}
	if err := s.ReportSweep(ctx, first, time.Second, map[string]postgres.Finding{"a": {Found: 2, Done: 1, Left: 1, Error: "x"}}, false); err != nil {
		t.Fatal(err)
	}
	if done := value[bool](t, s, `SELECT completed_at IS NOT NULL FROM sweeps`); done {
		t.Error("a pass that left an item out counts as full")
	}
	run(t, s, `UPDATE sweeps SET lease_until = now() - interval '1 second'`) // its process died
	second, err := s.ClaimSweep(ctx, lease)
	if err != nil || second.Token != first.Token+1 {
		t.Fatalf("claim after a death: %+v, %v", second, err)
	}
	for what, err := range map[string]error{
		"extend": s.ExtendSweep(ctx, first, lease), "report": s.ReportSweep(ctx, first, 0, nil, true), "release": s.ReleaseSweep(ctx, first),
	} {
		if !errors.Is(err, postgres.ErrLeaseLost) {
			t.Errorf("%s under the lost claim: %v", what, err)
		}
	}
	if err := errors.Join(s.ExtendSweep(ctx, second, lease), s.ReportSweep(ctx, second, 0, map[string]postgres.Finding{}, true), s.ReleaseSweep(ctx, second)); err != nil {
		t.Fatal(err)
	}
	if reports := value[int](t, s, `SELECT count(*) FROM sweep_reports`); reports != 2 {
		t.Errorf("%d reports, want 2", reports)
	}
	third, err := s.ClaimSweep(ctx, lease)
	if err != nil || third.Age == nil || *third.Age > time.Minute {
		t.Errorf("claim after a full pass: %+v, %v", third, err)
	}
}

// session makes a session of its own with the given columns.
func session(t *testing.T, s *postgres.Store, id, columns string) {
	t.Helper()
	run(t, s, fmt.Sprintf(`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state) VALUES ('%s', 'coder', 'WEBHOOK', 'hook', '%s', 'PENDING')`, id, id),
		fmt.Sprintf(`UPDATE sessions SET %s WHERE session_id = '%s'`, columns, id))
}

func TestSessionsUnheard(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	session(t, s, "ses_due", `due_at = now() - interval '21 seconds'`)
	session(t, s, "ses_fresh", `due_at = now() - interval '5 seconds'`)
	session(t, s, "ses_retry", `due_at = now() - interval '1 second', retry_at = now() - interval '1 second'`)
	session(t, s, "ses_retry_later", `due_at = now() - interval '1 hour', retry_at = now() + interval '1 hour'`)
	session(t, s, "ses_dead", `lease_owner = 'x', lease_until = now() - interval '1 second'`)
	session(t, s, "ses_leased", `due_at = now() - interval '1 hour', lease_owner = 'x', lease_until = now() + interval '1 minute'`)
	session(t, s, "ses_told", `due_at = now() - interval '1 hour', announced_at = now() - interval '5 seconds'`)
	session(t, s, "ses_nobody_heard", `due_at = now() - interval '1 hour', announced_at = now() - interval '25 seconds', announced_token = lease_token`)
	session(t, s, "ses_heard_before", `due_at = now() - interval '1 hour', announced_at = now() - interval '25 seconds', announced_token = 4, lease_token = 5`)
	session(t, s, "ses_idle", `state = 'IDLE'`)
	session(t, s, "ses_over", `state = 'COMPLETED', due_at = now() - interval '1 hour'`)
	got := map[harness.SessionID]int{}
	for range 2 { // the second finds nothing
		unheard, err := s.SessionsUnheard(ctx, 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range unheard {
			if _, twice := got[u.Session]; twice {
				t.Errorf("%s was announced twice", u.Session)
			}
			got[u.Session] = u.Attempts
			if u.Type != event.SessionDue || u.Payload.Session != u.Session || u.Agent != "coder" || u.Channel != harness.ChannelWebhook {
				t.Errorf("event %+v", u.Event)
			}
		}
	}
	want := map[harness.SessionID]int{"ses_due": 2, "ses_retry": 2, "ses_dead": 2, "ses_nobody_heard": 3, "ses_heard_before": 2}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("announced, with attempts (-want +got):\n%s", diff)
	}
}

// Whoever finishes a session while the sweep looks at it wins: the sweep's
// select and update are one statement on a locked row.
func TestTheSweepLeavesFinishedWorkAlone(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	session(t, s, "ses_1", `lease_owner = 'worker', lease_token = 7, lease_until = now() - interval '1 second'`)
	session(t, s, "ses_2", `state = 'IDLE', idle_seconds = 60, updated_at = now() - interval '1 hour'`)
	worker, err := s.Pool().Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = worker.Rollback(ctx) }()
	// The worker's last statement before its commit: it holds the rows.
	if _, err := worker.Exec(ctx, `UPDATE sessions SET state = 'IDLE', lease_owner = NULL, lease_until = NULL, due_at = NULL, updated_at = now() WHERE session_id IN ('ses_1', 'ses_2')`); err != nil {
		t.Fatal(err)
	}
	sweep := func() {
		t.Helper()
		unheard, err := s.SessionsUnheard(ctx, 10)
		if err != nil || len(unheard) != 0 {
			t.Errorf("woke %v, %v", unheard, err)
		}
		if ended, err := s.CompleteIdle(ctx, 10); err != nil || ended != 0 {
			t.Errorf("ended %d, %v", ended, err)
		}
	}
	sweep()
	if err := worker.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	sweep()
	if state := value[string](t, s, `SELECT state || ' ' || lease_token FROM sessions WHERE session_id = 'ses_1'`); state != "IDLE 7" {
		t.Errorf("the finished session is %s", state)
	}
}

func TestCompleteIdle(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	const old = `idle_seconds = 60, updated_at = now() - interval '61 seconds'`
	session(t, s, "ses_idle", `state = 'IDLE', `+old)
	session(t, s, "ses_failed", `state = 'FAILED', `+old)
	session(t, s, "ses_blocked", `state = 'BLOCKED', `+old)
	session(t, s, "ses_recent", `state = 'IDLE', idle_seconds = 60`)
	session(t, s, "ses_endless", `state = 'IDLE', idle_seconds = 0, updated_at = now() - interval '1 year'`)
	session(t, s, "ses_due", `state = 'IDLE', due_at = now(), `+old)
	session(t, s, "ses_leased", `state = 'IDLE', lease_owner = 'x', `+old)
	session(t, s, "ses_running", `state = 'RUNNING', `+old)
	session(t, s, "ses_message", `state = 'IDLE', `+old)
	run(t, s, `INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text) VALUES ('msg_1', 'ses_message', 1, 'INBOUND', 'PENDING', 'u', 't')`)
	if n, err := s.CompleteIdle(ctx, 2); err != nil || n != 2 {
		t.Errorf("a batch of 2 ended %d, %v", n, err)
	}
	if n, err := s.CompleteIdle(ctx, 100); err != nil || n != 1 {
		t.Errorf("the rest: %d, %v", n, err)
	}
	if n, err := s.CompleteIdle(ctx, 100); err != nil || n != 0 {
		t.Errorf("again: %d, %v", n, err)
	}
	rows, err := s.Pool().Query(ctx, `SELECT session_id FROM sessions WHERE state = 'COMPLETED' AND ended_at IS NOT NULL AND reason = 'idle' ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	ended, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if diff := cmp.Diff([]string{"ses_blocked", "ses_failed", "ses_idle"}, ended); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

func TestOldRows(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	session(t, s, "ses_over", `state = 'COMPLETED'`)
	session(t, s, "ses_nothing", `state = 'IDLE'`)
	session(t, s, "ses_due", `due_at = now()`)
	session(t, s, "ses_leased", `lease_owner = 'x'`)
	run(t, s,
		`INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce, ended_at)
			VALUES ('exe_over', 'ses_due', 'coder', 'API', '1', 'x', '{}', 'd', 1, 'COMPLETED', 'n', now()), ('exe_open', 'ses_due', 'coder', 'API', '2', 'x', '{}', 'd', 1, 'PENDING', 'n', NULL)`,
		`INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text) VALUES ('msg_sent', 'ses_due', 1, 'OUTBOUND', 'DONE', 'u', 't'), ('msg_open', 'ses_due', 2, 'OUTBOUND', 'DONE', 'u', 't')`,
		`INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state) VALUES ('rpl_1', 'msg_sent', 'ses_due', 1, 1, 1, 't', 'SENT'), ('rpl_2', 'msg_open', 'ses_due', 2, 1, 1, 't', 'UNKNOWN')`,
		`INSERT INTO outbox (event_id, event_type, subject, payload, due_at, created_at)
			SELECT subject, 't', subject, '{}', now(), now() - interval '1 hour' FROM unnest(ARRAY['ses_over', 'ses_nothing', 'ses_due', 'ses_leased', 'exe_over', 'exe_open', 'msg_sent', 'msg_open', 'unknown']) AS u (subject)`,
		`INSERT INTO outbox (event_id, event_type, subject, payload, due_at, created_at) VALUES ('unknown, old', 't', 'unknown', '{}', now(), now() - interval '25 hours'), ('young', 't', 'ses_over', '{}', now(), now())`,
		`INSERT INTO inbox (channel, account, provider_id, message_id, received_at) VALUES ('WEBHOOK', 'h', 'old', 'm', now() - interval '31 days'), ('WEBHOOK', 'h', 'older', 'm', now() - interval '40 days'), ('WEBHOOK', 'h', 'new', 'm', now())`,
		`INSERT INTO sweep_reports (started_at, completed_at, findings) VALUES (now(), now() - interval '8 days', '{}'), (now(), now(), '{}')`)
	inbox := func() (int, error) { return s.DeleteOldInbox(ctx, 30*24*time.Hour, 1) }
	reports := func() (int, error) { return s.DeleteOldReports(ctx, 7*24*time.Hour, 100) }
	moot := func() (int, error) { return s.DeleteMootAnnouncements(ctx, 100) }
	for i, step := range []struct {
		do   func() (int, error)
		want int
	}{{moot, 5}, {moot, 0}, {inbox, 1}, {inbox, 1}, {inbox, 0}, {reports, 1}, {reports, 0}} {
		if n, err := step.do(); err != nil || n != step.want {
			t.Errorf("step %d deleted %d, %v, want %d", i, n, err, step.want)
		}
	}
	if left := value[string](t, s, `SELECT string_agg(event_id, ' ' ORDER BY event_id) FROM outbox`); left != "exe_open msg_open ses_due ses_leased unknown young" {
		t.Errorf("announcements left: %s", left)
	}
}

func TestKeepAnnouncingCountsUntilSomebodyHears(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	e := event.Event{ID: "message.reply:msg_1", Type: event.MessageReply, Session: "ses_1", Agent: "a", Channel: harness.ChannelWebhook, Payload: event.Payload{Session: "ses_1", Message: "msg_1"}}
	for range 2 {
		if err := s.KeepAnnouncing(ctx, []event.Event{e}); err != nil {
			t.Fatal(err)
		}
	}
	for attempt := 2; attempt <= 3; attempt++ {
		run(t, s, `UPDATE outbox SET due_at = now()`)
		unheard, err := s.TakeUnheard(ctx, 10)
		if err != nil || len(unheard) != 1 || unheard[0].Attempts != attempt {
			t.Fatalf("attempt %d: %+v, %v", attempt, unheard, err)
		}
		if diff := cmp.Diff(e, unheard[0].Event); diff != "" {
			t.Error(diff)
		}
	}
	if subject := value[string](t, s, `SELECT subject FROM outbox`); subject != "msg_1" {
		t.Errorf("subject %s: the claim of a reply would not delete it", subject)
	}
}

func TestNextDue(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	next := func(want time.Duration, wantDue bool) {
		t.Helper()
		got, due, err := s.NextDue(ctx, time.Minute)
		if err != nil || due != wantDue || due && (got > want || got < want-5*time.Second) {
			t.Errorf("next due in %v, %v, %v; want %v, %v", got, due, err, want, wantDue)
		}
	}
	next(0, false)
	session(t, s, "ses_retry", `due_at = now() + interval '50 seconds', retry_at = now() + interval '50 seconds'`)
	next(50*time.Second, true)
	session(t, s, "ses_told", `due_at = now() - interval '1 hour', announced_at = now() + interval '20 seconds'`)
	next(40*time.Second, true)
	run(t, s, `UPDATE sessions SET due_at = NULL`)
	next(0, false)
	run(t, s, `INSERT INTO outbox (event_id, event_type, subject, payload, due_at) VALUES ('1', 't', 's', '{}', now() + interval '30 seconds')`)
	next(30*time.Second, true)
	run(t, s, `UPDATE outbox SET due_at = now() - interval '1 second'`)
	next(0, true)
	run(t, s, `UPDATE outbox SET due_at = now() + interval '2 hours'`)
	next(0, false)
	run(t, s, `INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text) VALUES ('msg_1', 'ses_told', 1, 'OUTBOUND', 'DONE', 'u', 't')`,
		`INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, due_at) VALUES ('rpl_1', 'msg_1', 'ses_told', 1, 1, 1, 't', 'PLANNED', now() + interval '20 seconds')`)
	next(20*time.Second, true)
	run(t, s, `INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce, due_at)
		VALUES ('exe_1', 'ses_told', 'coder', 'API', '1', 'x', '{}', 'd', 1, 'PENDING', 'n', now() + interval '10 seconds')`)
	next(10*time.Second, true)
}

func TestLogPartitionsAreMadeOnce(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	run(t, s, `INSERT INTO agent_execution_logs_overflow (agent_name, session_id, node_id, level, message, created_at) VALUES ('a', 's', '1', 'INFO', 'm', now() + interval '20 days')`)
	if made, err := s.CreateLogPartitions(ctx, 16); err != nil || made != 3 {
		t.Errorf("made %d, %v: want two more days and the overflow's", made, err)
	}
	if made, err := s.CreateLogPartitions(ctx, 16); err != nil || made != 0 {
		t.Errorf("again made %d, %v", made, err)
	}
	if moved := value[int](t, s, `SELECT count(*) FROM agent_execution_logs`); moved != 1 {
		t.Errorf("%d entries moved out of the overflow table", moved)
	}
}
