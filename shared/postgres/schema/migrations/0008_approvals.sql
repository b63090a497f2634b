-- +goose Up

-- As in 0004: rather fail than hold others up behind a long transaction.
SET LOCAL lock_timeout = '5s';

-- approvals: who decides, until when, and what became of what was approved.
ALTER TABLE approvals
    ADD COLUMN visit_id     text,                            -- of a workflow's node; NULL: a tool call asks
    ADD COLUMN approvers    jsonb NOT NULL DEFAULT '[]',     -- who may decide; none: whoever has the right by the API
    ADD COLUMN quorum       int NOT NULL DEFAULT 1,          -- how many must approve
    ADD COLUMN on_timeout   text NOT NULL DEFAULT 'reject' CONSTRAINT approval_on_timeout CHECK (on_timeout IN ('reject', 'proceed', 'wait')),
    ADD COLUMN reminders    timestamptz[] NOT NULL DEFAULT '{}', -- that are still to come
    ADD COLUMN escalate_at  timestamptz,
    ADD COLUMN escalation   jsonb NOT NULL DEFAULT '[]',     -- who may decide from then on, too
    ADD COLUMN due_at       timestamptz,                     -- of the next reminder, escalation or the end
    ADD COLUMN short_code   text NOT NULL DEFAULT '',        -- that people type where they cannot tap
    ADD COLUMN scope        text NOT NULL DEFAULT 'ONCE' CONSTRAINT approval_scope CHECK (scope IN ('ONCE', 'SESSION', 'ALWAYS')),
    ADD COLUMN asked_input  jsonb,                           -- what was asked, where whoever decided changed it
    ADD COLUMN context      jsonb NOT NULL DEFAULT '{}',     -- what else deciders are shown
    ADD COLUMN consumed_at  timestamptz;                     -- what was approved has been handed on, once
CREATE UNIQUE INDEX approval_once_per_visit ON approvals (visit_id) WHERE visit_id IS NOT NULL;
CREATE INDEX approvals_due ON approvals (due_at) WHERE state = 'PENDING' AND due_at IS NOT NULL;

-- approval_votes: what each decider said. The vote that decides and the decision
-- commit together.
CREATE TABLE approval_votes (
    approval_id text NOT NULL REFERENCES approvals,
    decided_by  text NOT NULL,
    decided_via text NOT NULL,
    decision    text NOT NULL CONSTRAINT approval_vote CHECK (decision IN ('APPROVED', 'REJECTED')),
    reason      text NOT NULL DEFAULT '',
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (approval_id, decided_by)
);

-- approval_grants: exactly what needs no further question.
CREATE TABLE approval_grants (
    approval_id text PRIMARY KEY REFERENCES approvals, -- that gave it
    agent_name  text NOT NULL REFERENCES agents,
    session_id  text REFERENCES sessions,              -- NULL: in every session of the agent
    digest      text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX approval_grants_digest ON approval_grants (agent_name, digest);

-- replies: cards that ask for an approval, and what became of it.
ALTER TABLE replies ADD COLUMN approval_id text REFERENCES approvals;
ALTER TABLE replies DROP CONSTRAINT reply_kind;
ALTER TABLE replies ADD CONSTRAINT reply_kind CHECK (kind IN ('TEXT', 'CHOICES', 'FILE', 'CARD', 'DECISION')) NOT VALID;
CREATE INDEX replies_approval ON replies (approval_id, session_id) WHERE approval_id IS NOT NULL;
CREATE INDEX replies_cards ON replies (session_id) WHERE approval_id IS NOT NULL;

ALTER TABLE session_events DROP CONSTRAINT session_event_kind;
ALTER TABLE session_events ADD CONSTRAINT session_event_kind CHECK (kind IN ('TURN', 'TOOL_CALL', 'TOOL_RESULT', 'REPLY', 'APPROVAL')) NOT VALID;

-- sessions: since when the running turn waits for people, whose time is not the
-- turn's, and the conversation in whose chat people are told and asked.
ALTER TABLE sessions ADD COLUMN waiting_since timestamptz, ADD COLUMN origin_session text;

-- What a function below has to announce: an event, whose outbox row it has written.
CREATE TYPE announced AS (event_id text, event_type text, session_id text, agent_name text, channel text, message_id text, traceparent text);

-- +goose StatementBegin
-- tell adds outbound message m to session s, outside of its turns, as one reply
-- row. Telling it again has no effect. The caller has locked the session.
CREATE FUNCTION tell(s text, m text, person text, body text, k text, c jsonb, approval text) RETURNS SETOF announced LANGUAGE plpgsql AS $$
DECLARE
    n sessions;
BEGIN
    IF EXISTS (SELECT 1 FROM messages WHERE message_id = m) THEN
        RETURN;
    END IF;
    UPDATE sessions SET message_seq = message_seq + 1, event_seq = event_seq + 1 WHERE session_id = s RETURNING * INTO n;
    INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text)
        VALUES (m, s, n.message_seq, 'OUTBOUND', 'DONE', person, body);
    INSERT INTO session_events (session_id, seq, kind, ref) VALUES (s, n.event_seq, 'REPLY', m);
    INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, due_at, kind, choices, approval_id)
        VALUES ('rpl' || substr(m, 4), m, s, n.message_seq, 1, 1, body, CASE n.channel WHEN 'API' THEN 'DELIVERED' ELSE 'PLANNED' END,
            CASE n.channel WHEN 'API' THEN NULL ELSE now() END, k, c, approval);
    IF n.channel <> 'API' THEN -- there, whoever asks reads it where it is
        INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, channel, payload, traceparent, due_at)
            VALUES ('message.reply:' || m, 'ai.tuluat.message.reply.v1', m, s, n.agent_name, n.channel, jsonb_build_object('session', s, 'message', m), n.traceparent,
                now() + interval '30 seconds') ON CONFLICT (event_id) DO NOTHING;
        RETURN NEXT ('message.reply:' || m, 'ai.tuluat.message.reply.v1', s, n.agent_name, n.channel, m, n.traceparent)::announced;
    END IF;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- card_chats yields where people are asked on behalf of session s: person i of
