package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// StreamCursor is a place in a conversation's stream: behind event Seq of
// Session. The next conversation of the same chat follows on.
type StreamCursor struct {
	Session harness.SessionID
	Seq     int64
}

// Conversation is the newest conversation of a chat.
type Conversation struct {
	Session harness.SessionID
	State   harness.SessionState
	Turns   int  // messages taken up so far
	Holds   bool // the session asked about is one of this chat's
	Open    []harness.ToolCallID
}

// StreamEventKind is what a stream event tells of.
type StreamEventKind string

// The kinds of a StreamEvent, as session_events has them.
const (
	StreamTurn       StreamEventKind = "TURN"
	StreamToolCall   StreamEventKind = "TOOL_CALL"
	StreamToolResult StreamEventKind = "TOOL_RESULT"
	StreamReply      StreamEventKind = "REPLY"
	StreamApproval   StreamEventKind = "APPROVAL" // asked, and again when it ends
)

// StreamEvent is one event of a conversation with what it refers to.
type StreamEvent struct {
	StreamCursor
	Kind StreamEventKind
	At   time.Time

	Message       harness.MessageID // TURN, REPLY
	ChannelUserID string            // TURN, REPLY
	ProviderID    string            // TURN
	InReplyTo     harness.MessageID // REPLY: the message it answers
	Text          string            // TURN: what came in; REPLY: the answer
	Choices       []harness.Choice  // REPLY: what the person may answer with

	Call            harness.ToolCallID // TOOL_CALL, TOOL_RESULT
	Name, Arguments string
	CallState       harness.ToolCallState
	Result          string
	Execution       harness.ExecutionID // empty: the call runs no command
	ExecutionState  harness.ExecutionState
	Reason          string
	ExitCode        *int

	Approval      harness.ApprovalID // APPROVAL
	ApprovalState harness.ApprovalState
	Title         string
}

// conversationSQL is the sessions of chat $3 on account $2 of channel $1 that
// belong to the agent which has the account now: an account that moves to
// another agent does not show the old one's conversations.
const conversationSQL = `
    SELECT s.* FROM sessions s JOIN channel_routes r USING (channel, account, agent_name)
    WHERE s.channel = $1 AND s.account = $2 AND s.chat = $3`

// Conversation returns the newest conversation of a chat, and whether session
// asked is one of the chat's, with the calls that are open there.
// harness.NotFound: there is none yet.
func (s *Store) Conversation(ctx context.Context, channel harness.Channel, account, chat string, asked harness.SessionID) (Conversation, error) {
	var c Conversation
	err := s.pool.QueryRow(ctx, `WITH conversation AS (`+conversationSQL+`)
		SELECT c.session_id, c.state, (SELECT count(*) FROM session_events e WHERE e.session_id = c.session_id AND e.kind = 'TURN'),
		       EXISTS (SELECT 1 FROM conversation WHERE session_id = $4),
		       ARRAY (SELECT t.tool_call_id FROM tool_calls t JOIN conversation USING (session_id)
		              WHERE t.session_id = $4 AND t.state IN ('PENDING', 'RUNNING'))
		FROM conversation c ORDER BY c.created_at DESC, c.session_id DESC LIMIT 1`, channel, account, chat, asked).
		Scan(&c.Session, &c.State, &c.Turns, &c.Holds, &c.Open)
	return c, translate(err)
}

// streamColumns reads the events of told with what they refer to.
const streamColumns = `
		SELECT e.session_id, e.seq, e.kind, e.created_at,
		       COALESCE(m.message_id, ''), COALESCE(m.channel_user_id, ''), COALESCE(m.provider_id, ''), COALESCE(m.in_reply_to, ''), COALESCE(m.text, ''),
		       COALESCE((SELECT r.choices FROM replies r WHERE e.kind = 'REPLY' AND r.message_id = e.ref AND r.kind IN ('CHOICES', 'CARD') LIMIT 1), '[]'),
		       COALESCE(t.tool_call_id, ''), COALESCE(t.name, ''), COALESCE(t.arguments, ''), COALESCE(t.state, ''), COALESCE(t.result, ''),
		       COALESCE(x.execution_id, ''), COALESCE(x.state, ''), COALESCE(x.reason, ''), x.exit_code,
		       COALESCE(a.approval_id, ''), COALESCE(a.state, ''), COALESCE(a.title, '')
		FROM told e
		LEFT JOIN messages m ON e.kind IN ('TURN', 'REPLY') AND m.message_id = e.ref
		LEFT JOIN tool_calls t ON e.kind IN ('TOOL_CALL', 'TOOL_RESULT') AND t.tool_call_id = e.ref
		LEFT JOIN approvals a ON e.kind = 'APPROVAL' AND a.approval_id = e.ref
		LEFT JOIN LATERAL (SELECT execution_id, state, reason, exit_code FROM executions WHERE cause = 'TOOL_CALL' AND cause_id = t.tool_call_id ORDER BY cause_attempt DESC LIMIT 1) x ON true`

