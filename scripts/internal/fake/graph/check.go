package graph

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

func itoa(n int) string { return strconv.Itoa(n) }

// The limits on content, in characters.
const (
	maxText        = 4096
	maxListBody    = 4096
	maxButtonBody  = 1024
	maxCaption     = 1024
	maxHeader      = 60
	maxButtons     = 3
	maxButtonTitle = 20
	maxButtonID    = 256
	maxRows        = 10
	maxRowTitle    = 24
	maxRowText     = 72
	maxRowID       = 200
	maxParameters  = 1024 // all of a template's body together
)

// within checks a text that must be there and not be longer than most.
func within(name, text string, most int) *apiError {
	if strings.TrimSpace(text) == "" {
		return parameter("%s is required", name)
	}
	if n := utf8.RuneCountInString(text); n > most {
		return parameter("%s has %d characters, at most %d are allowed", name, n, most)
	}
	return nil
}

// first returns the first refusal.
func first(all ...*apiError) *apiError {
	for _, e := range all {
		if e != nil {
			return e
		}
	}
	return nil
}

// field reads the field called like the type into value.
func (r request) field(value any) *apiError {
	raw, ok := r.Fields[r.Type]
	if !ok {
		return &apiError{Status: http.StatusBadRequest, Code: 100, Type: oauth, Message: "(#100) The parameter " + r.Type + " is required."}
	}
	if err := json.Unmarshal(raw, value); err != nil {
		return parameter("%s has the wrong form", r.Type)
	}
	return nil
}

// check checks what a message holds and fills its line.
func (s *Server) check(n Number, ask request, m *accepted, line *person.Line) *apiError {
	if ask.Type == "" {
		ask.Type = "text"
	}
	line.Kind = ask.Type
	if raw, ok := ask.Fields["context"]; ok {
		var context struct {
			MessageID string `json:"message_id"`
		}
		if json.Unmarshal(raw, &context) != nil || context.MessageID == "" {
			return parameter("context.message_id is required")
		}
		line.ReplyTo = context.MessageID
	}
	switch ask.Type {
	case "text":
		var text struct {
			Body       string `json:"body"`
			PreviewURL bool   `json:"preview_url"`
		}
		refused := first(ask.field(&text))
		if refused == nil {
			refused = within("text.body", text.Body, maxText)
		}
		line.Text = text.Body
		return refused
	case "image", "document", "audio", "video", "sticker":
		return s.checkFile(n, ask, m, line)
	case "interactive":
		if m.group != "" {
			return parameter("interactive messages cannot be sent to groups")
		}
		return checkInteractive(ask, line)
	case "template":
		return s.checkTemplate(ask, line)
	case "reaction":
		var reaction struct {
			MessageID string `json:"message_id"`
			Emoji     string `json:"emoji"`
		}
		if refused := ask.field(&reaction); refused != nil {
			return refused
		}
		if reaction.MessageID == "" {
			return parameter("reaction.message_id is required")
		}
		line.Text, line.ReplyTo = reaction.Emoji, reaction.MessageID
		return nil
	}
	return parameter("type must be one of text, image, document, audio, video, sticker, interactive, template, reaction")
}

