package harness

import (
	"maps"
	"slices"
)

// SessionState is where a conversation or workflow run stands.
type SessionState string

// The states of a Session.
const (
	SessionPending           SessionState = "PENDING"            // has work nobody has begun
	SessionRunning           SessionState = "RUNNING"            // a turn is being worked
	SessionAwaitingApproval  SessionState = "AWAITING_APPROVAL"  // a human must decide
	SessionAwaitingExecution SessionState = "AWAITING_EXECUTION" // a command is waiting or running
	SessionIdle              SessionState = "IDLE"               // every message is answered
	SessionCompleted         SessionState = "COMPLETED"          // ended: /new, idle TTL, or the workflow's END
	SessionBlocked           SessionState = "BLOCKED"            // the last turn hit a limit or a loop
	SessionFailed            SessionState = "FAILED"             // the last turn failed
	SessionCancelled         SessionState = "CANCELLED"          // ended by an operator
)

var sessionTransitions = transitions[SessionState]{
	SessionPending:           {SessionRunning, SessionBlocked, SessionFailed, SessionCompleted, SessionCancelled},
	SessionRunning:           {SessionAwaitingApproval, SessionAwaitingExecution, SessionIdle, SessionPending, SessionCompleted, SessionBlocked, SessionFailed, SessionCancelled},
	SessionAwaitingApproval:  {SessionRunning, SessionPending, SessionBlocked, SessionFailed, SessionCompleted, SessionCancelled},
	SessionAwaitingExecution: {SessionRunning, SessionPending, SessionBlocked, SessionFailed, SessionCompleted, SessionCancelled},
	SessionIdle:              {SessionPending, SessionRunning, SessionCompleted, SessionCancelled},
	SessionBlocked:           {SessionPending, SessionRunning, SessionCompleted, SessionCancelled},
	SessionFailed:            {SessionPending, SessionRunning, SessionCompleted, SessionCancelled},
	SessionCompleted:         {},
	SessionCancelled:         {},
}

// SessionStates lists every state of a Session, by name.
func SessionStates() []SessionState { return slices.Sorted(maps.Keys(sessionTransitions)) }

// May reports whether a session in state s may go to state to.
func (s SessionState) May(to SessionState) bool { return sessionTransitions.may(s, to) }

// Known reports whether s is one of the states above.
func (s SessionState) Known() bool { return sessionTransitions.known(s) }

// Ended reports whether the session takes no further message.
func (s SessionState) Ended() bool { return sessionTransitions.terminal(s) }

// Session identifies one conversation: an agent, our account on a channel,
// and the chat (or topic) there. It is serial: one step at a time.
type Session struct {
	ID      SessionID
	Agent   AgentName
	Channel Channel
	Account string // our side of the channel: hook name, phone number id, bot id
	Chat    string // their side: the chat or topic that replies go to
	State   SessionState
}
