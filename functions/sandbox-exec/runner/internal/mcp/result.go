package mcp

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
)

// result is what a tool returned.
type result struct {
	Content           []content       `json:"content"`
	StructuredContent json.RawMessage `json:"structuredContent"`
	IsError           bool            `json:"isError"`
}

type content struct {
	Type     string   `json:"type"`
	Text     string   `json:"text"`
	Data     string   `json:"data"`
	MimeType string   `json:"mimeType"`
	URI      string   `json:"uri"`
	Resource *content `json:"resource"`
	Blob     string   `json:"blob"`
}

// text is what a result says in words: the texts, and of all else what it is.
func (r result) text() string {
	var parts []string
	for _, c := range r.Content {
		switch c.Type {
		case "text":
			parts = append(parts, c.Text)
		case "image":
			parts = append(parts, fmt.Sprintf("[An image, %s, %d bytes: it is not shown.]", mimeType(c.MimeType), decoded(c.Data)))
		case "audio":
			parts = append(parts, fmt.Sprintf("[A sound, %s, %d bytes: it is not shown.]", mimeType(c.MimeType), decoded(c.Data)))
		case "resource_link":
			parts = append(parts, fmt.Sprintf("[A link to a resource, %s: %s]", mimeType(c.MimeType), cut(c.URI, 2048)))
		case "resource":
			switch {
			case c.Resource == nil:
			case c.Resource.Text != "":
				parts = append(parts, c.Resource.Text)
			default:
				parts = append(parts, fmt.Sprintf("[A resource, %s, %d bytes: it is not shown.]", mimeType(c.Resource.MimeType), decoded(c.Resource.Blob)))
			}
		default:
			parts = append(parts, "[Something of another type: it is not shown.]")
		}
	}
	if len(parts) == 0 && len(r.StructuredContent) > 0 && string(r.StructuredContent) != "null" {
		return string(r.StructuredContent)
	}
	return strings.Join(parts, "\n")
}

func decoded(data string) int {
	return base64.StdEncoding.DecodedLen(len(data)) - strings.Count(data[max(0, len(data)-2):], "=")
}

// mimeType is a type as a server says it, short.
func mimeType(said string) string {
	if said == "" {
		return "of unknown type"
	}
	return cut(said, 100)
}

func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
