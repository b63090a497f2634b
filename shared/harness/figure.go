package harness

// FigureName is a kind of thing that is counted.
type FigureName string

// The figures. Those of what there is go up and down, the others only up.
const (
	FigureSessions           FigureName = "SESSIONS"             // that there are, by state
	FigureReplies            FigureName = "REPLIES"              // that there are, by state
	FigureRuns               FigureName = "RUNS"                 // turns and workflow runs that ended, by RunStates
	FigureExecutions         FigureName = "EXECUTIONS"           // that ended, by state
	FigureApprovals          FigureName = "APPROVALS"            // that ended, by state
	FigureSandboxStart       FigureName = "SANDBOX_START"        // sandboxes that became READY, by a bound in seconds that they took no longer than
	FigureSandboxStartMillis FigureName = "SANDBOX_START_MILLIS" // how long they took together
	FigureTokens             FigureName = "TOKENS"               // of a model, by direction
	FigureCost               FigureName = "COST"                 // of a model, in Micros
	FigureModelFailures      FigureName = "MODEL_FAILURES"       // questions that got no answer
)

// RunStates lists how a turn or a workflow run may end.
func RunStates() []SessionState {
	return []SessionState{SessionCompleted, SessionBlocked, SessionFailed, SessionCancelled}
}
