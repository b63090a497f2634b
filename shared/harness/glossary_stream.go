package harness

// Answers that are shown while the model writes them.
func drafts() []Word {
	return []Word{
		{Name: "draft", Meaning: "what the model has written of an answer so far", Table: "drafts"},
		{Name: "sessionToken", Meaning: "the leaseToken of the session under which a draft is written", Column: "session_token"},
		{Name: "shownRevision", Meaning: "the revision of a draft that its chat shows", Column: "shown_revision"},
		{Name: "sentAt", Meaning: "when the message that shows a draft was about to be sent", Column: "sent_at"},
		{Name: "messageDraft", Meaning: "a draft has grown", Event: "message.draft"},
	}
}
