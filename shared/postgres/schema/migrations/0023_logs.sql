-- +goose NO TRANSACTION
-- +goose Up

-- Every statement may run again: a run that was cut off goes on where it was.
-- log_archives: an object of the bucket with what Postgres keeps no more, or is
-- about to. The row is there before the object and goes after it.
--
--   PENDING   about to be put, or put perhaps
--   STORED    put; not read back yet
--   VERIFIED  read back and right; what it holds was deleted in the same commit
--   REMOVING  to be deleted: replaced, given up or old
CREATE TABLE IF NOT EXISTS log_archives (
    object_key   text COLLATE "C" PRIMARY KEY, -- names the bytes: it ends in the start of their digest
    kind         text NOT NULL CONSTRAINT archive_kind CHECK (kind IN ('ENTRIES', 'OUTPUT')),
    agent_name   text NOT NULL,
    state        text NOT NULL CONSTRAINT archive_state CHECK (state IN ('PENDING', 'STORED', 'VERIFIED', 'REMOVING')),
    reason       text NOT NULL DEFAULT '', -- why it is not further
    digest       text NOT NULL,            -- of the object, in hexadecimal
    size_bytes   bigint NOT NULL,          -- of the object
    day          date,                     -- ENTRIES: of all of them, UTC
    part         int,                      -- ENTRIES: of that day of the agent, from 1
    entry_count  int NOT NULL DEFAULT 0,
    first_at     timestamptz,              -- ENTRIES: the oldest
    first_log_id bigint,
    last_at      timestamptz,              -- ENTRIES: the newest
    last_log_id  bigint,
    execution_id text REFERENCES executions, -- OUTPUT: which stays while an object has its output
    stream       text CONSTRAINT archive_stream CHECK (stream IN ('stdout', 'stderr')),
    start_byte   bigint,                   -- OUTPUT: the first one of the stream that it holds
    end_byte     bigint,                   -- OUTPUT: the one behind the last
    replaces     text,                     -- the object whose place it takes, less what was forgotten
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT archive_holds CHECK (CASE kind WHEN 'ENTRIES' THEN day IS NOT NULL AND part IS NOT NULL AND first_at IS NOT NULL AND first_log_id IS NOT NULL
        AND last_at IS NOT NULL AND last_log_id IS NOT NULL AND execution_id IS NULL
        ELSE execution_id IS NOT NULL AND stream IS NOT NULL AND start_byte IS NOT NULL AND end_byte IS NOT NULL AND day IS NULL END)
);
CREATE UNIQUE INDEX IF NOT EXISTS log_archive_part ON log_archives (agent_name, day, part) WHERE kind = 'ENTRIES' AND state <> 'REMOVING';
CREATE INDEX IF NOT EXISTS log_archives_last ON log_archives (last_at, last_log_id) WHERE kind = 'ENTRIES' AND state = 'VERIFIED';
CREATE INDEX IF NOT EXISTS log_archives_execution ON log_archives (execution_id, stream, start_byte) WHERE kind = 'OUTPUT';
CREATE INDEX IF NOT EXISTS log_archives_open ON log_archives (updated_at) WHERE state <> 'VERIFIED';

-- log_archive_sessions: of which sessions an object has entries: what a list of
-- one session reads, and what forgetting a person rewrites.
CREATE TABLE IF NOT EXISTS log_archive_sessions (
    session_id text NOT NULL,
    object_key text COLLATE "C" NOT NULL REFERENCES log_archives ON DELETE CASCADE,
    PRIMARY KEY (session_id, object_key)
);
CREATE INDEX IF NOT EXISTS log_archive_sessions_object ON log_archive_sessions (object_key);

-- executions: when it was seen to that Postgres keeps no more of the output than
-- a model may see.
ALTER TABLE executions ADD COLUMN IF NOT EXISTS output_archived_at timestamptz;
-- What a command printed and nobody has: the reason, and from which byte on.
ALTER TABLE executions ADD COLUMN IF NOT EXISTS output_lost jsonb;
DROP INDEX CONCURRENTLY IF EXISTS executions_output;
CREATE INDEX CONCURRENTLY executions_output ON executions (ended_at) WHERE output_archived_at IS NULL AND ended_at IS NOT NULL;