-- channel i, each chat once. An empty channel means the session's own chat.
CREATE FUNCTION card_chats(s text, channels text[], people text[]) RETURNS TABLE (n bigint, agent text, channel text, account text, chat text, person text)
LANGUAGE sql STABLE AS $$
    SELECT DISTINCT ON (to_channel, to_account, to_chat) t.n, o.agent_name, to_channel, to_account, to_chat, t.person
    FROM sessions asks JOIN sessions o ON o.session_id = COALESCE(asks.origin_session, asks.session_id),
         unnest(channels, people) WITH ORDINALITY AS t (channel, person, n)
    LEFT JOIN LATERAL (
        SELECT r.account FROM channel_routes r WHERE r.agent_name = o.agent_name AND r.channel = t.channel
        ORDER BY (r.channel, r.account) = (o.channel, o.account) DESC, r.account LIMIT 1
    ) r ON true
    LEFT JOIN chat_aliases k ON k.channel = t.channel AND k.account = r.account AND k.alias = t.person,
    LATERAL (SELECT CASE t.channel WHEN '' THEN o.channel ELSE t.channel END AS to_channel, CASE t.channel WHEN '' THEN o.account ELSE r.account END AS to_account,
        CASE t.channel WHEN '' THEN o.chat ELSE COALESCE(k.chat, t.person) END AS to_chat) x
    WHERE asks.session_id = s AND to_account IS NOT NULL
    ORDER BY to_channel, to_account, to_chat, t.n
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- lock_chats locks session s, the conversations that hold cards of its open
-- approvals, and those in which people are to be asked on its behalf, in id order,
-- as everybody does.
CREATE FUNCTION lock_chats(s text, channels text[], people text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM sessions WHERE session_id IN (
        SELECT s UNION SELECT r.session_id FROM approvals a JOIN replies r USING (approval_id) WHERE a.session_id = s AND a.state = 'PENDING'
        UNION SELECT n.session_id FROM card_chats(s, channels, people) c
        JOIN sessions n ON (n.agent_name, n.channel, n.account, n.chat) = (c.agent, c.channel, c.account, c.chat) AND n.state NOT IN ('COMPLETED', 'CANCELLED')
    ) ORDER BY session_id FOR NO KEY UPDATE;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- send_cards asks for approval id: a card in the conversation with each person,
-- which is opened where there is none, as session opened[n] for person n, whose
-- message is messages[n]. The caller has called lock_chats.
CREATE FUNCTION send_cards(id text, channels text[], people text[], opened text[], messages text[], body text, c jsonb) RETURNS SETOF announced LANGUAGE plpgsql AS $$
DECLARE
    t record;
    asks text := (SELECT a.session_id FROM approvals a WHERE a.approval_id = id);
    place text;
BEGIN
    FOR t IN SELECT * FROM card_chats(asks, channels, people) ORDER BY n LOOP
        INSERT INTO sessions AS n (session_id, agent_name, channel, account, chat, state, idle_seconds)
            SELECT opened[t.n], t.agent, t.channel, t.account, t.chat, 'IDLE',
                COALESCE((SELECT (r.spec->>'idleTTL')::bigint / 1000000000 FROM channel_routes r WHERE r.channel = t.channel AND r.account = t.account), 0)::int
            ON CONFLICT (agent_name, channel, account, chat) WHERE state NOT IN ('COMPLETED', 'CANCELLED')
            DO UPDATE SET updated_at = now() RETURNING session_id INTO place;
        IF NOT EXISTS (SELECT 1 FROM replies r WHERE r.approval_id = id AND r.session_id = place AND r.kind = 'CARD') THEN
            RETURN QUERY SELECT * FROM tell(place, messages[t.n], t.person, body, 'CARD', c, id);
        END IF;
    END LOOP;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- approval_words says what became of approval a, for people.
CREATE FUNCTION approval_words(a approvals) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT a.title || E'\n' || CASE a.state
        WHEN 'APPROVED' THEN 'Approved by ' || a.decided_by || CASE a.scope WHEN 'SESSION' THEN ', for this session' WHEN 'ALWAYS' THEN ', from now on' ELSE '' END
        WHEN 'REJECTED' THEN 'Rejected by ' || a.decided_by
        WHEN 'EXPIRED' THEN CASE a.on_timeout WHEN 'proceed' THEN 'Nobody answered in time: it goes on' ELSE 'Nobody answered in time: it is not done' END
        ELSE 'No longer asked' || CASE WHEN a.decided_by <> '' THEN ': cancelled by ' || a.decided_by ELSE '' END
    END || ' (' || to_char(a.decided_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') || ' UTC)'
    || CASE WHEN a.asked_input IS NOT NULL THEN E'\nIt was changed before it was approved.' ELSE '' END
    || CASE WHEN a.reason <> '' AND a.state IN ('APPROVED', 'REJECTED') THEN E'\n' || a.reason ELSE '' END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- lock_approval locks the sessions that a change of approval id writes to: its
-- own and those that hold its cards, in id order, as everybody does.
CREATE FUNCTION lock_approval(id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM sessions WHERE session_id IN (
        SELECT a.session_id FROM approvals a WHERE a.approval_id = id UNION SELECT r.session_id FROM replies r WHERE r.approval_id = id
    ) ORDER BY session_id FOR NO KEY UPDATE;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- approval_ended does what follows from the end of approval id, once: its session
-- is due, its end is announced, and every chat that holds a card is told. The
-- caller has called lock_approval and publishes what is returned.
CREATE FUNCTION approval_ended(id text) RETURNS SETOF announced LANGUAGE plpgsql AS $$
DECLARE
    a approvals;
    n sessions;
    card record;
BEGIN
    SELECT * INTO a FROM approvals WHERE approval_id = id AND state <> 'PENDING';
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE sessions SET event_seq = event_seq + 1 WHERE session_id = a.session_id RETURNING * INTO n;
    INSERT INTO session_events (session_id, seq, kind, ref) VALUES (n.session_id, n.event_seq, 'APPROVAL', id);
    UPDATE sessions SET due_at = least(due_at, now()) WHERE session_id = a.session_id AND state NOT IN ('COMPLETED', 'CANCELLED') RETURNING * INTO n;
    IF FOUND THEN
        INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, channel, payload, traceparent, due_at)
            VALUES ('approval.decided:' || id, 'ai.tuluat.approval.decided.v1', n.session_id, n.session_id, n.agent_name, n.channel,
                jsonb_build_object('session', n.session_id), n.traceparent, now() + interval '30 seconds') ON CONFLICT (event_id) DO NOTHING;
        RETURN NEXT ('approval.decided:' || id, 'ai.tuluat.approval.decided.v1', n.session_id, n.agent_name, n.channel, '', n.traceparent)::announced;
    END IF;
    PERFORM plan_signal(id); -- of a later migration of the same release
    FOR card IN SELECT r.message_id, r.session_id, m.channel_user_id FROM replies r JOIN messages m USING (message_id)
        WHERE r.approval_id = id AND r.kind = 'CARD' ORDER BY r.session_id LOOP
        RETURN QUERY SELECT * FROM tell(card.session_id, card.message_id || 'o', card.channel_user_id, approval_words(a), 'DECISION', '[]', id);
    END LOOP;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- cancel_approvals ends the open ones of approvals, on behalf of the caller, who
-- has locked their sessions and those that hold their cards.
CREATE FUNCTION cancel_approvals(ids text[], by text, why text) RETURNS SETOF announced LANGUAGE plpgsql AS $$
DECLARE
    id text;
BEGIN
    FOR id IN SELECT approval_id FROM approvals WHERE approval_id = ANY (ids) AND state = 'PENDING' ORDER BY approval_id LOOP
        UPDATE approvals SET state = 'CANCELLED', decided_by = by, decided_via = CASE by WHEN '' THEN '' ELSE 'API' END, reason = why, decided_at = now(), due_at = NULL
            WHERE approval_id = id AND state = 'PENDING';
        RETURN QUERY SELECT * FROM approval_ended(id);
    END LOOP;
END $$;
-- +goose StatementEnd

-- approval_events: every approval that was asked for or has ended, for those who
-- follow all of them. A number is given under a lock that its transaction shares
-- until it is over: who has it alone sees every number that is given, and what
-- comes in later has a higher one.
CREATE TABLE approval_events (
    event_seq   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    approval_id text NOT NULL REFERENCES approvals,
    agent_name  text NOT NULL REFERENCES agents,
    created_at  timestamptz NOT NULL DEFAULT now()
);

-- +goose StatementBegin
-- It runs as its owner: whoever may change an approval may write no events of
-- their own.
CREATE FUNCTION approval_event() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('approval_events'));
    INSERT INTO approval_events (approval_id, agent_name) VALUES (NEW.approval_id, NEW.agent_name);
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER approval_asked AFTER INSERT ON approvals FOR EACH ROW EXECUTE FUNCTION approval_event();
CREATE TRIGGER approval_ended AFTER UPDATE OF state ON approvals FOR EACH ROW WHEN (OLD.state <> NEW.state) EXECUTE FUNCTION approval_event();
GRANT SELECT ON approval_events TO tuluat_management_api;

