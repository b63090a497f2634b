package telegram

import (
	"maps"
	"slices"
	"strings"

	"tuluat.ai/harness/shared/harness"
)

// maxDepth bounds how deep blocks are followed.
const maxDepth = 64

// readRich flattens a formatted message, which has blocks instead of a text. New
// kinds of blocks come with new versions: whatever nests is followed, and what
// is written under the names that hold words is kept.
func readRich(rich object) content {
	f := &flattener{}
	f.block(any(map[string]any(rich)), 0)
	c := content{kind: "text", text: harness.CleanText(strings.TrimSpace(f.text.String())), rich: true, files: f.files}
	c.raw = c.text
	if c.text == "" && len(f.files) > 0 {
		c.text, c.standIn = "[files]", true
	}
	return c
}

type flattener struct {
	text  strings.Builder
	label string // of a list's item, before its first line
	files []harness.Attachment
}

// worded are the fields of a block that hold words, in the order they are read.
var worded = []string{"title", "summary", "text", "expression", "caption", "credit"}

func (f *flattener) block(value any, depth int) {
	if depth > maxDepth || f.text.Len() > maxText {
		return
	}
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			f.block(item, depth+1)
		}
	case map[string]any:
		o := object(v)
		if _, _, files := readMedia(o); len(f.files) < maxFiles {
			f.files = append(f.files, files...)
		}
		if label := strings.TrimSpace(o.raw("label")); label != "" {
			f.label = label + " "
		}
		for _, key := range worded {
			f.line(inline(o[key], depth+1))
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if !slices.Contains(worded, key) {
				f.block(v[key], depth+1)
			}
		}
	}
}

func (f *flattener) line(text string) {
	if text = strings.TrimSpace(text); text == "" {
		return
	}
	f.text.WriteString(f.label + text + "\n")
	f.label = ""
}

// inline joins text that is a string, a list of texts, or a text with a format.
func inline(value any, depth int) string {
	if depth > maxDepth {
		return ""
	}
	switch v := value.(type) {
	case string:
		return v
	case []any:
		var all strings.Builder
		for _, item := range v {
			if all.Len() > maxText {
				break
			}
			all.WriteString(inline(item, depth+1))
		}
		return all.String()
	case map[string]any:
		for _, key := range []string{"text", "expression", "alternative_text"} {
			if v[key] != nil {
				return inline(v[key], depth+1)
			}
		}
	}
	return ""
}
