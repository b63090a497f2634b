-- +goose Up

-- As in 0004: rather fail than hold others up behind a long transaction.
SET LOCAL lock_timeout = '5s';

-- executions: an operator wants it ended. Whoever runs it ends it; the state
-- follows from what the runner proves.
ALTER TABLE executions ADD COLUMN cancelled_at timestamptz;

-- dead_letters: who replayed or discarded it last.
ALTER TABLE dead_letters ADD COLUMN decided_by text NOT NULL DEFAULT '';

-- agent_execution_logs: an id, so that a list has one order. Rows of before get
-- theirs in 0007: a default that is not constant would rewrite the table here.
CREATE SEQUENCE agent_execution_logs_log_id_seq;
ALTER TABLE agent_execution_logs ADD COLUMN log_id bigint NOT NULL DEFAULT 0;
ALTER TABLE agent_execution_logs_overflow ADD COLUMN log_id bigint NOT NULL DEFAULT 0;
ALTER TABLE agent_execution_logs ALTER COLUMN log_id SET DEFAULT nextval('agent_execution_logs_log_id_seq');
ALTER TABLE agent_execution_logs_overflow ALTER COLUMN log_id SET DEFAULT nextval('agent_execution_logs_log_id_seq');

CREATE INDEX dead_letters_state ON dead_letters (state, dead_letter_id);

-- approvals: one question to a human each.
CREATE TABLE approvals (
    approval_id  text PRIMARY KEY,
    session_id   text NOT NULL REFERENCES sessions,
    agent_name   text NOT NULL REFERENCES agents,
    node_id      text NOT NULL DEFAULT '',    -- of a workflow
    tool_call_id text REFERENCES tool_calls,  -- NULL: a node asks
    title        text NOT NULL,
    input        jsonb NOT NULL DEFAULT '{}', -- exactly what will run
    digest       text NOT NULL,               -- of that
    state        text NOT NULL CONSTRAINT approval_state CHECK (state IN ('PENDING', 'APPROVED', 'REJECTED', 'EXPIRED', 'CANCELLED')),
    decided_by   text NOT NULL DEFAULT '',
    decided_via  text NOT NULL DEFAULT '',    -- the channel it came by
    reason       text NOT NULL DEFAULT '',    -- what whoever decided wrote
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,                 -- NULL: it waits
    decided_at   timestamptz,
    CONSTRAINT approval_decided CHECK ((decided_at IS NULL) = (state = 'PENDING'))
);
CREATE UNIQUE INDEX approval_once ON approvals (tool_call_id) WHERE tool_call_id IS NOT NULL;
CREATE INDEX approvals_pending ON approvals (approval_id) WHERE state = 'PENDING';
CREATE INDEX approvals_expire ON approvals (expires_at) WHERE state = 'PENDING' AND expires_at IS NOT NULL;
CREATE INDEX approvals_agent ON approvals (agent_name, approval_id);
CREATE INDEX approvals_session ON approvals (session_id, approval_id);

-- audit_log: every write through the management API. Rows are added, never changed.
CREATE TABLE audit_log (
    audit_log_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    actor      text NOT NULL,
    action     text NOT NULL,               -- verb and resource
    object     text NOT NULL,               -- name or id of what was written
    before     jsonb,
    after      jsonb,
    request_id text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX audit_log_created ON audit_log (created_at, audit_log_id);
CREATE INDEX audit_log_actor ON audit_log (actor, created_at, audit_log_id);
CREATE INDEX audit_log_object ON audit_log (object, created_at, audit_log_id);

-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'tuluat_management_api') THEN
        RETURN;
    END IF;
    CREATE ROLE tuluat_management_api NOLOGIN;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN
        NULL; -- another migrator was first
    WHEN insufficient_privilege THEN
        RAISE insufficient_privilege USING MESSAGE = format('role tuluat_management_api does not exist and %I may not create it', current_user),
            HINT = 'Give the migrating role CREATEROLE, or create the roles first.';
END $$;
-- +goose StatementEnd

-- What is shown. Of executions all but the nonce, which proves their outcome.
GRANT SELECT ON agents, channel_routes, sessions, messages, replies, steps, tool_calls, execution_output, sandboxes, session_events,
    attachments, dead_letters, agent_execution_logs, approvals, audit_log, secret_checks TO tuluat_management_api;
GRANT SELECT (execution_id, seq, session_id, agent_name, cause, cause_id, cause_attempt, command, spec, spec_digest, max_sandboxes, state, reason,
    sandbox_id, sandbox_uid, exit_code, stdout_bytes, stderr_bytes, stdout_tail, stderr_tail, due_at, lease_owner, lease_token, lease_until,
    dead_lettered_at, cancelled_at, created_at, started_at, ended_at) ON executions TO tuluat_management_api;

-- Messages in, by channel API.
GRANT SELECT, INSERT ON inbox TO tuluat_management_api;
GRANT INSERT ON messages, notices TO tuluat_management_api;
GRANT INSERT ON sessions TO tuluat_management_api;
GRANT SELECT, INSERT, DELETE ON outbox TO tuluat_management_api;

-- Commands, cancelling, deciding, replaying. UPDATE on agents is the lock of
-- their capacity.
GRANT UPDATE (updated_at) ON agents TO tuluat_management_api;
GRANT UPDATE (state, reason, message_seq, event_seq, due_at, retry_at, announced_at, lease_owner, lease_token, lease_until, dead_lettered_at,
    idle_seconds, traceparent, updated_at, ended_at) ON sessions TO tuluat_management_api;
GRANT UPDATE (state) ON messages TO tuluat_management_api;
GRANT UPDATE (state, result, ended_at) ON tool_calls TO tuluat_management_api;
GRANT INSERT ON session_events TO tuluat_management_api;
GRANT INSERT (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce, due_at) ON executions TO tuluat_management_api;
GRANT UPDATE (state, reason, attempts, due_at, dead_lettered_at, cancelled_at, ended_at) ON executions TO tuluat_management_api;
GRANT UPDATE (state, reason, message, updated_at) ON sandboxes TO tuluat_management_api;
GRANT UPDATE (due_at, dead_lettered_at) ON replies TO tuluat_management_api;
GRANT UPDATE (state, decided_by, updated_at) ON dead_letters TO tuluat_management_api;
GRANT UPDATE (state, decided_by, decided_via, reason, decided_at) ON approvals TO tuluat_management_api;
GRANT INSERT ON audit_log TO tuluat_management_api;
GRANT INSERT ON agent_execution_logs, agent_execution_logs_overflow TO tuluat_management_api;

-- Who writes log entries takes their ids.
GRANT USAGE ON SEQUENCE agent_execution_logs_log_id_seq TO tuluat_agent_step, tuluat_sandbox_exec, tuluat_reaper_cron, tuluat_management_api;

-- The newest command of an agent is found by its id now; see 0007.
GRANT SELECT (execution_id) ON executions TO tuluat_agent_status;
