package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// load fills an empty, migrated database by statements that each make a whole
// set of rows. References are not checked meanwhile: the statements keep them.
func load(ctx context.Context, dsn string, o options) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, s := range []struct{ what, sql string }{
		{"", `SET session_replication_role = replica; SET synchronous_commit = off; SET timezone = 'UTC'`},
		{"", idSQL},
		{"agents", agentsSQL},
		{"sessions", fmt.Sprintf(sessionsSQL, o.sessions)},
		{"messages", messagesSQL},
		{"steps and calls", stepsSQL},
		{"sandboxes and executions", executionsSQL},
		{"a session of 25,000 turns", largeSQL},
		{"approvals, dead letters, audit", restSQL},
	} {
		if err := step(ctx, conn, s.what, s.sql); err != nil {
			return err
		}
	}
	if err := step(ctx, conn, "", dropLogIndexes); err != nil {
		return err
	}
	for day := range logDays {
		if err := step(ctx, conn, fmt.Sprintf("log entries, day %d of %d", day+1, logDays), fmt.Sprintf(logsSQL, logDays-1-day, o.logs/logDays)); err != nil {
			return err
		}
	}
	if err := step(ctx, conn, "indexes of log entries", createLogIndexes); err != nil {
		return err
	}
	return step(ctx, conn, "statistics", `VACUUM ANALYZE`)
}

const logDays = 30

// Ten million rows are faster in without their indexes, which are then as the
// migrations make them.
const (
	dropLogIndexes   = `DROP INDEX agent_execution_logs_agent, agent_execution_logs_session, agent_execution_logs_newest, agent_execution_logs_warnings`
	createLogIndexes = `
SET maintenance_work_mem = '512MB';
CREATE INDEX agent_execution_logs_agent ON agent_execution_logs (agent_name, created_at);
CREATE INDEX agent_execution_logs_session ON agent_execution_logs (session_id, created_at);
CREATE INDEX agent_execution_logs_newest ON agent_execution_logs (created_at, log_id);
CREATE INDEX agent_execution_logs_warnings ON agent_execution_logs (agent_name, created_at, log_id) WHERE level IN ('WARN', 'ERROR')`
)

func step(ctx context.Context, conn *pgx.Conn, what, sql string) error {
	begun := time.Now()
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if what != "" {
		say("  %s: %s", what, time.Since(begun).Round(100*time.Millisecond))
	}
	return nil
}

// idSQL makes ids of the form that harness.NewID gives: they sort by time.
const idSQL = `
CREATE FUNCTION made_id(prefix text, at timestamptz, n text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT prefix || '_' || string_agg(substr('0123456789abcdefghjkmnpqrstvwxyz', ((ms >> shift) & 31)::int + 1, 1), '' ORDER BY shift DESC)
           || substr('048cgmrw', (min(ms) & 7)::int + 1, 1) || substr(md5(prefix || n), 1, 16)
    FROM (SELECT (extract(epoch FROM at) * 1000)::bigint AS ms) t, generate_series(3, 43, 5) AS shift
$$`

// agentsSQL: 40 agents. An account of each channel was never used.
const agentsSQL = `
INSERT INTO agents (agent_name, revision, phase, digest, generation) SELECT 'agent-' || to_char(n, 'FM00'), 1, 'READY', n::text, 1 FROM generate_series(0, 39) n;
INSERT INTO agent_revisions (agent_name, revision, spec) SELECT agent_name, 1, jsonb_build_object('name', agent_name) FROM agents;
INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all)
    SELECT 'API', agent_name, agent_name, '{}'::jsonb, true FROM agents
    UNION ALL SELECT 'WEBHOOK', 'hook-' || n, 'agent-' || to_char(n, 'FM00'), '{}', true FROM generate_series(0, 19) n
    UNION ALL SELECT 'WHATSAPP', 'number-' || n, 'agent-' || to_char(20 + n, 'FM00'), '{}', true FROM generate_series(0, 4) n
    UNION ALL SELECT 'TELEGRAM', 'bot-' || n, 'agent-' || to_char(25 + n, 'FM00'), '{}', true FROM generate_series(0, 4) n`

