package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"tuluat.ai/harness/shared/harness"
)

// What is kept of a server's list.
const (
	maxTools       = 126      // no more are offered of all servers together
	maxSchema      = 64 << 10 // bytes of one tool's parameters
	maxDescription = 8 << 10  // bytes
	maxToolName    = 128      // bytes
	maxPages       = 32
	maxPageBytes   = 4 << 20 // of one answer
	maxListBytes   = 1 << 20 // of all that is kept of a server
)

// tool is one tool as it is kept.
type tool struct {
	Name        string         `json:"name"`
	Description string         `json:"description,omitempty"`
	Parameters  map[string]any `json:"parameters"`
}

// list is what a server offers, and what of it is left out.
type list struct {
	tools []tool
	bytes int // of their definitions
	notes []string
}

// list asks a server for its tools. The error's message says why there are none,
// in words of our own.
func (s *Servers) list(ctx context.Context, agent harness.AgentName, server harness.MCPServer) (list, error) {
	w, err := s.open(ctx, agent, server, maxPageBytes)
	if err != nil {
		return list{}, err
	}
	defer w.close()
	session, err := w.connect(ctx)
	if err != nil {
		return list{}, w.why(ctx, err)
	}
	w.next()
	var l list
	count := counts{}
	cursor := ""
	for page := 1; ; page++ {
		answer, err := session.ListTools(ctx, &sdk.ListToolsParams{Cursor: cursor})
		if err != nil {
			return list{}, w.why(ctx, err)
		}
		for _, t := range answer.Tools {
			l.add(server, t, count)
		}
		if answer.NextCursor == "" || answer.NextCursor == cursor {
			break
		}
		if cursor = answer.NextCursor; page == maxPages {
			l.notes = append(l.notes, fmt.Sprintf("only the first %d pages of its list are read", maxPages))
			break
		}
		w.next()
	}
	l.leftOut(count)
	return l, nil
}

// leftOut notes what is not offered.
func (l *list) leftOut(count counts) {
	for _, why := range []string{tooMany, tooMuch, tooLong, noObject, noKey, headers, noName} {
		if n := count[why]; n > 0 {
			l.notes = append(l.notes, fmt.Sprintf("%d of its tools are not offered: %s", n, why))
		}
	}
}

// counts says how many tools are left out for each reason.
type counts map[string]int

// Why a tool is left out.
var (
	tooMany  = fmt.Sprintf("at most %d are; list those that are needed in allowedTools", maxTools)
	tooMuch  = fmt.Sprintf("with them its list is longer than %d MiB; list those that are needed in allowedTools", maxListBytes>>20)
	tooLong  = fmt.Sprintf("their parameters are longer than %d KiB", maxSchema>>10)
	noObject = "their parameters are not a JSON schema of an object"
	headers  = "they want parameters in headers (x-mcp-header), which calls here do not have"
	noKey    = "the names of their parameters are not of at most 64 letters, digits, dots, _ and -, which models' APIs want"
	noName   = "they have no name, or a very long one, or that of another"
)

// add keeps t if the agent may call it and it is within bounds.
func (l *list) add(server harness.MCPServer, t *sdk.Tool, count counts) {
	if !server.Allows(t.Name) {
		return
	}
	parameters, ok := t.InputSchema.(map[string]any)
	schema, err := json.Marshal(parameters)
	switch {
	case t.Name == "" || len(t.Name) > maxToolName || strings.ContainsRune(t.Name, 0) || !utf8.ValidString(t.Name) || l.has(t.Name):
		count[noName]++
	case !ok || err != nil || parameters["type"] != "object":
		count[noObject]++
	case bytes.Contains(schema, []byte(`"x-mcp-header"`)):
		count[headers]++
	case !keys(parameters):
		count[noKey]++
	case len(schema) > maxSchema:
		count[tooLong]++
	case len(l.tools) == maxTools:
		count[tooMany]++
	case l.bytes+len(schema)+len(t.Description) > maxListBytes:
		count[tooMuch]++
	default:
		l.bytes += len(schema) + len(t.Description)
		l.tools = append(l.tools, tool{Name: t.Name, Description: cut(harness.CleanText(t.Description), maxDescription), Parameters: object(parameters)})
	}
}

var parameterName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)

// keys reports whether the names of parameters are such as models' APIs take; one
// that is not would have every question refused.
func keys(schema map[string]any) bool {
	properties, _ := schema["properties"].(map[string]any)
	for name := range properties {
		if !parameterName.MatchString(name) {
			return false
		}
	}
	return true
}

// object is a schema of an object that every model takes: its properties are said,
// also where there are none.
func object(schema map[string]any) map[string]any {
	cleaned := map[string]any{"properties": map[string]any{}}
	for name, value := range schema {
		cleaned[harness.CleanText(name)] = clean(value)
	}
	return cleaned
}

func (l *list) has(name string) bool {
	for _, t := range l.tools {
		if t.Name == name {
			return true
		}
	}
	return false
}

func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// clean makes every text of a JSON value one that Postgres takes.
func clean(value any) any {
	switch v := value.(type) {
	case string:
		return harness.CleanText(v)
	case []any:
		cleaned := make([]any, len(v))
		for i := range v {
			cleaned[i] = clean(v[i])
		}
		return cleaned
	case map[string]any:
		cleaned := make(map[string]any, len(v))
		for name, child := range v {
			cleaned[harness.CleanText(name)] = clean(child)
		}
		return cleaned
	}
	return value
}
