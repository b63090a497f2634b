package reap_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/archive/part"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

// secret is in everything that the person wrote or that came of it.
const secret = "mauve-4711"

// person makes conversations of a person on WEBHOOK: two alone, one of which runs
// a command, one with another person, and things beside them.
func (w *archived) person(user string) {
	w.t.Helper()
	for i, s := range []string{"ses_alone", "ses_old", "ses_shared"} {
		w.session(s, fmt.Sprintf(`state = 'IDLE', chat = 'chat %d'`, i))
		w.sql(fmt.Sprintf(`INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text, metadata) VALUES ('msg_%[1]s', '%[1]s', 1, 'INBOUND', 'DONE', '%[2]s', '%[3]s', '{"name": "%[3]s"}')`, s, user, secret),
			fmt.Sprintf(`INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text, in_reply_to) VALUES ('msg_out_%[1]s', '%[1]s', 2, 'OUTBOUND', 'DONE', '%[2]s', 'an answer', 'msg_%[1]s')`, s, user),
			fmt.Sprintf(`INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state) VALUES ('rpl_%[1]s', 'msg_out_%[1]s', '%[1]s', 2, 1, 1, 'an answer', 'SENT')`, s),
			fmt.Sprintf(`INSERT INTO attachments (attachment_id, session_id, message_id, direction, kind, path, state, object_key, file_name) VALUES ('att_%[1]s', '%[1]s', 'msg_%[1]s', 'INBOUND', 'IMAGE', '/x', 'STORED', 'media/%[1]s', '%[2]s')`, s, secret))
		w.bucket.Set("media/"+s, []byte(secret))
	}
	w.sql(`INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text) VALUES ('msg_other', 'ses_shared', 3, 'INBOUND', 'DONE', 'another', 'hello')`,
		`INSERT INTO steps (step_id, session_id, message_id, seq, text) VALUES ('stp_1', 'ses_alone', 'msg_ses_alone', 1, '`+secret+`')`,
		`INSERT INTO tool_calls (tool_call_id, step_id, session_id, seq, provider_id, name, arguments, state) VALUES ('call_1', 'stp_1', 'ses_alone', 1, 'p', 'executeShell', '`+secret+`', 'PENDING')`,
		`INSERT INTO approvals (approval_id, session_id, agent_name, tool_call_id, title, input, digest, state) VALUES ('apr_1', 'ses_alone', 'coder', 'call_1', '`+secret+`', '{}', 'd', 'PENDING')`,
		`INSERT INTO session_events (session_id, seq, kind, ref) VALUES ('ses_alone', 1, 'TURN', 'msg_ses_alone')`,
		`INSERT INTO notices (channel, account, provider_id, kind, channel_user_id, data) VALUES ('WEBHOOK', 'h', 'n1', 'EDIT', '`+user+`', '{"text": "`+secret+`"}')`,
		`INSERT INTO chats (channel, account, chat, address) VALUES ('WEBHOOK', 'hook', '`+user+`', '`+user+`')`,
		`INSERT INTO budget_usage (scope, subject, day) VALUES ('USER_DAY', 'coder WEBHOOK `+user+`', '2026-01-01'), ('USER_DAY', 'coder WEBHOOK other', '2026-01-01')`)
	// An approver was asked elsewhere.
	w.session("ses_boss", `state = 'IDLE', chat = 'boss'`)
	w.sql(`INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text) VALUES ('msg_card', 'ses_boss', 1, 'OUTBOUND', 'DONE', 'boss', 'may I `+secret+`?')`,
		`INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, kind, approval_id) VALUES ('rpl_card', 'msg_card', 'ses_boss', 1, 1, 1, 'may I `+secret+`?', 'SENT', 'CARD', 'apr_1')`)
	w.execution("exe_1", "ses_alone", `state = 'COMPLETED', ended_at = now()`)
	w.execution("exe_out", "ses_old", fmt.Sprintf(`state = 'COMPLETED', ended_at = now() - interval '40 days', stdout_bytes = %d`, 30_000))
	w.sql(fmt.Sprintf(`INSERT INTO execution_output (execution_id, stream, start_byte, data) VALUES ('exe_out', 'stdout', 0, '%s')`, output(30_000)))
	for i, s := range []string{"ses_alone", "ses_x", "ses_y", "ses_old", "ses_shared", "ses_z"} {
		text := "of " + s
		if s == "ses_alone" || s == "ses_old" {
			text = secret
		}
		for _, days := range []int{40, 2} {
			w.sql(fmt.Sprintf(`INSERT INTO agent_execution_logs_overflow (agent_name, session_id, node_id, level, message, created_at) VALUES ('coder', '%s', 'n', 'INFO', '%s', date_trunc('day', now()) - interval '%d days' + interval '%d minutes')`, s, text, days, i))
		}
	}
	// A day of which an object has nobody else's entries.
	w.sql(fmt.Sprintf(`INSERT INTO agent_execution_logs_overflow (agent_name, session_id, node_id, level, message, created_at) VALUES ('coder', 'ses_old', 'n', 'INFO', '%s', now() - interval '50 days')`, secret),
		`SELECT create_log_partitions(14)`)
}