-- Who asks, who decides, who lets time pass.
GRANT SELECT, INSERT, UPDATE ON approvals TO tuluat_agent_step;
GRANT SELECT ON approval_votes, channel_routes, chat_aliases, replies TO tuluat_agent_step;
GRANT SELECT, INSERT ON approval_grants TO tuluat_agent_step;
GRANT SELECT ON approvals, approval_votes, approval_grants TO tuluat_whatsapp_ingest, tuluat_telegram_ingest, tuluat_webhook_ingest, tuluat_reaper_cron, tuluat_management_api;
GRANT UPDATE (state, decided_by, decided_via, reason, decided_at, scope, due_at) ON approvals TO tuluat_whatsapp_ingest, tuluat_telegram_ingest, tuluat_webhook_ingest;
GRANT INSERT ON approval_votes, session_events TO tuluat_whatsapp_ingest, tuluat_telegram_ingest, tuluat_webhook_ingest;
GRANT SELECT, INSERT ON messages, sessions, session_events, replies, approval_grants TO tuluat_whatsapp_ingest, tuluat_telegram_ingest, tuluat_webhook_ingest, tuluat_management_api;
GRANT UPDATE (state, decided_by, reason, decided_at, approvers, escalation, escalate_at, reminders, due_at) ON approvals TO tuluat_reaper_cron;
GRANT SELECT ON channel_routes, chat_aliases TO tuluat_reaper_cron, tuluat_webhook_ingest, tuluat_management_api;
GRANT SELECT, INSERT ON messages, sessions, session_events, replies TO tuluat_reaper_cron;
GRANT UPDATE (message_seq, event_seq, due_at, updated_at) ON sessions TO tuluat_reaper_cron;
GRANT UPDATE (scope, input, digest, asked_input, due_at) ON approvals TO tuluat_management_api;
GRANT UPDATE (decision, reason) ON approval_votes TO tuluat_whatsapp_ingest, tuluat_telegram_ingest, tuluat_webhook_ingest, tuluat_management_api;
GRANT INSERT ON approval_votes TO tuluat_management_api;