-- forget_requests: one person's data is to go, out of Postgres and the bucket.
CREATE TABLE IF NOT EXISTS forget_requests (
    forget_request_id text PRIMARY KEY,
    channel         text NOT NULL,
    channel_user_id text NOT NULL,          -- emptied when it is done
    person_digest   text NOT NULL,          -- of channel and id: a second request is the first
    state           text NOT NULL CONSTRAINT forget_state CHECK (state IN ('PENDING', 'RUNNING', 'DONE')),
    reason          text NOT NULL DEFAULT '', -- why it does not go on
    requested_by    text NOT NULL,
    report          jsonb NOT NULL DEFAULT '{}', -- what was deleted and what was left, and why
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    ended_at        timestamptz
);
CREATE UNIQUE INDEX IF NOT EXISTS forget_open ON forget_requests (person_digest) WHERE state <> 'DONE';

-- forget_sessions: what a request is about; whole: nobody else wrote there.
CREATE TABLE IF NOT EXISTS forget_sessions (
    forget_request_id text NOT NULL REFERENCES forget_requests,
    session_id        text NOT NULL,
    whole             boolean NOT NULL,
    PRIMARY KEY (forget_request_id, session_id)
);

-- What a deleted row is looked up by in those that refer to it.
DROP INDEX CONCURRENTLY IF EXISTS replies_file;
CREATE INDEX CONCURRENTLY replies_file ON replies (attachment_id) WHERE attachment_id IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS guardrail_verdicts_message;
CREATE INDEX CONCURRENTLY guardrail_verdicts_message ON guardrail_verdicts (message_id) WHERE message_id IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS guardrail_verdicts_step;
CREATE INDEX CONCURRENTLY guardrail_verdicts_step ON guardrail_verdicts (step_id) WHERE step_id IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS guardrail_verdicts_call;
CREATE INDEX CONCURRENTLY guardrail_verdicts_call ON guardrail_verdicts (tool_call_id) WHERE tool_call_id IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS node_visits_child;
CREATE INDEX CONCURRENTLY node_visits_child ON node_visits (child_session) WHERE child_session IS NOT NULL;

