package step

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/harness"
)

// What every channel can show: WhatsApp's lists are the tightest.
const (
	maxChoices     = 10
	maxTitle       = 24 // characters
	maxDescription = 72
)

const offeredResult = "Offered. The turn is over; what the person chooses or writes is the next message."

var offerChoices = model.Tool{
	Name: harness.ToolOfferChoices,
	Description: "End your turn with a question and choices that the person can tap instead of writing. Call it alone, in place of an answer; " +
		"what the person taps, or writes instead, comes as the next message.",
	Parameters: map[string]any{
		"type": "object",
		"properties": map[string]any{
			"text": map[string]any{"type": "string", "description": "What is asked."},
			"choices": map[string]any{
				"type": "array", "minItems": 1, "maxItems": maxChoices,
				"items": map[string]any{
					"type": "object",
					"properties": map[string]any{
						"title":       map[string]any{"type": "string", "description": fmt.Sprintf("At most %d characters.", maxTitle)},
						"description": map[string]any{"type": "string", "description": fmt.Sprintf("At most %d characters.", maxDescription)},
					},
					"required":             []string{"title"},
					"additionalProperties": false,
				},
			},
		},
		"required":             []string{"text", "choices"},
		"additionalProperties": false,
	},
}

// offer is an answer with choices to tap.
type offer struct {
	text    string
	choices []harness.Choice
}

// readOffer reads the arguments of offerChoices. problem says in words what is
// wrong with them; then there is no offer.
func readOffer(call model.Call) (o *offer, problem string) {
	if call.Malformed != "" {
		return nil, "the arguments are broken: " + call.Malformed
	}
	var arguments struct {
		Text    string `json:"text"`
		Choices []struct {
			Title       string `json:"title"`
			Description string `json:"description"`
		} `json:"choices"`
	}
	decoder := json.NewDecoder(bytes.NewReader([]byte(call.Arguments)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&arguments); err != nil || decoder.More() {
		return nil, `the arguments must be {"text": "...", "choices": [{"title": "...", "description": "..."}]}; only "description" may be left out.`
	}
	o = &offer{text: strings.TrimSpace(harness.CleanText(arguments.Text))}
	switch n := len(arguments.Choices); {
	case o.text == "":
		return nil, `the arguments need a non-empty string "text".`
	case n == 0:
		return nil, `the arguments need at least one of "choices".`
	case n > maxChoices:
		return nil, fmt.Sprintf("%d choices are too many: at most %d can be offered.", n, maxChoices)
	}
	seen := map[string]bool{}
	for i, c := range arguments.Choices {
		title := line(c.Title, maxTitle)
		switch {
		case title == "":
			return nil, fmt.Sprintf("choice %d has no title.", i+1)
		case seen[title]:
			return nil, fmt.Sprintf("the titles must differ within their first %d characters; %q is there twice.", maxTitle, title)
		}
		seen[title] = true
		o.choices = append(o.choices, harness.Choice{ID: fmt.Sprintf("c%d", i+1), Title: title, Description: line(c.Description, maxDescription)})
	}
	return o, ""
}

// offerOf is what the history has of an offer that is sent as text.
func offerOf(text string) string {
	arguments, err := json.Marshal(map[string]any{"text": text, "choices": []string{}})
	if err != nil { // texts encode
		panic(err)
	}
	return string(arguments)
}

// line makes one line of at most limit characters of text.
func line(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r) && r != zeroWidthJoiner:
			return -1
		}
		return r
	}, harness.CleanText(text))
	runes := []rune(strings.Join(strings.Fields(text), " "))
	return strings.TrimSpace(string(runes[:min(len(runes), limit)]))
}

// zeroWidthJoiner holds the parts of an emoji together.
const zeroWidthJoiner = '\u200d'
