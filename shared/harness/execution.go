package harness

// ExecutionState is how far one command has come, and how it ended.
type ExecutionState string

// The states of an Execution.
const (
	ExecutionPending     ExecutionState = "PENDING"       // waits for a sandbox
	ExecutionRunning     ExecutionState = "RUNNING"       // committed to one sandbox; started at most once there
	ExecutionCompleted   ExecutionState = "COMPLETED"     // exit code 0, proved by the runner
	ExecutionFailed      ExecutionState = "FAILED"        // another exit code, or it could not be started: see the reason
	ExecutionTimedOut    ExecutionState = "TIMED_OUT"     // its own deadline ended it
	ExecutionOutOfMemory ExecutionState = "OUT_OF_MEMORY" // the memory limit ended it
	ExecutionDiskLimit   ExecutionState = "DISK_LIMIT"    // the disk limit ended it
	ExecutionSandboxGone ExecutionState = "SANDBOX_GONE"  // it had begun and its sandbox disappeared
	ExecutionCancelled   ExecutionState = "CANCELLED"     // someone ended it
	ExecutionUnknown     ExecutionState = "UNKNOWN"       // nobody can say whether it ran
)

var executionTransitions = transitions[ExecutionState]{
	ExecutionPending: {ExecutionRunning, ExecutionFailed, ExecutionCancelled},
	ExecutionRunning: {
		ExecutionCompleted, ExecutionFailed, ExecutionTimedOut, ExecutionOutOfMemory,
		ExecutionDiskLimit, ExecutionSandboxGone, ExecutionCancelled, ExecutionUnknown,
	},
	ExecutionCompleted: {}, ExecutionFailed: {}, ExecutionTimedOut: {}, ExecutionOutOfMemory: {},
	ExecutionDiskLimit: {}, ExecutionSandboxGone: {}, ExecutionCancelled: {}, ExecutionUnknown: {},
}

// May reports whether an execution in state s may go to state to.
func (s ExecutionState) May(to ExecutionState) bool { return executionTransitions.may(s, to) }

// Known reports whether s is one of the states above.
func (s ExecutionState) Known() bool { return executionTransitions.known(s) }

// Ended reports whether the outcome is final.
func (s ExecutionState) Ended() bool { return executionTransitions.terminal(s) }

// ExecutionCause is the kind of thing that asked for an Execution.
type ExecutionCause string

// The causes of an Execution.
const (
	CauseToolCall  ExecutionCause = "TOOL_CALL"
	CauseNodeVisit ExecutionCause = "NODE_VISIT"
	CauseAPI       ExecutionCause = "API"
	CauseToolList  ExecutionCause = "TOOL_LIST" // a server of tools is asked what it offers
)

// Level is the level of a LogEntry.
type Level string

// The levels of a LogEntry.
const (
	LevelDebug Level = "DEBUG"
	LevelInfo  Level = "INFO"
	LevelWarn  Level = "WARN"
	LevelError Level = "ERROR"
)

// Known reports whether l is one of the levels above.
func (l Level) Known() bool {
	switch l {
	case LevelDebug, LevelInfo, LevelWarn, LevelError:
		return true
	}
	return false
}

// LogEntry is a row of agent_execution_logs: what an agent did, for people.
type LogEntry struct {
	Agent           AgentName
	Session         SessionID
	Node            string // workflow node, or the step's number in a conversation
	Level           Level
	Message         string
	GuardrailResult string // verdict of the guardrails on this step; empty without guardrails
}
