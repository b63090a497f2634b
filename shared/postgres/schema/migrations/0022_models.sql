-- +goose Up

-- As in 0004: rather fail than hold others up behind a long transaction.
SET LOCAL lock_timeout = '5s';

-- Tokens of input_tokens that the provider had kept, and that it keeps from now on.
ALTER TABLE steps
    ADD COLUMN cache_read_tokens  bigint NOT NULL DEFAULT 0,
    ADD COLUMN cache_write_tokens bigint NOT NULL DEFAULT 0;

-- model_attempts: every question to a model, and what came of it. One that a crash
-- cut off has no row: attempts skips its number.
CREATE TABLE model_attempts (
    model_attempt_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session_id         text NOT NULL REFERENCES sessions,
    agent_name         text NOT NULL,
    message_id         text NOT NULL REFERENCES messages, -- of the turn
    step_seq           bigint NOT NULL,                -- of the step that it was asked for, which there may never be
    attempts           int NOT NULL,                   -- claims since the last commit, this one included
    purpose            text NOT NULL CONSTRAINT attempt_purpose CHECK (purpose IN ('TURN', 'SUMMARY', 'GUARDRAIL')),
    provider           text NOT NULL,
    model              text NOT NULL,                  -- as it was asked for
    reason             text NOT NULL DEFAULT '',       -- why it gave no answer; empty: it gave one
    final              boolean NOT NULL DEFAULT false, -- it gives none to this question, however often it is asked
    wait_millis        bigint NOT NULL DEFAULT 0,      -- it asks not to be asked before
    input_tokens       bigint NOT NULL DEFAULT 0,
    cache_read_tokens  bigint NOT NULL DEFAULT 0,
    cache_write_tokens bigint NOT NULL DEFAULT 0,
    output_tokens      bigint NOT NULL DEFAULT 0,
    cost_micros        bigint,                         -- millionths of the platform's currency unit; NULL: no price is known
    millis             bigint NOT NULL,                -- that it took
    created_at         timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX model_attempts_session ON model_attempts (session_id, step_seq);
CREATE INDEX model_attempts_agent ON model_attempts (agent_name, created_at);

-- summaries: what models see in the place of a session's older messages: the newest.
CREATE TABLE summaries (
    session_id text NOT NULL REFERENCES sessions,
    up_to      bigint NOT NULL,          -- number of the last message that it stands for
    text       text NOT NULL,            -- empty: there is nothing in their place
    reason     text NOT NULL DEFAULT '', -- why messages are left out that are not in text
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_id, up_to)
);

GRANT UPDATE (updated_at) ON attachments TO tuluat_agent_step;
GRANT SELECT, INSERT ON model_attempts, summaries TO tuluat_agent_step;
GRANT SELECT ON model_attempts, summaries TO tuluat_management_api;