func (s *Server) checkFile(n Number, ask request, m *accepted, line *person.Line) *apiError {
	var file struct {
		ID, Link, Caption, Filename string
	}
	if refused := ask.field(&file); refused != nil {
		return refused
	}
	line.Text = file.Caption
	if file.Caption != "" {
		if ask.Type == "audio" || ask.Type == "sticker" {
			return parameter("%s cannot have a caption", ask.Type)
		}
		if refused := within(ask.Type+".caption", file.Caption, maxCaption); refused != nil {
			return refused
		}
	}
	if file.Filename != "" && ask.Type != "document" {
		return parameter("only a document has a filename")
	}
	switch {
	case file.ID != "" && file.Link != "":
		return parameter("either id or link, not both")
	case file.Link != "":
		m.failing = 131052 // there is no way out of here to fetch it
		line.File = &person.File{Name: file.Filename}
		return nil
	case file.ID == "":
		return parameter("%s.id or %s.link is required", ask.Type, ask.Type)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.media[file.ID]
	if f == nil || f.Number != n.PhoneNumberID || s.clock.Now().After(f.Until) {
		return value("%s.id is not of a file that this number has uploaded", ask.Type)
	}
	if kind := kindOf(f.MimeType); kind != ask.Type && ask.Type != "document" {
		return value("%s.id is of a file of type %s", ask.Type, f.MimeType)
	}
	shown := f.File
	if file.Filename != "" {
		shown.Name = file.Filename
	}
	line.File = &shown
	return nil
}

type reply struct {
	ID          string `json:"id"`
	Title       string `json:"title"`
	Description string `json:"description"`
}

func checkInteractive(ask request, line *person.Line) *apiError {
	var in struct {
		Type   string                       `json:"type"`
		Header *struct{ Type, Text string } `json:"header"`
		Body   *struct{ Text string }       `json:"body"`
		Footer *struct{ Text string }       `json:"footer"`
		Action struct {
			Button  string `json:"button"`
			Buttons []struct {
				Type  string `json:"type"`
				Reply reply  `json:"reply"`
			} `json:"buttons"`
			Sections []struct {
				Title string  `json:"title"`
				Rows  []reply `json:"rows"`
			} `json:"sections"`
		} `json:"action"`
	}
	if refused := ask.field(&in); refused != nil {
		return refused
	}
	if in.Body == nil {
		return parameter("interactive.body is required")
	}
	line.Text = in.Body.Text
	if in.Header != nil {
		if in.Header.Type != "text" {
			return parameter("interactive.header.type must be text here")
		}
		if refused := within("interactive.header.text", in.Header.Text, maxHeader); refused != nil {
			return refused
		}
	}
	if in.Footer != nil {
		if refused := within("interactive.footer.text", in.Footer.Text, maxHeader); refused != nil {
			return refused
		}
	}
	switch in.Type {
	case "button":
		line.Kind = "buttons"
		if n := len(in.Action.Buttons); n < 1 || n > maxButtons {
			return parameter("interactive.action.buttons has %d elements, 1 to %d are allowed", n, maxButtons)
		}
		refused := within("interactive.body.text", in.Body.Text, maxButtonBody)
		for _, b := range in.Action.Buttons {
			if b.Type != "reply" {
				return parameter("a button's type must be reply")
			}
			refused = first(refused, within("a button's title", b.Reply.Title, maxButtonTitle), within("a button's id", b.Reply.ID, maxButtonID))
			line.Choices = append(line.Choices, person.Choice{ID: b.Reply.ID, Title: b.Reply.Title})
		}
		return first(refused, twice(line.Choices, true))
	case "list":
		line.Kind = "list"
		refused := first(within("interactive.body.text", in.Body.Text, maxListBody), within("interactive.action.button", in.Action.Button, maxButtonTitle))
		for _, section := range in.Action.Sections {
			if len(in.Action.Sections) > 1 {
				refused = first(refused, within("a section's title", section.Title, maxRowTitle))
			}
			for _, row := range section.Rows {
				refused = first(refused, within("a row's title", row.Title, maxRowTitle), within("a row's id", row.ID, maxRowID))
				if row.Description != "" {
					refused = first(refused, within("a row's description", row.Description, maxRowText))
				}
				line.Choices = append(line.Choices, person.Choice(row))
			}
		}
		if n := len(line.Choices); n < 1 || n > maxRows {
			return parameter("interactive.action.sections has %d rows, 1 to %d are allowed", n, maxRows)
		}
		return first(refused, twice(line.Choices, false))
	}
	return parameter("interactive.type must be button or list here")
}

// twice refuses choices with the same id, of buttons also the same title.
func twice(choices []person.Choice, titles bool) *apiError {
	for i, c := range choices {
		if slices.ContainsFunc(choices[:i], func(o person.Choice) bool { return o.ID == c.ID || titles && o.Title == c.Title }) {
			return parameter("two choices have the same id or title")
		}
	}
	return nil
}

var (
	templateName = regexp.MustCompile(`^[a-z0-9_]{1,512}$`)
	badParameter = regexp.MustCompile(`[\n\t]| {5,}`)
)

func (s *Server) checkTemplate(ask request, line *person.Line) *apiError {
	var t struct {
		Name       string
		Language   struct{ Code string }
		Components []struct {
			Type       string
			Parameters []struct{ Type, Text, Payload string }
		}
	}
	if refused := ask.field(&t); refused != nil {
		return refused
	}
	if !templateName.MatchString(t.Name) || t.Language.Code == "" {
		return parameter("template.name and template.language.code are required")
	}
	coded := func(status, code int, message, details string) *apiError {
		return &apiError{Status: status, Code: code, Type: oauth, Message: fmt.Sprintf("(#%d) %s", code, message), Details: details}
	}
	var texts []string
	for _, component := range t.Components {
		if component.Type != "body" {
			for _, p := range component.Parameters {
				if component.Type == "button" && p.Payload != "" {
					line.Choices = append(line.Choices, person.Choice{ID: p.Payload, Title: p.Payload})
				}
			}
			continue
		}
		for _, p := range component.Parameters {
			if p.Type != "text" || p.Text == "" {
				return coded(http.StatusBadRequest, 132012, "Parameter format does not match format in the created template", "body parameters must be texts that are not empty")
			}
			if badParameter.MatchString(p.Text) {
				return coded(http.StatusBadRequest, 132018, "There was an issue with the parameters in the template", "Param text cannot have new-line/tab characters or more than 4 consecutive spaces")
			}
			texts = append(texts, p.Text)
		}
	}
	line.Text = strings.Join(texts, "\n")
	if utf8.RuneCountInString(strings.Join(texts, "")) > maxParameters {
		return coded(http.StatusBadRequest, 132005, "Translated text too long", fmt.Sprintf("the body has more than %d characters", maxParameters))
	}
	if s.options.Templates == nil {
		return nil
	}
	for _, known := range s.options.Templates {
		if known.Name != t.Name || known.Language != t.Language.Code {
			continue
		}
		if known.Parameters != len(texts) {
			return coded(http.StatusBadRequest, 132000, "Number of parameters does not match the expected number of params", fmt.Sprintf("body: number of localizable_params (%d) does not match the expected number of params (%d)", len(texts), known.Parameters))
		}
		if known.Body != "" {
			line.Text = known.Body
			for i, text := range texts {
				line.Text = strings.ReplaceAll(line.Text, fmt.Sprintf("{{%d}}", i+1), text)
			}
		}
		return nil
	}
	return coded(http.StatusNotFound, 132001, "Template name does not exist in the translation", fmt.Sprintf("template name (%s) does not exist in %s", t.Name, t.Language.Code))
}
