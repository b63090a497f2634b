-- +goose Up

-- As in 0004: rather fail than hold others up behind a long transaction.
SET LOCAL lock_timeout = '5s';

-- figures: what has been counted, per agent. What is counted outlives its rows:
-- deleting a session takes it out of those there are, and out of no total.
--   SESSIONS       sessions that there are, by state
--   REPLIES        replies that there are, by state
--   RUNS           turns of an agent and workflow runs that ended, by how
--   EXECUTIONS     commands that ended, by state
--   APPROVALS      questions that ended, by state
--   SANDBOX_START  sandboxes that became READY, by the least of some bounds in seconds that it took no longer than
--   SANDBOX_START_MILLIS  how long they took together
--   TOKENS         of the model, by input, output and other: answers that were lost, guardrails
--   COST           millionths of the platform's currency unit
--   MODEL_FAILURES questions to the model that got no answer
CREATE TABLE figures (
    figure_name text NOT NULL CONSTRAINT figure_name CHECK (figure_name IN ('SESSIONS', 'REPLIES', 'RUNS', 'EXECUTIONS', 'APPROVALS',
                'SANDBOX_START', 'SANDBOX_START_MILLIS', 'TOKENS', 'COST', 'MODEL_FAILURES')),
    agent_name  text NOT NULL,
    label       text NOT NULL,
    model       text NOT NULL,
    amount      bigint NOT NULL,
    PRIMARY KEY (figure_name, agent_name, label, model)
);

-- figure_changes: what changed since, one row a change, inserted by the transaction
-- that makes it. Nobody waits for anybody: there is no row that two steps of one
-- agent write. The sweep adds them to figures and deletes them, in one statement,
-- so that both tables together are right in every snapshot.
CREATE TABLE figure_changes (
    figure_name text NOT NULL,
    agent_name  text NOT NULL,
    label       text NOT NULL,
    model       text NOT NULL DEFAULT '',
    amount      bigint NOT NULL
);

-- messages: how the turn of an inbound message ended. NULL: it has not, or no agent
-- worked it.
ALTER TABLE messages ADD COLUMN run_state text CONSTRAINT message_run_state CHECK (run_state IN ('COMPLETED', 'BLOCKED', 'FAILED', 'CANCELLED'));

-- sandboxes: when it became READY.
ALTER TABLE sandboxes ADD COLUMN ready_at timestamptz;

-- +goose StatementBegin
CREATE FUNCTION figure_of_session() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND (TG_OP = 'DELETE' OR OLD.state <> NEW.state) THEN
        INSERT INTO figure_changes (figure_name, agent_name, label, amount) VALUES ('SESSIONS', OLD.agent_name, OLD.state, -1);
    END IF;
    IF TG_OP <> 'DELETE' AND (TG_OP = 'INSERT' OR OLD.state <> NEW.state) THEN
        INSERT INTO figure_changes (figure_name, agent_name, label, amount) VALUES ('SESSIONS', NEW.agent_name, NEW.state, 1);
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.workflow_name IS NOT NULL AND OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL THEN
        INSERT INTO figure_changes (figure_name, agent_name, label, amount) VALUES ('RUNS', NEW.agent_name, NEW.state, 1);
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER session_counted AFTER INSERT OR DELETE ON sessions FOR EACH ROW EXECUTE FUNCTION figure_of_session();
CREATE TRIGGER session_moved AFTER UPDATE ON sessions FOR EACH ROW
    WHEN (OLD.state <> NEW.state OR (OLD.ended_at IS NULL) <> (NEW.ended_at IS NULL)) EXECUTE FUNCTION figure_of_session();

-- +goose StatementBegin
CREATE FUNCTION figure_of_reply() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO figure_changes (figure_name, agent_name, label, amount) VALUES ('REPLIES', '', OLD.state, -1);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO figure_changes (figure_name, agent_name, label, amount) VALUES ('REPLIES', '', NEW.state, 1);
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER reply_counted AFTER INSERT OR DELETE ON replies FOR EACH ROW EXECUTE FUNCTION figure_of_reply();
CREATE TRIGGER reply_moved AFTER UPDATE ON replies FOR EACH ROW WHEN (OLD.state <> NEW.state) EXECUTE FUNCTION figure_of_reply();

