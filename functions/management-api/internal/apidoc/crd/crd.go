// Package crd reads the schemas of CustomResourceDefinitions for the OpenAPI
// document of the API.
package crd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"

	"sigs.k8s.io/yaml"
)

// Schemas returns by kind the JSON schema of every CustomResourceDefinition in
// folder.
func Schemas(folder fs.FS) (map[string][]byte, error) {
	files, err := fs.Glob(folder, "tuluat.ai_*.yaml")
	if err != nil {
		return nil, err
	}
	schemas := map[string][]byte{}
	for _, file := range files {
		text, err := fs.ReadFile(folder, file)
		if err != nil {
			return nil, err
		}
		var definition struct {
			Spec struct {
				Names    struct{ Kind string }
				Versions []struct {
					Schema struct {
						OpenAPIV3Schema map[string]any `json:"openAPIV3Schema"`
					}
				}
			}
		}
		if err := yaml.Unmarshal(text, &definition); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if len(definition.Spec.Versions) != 1 {
			return nil, fmt.Errorf("%s: has %d versions, and one is understood", file, len(definition.Spec.Versions))
		}
		if schemas[definition.Spec.Names.Kind], err = encode(definition.Spec.Versions[0].Schema.OpenAPIV3Schema); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	if len(schemas) == 0 {
		return nil, fmt.Errorf("there is no tuluat.ai_*.yaml")
	}
	return schemas, nil
}

// encode writes the schema with what Kubernetes knows of every resource without
// being told.
func encode(schema map[string]any) ([]byte, error) {
	properties, ok := schema["properties"].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the schema has no properties")
	}
	word := func(description string) any { return map[string]any{"type": "string", "description": description} }
	words := func(description string) any {
		return map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "string"}, "description": description}
	}
	properties["apiVersion"] = map[string]any{"type": "string", "enum": []string{"tuluat.ai/v1alpha1"}}
	properties["kind"] = word("the kind of the resource")
	properties["metadata"] = map[string]any{
		"type": "object", "required": []string{"name"},
		"properties": map[string]any{
			"name":              map[string]any{"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
			"namespace":         word("the one that agents have in a cluster"),
			"labels":            words("what resources are chosen by"),
			"annotations":       words("what tools keep with a resource"),
			"generation":        map[string]any{"type": "integer", "format": "int64", "readOnly": true, "description": "counts changes of spec"},
			"resourceVersion":   map[string]any{"type": "string", "readOnly": true, "description": "the version, as in ETag"},
			"creationTimestamp": map[string]any{"type": "string", "format": "date-time", "readOnly": true},
		},
	}
	schema["required"] = []string{"apiVersion", "kind", "metadata", "spec"}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(schema); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
