package postgres

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
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
	ID        harness.ApprovalID
	State     harness.ApprovalState // APPROVED or REJECTED
	By        string                // who
	Groups    []string              // of the API that they belong to
	Via       harness.Channel       // by which channel
	Reason    string                // in their words; may be empty
	Digest    string                // of what they have seen; empty: whatever it is
	Scope     harness.ApprovalScope // of APPROVED; empty: ONCE
	Arguments json.RawMessage       // that are approved instead of those asked about; nil: as asked
	Audit     Audit                 // by the API; a channel's is in the approval itself
}

const approvalColumns = `a.approval_id, COALESCE(a.kind, CASE WHEN a.visit_id IS NULL THEN 'TOOL_CALL' ELSE 'NODE_VISIT' END), COALESCE(a.message_id, ''), a.session_id, a.agent_name, a.node_id, COALESCE(a.tool_call_id, ''), a.title, a.input, a.digest, a.state,
	a.decided_by, a.decided_via, a.reason, a.created_at, a.expires_at, a.decided_at, a.approvers, a.quorum, a.on_timeout, a.scope, a.short_code, a.context, a.asked_input,
	a.consumed_at, ARRAY(SELECT jsonb_build_object('decidedBy', v.decided_by, 'decidedVia', v.decided_via, 'decision', v.decision, 'reason', v.reason, 'decidedAt', v.created_at)
		FROM approval_votes v WHERE v.approval_id = a.approval_id ORDER BY v.created_at, v.decided_by)`

func readApproval(row pgx.CollectableRow) (view.Approval, error) { return scanApproval(row) }

// scanApproval reads approvalColumns behind what goes into before.
func scanApproval(row pgx.CollectableRow, before ...any) (view.Approval, error) {
	var v view.Approval
	err := row.Scan(append(before, &v.ID, &v.Kind, &v.Message, &v.Session, &v.Agent, &v.CurrentNode, &v.ToolCall, &v.Title, &v.Input, &v.Digest, &v.State,
		&v.DecidedBy, &v.DecidedVia, &v.Reason, &v.RequestedAt, &v.ExpiresAt, &v.DecidedAt, &v.Approvers, &v.Quorum, &v.OnTimeout,
		&v.Scope, &v.Code, &v.Context, &v.AskedInput, &v.ConsumedAt, &v.Votes)...)
	return v, err
}

// ListApprovals returns up to limit approvals behind after, newest first. One that
// is committed late may come behind a page that was read: the next walk has it.
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

// The statements of a decision run under lock_approval. A vote counts once for
// each who may decide; whoever has approved may still reject.
const (
	openApproval = `a.approval_id = $1 AND a.state = 'PENDING' AND (a.expires_at IS NULL OR a.expires_at > now())`
	voteSQL      = `
INSERT INTO approval_votes AS v (approval_id, decided_by, decided_via, decision, reason)
SELECT a.approval_id, $2, $3, $4, $5 FROM approvals a WHERE ` + openApproval + ` AND ($6 = '' OR a.digest = $6)
ON CONFLICT (approval_id, decided_by) DO UPDATE SET decision = EXCLUDED.decision, reason = EXCLUDED.reason WHERE EXCLUDED.decision = 'REJECTED' AND v.decision <> 'REJECTED'
RETURNING true`
	changeSQL = `
UPDATE approvals a SET asked_input = COALESCE(asked_input, input), input = $2, digest = $3 WHERE ` + openApproval + ` AND a.digest = $4 AND a.quorum = 1`
	decideSQL = `
UPDATE approvals a SET state = $2, scope = $4, decided_via = $3, decided_at = now(), due_at = NULL,
       decided_by = (SELECT string_agg(v.decided_by, ', ' ORDER BY v.created_at) FROM approval_votes v WHERE v.approval_id = a.approval_id AND v.decision = $2),
       reason = (SELECT string_agg(v.reason, E'\n' ORDER BY v.created_at) FROM approval_votes v WHERE v.approval_id = a.approval_id AND v.decision = $2)
WHERE ` + openApproval + ` AND ($5 = '' OR a.digest = $5) AND
      CASE $2 WHEN 'REJECTED' THEN 1 ELSE a.quorum END <= (SELECT count(*) FROM approval_votes v WHERE v.approval_id = a.approval_id AND v.decision = $2)`
	grantSQL = `
INSERT INTO approval_grants (approval_id, agent_name, session_id, digest)
SELECT a.approval_id, a.agent_name, CASE a.scope WHEN 'SESSION' THEN a.session_id END, a.digest FROM approvals a
WHERE a.approval_id = $1 AND a.state = 'APPROVED' AND a.scope <> 'ONCE' AND a.decided_at = now() ON CONFLICT DO NOTHING`
	endedSQL = `SELECT e.* FROM approvals a, LATERAL approval_ended(a.approval_id) e WHERE a.approval_id = $1 AND a.decided_at = now()`
)