// sessionsSQL: over 90 days, the newest open. Half belong to the first three
// agents, agent-39 has one in 10,000. Telegram has not been used for 60 days.
const sessionsSQL = `
CREATE TABLE made AS
SELECT n, now() - n * interval '90 days' / %[1]d AS at, made_id('ses', now() - n * interval '90 days' / %[1]d, n::text) AS session_id,
       CASE WHEN n %% 10000 = 7 THEN 39 WHEN n %% 2 = 0 THEN n %% 3 ELSE (n::bigint * 7919) %% 39 END AS agent,
       CASE WHEN n %% 10 < 4 THEN 'API' WHEN n %% 10 < 7 THEN 'WHATSAPP' WHEN n %% 10 < 9 OR n < %[1]d * 2 / 3 THEN 'WEBHOOK' ELSE 'TELEGRAM' END AS channel,
       CASE WHEN n <= 200 THEN 'RUNNING' WHEN n <= 500 THEN 'PENDING' WHEN n <= 1500 THEN 'AWAITING_EXECUTION' WHEN n <= 2000 THEN 'AWAITING_APPROVAL'
            WHEN n <= 60000 THEN 'IDLE' WHEN n %% 100 < 4 THEN 'FAILED' WHEN n %% 100 = 4 THEN 'BLOCKED' WHEN n %% 200 = 5 THEN 'CANCELLED' ELSE 'COMPLETED' END AS state,
       CASE WHEN n %% 20 = 0 THEN 'person-busy' ELSE 'person-' || (n %% 50021) END AS person
FROM generate_series(1, %[1]d) n;
CREATE INDEX ON made (n);
ANALYZE made;
INSERT INTO sessions (session_id, agent_name, channel, account, chat, state, message_seq, event_seq, step_seq, idle_seconds, traceparent, created_at, updated_at, ended_at)
SELECT session_id, 'agent-' || to_char(agent, 'FM00'), channel, CASE channel WHEN 'API' THEN 'agent-' || to_char(agent, 'FM00') WHEN 'WHATSAPP' THEN 'number-' || agent %% 4
       WHEN 'WEBHOOK' THEN 'hook-' || agent %% 19 ELSE 'bot-' || agent %% 4 END,
       'chat-' || n, state, 4, 4, 2, 86400, '00-' || md5(n::text) || '-b7ad6b7169203331-01', at, at + interval '5 minutes',
       CASE WHEN state IN ('COMPLETED', 'CANCELLED') THEN at + interval '1 day' END
FROM made ORDER BY n DESC`

// messagesSQL: two turns of every fifth session.
const messagesSQL = `
INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, provider_id, text, in_reply_to, created_at)
SELECT made_id('msg', at + s * interval '10 seconds', n || '/' || s), session_id, s, CASE WHEN s % 2 = 1 THEN 'INBOUND' ELSE 'OUTBOUND' END, 'DONE', person, n || '/' || s,
       CASE WHEN s % 2 = 1 THEN 'please look at case ' || n ELSE 'case ' || n || ' is in order, nothing needs to be done about it' END,
       CASE WHEN s % 2 = 0 THEN made_id('msg', at + (s - 1) * interval '10 seconds', n || '/' || (s - 1)) END, at + s * interval '10 seconds'
FROM made, generate_series(1, 4) s WHERE n % 5 = 0 ORDER BY n DESC, s;
INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, reason, due_at, created_at, updated_at)
SELECT 'rpl' || substr(message_id, 4), message_id, session_id, seq, 1, 1, text,
       CASE WHEN channel_user_id = 'person-77' THEN 'FAILED' WHEN created_at > now() - interval '1 hour' THEN 'PLANNED' ELSE 'DELIVERED' END, '', created_at, created_at, created_at
FROM messages WHERE direction = 'OUTBOUND'`

