-- +goose Up

-- As in 0004: rather fail than hold others up behind a long transaction.
SET LOCAL lock_timeout = '5s';

-- approvals: questions that a turn itself waits for, not one of its calls.
ALTER TABLE approvals
    ADD COLUMN kind       text CONSTRAINT approval_kind CHECK (kind IN ('BUDGET', 'GUARDRAIL')), -- NULL: a tool call or a visit waits
    ADD COLUMN message_id text REFERENCES messages, -- of the turn that waits
    ADD COLUMN proposal      jsonb,                    -- postgres.Proposal: what goes on once it is approved, and is shown to nobody before
    ADD CONSTRAINT approval_of_turn CHECK ((kind IS NULL) = (message_id IS NULL)) NOT VALID;
CREATE UNIQUE INDEX approval_once_per_budget ON approvals (message_id) WHERE kind = 'BUDGET' AND state = 'PENDING';
CREATE INDEX approvals_of_turn ON approvals (message_id) WHERE kind IS NOT NULL AND consumed_at IS NULL;

-- budget_grants: what humans have granted on top of a limit, once per approval.
CREATE TABLE budget_grants (
    approval_id text PRIMARY KEY REFERENCES approvals, -- that gave it
    scope       text NOT NULL CONSTRAINT grant_scope CHECK (scope IN ('TURN', 'SESSION', 'AGENT_DAY', 'USER_DAY')),
    subject     text NOT NULL,  -- of TURN its message, of SESSION the session; else as in budget_usage
    day         date,           -- UTC; NULL: of TURN and SESSION
    kind        text NOT NULL CONSTRAINT grant_kind CHECK (kind IN ('STEPS', 'TOOL_CALLS', 'MILLIS', 'TOKENS', 'COST', 'EXECUTION_MILLIS', 'EXECUTIONS')),
    amount      bigint NOT NULL CONSTRAINT grant_amount CHECK (amount > 0),
    created_at  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT grant_day CHECK ((day IS NULL) = (scope IN ('TURN', 'SESSION')))
);
CREATE INDEX budget_grants_subject ON budget_grants (scope, subject);

-- +goose StatementBegin
-- reserve_budget is as in 0011, with what was granted on top of each limit, and the
-- limit that has no room as it is then. whole: of millis it reserves all, or nothing.
CREATE FUNCTION reserve_budget(scopes text[], subjects text[], most bigint[], want bigint[], whole boolean,
    OUT on_day date, OUT granted bigint, OUT over_scope text, OUT over_kind int, OUT over_used bigint, OUT over_reserved bigint, OUT over_limit bigint) LANGUAGE plpgsql AS $$
DECLARE
    used bigint[];
    held bigint[];
    room bigint;
    top bigint;
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
            top := most[6 * (i - 1) + k] + COALESCE((SELECT sum(g.amount) FROM budget_grants g WHERE g.scope = scopes[i] AND g.subject = subjects[i] AND g.day = on_day
                AND g.kind = (ARRAY['STEPS', 'TOOL_CALLS', 'MILLIS', 'TOKENS', 'COST', 'EXECUTION_MILLIS'])[k]), 0);
            room := top - used[k] - held[k];
            IF room < (CASE WHEN k = 3 AND NOT whole THEN least(want[k], 1000) ELSE want[k] END) THEN
                over_scope := scopes[i]; over_kind := k; over_used := used[k]; over_reserved := held[k]; over_limit := top;
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
-- As those of the release before call it.
CREATE OR REPLACE FUNCTION reserve_budget(scopes text[], subjects text[], most bigint[], want bigint[],
    OUT on_day date, OUT granted bigint, OUT over_scope text, OUT over_kind int, OUT over_used bigint, OUT over_reserved bigint) LANGUAGE sql AS $$
    SELECT r.on_day, r.granted, r.over_scope, r.over_kind, r.over_used, r.over_reserved FROM reserve_budget(scopes, subjects, most, want, false) r
$$;
-- +goose StatementEnd

GRANT SELECT, INSERT ON budget_grants TO tuluat_agent_step;
GRANT SELECT ON budget_grants TO tuluat_management_api;
