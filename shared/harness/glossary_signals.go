package harness

// How Temporal workflows are told of approvals.
func signals() []Word {
	return []Word{
		{Name: "temporalSignal", Meaning: "what one Temporal workflow is told of one approval", Table: "temporal_signals", Column: "temporal_signal_id"},
		{Name: "temporal", Meaning: "the Temporal workflow that is told of the approvals of a session", Column: "temporal", Key: "temporal"},
		{Name: "workflowId", Meaning: "the id of a Temporal workflow", Column: "workflow_id", Key: "workflowId"},
		{Name: "temporalRun", Meaning: "the id of one run of a Temporal workflow", Column: "temporal_run"},
		{Name: "pinnedRun", Meaning: "which run of a Temporal workflow was the current one when it was first told", Column: "pinned_run"},
		{Name: "refusedAt", Meaning: "since when a Temporal server only refuses", Column: "refused_at"},
	}
}
