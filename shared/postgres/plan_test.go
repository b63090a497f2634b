package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// What a claim reads does not grow with what waits elsewhere, also when the last
// statistics are of a time at which nothing waited: those that are small then, or
// were, are no way to one row.
func TestClaimsReadTheirSessionAlone(t *testing.T) {
	const others, claims, mostRows = 3000, 20, 200
	ctx := t.Context()
	s := postgrestest.New(t)
	agent(t, s)
	inOne := func(statements ...string) {
		conn, err := s.Pool().Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		for _, sql := range append([]string{`SET session_replication_role = replica`, `SET statement_timeout = 0`}, append(statements, `RESET ALL`)...) {
			if _, err := conn.Exec(ctx, sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	many := func(from, to int, session, message string) []string {
		return []string{
			fmt.Sprintf(`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state, message_seq, due_at) SELECT 'ses_' || n, 'coder', 'WEBHOOK', 'a', n::text, '%s', 2, CASE WHEN '%[1]s' = 'PENDING' THEN now() END FROM generate_series(%d, %d) n`, session, from, to),
			fmt.Sprintf(`INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text) SELECT 'msg_' || n, 'ses_' || n, 1, 'INBOUND', '%s', 'u', 't' FROM generate_series(%d, %d) n`, message, from, to),
			fmt.Sprintf(`INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text) SELECT 'out_' || n, 'ses_' || n, 2, 'OUTBOUND', 'DONE', 'u', 't' FROM generate_series(%d, %d) n`, from, to),
			fmt.Sprintf(`INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, due_at) SELECT 'rpl_' || n, 'out_' || n, 'ses_' || n, 2, 1, 1, 't', CASE WHEN '%s' = 'PENDING' THEN 'PLANNED' ELSE 'SENT' END, CASE WHEN '%[1]s' = 'PENDING' THEN now() END FROM generate_series(%d, %d) n`, message, from, to),
		}
	}
	inOne(append(many(1, 20_000, "IDLE", "DONE"), `ALTER TABLE sessions SET (autovacuum_enabled = off)`, `ALTER TABLE messages SET (autovacuum_enabled = off)`,
		`ALTER TABLE replies SET (autovacuum_enabled = off)`, `ALTER TABLE outbox SET (autovacuum_enabled = off)`, `VACUUM ANALYZE`)...)
	inOne(append(many(20_001, 20_000+others, "PENDING", "PENDING"), fmt.Sprintf(
		`INSERT INTO outbox (event_id, event_type, subject, payload, due_at) SELECT 'e' || n, 't', CASE n %% 2 WHEN 0 THEN 'ses_' ELSE 'out_' END || n, '{}', now() FROM generate_series(20001, %d) n`, 20_000+others))...)
	read := func() (rows int64) {
		t.Helper()
		conns := s.Pool().AcquireAllIdle(ctx)
		for _, conn := range conns {
			if _, err := conn.Exec(ctx, `SELECT pg_stat_force_next_flush()`); err != nil {
				t.Fatal(err)
			}
		}
		for _, conn := range conns {
			conn.Release()
		}
		return value[int64](t, s, `SELECT sum(seq_tup_read + COALESCE(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables WHERE relname IN ('sessions', 'messages', 'replies', 'outbox')`)
	}
	lease := postgres.Lease{Owner: "o", For: time.Minute}
	for what, claim := range map[string]func(harness.SessionID) error{
		"session": func(id harness.SessionID) error { _, err := s.ClaimSession(ctx, id, lease); return err },
		"reply": func(id harness.SessionID) error {
			_, err := s.ClaimReply(ctx, id, postgres.ReplyLease{Lease: lease})
			return err
		},
	} {
		before := read()
		for n := range claims { // of a connection the later ones have a plan that is kept
			if err := claim(harness.SessionID(fmt.Sprint("ses_", 20_001+n))); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		if rows := (read() - before) / claims; rows > mostRows {
			t.Errorf("to claim a %s reads %d rows beside %d that wait elsewhere, want at most %d", what, rows, others, mostRows)
		} else if rows == 0 {
			t.Errorf("to claim a %s reads nothing: that is not measured", what)
		}
	}
}
