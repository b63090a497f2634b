-- +goose Up

-- As in 0004: rather fail than hold others up behind a long transaction.
SET LOCAL lock_timeout = '5s';

-- What a model sees of a message. Those that there are have been seen; one that
-- comes later is screened when a model is to see it, which is not before its turn.
ALTER TABLE messages
    ADD COLUMN screened     boolean NOT NULL DEFAULT true,  -- a model may see it, as it is shown
    ADD COLUMN shown_text   text,                           -- what it sees in the place of text; NULL: text
    ADD COLUMN hidden_files boolean NOT NULL DEFAULT false; -- it is not told of the files that came with it
ALTER TABLE messages ALTER COLUMN screened SET DEFAULT false;

-- guardrail_verdicts: what the guardrails of a step said, one row each, also where
-- they let it pass. They quote nothing of what they judged.
CREATE TABLE guardrail_verdicts (
    guardrail_verdict_id text PRIMARY KEY,
    session_id   text NOT NULL REFERENCES sessions,
    agent_name   text NOT NULL,
    message_id   text REFERENCES messages,   -- of the turn; of INPUT, what was judged
    step_id      text REFERENCES steps,      -- of TOOL_CALL and OUTPUT: the answer that was judged
    tool_call_id text REFERENCES tool_calls, -- of TOOL_CALL and TOOL_OUTPUT
    stage        text NOT NULL CONSTRAINT guardrail_stage CHECK (stage IN ('INPUT', 'TOOL_CALL', 'TOOL_OUTPUT', 'OUTPUT')),
    guardrail    text NOT NULL,              -- its name
    action       text NOT NULL CONSTRAINT guardrail_action CHECK (action IN ('block', 'redact', 'ask', 'warn')), -- what it led to; PASSED: would have led to
    verdict      text NOT NULL CONSTRAINT guardrail_verdict CHECK (verdict IN ('PASSED', 'HIT', 'FAILED')),
    reason       text NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL DEFAULT now(),
    seq          bigint GENERATED ALWAYS AS IDENTITY -- under the session's lock
);
CREATE INDEX guardrail_verdicts_session ON guardrail_verdicts (session_id, seq) WHERE verdict <> 'PASSED';

-- guardrail_counts: how many of them there were. Figures that never run backwards.
CREATE TABLE guardrail_counts (
    agent_name text NOT NULL,
    stage      text NOT NULL CONSTRAINT count_stage CHECK (stage IN ('INPUT', 'TOOL_CALL', 'TOOL_OUTPUT', 'OUTPUT')),
    guardrail  text NOT NULL,
    action     text NOT NULL CONSTRAINT count_action CHECK (action IN ('block', 'redact', 'ask', 'warn')),
    verdict    text NOT NULL CONSTRAINT count_verdict CHECK (verdict IN ('PASSED', 'HIT', 'FAILED')),
    times      bigint NOT NULL,
    PRIMARY KEY (agent_name, stage, guardrail, action, verdict)
);

GRANT INSERT ON guardrail_verdicts TO tuluat_agent_step;
GRANT SELECT, INSERT, UPDATE ON guardrail_counts TO tuluat_agent_step;
GRANT UPDATE (state, reason, due_at) ON attachments TO tuluat_agent_step;
GRANT SELECT ON guardrail_verdicts, guardrail_counts TO tuluat_management_api;
