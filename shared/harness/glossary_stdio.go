package harness

// Skills that are in images, and servers of tools that are programs.
func stdioWords() []Word {
	return []Word{
		{Name: "skillImage", Meaning: "what the image of a skill held when it was last looked at", Table: "skill_images"},
		{Name: "files", Meaning: "the files of a skill as its image had them, by path", Column: "files"},
		{Name: "imageDigest", Meaning: "what the image of a skill was resolved to", Column: "image_digest"},
		{Name: "refusedDigest", Meaning: "what the image of a skill was resolved to that is none for one", Column: "refused_digest"},
		{Name: "confirmedAt", Meaning: "when the image of a skill was last seen to be what is kept of it", Column: "confirmed_at", Key: "confirmedAt"},
		{Name: "pullSecretRef", Meaning: "which Secret holds the credentials for a registry", Key: "pullSecretRef"},
		{Name: "program", Meaning: "what a call runs in the sandbox, as a shell would have it", Key: "program"},
		{Name: "value", Meaning: "what a variable of an env is", Key: "value"},
		{Name: "toolList", Meaning: "a server of tools is asked what it offers, by a command", Value: "TOOL_LIST"},
	}
}
