package harness

// Questions to humans.
func approvalWords() []Word {
	return []Word{
		{Name: "approvalVote", Meaning: "what one who may decide an approval has said", Table: "approval_votes"},
		{Name: "votes", Meaning: "each approvalVote of an approval", Key: "votes"},
		{Name: "approvalGrant", Meaning: "exactly what an agent needs no further approval for", Table: "approval_grants"},
		{Name: "shortCode", Meaning: "what people type to decide an approval", Column: "short_code", Key: "shortCode"},
		{Name: "approvalEvent", Meaning: "an approval that was asked for or has ended, in the order of all", Table: "approval_events"},
		{Name: "agents", Meaning: "what waits for a decision, by agent", Key: "agents"},
		{Name: "oldestRequestedAt", Meaning: "when the approval that waits longest was asked for", Key: "oldestRequestedAt"},
		{Name: "nextExpiresAt", Meaning: "when the time of the next approval ends", Key: "nextExpiresAt"},
		{Name: "tool", Meaning: "what the model calls", Key: "tool"},
		{Name: "escalateAt", Meaning: "when further approvers are asked", Column: "escalate_at"},
		{Name: "escalateAfter", Meaning: "how long after the question further approvers are asked", Key: "escalateAfter"},
		{Name: "escalateTo", Meaning: "who may decide an approval from escalateAt on, too", Key: "escalateTo"},
		{Name: "escalation", Meaning: "further approvers", Column: "escalation", Key: "escalation"},
		{Name: "terms", Meaning: "who decides an approval, and until when", Key: "terms"},
		{Name: "once", Meaning: "scope of a decision: this time", Value: "ONCE"},
		{Name: "askedInput", Meaning: "what an approval was about before its decider changed it", Column: "asked_input", Key: "askedInput"},
		{Name: "context", Meaning: "what else deciders of an approval are shown", Column: "context", Key: "context"},
		{Name: "consumedAt", Meaning: "when what was approved was handed on", Column: "consumed_at", Key: "consumedAt"},
		{Name: "waitingSince", Meaning: "since when the running turn waits for people", Column: "waiting_since"},
		{Name: "card", Meaning: "kind of reply: a question to a human", Value: "CARD"},
		{Name: "decided", Meaning: "of a tap: it counted", Value: "DECIDED"},
		{Name: "refused", Meaning: "of a tap or a write: it changed nothing", Value: "REFUSED"},
		{Name: "notAsked", Meaning: "of a tap: no question has its code", Value: "NOT_ASKED"},
		{Name: "callbackQueryId", Meaning: "Telegram's id of a tap that waits for an answer", Key: "callbackQueryId"},
		{Name: "question", Meaning: "what a workflow's node or a limit asks a human", Key: "question"},
	}
}
