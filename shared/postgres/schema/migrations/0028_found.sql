-- +goose Up

-- attachments.lost_at: since when the bucket does not have a file that is STORED;
-- the attachment is FAILED until the bucket has it again.
ALTER TABLE attachments ADD COLUMN lost_at timestamptz;
GRANT UPDATE (lost_at) ON attachments TO tuluat_reaper_cron, tuluat_agent_step;

-- comparisons.restored_at: when the rows became those of an earlier moment. What is
-- outside and has no row since then is nobody's only a day later.
ALTER TABLE comparisons ADD COLUMN restored_at timestamptz;

ALTER FUNCTION restored() RENAME TO end_restored;
-- +goose StatementBegin
-- restored says that the database is that of an earlier moment: it is end_restored,
-- and keeps when that was said.
CREATE FUNCTION restored() RETURNS TABLE (what text, n bigint) LANGUAGE sql SET search_path = public AS $$
    UPDATE comparisons SET restored_at = now();
    SELECT * FROM end_restored();
$$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION restored() FROM PUBLIC;
