-- +goose Up

-- drafts: what the model has written so far of the answer to a message, and how
-- the message's channel shows it. It becomes an answer only by the step's commit:
-- what a claim wrote that is not the session's any more is nobody's.
CREATE TABLE drafts (
    message_id     text PRIMARY KEY REFERENCES messages,
    session_id     text NOT NULL REFERENCES sessions,
    session_token  bigint NOT NULL,                    -- the session's claim under which it is written
    text           text NOT NULL,
    revision       bigint NOT NULL DEFAULT 1,
    ended_at       timestamptz,                        -- the message in reply to the same message takes its place
    state          text NOT NULL DEFAULT 'PLANNED' CONSTRAINT draft_state CHECK (state IN ('PLANNED', 'SENT', 'FAILED', 'UNKNOWN')), -- in its chat
    provider_id    text NOT NULL DEFAULT '',           -- of the message there that shows it
    shown_revision bigint NOT NULL DEFAULT 0,
    sent_at        timestamptz,                        -- when that message was about to be sent
    due_at         timestamptz NOT NULL DEFAULT now(), -- not shown again before
    lease_owner    text,                               -- who shows it
    lease_token    bigint NOT NULL DEFAULT 0,
    lease_until    timestamptz,
    updated_at     timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX drafts_session ON drafts (session_id);

GRANT SELECT, INSERT, UPDATE, DELETE ON drafts TO tuluat_agent_step;
GRANT SELECT, UPDATE, DELETE ON drafts TO tuluat_telegram_ingest;
GRANT SELECT, DELETE ON drafts TO tuluat_whatsapp_ingest, tuluat_webhook_ingest, tuluat_reaper_cron; -- claims of replies read it
GRANT SELECT ON drafts TO tuluat_management_api;
