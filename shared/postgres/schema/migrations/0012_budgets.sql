-- +goose Up

-- As in 0004: rather fail than hold others up behind a long transaction.
SET LOCAL lock_timeout = '5s';

-- The kill switch: nobody works for an agent that is halted. switches has that of
-- the whole install.
ALTER TABLE agents
    ADD COLUMN halted_at   timestamptz,            -- NULL: it is not
    ADD COLUMN halted_by   text NOT NULL DEFAULT '',
    ADD COLUMN halt_reason text NOT NULL DEFAULT '';
CREATE TABLE switches (
    switch_name text PRIMARY KEY,
    halted_at   timestamptz,
    halted_by   text NOT NULL DEFAULT '',
    halt_reason text NOT NULL DEFAULT ''
);
INSERT INTO switches (switch_name) VALUES ('install');

-- Takeover: a person has the session, and its agent keeps out of it.
ALTER TABLE sessions
    ADD COLUMN halt_told_at timestamptz,           -- last time the chat was told of a halt
    ADD COLUMN paused_at    timestamptz,           -- NULL: nobody has taken it over
    ADD COLUMN paused_by    text NOT NULL DEFAULT '';
ALTER TABLE steps ADD COLUMN author text NOT NULL DEFAULT '';    -- the person who answered in the agent's place; empty: the agent
ALTER TABLE messages ADD COLUMN author text NOT NULL DEFAULT ''; -- the same, of an outbound message

GRANT SELECT ON switches TO tuluat_agent_step, tuluat_sandbox_exec, tuluat_reaper_cron, tuluat_agent_status, tuluat_management_api;
GRANT UPDATE (halted_at, halted_by, halt_reason) ON agents, switches TO tuluat_management_api;
GRANT UPDATE (paused_at, paused_by, step_seq, turn_started_at, attempts) ON sessions TO tuluat_management_api;
GRANT INSERT ON steps, replies TO tuluat_management_api;
