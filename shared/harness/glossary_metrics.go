package harness

// What is counted.
func metricWords() []Word {
	return []Word{
		{Name: "figure", Meaning: "what has been counted of one kind of thing", Table: "figures", Column: "figure_name"},
		{Name: "figureChange", Meaning: "a change of a figure that is not added to it yet", Table: "figure_changes"},
		{Name: "label", Meaning: "which of the things of a figure", Column: "label"},
		{Name: "runState", Meaning: "how the turn of an inbound message ended", Column: "run_state"},
		{Name: "readyAt", Meaning: "when a sandbox could first be used", Column: "ready_at"},
		{Name: "objects", Meaning: "how many sandbox objects a sweep found that no row knows", Key: "objects"},
		{Name: "rows", Meaning: "how many rows a sweep found whose object is gone", Key: "rows"},
		{Name: "sessions", Meaning: "the figure of sessions that there are", Value: "SESSIONS"},
		{Name: "replies", Meaning: "the figure of replies that there are", Value: "REPLIES"},
		{Name: "runs", Meaning: "the figure of turns and workflow runs that ended", Value: "RUNS"},
		{Name: "sandboxStart", Meaning: "the figure of sandboxes by how long they took to start", Value: "SANDBOX_START"},
		{Name: "sandboxStartMillis", Meaning: "the figure of how long sandboxes took to start", Value: "SANDBOX_START_MILLIS"},
		{Name: "modelFailures", Meaning: "the figure of questions that got no answer of a model", Value: "MODEL_FAILURES"},
	}
}
