package postgres

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// NewRun is a workflow run to be started.
type NewRun struct {
	ID          harness.SessionID
	Workflow    harness.WorkflowName
	Revision    int64
	Agent       harness.AgentName // that the run belongs to
	Key         string            // names the start, unique in its workflow: the same again starts nothing
	Origin      harness.SessionID // the conversation that it is started from; empty: none
	Input       json.RawMessage   // an object
	Started     harness.Started
	Temporal    *harness.TemporalLink // told of the approvals of the run and its conversations; nil: none is
	TraceParent string
	Audit       Audit // by the API
}

// startRunSQL starts run $1 unless its workflow has a start of the same key. It
// belongs to agent $2, or, where there is none, to that of its origin: whoever
// started it is told.
const startRunSQL = startRunParts + startedRun

const startRunParts = `
WITH made AS (
    INSERT INTO sessions (session_id, agent_name, channel, account, chat, state, due_at, traceparent, workflow_name, workflow_revision, origin_session, input, started, temporal)
    SELECT $1, a.agent_name, 'API', $3, $1, 'PENDING', now(), $4, $3, $5, NULLIF($6, ''), $7, $8, $11::jsonb
    FROM (SELECT COALESCE((SELECT agent_name FROM agents WHERE agent_name = $2), (SELECT agent_name FROM sessions WHERE session_id = NULLIF($6, ''))) AS agent_name) a
    WHERE a.agent_name IS NOT NULL AND NOT EXISTS (SELECT 1 FROM workflow_starts WHERE workflow_name = $3 AND start_key = $9)
    RETURNING session_id, agent_name, workflow_name
), noted AS (
    INSERT INTO workflow_starts (workflow_name, start_key, session_id) SELECT $3, $9, session_id FROM made RETURNING session_id
), told AS (
    INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, payload, traceparent, due_at)
    SELECT 'session.due:' || session_id || ':started', $10, session_id, session_id, agent_name, jsonb_build_object('session', session_id), $4, now() + interval '` + announceAgain + `'
    FROM made ON CONFLICT (event_id) DO NOTHING
)`

const startedRun = `
SELECT count(*) FROM noted`

// startRunAudited is startRunSQL for the management API: others may keep no audit.
var startRunAudited = startRunParts + `, audited AS (
    ` + auditSQL(12, `made`, `session_id`, `NULL::jsonb`, `jsonb_build_object('session', session_id, 'agent', agent_name, 'workflow', workflow_name)`) + `
)` + startedRun

func (r NewRun) args() []any {
	input := r.Input
	if len(input) == 0 {
		input = json.RawMessage("{}")
	}
	return []any{r.ID, r.Agent, r.Workflow, r.TraceParent, r.Revision, r.Origin, input, r.Started, r.Key, event.SessionDue, r.Temporal}
}

func (r NewRun) wake() announcement {
	a := sessionDue(r.ID, r.Agent, "started")
	a.TraceParent = r.TraceParent
	return a
}

// StartRun starts a run and returns the events to publish. When there is one of
// its key already, that is returned and nothing is started. harness.Conflict: its agent does not
// exist.
func (s *Store) StartRun(ctx context.Context, r NewRun) (id harness.SessionID, started bool, events []event.Event, err error) {
	var n int
	start, args := startRunSQL, r.args()
	if r.Audit.Action != "" {
		start, args = startRunAudited, append(args, r.Audit.args()...)
	}
	err = s.pool.QueryRow(ctx, start, args...).Scan(&n)
	if err = translate(err); err != nil && harness.KindOf(err) != harness.Conflict { // Conflict: somebody starts it at this moment
		return "", false, nil, err
	}
	if n > 0 && err == nil {
		return r.ID, true, []event.Event{r.wake().Event}, nil
	}
	err = s.pool.QueryRow(ctx, `SELECT session_id FROM workflow_starts WHERE workflow_name = $1 AND start_key = $2`, r.Workflow, r.Key).Scan(&id)
	if err = translate(err); harness.KindOf(err) == harness.NotFound {
		return "", false, nil, harness.Errorf(harness.Conflict, "the workflow's agent %s does not exist", r.Agent)
	}
	return id, false, nil, err
}

// WorkflowInUse is the revision of a workflow that new runs get.
type WorkflowInUse struct {
	WorkflowStatus
	Workflow *harness.Workflow // nil: it never had a valid revision
}

