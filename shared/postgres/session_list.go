package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// SessionFilter says which sessions a list holds. Zero fields: any.
type SessionFilter struct {
	Agent         harness.AgentName
	States        []harness.SessionState
	Channel       harness.Channel
	ChannelUserID string    // who has written there
	Since, Until  time.Time // made then or later, and before
}

const sessionColumns = `s.session_id, s.agent_name, s.channel, s.account, s.chat, s.state, s.reason, s.message_seq, s.step_seq,
	s.created_at, s.updated_at, s.ended_at, s.paused_at, s.paused_by, s.traceparent, s.temporal, COALESCE(s.workflow_name, ''), COALESCE(s.workflow_revision, 0), COALESCE(s.origin_session, ''),
	COALESCE(s.parent_visit, ''), CASE WHEN s.workflow_name IS NOT NULL THEN s.input END, CASE WHEN s.workflow_name IS NOT NULL THEN ` + currentNodeSQL + ` END,
	ARRAY[s.used_steps, s.used_tool_calls, s.used_millis, s.used_tokens, s.used_cost, s.used_execution_millis]`

// currentNodeSQL is the node of run s that waits: for a human first, else for an
// agent or a command, else for its time.
const currentNodeSQL = `(SELECT v.node_id FROM node_visits v WHERE v.session_id = s.session_id AND v.state IN ('PENDING', 'RUNNING', 'WAITING')
		ORDER BY v.state = 'WAITING' DESC, v.state = 'RUNNING' DESC, v.seq LIMIT 1)`

func readSession(row pgx.CollectableRow) (view.Session, error) {
	var v view.Session
	var traceparent string
	var node *string
	var spent []int64
	err := row.Scan(&v.ID, &v.Agent, &v.Channel, &v.Account, &v.Chat, &v.State, &v.Reason, &v.Messages, &v.Steps,
		&v.CreatedAt, &v.UpdatedAt, &v.EndedAt, &v.PausedAt, &v.PausedBy, &traceparent, &v.Temporal, &v.Workflow, &v.WorkflowRevision, &v.Origin, &v.Visit, &v.Input, &node, &spent)
	if err != nil {
		return v, err
	}
	v.Spent = view.SpentOf(harness.Spent(spent))
	if node != nil {
		v.CurrentNode = *node
	}
	if parts := strings.Split(traceparent, "-"); len(parts) == 4 { // W3C: version, trace id, parent, flags
		v.TraceID = parts[1]
	}
	return v, nil
}

// ListSessions returns up to limit sessions behind after, newest first. One that
// is committed late may come behind a page that was read: the next walk has it.
func (s *Store) ListSessions(ctx context.Context, f SessionFilter, after view.Place, limit int) ([]view.Session, error) {
	q := &query{}
	q.behind("s.session_id", after)
	q.between("s.session_id", "s.created_at", "ses", f.Since, f.Until)
	q.equal("s.channel", string(f.Channel))
	switch {
	case f.ChannelUserID != "":
		q.equal("s.agent_name", string(f.Agent))
		if err := in(q, "s.state", f.States, harness.SessionState.Known); err != nil {
			return nil, err
		}
		q.and("s.session_id IN (SELECT m.session_id FROM messages m WHERE m.direction = 'INBOUND' AND m.channel_user_id = " + q.arg(f.ChannelUserID) + ")")
	case f.Agent != "" || len(f.States) > 0:
		return s.sessionsByState(ctx, f, q, limit)
	case f.Channel != "":
		return s.sessionsByAccount(ctx, f, q, limit)
	}
	return list(ctx, s, `SELECT `+sessionColumns+` FROM sessions s WHERE `+q.sql()+` ORDER BY s.session_id DESC LIMIT `+q.arg(limit), q.args, readSession)
}

// sessionsByState merges the newest of each state of each agent: their index has
// both before the id, so that no list of few walks past many.
func (s *Store) sessionsByState(ctx context.Context, f SessionFilter, q *query, limit int) ([]view.Session, error) {
	states := f.States
	if len(states) == 0 {
		states = harness.SessionStates()
	}
	list, err := quoted(states, harness.SessionState.Known)
	if err != nil {
		return nil, err
	}
	agents := `agents a`
	if f.Agent != "" {
		agents = `(SELECT ` + q.arg(f.Agent) + `::text AS agent_name) a`
	}
	return s.mergedSessions(ctx, agents+` CROSS JOIN unnest(ARRAY[`+list+`]) AS st (state)`, `s.agent_name = a.agent_name AND s.state = st.state`, q, limit)
}

// sessionsByAccount merges the newest of each account of the channel.
func (s *Store) sessionsByAccount(ctx context.Context, f SessionFilter, q *query, limit int) ([]view.Session, error) {
	channel := q.arg(f.Channel)
	accounts := fmt.Sprintf(`(WITH RECURSIVE found (account) AS (
			(SELECT n.account FROM sessions n WHERE n.channel = %[1]s ORDER BY n.account LIMIT 1)
			UNION ALL
			SELECT (SELECT n.account FROM sessions n WHERE n.channel = %[1]s AND n.account > found.account ORDER BY n.account LIMIT 1) FROM found WHERE found.account IS NOT NULL
		) SELECT account FROM found WHERE account IS NOT NULL) a`, channel)
	return s.mergedSessions(ctx, accounts, `s.account = a.account`, q, limit)
}

// mergedSessions lists the newest of what each row of groups has by the
// condition of.
func (s *Store) mergedSessions(ctx context.Context, groups, of string, q *query, limit int) ([]view.Session, error) {
	n := q.arg(limit)
	return list(ctx, s, `SELECT `+sessionColumns+` FROM (
			SELECT p.session_id FROM `+groups+` CROSS JOIN LATERAL (
				SELECT s.session_id FROM sessions s WHERE `+of+` AND `+q.sql()+` ORDER BY s.session_id DESC LIMIT `+n+`) p
			ORDER BY p.session_id DESC LIMIT `+n+`) p JOIN sessions s USING (session_id) ORDER BY s.session_id DESC`, q.args, readSession)
}

const sessionSQL = `SELECT ` + sessionColumns + ` FROM sessions s WHERE s.session_id = $1`

// GetSession returns one session. harness.NotFound: there is none.
func (s *Store) GetSession(ctx context.Context, id harness.SessionID) (view.Session, error) {
	return one(ctx, s, "session", sessionSQL, []any{id}, readSession)
}
