package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// ApprovalFilter says which approvals a list holds. Zero fields: any.
type ApprovalFilter struct {
	States  []harness.ApprovalState
	Agent   harness.AgentName
	Session harness.SessionID
	Since   time.Time
}

// Decision is what somebody says to an approval.
type Decision struct {
	ID     harness.ApprovalID
	State  harness.ApprovalState // APPROVED or REJECTED
	By     string                // who
	Via    harness.Channel       // by which channel
	Reason string                // in their words; may be empty
	Digest string                // of what they have seen; empty: whatever it is
}

const approvalColumns = `a.approval_id, a.session_id, a.agent_name, a.node_id, COALESCE(a.tool_call_id, ''), a.title, a.input, a.digest, a.state,
	a.decided_by, a.decided_via, a.reason, a.created_at, a.expires_at, a.decided_at`

func readApproval(row pgx.CollectableRow) (view.Approval, error) {
	var v view.Approval
	err := row.Scan(&v.ID, &v.Session, &v.Agent, &v.CurrentNode, &v.ToolCall, &v.Title, &v.Input, &v.Digest, &v.State,
		&v.DecidedBy, &v.DecidedVia, &v.Reason, &v.RequestedAt, &v.ExpiresAt, &v.DecidedAt)
	return v, err
}

// ListApprovals returns up to limit approvals behind after, newest first.
func (s *Store) ListApprovals(ctx context.Context, f ApprovalFilter, after view.Place, limit int) ([]view.Approval, error) {
	q := &query{}
	q.behind("a.approval_id", after)
	q.between("a.approval_id", "a.created_at", "apr", f.Since, time.Time{})
	q.equal("a.agent_name", string(f.Agent))
	q.equal("a.session_id", string(f.Session))
	if err := in(q, "a.state", f.States, harness.ApprovalState.Known); err != nil {
		return nil, err
	}
	return list(ctx, s, `SELECT `+approvalColumns+` FROM approvals a WHERE `+q.sql()+` ORDER BY a.approval_id DESC LIMIT `+q.arg(limit), q.args, readApproval)
}

const approvalSQL = `SELECT ` + approvalColumns + ` FROM approvals a WHERE a.approval_id = $1`

// GetApproval returns one approval. harness.NotFound: there is none.
func (s *Store) GetApproval(ctx context.Context, id harness.ApprovalID) (view.Approval, error) {
	return one(ctx, s, "approval", approvalSQL, []any{id}, readApproval)
}

// decideSQL decides approval $1 once. Its session, which is locked, is due: the
// step that asked goes on.
const decideSQL = `
WITH decided AS (
    UPDATE approvals SET state = $2, decided_by = $3, decided_via = $4, reason = $5, decided_at = now()
    WHERE approval_id = $1 AND state = 'PENDING' AND ($6 = '' OR digest = $6) AND (expires_at IS NULL OR expires_at > now())
    RETURNING session_id, agent_name
), marked AS (
    UPDATE sessions n SET due_at = least(n.due_at, now()) FROM decided d
    WHERE n.session_id = d.session_id AND n.state NOT IN ('COMPLETED', 'CANCELLED') RETURNING n.session_id, n.agent_name, n.channel, n.traceparent
), told AS (
    INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, channel, payload, traceparent, due_at)
    SELECT 'approval.decided:' || $1::text, $7, session_id, session_id, agent_name, channel, jsonb_build_object('session', session_id), traceparent,
           now() + interval '` + announceAgain + `' FROM marked ON CONFLICT (event_id) DO NOTHING
)
SELECT d.session_id, d.agent_name, COALESCE(m.channel, ''), COALESCE(m.traceparent, '') FROM decided d LEFT JOIN marked m USING (session_id)`

// DecideApproval writes a decision, if it is the first, and returns the approval
// with the events to publish. harness.Conflict, with the approval as it is: it
// is decided already, its time is over, or it is about something else than
// Digest says.
func (s *Store) DecideApproval(ctx context.Context, d Decision) (view.Approval, []event.Event, error) {
	if d.State != harness.ApprovalApproved && d.State != harness.ApprovalRejected {
		return view.Approval{}, nil, harness.Errorf(harness.Invalid, "a decision is APPROVED or REJECTED")
	}
	var events []event.Event
	b := &pgx.Batch{}
	// The session first, as whoever cancels it takes them.
	b.Queue(`SELECT 1 FROM sessions WHERE session_id = (SELECT session_id FROM approvals WHERE approval_id = $1) FOR NO KEY UPDATE`, d.ID)
	b.Queue(decideSQL, d.ID, d.State, harness.CleanText(d.By), d.Via, cleanReason(d.Reason), d.Digest, event.ApprovalDecided).
		Query(each(func(row pgx.CollectableRow) error {
			e := event.Event{ID: "approval.decided:" + string(d.ID), Type: event.ApprovalDecided}
			err := row.Scan(&e.Session, &e.Agent, &e.Channel, &e.TraceParent)
			e.Payload.Session = e.Session
			events = append(events, e)
			return err
		}))
	var stored view.Approval
	b.Queue(approvalSQL, d.ID).Query(into(&stored, readApproval))
	if err := s.batch(ctx, b, nil); err != nil {
		return view.Approval{}, nil, err
	}
	switch {
	case stored.ID == "":
		return stored, nil, harness.Errorf(harness.NotFound, "there is no such approval")
	case len(events) > 0:
		return stored, events, nil
	case stored.State != harness.ApprovalPending:
		return stored, nil, harness.Errorf(harness.Conflict, "it is decided already: %s by %s", stored.State, stored.DecidedBy)
	case d.Digest != "" && d.Digest != stored.Digest:
		return stored, nil, harness.Errorf(harness.Conflict, "the digest is of something else than this approval is about")
	default:
		return stored, nil, harness.Errorf(harness.Conflict, "its time is over")
	}
}
