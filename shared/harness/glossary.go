package harness

// Word is one entry of the glossary: one meaning, and its one name in each form.
type Word struct {
	Name      string // as Go and JSON spell it, in lower camel case
	Meaning   string
	Table     string // of the rows of such things
	Column    string // in snake case; a reference to a thing ends in _id or _name
	Key       string // in JSON, in lower camel case
	Value     string // in a closed set, in upper snake case
	Event     string // in an event's type, with dots
	Extension string // in an event's context
	Apart     string // why a form does not follow from the name; empty where all do
}

// Glossary returns every word of the product. A test walks tables, columns,
// closed sets, events and JSON keys and requires each to be here.
func Glossary() []Word {
	return []Word{}
}
