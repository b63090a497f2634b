package harness

// What guardrails judge, by what, and what they come to.
func guardrails() []Word {
	return []Word{
		{Name: "guardrail", Meaning: "one check of the block guardrails; where another thing refers to it, its name", Column: "guardrail", Key: "guardrail", Value: "GUARDRAIL"},
		{Name: "guardrailVerdict", Meaning: "what one guardrail said of one text", Table: "guardrail_verdicts", Column: "guardrail_verdict_id"},
		{Name: "guardrailCount", Meaning: "how many verdicts of a kind there were", Table: "guardrail_counts"},
		{Name: "stage", Meaning: "where in a step a guardrail judges", Column: "stage", Key: "stage"},
		{Name: "verdict", Meaning: "whether a guardrail found what it looks for", Column: "verdict", Key: "verdict"},
		{Name: "toolOutput", Meaning: "what a call gave; guardrails on it", Key: "toolOutput", Value: "TOOL_OUTPUT"},
		{Name: "stageInput", Meaning: "the stage of a person's message", Value: "INPUT", Apart: "the column stage says the rest"},
		{Name: "rule", Meaning: "a condition over a step, in CEL", Key: "rule"},
		{Name: "detect", Meaning: "the detectors that look", Key: "detect"},
		{Name: "category", Meaning: "what a service calls what it found", Key: "category"},
		{Name: "fileNames", Meaning: "each fileName of the files that came with a message", Key: "fileNames"},
		{Name: "cel", Meaning: "judged by an expression of the Common Expression Language", Value: "CEL"},
		{Name: "secretType", Meaning: "judged by what looks like a credential", Value: "SECRET", Apart: "the type of a guardrail"},
		{Name: "pii", Meaning: "judged by what identifies a person", Value: "PII"},
		{Name: "passed", Meaning: "a guardrail did not find what it looks for", Value: "PASSED"},
		{Name: "hit", Meaning: "a guardrail found what it looks for", Value: "HIT"},
		{Name: "screened", Meaning: "a message may be seen by models, as its guardrails have left it", Column: "screened"},
		{Name: "shownText", Meaning: "what models see in the place of a message's text", Column: "shown_text"},
		{Name: "hiddenFiles", Meaning: "models are not told of the files that came with a message", Column: "hidden_files"},
	}
}
