package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// open begins a transaction whose time is now and that ends with the test.
func open(t *testing.T, s *postgres.Store) pgx.Tx {
	t.Helper()
	tx, err := s.Pool().Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	inside(t, tx, `SELECT now()`)
	return tx
}

func inside(t *testing.T, tx pgx.Tx, sql string, args ...any) {
	t.Helper()
	if _, err := tx.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// What is committed when some pages are read already, by a transaction that began
// before them, is on a later page, whatever kind it is of.
func TestTheTimelineHasWhatIsCommittedLate(t *testing.T) {
	ctx := context.Background()
	for kind, late := range map[view.EntryKind]string{
		view.EntryMessage: `WITH n AS (UPDATE sessions SET message_seq = message_seq + 1 WHERE session_id = $1 RETURNING message_seq)
			INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text) SELECT 'late', $1, message_seq, 'INBOUND', 'PENDING', 'user', '' FROM n`,
		view.EntryStep: `WITH n AS (UPDATE sessions SET step_seq = step_seq + 1 WHERE session_id = $1 RETURNING step_seq)
			INSERT INTO steps (step_id, session_id, message_id, seq, text) SELECT 'late', $1, (SELECT min(message_id) FROM messages), step_seq, '' FROM n`,
		view.EntryToolCall: `INSERT INTO tool_calls (tool_call_id, step_id, session_id, seq, provider_id, name, arguments, state)
			SELECT 'late', step_id, $1, 7, 'p', 'n', '{}', 'PENDING' FROM steps`,
		view.EntryExecution: `INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce)
			SELECT 'late', $1, agent_name, 'API', 'k', 'true', spec, spec_digest, 1, 'PENDING', 'n' FROM executions`,
		view.EntryVisit:     `INSERT INTO node_visits (visit_id, session_id, seq, node_id, visit, state) VALUES ('late', $1, 1, 'n', 1, 'PENDING')`,
		view.EntryApproval:  `INSERT INTO approvals (approval_id, session_id, agent_name, title, digest, state) VALUES ('late', $1, 'coder', 't', 'd', 'PENDING')`,
		view.EntryGuardrail: `INSERT INTO guardrail_verdicts (guardrail_verdict_id, session_id, agent_name, stage, guardrail, action, verdict) VALUES ('late', $1, 'coder', 'INPUT', 'g', 'warn', 'HIT')`,
	} {
		t.Run(string(kind), func(t *testing.T) {
			s := postgrestest.New(t)
			agent(t, s)
			session := arrive(t, s, "a")[0].Session
			tx := open(t, s)
			running(t, s, session, "call_1", "exe_1")
			run(t, s, `INSERT INTO approvals (approval_id, session_id, agent_name, title, digest, state) SELECT 'apr_1', session_id, 'coder', 't', 'd', 'PENDING' FROM sessions`)
			arrive(t, s, "b")
			arrive(t, s, "c")
			// The last of these is newer than tx.
			read, next, err := s.Timeline(ctx, session, view.Place{}, 6)
			if err != nil || len(read) != 6 || next.ID == "" {
				t.Fatalf("%d entries, next %q, %v", len(read), next.ID, err)
			}
			inside(t, tx, `SELECT 1 FROM sessions WHERE session_id = $1 FOR UPDATE`, session)
			inside(t, tx, late, session)
			if rest := timelineFrom(t, s.Timeline, session, next, 1); len(rest) != 1 {
				t.Errorf("before it is committed: %+v", rest)
			}
			if err := tx.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			rest := timelineFrom(t, s.Timeline, session, next, 1)
			at := slices.IndexFunc(rest, func(e view.Entry) bool { return e.ID == "late" })
			if len(rest) != 2 || at < 0 || rest[at].Kind != kind || !rest[at].At.Before(read[5].At) {
				t.Errorf("behind what was read: %+v, want late and the last message", rest)
			}
		})
	}
}

// Calls are numbered by their steps, so that the number of one is soon beyond 32
// bits; the pages behind it are there.
func TestTheTimelineOfAVeryLongSession(t *testing.T) {
	s := postgrestest.New(t)
	agent(t, s)
	session := arrive(t, s, "a")[0].Session
	running(t, s, session, "call_1", "exe_1")
	run(t, s, `UPDATE steps SET seq = 3000000`)
	run(t, s, `INSERT INTO tool_calls (tool_call_id, step_id, session_id, seq, provider_id, name, arguments, state) SELECT 'call_2', step_id, session_id, 7, 'p', 'n', '{}', 'PENDING' FROM steps`)
	whole := timelineFrom(t, s.Timeline, session, view.Place{}, 100)
	single := timelineFrom(t, s.Timeline, session, view.Place{}, 1)
	if len(whole) < 4 || !slices.EqualFunc(whole, single, func(a, b view.Entry) bool { return a.ID == b.ID }) {
		t.Errorf("on one page %+v, on pages of one %+v", whole, single)
	}
}

// Messages are numbered under their session's lock: their list has what is
// committed late behind what was read.
func TestMessagesHaveWhatIsCommittedLate(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	session := arrive(t, s, "a")[0].Session
	tx := open(t, s)
	arrive(t, s, "b")
	read, err := s.ListMessages(ctx, session, 0, 10)
	if err != nil || len(read) != 2 {
		t.Fatal(read, err)
	}
	inside(t, tx, `WITH n AS (UPDATE sessions SET message_seq = message_seq + 1 RETURNING session_id, message_seq)
		INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text) SELECT 'msg_', session_id, message_seq, 'INBOUND', 'PENDING', 'user', '' FROM n`)
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	rest, err := s.ListMessages(ctx, session, read[1].Seq, 10)
	if err != nil || len(rest) != 1 || rest[0].ID != "msg_" || !rest[0].CreatedAt.Before(read[1].CreatedAt) {
		t.Errorf("%+v, %v", rest, err)
	}
}

const logLine = `SELECT log_entry('coder', 'ses', '', 'INFO', $1, '')`

// Who follows the log by its marks gets every entry, also of a transaction that is
// open for many looks, and does not read further and further back.
func TestFollowersOfTheLogLoseNothing(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	execSQL(t, s, logLine, "first")
	var mark postgres.LogMark
	seen := map[string]int{}
	look := func() (found []string) {
		t.Helper()
		next, err := s.MarkLogs(ctx, mark)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := postgres.ParseLogMark(next.String()); err != nil || again != next {
			t.Fatalf("%+v is read as %+v, %v", next, again, err)
		}
		entries, _, err := s.ListLogs(ctx, postgres.LogFilter{Since: mark.Settled}, view.Place{}, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			found = append(found, e.Message)
			seen[e.Message]++
		}
		if next.Settled.Before(mark.Settled) {
			t.Errorf("settled at %s, and at %s before", next.Settled, mark.Settled)
		}
		mark = next
		return found
	}
	look()
	long := open(t, s)
	begun := value[time.Time](t, s, `SELECT clock_timestamp()`)
	inside(t, long, logLine, "late")
	for i := range 5 {
		execSQL(t, s, logLine, fmt.Sprint("new", i))
		found := look()
		if !slices.Contains(found, fmt.Sprint("new", i)) || slices.Contains(found, "late") {
			t.Errorf("look %d: %v", i, found)
		}
	}
	if mark.Settled.After(begun) {
		t.Errorf("settled at %s, while a transaction of %s is open", mark.Settled, begun)
	}
	if err := long.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if look(); seen["late"] != 1 {
		t.Errorf("the late entry was seen %d times", seen["late"])
	}
	// Transactions of other databases of the server are waited for too.
	for end := time.Now().Add(time.Minute); !mark.Settled.After(begun); look() {
		if time.Now().After(end) {
			t.Fatalf("it has ended long ago, and what is older than %s is settled", time.Since(mark.Settled))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// An entry is of the time at which it is written, not of its transaction's begin,
// which may be older than what is settled.
func TestALogEntryIsNotOlderThanItsTransaction(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	tx := open(t, s)
	var mark postgres.LogMark
	for range 3 {
		var err error
		if mark, err = s.MarkLogs(ctx, mark); err != nil {
			t.Fatal(err)
		}
	}
	inside(t, tx, logLine, "written late")
	inside(t, tx, logLine, "and later")
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if !value[bool](t, s, `SELECT min(created_at) > $1 AND min(created_at) < max(created_at) FROM agent_execution_logs`, mark.At) {
		t.Error("an entry is older than the mark that came before it")
	}
}

func TestMarksOfTheLog(t *testing.T) {
	now := time.Now().Truncate(time.Microsecond).UTC()
	for _, m := range []postgres.LogMark{{}, {At: now, Number: 7}, {Settled: now.Add(-time.Second), At: now, Number: 1 << 60}} {
		if m.At.IsZero() {
			if got, err := postgres.ParseLogMark(""); err != nil || got != m {
				t.Errorf("no mark: %+v, %v", got, err)
			}
			continue
		}
		if got, err := postgres.ParseLogMark(m.String()); err != nil || got != m {
			t.Errorf("%s: %+v, %v", m, got, err)
		}
	}
	for _, bad := range []string{"x", "1.2", "1.2.3.4", "-1.2.3", "1.-2.3", "01.2.3", "1. 2.3", "+1.2.3", "99999999999999999999.2.3", "999999999999999999.2.3", "1.2.x"} {
		if m, err := postgres.ParseLogMark(bad); harness.KindOf(err) != harness.Invalid {
			t.Errorf("%q: %+v, %v", bad, m, err)
		}
	}
}
