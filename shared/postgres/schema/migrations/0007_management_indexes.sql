-- +goose NO TRANSACTION
-- +goose Up

-- What the lists of the management API walk, newest first: ids begin with the
-- time, so a list needs no index of created_at. Agent and state come before it,
-- so that no list of few walks past many.
DROP INDEX CONCURRENTLY IF EXISTS sessions_agent;
CREATE INDEX CONCURRENTLY sessions_agent ON sessions (agent_name, state, session_id);
DROP INDEX CONCURRENTLY IF EXISTS sessions_active; -- the one above does its work
DROP INDEX CONCURRENTLY IF EXISTS sessions_account;
CREATE INDEX CONCURRENTLY sessions_account ON sessions (channel, account, session_id);
DROP INDEX CONCURRENTLY IF EXISTS messages_person;
CREATE INDEX CONCURRENTLY messages_person ON messages (channel_user_id, session_id) WHERE direction = 'INBOUND';
DROP INDEX CONCURRENTLY IF EXISTS executions_ended;
CREATE INDEX CONCURRENTLY executions_ended ON executions (agent_name, state, execution_id)
    WHERE state IN ('COMPLETED', 'FAILED', 'TIMED_OUT', 'OUT_OF_MEMORY', 'DISK_LIMIT', 'SANDBOX_GONE', 'CANCELLED', 'UNKNOWN');
DROP INDEX CONCURRENTLY IF EXISTS sandboxes_agent;
CREATE INDEX CONCURRENTLY sandboxes_agent ON sandboxes (agent_name, sandbox_id);
DROP INDEX CONCURRENTLY IF EXISTS replies_lost;
CREATE INDEX CONCURRENTLY replies_lost ON replies (updated_at) WHERE state IN ('FAILED', 'UNKNOWN');

-- One index for both: an agent's newest command, and the list of its commands;
-- the same for those of a session.
DROP INDEX CONCURRENTLY IF EXISTS executions_agent;
CREATE INDEX CONCURRENTLY executions_agent ON executions (agent_name, execution_id);
DROP INDEX CONCURRENTLY IF EXISTS executions_session;
CREATE INDEX CONCURRENTLY executions_session ON executions (session_id, execution_id);

-- Log entries of before the column was there get their ids, day by day, and each
-- day its index: while one is built, only that day takes no entries, which is
-- today's for well under a second. A run that was cut off goes on where it was.
-- +goose StatementBegin
DO $$
DECLARE
    day text;
BEGIN
    FOR day IN SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'agent_execution_logs'::regclass ORDER BY c.relname LOOP
        EXECUTE format('UPDATE %I SET log_id = nextval(''agent_execution_logs_log_id_seq'') WHERE log_id = 0', day);
        COMMIT;
        EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON %I (created_at, log_id)', day || '_newest', day);
        COMMIT;
        EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON %I (agent_name, created_at, log_id) WHERE level IN (''WARN'', ''ERROR'')', day || '_warnings', day);
        COMMIT;
    END LOOP;
END $$;
-- +goose StatementEnd
UPDATE agent_execution_logs_overflow SET log_id = nextval('agent_execution_logs_log_id_seq') WHERE log_id = 0;
CREATE INDEX IF NOT EXISTS agent_execution_logs_newest ON agent_execution_logs (created_at, log_id);
CREATE INDEX IF NOT EXISTS agent_execution_logs_warnings ON agent_execution_logs (agent_name, created_at, log_id) WHERE level IN ('WARN', 'ERROR');
