-- +goose Up

-- +goose StatementBegin
-- restored says that the database is that of an earlier moment, and ends what was
-- under way then: between that moment and now it may have been done, answered and
-- sent, and nothing here tells. To be called once by whoever restored it, before a
-- function runs; to call it again is harmless.
--
--   commands that have not ended  UNKNOWN, none is started
--   answers that are not sent     UNKNOWN, settled by their receiver's own word where it has one
--   messages that are not answered are told so in their chat, and nothing else is done for them
--   runs of workflows, and what they asked for: CANCELLED
--
-- Conversations stay, and so do questions to people that nobody has decided, where
-- the conversation waits for nothing else. It returns how many of each there were.
CREATE FUNCTION restored() RETURNS TABLE (what text, n bigint) LANGUAGE plpgsql SET search_path = public AS $$
DECLARE
    why CONSTANT text := 'the database was restored to an earlier moment';
    told CONSTANT text := 'Our records were restored to an earlier moment while I worked on this. It may have been done in part or whole, and answered; I do nothing more about it. Please say it again if it is still needed.';
    talks text[];
    runs text[];
    m record;
BEGIN
    SELECT array_agg(s.session_id ORDER BY s.session_id) INTO runs FROM sessions s
        WHERE (s.workflow_name IS NOT NULL OR s.parent_visit IS NOT NULL) AND s.state NOT IN ('COMPLETED', 'CANCELLED') AND s.ended_at IS NULL;
    SELECT array_agg(s.session_id ORDER BY s.session_id) INTO talks FROM sessions s
        WHERE s.state NOT IN ('COMPLETED', 'CANCELLED') AND NOT s.session_id = ANY (COALESCE(runs, '{}'))
          AND (s.due_at IS NOT NULL OR s.lease_owner IS NOT NULL OR s.state IN ('PENDING', 'RUNNING', 'AWAITING_EXECUTION')
               OR s.state <> 'AWAITING_APPROVAL' AND EXISTS (SELECT 1 FROM messages o WHERE o.session_id = s.session_id AND o.state IN ('PENDING', 'RUNNING')));
    runs := COALESCE(runs, '{}');
    talks := COALESCE(talks, '{}');
    DELETE FROM outbox; -- what is due is announced again
    UPDATE replies SET state = 'UNKNOWN', reason = why, due_at = now(), lease_owner = NULL, lease_until = NULL
        WHERE state = 'PLANNED' AND text <> told; -- which an earlier call has planned
    GET DIAGNOSTICS n = ROW_COUNT;
    what := 'replies'; RETURN NEXT;

    PERFORM log_entry(e.agent_name, e.session_id, '', 'WARN', 'command ' || e.execution_id || ' ended as UNKNOWN (' || why || ')', '') FROM executions e WHERE e.ended_at IS NULL;
    UPDATE executions SET state = 'UNKNOWN', reason = why, ended_at = now(), due_at = NULL, lease_owner = NULL, lease_until = NULL, lease_token = lease_token + 1 WHERE ended_at IS NULL;
    GET DIAGNOSTICS n = ROW_COUNT;
    what := 'executions'; RETURN NEXT;

    PERFORM count(*) FROM cancel_approvals(ARRAY(SELECT approval_id FROM approvals WHERE state = 'PENDING' AND session_id = ANY (talks || runs)), '', why);
    FOR m IN SELECT t.tool_call_id, t.session_id FROM tool_calls t WHERE t.session_id = ANY (talks || runs) AND t.state IN ('PENDING', 'RUNNING') ORDER BY t.session_id, t.tool_call_id LOOP
        UPDATE tool_calls SET state = 'FAILED', result = 'Interrupted: ' || why || '; the outcome of this call is unknown.', ended_at = now() WHERE tool_call_id = m.tool_call_id;
        UPDATE sessions SET event_seq = event_seq + 1 WHERE session_id = m.session_id;
        INSERT INTO session_events (session_id, seq, kind, ref) SELECT session_id, event_seq, 'TOOL_RESULT', m.tool_call_id FROM sessions WHERE session_id = m.session_id;
    END LOOP;
    DELETE FROM drafts WHERE session_id = ANY (talks || runs);

    n := 0;
    FOR m IN SELECT o.message_id, o.session_id, o.channel_user_id, o.state FROM messages o
            WHERE o.session_id = ANY (talks) AND o.direction = 'INBOUND' AND o.state IN ('PENDING', 'RUNNING') ORDER BY o.session_id, o.seq LOOP
        UPDATE messages SET state = 'DONE', run_state = CASE WHEN m.state = 'RUNNING' THEN 'CANCELLED' END WHERE message_id = m.message_id;
        PERFORM count(*) FROM tell(m.session_id, m.message_id || 'x', m.channel_user_id, told, 'TEXT', '[]', NULL);
        UPDATE messages SET in_reply_to = m.message_id WHERE message_id = m.message_id || 'x' AND NOT EXISTS (SELECT 1 FROM messages a WHERE a.in_reply_to = m.message_id);
        n := n + 1;
    END LOOP;
    what := 'messages'; RETURN NEXT;
    UPDATE messages SET state = 'DONE', run_state = CASE WHEN state = 'RUNNING' THEN 'CANCELLED' END WHERE session_id = ANY (talks || runs) AND state IN ('PENDING', 'RUNNING');

    UPDATE node_visits SET state = 'CANCELLED', due_at = NULL, ended_at = now() WHERE session_id = ANY (runs) AND state IN ('PENDING', 'RUNNING', 'WAITING');
    UPDATE sessions SET state = 'CANCELLED', reason = why, due_at = NULL, retry_at = NULL, lease_owner = NULL, lease_until = NULL, lease_token = lease_token + 1, updated_at = now(), ended_at = now()
        WHERE session_id = ANY (runs);
    GET DIAGNOSTICS n = ROW_COUNT;
    what := 'runs'; RETURN NEXT;
    UPDATE sessions SET state = 'IDLE', reason = why, due_at = NULL, retry_at = NULL, attempts = 0, lease_owner = NULL, lease_until = NULL, lease_token = lease_token + 1, dead_lettered_at = NULL, updated_at = now()
        WHERE session_id = ANY (talks);
    GET DIAGNOSTICS n = ROW_COUNT;
    what := 'sessions'; RETURN NEXT;
    IF cardinality(talks || runs) > 0 THEN
        INSERT INTO audit_log (actor, action, object, after) VALUES (session_user, 'restore', 'database', jsonb_build_object('sessions', cardinality(talks), 'runs', cardinality(runs)));
    END IF;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION restored() FROM PUBLIC;
