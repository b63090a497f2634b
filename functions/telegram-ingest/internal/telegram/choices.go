package telegram

import (
	"strconv"
	"strings"

	"tuluat.ai/harness/shared/channel/markup"
	"tuluat.ai/harness/shared/harness"
)

// buttons makes an inline keyboard, a choice to a row. Nil: these choices do not
// go onto buttons.
func buttons(choices []harness.Choice) []any {
	if len(choices) == 0 || len(choices) > maxButtons {
		return nil
	}
	rows := make([]any, 0, len(choices))
	for _, c := range choices {
		title := harness.CleanText(c.Title)
		if c.ID == "" || len(c.ID) > maxButtonData || harness.CleanText(c.ID) != c.ID || strings.TrimSpace(title) == "" {
			return nil
		}
		rows = append(rows, []any{map[string]any{"text": title, "callback_data": c.ID}})
	}
	return rows
}

// described adds what buttons have no place for, if it fits.
func described(text string, choices []harness.Choice) string {
	var lines []string
	for _, c := range choices {
		if c.Description != "" {
			lines = append(lines, "- "+c.Title+": "+c.Description)
		}
	}
	if with := text + "\n\n" + strings.Join(lines, "\n"); len(lines) > 0 && fits(with) {
		return with
	}
	return text
}

// numbered offers choices in words; descriptions stay out when they do not fit.
func numbered(text string, choices []harness.Choice) string {
	list := func(withDescriptions bool) string {
		var lines strings.Builder
		lines.WriteString(text + "\n")
		for i, c := range choices {
			title := c.Title
			if title == "" {
				title = c.ID
			}
			lines.WriteString("\n" + strconv.Itoa(i+1) + ". " + title)
			if withDescriptions && c.Description != "" {
				lines.WriteString(": " + c.Description)
			}
		}
		return lines.String()
	}
	if with := list(true); markup.UTF16Len(with) <= maxUnits {
		return with
	}
	return list(false)
}
