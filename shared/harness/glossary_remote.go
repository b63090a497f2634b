package harness

// Tools of an agent that are called elsewhere.
func remotes() []Word {
	return []Word{
		{Name: "remote", Meaning: "the remote tool of a call, as it was offered", Column: "remote", Key: "remote"},
		{Name: "server", Meaning: "one server, or another agent, of a block of an agent: its name there", Column: "server_name", Key: "server"},
		{Name: "parameters", Meaning: "what a tool takes, as a JSON schema", Key: "parameters"},
		{Name: "settings", Meaning: "names, by their content, the settings that matter to a call, or to what an image of a skill gives", Column: "settings", Key: "settings"},
		{Name: "begunToken", Meaning: "the lease token of the claim that made a call", Column: "begun_token"},
		{Name: "remoteServer", Meaning: "one of the mcpServers or peers of an agent, and what it offered when it was last asked", Table: "remote_servers"},
		{Name: "listedAt", Meaning: "when the newest of what a server offers arrived", Column: "listed_at"},
		{Name: "triedAt", Meaning: "when a server was last asked what it offers", Column: "tried_at"},
		{Name: "alwaysAsk", Meaning: "the tools of a server about whose calls a human is always asked", Key: "alwaysAsk"},
		{Name: "neverAsk", Meaning: "the tools of a server about whose calls no human is asked", Key: "neverAsk"},
		{Name: "asAgent", Meaning: "a human is asked as the agent's block approvals says", Value: "ASAGENT", Apart: "YAML has it as asAgent"},
	}
}
