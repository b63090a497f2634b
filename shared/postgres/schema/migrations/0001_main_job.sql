-- +goose Up

-- agents: one row per AiAgent; agent_revisions: what it said, never changed.
CREATE TABLE agents (
    agent_name text PRIMARY KEY,
    revision   bigint NOT NULL,            -- the newest valid revision; 0: none yet
    phase      text NOT NULL CONSTRAINT agent_phase CHECK (phase IN ('READY', 'INVALID', 'DELETED')),
    reason     text NOT NULL DEFAULT '',   -- for people: why it is not READY
    digest     text NOT NULL,              -- of that revision's spec: another digest is another revision
    source     text NOT NULL DEFAULT '',   -- what defined it last: a file of the folder
    created_at timestamptz NOT NULL DEFAULT now(), -- or when it came back: the older of two claims on a channel wins
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE agent_revisions (
    agent_name text NOT NULL REFERENCES agents,
    revision   bigint NOT NULL,
    spec       jsonb NOT NULL,             -- harness.Agent
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (agent_name, revision)
);
CREATE TABLE channel_routes (
    channel     text NOT NULL CONSTRAINT route_channel CHECK (channel IN ('WHATSAPP', 'TELEGRAM', 'WEBHOOK', 'API')),
    account     text NOT NULL,
    agent_name  text NOT NULL REFERENCES agents,
    spec        jsonb NOT NULL,            -- harness.ChannelSpec
    open_to_all boolean NOT NULL,          -- sender policy open
    senders     text[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (channel, account)
);
CREATE INDEX channel_routes_agent ON channel_routes (agent_name);

-- sessions: the unit that is claimed. due_at is the mark "someone should look";
-- a claim takes the mark, a release returns it.
CREATE TABLE sessions (
    session_id   text PRIMARY KEY,
    agent_name   text NOT NULL REFERENCES agents,
    channel      text NOT NULL CONSTRAINT session_channel CHECK (channel IN ('WHATSAPP', 'TELEGRAM', 'WEBHOOK', 'API')),
    account      text NOT NULL,
    chat         text NOT NULL,
    state        text NOT NULL CONSTRAINT session_state CHECK (state IN ('PENDING', 'RUNNING', 'AWAITING_APPROVAL',
                 'AWAITING_EXECUTION', 'IDLE', 'COMPLETED', 'BLOCKED', 'FAILED', 'CANCELLED')),
    reason       text NOT NULL DEFAULT '',
    message_seq  bigint NOT NULL DEFAULT 0,  -- last number given to a message
    event_seq    bigint NOT NULL DEFAULT 0,  -- last number given to a session event
    step_seq     bigint NOT NULL DEFAULT 0,  -- last number given to a step
    due_at       timestamptz,
    retry_at     timestamptz,                -- no claim before: a model or limit said wait
    attempts     int NOT NULL DEFAULT 0,     -- claims since the last commit
    lease_owner  text,
    lease_token  bigint NOT NULL DEFAULT 0,  -- fences every write of a claim
    lease_until  timestamptz,
    announced_at timestamptz,                -- last time the sweep woke it
    announced_token bigint,                  -- the lease token then: if it is still the newest, nobody heard
    turn_steps   int NOT NULL DEFAULT 0,     -- what the running turn has used, reserved before it is spent
    turn_tool_calls int NOT NULL DEFAULT 0,
    turn_executions int NOT NULL DEFAULT 0,
    turn_tokens  bigint NOT NULL DEFAULT 0,
    turn_started_at timestamptz,
    dead_lettered_at timestamptz,            -- the broker gave up on a wake of it
    idle_seconds int NOT NULL DEFAULT 0,     -- 0: never ends by itself
    traceparent  text NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    ended_at     timestamptz
);
CREATE UNIQUE INDEX session_open_conversation ON sessions (agent_name, channel, account, chat)
    WHERE state NOT IN ('COMPLETED', 'CANCELLED');
CREATE INDEX sessions_conversation ON sessions (channel, account, chat, created_at);
CREATE INDEX sessions_due ON sessions (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX sessions_leased ON sessions (lease_until) WHERE lease_owner IS NOT NULL;
CREATE INDEX sessions_idle ON sessions (updated_at) WHERE state IN ('IDLE', 'BLOCKED', 'FAILED') AND idle_seconds > 0;

-- inbox: one row per update a provider gave us, so that a repeat has no effect.
CREATE TABLE inbox (
    channel     text NOT NULL,
    account     text NOT NULL,
    provider_id text NOT NULL,
    message_id  text NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (channel, account, provider_id)
);
CREATE INDEX inbox_received ON inbox USING brin (received_at); -- for the sweep; costs an insert next to nothing

CREATE TABLE messages (
    message_id      text PRIMARY KEY,
    session_id      text NOT NULL REFERENCES sessions,
    seq             bigint NOT NULL,
    direction       text NOT NULL CONSTRAINT message_direction CHECK (direction IN ('INBOUND', 'OUTBOUND')),
    state           text NOT NULL CONSTRAINT message_state CHECK (state IN ('PENDING', 'RUNNING', 'DONE')),
    channel_user_id text NOT NULL,
    provider_id     text NOT NULL DEFAULT '',
    text            text NOT NULL,
    metadata        jsonb NOT NULL DEFAULT '{}',
    in_reply_to     text REFERENCES messages,
    created_at      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT message_order UNIQUE (session_id, seq)
);
CREATE UNIQUE INDEX message_one_running ON messages (session_id) WHERE state = 'RUNNING';
CREATE INDEX messages_pending ON messages (session_id, seq) WHERE state = 'PENDING';
CREATE UNIQUE INDEX message_one_answer ON messages (in_reply_to) WHERE in_reply_to IS NOT NULL;

-- replies: one row per part of an outbound message, each sent effectively once.
CREATE TABLE replies (
    reply_id        text PRIMARY KEY,
    message_id      text NOT NULL REFERENCES messages,
    session_id      text NOT NULL REFERENCES sessions,
    seq             bigint NOT NULL,         -- of its message: replies of a session go out in (seq, part) order
    part            int NOT NULL,
    parts           int NOT NULL,
    text            text NOT NULL,
    state           text NOT NULL CONSTRAINT reply_state CHECK (state IN ('PLANNED', 'SENT', 'DELIVERED', 'READ', 'FAILED', 'UNKNOWN')),
    reason          text NOT NULL DEFAULT '',
    provider_id     text NOT NULL DEFAULT '',
    attempts        int NOT NULL DEFAULT 0,
    due_at          timestamptz NOT NULL DEFAULT now(),
    lease_owner     text,
    lease_token     bigint NOT NULL DEFAULT 0,
    lease_until     timestamptz,
    dead_lettered_at timestamptz,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT reply_part UNIQUE (message_id, part)
);
CREATE INDEX replies_open ON replies (session_id, seq, part) WHERE state IN ('PLANNED', 'UNKNOWN');
CREATE INDEX replies_due ON replies (due_at) WHERE state IN ('PLANNED', 'UNKNOWN');

-- steps: what the model answered, one row per answer that was committed.
CREATE TABLE steps (
    step_id       text PRIMARY KEY,
    session_id    text NOT NULL REFERENCES sessions,
    message_id    text NOT NULL REFERENCES messages,  -- the turn it belongs to
    seq           bigint NOT NULL,
    text          text NOT NULL,
    model         text NOT NULL DEFAULT '',
    carry         text NOT NULL DEFAULT '',  -- what the provider wants back with this answer, unchanged
    input_tokens  bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    created_at    timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT step_order UNIQUE (session_id, seq)
);
CREATE INDEX steps_message ON steps (message_id);
CREATE TABLE tool_calls (
    tool_call_id text PRIMARY KEY,
    step_id      text NOT NULL REFERENCES steps,
    session_id   text NOT NULL REFERENCES sessions,
    seq          int NOT NULL,                -- its place in the step
    provider_id  text NOT NULL,               -- the id the model knows it by
    name         text NOT NULL,
    arguments    text NOT NULL,               -- as the model wrote them
    state        text NOT NULL CONSTRAINT tool_call_state CHECK (state IN ('PENDING', 'RUNNING', 'DONE', 'FAILED', 'DENIED', 'EXPIRED')),
    result       text,                        -- what the model is told: exactly one per call
    created_at   timestamptz NOT NULL DEFAULT now(),
    ended_at     timestamptz,
    CONSTRAINT tool_call_order UNIQUE (step_id, seq),
    CONSTRAINT tool_call_result CHECK ((result IS NULL) = (state IN ('PENDING', 'RUNNING')))
);
CREATE INDEX tool_calls_open ON tool_calls (session_id) WHERE state IN ('PENDING', 'RUNNING');

CREATE TABLE sandboxes (
    sandbox_id     text PRIMARY KEY,
    sandbox_name   text NOT NULL UNIQUE,       -- never reused
    agent_name     text NOT NULL REFERENCES agents,
    session_id     text NOT NULL REFERENCES sessions,
    spec           jsonb NOT NULL,             -- harness.SandboxSpec
    spec_digest    text NOT NULL,
    state          text NOT NULL CONSTRAINT sandbox_state CHECK (state IN ('CREATING', 'READY', 'TERMINATING', 'GONE')),
    reason         text NOT NULL DEFAULT '',
    sandbox_uid    text NOT NULL DEFAULT '',   -- of the object, once it exists
    created_at     timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now(), -- last change of state, or last try to end it
    expires_at     timestamptz NOT NULL,
    last_activity_at timestamptz NOT NULL DEFAULT now(),
    ended_at       timestamptz,
    CONSTRAINT sandbox_ended CHECK ((ended_at IS NULL) = (state <> 'GONE')),
    CONSTRAINT sandbox_ready CHECK (state <> 'READY' OR sandbox_uid <> '')
);
CREATE UNIQUE INDEX sandbox_live_of_session ON sandboxes (session_id, spec_digest) WHERE state IN ('CREATING', 'READY');
CREATE INDEX sandboxes_live ON sandboxes (agent_name) WHERE state <> 'GONE';
CREATE INDEX sandboxes_session ON sandboxes (session_id, created_at);

CREATE TABLE executions (
    execution_id text PRIMARY KEY,
    seq          bigint GENERATED ALWAYS AS IDENTITY, -- the order in which commands were asked for and are served
    session_id   text NOT NULL REFERENCES sessions,
    agent_name   text NOT NULL REFERENCES agents,
    cause        text NOT NULL CONSTRAINT execution_cause CHECK (cause IN ('TOOL_CALL', 'NODE_VISIT', 'API')),
    cause_id     text NOT NULL,
    cause_attempt int NOT NULL DEFAULT 1,
    command      text NOT NULL,
    spec         jsonb NOT NULL,              -- harness.SandboxSpec
    spec_digest  text NOT NULL,
    max_sandboxes int NOT NULL,
    state        text NOT NULL CONSTRAINT execution_state CHECK (state IN ('PENDING', 'RUNNING', 'COMPLETED', 'FAILED', 'TIMED_OUT',
                 'OUT_OF_MEMORY', 'DISK_LIMIT', 'SANDBOX_GONE', 'CANCELLED', 'UNKNOWN')),
    reason       text NOT NULL DEFAULT '',
    sandbox_id   text REFERENCES sandboxes,
    sandbox_uid  text NOT NULL DEFAULT '',    -- committed with RUNNING, before the exec
    nonce        text NOT NULL,               -- proves the runner's trailer
    exit_code    int,
    stdout_bytes bigint NOT NULL DEFAULT 0,   -- printed, stored or not
    stderr_bytes bigint NOT NULL DEFAULT 0,
    stdout_tail  bytea NOT NULL DEFAULT '',   -- the end of what was printed, where not all was stored
    stderr_tail  bytea NOT NULL DEFAULT '',
    attempts     int NOT NULL DEFAULT 0,      -- claims without progress
    due_at       timestamptz,                 -- next look; NULL: waits for a sandbox of its agent
    lease_owner  text,
    lease_token  bigint NOT NULL DEFAULT 0,
    lease_until  timestamptz,
    dead_lettered_at timestamptz,
    created_at   timestamptz NOT NULL DEFAULT now(),
    started_at   timestamptz,
    ended_at     timestamptz,
    CONSTRAINT execution_once UNIQUE (cause, cause_id, cause_attempt),
    CONSTRAINT execution_ended CHECK ((ended_at IS NULL) = (state IN ('PENDING', 'RUNNING'))),
    CONSTRAINT execution_placed CHECK (state <> 'RUNNING' OR (sandbox_id IS NOT NULL AND sandbox_uid <> ''))
);
CREATE UNIQUE INDEX execution_one_running ON executions (sandbox_id) WHERE state = 'RUNNING';
CREATE INDEX executions_open ON executions (agent_name, seq) WHERE state IN ('PENDING', 'RUNNING');
CREATE INDEX executions_session ON executions (session_id);

CREATE TABLE execution_output (
    execution_id text NOT NULL REFERENCES executions,
    stream       text NOT NULL CONSTRAINT output_stream CHECK (stream IN ('stdout', 'stderr')),
    start_byte   bigint NOT NULL,
    data         bytea NOT NULL,
    PRIMARY KEY (execution_id, stream, start_byte)
);

-- session_events: what happened in a session, in order: the source of streams.
CREATE TABLE session_events (
    session_id text NOT NULL REFERENCES sessions,
    seq        bigint NOT NULL,
    kind       text NOT NULL CONSTRAINT session_event_kind CHECK (kind IN ('TURN', 'TOOL_CALL', 'TOOL_RESULT', 'REPLY')),
    ref        text NOT NULL,                 -- message, tool call or outbound message it tells of
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_id, seq)
);

-- outbox: announcements not yet heard. The consumer's claim of the row that an
-- announcement is about deletes it; the sweep repeats what is left.
CREATE TABLE outbox (
    event_id    text PRIMARY KEY,
    event_type  text NOT NULL,
    subject     text NOT NULL,                -- the row it announces: what a consumer claims
    session_id  text NOT NULL DEFAULT '',
    agent_name  text NOT NULL DEFAULT '',
    channel     text NOT NULL DEFAULT '',
    payload     jsonb NOT NULL,
    traceparent text NOT NULL DEFAULT '',
    attempts    int NOT NULL DEFAULT 1,
    due_at      timestamptz NOT NULL,         -- when the sweep repeats it
    created_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX outbox_subject ON outbox (subject);
CREATE INDEX outbox_due ON outbox (due_at);

CREATE TABLE dead_letters (
    dead_letter_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id    text NOT NULL,
    event_type  text NOT NULL,
    session_id  text NOT NULL DEFAULT '',
    payload     jsonb NOT NULL,
    destination text NOT NULL,                -- who would not take it
    status_code int,                          -- what it answered
    cause       text NOT NULL DEFAULT '',     -- the start of the answer, as data
    state       text NOT NULL CONSTRAINT dead_letter_state CHECK (state IN ('OPEN', 'MOOT', 'REPLAYED', 'DISCARDED')),
    times       int NOT NULL DEFAULT 1,       -- how often the broker gave up on it
    received_at timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(), -- the last time
    CONSTRAINT dead_letter_once UNIQUE (event_id, destination)
);

-- sweeps: the lease of the one pass at a time; sweep_reports: what each found.
CREATE TABLE sweeps (
    sweep_name   text PRIMARY KEY,
    lease_owner  text,
    lease_token  bigint NOT NULL DEFAULT 0,  -- fences every write of a pass
    lease_until  timestamptz,
    completed_at timestamptz                 -- last pass in which every item ran; NULL: none yet
);
INSERT INTO sweeps (sweep_name) VALUES ('main');
CREATE TABLE sweep_reports (
    sweep_report_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    started_at   timestamptz NOT NULL,
    completed_at timestamptz NOT NULL DEFAULT now(),
    findings     jsonb NOT NULL               -- per item: found, done, left, error
);

CREATE TABLE agent_execution_logs (
    agent_name       text NOT NULL,
    session_id       text NOT NULL,
    node_id          text NOT NULL,
    level            text NOT NULL CONSTRAINT log_level CHECK (level IN ('DEBUG', 'INFO', 'WARN', 'ERROR')),
    message          text NOT NULL,
    guardrail_result text NOT NULL DEFAULT '',
    created_at       timestamptz NOT NULL DEFAULT now()
) PARTITION BY RANGE (created_at);
CREATE INDEX agent_execution_logs_agent ON agent_execution_logs (agent_name, created_at);
CREATE INDEX agent_execution_logs_session ON agent_execution_logs (session_id, created_at);
-- Where entries go whose day has no partition yet; the sweep moves them on.
CREATE TABLE agent_execution_logs_overflow (LIKE agent_execution_logs INCLUDING DEFAULTS INCLUDING CONSTRAINTS);

-- +goose StatementBegin
-- create_log_partitions makes the partition of each day from today to days ahead
-- and moves what waits in the overflow table. Returns how many it made.
CREATE FUNCTION create_log_partitions(ahead int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    day date;
    made int := 0;
BEGIN
    FOR day IN SELECT generate_series((now() AT TIME ZONE 'UTC')::date, (now() AT TIME ZONE 'UTC')::date + ahead, interval '1 day')::date
               UNION SELECT DISTINCT (created_at AT TIME ZONE 'UTC')::date FROM agent_execution_logs_overflow LOOP
        IF to_regclass('agent_execution_logs_' || to_char(day, 'YYYYMMDD')) IS NULL THEN
            EXECUTE format('CREATE TABLE IF NOT EXISTS %I PARTITION OF agent_execution_logs FOR VALUES FROM (%L) TO (%L)',
                'agent_execution_logs_' || to_char(day, 'YYYYMMDD'), day || ' 00:00:00+00', (day + 1) || ' 00:00:00+00');
            made := made + 1;
        END IF;
    END LOOP;
    WITH moved AS (DELETE FROM agent_execution_logs_overflow RETURNING *)
    INSERT INTO agent_execution_logs SELECT * FROM moved;
    RETURN made;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- log_entry never fails for want of a partition: a log line must not fail a step.
CREATE FUNCTION log_entry(agent text, session text, node text, lvl text, msg text, guardrail text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO agent_execution_logs (agent_name, session_id, node_id, level, message, guardrail_result)
    VALUES (agent, session, node, lvl, msg, guardrail);
EXCEPTION WHEN check_violation THEN
    INSERT INTO agent_execution_logs_overflow (agent_name, session_id, node_id, level, message, guardrail_result)
    VALUES (agent, session, node, lvl, msg, guardrail);
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- fence_session locks the session and raises TU001 unless the caller's lease
-- token is still the newest: the first statement of every write of a claim.
CREATE FUNCTION fence_session(id text, token bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM sessions WHERE session_id = id AND lease_token = token AND lease_owner IS NOT NULL FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease of session lost' USING ERRCODE = 'TU001';
    END IF;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- fence_execution does the same for an execution.
CREATE FUNCTION fence_execution(id text, token bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM executions WHERE execution_id = id AND lease_token = token AND lease_owner IS NOT NULL FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease of execution lost' USING ERRCODE = 'TU001';
    END IF;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- fence_reply does the same for a reply.
CREATE FUNCTION fence_reply(id text, token bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM replies WHERE reply_id = id AND lease_token = token AND lease_owner IS NOT NULL FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease of reply lost' USING ERRCODE = 'TU001';
    END IF;
END $$;
-- +goose StatementEnd

SELECT create_log_partitions(14);