// GetWorkflow returns how a workflow stands and its revision in use.
// harness.NotFound: there is none, or it is DELETED.
func (s *Store) GetWorkflow(ctx context.Context, name harness.WorkflowName) (WorkflowInUse, error) {
	var w WorkflowInUse
	err := s.pool.QueryRow(ctx, `SELECT w.workflow_name, w.phase, w.revision, w.reason, r.spec FROM workflows w LEFT JOIN workflow_revisions r USING (workflow_name, revision)
		WHERE w.workflow_name = $1 AND w.phase <> 'DELETED'`, name).Scan(&w.Name, &w.Phase, &w.Revision, &w.Reason, &w.Workflow)
	if err = translate(err); harness.KindOf(err) == harness.NotFound {
		return w, harness.Errorf(harness.NotFound, "there is no such workflow")
	}
	return w, err
}

// RunRecord is what is stored of a workflow run, and what became of what its
// visits asked for.
type RunRecord struct {
	Workflow harness.Workflow // of the revision that it started with
	Revision int64
	Input    json.RawMessage
	Started  harness.Started
	Origin   *harness.Session // the conversation that it was started from; nil: none
	Visits   []VisitRecord    // in the order in which they began
	Agents   map[harness.AgentName]AgentInUse
	Now      time.Time // the database's
}

// AgentInUse is an agent that a workflow names.
type AgentInUse struct {
	Phase harness.AgentPhase
	Agent *harness.Agent // nil: it never had a valid revision
}

// VisitRecord is one visit of a node, with what became of its newest attempt.
type VisitRecord struct {
	ID       harness.VisitID
	Node     string
	Number   int
	State    harness.VisitState
	Attempt  int
	Arrivals []harness.VisitID
	Output   json.RawMessage
	Reason   string
	Due      *time.Time

	Child     *ChildRecord     // of a node of type AGENT
	Execution *ExecutionResult // of a node of type SHELL
	Approval  *VisitApproval   // of a node of type APPROVAL
}

// ChildRecord is the conversation that a visit has with an agent.
type ChildRecord struct {
	ID       harness.SessionID
	Agent    harness.AgentName
	State    harness.SessionState
	Reason   string
	Answered bool   // the prompt's turn is over
	Text     string // of the answer
}

// VisitApproval is what became of a visit's question.
type VisitApproval struct {
	ID        harness.ApprovalID
	State     harness.ApprovalState
	OnTimeout harness.TimeoutAction
	DecidedBy string
	Reason    string
}

// visitsSQL yields the visits of run $1, with the output of the newest of each
// node only: expressions see no other.
const visitsSQL = `
SELECT v.visit_id, v.node_id, v.visit, v.state, v.attempts, v.arrivals,
       CASE WHEN NOT EXISTS (SELECT 1 FROM node_visits n WHERE n.session_id = v.session_id AND n.node_id = v.node_id AND n.visit > v.visit AND n.state IN ('DONE', 'FAILED'))
           THEN v.output END, v.reason, v.due_at,
       c.session_id, c.agent_name, c.state, c.reason, EXISTS (SELECT 1 FROM messages m WHERE m.session_id = c.session_id AND m.seq = 1 AND m.state = 'DONE'),
       COALESCE((SELECT r.text FROM messages m JOIN messages r ON r.in_reply_to = m.message_id WHERE m.session_id = c.session_id AND m.seq = 1), ''),
       x.execution_id, x.state, x.reason, x.exit_code, x.stdout_bytes, x.stderr_bytes, x.o_n, x.o_head, x.o_tail, x.stdout_tail, x.r_n, x.r_head, x.r_tail, x.stderr_tail,
       a.approval_id, a.state, a.on_timeout, a.decided_by, a.reason
FROM node_visits v
LEFT JOIN sessions c ON c.session_id = v.child_session AND v.state = 'RUNNING'
LEFT JOIN approvals a ON a.visit_id = v.visit_id AND v.state = 'WAITING'
LEFT JOIN LATERAL (
    SELECT e.*, o.n AS o_n, o.head AS o_head, o.tail AS o_tail, r.n AS r_n, r.head AS r_head, r.tail AS r_tail FROM executions e
    LEFT JOIN LATERAL ($stdout) o ON true LEFT JOIN LATERAL ($stderr) r ON true
    WHERE v.state = 'RUNNING' AND e.cause = 'NODE_VISIT' AND e.cause_id = v.visit_id AND e.cause_attempt = v.attempts
) x ON true
WHERE v.session_id = $1 ORDER BY v.seq`

