package harness

// Questions to models, and what models see of long conversations.
func modelWords() []Word {
	return []Word{
		{Name: "modelAttempt", Meaning: "one question to a model, and what came of it", Table: "model_attempts", Column: "model_attempt_id"},
		{Name: "modelAttempts", Meaning: "each modelAttempt of a step", Key: "modelAttempts"},
		{Name: "purpose", Meaning: "what a model was asked for", Column: "purpose", Key: "purpose"},
		{Name: "summary", Meaning: "what models see in the place of a session's older messages", Table: "summaries", Value: "SUMMARY"},
		{Name: "upTo", Meaning: "number of the last message that a summary stands for", Column: "up_to"},
		{Name: "final", Meaning: "a model gives no answer to this question, however often it is asked", Column: "final", Key: "final"},
		{Name: "waitMillis", Meaning: "milliseconds for which a model asks not to be asked", Column: "wait_millis"},
		{Name: "millis", Meaning: "milliseconds that something took", Column: "millis", Key: "millis"},
		{Name: "costMicros", Meaning: "money, in millionths of the currency unit", Column: "cost_micros"},
		{Name: "cacheReadTokens", Meaning: "those of inputTokens that the provider had kept of an earlier question", Column: "cache_read_tokens", Key: "cacheReadTokens"},
		{Name: "cacheWriteTokens", Meaning: "those of inputTokens that the provider keeps from now on, where it charges for that", Column: "cache_write_tokens", Key: "cacheWriteTokens"},
		{Name: "fallbacks", Meaning: "models that are asked, in order, when the one before fails", Key: "fallbacks"},
		{Name: "images", Meaning: "the model takes images", Key: "images"},
		{Name: "asked", Meaning: "how often a model was asked", Key: "asked"},
		{Name: "unanswered", Meaning: "how often it gave no answer", Key: "unanswered"},
		{Name: "unpriced", Meaning: "how often it was asked without a known price", Key: "unpriced"},
	}
}
