-- +goose NO TRANSACTION
-- +goose Up

-- Rows of before 0017 are counted as they stand, while others write: one statement
-- sees the rows and what was counted of them since in one snapshot. A run that was
-- cut off counts the difference, which is nothing where it had got this far.
INSERT INTO figure_changes (figure_name, agent_name, label, model, amount)
SELECT figure_name, agent_name, label, '', sum(amount) FROM (
    SELECT 'SESSIONS' AS figure_name, agent_name, state AS label, count(*) AS amount FROM sessions GROUP BY agent_name, state
    UNION ALL SELECT 'REPLIES', '', state, count(*) FROM replies GROUP BY state
    UNION ALL SELECT 'EXECUTIONS', agent_name, state, count(*) FROM executions WHERE ended_at IS NOT NULL GROUP BY agent_name, state
    UNION ALL SELECT 'APPROVALS', agent_name, state, count(*) FROM approvals WHERE state <> 'PENDING' GROUP BY agent_name, state
    UNION ALL SELECT 'RUNS', agent_name, state, count(*) FROM sessions WHERE workflow_name IS NOT NULL AND ended_at IS NOT NULL GROUP BY agent_name, state
    UNION ALL SELECT 'RUNS', s.agent_name, m.run_state, count(*) FROM messages m JOIN sessions s USING (session_id) WHERE m.run_state IS NOT NULL GROUP BY s.agent_name, m.run_state
    UNION ALL SELECT figure_name, agent_name, label, -amount FROM figures WHERE figure_name IN ('SESSIONS', 'REPLIES', 'EXECUTIONS', 'APPROVALS', 'RUNS')
    UNION ALL SELECT figure_name, agent_name, label, -amount FROM figure_changes WHERE figure_name IN ('SESSIONS', 'REPLIES', 'EXECUTIONS', 'APPROVALS', 'RUNS')
) f GROUP BY figure_name, agent_name, label HAVING sum(amount) <> 0;

-- How long the oldest message has waited that nobody has begun to answer.
DROP INDEX CONCURRENTLY IF EXISTS messages_waiting;
CREATE INDEX CONCURRENTLY messages_waiting ON messages (created_at) WHERE state = 'PENDING';
