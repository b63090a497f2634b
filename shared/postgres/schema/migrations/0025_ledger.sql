-- +goose NO TRANSACTION
-- +goose Up

-- Every statement may run again: a run that was cut off goes on where it was.
-- outside_objects: what the product makes outside of Postgres and no other table has
-- a row for. The row is there before the object, and says GONE after it.
--
--   VOLUME   named by its session; made by the start of a sandbox
--   FILE     key of a file that a command made, until attachments has it
--   WEBHOOK  CHANNEL/account; registered by a person, and seen
--
--   PENDING   about to be made, or made perhaps
--   MADE      it was seen
--   REMOVING  about to be removed, or removed perhaps
--   GONE      proved absent
CREATE TABLE IF NOT EXISTS outside_objects (
    kind           text NOT NULL CONSTRAINT outside_kind CHECK (kind IN ('VOLUME', 'FILE', 'WEBHOOK')),
    object_name    text COLLATE "C" NOT NULL,
    state          text NOT NULL CONSTRAINT outside_state CHECK (state IN ('PENDING', 'MADE', 'REMOVING', 'GONE')),
    reason         text NOT NULL DEFAULT '', -- why it is removed or gone
    agent_name     text NOT NULL,
    session_id     text,                     -- of VOLUME and FILE
    registered_url text NOT NULL DEFAULT '', -- of WEBHOOK
    created_at     timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, object_name),
    CONSTRAINT outside_owner CHECK ((kind = 'WEBHOOK') = (session_id IS NULL))
);
CREATE INDEX IF NOT EXISTS outside_objects_session ON outside_objects (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS outside_objects_open ON outside_objects (kind, updated_at) WHERE state <> 'GONE';
CREATE INDEX IF NOT EXISTS outside_objects_gone ON outside_objects (updated_at) WHERE state = 'GONE';

-- comparisons: what the sweep found when it compared the rows of a kind with its
-- objects. It is kept when the reports of passes are gone.
CREATE TABLE IF NOT EXISTS comparisons (
    kind        text PRIMARY KEY CONSTRAINT comparison_kind CHECK (kind IN ('SANDBOX', 'NETWORK_POLICY', 'VOLUME', 'ARCHIVE', 'FILE', 'UPLOAD', 'WEBHOOK')),
    tally       jsonb NOT NULL DEFAULT '{}', -- of the last one that came to its end
    compared_at timestamptz,                 -- when that was; NULL: none did
    progress    jsonb,                       -- of the one that is under way
    reason      text NOT NULL DEFAULT '',    -- why there was none, or why something is left
    updated_at  timestamptz NOT NULL DEFAULT now()
);
INSERT INTO comparisons (kind) VALUES ('SANDBOX'), ('NETWORK_POLICY'), ('VOLUME'), ('ARCHIVE'), ('FILE'), ('UPLOAD'), ('WEBHOOK') ON CONFLICT DO NOTHING;

-- Which file a key of the bucket is, and which come after it.
DROP INDEX CONCURRENTLY IF EXISTS attachments_object;
CREATE INDEX CONCURRENTLY attachments_object ON attachments (object_key COLLATE "C") WHERE object_key <> '';

-- +goose StatementBegin
-- forget_session is as in 0023, and deletes the rows of outside objects. It deletes one session of a request that has ended, and all that is
-- of it. Its objects are gone by then, and its log entries.
CREATE OR REPLACE FUNCTION forget_session(request text, s text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
    what text[];
    n bigint;
BEGIN
    PERFORM 1 FROM forget_requests WHERE forget_request_id = request FOR UPDATE;
    PERFORM 1 FROM forget_sessions f WHERE f.forget_request_id = request AND f.session_id = s AND f.whole;
    IF NOT FOUND OR EXISTS (SELECT 1 FROM log_archives a JOIN executions e USING (execution_id) WHERE e.session_id = s) THEN
        RAISE EXCEPTION 'the session is not one of the request, or the archive has output of it';
    END IF;
    -- Cards in the conversations of those who were asked say what it was about.
    UPDATE messages SET text = '' WHERE message_id IN (SELECT r.message_id FROM replies r JOIN approvals a USING (approval_id) WHERE a.session_id = s AND r.session_id <> s);
    UPDATE replies SET text = '', approval_id = NULL WHERE approval_id IN (SELECT approval_id FROM approvals WHERE session_id = s) AND session_id <> s;
    UPDATE node_visits SET child_session = NULL WHERE child_session = s;
    UPDATE messages SET in_reply_to = NULL WHERE session_id = s AND in_reply_to IS NOT NULL;
    FOREACH what SLICE 1 IN ARRAY ARRAY[
        ['approval_votes', 'approval_id IN (SELECT approval_id FROM approvals WHERE session_id = $1)'],
        ['approval_grants', 'session_id = $1 OR approval_id IN (SELECT approval_id FROM approvals WHERE session_id = $1)'],
        ['approval_events', 'approval_id IN (SELECT approval_id FROM approvals WHERE session_id = $1)'],
        ['temporal_signals', 'session_id = $1'],
        ['guardrail_verdicts', 'session_id = $1'],
        ['attachment_placements', 'attachment_id IN (SELECT attachment_id FROM attachments WHERE session_id = $1) OR sandbox_id IN (SELECT sandbox_id FROM sandboxes WHERE session_id = $1)'],
        ['skill_placements', 'sandbox_id IN (SELECT sandbox_id FROM sandboxes WHERE session_id = $1)'],
        ['replies', 'session_id = $1'],
        ['attachments', 'session_id = $1'],
        ['budget_grants', 'approval_id IN (SELECT approval_id FROM approvals WHERE session_id = $1)'],
        ['model_attempts', 'session_id = $1'],
        ['summaries', 'session_id = $1'],
        ['drafts', 'session_id = $1'],
        ['approvals', 'session_id = $1'],
        ['tool_calls', 'session_id = $1'],
        ['steps', 'session_id = $1'],
        ['session_events', 'session_id = $1'],
        ['session_skills', 'session_id = $1'],
        ['workflow_starts', 'session_id = $1'],
        ['node_visits', 'session_id = $1'],
        ['execution_output', 'execution_id IN (SELECT execution_id FROM executions WHERE session_id = $1)'],
        ['executions', 'session_id = $1'],
        ['sandboxes', 'session_id = $1'],
        ['outside_objects', 'session_id = $1'],
        ['outbox', 'session_id = $1'],
        ['dead_letters', 'session_id = $1'],
        ['messages', 'session_id = $1'],
        ['sessions', 'session_id = $1']] LOOP
        EXECUTE format('DELETE FROM %I WHERE %s', what[1], what[2]) USING s;
        GET DIAGNOSTICS n = ROW_COUNT;
        PERFORM forget_count(request, what[1], n);
    END LOOP;
END $$;
-- +goose StatementEnd

-- Who makes what, and who looks.
GRANT SELECT, INSERT, UPDATE, DELETE ON outside_objects TO tuluat_sandbox_exec, tuluat_reaper_cron;
GRANT SELECT, INSERT, UPDATE ON outside_objects TO tuluat_telegram_ingest, tuluat_management_api;
GRANT SELECT, UPDATE ON comparisons TO tuluat_reaper_cron;
GRANT SELECT ON comparisons TO tuluat_management_api;
