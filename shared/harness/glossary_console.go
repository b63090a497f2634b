package harness

// What the console keeps sealed in browsers, and asks of the API for it.
func consoleWords() []Word {
	return []Word{
		{Name: "rights", Meaning: "each right that a caller has", Key: "rights"},
	}
}
