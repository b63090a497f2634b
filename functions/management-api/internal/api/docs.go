package api

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"
)

//go:embed docs.html docs.css
var docFiles embed.FS

// The parts of the OpenAPI document that the page shows.
type (
	shown struct {
		Info  struct{ Title, Description string }
		Paths map[string]map[string]shownOperation

		Components struct{ Schemas map[string]shownSchema }
	}
	shownOperation struct {
		Summary, Description string
		Tags                 []string
		Right                string `json:"x-tuluat-right"`
		Parameters           []struct {
			Name, In, Description string
			Required              bool
			Schema                shownSchema
		}
		RequestBody struct{ Content map[string]shownContent }
		Responses   map[string]struct {
			Description string
			Content     map[string]shownContent
		}
	}
	shownContent struct{ Schema shownSchema }
	shownSchema  struct {
		Ref         string `json:"$ref"`
		Type        any
		Format      string
		Description string
		Enum        []any
		Default     any
		Minimum     *float64
		Maximum     *float64
		MaxLength   *int
		Pattern     string
		Required    []string
		Properties  map[string]shownSchema
		Items       *shownSchema
	}
)

// What the template takes.
type (
	docPage struct {
		Title, Description string
		Style              template.CSS
		Groups             []docGroup
		Schemas            []docSchema
	}
	docGroup struct {
		Name       string
		Operations []docOperation
	}
	docOperation struct {
		ID, Method, Path, Summary, Notes, Right string
		Parameters                              []docField
		Takes                                   string // name of the schema of the body
		Answers                                 []docAnswer
	}
	docAnswer struct{ Status, Description, Schema, Media string }
	docSchema struct {
		Name   string
		Fields []docField
	}
	docField struct {
		Name, Type, Link, Doc string
		Required              bool
	}
)

// docs renders the OpenAPI document as one page that loads nothing, and the
// policy that says so.
func docs(document []byte) (page, policy string, err error) {
	var d shown
	if err := json.Unmarshal(document, &d); err != nil {
		return "", "", fmt.Errorf("read the document: %w", err)
	}
	style, err := docFiles.ReadFile("docs.css")
	if err != nil {
		return "", "", err
	}
	layout, err := template.ParseFS(docFiles, "docs.html")
	if err != nil {
		return "", "", err
	}
	var out strings.Builder
	shown := docPage{Title: d.Info.Title, Description: d.Info.Description, Style: template.CSS(style), Groups: groups(d)}
	for _, name := range slices.Sorted(maps.Keys(d.Components.Schemas)) {
		shown.Schemas = append(shown.Schemas, docSchema{name, fields("", d.Components.Schemas[name])})
	}
	if err := layout.Execute(&out, shown); err != nil {
		return "", "", fmt.Errorf("render the documents: %w", err)
	}
	sum := sha256.Sum256(style)
	policy = "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	return out.String(), policy, nil
}

// groups are the operations in the order of the table.
func groups(d shown) []docGroup {
	var all []docGroup
	for _, o := range Operations() {
		described := d.Paths[o.Path][strings.ToLower(o.Method)]
		operation := docOperation{
			ID: o.ID, Method: o.Method, Path: o.Path, Summary: described.Summary, Notes: described.Description, Right: described.Right,
		}
		for _, p := range described.Parameters {
			f := field(p.Name, p.Schema)
			f.Required, f.Doc = p.Required, cmp.Or(p.Description, f.Doc)
			f.Name = p.Name + " (" + p.In + ")"
			operation.Parameters = append(operation.Parameters, f)
		}
		if body, ok := described.RequestBody.Content[typeJSON]; ok {
			operation.Takes = linked(body.Schema)
		}
		for _, status := range slices.Sorted(maps.Keys(described.Responses)) {
			answer := described.Responses[status]
			shown := docAnswer{Status: status, Description: answer.Description}
			for _, media := range slices.Sorted(maps.Keys(answer.Content)) {
				shown.Schema, shown.Media = cmp.Or(shown.Schema, linked(answer.Content[media].Schema)), cmp.Or(shown.Media, media)
			}
			operation.Answers = append(operation.Answers, shown)
		}
		name := tag(o.Path)
		if len(all) == 0 || all[len(all)-1].Name != name {
			all = append(all, docGroup{Name: name})
		}
		last := &all[len(all)-1]
		last.Operations = append(last.Operations, operation)
	}
	return all
}

// fields lists the properties of a schema, those of inner ones by their path.
func fields(path string, s shownSchema) []docField {
	var all []docField
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		f := field(path+name, p)
		f.Required = slices.Contains(s.Required, name)
		all = append(all, f)
		all = append(all, fields(path+name+".", p)...)
		if p.Items != nil {
			all = append(all, fields(path+name+"[].", *p.Items)...)
		}
	}
	return all
}

func field(name string, s shownSchema) docField {
	f := docField{Name: name, Type: typeOf(s), Link: linked(s), Doc: s.Description}
	var limits []string
	if s.Minimum != nil {
		limits = append(limits, fmt.Sprintf("at least %g", *s.Minimum))
	}
	if s.Maximum != nil {
		limits = append(limits, fmt.Sprintf("at most %g", *s.Maximum))
	}
	if s.MaxLength != nil {
		limits = append(limits, fmt.Sprintf("at most %d characters", *s.MaxLength))
	}
	if s.Default != nil {
		limits = append(limits, fmt.Sprintf("default %v", s.Default))
	}
	if len(limits) > 0 {
		f.Doc = strings.TrimSpace(f.Doc + " (" + strings.Join(limits, ", ") + ")")
	}
	return f
}

// typeOf names the type as people read it.
func typeOf(s shownSchema) string {
	values := s.Enum
	if s.Items != nil && len(values) == 0 {
		values = s.Items.Enum
	}
	if len(values) > 0 {
		words := make([]string, len(values))
		for i, v := range values {
			words[i] = fmt.Sprint(v)
		}
		return strings.Join(words, " | ")
	}
	if s.Items != nil && s.Ref == "" {
		return "list of " + typeOf(*s.Items)
	}
	if link := linked(s); link != "" {
		return link
	}
	switch t := s.Type.(type) {
	case string:
		return cmp.Or(s.Format, t)
	case []any:
		return cmp.Or(s.Format, fmt.Sprint(t[0]))
	}
	return "any"
}

// linked is the name of the schema that s refers to.
func linked(s shownSchema) string {
	if s.Ref == "" && s.Items != nil {
		return linked(*s.Items)
	}
	if s.Ref == "" && s.Properties["items"].Items != nil {
		return linked(*s.Properties["items"].Items)
	}
	return strings.TrimPrefix(s.Ref, refPrefix)
}
