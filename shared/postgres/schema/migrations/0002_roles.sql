-- +goose Up

-- One role per function, with the least it needs. They cannot log in: an
-- operator makes a login for each function that is a member of its role, or
-- adds role=tuluat_… to its connection string. Roles belong to the server, not
-- to the database, so another database's migration may make them first.
-- Connections: max-scale of each Service times 4, plus a few for people.

-- +goose StatementBegin
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['webhook_ingest', 'agent_step', 'sandbox_exec', 'reaper_cron', 'agent_status', 'dead_letter'] LOOP
        CONTINUE WHEN EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'tuluat_' || name);
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', 'tuluat_' || name);
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN
                NULL; -- another migrator was first
            WHEN insufficient_privilege THEN
                RAISE insufficient_privilege USING MESSAGE = format('role tuluat_%s does not exist and %I may not create it', name, current_user),
                    HINT = 'Give the migrating role CREATEROLE, or create the roles first.';
        END;
    END LOOP;
END $$;
-- +goose StatementEnd

-- Partitions are made by the sweep's role, and belong to the owner of the table.
ALTER FUNCTION create_log_partitions(int) SECURITY DEFINER SET search_path = public;

-- Messages in, replies out, and streams of what happened.
GRANT SELECT ON channel_routes, tool_calls, executions, execution_output, session_events TO tuluat_webhook_ingest;
GRANT SELECT, INSERT ON inbox, messages TO tuluat_webhook_ingest;
GRANT SELECT, INSERT, UPDATE ON sessions TO tuluat_webhook_ingest;
GRANT SELECT, UPDATE ON replies TO tuluat_webhook_ingest;
GRANT SELECT, INSERT, DELETE ON outbox TO tuluat_webhook_ingest;

-- Turns: what the model said, what it asked for, what it answered.
GRANT SELECT ON agents, agent_revisions, execution_output TO tuluat_agent_step;
GRANT SELECT, INSERT, UPDATE ON sessions, messages, steps, tool_calls, executions TO tuluat_agent_step;
GRANT INSERT ON replies, session_events, agent_execution_logs, agent_execution_logs_overflow TO tuluat_agent_step;
GRANT SELECT, INSERT, DELETE ON outbox TO tuluat_agent_step;

-- Commands and where they run. UPDATE on agents is the lock of their capacity.
GRANT SELECT ON steps, tool_calls TO tuluat_sandbox_exec;
GRANT SELECT ON agents TO tuluat_sandbox_exec, tuluat_reaper_cron;
GRANT UPDATE (updated_at) ON agents TO tuluat_sandbox_exec, tuluat_reaper_cron;
GRANT SELECT, UPDATE ON sessions, executions TO tuluat_sandbox_exec;
GRANT SELECT, INSERT, UPDATE ON sandboxes TO tuluat_sandbox_exec;
GRANT SELECT, INSERT ON execution_output TO tuluat_sandbox_exec;
GRANT INSERT ON agent_execution_logs, agent_execution_logs_overflow TO tuluat_sandbox_exec, tuluat_reaper_cron;
GRANT SELECT, INSERT, DELETE ON outbox TO tuluat_sandbox_exec;

-- The sweep looks at everything that may be due, and removes what is old.
GRANT SELECT ON messages, steps, tool_calls, execution_output TO tuluat_reaper_cron;
GRANT SELECT, UPDATE ON sessions, executions, sandboxes, replies, sweeps TO tuluat_reaper_cron;
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox TO tuluat_reaper_cron;
GRANT SELECT, DELETE ON inbox TO tuluat_reaper_cron;
GRANT SELECT, INSERT, DELETE ON sweep_reports TO tuluat_reaper_cron;

-- Agents as their resources say, and the sessions that wait for them.
GRANT SELECT, INSERT, UPDATE ON agents TO tuluat_agent_status;
GRANT SELECT, INSERT ON agent_revisions TO tuluat_agent_status;
GRANT SELECT, INSERT, UPDATE, DELETE ON channel_routes TO tuluat_agent_status;
GRANT SELECT, UPDATE ON sessions TO tuluat_agent_status;

-- What a broker gave up on, and a mark on the work it announced.
GRANT SELECT, INSERT, UPDATE ON dead_letters TO tuluat_dead_letter;
GRANT SELECT, UPDATE ON sessions, executions, replies TO tuluat_dead_letter;
GRANT SELECT ON messages, outbox TO tuluat_dead_letter;
