-- +goose NO TRANSACTION
-- +goose Up

-- Every statement may run again: a run that was cut off goes on where it was.
-- log_archives: of which sessions an object has entries, which a list of one session
-- reads and forgetting a person rewrites. As rows of their own they took more room
-- than the entries that had left.
ALTER TABLE log_archives ADD COLUMN IF NOT EXISTS archived_sessions text[] NOT NULL DEFAULT '{}';

-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_class WHERE oid = to_regclass('public.log_archive_sessions') AND relkind = 'r') THEN
        LOCK TABLE log_archive_sessions, log_archives IN SHARE ROW EXCLUSIVE MODE;
        UPDATE log_archives a SET archived_sessions = ARRAY(SELECT s.session_id FROM log_archive_sessions s WHERE s.object_key = a.object_key ORDER BY s.session_id)
            WHERE kind = 'ENTRIES';
        DROP TABLE log_archive_sessions;
        -- What the release before this one reads. It archives nothing meanwhile.
        CREATE VIEW log_archive_sessions AS SELECT unnest(archived_sessions) AS session_id, object_key FROM log_archives;
        GRANT SELECT ON log_archive_sessions TO tuluat_reaper_cron, tuluat_management_api;
    END IF;
END $$;
-- +goose StatementEnd

DROP INDEX CONCURRENTLY IF EXISTS log_archives_sessions;
CREATE INDEX CONCURRENTLY log_archives_sessions ON log_archives USING gin (archived_sessions);