// LoadRun reads the run of a claim, in one round trip.
func (s *Store) LoadRun(ctx context.Context, claim *Claim) (*RunRecord, error) {
	run := &RunRecord{Agents: map[harness.AgentName]AgentInUse{}}
	b := &pgx.Batch{}
	var channel *harness.Channel
	var origin harness.Session
	var originID, originAgent, originAccount, originChat, originState *string
	b.Queue(`SELECT r.spec, r.revision, COALESCE(s.input, '{}'), COALESCE(s.started, '{}'), now(), o.session_id, o.agent_name, o.channel, o.account, o.chat, o.state
		FROM sessions s JOIN workflow_revisions r ON r.workflow_name = s.workflow_name AND r.revision = s.workflow_revision
		LEFT JOIN sessions o ON o.session_id = s.origin_session WHERE s.session_id = $1`, claim.ID).QueryRow(func(row pgx.Row) error {
		return row.Scan(&run.Workflow, &run.Revision, &run.Input, &run.Started, &run.Now, &originID, &originAgent, &channel, &originAccount, &originChat, &originState)
	})
	b.Queue(visitsStatement, claim.ID).Query(func(rows pgx.Rows) (err error) {
		run.Visits, err = pgx.CollectRows(rows, readVisit)
		return err
	})
	b.Queue(`SELECT a.agent_name, a.phase, ar.spec FROM agents a LEFT JOIN agent_revisions ar USING (agent_name, revision)
		WHERE a.agent_name IN (SELECT n->>'agent' FROM sessions s JOIN workflow_revisions r ON r.workflow_name = s.workflow_name AND r.revision = s.workflow_revision,
			jsonb_array_elements(r.spec->'nodes') n WHERE s.session_id = $1)`, claim.ID).Query(each(func(row pgx.CollectableRow) error {
		var name harness.AgentName
		var a AgentInUse
		err := row.Scan(&name, &a.Phase, &a.Agent)
		run.Agents[name] = a
		return err
	}))
	if err := s.batch(ctx, b, nil); err != nil {
		return nil, err
	}
	if originID != nil {
		origin = harness.Session{
			ID: harness.SessionID(*originID), Agent: harness.AgentName(*originAgent), Channel: *channel, Account: *originAccount, Chat: *originChat,
			State: harness.SessionState(*originState),
		}
		run.Origin = &origin
	}
	return run, nil
}

func readVisit(row pgx.CollectableRow) (VisitRecord, error) {
	var v VisitRecord
	var child struct{ id, agent, state, reason *string }
	var answered bool
	var text string
	var execution struct {
		id, state, reason *string
		out, err          *int64
	}
	var e ExecutionResult
	var stdout, stderr kept
	var approval struct{ id, state, onTimeout, by, reason *string }
	err := row.Scan(&v.ID, &v.Node, &v.Number, &v.State, &v.Attempt, &v.Arrivals, &v.Output, &v.Reason, &v.Due,
		&child.id, &child.agent, &child.state, &child.reason, &answered, &text,
		&execution.id, &execution.state, &execution.reason, &e.ExitCode, &execution.out, &execution.err,
		&stdout.bytes, &stdout.head, &stdout.tail, &stdout.printed, &stderr.bytes, &stderr.head, &stderr.tail, &stderr.printed,
		&approval.id, &approval.state, &approval.onTimeout, &approval.by, &approval.reason)
	if err != nil {
		return v, err
	}
	if child.id != nil {
		v.Child = &ChildRecord{
			ID: harness.SessionID(*child.id), Agent: harness.AgentName(*child.agent), State: harness.SessionState(*child.state), Reason: *child.reason,
			Answered: answered, Text: text,
		}
	}
	if execution.id != nil {
		e.ID, e.State, e.Reason = harness.ExecutionID(*execution.id), harness.ExecutionState(*execution.state), *execution.reason
		e.StdoutBytes, e.StderrBytes = *execution.out, *execution.err
		e.StdoutHead, e.StdoutTail = stdout.window(e.StdoutBytes)
		e.StderrHead, e.StderrTail = stderr.window(e.StderrBytes)
		v.Execution = &e
	}
	if approval.id != nil {
		v.Approval = &VisitApproval{ID: harness.ApprovalID(*approval.id), State: harness.ApprovalState(*approval.state), OnTimeout: harness.TimeoutAction(*approval.onTimeout), DecidedBy: *approval.by, Reason: *approval.reason}
	}
	return v, nil
}