// decisionAudit is what the audit has of approval a: of what will run the digest,
// since the text may have secrets and is kept for its own time.
const decisionAudit = `jsonb_strip_nulls(jsonb_build_object('session', a.session_id, 'agent', a.agent_name, 'toolCall', a.tool_call_id, 'visit', a.visit_id, `

// auditDecisionSQL stores the audit of what $2 has said to approval $1, whose digest
// was $3, if this transaction has written their vote: nothing is decided without one.
var auditDecisionSQL = auditSQL(4, `approvals a JOIN approval_votes v USING (approval_id)`, `approval_id`,
	decisionAudit+`'digest', $3::text, 'state', 'PENDING'))`,
	decisionAudit+`'digest', a.digest, 'state', a.state, 'scope', NULLIF(a.scope, 'ONCE'), 'decision', CASE a.state WHEN 'PENDING' THEN v.decision END))`) +
	` AND a.approval_id = $1 AND v.decided_by = $2 AND v.xmin = pg_current_xact_id()::xid`

// queue adds the decision to b, which tells whether it counted. before is the digest
// of what was asked.
func (d Decision) queue(b *pgx.Batch, before string, subject harness.ApprovalSubject, events *[]event.Event, counted *bool) {
	if d.Scope == "" || d.State == harness.ApprovalRejected {
		d.Scope = harness.GrantOnce
	}
	b.Queue(`SELECT lock_approval($1)`, d.ID)
	b.Queue(voteSQL, d.ID, harness.CleanText(d.By), d.Via, d.State, cleanReason(d.Reason), d.Digest).
		Query(each(func(row pgx.CollectableRow) error { return row.Scan(counted) }))
	if d.Arguments != nil && d.State == harness.ApprovalApproved {
		subject.Arguments = harness.CanonicalJSON(d.Arguments)
		after := subject.Digest()
		b.Queue(changeSQL, d.ID, subject, after, before)
		d.Digest = after
	}
	b.Queue(decideSQL, d.ID, d.State, d.Via, d.Scope, d.Digest)
	b.Queue(grantSQL, d.ID)
	b.Queue(endedSQL, d.ID).Query(collectAnnounced(events))
	d.Audit.queue(b, auditDecisionSQL, d.ID, harness.CleanText(d.By), before)
}

// DecideApproval writes a decision and returns the approval with the events to
// publish: decided, or still PENDING where more must approve. harness.Denied: By
// is none of those who may decide. harness.Conflict, with the approval as it is:
// it is decided already, its time is over, By has said so already, or it is about
// something else than Digest says. harness.Invalid: Arguments are none of its tool.
func (s *Store) DecideApproval(ctx context.Context, d Decision) (view.Approval, []event.Event, error) {
	if d.State != harness.ApprovalApproved && d.State != harness.ApprovalRejected {
		return view.Approval{}, nil, harness.Errorf(harness.Invalid, "a decision is APPROVED or REJECTED")
	}
	before, err := s.GetApproval(ctx, d.ID)
	if err != nil {
		return before, nil, err
	}
	if before.State != harness.ApprovalPending {
		return before, nil, d.outcome(before, before, false)
	}
	if !mayDecide(before.Approvers, d) {
		return before, nil, harness.Errorf(harness.Denied, "only %s may decide this", approverNames(before.Approvers))
	}
	subject, err := d.subject(before)
	if err != nil {
		return before, nil, err
	}
	var events []event.Event
	var after view.Approval
	var counted bool
	if err := again(func() error {
		events, counted = nil, false
		b := &pgx.Batch{}
		d.queue(b, before.Digest, subject, &events, &counted)
		b.Queue(approvalSQL, d.ID).Query(into(&after, readApproval))
		return s.batch(ctx, b, nil)
	}); err != nil {
		return view.Approval{}, nil, err
	}
	return after, events, d.outcome(before, after, counted)
}

