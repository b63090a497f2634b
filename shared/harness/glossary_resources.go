package harness

// Resources of a cluster: their status, and what it is made from.
func resources() []Word {
	return []Word{
		{Name: "agentStatus", Meaning: "what was last written to the status of an agent's resource", Table: "agent_statuses"},
		{Name: "secretCheck", Meaning: "whether a Secret that an agent names can be used, as the function that needs it has found", Table: "secret_checks"},
		{Name: "functionName", Meaning: "the function that has found something", Column: "function_name"},
		{Name: "secretName", Meaning: "the name of a secretRef", Column: "secret_name"},
		{Name: "secretKey", Meaning: "the key of a secretRef", Column: "secret_key"},
		{Name: "generation", Meaning: "the number by which Kubernetes counts the texts of a resource", Column: "generation", Key: "generation"},
		{Name: "sandboxDigest", Meaning: "the digest of the sandbox spec of the revision in use", Column: "sandbox_digest"},
		{Name: "writtenAt", Meaning: "when a status was last written, or claimed to be", Column: "written_at"},
		{Name: "observedGeneration", Meaning: "the generation that a status speaks of", Key: "observedGeneration"},
		{Name: "activeSessions", Meaning: "sessions that have something to answer", Key: "activeSessions"},
		{Name: "activeSandboxes", Meaning: "sandboxes that count against the cap", Key: "activeSandboxes"},
		{Name: "lastExecutionAt", Meaning: "when the newest execution began", Key: "lastExecutionAt"},
		{Name: "lastExecutionStatus", Meaning: "the state of the newest execution", Key: "lastExecutionStatus", Apart: "the status of an AiAgent is given by the product's decision record"},
		{Name: "conditions", Meaning: "what is, or is not, as a resource needs it", Key: "conditions"},
		{Name: "lastTransitionTime", Meaning: "when a condition last flipped", Key: "lastTransitionTime"},
	}
}
