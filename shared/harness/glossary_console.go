package harness

// What the console keeps sealed in browsers, and asks of the API for it.
func consoleWords() []Word {
	return []Word{
		{Name: "rights", Meaning: "each right that a caller has", Key: "rights"},
		{Name: "verifier", Meaning: "what proves to an issuer that a sign-in ends where it began (PKCE)", Key: "verifier"},
	}
}
