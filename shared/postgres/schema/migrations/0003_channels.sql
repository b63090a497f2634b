-- +goose Up

-- replies: what one row sends, how, and what the provider said.
ALTER TABLE replies
    ADD COLUMN kind text NOT NULL DEFAULT 'TEXT' CONSTRAINT reply_kind CHECK (kind IN ('TEXT', 'CHOICES', 'FILE')),
    ADD COLUMN format text NOT NULL DEFAULT 'RICH' CONSTRAINT reply_format CHECK (format IN ('RICH', 'PLAIN', 'TEMPLATE')), -- of the next attempt
    ADD COLUMN choices jsonb NOT NULL DEFAULT '[]',   -- of CHOICES: [{id, title, description}]
    ADD COLUMN attachment_id text,                    -- of FILE
    ADD COLUMN provider_code int,                     -- the provider's own error code, where it gave one
    ALTER COLUMN due_at DROP NOT NULL;                -- NULL: nobody looks again, only the provider's evidence can change it
DROP INDEX replies_open, replies_due;
CREATE INDEX replies_open ON replies (session_id, seq, part) WHERE state IN ('PLANNED', 'UNKNOWN') AND due_at IS NOT NULL;
CREATE INDEX replies_due ON replies (due_at) WHERE state IN ('PLANNED', 'UNKNOWN') AND due_at IS NOT NULL;
CREATE INDEX replies_provider ON replies (provider_id) WHERE provider_id <> '';

ALTER TABLE channel_routes
    ADD COLUMN pairing boolean NOT NULL DEFAULT false; -- sender policy pairing

-- chats: what is known of one conversation partner of an account: where replies
-- go now, when the person wrote last, and how fast we may send.
CREATE TABLE chats (
    channel         text NOT NULL CONSTRAINT chat_channel CHECK (channel IN ('WHATSAPP', 'TELEGRAM', 'WEBHOOK', 'API')),
    account         text NOT NULL,
    chat            text NOT NULL,
    address         text NOT NULL,
    last_inbound_at timestamptz,
    blocked_at      timestamptz,              -- it takes nothing from us until it writes again
    blocked_reason  text NOT NULL DEFAULT '',
    pace_millis     int NOT NULL DEFAULT 0,   -- between two replies, on average; 0: no pace
    pace_burst      int NOT NULL DEFAULT 0,   -- replies that may go out at once
    paced_until     timestamptz,              -- when the replies sent so far are paid off at that pace
    PRIMARY KEY (channel, account, chat)
);

-- chat_aliases: other names of a chat. A private chat follows the person.
CREATE TABLE chat_aliases (
    channel text NOT NULL CONSTRAINT alias_channel CHECK (channel IN ('WHATSAPP', 'TELEGRAM', 'WEBHOOK', 'API')),
    account text NOT NULL,
    alias   text NOT NULL,
    chat    text NOT NULL,
    lasting boolean NOT NULL DEFAULT false, -- never another person's, unlike a phone number
    PRIMARY KEY (channel, account, alias)
);
CREATE INDEX chat_aliases_chat ON chat_aliases (channel, account, chat) WHERE lasting;

-- pairings: private chats whose person has shown the pairing code.
CREATE TABLE pairings (
    channel         text NOT NULL CONSTRAINT pairing_channel CHECK (channel IN ('WHATSAPP', 'TELEGRAM', 'WEBHOOK', 'API')),
    account         text NOT NULL,
    chat            text NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (channel, account, chat)
);

-- notices: what came on a channel and started no turn. Recorded, never dropped.
CREATE TABLE notices (
    channel         text NOT NULL CONSTRAINT notice_channel CHECK (channel IN ('WHATSAPP', 'TELEGRAM', 'WEBHOOK', 'API')),
    account         text NOT NULL,
    provider_id     text NOT NULL,            -- of the update: a repeat has the same
    kind            text NOT NULL CONSTRAINT notice_kind CHECK (kind IN ('EDIT', 'REVOKE', 'REACTION', 'DELIVERY', 'SERVICE', 'IDENTITY',
                    'BLOCKED', 'ECHO', 'NOT_ADDRESSED', 'DENIED', 'UNROUTED', 'EMPTY', 'UNSUPPORTED', 'MALFORMED')),
    chat            text NOT NULL DEFAULT '',
    channel_user_id text NOT NULL DEFAULT '',
    ref             text NOT NULL DEFAULT '', -- the provider's id of the message it is about
    data            jsonb NOT NULL DEFAULT '{}',
    received_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (channel, account, provider_id, kind)
);
CREATE INDEX notices_received ON notices USING brin (received_at);
CREATE INDEX notices_denied ON notices (channel, account, channel_user_id, received_at) WHERE kind = 'DENIED';

-- polls: how far a bot that is asked for its updates has been read.
CREATE TABLE polls (
    channel     text NOT NULL CONSTRAINT poll_channel CHECK (channel IN ('WHATSAPP', 'TELEGRAM', 'WEBHOOK', 'API')),
    account     text NOT NULL,
    next_offset bigint NOT NULL DEFAULT 0,
    lease_owner text,
    lease_token bigint NOT NULL DEFAULT 0,
    lease_until timestamptz,
    PRIMARY KEY (channel, account)
);