// subject is what d is about, checked where d changes it.
func (d Decision) subject(a view.Approval) (harness.ApprovalSubject, error) {
	var subject harness.ApprovalSubject
	if err := json.Unmarshal(a.Input, &subject); err != nil {
		return subject, harness.Wrap(harness.Internal, err, "an approval's input cannot be read")
	}
	switch {
	case d.State == harness.ApprovalApproved && d.Scope != "" && d.Scope != harness.GrantOnce && !subject.Repeats():
		return subject, harness.Errorf(harness.Invalid, "this can be approved once, not for the session or always: it is asked anew each time")
	case d.Arguments == nil || d.State != harness.ApprovalApproved:
		return subject, nil
	case subject.Tool != harness.ToolExecuteShell:
		return subject, harness.Errorf(harness.Invalid, "only a command can be changed before it is approved")
	case a.Quorum > 1:
		return subject, harness.Errorf(harness.Invalid, "what several must approve cannot be changed: reject it and say why")
	case d.Digest == "":
		return subject, harness.Errorf(harness.Invalid, "whoever changes what is approved names the digest of what they have seen")
	}
	if _, err := harness.ShellCommand(d.Arguments); err != nil {
		return subject, err
	}
	return subject, nil
}

// outcome says what became of d, which was to change before and led to after.
// counted: its vote was written.
func (d Decision) outcome(before, after view.Approval, counted bool) error {
	switch {
	case counted:
		return nil // decided, or more must approve
	case after.State != harness.ApprovalPending:
		return harness.Errorf(harness.Conflict, "it is decided already: %s", DecidedText(after))
	case d.Digest != "" && d.Digest != after.Digest:
		return harness.Errorf(harness.Conflict, "the digest is of something else than this approval is about")
	case voted(before.Votes, d):
		return harness.Errorf(harness.Conflict, "%s has said so already; it waits for %d in all", d.By, after.Quorum)
	case voted(after.Votes, d):
		return harness.Errorf(harness.Conflict, "%s has said so meanwhile; it waits for %d in all", d.By, after.Quorum)
	}
	return harness.Errorf(harness.Conflict, "its time is over")
}

func voted(votes []view.Vote, d Decision) bool {
	return slices.ContainsFunc(votes, func(v view.Vote) bool { return v.By == d.By && v.Decision == d.State })
}

// DecidedText says who decided what, and when.
func DecidedText(a view.Approval) string {
	text := string(a.State)
	if a.DecidedBy != "" {
		text += " by " + a.DecidedBy
	}
	if a.DecidedAt != nil {
		text += " at " + a.DecidedAt.UTC().Format("2006-01-02 15:04:05") + " UTC"
	}
	return text
}

// mayDecide reports whether d comes from one who may decide. Where nobody is
// named, whoever has the right by the API may.
func mayDecide(approvers []harness.Approver, d Decision) bool {
	if d.Via != harness.ChannelAPI {
		return false // taps name their approver; see DecideByTap
	}
	return len(approvers) == 0 || slices.ContainsFunc(approvers, func(a harness.Approver) bool {
		return a.User != "" && a.User == d.By || a.Group != "" && slices.Contains(d.Groups, a.Group)
	})
}

func approverNames(approvers []harness.Approver) string {
	names := make([]string, 0, len(approvers))
	for _, a := range approvers {
		names = append(names, a.String())
	}
	return strings.Join(names, ", ")
}

// Granted reports which of digests need no further question in a session of agent.
func (s *Store) Granted(ctx context.Context, agent harness.AgentName, session harness.SessionID, digests []string) (map[string]bool, error) {
	found, err := list(ctx, s, `SELECT DISTINCT digest FROM approval_grants WHERE agent_name = $1 AND digest = ANY ($3) AND (session_id IS NULL OR session_id = $2)`,
		[]any{agent, session, digests}, pgx.RowTo[string])
	granted := make(map[string]bool, len(found))
	for _, digest := range found {
		granted[digest] = true
	}
	return granted, err
}