func readStreamEvent(row pgx.CollectableRow) (StreamEvent, error) {
	var e StreamEvent
	err := row.Scan(&e.Session, &e.Seq, &e.Kind, &e.At, &e.Message, &e.ChannelUserID, &e.ProviderID, &e.InReplyTo, &e.Text, &e.Choices,
		&e.Call, &e.Name, &e.Arguments, &e.CallState, &e.Result, &e.Execution, &e.ExecutionState, &e.Reason, &e.ExitCode,
		&e.Approval, &e.ApprovalState, &e.Title)
	return e, err
}

// SessionEvents returns up to limit events of one session behind number
// afterSeq, in order. Numbers are given under the session's lock: what is committed
// later has a greater one.
func (s *Store) SessionEvents(ctx context.Context, session harness.SessionID, afterSeq int64, limit int) ([]StreamEvent, error) {
	return list(ctx, s, `WITH told AS (
			SELECT session_id, seq, kind, ref, created_at FROM session_events WHERE session_id = $1 AND seq > $2 ORDER BY seq LIMIT $3)
		`+streamColumns+` ORDER BY e.seq`, []any{session, afterSeq, limit}, readStreamEvent)
}

// OpenCalls returns the calls of a session that have no result yet.
func (s *Store) OpenCalls(ctx context.Context, session harness.SessionID) ([]harness.ToolCallID, error) {
	return list(ctx, s, `SELECT tool_call_id FROM tool_calls WHERE session_id = $1 AND state IN ('PENDING', 'RUNNING') ORDER BY tool_call_id`, []any{session}, pgx.RowTo[harness.ToolCallID])
}

// Stream returns up to limit events behind after, in order: the rest of its
// session, then those of the conversations opened later in the same chat. A
// cursor whose session is not the chat's yields nothing. Numbers are given
// under the session's lock, and a conversation opens only when the one before
// has ended, so that nothing is ever skipped.
func (s *Store) Stream(ctx context.Context, channel harness.Channel, account, chat string, after StreamCursor, limit int) ([]StreamEvent, error) {
	rows, err := s.pool.Query(ctx, `WITH conversation AS (`+conversationSQL+`), told AS (
			SELECT c.session_id, c.created_at AS opened_at, e.seq, e.kind, e.ref, e.created_at
			FROM conversation c JOIN session_events e USING (session_id)
			WHERE (c.created_at, c.session_id) >= (SELECT created_at, session_id FROM conversation WHERE session_id = $4)
			  AND (c.session_id <> $4 OR e.seq > $5)
			ORDER BY c.created_at, c.session_id, e.seq LIMIT $6)
		`+streamColumns+`
		ORDER BY e.opened_at, e.session_id, e.seq`, channel, account, chat, after.Session, after.Seq, limit)
	if err != nil {
		return nil, translate(err)
	}
	events, err := pgx.CollectRows(rows, readStreamEvent)
	return events, translate(err)
}

// OutputPlace is how far one stream of a call's command has been read.
type OutputPlace struct {
	Call   harness.ToolCallID
	Stream string // stdout or stderr
	Offset int64  // bytes
}

// OutputChunk is a stretch of what a call's command has printed.
type OutputChunk struct {
	OutputPlace // Offset: of the first byte of Data
	Data        []byte
}

// Output returns what is stored behind the given places, in order per stream,
// at most limit chunks: rows as they were written, the first one cut to begin
// at the place.
func (s *Store) Output(ctx context.Context, places []OutputPlace, limit int) ([]OutputChunk, error) {
	var calls, streams []string
	var offsets []int64
	for _, p := range places {
		calls, streams, offsets = append(calls, string(p.Call)), append(streams, p.Stream), append(offsets, p.Offset)
	}
	rows, err := s.pool.Query(ctx, `
		SELECT p.tool_call_id, p.stream, greatest(o.start_byte, p.read), substr(o.data, (greatest(o.start_byte, p.read) - o.start_byte + 1)::int)
		FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS p (tool_call_id, stream, read, n)
		JOIN executions x ON x.cause = 'TOOL_CALL' AND x.cause_id = p.tool_call_id
		JOIN execution_output o ON o.execution_id = x.execution_id AND o.stream = p.stream AND o.start_byte + length(o.data) > p.read
		ORDER BY p.n, o.start_byte LIMIT $4`, calls, streams, offsets, limit)
	if err != nil {
		return nil, translate(err)
	}
	chunks, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (OutputChunk, error) {
		var c OutputChunk
		err := row.Scan(&c.Call, &c.Stream, &c.Offset, &c.Data)
		return c, err
	})
	return chunks, translate(err)
}