-- +goose StatementBegin
-- fence_poll raises TU001 unless the caller still polls the account.
CREATE FUNCTION fence_poll(ch text, acc text, token bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM polls WHERE channel = ch AND account = acc AND lease_token = token AND lease_owner IS NOT NULL FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease of poll lost' USING ERRCODE = 'TU001';
    END IF;
END $$;
-- +goose StatementEnd

-- attachments: files that came with a message, or that a command made.
CREATE TABLE attachments (
    attachment_id text PRIMARY KEY,
    session_id    text NOT NULL REFERENCES sessions,
    message_id    text REFERENCES messages,        -- NULL: made by a command, not yet part of an answer
    execution_id  text REFERENCES executions,      -- that made it
    direction     text NOT NULL CONSTRAINT attachment_direction CHECK (direction IN ('INBOUND', 'OUTBOUND')),
    kind          text NOT NULL CONSTRAINT attachment_kind CHECK (kind IN ('IMAGE', 'AUDIO', 'VIDEO', 'DOCUMENT', 'STICKER')),
    provider_id   text NOT NULL DEFAULT '',
    file_name     text NOT NULL DEFAULT '',
    mime_type     text NOT NULL DEFAULT '',
    size_bytes    bigint NOT NULL DEFAULT 0,
    path          text NOT NULL,                   -- below /workspace
    state         text NOT NULL CONSTRAINT attachment_state CHECK (state IN ('OFFERED', 'REQUESTED', 'STORED', 'FAILED')),
    reason        text NOT NULL DEFAULT '',
    object_key    text NOT NULL DEFAULT '',
    digest        text NOT NULL DEFAULT '',        -- SHA-256 of the stored bytes
    attempts      int NOT NULL DEFAULT 0,
    due_at        timestamptz,                     -- of REQUESTED: no fetch before
    lease_owner   text,
    lease_token   bigint NOT NULL DEFAULT 0,
    lease_until   timestamptz,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT attachment_stored CHECK (state <> 'STORED' OR object_key <> '')
);
CREATE INDEX attachments_session ON attachments (session_id, created_at);
CREATE INDEX attachments_message ON attachments (message_id) WHERE message_id IS NOT NULL;
CREATE INDEX attachments_wanted ON attachments (due_at) WHERE state = 'REQUESTED';
CREATE UNIQUE INDEX attachment_made_once ON attachments (execution_id, path) WHERE execution_id IS NOT NULL;
ALTER TABLE replies ADD CONSTRAINT reply_attachment FOREIGN KEY (attachment_id) REFERENCES attachments;

-- attachment_placements: which sandbox has which file.
CREATE TABLE attachment_placements (
    sandbox_id    text NOT NULL REFERENCES sandboxes,
    attachment_id text NOT NULL REFERENCES attachments,
    PRIMARY KEY (sandbox_id, attachment_id)
);

-- The parts of an album are one message while it waits.
ALTER TABLE messages ADD COLUMN album text NOT NULL DEFAULT '';
CREATE UNIQUE INDEX message_album ON messages (session_id, album) WHERE album <> '' AND state = 'PENDING';

-- +goose StatementBegin
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['whatsapp_ingest', 'telegram_ingest'] LOOP
        CONTINUE WHEN EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'tuluat_' || name);
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', 'tuluat_' || name);
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN
                NULL; -- another migrator was first
            WHEN insufficient_privilege THEN
                RAISE insufficient_privilege USING MESSAGE = format('role tuluat_%s does not exist and %I may not create it', name, current_user),
                    HINT = 'Give the migrating role CREATEROLE, or create the roles first.';
        END;
    END LOOP;
END $$;
-- +goose StatementEnd

-- Messages in, notices, statuses, replies out, files both ways.
GRANT SELECT ON channel_routes, executions TO tuluat_whatsapp_ingest, tuluat_telegram_ingest;
GRANT SELECT, INSERT ON inbox TO tuluat_whatsapp_ingest, tuluat_telegram_ingest;
GRANT SELECT, INSERT, UPDATE ON sessions, messages, chats, chat_aliases TO tuluat_whatsapp_ingest, tuluat_telegram_ingest;
GRANT SELECT, INSERT, UPDATE ON replies TO tuluat_whatsapp_ingest, tuluat_telegram_ingest;
GRANT SELECT, INSERT ON notices, pairings TO tuluat_whatsapp_ingest, tuluat_telegram_ingest;
GRANT SELECT, INSERT, UPDATE ON attachments TO tuluat_whatsapp_ingest, tuluat_telegram_ingest;
GRANT UPDATE (due_at) ON executions TO tuluat_whatsapp_ingest, tuluat_telegram_ingest;
GRANT SELECT, INSERT, DELETE ON outbox TO tuluat_whatsapp_ingest, tuluat_telegram_ingest;
GRANT SELECT, INSERT, UPDATE ON polls TO tuluat_telegram_ingest;

-- Webhooks refuse senders too; the statement that claims a reply is every
-- channel's, though no hook has a chat or a file.
GRANT INSERT ON notices TO tuluat_webhook_ingest;
GRANT SELECT ON attachments, chats TO tuluat_webhook_ingest;
GRANT UPDATE (paced_until) ON chats TO tuluat_webhook_ingest;

-- Files that a command needs, and those it made.
GRANT SELECT, INSERT, UPDATE ON attachments TO tuluat_sandbox_exec;
GRANT SELECT, INSERT ON attachment_placements TO tuluat_sandbox_exec;
GRANT SELECT ON messages, channel_routes TO tuluat_sandbox_exec;
GRANT SELECT ON attachments TO tuluat_agent_step, tuluat_reaper_cron;
GRANT UPDATE (message_id, updated_at) ON attachments TO tuluat_agent_step;

GRANT SELECT, DELETE ON notices TO tuluat_reaper_cron;
GRANT UPDATE (state, reason, due_at, updated_at) ON attachments TO tuluat_reaper_cron;
