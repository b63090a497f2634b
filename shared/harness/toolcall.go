package harness

// ToolCallState is how far one call the model asked for has come.
type ToolCallState string

// The states of a ToolCall. Each terminal state has exactly one result.
const (
	ToolCallPending ToolCallState = "PENDING" // asked for, nothing done
	ToolCallRunning ToolCallState = "RUNNING" // handed to what does it
	ToolCallDone    ToolCallState = "DONE"    // did it; the result says how it went
	ToolCallFailed  ToolCallState = "FAILED"  // could not be done; the result says why
	ToolCallDenied  ToolCallState = "DENIED"  // a human or a rule said no
	ToolCallExpired ToolCallState = "EXPIRED" // nobody decided in time
)

var toolCallTransitions = transitions[ToolCallState]{
	ToolCallPending: {ToolCallRunning, ToolCallDone, ToolCallFailed, ToolCallDenied, ToolCallExpired},
	ToolCallRunning: {ToolCallDone, ToolCallFailed},
	ToolCallDone:    {},
	ToolCallFailed:  {},
	ToolCallDenied:  {},
	ToolCallExpired: {},
}

// May reports whether a tool call in state s may go to state to.
func (s ToolCallState) May(to ToolCallState) bool { return toolCallTransitions.may(s, to) }

// Known reports whether s is one of the states above.
func (s ToolCallState) Known() bool { return toolCallTransitions.known(s) }

// Ended reports whether the call has its result.
func (s ToolCallState) Ended() bool { return toolCallTransitions.terminal(s) }

// ToolExecuteShell is the name under which the model runs a command.
const ToolExecuteShell = "executeShell"

// ToolOfferChoices is the name under which the model ends its turn with choices.
const ToolOfferChoices = "offerChoices"
