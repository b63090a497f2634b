package harness

// What the management API shows and keeps.
func management() []Word {
	return []Word{
		{Name: "auditLog", Meaning: "who wrote what through the management API", Table: "audit_log", Column: "audit_log_id"},
		{Name: "actor", Meaning: "who wrote it", Column: "actor", Key: "actor"},
		{Name: "object", Meaning: "the name or id of what was written", Column: "object", Key: "object"},
		{Name: "before", Meaning: "what it was until then", Column: "before", Key: "before"},
		{Name: "after", Meaning: "what it was from then on", Column: "after", Key: "after"},
		{Name: "idempotencyKey", Meaning: "names a request, so that a repeat is known", Column: "idempotency_key"},
		{Name: "executions", Meaning: "each execution that was to end with its sandbox; the kind of a limit on commands", Key: "executions", Value: "EXECUTIONS"},
		{Name: "requestId", Meaning: "which request it came with", Column: "request_id", Key: "requestId"},
		{Name: "log", Meaning: "one entry of agentExecutionLogs", Column: "log_id"},
		{Name: "cancelledAt", Meaning: "since when somebody wants an execution ended", Column: "cancelled_at"},
		{Name: "mark", Meaning: "how far the log was complete when it was read", Key: "mark"},
		{Name: "decidedBy", Meaning: "who decided an approval or what becomes of a dead letter", Column: "decided_by", Key: "decidedBy"},
		{Name: "decidedVia", Meaning: "the channel by which an approval was decided", Column: "decided_via", Key: "decidedVia"},
		{Name: "decidedAt", Meaning: "when an approval was decided", Column: "decided_at", Key: "decidedAt"},
		{Name: "requestedAt", Meaning: "since when an approval waits", Key: "requestedAt"},
		{Name: "decision", Meaning: "yes or no to an approval; kind of the reply that tells of it", Column: "decision", Key: "decision", Value: "DECISION"},
		{Name: "approve", Meaning: "the decision that it may run", Value: "APPROVE"},
		{Name: "stale", Meaning: "made for a version that is no longer the newest", Value: "STALE"},

		{Name: "currentNode", Meaning: "of a workflow run, the node that waits", Key: "currentNode"},
		{Name: "messages", Meaning: "how many messages a session has, both ways", Key: "messages"},
		{Name: "steps", Meaning: "how often the model answered in a session", Key: "steps"},
		{Name: "traceId", Meaning: "the trace that a session's newest traceparent belongs to", Key: "traceId"},
		{Name: "attachments", Meaning: "each attachment of a message", Key: "attachments"},
		{Name: "lastOutboundAt", Meaning: "when an account last answered", Key: "lastOutboundAt"},
		{Name: "waiting", Meaning: "replies of an account that are not sent yet", Key: "waiting"},
		{Name: "secrets", Meaning: "each secretCheck of an account", Key: "secrets"},
		{Name: "next", Meaning: "where the next page or stretch begins", Key: "next"},
		{Name: "total", Meaning: "how much of it there is so far", Key: "total"},
		{Name: "list", Meaning: "the list and filter that a cursor belongs to", Key: "list"},
		{Name: "errors", Meaning: "each thing that is wrong with a request", Key: "errors"},
		{Name: "pointer", Meaning: "where in a request something is wrong, by RFC 6901", Key: "pointer"},
		{Name: "version", Meaning: "which build of the product", Key: "version"},
		{Name: "client", Meaning: "the oldest CLI that understands this API", Key: "client"},
		{Name: "tokenFile", Meaning: "the file that holds the token of the API", Key: "tokenFile"},
		{Name: "caFile", Meaning: "the file with the certificates that the API is trusted by", Key: "caFile"},
		{Name: "plainHTTP", Meaning: "the API may be called without TLS", Key: "plainHTTP"},
	}
}
