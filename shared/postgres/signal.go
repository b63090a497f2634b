package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// SignalClaim is the end of one approval that a Temporal workflow is to be told,
// with all that telling it needs. Whoever holds it writes with Token.
type SignalClaim struct {
	ID        harness.SignalID
	Token     int64
	Attempts  int    // this one included
	Namespace string // empty: that of the function's configuration
	Workflow  string
	Run       string // that the session names; empty: whichever is the current one
	Pinned    string // the run that an earlier attempt took for the current one; empty: none did

	Approval   harness.ApprovalID
	Session    harness.SessionID
	Agent      harness.AgentName
	Node       string // of a workflow of ours, that asked
	State      harness.ApprovalState
	DecidedBy  string
	DecidedVia harness.Channel
	Reason     string // in the words of whoever decided
	DecidedAt  time.Time
	Digest     string
}

// SignalOutcome is what one attempt came to.
type SignalOutcome struct {
	Sent    bool
	Reason  string        // for people, when not Sent
	Refused bool          // the answer was that it will never do; when it is believed, the signal is FAILED
	Retry   time.Duration // otherwise: again after this
}

// refusalsBelieved is how long every answer must be a refusal until it is taken
// for certain: a workflow may be a moment behind the session that names it, a
// server may be failing over, and a right may be on its way.
const refusalsBelieved = "5 minutes"

// claimSignalSQL claims the oldest signal of session $1 that is due and free.
const claimSignalSQL = `
WITH claimed AS (
    UPDATE temporal_signals g SET lease_owner = $2, lease_token = lease_token + 1, lease_until = now() + $3::interval, attempts = attempts + 1
    WHERE temporal_signal_id = (SELECT temporal_signal_id FROM temporal_signals WHERE session_id = $1 AND state = 'PENDING' AND due_at <= now()
        AND (lease_until IS NULL OR lease_until < now()) ORDER BY temporal_signal_id LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING *
), heard AS (
    DELETE FROM outbox USING claimed WHERE subject = claimed.temporal_signal_id
)
SELECT c.temporal_signal_id, c.lease_token, c.attempts, c.namespace, c.workflow_id, c.temporal_run, c.pinned_run,
       a.approval_id, c.session_id, a.agent_name, a.node_id, a.state, a.decided_by, a.decided_via, a.reason, a.decided_at, a.digest
FROM claimed c JOIN approvals a USING (approval_id)`

// ClaimSignal takes the lease of the session's oldest signal that is due.
// ErrNothingDue: there is none, or others have them all.
func (s *Store) ClaimSignal(ctx context.Context, session harness.SessionID, lease Lease) (*SignalClaim, error) {
	found, err := list(ctx, s, claimSignalSQL, []any{session, lease.Owner, lease.For}, func(row pgx.CollectableRow) (*SignalClaim, error) {
		c := &SignalClaim{}
		err := row.Scan(&c.ID, &c.Token, &c.Attempts, &c.Namespace, &c.Workflow, &c.Run, &c.Pinned,
			&c.Approval, &c.Session, &c.Agent, &c.Node, &c.State, &c.DecidedBy, &c.DecidedVia, &c.Reason, &c.DecidedAt, &c.Digest)
		return c, err
	})
	if err == nil && len(found) == 0 {
		err = ErrNothingDue
	}
	if err != nil {
		return nil, err
	}
	return found[0], nil
}

// PinSignal commits to which run the signal is about to be sent, so that a repeat
// goes to the same: only that one knows whether it has it. ErrLeaseLost: somebody
// else has claimed it since, and it must not be sent.
func (s *Store) PinSignal(ctx context.Context, c *SignalClaim, run string) error {
	err := s.oneRow(ctx, `UPDATE temporal_signals SET pinned_run = $3 WHERE temporal_signal_id = $1 AND lease_token = $2 AND lease_owner IS NOT NULL`, c.ID, c.Token, run)
	if err == nil {
		c.Pinned = run
	}
	return err
}

