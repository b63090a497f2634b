package harness

// What workflows are made of, and their runs.
func workflows() []Word {
	return []Word{
		{Name: "workflowRevision", Meaning: "what a workflow said at one time, validated; never changed; a run keeps to one", Table: "workflow_revisions", Column: "workflow_revision", Key: "workflowRevision"},
		{Name: "workflowTrigger", Meaning: "what starts runs of a workflow by itself", Table: "workflow_triggers"},
		{Name: "triggers", Meaning: "each workflowTrigger of a workflow", Key: "triggers"},
		{Name: "pattern", Meaning: "the regular expression that a message must match to start a run", Column: "pattern", Key: "pattern"},
		{Name: "schedule", Meaning: "when the clock starts a run, as cron has it", Column: "schedule", Key: "schedule", Value: "SCHEDULE"},
		{Name: "timeZone", Meaning: "of a schedule, by the IANA database", Column: "time_zone", Key: "timeZone"},
		{Name: "place", Meaning: "the place of an entry in its list, from 0", Column: "place"},
		{Name: "checkedAt", Meaning: "up to when the times of a schedule have had their run", Column: "checked_at"},
		{Name: "workflowStart", Meaning: "what a run was asked for by, so that a repeat starts none", Table: "workflow_starts"},
		{Name: "startKey", Meaning: "names a start, once per workflow", Column: "start_key"},
		{Name: "started", Meaning: "what started a run, as its expressions see it", Column: "started"},
		{Name: "match", Meaning: "the groups of a pattern that a message matched, by number and name", Key: "match"},
		{Name: "origin", Meaning: "the session that a run was started from, where its replies go", Column: "origin_session", Key: "origin", Apart: "of two sessions of one row, the column says which this is"},
		{Name: "inputs", Meaning: "the members of a run's input that a workflow declares", Key: "inputs"},
		{Name: "required", Meaning: "a run without it is refused", Key: "required"},
		{Name: "maxVisits", Meaning: "how many visits of nodes a run may make", Key: "maxVisits"},
		{Name: "join", Meaning: "when a node starts to which several edges lead", Key: "join"},
		{Name: "joinAny", Meaning: "at each arrival", Value: "ANY"},
		{Name: "joinAll", Meaning: "once, when nothing that is open can lead to it any more", Value: "ALL"},
		{Name: "retries", Meaning: "how often a node is tried again", Key: "retries"},
		{Name: "max", Meaning: "the most attempts after the first", Key: "max"},
		{Name: "backoffSeconds", Meaning: "how long a node waits before it is tried again", Key: "backoffSeconds"},
		{Name: "visit", Meaning: "one visit of a node by a run", Column: "visit_id", Key: "visit", Value: "VISIT"},
		{Name: "visitNumber", Meaning: "the place of a visit among those of its node, from 1", Column: "visit", Key: "number", Apart: "the row or object is the visit"},
		{Name: "parentVisit", Meaning: "of a session: the visit that has this conversation", Column: "parent_visit"},
		{Name: "childSession", Meaning: "of a visit: the session in which its agent is asked", Column: "child_session"},
		{Name: "arrivals", Meaning: "the visits that led to one", Column: "arrivals", Key: "arrivals"},
		{Name: "output", Meaning: "what expressions see of a visit that has ended", Column: "output", Key: "output"},
		{Name: "waitingVisit", Meaning: "a visit for which a human must decide", Value: "WAITING"},
	}
}