-- +goose StatementBegin
-- forget_count adds n rows of what to the report of a request.
CREATE OR REPLACE FUNCTION forget_count(request text, what text, n bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE forget_requests SET report = jsonb_set(report, ARRAY[what], to_jsonb(COALESCE((report->>what)::bigint, 0) + n)), updated_at = now()
    WHERE forget_request_id = request AND n > 0;
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- forget_begin finds the sessions of the person of a request and ends those that
-- are open. What the person writes later is not of this request.
CREATE OR REPLACE FUNCTION forget_begin(request text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
    r forget_requests;
    ours text[];
BEGIN
    SELECT * INTO r FROM forget_requests WHERE forget_request_id = request AND state = 'PENDING' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO forget_sessions (forget_request_id, session_id, whole)
    WITH RECURSIVE base AS (
        SELECT m.session_id FROM messages m JOIN sessions s USING (session_id) WHERE m.direction = 'INBOUND' AND m.channel_user_id = r.channel_user_id AND s.channel = r.channel
        UNION SELECT s.session_id FROM sessions s WHERE s.channel = r.channel AND s.chat = r.channel_user_id
    ), judged AS (
        SELECT b.session_id, NOT EXISTS (SELECT 1 FROM messages o WHERE o.session_id = b.session_id AND o.direction = 'INBOUND' AND o.channel_user_id <> r.channel_user_id) AS whole FROM base b
    ), whole AS (
        SELECT session_id FROM judged WHERE judged.whole
        UNION
        SELECT c.session_id FROM whole w JOIN sessions c ON c.origin_session = w.session_id
            OR c.parent_visit IN (SELECT v.visit_id FROM node_visits v WHERE v.session_id = w.session_id)
    )
    SELECT request, w.session_id, true FROM whole w UNION SELECT request, j.session_id, false FROM judged j WHERE NOT j.whole
    ON CONFLICT DO NOTHING;
    SELECT array_agg(f.session_id ORDER BY f.session_id) INTO ours FROM forget_sessions f WHERE f.forget_request_id = request AND f.whole;
    PERFORM 1 FROM sessions WHERE session_id = ANY (ours) ORDER BY session_id FOR NO KEY UPDATE;
    UPDATE sessions SET state = 'CANCELLED', reason = 'forgotten', due_at = NULL, retry_at = NULL, lease_owner = NULL, lease_until = NULL, lease_token = lease_token + 1,
        updated_at = now(), ended_at = now() WHERE session_id = ANY (ours) AND state NOT IN ('COMPLETED', 'CANCELLED');
    DELETE FROM outbox WHERE subject = ANY (ours);
    UPDATE messages SET state = 'DONE' WHERE session_id = ANY (ours) AND state IN ('PENDING', 'RUNNING');
    UPDATE tool_calls SET state = 'FAILED', result = '', ended_at = now() WHERE session_id = ANY (ours) AND state IN ('PENDING', 'RUNNING');
    UPDATE node_visits SET state = 'CANCELLED', due_at = NULL, ended_at = now() WHERE session_id = ANY (ours) AND state IN ('PENDING', 'RUNNING', 'WAITING');
    UPDATE approvals SET state = 'CANCELLED', reason = 'forgotten', decided_at = now() WHERE session_id = ANY (ours) AND state = 'PENDING';
    UPDATE executions SET state = 'CANCELLED', reason = 'forgotten', due_at = NULL, ended_at = now() WHERE session_id = ANY (ours) AND state = 'PENDING';
    UPDATE executions SET cancelled_at = now(), due_at = CASE WHEN lease_owner IS NULL THEN now() ELSE due_at END WHERE session_id = ANY (ours) AND state = 'RUNNING' AND cancelled_at IS NULL;
    UPDATE sandboxes SET state = 'TERMINATING', reason = 'OPERATOR', updated_at = now() - interval '1 hour' WHERE session_id = ANY (ours) AND state IN ('CREATING', 'READY');
    UPDATE forget_requests SET state = 'RUNNING', updated_at = now() WHERE forget_request_id = request;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- forget_session deletes one session of a request that has ended, and all that is
-- of it. Its objects are gone by then, and its log entries.
CREATE OR REPLACE FUNCTION forget_session(request text, s text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
    what text[];
    n bigint;
BEGIN
    PERFORM 1 FROM forget_requests WHERE forget_request_id = request FOR UPDATE;
    PERFORM 1 FROM forget_sessions f WHERE f.forget_request_id = request AND f.session_id = s AND f.whole;
    IF NOT FOUND OR EXISTS (SELECT 1 FROM log_archives a JOIN executions e USING (execution_id) WHERE e.session_id = s) THEN
        RAISE EXCEPTION 'the session is not one of the request, or the archive has output of it';
    END IF;
    -- Cards in the conversations of those who were asked say what it was about.
    UPDATE messages SET text = '' WHERE message_id IN (SELECT r.message_id FROM replies r JOIN approvals a USING (approval_id) WHERE a.session_id = s AND r.session_id <> s);
    UPDATE replies SET text = '', approval_id = NULL WHERE approval_id IN (SELECT approval_id FROM approvals WHERE session_id = s) AND session_id <> s;
    UPDATE node_visits SET child_session = NULL WHERE child_session = s;
    UPDATE messages SET in_reply_to = NULL WHERE session_id = s AND in_reply_to IS NOT NULL;
    FOREACH what SLICE 1 IN ARRAY ARRAY[
        ['approval_votes', 'approval_id IN (SELECT approval_id FROM approvals WHERE session_id = $1)'],
        ['approval_grants', 'session_id = $1 OR approval_id IN (SELECT approval_id FROM approvals WHERE session_id = $1)'],
        ['approval_events', 'approval_id IN (SELECT approval_id FROM approvals WHERE session_id = $1)'],
        ['temporal_signals', 'session_id = $1'],
        ['guardrail_verdicts', 'session_id = $1'],
        ['attachment_placements', 'attachment_id IN (SELECT attachment_id FROM attachments WHERE session_id = $1) OR sandbox_id IN (SELECT sandbox_id FROM sandboxes WHERE session_id = $1)'],
        ['skill_placements', 'sandbox_id IN (SELECT sandbox_id FROM sandboxes WHERE session_id = $1)'],
        ['replies', 'session_id = $1'],
        ['attachments', 'session_id = $1'],
        ['budget_grants', 'approval_id IN (SELECT approval_id FROM approvals WHERE session_id = $1)'],
        ['model_attempts', 'session_id = $1'],
        ['summaries', 'session_id = $1'],
        ['drafts', 'session_id = $1'],
        ['approvals', 'session_id = $1'],
        ['tool_calls', 'session_id = $1'],
        ['steps', 'session_id = $1'],
        ['session_events', 'session_id = $1'],
        ['session_skills', 'session_id = $1'],
        ['workflow_starts', 'session_id = $1'],
        ['node_visits', 'session_id = $1'],
        ['execution_output', 'execution_id IN (SELECT execution_id FROM executions WHERE session_id = $1)'],
        ['executions', 'session_id = $1'],
        ['sandboxes', 'session_id = $1'],
        ['outbox', 'session_id = $1'],
        ['dead_letters', 'session_id = $1'],
        ['messages', 'session_id = $1'],
        ['sessions', 'session_id = $1']] LOOP
        EXECUTE format('DELETE FROM %I WHERE %s', what[1], what[2]) USING s;
        GET DIAGNOSTICS n = ROW_COUNT;
        PERFORM forget_count(request, what[1], n);
    END LOOP;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- forget_person deletes what is of the person and of no session, empties what they
-- wrote where others write too, and ends the request. Nothing of theirs is left
-- that it has not named.
CREATE OR REPLACE FUNCTION forget_person(request text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
    r forget_requests;
    what text[];
    n bigint;
BEGIN
    SELECT * INTO r FROM forget_requests WHERE forget_request_id = request AND state = 'RUNNING' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE attachments a SET file_name = '', provider_id = '', digest = '', updated_at = now() FROM messages m JOIN forget_sessions f USING (session_id)
        WHERE a.message_id = m.message_id AND f.forget_request_id = request AND m.direction = 'INBOUND' AND m.channel_user_id = r.channel_user_id;
    UPDATE messages m SET text = '', metadata = '{}', shown_text = CASE WHEN m.shown_text IS NULL THEN NULL ELSE '' END, channel_user_id = ''
        FROM forget_sessions f WHERE f.forget_request_id = request AND f.session_id = m.session_id AND m.direction = 'INBOUND' AND m.channel_user_id = r.channel_user_id;
    GET DIAGNOSTICS n = ROW_COUNT;
    PERFORM forget_count(request, 'emptied', n);
    UPDATE messages m SET channel_user_id = '' FROM forget_sessions f
        WHERE f.forget_request_id = request AND f.session_id = m.session_id AND m.direction = 'OUTBOUND' AND m.channel_user_id = r.channel_user_id;
    SELECT count(*) INTO n FROM forget_sessions f WHERE f.forget_request_id = request AND NOT f.whole;
    PERFORM forget_count(request, 'shared', n);
    FOREACH what SLICE 1 IN ARRAY ARRAY[
        ['notices', 'channel = $1 AND (channel_user_id = $2 OR chat = $2)'],
        ['chat_aliases', 'channel = $1 AND (alias = $2 OR chat = $2)'],
        ['pairings', 'channel = $1 AND chat = $2'],
        ['chats', 'channel = $1 AND chat = $2'],
        ['budget_usage', 'scope = ''USER_DAY'' AND right(subject, length($1 || $2) + 2) = '' '' || $1 || '' '' || $2']] LOOP
        EXECUTE format('DELETE FROM %I WHERE %s', what[1], what[2]) USING r.channel, r.channel_user_id;
        GET DIAGNOSTICS n = ROW_COUNT;
        PERFORM forget_count(request, what[1], n);
    END LOOP;
    DELETE FROM forget_sessions WHERE forget_request_id = request;
    UPDATE forget_requests SET state = 'DONE', reason = '', channel_user_id = '', ended_at = now(), updated_at = now() WHERE forget_request_id = request;
    INSERT INTO audit_log (actor, action, object, after) SELECT requested_by, 'forget people.tuluat.ai', forget_request_id, jsonb_build_object('state', state, 'report', report) FROM forget_requests WHERE forget_request_id = request;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION forget_count, forget_begin, forget_session, forget_person FROM PUBLIC;
GRANT EXECUTE ON FUNCTION forget_begin, forget_session, forget_person TO tuluat_reaper_cron;

-- A partition is detached by the table's owner only, and never inside of a
-- function: the tables of the log belong to a role that the sweep's is a member of.
-- +goose StatementBegin
DO $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'tuluat_log_owner') THEN
        BEGIN
            CREATE ROLE tuluat_log_owner NOLOGIN;
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN
                NULL; -- another migrator was first
            WHEN insufficient_privilege THEN
                RAISE insufficient_privilege USING MESSAGE = format('role tuluat_log_owner does not exist and %I may not create it', current_user),
                    HINT = 'Give the migrating role CREATEROLE, or create the role first and make the migrating role and tuluat_reaper_cron its members.';
        END;
    END IF;
    -- Two migrators of one server change the same row: the second finds it done.
    FOR i IN 1..5 LOOP
        BEGIN
            IF NOT pg_has_role(current_user, 'tuluat_log_owner', 'MEMBER') THEN
                EXECUTE format('GRANT tuluat_log_owner TO %I', current_user);
            END IF;
            IF NOT pg_has_role('tuluat_reaper_cron', 'tuluat_log_owner', 'MEMBER') THEN
                GRANT tuluat_log_owner TO tuluat_reaper_cron;
            END IF;
            EXIT;
        EXCEPTION WHEN internal_error OR unique_violation OR serialization_failure THEN
            PERFORM pg_sleep(0.2);
        END;
    END LOOP;
END $$;
-- +goose StatementEnd
GRANT USAGE, CREATE ON SCHEMA public TO tuluat_log_owner;

-- +goose StatementBegin
-- create_log_partitions makes the partition of each day from today to days ahead
-- and of each that waits in the overflow table, and moves what waits. A table of
-- a day that is detached, and not dropped yet, is left to whoever drops it, and so
-- are the entries of its day. Returns how many it made.
CREATE OR REPLACE FUNCTION create_log_partitions(ahead int) RETURNS int LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
    day date;
    made int := 0;
    ready date[] := '{}';
BEGIN
    FOR day IN SELECT generate_series((now() AT TIME ZONE 'UTC')::date, (now() AT TIME ZONE 'UTC')::date + ahead, interval '1 day')::date
               UNION SELECT DISTINCT (created_at AT TIME ZONE 'UTC')::date FROM agent_execution_logs_overflow LOOP
        IF to_regclass('agent_execution_logs_' || to_char(day, 'YYYYMMDD')) IS NULL THEN
            EXECUTE format('CREATE TABLE IF NOT EXISTS %I PARTITION OF agent_execution_logs FOR VALUES FROM (%L) TO (%L)',
                'agent_execution_logs_' || to_char(day, 'YYYYMMDD'), day || ' 00:00:00+00', (day + 1) || ' 00:00:00+00');
            made := made + 1;
        END IF;
        IF EXISTS (SELECT 1 FROM pg_inherits WHERE inhrelid = to_regclass('agent_execution_logs_' || to_char(day, 'YYYYMMDD'))
                   AND inhparent = 'agent_execution_logs'::regclass AND NOT inhdetachpending) THEN
            ready := ready || day;
        END IF;
    END LOOP;
    WITH moved AS (DELETE FROM agent_execution_logs_overflow WHERE (created_at AT TIME ZONE 'UTC')::date = ANY (ready) RETURNING *)
    INSERT INTO agent_execution_logs SELECT * FROM moved;
    RETURN made;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Its last column is log_id, as the log's own: SELECT * moves rows between them.
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
            AND (c.relname IN ('agent_execution_logs', 'agent_execution_logs_overflow') OR c.relname ~ '^agent_execution_logs_[0-9]{8}$')
            AND pg_get_userbyid(c.relowner) <> 'tuluat_log_owner' ORDER BY c.relkind DESC, c.relname LOOP
        PERFORM set_config('lock_timeout', '5s', true);
        EXECUTE format('ALTER TABLE %I OWNER TO tuluat_log_owner', name);
        COMMIT;
    END LOOP;
    ALTER SEQUENCE agent_execution_logs_log_id_seq OWNER TO tuluat_log_owner;
    ALTER FUNCTION create_log_partitions(int) OWNER TO tuluat_log_owner;
END $$;
-- +goose StatementEnd

-- The sweep archives, expires and forgets.
GRANT SELECT ON agent_revisions TO tuluat_reaper_cron;
GRANT SELECT, INSERT, UPDATE, DELETE ON log_archives, log_archive_sessions TO tuluat_reaper_cron;
GRANT INSERT, UPDATE, DELETE ON execution_output TO tuluat_reaper_cron;
GRANT SELECT, UPDATE ON forget_requests TO tuluat_reaper_cron;
GRANT SELECT ON forget_sessions TO tuluat_reaper_cron;
GRANT SELECT, UPDATE (state, reason, object_key, updated_at) ON attachments TO tuluat_reaper_cron;

-- What is shown: archived entries and output, and requests to forget.
GRANT SELECT ON log_archives, log_archive_sessions, forget_requests TO tuluat_management_api;
GRANT INSERT ON forget_requests TO tuluat_management_api;
GRANT SELECT (output_archived_at, output_lost) ON executions TO tuluat_management_api;
