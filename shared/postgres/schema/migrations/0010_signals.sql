-- +goose Up

-- As in 0004: rather fail than hold others up behind a long transaction.
SET LOCAL lock_timeout = '5s';

-- sessions: the Temporal workflow that is told of its approvals, as
-- {namespace, workflowId, runId}. NULL: none.
ALTER TABLE sessions ADD COLUMN temporal jsonb;

-- temporal_signals: what such a workflow is to be told, one row per approval that has
-- ended, written with its end. What it says is in the approval.
CREATE TABLE temporal_signals (
    temporal_signal_id     text PRIMARY KEY,             -- by which Temporal drops repeats
    approval_id   text NOT NULL REFERENCES approvals,
    session_id    text NOT NULL REFERENCES sessions,
    namespace     text NOT NULL,                -- empty: that of the function's configuration
    workflow_id   text NOT NULL CONSTRAINT temporal_signal_workflow CHECK (workflow_id <> ''),
    temporal_run        text NOT NULL,                -- empty: whichever is the current one when it is sent
    pinned_run text NOT NULL DEFAULT '',     -- which that was: Temporal knows its signals by run
    state         text NOT NULL DEFAULT 'PENDING' CONSTRAINT temporal_signal_state CHECK (state IN ('PENDING', 'SENT', 'FAILED')),
    reason        text NOT NULL DEFAULT '',     -- why the last attempt came to nothing
    attempts      int NOT NULL DEFAULT 0,
    refused_at    timestamptz,                  -- since when every answer is a refusal; NULL: the last was not
    due_at        timestamptz NOT NULL DEFAULT now(),
    lease_owner   text,
    lease_token   bigint NOT NULL DEFAULT 0,
    lease_until   timestamptz,
    created_at    timestamptz NOT NULL DEFAULT now(),
    ended_at      timestamptz,
    CONSTRAINT temporal_signal_once UNIQUE (approval_id),
    CONSTRAINT temporal_signal_ended CHECK ((ended_at IS NULL) = (state = 'PENDING'))
);
CREATE INDEX temporal_signals_due ON temporal_signals (due_at) WHERE state = 'PENDING';
CREATE INDEX temporal_signals_session ON temporal_signals (session_id, temporal_signal_id) WHERE state = 'PENDING';

-- +goose StatementBegin
-- plan_signal writes the signal of an approval that has ended, with its
-- announcement, if its session names a Temporal workflow, or the run that the
-- session belongs to does; else nothing. Doing it again has no effect. Whoever
-- ends an approval calls it in the same transaction, for example in RETURNING: it
-- sees what the statement around it has changed. It needs no right on what it
-- writes.
CREATE FUNCTION plan_signal(approval text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
    of_session text := (SELECT a.session_id FROM approvals a WHERE a.approval_id = approval AND a.state <> 'PENDING');
    of_visit text;
    link jsonb;
BEGIN
    WHILE of_session IS NOT NULL LOOP
        SELECT n.temporal, to_jsonb(n)->>'parent_visit' INTO link, of_visit FROM sessions n WHERE n.session_id = of_session;
        EXIT WHEN link IS NOT NULL OR of_visit IS NULL;
        of_session := (SELECT v.session_id FROM node_visits v WHERE v.visit_id = of_visit);
    END LOOP;
    IF link IS NULL THEN
        RETURN;
    END IF;
    WITH planned AS (
        INSERT INTO temporal_signals (temporal_signal_id, approval_id, session_id, namespace, workflow_id, temporal_run)
        SELECT 'sig' || substr(a.approval_id, 4), a.approval_id, a.session_id, COALESCE(link->>'namespace', ''), link->>'workflowId', COALESCE(link->>'runId', '')
        FROM approvals a WHERE a.approval_id = approval
        ON CONFLICT (approval_id) DO NOTHING RETURNING *
    )
    INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, channel, payload, traceparent, due_at)
    SELECT 'approval.decided:' || p.approval_id || ':signal', 'ai.tuluat.approval.decided.v1', p.temporal_signal_id, n.session_id, n.agent_name, n.channel,
           jsonb_build_object('session', n.session_id), n.traceparent, now() + interval '30 seconds'
    FROM planned p JOIN sessions n USING (session_id) ON CONFLICT (event_id) DO NOTHING;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- link_session says which Temporal workflow the session that message m has opened
-- is linked to. Where m went on in a session that was there, that must be linked
-- to the same, else TU002 is raised.
CREATE FUNCTION link_session(m text, link jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE sessions n SET temporal = link FROM messages f WHERE f.message_id = m AND f.seq = 1 AND n.session_id = f.session_id;
    IF EXISTS (SELECT 1 FROM messages f JOIN sessions n USING (session_id) WHERE f.message_id = m AND n.temporal IS DISTINCT FROM link) THEN
        RAISE EXCEPTION 'the session is linked otherwise' USING ERRCODE = 'TU002';
    END IF;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'tuluat_temporal_bridge') THEN
        RETURN;
    END IF;
    CREATE ROLE tuluat_temporal_bridge NOLOGIN;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN
        NULL; -- another migrator was first
    WHEN insufficient_privilege THEN
        RAISE insufficient_privilege USING MESSAGE = format('role tuluat_temporal_bridge does not exist and %I may not create it', current_user),
            HINT = 'Give the migrating role CREATEROLE, or create the roles first.';
END $$;
-- +goose StatementEnd

-- What was decided, and nothing of what was asked or said.
GRANT SELECT ON temporal_signals TO tuluat_temporal_bridge, tuluat_reaper_cron, tuluat_management_api;
GRANT UPDATE (pinned_run, state, reason, attempts, refused_at, due_at, lease_owner, lease_token, lease_until, ended_at) ON temporal_signals TO tuluat_temporal_bridge;
GRANT SELECT (approval_id, session_id, agent_name, node_id, digest, state, decided_by, decided_via, reason, decided_at) ON approvals TO tuluat_temporal_bridge;
GRANT SELECT (subject), DELETE ON outbox TO tuluat_temporal_bridge;
GRANT INSERT ON agent_execution_logs, agent_execution_logs_overflow TO tuluat_temporal_bridge;
GRANT USAGE ON SEQUENCE agent_execution_logs_log_id_seq TO tuluat_temporal_bridge;
GRANT UPDATE (temporal) ON sessions TO tuluat_management_api;
