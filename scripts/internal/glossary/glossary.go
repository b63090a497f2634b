// Package glossary holds the product's names against the glossary of
// shared/harness: every table, column, closed set, event and JSON key is there,
// under one name, and nothing is there that no longer exists.
package glossary

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"tuluat.ai/harness/shared/harness"
)

// Form is a place where names appear. Each has its own spelling.
type Form string

// The forms, and how they spell the word "channel user id".
const (
	Table     Form = "table"           // channel_user_ids
	Column    Form = "column"          // channel_user_id
	Key       Form = "JSON key"        // channelUserId
	Value     Form = "value"           // CHANNEL_USER_ID
	Event     Form = "event type"      // channel.user.id
	Extension Form = "event extension" // tuluatchanneluserid
)

// Name is one name that exists, and where.
type Name struct {
	Form  Form
	Text  string
	Where string
	Holds string // of a JSON key: the Go type of its value, if it is a plain one
}

// forms returns what a word is called, by form.
func forms(w harness.Word) map[Form]string {
	all := map[Form]string{Table: w.Table, Column: w.Column, Key: w.Key, Value: w.Value, Event: w.Event, Extension: w.Extension}
	for form, text := range all {
		if text == "" {
			delete(all, form)
		}
	}
	return all
}

// exact is a name as it is compared: closed sets of the wire and of YAML write
// their values in lower case, and are no second names for that.
func exact(form Form, text string) string {
	if form == Value {
		return strings.ToUpper(text)
	}
	return text
}

// Unknown returns a line for each name that no word has, and for each form of a
// word that exists nowhere.
func Unknown(words []harness.Word, names []Name) []string {
	has := map[Form]map[string]bool{}
	for _, w := range words {
		for form, text := range forms(w) {
			if has[form] == nil {
				has[form] = map[string]bool{}
			}
			has[form][text] = true
		}
	}
	exists := map[Form]map[string]bool{}
	reported := map[Name]bool{}
	var problems []string
	for _, n := range names {
		n.Text = exact(n.Form, n.Text)
		if exists[n.Form] == nil {
			exists[n.Form] = map[string]bool{}
		}
		exists[n.Form][n.Text] = true
		once := Name{Form: n.Form, Text: n.Text} // wherever it is
		if !has[n.Form][n.Text] && !reported[once] {
			reported[once] = true
			problems = append(problems, fmt.Sprintf("%s: %s %q is not in the glossary: use the name that its meaning has there, or add the word to shared/harness/glossary.go", n.Where, n.Form, n.Text))
		}
	}
	for _, w := range words {
		for form, text := range forms(w) {
			if !exists[form][text] {
				problems = append(problems, fmt.Sprintf("glossary: %s has the %s %q, which exists nowhere", w.Name, form, text))
			}
		}
	}
	slices.Sort(problems)
	return problems
}

// Ambiguous returns a line for each meaning with two words, each name with two
// meanings, and each word whose forms do not follow from one another.
func Ambiguous(words []harness.Word) []string {
	var problems []string
	meanings, names := map[string]string{}, map[string]string{}
	owners := map[Form]map[string]string{}
	apart := map[string]bool{}
	for _, w := range words {
		if w.Name == "" || w.Meaning == "" {
			problems = append(problems, fmt.Sprintf("glossary: a word without a name or a meaning: %+v", w))
			continue
		}
		meaning := strings.Join(strings.FieldsFunc(strings.ToLower(w.Meaning), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }), " ")
		if other, ok := meanings[meaning]; ok {
			problems = append(problems, fmt.Sprintf("glossary: %s and %s mean the same: %s", other, w.Name, w.Meaning))
		}
		meanings[meaning] = w.Name
		if _, ok := names[w.Name]; ok {
			problems = append(problems, fmt.Sprintf("glossary: %s is there twice", w.Name))
		}
		names[w.Name], apart[w.Name] = w.Meaning, w.Apart != ""
		for form, text := range forms(w) {
			if owners[form] == nil {
				owners[form] = map[string]string{}
			}
			if other, ok := owners[form][text]; ok {
				problems = append(problems, fmt.Sprintf("glossary: %s and %s are both the %s %q", other, w.Name, form, text))
			}
			owners[form][text] = w.Name
		}
		if w.Apart == "" {
			problems = append(problems, misspelt(w)...)
		}
	}
	// A key that reads like another word's column says two things in one name.
	for _, w := range words {
		if other := owners[Column][snake(w.Key)]; w.Key != "" && other != "" && other != w.Name && !apart[w.Name] && !apart[other] {
			problems = append(problems, fmt.Sprintf("glossary: the JSON key %q of %s reads like the column of %s: rename one, or say that they are Apart", w.Key, w.Name, other))
		}
	}
	slices.Sort(problems)
	return problems
}

