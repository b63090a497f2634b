-- +goose Up

-- As in 0004: rather fail than hold others up behind a long transaction.
SET LOCAL lock_timeout = '5s';

-- workflows: one row per AiWorkflow; workflow_revisions: what it said, never
-- changed. As agents and agent_revisions.
CREATE TABLE workflows (
    workflow_name text PRIMARY KEY,
    revision   bigint NOT NULL,            -- the newest valid revision; 0: none yet
    phase      text NOT NULL CONSTRAINT workflow_phase CHECK (phase IN ('READY', 'INVALID', 'DELETED')),
    reason     text NOT NULL DEFAULT '',   -- for people: why it is not READY
    digest     text NOT NULL,              -- of that revision's spec: another digest is another revision
    source     text NOT NULL DEFAULT '',   -- what defined it last: a file of the folder
    generation bigint NOT NULL DEFAULT 0,  -- of the resource; 0: it is no resource
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE workflow_revisions (
    workflow_name text NOT NULL REFERENCES workflows,
    revision      bigint NOT NULL,
    spec          jsonb NOT NULL,          -- harness.Workflow
    created_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workflow_name, revision)
);

-- workflow_triggers: those of the revisions in use.
CREATE TABLE workflow_triggers (
    workflow_name text NOT NULL REFERENCES workflows,
    place         int NOT NULL,            -- in the list of the revision, from 0
    type          text NOT NULL CONSTRAINT trigger_type CHECK (type IN ('CHANNEL', 'SCHEDULE')),
    agent_name    text NOT NULL DEFAULT '', -- of CHANNEL
    pattern       text NOT NULL DEFAULT '', -- of CHANNEL
    schedule      text NOT NULL DEFAULT '', -- of SCHEDULE
    time_zone     text NOT NULL DEFAULT '', -- of SCHEDULE
    checked_at    timestamptz NOT NULL DEFAULT now(), -- of SCHEDULE: the times up to here have had their run
    PRIMARY KEY (workflow_name, place)
);
CREATE INDEX workflow_triggers_agent ON workflow_triggers (agent_name) WHERE type = 'CHANNEL';

-- sessions: workflow runs, and the conversations that their nodes have with
-- agents.
ALTER TABLE sessions
    ADD COLUMN workflow_name text,         -- of a run; NULL: it is a conversation
    ADD COLUMN workflow_revision bigint,   -- that the run keeps
    ADD COLUMN parent_visit text,          -- of a conversation: the visit of a node that has it
    ADD COLUMN input jsonb,                -- of a run
    ADD COLUMN started jsonb;              -- of a run: harness.Started

-- workflow_starts: what each run was asked for by, so that a repeat starts none.
CREATE TABLE workflow_starts (
    workflow_name text NOT NULL REFERENCES workflows,
    start_key     text NOT NULL,
    session_id    text NOT NULL REFERENCES sessions,
    created_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workflow_name, start_key)
);

-- node_visits: what a run does, one row per visit of a node. What a visit asks
-- for names it: executions by their cause, approvals by visit_id, conversations
-- by parent_visit.
CREATE TABLE node_visits (
    visit_id      text PRIMARY KEY,
    session_id    text NOT NULL REFERENCES sessions,
    seq           int NOT NULL,            -- its place in the run, from 1
    node_id       text NOT NULL,
    visit         int NOT NULL,            -- its place among those of its node, from 1
    state         text NOT NULL CONSTRAINT visit_state CHECK (state IN ('PENDING', 'RUNNING', 'WAITING', 'DONE', 'FAILED', 'CANCELLED')),
    attempts      int NOT NULL DEFAULT 1,  -- the number of the attempt that is to start, runs or was the last
    arrivals      text[] NOT NULL DEFAULT '{}', -- the visits that led to it
    input         text NOT NULL DEFAULT '', -- of the newest attempt: the prompt, command, question or reply, filled in
    output        jsonb,                   -- of one that has ended, unless CANCELLED
    reason        text NOT NULL DEFAULT '',
    child_session text REFERENCES sessions, -- of the newest attempt: the conversation with its agent
    due_at        timestamptz,             -- PENDING: no start before; RUNNING, WAITING: times out then
    created_at    timestamptz NOT NULL DEFAULT now(),
    started_at    timestamptz,             -- of the newest attempt
    ended_at      timestamptz,
    CONSTRAINT visit_order UNIQUE (session_id, seq),
    CONSTRAINT visit_once UNIQUE (session_id, node_id, visit),
    CONSTRAINT visit_ended CHECK ((ended_at IS NULL) = (state IN ('PENDING', 'RUNNING', 'WAITING'))),
    CONSTRAINT visit_output CHECK (state NOT IN ('DONE', 'FAILED') OR output IS NOT NULL)
);
CREATE INDEX node_visits_open ON node_visits (session_id) WHERE state IN ('PENDING', 'RUNNING', 'WAITING');

-- Workflows as their resources say.
GRANT SELECT, INSERT, UPDATE ON workflows TO tuluat_agent_status;
GRANT SELECT, INSERT ON workflow_revisions TO tuluat_agent_status;
GRANT SELECT, INSERT, UPDATE, DELETE ON workflow_triggers TO tuluat_agent_status;

-- Runs. UPDATE on agents is the lock of their capacity: what is cancelled frees some.
GRANT SELECT ON workflows, workflow_revisions, workflow_triggers, sandboxes TO tuluat_agent_step;
GRANT SELECT, INSERT ON workflow_starts TO tuluat_agent_step;
GRANT SELECT, INSERT, UPDATE ON node_visits TO tuluat_agent_step;
GRANT UPDATE (updated_at) ON agents TO tuluat_agent_step;

-- Runs that the clock starts.
GRANT SELECT ON workflows, workflow_revisions, workflow_triggers, node_visits TO tuluat_reaper_cron;
GRANT UPDATE (checked_at) ON workflow_triggers TO tuluat_reaper_cron;
GRANT SELECT, INSERT ON workflow_starts TO tuluat_reaper_cron;
GRANT INSERT ON sessions TO tuluat_reaper_cron;

-- The node that a command is of, for the log.
GRANT SELECT (visit_id, session_id, node_id) ON node_visits TO tuluat_sandbox_exec;

-- Runs that people start, look at and cancel.
GRANT SELECT ON workflows, workflow_revisions, workflow_triggers, node_visits TO tuluat_management_api;
GRANT SELECT, INSERT ON workflow_starts TO tuluat_management_api;
GRANT UPDATE (state, due_at, ended_at) ON node_visits TO tuluat_management_api;
