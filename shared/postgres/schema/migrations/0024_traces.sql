-- +goose Up
-- +goose StatementBegin
-- tell adds outbound message m to session s, outside of its turns, as one reply
-- row. Telling it again has no effect. The caller has locked the session. What
-- belongs to an approval is in the trace of whom it holds up, whose session it is.
CREATE OR REPLACE FUNCTION tell(s text, m text, person text, body text, k text, c jsonb, approval text) RETURNS SETOF announced LANGUAGE plpgsql AS $$
DECLARE
    n sessions;
    trace text;
BEGIN
    IF EXISTS (SELECT 1 FROM messages WHERE message_id = m) THEN
        RETURN;
    END IF;
    UPDATE sessions SET message_seq = message_seq + 1, event_seq = event_seq + 1 WHERE session_id = s RETURNING * INTO n;
    trace := COALESCE((SELECT asks.traceparent FROM approvals a JOIN sessions asks USING (session_id) WHERE a.approval_id = approval), n.traceparent);
    INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text)
        VALUES (m, s, n.message_seq, 'OUTBOUND', 'DONE', person, body);
    INSERT INTO session_events (session_id, seq, kind, ref) VALUES (s, n.event_seq, 'REPLY', m);
    INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, due_at, kind, choices, approval_id)
        VALUES ('rpl' || substr(m, 4), m, s, n.message_seq, 1, 1, body, CASE n.channel WHEN 'API' THEN 'DELIVERED' ELSE 'PLANNED' END,
            CASE n.channel WHEN 'API' THEN NULL ELSE now() END, k, c, approval);
    IF n.channel <> 'API' THEN -- there, whoever asks reads it where it is
        INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, channel, payload, traceparent, due_at)
            VALUES ('message.reply:' || m, 'ai.tuluat.message.reply.v1', m, s, n.agent_name, n.channel, jsonb_build_object('session', s, 'message', m), trace,
                now() + interval '30 seconds') ON CONFLICT (event_id) DO NOTHING;
        RETURN NEXT ('message.reply:' || m, 'ai.tuluat.message.reply.v1', s, n.agent_name, n.channel, m, trace)::announced;
    END IF;
END $$;
-- +goose StatementEnd
