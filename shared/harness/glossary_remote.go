package harness

// Tools of an agent that are called elsewhere.
func remotes() []Word {
	return []Word{
		{Name: "remote", Meaning: "the remote tool of a call, as it was offered", Column: "remote", Key: "remote"},
		{Name: "server", Meaning: "the name of one server, or of another agent, within its block", Key: "server"},
		{Name: "settings", Meaning: "names, by their content, the settings that matter to a call", Key: "settings"},
		{Name: "begunToken", Meaning: "the lease token of the claim that made a call", Column: "begun_token"},
		{Name: "asAgent", Meaning: "a human is asked as the agent's block approvals says", Value: "ASAGENT", Apart: "YAML has it as asAgent"},
	}
}
