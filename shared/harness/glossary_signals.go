package harness

// How Temporal workflows are told of approvals.
func signals() []Word {
	return []Word{
		{Name: "signal", Meaning: "what one Temporal workflow is told of one approval", Table: "signals", Column: "signal_id"},
		{Name: "temporal", Meaning: "the Temporal workflow that is told of the approvals of a session", Column: "temporal", Key: "temporal"},
		{Name: "workflowId", Meaning: "the id of a Temporal workflow", Column: "workflow_id", Key: "workflowId"},
		{Name: "runId", Meaning: "the id of one run of a Temporal workflow", Column: "run_id", Key: "runId"},
		{Name: "pinnedRunId", Meaning: "which run of a Temporal workflow was the current one when it was first told", Column: "pinned_run_id"},
		{Name: "refusedAt", Meaning: "since when a Temporal server only refuses", Column: "refused_at"},
		{Name: "approvalId", Meaning: "the id of an approval, as a Temporal workflow is told", Key: "approvalId"},
		{Name: "sessionId", Meaning: "the id of a session, as a Temporal workflow is told", Key: "sessionId"},
	}
}
