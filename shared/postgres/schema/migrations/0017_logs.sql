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
    sha256       text NOT NULL,            -- of the object, in hexadecimal
    size_bytes   bigint NOT NULL,          -- of the object
    day          date,                     -- ENTRIES: of all of them, UTC
    part         int,                      -- ENTRIES: of that day of the agent, from 1
    entry_count  int NOT NULL DEFAULT 0,
    first_at     timestamptz,              -- ENTRIES: the oldest
    first_log_id bigint,
    last_at      timestamptz,              -- ENTRIES: the newest
    last_log_id  bigint,
    execution_id text REFERENCES executions ON DELETE CASCADE, -- OUTPUT
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

-- What is shown: archived entries and output, and requests to forget.
GRANT SELECT ON log_archives, log_archive_sessions, forget_requests TO tuluat_management_api;
GRANT INSERT ON forget_requests TO tuluat_management_api;
GRANT SELECT (output_archived_at, output_lost) ON executions TO tuluat_management_api;
