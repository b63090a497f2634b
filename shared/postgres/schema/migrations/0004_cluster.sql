-- +goose Up

-- What is changed here is locked for a moment. Behind a long transaction that
-- moment would hold up everybody who comes later: rather fail, all of it, and
-- run again (config/base/migrate.yaml tries several times).
SET LOCAL lock_timeout = '5s';

-- agents: what their resources' status needs.
ALTER TABLE agents
    ADD COLUMN generation bigint NOT NULL DEFAULT 0,     -- of the resource that phase and reason speak of; 0: it is no resource
    ADD COLUMN sandbox_digest text NOT NULL DEFAULT '';  -- of the sandbox spec of the revision in use

-- agent_statuses: what was last written to the status of an agent's resource.
CREATE TABLE agent_statuses (
    agent_name text PRIMARY KEY REFERENCES agents,
    digest     text NOT NULL DEFAULT '',  -- of what that status was made from: another digest is another status
    written_at timestamptz                -- the last claim to write it; NULL: none yet
);

-- secret_checks: whether a Secret that an agent names can be used, as the
-- function that needs it has found. Never anything of its value.
CREATE TABLE secret_checks (
    function_name text NOT NULL,
    agent_name    text NOT NULL REFERENCES agents,
    secret_name   text NOT NULL,
    secret_key    text NOT NULL,
    state         text NOT NULL CONSTRAINT secret_check_state CHECK (state IN ('AVAILABLE', 'NOT_FOUND', 'DENIED', 'EMPTY')),
    reason        text NOT NULL DEFAULT '',  -- for people: what to mend
    updated_at    timestamptz NOT NULL DEFAULT now(), -- last change of state
    PRIMARY KEY (agent_name, function_name, secret_name, secret_key)
);

-- sandboxes: why one cannot be used, in words; empty when it can.
ALTER TABLE sandboxes ADD COLUMN message text NOT NULL DEFAULT '';

-- How agents stand, and nothing of what their commands are or said.
GRANT SELECT (agent_name, seq, state, started_at, created_at) ON executions TO tuluat_agent_status;
GRANT SELECT (agent_name, state, spec_digest, created_at, sandbox_uid, reason, message) ON sandboxes TO tuluat_agent_status;
GRANT SELECT ON secret_checks TO tuluat_agent_status;
GRANT SELECT, INSERT, UPDATE ON agent_statuses TO tuluat_agent_status;
GRANT SELECT ON agent_statuses, secret_checks TO tuluat_reaper_cron;
GRANT SELECT, INSERT, UPDATE, DELETE ON secret_checks TO tuluat_webhook_ingest, tuluat_whatsapp_ingest, tuluat_telegram_ingest;
