package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// NewAttempt is a question to a model that a step asked, and what came of it.
type NewAttempt struct {
	Purpose  harness.AttemptPurpose
	Provider harness.Provider
	Model    string        // as it was asked for
	Reason   string        // why it gave no answer; empty: it gave one
	Final    bool          // it gives none to this question, however often it is asked
	Wait     time.Duration // it asks not to be asked before
	Tokens   harness.Tokens
	Cost     *harness.Micros // nil: no price is known
	Took     time.Duration
}

// AttemptRecord is how an earlier question to a model ended.
type AttemptRecord struct {
	Purpose  harness.AttemptPurpose
	Provider harness.Provider
	Model    string
	Reason   string // empty: it answered
	Final    bool
	Wait     time.Duration
	Now      bool // it was the question that is open now
}

// attempts is written once the step has its number, or before there is one: then
// it is the number of the next.
func (w *stepWriter) attempts() {
	claim := w.c.Claim
	for _, a := range w.c.Attempts {
		w.Queue(`INSERT INTO model_attempts (session_id, agent_name, message_id, step_seq, attempts, purpose, provider, model, reason, final, wait_millis,
				input_tokens, cache_read_tokens, cache_write_tokens, output_tokens, cost_micros, millis)
			SELECT session_id, agent_name, $2, step_seq + $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16 FROM sessions WHERE session_id = $1`,
			claim.ID, claim.Turns[len(claim.Turns)-1].Message, count(w.c.Step == nil), claim.Attempts, a.Purpose, a.Provider, a.Model, a.Reason, a.Final,
			a.Wait.Milliseconds(), a.Tokens.Input, a.Tokens.CacheRead, a.Tokens.CacheWrite, a.Tokens.Output, a.Cost, a.Took.Milliseconds())
	}
}

// attemptsSQL finds how models that agent and session of session $1 ask stand: what
// came of the questions of the running turn, and in the last minute of those of the
// agent that say something of the model and not of what it was asked. It reads few
// more of them than it gives, however much the agent is asked, and of the session no
// more than its turn, none of whose questions has the number of an earlier step.
const attemptsSQL = `
WITH s AS (
    SELECT session_id, agent_name, step_seq, turn_steps, (SELECT m.message_id FROM messages m WHERE m.session_id = sessions.session_id AND m.state = 'RUNNING') AS message_id
    FROM sessions WHERE session_id = $1
), near AS (
    SELECT a.* FROM s CROSS JOIN LATERAL (
        SELECT * FROM model_attempts
        WHERE session_id = s.session_id AND step_seq > s.step_seq - s.turn_steps AND message_id = s.message_id AND purpose <> 'GUARDRAIL'
        ORDER BY model_attempt_id DESC LIMIT 50
    ) a
    UNION
    SELECT a.* FROM s CROSS JOIN LATERAL (
        SELECT * FROM model_attempts
        WHERE agent_name = s.agent_name AND created_at > now() - interval '1 minute' AND purpose <> 'GUARDRAIL'
          AND (session_id = s.session_id OR reason IN ('', 'RATE_LIMITED', 'OVERLOADED', 'TIMEOUT', 'UNREACHABLE', 'KEY_REJECTED', 'NO_CREDIT', 'NOT_FOUND'))
        ORDER BY created_at DESC, model_attempt_id DESC LIMIT 50
    ) a
) SELECT n.purpose, n.provider, n.model, n.reason, n.final, n.wait_millis, n.session_id = s.session_id AND n.step_seq = s.step_seq + 1
FROM near n, s ORDER BY n.model_attempt_id`

func readAttemptRecord(row pgx.CollectableRow) (AttemptRecord, error) {
	var r AttemptRecord
	var millis int64
	err := row.Scan(&r.Purpose, &r.Provider, &r.Model, &r.Reason, &r.Final, &millis, &r.Now)
	r.Wait = time.Duration(millis) * time.Millisecond
	return r, err
}

// stepAttemptsSQL are the questions that were asked for steps.
const stepAttemptsSQL = `SELECT s.step_id, a.purpose, a.attempts, a.provider, a.model, a.reason, a.final, a.input_tokens, a.cache_read_tokens, a.cache_write_tokens,
		a.output_tokens, a.cost_micros, a.millis, a.created_at
	FROM steps s JOIN model_attempts a ON a.session_id = s.session_id AND a.step_seq = s.seq WHERE s.step_id = ANY ($1) ORDER BY a.model_attempt_id`

func readStepAttempt(row pgx.CollectableRow) (step string, v view.ModelAttempt, err error) {
	var cost *harness.Micros
	err = row.Scan(&step, &v.Purpose, &v.Attempts, &v.Provider, &v.Model, &v.Reason, &v.Final, &v.InputTokens, &v.CacheReadTokens, &v.CacheWriteTokens,
		&v.OutputTokens, &cost, &v.Millis, &v.CreatedAt)
	if cost != nil {
		v.Cost = cost.String()
	}
	return step, v, err
}

// UsageFilter says which questions to models are counted.
type UsageFilter struct {
	Agent harness.AgentName // empty: of all
	Since time.Time         // from the beginning of its day, by UTC
}

// ListModelUsage returns what agents have asked models on each day, by UTC, the
// newest day first, then by agent and model, at most limit entries. Days without a
// question have none.
func (s *Store) ListModelUsage(ctx context.Context, f UsageFilter, limit int) ([]view.ModelUsage, error) {
	return list(ctx, s, `SELECT (a.created_at AT TIME ZONE 'UTC')::date AS day, a.agent_name, a.provider, a.model, count(*), count(*) FILTER (WHERE a.reason <> ''),
			sum(a.input_tokens)::bigint, sum(a.cache_read_tokens)::bigint, sum(a.cache_write_tokens)::bigint, sum(a.output_tokens)::bigint, sum(a.cost_micros)::bigint,
			count(*) FILTER (WHERE a.cost_micros IS NULL)
		FROM model_attempts a WHERE ($1 = '' OR a.agent_name = $1) AND a.created_at >= $2::date AT TIME ZONE 'UTC'
		GROUP BY 1, 2, 3, 4 ORDER BY 1 DESC, 2, 3, 4 LIMIT $3`,
		[]any{f.Agent, f.Since.UTC().Format(time.DateOnly), limit}, func(row pgx.CollectableRow) (view.ModelUsage, error) {
			var day time.Time
			var cost *harness.Micros
			var v view.ModelUsage
			err := row.Scan(&day, &v.Agent, &v.Provider, &v.Model, &v.Asked, &v.Unanswered, &v.InputTokens, &v.CacheReadTokens, &v.CacheWriteTokens, &v.OutputTokens, &cost, &v.Unpriced)
			v.Day = day.Format(time.DateOnly)
			if cost != nil {
				v.Cost = cost.String()
			}
			return v, err
		})
}
