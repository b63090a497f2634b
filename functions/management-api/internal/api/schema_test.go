package api_test

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
)

// document is the OpenAPI document as a client reads it.
type document struct {
	Paths map[string]map[string]struct {
		OperationID string `json:"operationId"`
		Right       string `json:"x-tuluat-right"`
		Parameters  []struct {
			Name, In string
			Required bool
			Schema   map[string]any
		}
		RequestBody *struct {
			Content map[string]struct{ Schema map[string]any }
		}
		Responses map[string]struct {
			Content map[string]struct{ Schema map[string]any }
		}
	}
	Components struct{ Schemas map[string]map[string]any }
}

// check returns what of value is not as schema has it. It knows the part of JSON
// Schema that the document uses.
func (d document) check(path string, schema map[string]any, value any) []string {
	if ref, ok := schema["$ref"].(string); ok {
		target, known := d.Components.Schemas[strings.TrimPrefix(ref, "#/components/schemas/")]
		if !known {
			return []string{path + ": the document has no " + ref}
		}
		return d.check(path, target, value)
	}
	var wrong []string
	say := func(format string, args ...any) { wrong = append(wrong, path+": "+fmt.Sprintf(format, args...)) }
	if anyOf, ok := schema["anyOf"].([]any); ok {
		if !slices.ContainsFunc(anyOf, func(one any) bool { return len(d.check(path, one.(map[string]any), value)) == 0 }) {
			say("fits no schema of anyOf")
		}
	}
	if types := kinds(schema["type"]); len(types) > 0 && !slices.ContainsFunc(types, func(t string) bool { return is(t, value) }) {
		say("is %T, not %v", value, types)
		return wrong
	}
	if enum, ok := schema["enum"].([]any); ok && value != nil && !slices.Contains(enum, value) {
		say("%v is none of %v", value, enum)
	}
	switch v := value.(type) {
	case map[string]any:
		properties, _ := schema["properties"].(map[string]any)
		required, _ := schema["required"].([]any)
		for _, name := range required {
			if _, ok := v[name.(string)]; !ok {
				say("lacks %v", name)
			}
		}
		for name, inner := range v {
			if property, ok := properties[name].(map[string]any); ok {
				wrong = append(wrong, d.check(path+"/"+name, property, inner)...)
				continue
			}
			switch more := schema["additionalProperties"].(type) {
			case bool:
				if !more {
					say("has %s, which the document does not know", name)
				}
			case map[string]any:
				wrong = append(wrong, d.check(path+"/"+name, more, inner)...)
			}
		}
	case []any:
		if items, ok := schema["items"].(map[string]any); ok {
			for i, item := range v {
				wrong = append(wrong, d.check(fmt.Sprintf("%s/%d", path, i), items, item)...)
			}
		}
	case string:
		if pattern, ok := schema["pattern"].(string); ok && !regexp.MustCompile(pattern).MatchString(v) {
			say("%q does not match %s", v, pattern)
		}
		if schema["format"] == "date-time" {
			if _, err := time.Parse(time.RFC3339, v); err != nil {
				say("%q is no time", v)
			}
		}
	case float64:
		if least, ok := schema["minimum"].(float64); ok && v < least {
			say("%v is below %v", v, least)
		}
	}
	return wrong
}

func kinds(t any) []string {
	switch t := t.(type) {
	case string:
		return []string{t}
	case []any:
		var all []string
		for _, one := range t {
			all = append(all, one.(string))
		}
		return all
	}
	return nil
}

func is(kind string, value any) bool {
	switch v := value.(type) {
	case nil:
		return kind == "null"
	case bool:
		return kind == "boolean"
	case string:
		return kind == "string"
	case float64:
		return kind == "number" || kind == "integer" && v == math.Trunc(v)
	case []any:
		return kind == "array"
	case map[string]any:
		return kind == "object"
	}
	return false
}

func parse(text string) (any, error) {
	var v any
	err := json.Unmarshal([]byte(text), &v)
	return v, err
}
