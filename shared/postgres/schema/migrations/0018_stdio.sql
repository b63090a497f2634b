-- +goose Up

-- A server of tools that is a program says in a command of its own what it offers.
-- Validated apart, so that no command waits for it.
ALTER TABLE executions DROP CONSTRAINT execution_cause;
ALTER TABLE executions ADD CONSTRAINT execution_cause CHECK (cause IN ('TOOL_CALL', 'NODE_VISIT', 'API', 'TOOL_LIST')) NOT VALID;

-- What the images of skills held when they were last looked at. A row is of the
-- settings it names: of others it says nothing. Of no agent by reference: an image
-- is looked at before its agent is stored.
CREATE TABLE skill_images (
    agent_name   text NOT NULL,
    skill_name   text NOT NULL,
    settings     text NOT NULL,               -- image, path and the name of the pull secret
    image_digest text NOT NULL DEFAULT '',    -- what the image was resolved to; empty: it never gave anything
    files        jsonb NOT NULL DEFAULT '{}', -- path to base64
    confirmed_at timestamptz,                 -- when the image was last seen to be that; NULL: never
    tried_at     timestamptz NOT NULL,        -- when it was last looked at
    refused_digest text NOT NULL DEFAULT '',  -- the digest of a newer image that is none for a skill
    reason       text NOT NULL DEFAULT '',    -- why nothing came then; empty when it did
    PRIMARY KEY (agent_name, skill_name)
);

GRANT SELECT, INSERT, UPDATE, DELETE ON skill_images TO tuluat_agent_status;
GRANT SELECT (agent_name, skill_name, image_digest, confirmed_at, reason) ON skill_images TO tuluat_reaper_cron; -- whether a status is behind
