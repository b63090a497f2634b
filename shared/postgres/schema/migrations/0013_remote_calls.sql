-- +goose Up

-- Calls that a step makes itself: the tool that the call was offered as, and the
-- claim that began it. One that another claim finds RUNNING may have been made: it
-- is not made again.
ALTER TABLE tool_calls
    ADD COLUMN remote      jsonb,  -- harness.RemoteTool; NULL: another kind of call
    ADD COLUMN begun_token bigint, -- the lease_token of the session's claim that made it
    ADD CONSTRAINT tool_call_begun CHECK (begun_token IS NULL OR remote IS NOT NULL);
