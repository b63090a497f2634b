package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// value reads one value of the database.
func value[T any](t *testing.T, s *postgres.Store, sql string, args ...any) (v T) {
	t.Helper()
	if err := s.Pool().QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func run(t *testing.T, s *postgres.Store, sqls ...string) {
	t.Helper()
	for _, sql := range sqls {
		if _, err := s.Pool().Exec(context.Background(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// A dead letter marks the row whose work it announced, or is moot because that
// work is done, for each kind of work.
func TestDeadLettersByKindOfWork(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	accepted := arrive(t, s, "a")
	session, message := accepted[0].Session, accepted[0].Message
	run(t, s,
		`INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text) VALUES ('msg_out', '`+string(session)+`', 99, 'OUTBOUND', 'DONE', 'u', 'x')`,
		`INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state) VALUES ('rpl_1', 'msg_out', '`+string(session)+`', 99, 1, 2, 'x', 'SENT'),
			('rpl_2', 'msg_out', '`+string(session)+`', 99, 2, 2, 'x', 'PLANNED')`,
		`INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce)
			VALUES ('exe_1', '`+string(session)+`', 'coder', 'API', '1', 'true', '{}', 'd', 1, 'PENDING', 'n')`)
	tests := []struct {
		what   string
		event  event.Event
		marked string // SQL: how many rows are marked while the work is open
		finish string // SQL: the work is done
	}{
		{
			"a message",
			event.Event{ID: "message.received:1", Type: event.MessageReceived, Session: session, Payload: event.Payload{Session: session, Message: message}},
			`SELECT count(*) FROM sessions WHERE dead_lettered_at IS NOT NULL`, `UPDATE sessions SET due_at = NULL, state = 'IDLE', dead_lettered_at = NULL`,
		},
		{
			"a command",
			event.Event{ID: "execution.requested:1", Type: event.ExecutionRequested, Session: session, Payload: event.Payload{Session: session, Execution: "exe_1"}},
			`SELECT count(*) FROM executions WHERE dead_lettered_at IS NOT NULL`, `UPDATE executions SET state = 'CANCELLED', ended_at = now(), dead_lettered_at = NULL`,
		},
		{
			"a reply",
			event.Event{ID: "message.reply:1", Type: event.MessageReply, Session: session, Payload: event.Payload{Session: session, Message: "msg_out"}},
			`SELECT count(*) FROM replies WHERE dead_lettered_at IS NOT NULL AND reply_id = 'rpl_2'`, `UPDATE replies SET state = 'SENT', dead_lettered_at = NULL`,
		},
		{
			"a session",
			event.Event{ID: "session.due:1", Type: event.SessionDue, Session: session, Payload: event.Payload{Session: session}},
			`SELECT count(*) FROM sessions WHERE dead_lettered_at IS NOT NULL`, `UPDATE sessions SET due_at = NULL, dead_lettered_at = NULL`,
		},
	}
	for _, test := range tests {
		letter := postgres.DeadLetter{Event: test.event, Destination: "http://x", StatusCode: 503, Cause: "busy"}
		if test.event.Type == event.SessionDue {
			run(t, s, `UPDATE sessions SET due_at = now()`)
		}
		if state, err := s.PutDeadLetter(ctx, letter); err != nil || state != postgres.DeadLetterOpen {
			t.Fatalf("%s, open work: %v, %v", test.what, state, err)
		}
		if n := value[int](t, s, test.marked); n != 1 {
			t.Errorf("%s: %d rows marked, want 1", test.what, n)
		}
		first := value[time.Time](t, s, `SELECT max(d) FROM (SELECT dead_lettered_at FROM sessions UNION ALL SELECT dead_lettered_at FROM executions UNION ALL SELECT dead_lettered_at FROM replies) x (d)`)
		if _, err := s.PutDeadLetter(ctx, letter); err != nil {
			t.Fatal(err)
		}
		if again := value[time.Time](t, s, `SELECT max(d) FROM (SELECT dead_lettered_at FROM sessions UNION ALL SELECT dead_lettered_at FROM executions UNION ALL SELECT dead_lettered_at FROM replies) x (d)`); !again.Equal(first) {
			t.Errorf("%s: a repeat moved the mark", test.what)
		}
		run(t, s, test.finish)
		if state, err := s.PutDeadLetter(ctx, letter); err != nil || state != postgres.DeadLetterMoot {
			t.Fatalf("%s, work done: %v, %v", test.what, state, err)
		}
		if n := value[int](t, s, test.marked); n != 0 {
			t.Errorf("%s: finished work was marked", test.what)
		}
		if times := value[int](t, s, `SELECT times FROM dead_letters WHERE event_id = $1`, test.event.ID); times != 3 {
			t.Errorf("%s: counted %d times, want 3 in one row", test.what, times)
		}
	}
}

func TestDeadLettersWithoutWork(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	for what, test := range map[string]struct {
		event event.Event
		want  postgres.DeadLetterState
	}{
		"a hint":                  {event.Event{ID: "1", Type: event.AgentStatusChanged, Agent: "a"}, postgres.DeadLetterMoot},
		"a row nobody knows":      {event.Event{ID: "2", Type: event.SessionDue, Payload: event.Payload{Session: "ses_none"}}, postgres.DeadLetterOpen},
		"a payload without ids":   {event.Event{ID: "3", Type: event.ExecutionRequested}, postgres.DeadLetterOpen},
		"work of a later release": {event.Event{ID: "4", Type: event.ApprovalRequested}, postgres.DeadLetterOpen},
		"a ping":                  {event.Event{ID: "5", Type: event.Ping}, postgres.DeadLetterMoot},
		"another ping":            {event.Event{ID: "6", Type: event.Ping}, postgres.DeadLetterMoot},
		"hostile text":            {event.Event{ID: "7\x00\xff" + strings.Repeat("x", 1<<20), Type: event.SessionDue, Payload: event.Payload{Session: "ses_none"}}, postgres.DeadLetterOpen},
	} {
		state, err := s.PutDeadLetter(ctx, postgres.DeadLetter{Event: test.event, Destination: "d\x00", Cause: "\xff\x00" + strings.Repeat("c", 1<<20)})
		if err != nil || state != test.want {
			t.Errorf("%s: %v, %v, want %v", what, state, err, test.want)
		}
	}
	if n := value[int](t, s, `SELECT count(*) FROM dead_letters WHERE event_type = $1`, event.Ping); n != 1 {
		t.Errorf("%d rows for the pings of a source, want 1", n)
	}
}

func TestDiscardedStaysDiscarded(t *testing.T) {
	s := postgrestest.New(t)
	letter := postgres.DeadLetter{Event: event.Event{ID: "1", Type: event.SessionDue}, Destination: "d"}
	put := func(want postgres.DeadLetterState) {
		t.Helper()
		if state, err := s.PutDeadLetter(context.Background(), letter); err != nil || state != want {
			t.Errorf("got %v, %v, want %v", state, err, want)
		}
	}
	put(postgres.DeadLetterOpen)
	run(t, s, `UPDATE dead_letters SET state = 'DISCARDED'`)
	put(postgres.DeadLetterDiscarded)
	run(t, s, `UPDATE dead_letters SET state = 'REPLAYED'`)
	put(postgres.DeadLetterOpen) // it failed again
}

func TestALetterThatCannotBeStoredIsInvalid(t *testing.T) {
	s := postgrestest.New(t)
	letter := postgres.DeadLetter{Event: event.Event{ID: "1", Type: event.SessionDue, Payload: event.Payload{Session: "a\x00b"}}, Destination: "d"}
	if _, err := s.PutDeadLetter(context.Background(), letter); harness.KindOf(err) != harness.Invalid {
		t.Errorf("got %v, want Invalid: the broker must not try again", err)
	}
}
