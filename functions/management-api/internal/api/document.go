package api

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness/view"
)

// schemas are those of the resources, made from config/crd by internal/apidoc.
//
//go:embed schema/*.json
var schemas embed.FS

const refPrefix = "#/components/schemas/"

// describe is the part of the document that no operation has.
func describe() *huma.OpenAPI {
	registry := huma.NewMapRegistry(refPrefix, huma.DefaultSchemaNamer)
	return &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title:   "Tuluat Harness management API",
			Version: "v1",
			Description: "What runs, what ran; switch, edit, run, decide. Every request needs the header Authorization: Bearer TOKEN; the right that an operation needs is in " +
				rightExtension + ". Lists come in pages: next of one is after of the following. What is wrong is answered as a problem (RFC 9457).",
			License: &huma.License{Name: "Apache 2.0", Identifier: "Apache-2.0"},
		},
		Components: &huma.Components{
			Schemas:         registry,
			SecuritySchemes: map[string]*huma.SecurityScheme{"bearer": {Type: "http", Scheme: "bearer", Description: "a Kubernetes token, or the token of the machine"}},
		},
		Security: []map[string][]string{{"bearer": {}}},
	}
}

// document encodes the finished document.
func document(described *huma.OpenAPI) ([]byte, error) {
	// Of huma's own registration; no answer has them.
	for _, name := range []string{"ErrorModel", "ErrorDetail", "ListRawMessage"} {
		delete(described.Components.Schemas.Map(), name)
	}
	text, err := json.Marshal(described)
	if err != nil {
		return nil, fmt.Errorf("encode the document: %w", err)
	}
	var all map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("encode the document: %w", err)
	}
	components, ok := all["components"].(map[string]any)["schemas"].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("encode the document: it has no schemas")
	}
	for _, kind := range []string{v1alpha1.KindAgent, v1alpha1.KindWorkflow} {
		text, err := schemas.ReadFile("schema/" + kind + ".json")
		if err != nil {
			return nil, fmt.Errorf("encode the document: %w", err)
		}
		var schema any
		if err := json.Unmarshal(text, &schema); err != nil {
			return nil, fmt.Errorf("encode the document: %s: %w", kind, err)
		}
		components[kind] = schema
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(all); err != nil {
		return nil, fmt.Errorf("encode the document: %w", err)
	}
	return out.Bytes(), nil
}

// problems says that every answer that is no success is a Problem.
func (a *api) problems() *huma.Response {
	schema := a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[view.Problem](), true, "Problem")
	return &huma.Response{Description: "It was not done", Content: map[string]*huma.MediaType{problemType: {Schema: schema}}}
}

// resourceSchema says in the document that bodies are of a kind of resource,
// which huma is not told the types of: they are validated where they are kept.
type resourceSchema struct{ ref *huma.Schema }

func schemaRef(kind string) resourceSchema {
	return resourceSchema{&huma.Schema{Ref: refPrefix + kind}}
}

// answer is an operation that gives a resource.
func (s resourceSchema) answer(op *huma.Operation) {
	op.Responses[fmt.Sprint(op.DefaultStatus)] = &huma.Response{
		Description: http.StatusText(op.DefaultStatus), Content: map[string]*huma.MediaType{typeJSON: {Schema: s.ref}},
	}
	if op.Method == http.MethodGet {
		op.Responses[fmt.Sprint(op.DefaultStatus)].Content[typeYAML] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
	}
}

// items is one that gives a page of them.
func (s resourceSchema) items(op *huma.Operation) {
	op.Responses[fmt.Sprint(op.DefaultStatus)] = &huma.Response{
		Description: http.StatusText(op.DefaultStatus),
		Content: map[string]*huma.MediaType{typeJSON: {Schema: &huma.Schema{
			Type: huma.TypeObject, Required: []string{"items"}, AdditionalProperties: false,
			Properties: map[string]*huma.Schema{
				"items": {Type: huma.TypeArray, Items: s.ref},
				"next":  {Type: huma.TypeString, Description: "the after of the next page; without it this is the last"},
			},
		}}},
	}
}

// body is one that takes a resource. huma, which is told that it takes bytes,
// does not look into them.
func (s resourceSchema) body(op *huma.Operation) {
	op.SkipValidateBody = true
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		typeJSON: {Schema: s.ref}, typeYAML: {Schema: &huma.Schema{Type: huma.TypeString, Description: "the same as YAML; where resources are files, its comments are kept"}},
	}}
}

// serveDocuments adds the two documents to mux.
func serveDocuments(mux *http.ServeMux, described *huma.OpenAPI) {
	text, err := document(described)
	if err == nil {
		var page, policy string
		if page, policy, err = docs(text); err == nil {
			mux.Handle("GET "+pathDocument, static("application/vnd.oai.openapi+json; version=3.1", "default-src 'none'", text))
			mux.Handle("GET "+pathDocs, static("text/html; charset=utf-8", policy, []byte(page)))
			return
		}
	}
	panic(err) // of what is compiled in: found by the first test
}

func static(contentType, policy string, text []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", contentType)
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		_, _ = w.Write(text) // the client may be gone
	})
}
