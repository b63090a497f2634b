-- +goose NO TRANSACTION
-- +goose Up

-- Every statement may run again: a run that was cut off goes on where it was.
-- messages_oldest finds the message that waits longest. Its condition is more than
-- what a claim asks for: as messages_waiting, without it, it was the smallest index
-- for what waits in one session too, and a claim walked all that waits anywhere.
DROP INDEX CONCURRENTLY IF EXISTS messages_oldest;
CREATE INDEX CONCURRENTLY messages_oldest ON messages (created_at) WHERE state = 'PENDING' AND created_at > '-infinity';
DROP INDEX CONCURRENTLY IF EXISTS messages_waiting;