// markSignalSQL ends claim $2 of signal $1. How it ended is told in the log of its
// session, and so is the first of several refusals.
const markSignalSQL = `
WITH marked AS (
    UPDATE temporal_signals g SET lease_owner = NULL, lease_until = NULL, reason = $4, due_at = now() + $6::interval,
           refused_at = CASE WHEN $5 THEN COALESCE(o.refused_at, now()) END,
           state = CASE WHEN $3 THEN 'SENT' WHEN o.certain THEN 'FAILED' ELSE 'PENDING' END,
           ended_at = CASE WHEN $3 OR o.certain THEN now() END
    FROM (SELECT temporal_signal_id, refused_at, $5 AND COALESCE(refused_at <= now() - interval '` + refusalsBelieved + `', false) AS certain
          FROM temporal_signals WHERE temporal_signal_id = $1 FOR UPDATE) o
    WHERE g.temporal_signal_id = o.temporal_signal_id AND g.lease_token = $2 AND g.lease_owner IS NOT NULL
    RETURNING g.state, g.workflow_id, g.approval_id, g.session_id, g.reason, $5 AND o.refused_at IS NULL AS refused_first
), told AS (
    SELECT m.state, m.session_id, a.agent_name, a.node_id,
           CASE WHEN m.state = 'SENT' THEN 'INFO' WHEN m.state = 'FAILED' THEN 'ERROR' WHEN refused_first THEN 'WARN' END AS level,
           'the Temporal workflow ' || workflow_id || CASE m.state WHEN 'SENT' THEN ' was told' WHEN 'FAILED' THEN ' is never told' ELSE ' is not told yet' END
               || ' that approval ' || approval_id || ' is ' || a.state || CASE m.state WHEN 'SENT' THEN '' ELSE ': ' || m.reason END AS message
    FROM marked m JOIN approvals a USING (approval_id)
)
SELECT state, CASE WHEN level IS NOT NULL THEN log_entry(agent_name, session_id, node_id, level, message, '') END FROM told`

// MarkSignal writes what an attempt came to and ends the claim. It returns the
// state of the signal from now on. ErrLeaseLost: somebody else has claimed it
// since; nothing is written.
func (s *Store) MarkSignal(ctx context.Context, c *SignalClaim, o SignalOutcome) (harness.SignalState, error) {
	found, err := list(ctx, s, markSignalSQL, []any{c.ID, c.Token, o.Sent, cleanReason(o.Reason), o.Refused, o.Retry}, func(row pgx.CollectableRow) (state harness.SignalState, err error) {
		return state, row.Scan(&state, nil)
	})
	if err == nil && len(found) == 0 {
		err = ErrLeaseLost
	}
	if err != nil {
		return "", err
	}
	return found[0], nil
}

// SignalsDue returns announcements of up to limit signals that are due, held by
// nobody and not announced by an outbox row any more, which each gets again: a
// backoff has passed, or a sender ended before it marked.
func (s *Store) SignalsDue(ctx context.Context, limit int) ([]event.Event, error) {
	return list(ctx, s, `WITH due AS (
			SELECT g.*, n.agent_name, n.channel, n.traceparent FROM temporal_signals g JOIN sessions n USING (session_id)
			WHERE g.state = 'PENDING' AND g.due_at <= now() AND (g.lease_until IS NULL OR g.lease_until < now())
			  AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.subject = g.temporal_signal_id)
			ORDER BY g.due_at LIMIT $1
		), told AS (
			INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, channel, payload, traceparent, due_at)
			SELECT 'approval.decided:' || approval_id || ':signal', $2, temporal_signal_id, session_id, agent_name, channel,
			       jsonb_build_object('session', session_id), traceparent, now() + interval '`+announceAgain+`'
			FROM due ORDER BY temporal_signal_id ON CONFLICT (event_id) DO NOTHING
		) SELECT approval_id, session_id, agent_name, channel, traceparent FROM due ORDER BY due_at`, []any{limit, event.ApprovalDecided},
		func(row pgx.CollectableRow) (event.Event, error) {
			e := event.Event{Type: event.ApprovalDecided}
			var approval string
			err := row.Scan(&approval, &e.Session, &e.Agent, &e.Channel, &e.TraceParent)
			e.ID, e.Payload.Session = "approval.decided:"+approval+":signal", e.Session
			return e, err
		})
}