// traces says where something of the person is, in Postgres and in the bucket.
func (w *archived) traces() []string {
	w.t.Helper()
	var found []string
	for _, table := range strings.Fields(query[string](w.world, `SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'`)) {
		if n := query[int](w.world, `SELECT count(*) FROM "`+table+`" t WHERE t::text LIKE '%`+secret+`%' OR t::text LIKE '%person 7%'`); n > 0 {
			found = append(found, fmt.Sprintf("%s %d", table, n))
		}
	}
	for _, key := range w.bucket.Keys() {
		data := w.bucket.Object(key)
		text := string(data)
		if strings.HasSuffix(key, ".ndjson.zst") {
			text = ""
			if err := part.ReadEntries(data, view.Place{}, func(v view.LogEntry) (bool, error) { text += v.Message; return true, nil }); err != nil {
				w.t.Fatal(err)
			}
		}
		if strings.Contains(text, secret) || strings.Contains(key, "/output/") {
			found = append(found, key)
		}
	}
	return found
}

func (w *archived) forget(user string) view.Forget {
	w.t.Helper()
	f, err := w.store.Forget(context.Background(), "WEBHOOK", user, postgres.Audit{Actor: "ben", Action: "forget people.tuluat.ai"})
	if err != nil {
		w.t.Fatal(err)
	}
	return f
}

// What is of one person goes, out of Postgres and the bucket, and what is of others
// stays; the report says both. Asked again, nothing is left to do.
func TestAPersonIsForgotten(t *testing.T) {
	w := newArchived(t)
	w.person("person 7")
	w.pass()
	if len(w.traces()) < 12 {
		t.Fatalf("traces before: %v", w.traces())
	}
	first := w.forget("person 7")
	if again := w.forget("person 7"); again.ID != first.ID || first.State != view.ForgetPending {
		t.Errorf("%+v, then %+v", first, again)
	}
	for range 3 {
		w.pass()
	}
	f, err := w.store.GetForget(context.Background(), first.ID)
	if err != nil || f.State != view.ForgetDone || f.EndedAt == nil || len(f.Left) < 4 {
		t.Fatalf("%+v, %v", f, err)
	}
	if left := w.traces(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	want := map[string]int64{
		"sessions": 2, "messages": 4, "replies": 2, "attachments": 2, "steps": 1, "tool_calls": 1, "approvals": 1, "approval_events": 2, "session_events": 1, "executions": 2, "execution_output": 2,
		"agent_execution_logs": 2, "notices": 1, "chats": 1, "budget_usage": 1, "emptied": 1, "shared": 1,
		"objects_deleted": 5, "objects_rewritten": 2, // three files, output, a day with no other
	}
	if diff := cmp.Diff(want, f.Counts); diff != "" {
		t.Error(diff)
	}
	found, live := w.everything()
	if diff := cmp.Diff(map[string]int{"of ses_x": 2, "of ses_y": 2, "of ses_z": 2, "of ses_shared": 2}, found); diff != "" || live != 4 {
		t.Errorf("%d live: %s", live, diff)
	}
	if text := query[string](w.world, `SELECT string_agg(text, '|' ORDER BY message_id) FROM messages`); text != "|hello|an answer|" {
		t.Errorf("messages %q", text)
	}
	second := w.forget("person 7")
	w.pass()
	if f, err := w.store.GetForget(context.Background(), second.ID); err != nil || f.State != view.ForgetDone || len(f.Counts) != 0 {
		t.Errorf("asked again: %+v, %v", f, err)
	}
}

// A person whose command runs is forgotten when that has ended.
func TestForgettingWaits(t *testing.T) {
	w := newArchived(t)
	w.person("person 7")
	w.sandbox("box", `state = 'READY', session_id = 'ses_old'`, true)
	w.objects.terminate = func(string) error { return errDown }
	f := w.forget("person 7")
	w.pass()
	w.pass()
	if f, err := w.store.GetForget(context.Background(), f.ID); err != nil || f.State != view.ForgetRunning || !strings.Contains(f.Reason, "1 commands, sandboxes or volumes") {
		t.Errorf("%+v, %v", f, err)
	}
	w.objects.terminate = nil
	w.sql(`UPDATE sandboxes SET updated_at = now() - interval '1 hour'`)
	for range 3 {
		w.pass()
	}
	if left := w.traces(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// Broken off at any request to the bucket: nothing of others is lost, and in the
// end nothing of the person is left.
func TestForgettingBrokenOffAnywhere(t *testing.T) {
	for at := 1; ; at++ {
		w := newArchived(t)
		w.person("person 7")
		w.pass()
		f := w.forget("person 7")
		n := 0
		w.bucket.Fail(func(string, string) int {
			if n++; n == at {
				return -1 // done, and nobody hears of it
			}
			if n > at {
				return http.StatusForbidden // for which the client does not wait
			}
			return 0
		})
		w.pass()
		over := n < at
		w.bucket.Fail(nil)
		for range 3 {
			w.pass()
		}
		if f, err := w.store.GetForget(context.Background(), f.ID); err != nil || f.State != view.ForgetDone {
			t.Errorf("at %d: %+v, %v", at, f, err)
		}
		if left := w.traces(); len(left) != 0 {
			t.Errorf("at %d: left %v", at, left)
		}
		found, _ := w.everything()
		if diff := cmp.Diff(map[string]int{"of ses_x": 2, "of ses_y": 2, "of ses_z": 2, "of ses_shared": 2}, found); diff != "" {
			t.Errorf("at %d: %s", at, diff)
		}
		if over {
			if at < 8 {
				t.Errorf("only %d requests", at)
			}
			return
		}
	}
}