const stepsSQL = `
INSERT INTO steps (step_id, session_id, message_id, seq, text, model, input_tokens, output_tokens, created_at)
SELECT 'stp' || substr(message_id, 4), session_id, message_id, (seq + 1) / 2, 'I look at it', 'model', 1000, 100, created_at + interval '2 seconds'
FROM messages WHERE direction = 'INBOUND';
INSERT INTO tool_calls (tool_call_id, step_id, session_id, seq, provider_id, name, arguments, state, result, created_at, ended_at)
SELECT 'call' || substr(step_id, 4), step_id, session_id, 0, step_id, 'executeShell', '{"command": "ls"}', 'DONE', 'exit code 0', created_at, created_at + interval '3 seconds'
FROM steps WHERE seq = 1;
INSERT INTO session_events (session_id, seq, kind, ref, created_at)
SELECT session_id, seq, CASE WHEN direction = 'INBOUND' THEN 'TURN' ELSE 'REPLY' END, message_id, created_at FROM messages`

// executionsSQL: a sandbox for every tenth session, a command for every fifth.
const executionsSQL = `
INSERT INTO sandboxes (sandbox_id, sandbox_name, agent_name, session_id, spec, spec_digest, state, reason, sandbox_uid, created_at, updated_at, expires_at, last_activity_at, ended_at)
SELECT 'sbx' || substr(s.session_id, 4), 'tuluat-' || m.n, s.agent_name, s.session_id, '{"image": "python", "idleSeconds": 300}', 'd', CASE WHEN m.n <= 300 THEN 'READY' ELSE 'GONE' END,
       CASE WHEN m.n <= 300 THEN '' ELSE 'IDLE' END, 'uid-' || m.n, m.at, m.at, m.at + interval '10 minutes', m.at, CASE WHEN m.n > 300 THEN m.at + interval '10 minutes' END
FROM made m JOIN sessions s USING (session_id) WHERE m.n % 10 = 0 ORDER BY m.n DESC;
INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, reason, sandbox_id, sandbox_uid, exit_code, nonce, created_at, started_at, ended_at)
SELECT 'exe' || substr(t.tool_call_id, 5), s.session_id, s.agent_name, 'TOOL_CALL', t.tool_call_id, 'ls -la /workspace', '{"image": "python", "idleSeconds": 300}', 'd', 1,
       CASE WHEN m.n <= 150 THEN 'PENDING' WHEN m.n % 100 = 20 THEN 'FAILED' WHEN m.n % 1000 = 35 THEN 'UNKNOWN' ELSE 'COMPLETED' END, '',
       CASE WHEN m.n % 10 = 0 AND m.n > 150 THEN 'sbx' || substr(s.session_id, 4) END, CASE WHEN m.n > 150 THEN 'uid' ELSE '' END, CASE WHEN m.n > 150 THEN 0 END, 'nonce',
       t.created_at, CASE WHEN m.n > 150 THEN t.created_at END, CASE WHEN m.n > 150 THEN t.created_at + interval '3 seconds' END
FROM tool_calls t JOIN sessions s USING (session_id) JOIN made m USING (session_id) ORDER BY t.created_at`

// largeSQL: one session with 25,000 turns, and 100,000 entries in its timeline.
const largeSQL = `
INSERT INTO sessions (session_id, agent_name, channel, account, chat, state, message_seq, event_seq, step_seq, created_at, updated_at)
VALUES (made_id('ses', now() - interval '80 days', 'large'), 'agent-05', 'WEBHOOK', 'hook-5', 'large', 'IDLE', 50000, 50000, 25000, now() - interval '80 days', now());
CREATE TABLE large AS SELECT session_id, created_at AS at FROM sessions WHERE chat = 'large';
INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text, created_at)
SELECT made_id('msg', at + s * interval '1 minute', 'large/' || s), session_id, s, CASE WHEN s % 2 = 1 THEN 'INBOUND' ELSE 'OUTBOUND' END, 'DONE', 'person-large', repeat('words ', 20), at + s * interval '1 minute'
FROM large, generate_series(1, 50000) s;
INSERT INTO steps (step_id, session_id, message_id, seq, text, model, created_at)
SELECT 'stp' || substr(m.message_id, 4), m.session_id, m.message_id, (m.seq + 1) / 2, 'I look at it', 'model', m.created_at FROM messages m JOIN large USING (session_id) WHERE m.direction = 'INBOUND';
INSERT INTO tool_calls (tool_call_id, step_id, session_id, seq, provider_id, name, arguments, state, result, created_at, ended_at)
SELECT 'call' || substr(step_id, 4), step_id, session_id, 0, step_id, 'executeShell', '{"command": "ls"}', 'DONE', 'exit code 0', created_at, created_at
FROM steps JOIN large USING (session_id);
INSERT INTO session_events (session_id, seq, kind, ref, created_at)
SELECT session_id, seq, CASE WHEN direction = 'INBOUND' THEN 'TURN' ELSE 'REPLY' END, message_id, created_at FROM messages JOIN large USING (session_id)`

