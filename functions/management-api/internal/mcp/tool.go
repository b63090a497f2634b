package mcp

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Where a parameter of an operation is.
const (
	inPath   = "path"
	inQuery  = "query"
	inHeader = "header"
)

type parameter struct {
	in       string
	required bool
}

// tool is one operation as a tool: its arguments are the operation's parameters
// and the fields of its body.
type tool struct {
	name, summary, description string
	method, path               string
	destructive                bool
	parameters                 map[string]parameter
	body                       map[string]bool
	schema                     map[string]any
}

// openAPI is the part of the document that tools are made of.
type openAPI struct {
	Paths map[string]map[string]struct {
		OperationID string `json:"operationId"`
		Summary     string `json:"summary"`
		Description string `json:"description"`
		Parameters  []struct {
			Name        string         `json:"name"`
			In          string         `json:"in"`
			Required    bool           `json:"required"`
			Description string         `json:"description"`
			Schema      map[string]any `json:"schema"`
		} `json:"parameters"`
		RequestBody struct {
			Content map[string]struct {
				Schema map[string]any `json:"schema"`
			} `json:"content"`
		} `json:"requestBody"`
	} `json:"paths"`
	Components struct {
		Schemas map[string]map[string]any `json:"schemas"`
	} `json:"components"`
}

const refPrefix = "#/components/schemas/"

// read makes the tools, in the order of operations.
func read(document []byte) ([]tool, error) {
	var d openAPI
	if err := json.Unmarshal(document, &d); err != nil {
		return nil, fmt.Errorf("read the API's document: %w", err)
	}
	tools := make([]tool, len(operations))
	for path, methods := range d.Paths {
		for method, o := range methods {
			at := slices.Index(operations, o.OperationID)
			if at < 0 {
				continue
			}
			t := tool{
				name: strings.ReplaceAll(o.OperationID, "-", "_"), summary: o.Summary, description: strings.TrimSpace(o.Summary + ". " + o.Description),
				method: strings.ToUpper(method), path: path, parameters: map[string]parameter{}, body: map[string]bool{},
			}
			t.destructive = t.method != http.MethodGet && o.OperationID != "start-session" && o.OperationID != "send-session-message"
			properties, required, definitions := map[string]any{}, []string{}, map[string]any{}
			for _, p := range o.Parameters {
				t.parameters[p.Name] = parameter{in: p.In, required: p.Required}
				properties[p.Name] = d.inline(p.Schema, definitions)
				if p.Required {
					required = append(required, p.Name)
				}
			}
			if content, ok := o.RequestBody.Content["application/json"]; ok {
				body, _ := d.resolve(content.Schema)["properties"].(map[string]any)
				for name, schema := range body {
					if _, twice := properties[name]; twice {
						return nil, fmt.Errorf("make a tool of %s: %s is a parameter and a field of the body", o.OperationID, name)
					}
					t.body[name], properties[name] = true, d.inline(schema, definitions)
				}
				needed, _ := d.resolve(content.Schema)["required"].([]any)
				for _, name := range needed {
					required = append(required, fmt.Sprint(name))
				}
			}
			t.schema = map[string]any{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
			if len(definitions) > 0 {
				t.schema["$defs"] = definitions
			}
			tools[at] = t
		}
	}
	for i, t := range tools {
		if t.name == "" {
			return nil, fmt.Errorf("make a tool of %s: the API's document has no such operation", operations[i])
		}
	}
	return tools, nil
}

func (d openAPI) resolve(schema map[string]any) map[string]any {
	if ref, ok := schema["$ref"].(string); ok {
		return d.Components.Schemas[strings.TrimPrefix(ref, refPrefix)]
	}
	return schema
}

// inline copies schema so that it stands alone: what it refers to goes into
// definitions, and what only OpenAPI knows goes away.
func (d openAPI) inline(schema any, definitions map[string]any) any {
	switch s := schema.(type) {
	case map[string]any:
		if ref, ok := s["$ref"].(string); ok {
			name := strings.TrimPrefix(ref, refPrefix)
			if _, done := definitions[name]; !done {
				definitions[name] = true // a schema may refer to itself
				definitions[name] = d.inline(d.Components.Schemas[name], definitions)
			}
			return map[string]any{"$ref": "#/$defs/" + name}
		}
		copied := map[string]any{}
		for key, value := range s {
			if key != "patternDescription" {
				copied[key] = d.inline(value, definitions)
			}
		}
		return copied
	case []any:
		copied := make([]any, len(s))
		for i, value := range s {
			copied[i] = d.inline(value, definitions)
		}
		return copied
	}
	return schema
}
