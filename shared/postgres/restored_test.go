package postgres_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// What was under way when a database was saved is ended once, and told; what waits
// for a human stays, and so does what is over.
func TestRestored(t *testing.T) {
	s := postgrestest.New(t)
	agent(t, s)
	for id, columns := range map[string]string{
		"ses_turn":  `state = 'AWAITING_EXECUTION', due_at = now(), lease_owner = 'x', lease_until = now() + interval '1 hour'`,
		"ses_fresh": `state = 'PENDING', due_at = now()`,
		"ses_asks":  `state = 'AWAITING_APPROVAL'`,
		"ses_idle":  `state = 'IDLE'`,
		"ses_over":  `state = 'COMPLETED', ended_at = now()`,
		"ses_run":   `state = 'RUNNING', workflow_name = 'w', workflow_revision = 1`,
	} {
		if id == "ses_run" {
			run(t, s, `INSERT INTO workflows (workflow_name, revision, phase, digest, generation) VALUES ('w', 1, 'READY', 'd', 1)`, `INSERT INTO workflow_revisions (workflow_name, revision, spec) VALUES ('w', 1, '{}')`)
		}
		session(t, s, id, columns)
	}
	const message = `INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text) VALUES `
	run(t, s,
		`UPDATE sessions SET message_seq = 10, event_seq = 10`,
		message+`('msg_1', 'ses_turn', 1, 'INBOUND', 'RUNNING', 'u', 't'), ('msg_2', 'ses_turn', 2, 'INBOUND', 'PENDING', 'u', 't'), ('msg_3', 'ses_fresh', 1, 'INBOUND', 'PENDING', 'u', 't')`,
		message+`('msg_4', 'ses_asks', 1, 'INBOUND', 'RUNNING', 'u', 't'), ('msg_5', 'ses_run', 1, 'INBOUND', 'RUNNING', 'u', 't'), ('msg_6', 'ses_idle', 1, 'INBOUND', 'DONE', 'u', 't')`,
		message+`('msg_7', 'ses_idle', 2, 'OUTBOUND', 'DONE', 'u', 't')`,
		`INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, due_at) VALUES ('rpl_1', 'msg_7', 'ses_idle', 2, 1, 2, 't', 'SENT', NULL), ('rpl_2', 'msg_7', 'ses_idle', 2, 2, 2, 't', 'PLANNED', now())`,
		`INSERT INTO steps (step_id, session_id, message_id, seq, text) VALUES ('stp_1', 'ses_turn', 'msg_1', 1, '')`,
		`INSERT INTO tool_calls (tool_call_id, step_id, session_id, seq, provider_id, name, arguments, state, result, ended_at) VALUES
			('tlc_1', 'stp_1', 'ses_turn', 1, 'a', 'executeShell', '{}', 'DONE', 'r', now()), ('tlc_2', 'stp_1', 'ses_turn', 2, 'b', 'executeShell', '{}', 'RUNNING', NULL, NULL)`,
		`INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce, ended_at) VALUES
			('exe_1', 'ses_turn', 'coder', 'TOOL_CALL', 'tlc_1', 'x', '{}', 'd', 1, 'COMPLETED', 'n', now()), ('exe_2', 'ses_turn', 'coder', 'TOOL_CALL', 'tlc_2', 'x', '{}', 'd', 1, 'PENDING', 'n', NULL)`,
		`INSERT INTO outbox (event_id, event_type, subject, payload, due_at) VALUES ('e', 't', 'ses_turn', '{}', now())`)
	counts := func() string {
		t.Helper()
		return value[string](t, s, `SELECT string_agg(what || ' ' || n, ', ' ORDER BY what) FROM restored()`)
	}
	if got, want := counts(), "executions 1, messages 3, replies 1, runs 1, sessions 2"; got != want {
		t.Errorf("ended %s, want %s", got, want)
	}
	want := strings.TrimSpace(`
answered msg_1
answered msg_2
answered msg_3
exe_1 COMPLETED
exe_2 UNKNOWN
msg_1 DONE CANCELLED
msg_2 DONE
msg_3 DONE
msg_4 RUNNING
msg_5 DONE CANCELLED
msg_6 DONE
rpl_1 SENT
rpl_2 UNKNOWN due
ses_asks AWAITING_APPROVAL
ses_fresh IDLE
ses_idle IDLE
ses_over COMPLETED
ses_run CANCELLED
ses_turn IDLE
tlc_1 DONE
tlc_2 FAILED`)
	const all = `SELECT string_agg(line, E'\n' ORDER BY line COLLATE "C") FROM (
		SELECT 'answered ' || in_reply_to AS line FROM messages WHERE in_reply_to IS NOT NULL AND text LIKE '%restored to an earlier moment%'
		UNION ALL SELECT execution_id || ' ' || state FROM executions
		UNION ALL SELECT concat_ws(' ', message_id, state, run_state) FROM messages WHERE direction = 'INBOUND'
		UNION ALL SELECT concat_ws(' ', reply_id, state, CASE WHEN due_at IS NOT NULL THEN 'due' END) FROM replies WHERE reply_id LIKE 'rpl_%' AND reply_id NOT LIKE '%x'
		UNION ALL SELECT session_id || ' ' || state FROM sessions WHERE due_at IS NULL AND lease_owner IS NULL
		UNION ALL SELECT tool_call_id || ' ' || state FROM tool_calls) x`
	if diff := cmp.Diff(want, value[string](t, s, all)); diff != "" {
		t.Error(diff)
	}
	if n := value[int](t, s, `SELECT count(*) FROM outbox WHERE event_id = 'e'`); n != 0 {
		t.Error("an announcement of then is left")
	}
	if n := value[int](t, s, `SELECT count(*) FROM replies WHERE reply_id LIKE '%x' AND state = 'PLANNED'`); n != 3 {
		t.Errorf("%d people are to be told, want 3", n)
	}
	if n := value[int](t, s, `SELECT count(*) FROM audit_log WHERE action = 'restore'`); n != 1 {
		t.Errorf("%d entries of the audit, want 1", n)
	}
	if got, want := counts(), "executions 0, messages 0, replies 0, runs 0, sessions 0"; got != want {
		t.Errorf("a second time ended %s, want %s", got, want)
	}
	if diff := cmp.Diff(want, value[string](t, s, all)); diff != "" {
		t.Error("a second time: ", diff)
	}
}