-- +goose StatementBegin
-- figure_of_end counts a row that came to its end under its own agent, as the
-- figure that the trigger names.
CREATE FUNCTION figure_of_end() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
    INSERT INTO figure_changes (figure_name, agent_name, label, amount) VALUES (TG_ARGV[0], NEW.agent_name, NEW.state, 1);
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER execution_counted AFTER UPDATE ON executions FOR EACH ROW
    WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL) EXECUTE FUNCTION figure_of_end('EXECUTIONS');
CREATE TRIGGER approval_counted AFTER UPDATE ON approvals FOR EACH ROW
    WHEN (OLD.state = 'PENDING' AND NEW.state <> 'PENDING') EXECUTE FUNCTION figure_of_end('APPROVALS');

-- +goose StatementBegin
CREATE FUNCTION figure_of_run() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
    INSERT INTO figure_changes (figure_name, agent_name, label, amount)
    SELECT 'RUNS', s.agent_name, NEW.run_state, 1 FROM sessions s WHERE s.session_id = NEW.session_id;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER run_counted AFTER UPDATE ON messages FOR EACH ROW
    WHEN (OLD.run_state IS NULL AND NEW.run_state IS NOT NULL) EXECUTE FUNCTION figure_of_run();

-- +goose StatementBegin
CREATE FUNCTION figure_of_start() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
    took numeric := extract(epoch FROM now() - NEW.created_at);
    bounds numeric[] := ARRAY[0.25, 0.5, 1, 2, 3, 5, 8, 13, 20, 30, 60, 120];
    bound text := COALESCE((SELECT min(b)::text FROM unnest(bounds) b WHERE took <= b), '+Inf');
BEGIN
    NEW.ready_at := now();
    INSERT INTO figure_changes (figure_name, agent_name, label, amount) VALUES
        ('SANDBOX_START', NEW.agent_name, bound, 1), ('SANDBOX_START_MILLIS', NEW.agent_name, '', (took * 1000)::bigint);
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER sandbox_counted BEFORE UPDATE ON sandboxes FOR EACH ROW
    WHEN (OLD.state = 'CREATING' AND NEW.state = 'READY') EXECUTE FUNCTION figure_of_start();

-- Log entries: the trace that their session was in.
ALTER TABLE agent_execution_logs ADD COLUMN traceparent text NOT NULL DEFAULT '';
ALTER TABLE agent_execution_logs_overflow ADD COLUMN traceparent text NOT NULL DEFAULT '';
-- +goose StatementBegin
-- log_entry is as in 0012, and says the trace.
CREATE OR REPLACE FUNCTION log_entry(agent text, session text, node text, lvl text, msg text, guardrail text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    trace text := COALESCE((SELECT s.traceparent FROM sessions s WHERE s.session_id = session), '');
BEGIN
    PERFORM pg_current_xact_id();
    INSERT INTO agent_execution_logs (agent_name, session_id, node_id, level, message, guardrail_result, traceparent, created_at)
    VALUES (agent, session, node, lvl, msg, guardrail, trace, clock_timestamp());
EXCEPTION WHEN check_violation THEN
    INSERT INTO agent_execution_logs_overflow (agent_name, session_id, node_id, level, message, guardrail_result, traceparent, created_at)
    VALUES (agent, session, node, lvl, msg, guardrail, trace, clock_timestamp());
END $$;
-- +goose StatementEnd

-- What a step spends has no row of its own but in its session.
GRANT INSERT ON figure_changes TO tuluat_agent_step;
GRANT UPDATE (run_state) ON messages TO tuluat_management_api;
GRANT SELECT, INSERT, UPDATE ON figures TO tuluat_reaper_cron;
GRANT SELECT, DELETE ON figure_changes TO tuluat_reaper_cron;

-- What is scraped.
GRANT SELECT ON figures, figure_changes, sweep_reports TO tuluat_management_api;
GRANT SELECT (sweep_name, completed_at) ON sweeps TO tuluat_management_api;
GRANT SELECT (agent_name, revision, spec) ON agent_revisions TO tuluat_management_api;