// misspelt checks the forms of one word against each other. A reference is the
// one difference allowed: a row points at a thing by its id or name, while JSON
// has the thing's own word as the key of that id.
func misspelt(w harness.Word) []string {
	var problems []string
	wrong := func(form Form, text, want string) {
		problems = append(problems, fmt.Sprintf("glossary: %s: the %s is %q, want %q", w.Name, form, text, want))
	}
	word := snake(w.Name)
	if w.Column != "" && w.Column != word && w.Column != word+"_id" && w.Column != word+"_name" {
		wrong(Column, w.Column, word)
	}
	if w.Key != "" && snake(w.Key) != word {
		wrong(Key, w.Key, w.Name)
	}
	if want := exact(Value, word); w.Value != "" && w.Value != want {
		wrong(Value, w.Value, want)
	}
	if w.Event != "" && strings.ReplaceAll(w.Event, ".", "_") != word {
		wrong(Event, w.Event, strings.ReplaceAll(word, "_", "."))
	}
	if compact := strings.ReplaceAll(word, "_", ""); w.Extension != "" && w.Extension != compact && w.Extension != "tuluat"+compact {
		wrong(Extension, w.Extension, "tuluat"+compact)
	}
	return problems
}

// Mistyped returns a line for each JSON key that holds a typed id under another
// name than its word's, and for each that has the word's name and holds something
// else. ids is the key of each type; parts are keys that say the part which the
// thing plays, or that it is the record itself, rather than what it is.
func Mistyped(ids, parts map[string]string, names []Name) []string {
	types := map[string]string{}
	for holds, key := range ids {
		types[key] = holds
	}
	var problems []string
	for _, n := range names {
		want, isID := ids[n.Holds]
		_, part := parts[n.Text]
		switch {
		case n.Form != Key || part:
		case isID && n.Text != want:
			problems = append(problems, fmt.Sprintf("%s: JSON key %q holds a %s, whose key is %q", n.Where, n.Text, n.Holds, want))
		case !isID && basic(n.Holds) && types[n.Text] != "":
			problems = append(problems, fmt.Sprintf("%s: JSON key %q holds a %s, but names a %s", n.Where, n.Text, n.Holds, types[n.Text]))
		}
	}
	return problems
}

// basic reports whether a value of this type is a plain one; an object could be
// the thing itself.
func basic(holds string) bool {
	return holds == "string" || holds == "bool" || strings.HasSuffix(holds, "State") || strings.HasPrefix(holds, "int") || strings.HasPrefix(holds, "uint")
}

// Synonym is a name that must not be used, because its meaning has another.
type Synonym struct {
	Not     string // in snake case; found at any place within a name
	Instead string // in snake case; a name that has it may contain Not
}

// Forbidden returns a line for each name that contains a forbidden synonym.
func Forbidden(synonyms []Synonym, names []Name) []string {
	contains := func(name, word string) bool { return strings.Contains("_"+snake(name)+"_", "_"+word+"_") }
	var problems []string
	for _, n := range names {
		for _, s := range synonyms {
			if contains(n.Text, s.Not) && !contains(n.Text, s.Instead) {
				problems = append(problems, fmt.Sprintf("%s: %s %q says %q: the word is %s", n.Where, n.Form, n.Text, s.Not, s.Instead))
			}
		}
	}
	return problems
}

// snake spells a name of any form in snake case: channelUserId, callbackURL and
// message.received become channel_user_id, callback_url and message_received.
func snake(name string) string {
	if name == strings.ToUpper(name) {
		name = strings.ToLower(name)
	}
	runes := []rune(name)
	var b strings.Builder
	for i, r := range runes {
		switch {
		case r == '.' || r == '-':
			r = '_'
		case unicode.IsUpper(r):
			lowerBefore := i > 0 && (unicode.IsLower(runes[i-1]) || unicode.IsDigit(runes[i-1]))
			wordAhead := i > 0 && unicode.IsUpper(runes[i-1]) && i+1 < len(runes) && unicode.IsLower(runes[i+1])
			if lowerBefore || wordAhead {
				b.WriteByte('_')
			}
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}