const restSQL = `
INSERT INTO approvals (approval_id, session_id, agent_name, title, input, digest, state, decided_by, decided_via, created_at, decided_at)
SELECT 'apr' || substr(s.session_id, 4), s.session_id, s.agent_name, 'run a command', '{"command": "rm -r build"}', md5(s.session_id),
       CASE WHEN m.n <= 2000 THEN 'PENDING' WHEN m.n % 100 = 10 THEN 'REJECTED' ELSE 'APPROVED' END, CASE WHEN m.n > 2000 THEN 'ann' ELSE '' END, CASE WHEN m.n > 2000 THEN 'API' ELSE '' END,
       m.at, CASE WHEN m.n > 2000 THEN m.at END
FROM made m JOIN sessions s USING (session_id) WHERE m.n % 10 = 0 ORDER BY m.n DESC;
INSERT INTO dead_letters (event_id, event_type, session_id, payload, destination, status_code, state, received_at, updated_at)
SELECT 'session.due:' || n, CASE WHEN n % 3 = 0 THEN 'ai.tuluat.session.due.v1' ELSE 'ai.tuluat.execution.requested.v1' END, 'ses_' || n, '{}', 'http://agent-step', 500,
       CASE WHEN n % 50 = 0 THEN 'OPEN' ELSE 'MOOT' END, now() - (100000 - n) * interval '1 minute', now() FROM generate_series(1, 100000) n;
INSERT INTO audit_log (actor, action, object, after, created_at)
SELECT CASE WHEN n % 1000 = 0 THEN 'rare' ELSE 'person-' || n % 20 END, 'update aiagents', 'agent-' || to_char(n % 40, 'FM00'), '{"enabled": true}', now() - (200000 - n) * interval '1 minute'
FROM generate_series(1, 200000) n`

// logsSQL makes the entries of one day: half are of three agents, five in a
// hundred are warnings or errors, one in 100,000 says a rare word.
const logsSQL = `
DO $$
DECLARE day date := (now() AT TIME ZONE 'UTC')::date - %[1]d;
BEGIN
    IF to_regclass('agent_execution_logs_' || to_char(day, 'YYYYMMDD')) IS NULL THEN
        EXECUTE format('CREATE TABLE %%I PARTITION OF agent_execution_logs FOR VALUES FROM (%%L) TO (%%L)', 'agent_execution_logs_' || to_char(day, 'YYYYMMDD'), day || ' 00:00:00+00', (day + 1) || ' 00:00:00+00');
    END IF;
END $$;
INSERT INTO agent_execution_logs (agent_name, session_id, node_id, level, message, guardrail_result, created_at)
SELECT 'agent-' || to_char(CASE WHEN n %% 10000 = 7 THEN 39 WHEN n %% 2 = 0 THEN n %% 3 ELSE (n::bigint * 7919) %% 39 END, 'FM00'), 'ses_' || md5((%[1]d * 30000 + n / 12)::text), (n %% 12)::text,
       CASE WHEN n %% 100 < 2 THEN 'ERROR' WHEN n %% 100 < 5 THEN 'WARN' WHEN n %% 4 = 0 THEN 'DEBUG' ELSE 'INFO' END,
       'command exe_' || md5(n::text) || ' ended as COMPLETED exit code 0 after ' || n %% 300 || ' s' || CASE WHEN n %% 100000 = 17 THEN ' zanzibar' ELSE '' END, '',
       date_trunc('day', now(), 'UTC') - %[1]d * interval '1 day' + n * (interval '1 day' / %[2]d)
FROM generate_series(0, %[2]d - 1) n`
