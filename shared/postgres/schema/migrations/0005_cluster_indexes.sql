-- +goose NO TRANSACTION
-- +goose Up

-- What a status counts and looks up, built while others write. A build that
-- fails leaves an index that is not used, so each begins by removing that.
DROP INDEX CONCURRENTLY IF EXISTS sessions_active;
CREATE INDEX CONCURRENTLY sessions_active ON sessions (agent_name) WHERE state IN ('PENDING', 'RUNNING', 'AWAITING_APPROVAL', 'AWAITING_EXECUTION');
DROP INDEX CONCURRENTLY IF EXISTS executions_agent;
CREATE INDEX CONCURRENTLY executions_agent ON executions (agent_name, seq);
DROP INDEX CONCURRENTLY IF EXISTS sandboxes_spec;
CREATE INDEX CONCURRENTLY sandboxes_spec ON sandboxes (agent_name, spec_digest, created_at);
