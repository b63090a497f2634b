package harness

// What a turn itself waits for.
func askWords() []Word {
	return []Word{
		{Name: "budgetGrant", Meaning: "what an approval has added to a limit", Table: "budget_grants"},
		{Name: "budgetKind", Meaning: "kind of approval: a turn waits for more of a budget", Value: "BUDGET", Apart: "the column kind says the rest"},
		{Name: "amount", Meaning: "how much: of what is granted on top of a limit, as the kind counts it, and of a figure", Column: "amount", Key: "amount"},
		{Name: "proposal", Meaning: "what goes on once it is approved", Column: "proposal"},
		{Name: "approvable", Meaning: "of a guardrail that blocks: it asks a human first", Key: "approvable"},
		{Name: "shown", Meaning: "in a proposal, what models see in the place of a message", Key: "shown"},
		{Name: "hideFiles", Meaning: "in a proposal, the files that came with a message do not go on", Key: "hideFiles"},
		{Name: "ofSteps", Meaning: "kind of a limit: answers of the model", Value: "STEPS", Apart: "the column kind says the rest"},
		{Name: "ofToolCalls", Meaning: "kind of a limit: tool calls", Value: "TOOL_CALLS", Apart: "the column kind says the rest"},
		{Name: "ofMillis", Meaning: "kind of a limit: milliseconds in which a model answers or a command runs; of a turn, from its message on", Value: "MILLIS", Apart: "the column kind says the rest"},
		{Name: "ofExecutionMillis", Meaning: "kind of a limit: milliseconds in which commands run", Value: "EXECUTION_MILLIS", Apart: "the column kind says the rest"},
	}
}
