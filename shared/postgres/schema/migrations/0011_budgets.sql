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

-- Budgets. What a session and its running turn have used, beside what 0001 counts.
ALTER TABLE sessions
    ADD COLUMN used_steps            bigint NOT NULL DEFAULT 0,  -- answers of the model
    ADD COLUMN used_tool_calls       bigint NOT NULL DEFAULT 0,
    ADD COLUMN used_millis           bigint NOT NULL DEFAULT 0,  -- in which a model answered or a command ran
    ADD COLUMN used_tokens           bigint NOT NULL DEFAULT 0,
    ADD COLUMN used_cost             bigint NOT NULL DEFAULT 0,  -- millionths of the platform's currency unit
    ADD COLUMN used_execution_millis bigint NOT NULL DEFAULT 0,
    ADD COLUMN turn_cost             bigint NOT NULL DEFAULT 0,
    ADD COLUMN turn_execution_millis bigint NOT NULL DEFAULT 0;

-- budget_usage: what an agent, or one person with an agent, has used on a day, and
-- what is reserved for calls and commands that are under way. A reservation that a
-- crash leaves stays: it counts as spent.
CREATE TABLE budget_usage (
    scope   text NOT NULL CONSTRAINT budget_scope CHECK (scope IN ('AGENT_DAY', 'USER_DAY')),
    subject text NOT NULL,  -- the agent's name; of a person, with the channel and their id there
    day     date NOT NULL,  -- UTC
    used_steps                bigint NOT NULL DEFAULT 0,
    used_tool_calls           bigint NOT NULL DEFAULT 0,
    used_millis               bigint NOT NULL DEFAULT 0,
    used_tokens               bigint NOT NULL DEFAULT 0,
    used_cost                 bigint NOT NULL DEFAULT 0,
    used_execution_millis     bigint NOT NULL DEFAULT 0,
    reserved_steps            bigint NOT NULL DEFAULT 0,
    reserved_tool_calls       bigint NOT NULL DEFAULT 0,
    reserved_millis           bigint NOT NULL DEFAULT 0,
    reserved_tokens           bigint NOT NULL DEFAULT 0,
    reserved_cost             bigint NOT NULL DEFAULT 0,
    reserved_execution_millis bigint NOT NULL DEFAULT 0,
    blocked_at timestamptz, -- last time a turn ended BLOCKED
    PRIMARY KEY (scope, subject, day)
);

-- executions: what is reserved for one, and where.
ALTER TABLE executions
    ADD COLUMN reserved_millis bigint NOT NULL DEFAULT 0,
    ADD COLUMN budget_day      date,                      -- NULL: nothing is reserved
    ADD COLUMN budget_user     text NOT NULL DEFAULT '';  -- subject of USER_DAY; empty: none

-- +goose StatementBegin
-- reserve_budget reserves want in every one of scopes, or nothing. Amounts are in
-- the order of the columns of budget_usage; most has six for each scope, -1 being
-- no limit. Of millis it reserves what is left, a second at least. It returns the
-- day, and how much of millis, or the scope and the amount (from 1) that has no room.
CREATE FUNCTION reserve_budget(scopes text[], subjects text[], most bigint[], want bigint[],
    OUT on_day date, OUT granted bigint, OUT over_scope text, OUT over_kind int, OUT over_used bigint, OUT over_reserved bigint) LANGUAGE plpgsql AS $$
DECLARE
    used bigint[];
    held bigint[];
    room bigint;
BEGIN
    on_day := (now() AT TIME ZONE 'UTC')::date;
    granted := want[3];
    FOR i IN 1..cardinality(scopes) LOOP
        INSERT INTO budget_usage (scope, subject, day) VALUES (scopes[i], subjects[i], on_day) ON CONFLICT DO NOTHING;
        SELECT ARRAY[b.used_steps, b.used_tool_calls, b.used_millis, b.used_tokens, b.used_cost, b.used_execution_millis],
               ARRAY[b.reserved_steps, b.reserved_tool_calls, b.reserved_millis, b.reserved_tokens, b.reserved_cost, b.reserved_execution_millis]
        INTO used, held FROM budget_usage b WHERE b.scope = scopes[i] AND b.subject = subjects[i] AND b.day = on_day FOR UPDATE;
        FOR k IN 1..6 LOOP
            CONTINUE WHEN most[6 * (i - 1) + k] < 0 OR want[k] = 0;
            room := most[6 * (i - 1) + k] - used[k] - held[k];
            IF room < (CASE WHEN k = 3 THEN least(want[k], 1000) ELSE want[k] END) THEN
                over_scope := scopes[i]; over_kind := k; over_used := used[k]; over_reserved := held[k];
                RETURN;
            END IF;
            IF k = 3 THEN
                granted := least(granted, room);
            END IF;
        END LOOP;
    END LOOP;
    UPDATE budget_usage b SET reserved_steps = b.reserved_steps + want[1], reserved_tool_calls = b.reserved_tool_calls + want[2],
        reserved_millis = b.reserved_millis + granted, reserved_tokens = b.reserved_tokens + want[4],
        reserved_cost = b.reserved_cost + want[5], reserved_execution_millis = b.reserved_execution_millis + want[6]
    FROM unnest(scopes, subjects) AS w (scope, subject) WHERE b.scope = w.scope AND b.subject = w.subject AND b.day = on_day;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- settle_execution counts how long a command ran, and gives back what was reserved
-- for it: by whatever way it ended, and as the last thing of that transaction, so
-- that rows of budgets are locked after all others. A command runs at most as long
-- as its time limit; that its outcome was learnt of later costs nothing.
CREATE FUNCTION settle_execution() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
    ran bigint := CASE WHEN NEW.started_at IS NULL THEN 0 ELSE
        least((extract(epoch FROM NEW.ended_at - NEW.started_at) * 1000)::bigint, COALESCE((NEW.spec->>'timeoutSeconds')::bigint, 0) * 1000) END;
BEGIN
    IF ran > 0 THEN
        UPDATE sessions SET used_millis = used_millis + ran, used_execution_millis = used_execution_millis + ran,
            turn_execution_millis = turn_execution_millis + ran WHERE session_id = NEW.session_id;
    END IF;
    IF ran > 0 OR NEW.reserved_millis > 0 THEN
        INSERT INTO budget_usage AS b (scope, subject, day, used_millis, used_execution_millis)
        SELECT w.scope, w.subject, COALESCE(NEW.budget_day, (now() AT TIME ZONE 'UTC')::date), ran, ran
        FROM (VALUES ('AGENT_DAY', NEW.agent_name), ('USER_DAY', NEW.budget_user)) AS w (scope, subject) WHERE w.subject <> '' ORDER BY w.scope
        ON CONFLICT (scope, subject, day) DO UPDATE SET used_millis = b.used_millis + ran, used_execution_millis = b.used_execution_millis + ran,
            reserved_millis = b.reserved_millis - NEW.reserved_millis, reserved_execution_millis = b.reserved_execution_millis - NEW.reserved_millis;
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE CONSTRAINT TRIGGER execution_settled AFTER UPDATE ON executions DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL AND NEW.cause <> 'API') EXECUTE FUNCTION settle_execution();

GRANT SELECT, INSERT, UPDATE ON budget_usage TO tuluat_agent_step;
GRANT SELECT ON budget_usage TO tuluat_management_api;
GRANT SELECT (scope, subject, day, blocked_at) ON budget_usage TO tuluat_agent_status, tuluat_reaper_cron;
