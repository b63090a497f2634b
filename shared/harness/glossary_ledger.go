package harness

// What exists outside of Postgres, and how rows and objects are compared.
func ledgerWords() []Word {
	return []Word{
		{Name: "outsideObject", Meaning: "what the product made outside of Postgres and no other table has a row for", Table: "outside_objects"},
		{Name: "objectName", Meaning: "how an outsideObject is called where it is", Column: "object_name"},
		{Name: "registeredURL", Meaning: "where a provider was told to send updates to", Column: "registered_url"},
		{Name: "networkPolicy", Meaning: "what opens the destinations of one sandbox's list", Value: "NETWORK_POLICY"},
		{Name: "volume", Meaning: "where files of a session outlive its sandboxes", Value: "VOLUME"},
		{Name: "archive", Meaning: "an object of the bucket with log entries or output", Value: "ARCHIVE"},
		{Name: "upload", Meaning: "an object that was sent to the bucket in parts and never finished", Value: "UPLOAD"},
		{Name: "made", Meaning: "an outsideObject that was seen", Value: "MADE"},
		{Name: "comparison", Meaning: "what rows and objects of one kind came to when they were compared", Table: "comparisons"},
		{Name: "restoredAt", Meaning: "when the rows became those of an earlier moment", Column: "restored_at"},
		{Name: "lostAt", Meaning: "since when the bucket lacks a file that had been stored", Column: "lost_at"},
		{Name: "comparedAt", Meaning: "when all rows and objects of a kind had been compared", Column: "compared_at", Key: "comparedAt"},
		{Name: "progress", Meaning: "how far a comparison is that is under way", Column: "progress"},
		{Name: "tally", Meaning: "what the last whole comparison came to", Column: "tally"},
		{Name: "known", Meaning: "how many rows stand for an object", Key: "known"},
		{Name: "there", Meaning: "how many objects there were", Key: "there"},
		{Name: "leaked", Meaning: "how many objects without a live owner are left", Key: "leaked"},
		{Name: "lost", Meaning: "how many rows without their object are left", Key: "lost"},
		{Name: "removed", Meaning: "how many objects without a live owner were removed", Key: "removed"},
		{Name: "marked", Meaning: "how many rows without their object now say so", Key: "marked"},
		{Name: "oldestAt", Meaning: "when the oldest of the leaked was made", Key: "oldestAt"},
		{Name: "ageSeconds", Meaning: "how long the last whole pass of the sweep is ago", Key: "ageSeconds"},
		{Name: "warns", Meaning: "a check of the doctor that is no failure and asks for a look", Key: "warns"},
		{Name: "examples", Meaning: "the names of some that are leaked or lost", Key: "examples"},
	}
}
