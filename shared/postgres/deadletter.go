package postgres

import (
	"context"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// DeadLetter is an event that a broker gave up on.
type DeadLetter struct {
	Event       event.Event
	Destination string // who would not take it
	StatusCode  int    // what it answered; 0: nothing, or not told
	Cause       string // the start of its answer: data, never more
}

// DeadLetterState is what is to be done about a DeadLetter.
type DeadLetterState string

// The states of a DeadLetter.
const (
	DeadLetterOpen      DeadLetterState = "OPEN"      // its work is not done, or nobody knows the work
	DeadLetterMoot      DeadLetterState = "MOOT"      // its work is done, or it only said "look now"
	DeadLetterReplayed  DeadLetterState = "REPLAYED"  // an operator sent it again
	DeadLetterDiscarded DeadLetterState = "DISCARDED" // an operator wants it ignored
)

// work says, for the row with id $2 that events of some types announce, whether
// it has work left (open, marked by mark) and whether it exists (known).
type work struct{ mark, known string }

var (
	sessionWork = work{
		mark: `UPDATE sessions SET dead_lettered_at = COALESCE(dead_lettered_at, now()) WHERE session_id = $2
			AND state NOT IN ('COMPLETED', 'CANCELLED') AND (due_at IS NOT NULL OR lease_owner IS NOT NULL) RETURNING 1`,
		known: `SELECT 1 FROM sessions WHERE session_id = $2`,
	}
	executionWork = work{
		mark:  `UPDATE executions SET dead_lettered_at = COALESCE(dead_lettered_at, now()) WHERE execution_id = $2 AND ended_at IS NULL RETURNING 1`,
		known: `SELECT 1 FROM executions WHERE execution_id = $2`,
	}
	replyWork = work{
		mark:  `UPDATE replies SET dead_lettered_at = COALESCE(dead_lettered_at, now()) WHERE message_id = $2 AND ` + replyOpen("replies") + ` RETURNING 1`,
		known: `SELECT 1 FROM replies WHERE message_id = $2`,
	}
	// noWork is that of hints: nothing depends on them.
	noWork = work{mark: `SELECT 1 WHERE $2 = '' AND false`, known: `SELECT 1`}
	// unknownWork is that of types this release cannot follow to a row.
	unknownWork = work{mark: noWork.mark, known: `SELECT 1 WHERE false`}
)

// workOf returns what e announces and the id of its row.
func workOf(e event.Event) (work, string) {
	switch e.Type {
	case event.MessageReceived, event.SessionDue, event.ExecutionFinished, event.ApprovalDecided:
		session := e.Payload.Session
		if session == "" {
			session = e.Session
		}
		return sessionWork, string(session)
	case event.ExecutionRequested:
		return executionWork, string(e.Payload.Execution)
	case event.MessageReply:
		return replyWork, string(e.Payload.Message)
	case event.MessageStatus, event.SessionChanged, event.SandboxChanged, event.AgentStatusChanged:
		return noWork, ""
	}
	if !e.Type.Ours() {
		return noWork, ""
	}
	return unknownWork, ""
}

// PutDeadLetter stores d once per event and destination and counts repeats. In
// the same statement it marks the row whose work the event announced, if that
// work is not done; else the letter is MOOT. What an operator discarded stays
// discarded. Events of a source carry no work and a new id each time: all of
// one type are one letter.
func (s *Store) PutDeadLetter(ctx context.Context, d DeadLetter) (DeadLetterState, error) {
	work, row := workOf(d.Event)
	id := d.Event.ID // kept as it is: a replay has it again
	if !d.Event.Type.Ours() {
		id = string(d.Event.Type)
	}
	var code *int
	if d.StatusCode != 0 {
		code = &d.StatusCode
	}
	var state DeadLetterState
	err := s.pool.QueryRow(ctx, `WITH marked AS (`+work.mark+`), known AS (`+work.known+`)
		INSERT INTO dead_letters AS d (event_id, event_type, session_id, payload, destination, status_code, cause, state)
		SELECT $1, $3, $4, $5, $6, $7, $8, CASE WHEN EXISTS (SELECT 1 FROM marked) OR NOT EXISTS (SELECT 1 FROM known) THEN 'OPEN' ELSE 'MOOT' END
		ON CONFLICT (event_id, destination) DO UPDATE SET times = d.times + 1, updated_at = now(), status_code = EXCLUDED.status_code, cause = EXCLUDED.cause,
			state = CASE WHEN d.state = 'DISCARDED' THEN d.state ELSE EXCLUDED.state END
		RETURNING state`,
		clip(id), clip(row), clip(string(d.Event.Type)), clip(string(d.Event.Session)), d.Event.Payload, clip(d.Destination), code, clip(d.Cause)).Scan(&state)
	return state, translate(err)
}

// maxLetterText bounds each text of a dead letter, in bytes: the sender of an
// event chose them.
const maxLetterText = 2 << 10

func clip(text string) string { return harness.CleanText(text[:min(len(text), maxLetterText)]) }
