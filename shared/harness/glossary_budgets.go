package harness

// What bounds an agent, and how people step in.
func budgets() []Word {
	return []Word{
		{Name: "switch", Meaning: "halts the whole install", Table: "switches", Column: "switch_name"},
		{Name: "halted", Meaning: "nobody works: no model is asked, no command begins, messages wait", Key: "halted"},
		{Name: "haltedAt", Meaning: "since when it is halted", Column: "halted_at", Key: "haltedAt"},
		{Name: "haltedBy", Meaning: "who halted it", Column: "halted_by", Key: "haltedBy"},
		{Name: "haltReason", Meaning: "why, in the words of whoever halted it", Column: "halt_reason"},
		{Name: "haltToldAt", Meaning: "when a chat was last told that its agent is halted", Column: "halt_told_at"},
		{Name: "pausedAt", Meaning: "since when a person has a session instead of its agent", Column: "paused_at", Key: "pausedAt"},
		{Name: "pausedBy", Meaning: "who that is", Column: "paused_by", Key: "pausedBy"},
		{Name: "author", Meaning: "the person who answered in an agent's place", Column: "author", Key: "author"},
	}
}
