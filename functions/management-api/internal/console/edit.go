package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"sigs.k8s.io/yaml"

	"tuluat.ai/harness/functions/management-api/internal/loopback"
	"tuluat.ai/harness/shared/harness/view"
)

// kind is a kind of resource that is edited as YAML.
type kind struct {
	path   string // of the API and here
	right  string // aiagents
	schema string // AiAgent
	title  string
	empty  string // what a new one begins as
}

var (
	agentKind = kind{"agents", "aiagents", "AiAgent", "Agent", `apiVersion: tuluat.ai/v1alpha1
kind: AiAgent
metadata:
  name: my-agent
spec:
  description: What it is for, in one line.
  systemPrompt: |
    You answer briefly.
`}
	workflowKind = kind{"workflows", "aiworkflows", "AiWorkflow", "Workflow", `apiVersion: tuluat.ai/v1alpha1
kind: AiWorkflow
metadata:
  name: my-workflow
spec:
  nodes:
    - {id: ask, type: AGENT, agent: my-agent, prompt: "What is new?"}
    - {id: end, type: END}
  edges:
    - {from: ask, to: end}
`}
)

// editBody is an editor.
type editBody struct {
	Kind, Path, Name string // Name is empty of a new one
	Text, ETag       string
	Checked          bool // the text was found to be right: it can be saved
	Diff             []diffLine
	Same             bool
	Action           string // where the form goes
	Fields           []schemaField
	Back             string
}

func (k kind) body(name string) *editBody {
	b := &editBody{Kind: k.title, Path: Prefix + k.path, Name: name, Back: Prefix + k.path, Action: Prefix + k.path + "/new"}
	if name != "" {
		b.Back = Prefix + k.path + "/" + url.PathEscape(name)
		b.Action = b.Back + "/edit"
	}
	return b
}

// current is a resource as its author wrote it where that is known, and its version.
func (p *page) current(k kind, name string) (text, etag string, err error) {
	answer, err := p.fetch(at(k.path, name), http.Header{"Accept": {"application/yaml"}})
	if err != nil {
		return "", "", err
	}
	text, etag = string(answer.Body)+"\n", answer.Header.Get("ETag")
	if strings.HasPrefix(answer.Header.Get("Content-Type"), "application/yaml") {
		return text, etag, nil
	}
	var object map[string]any
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber() // large ones stay what they are
	if err := decoder.Decode(&object); err != nil {
		return "", "", err
	}
	delete(object, "status")
	if meta, ok := object["metadata"].(map[string]any); ok {
		for _, name := range []string{"managedFields", "uid", "resourceVersion", "generation", "creationTimestamp", "selfLink"} {
			delete(meta, name)
		}
	}
	written, err := json.Marshal(object)
	if err != nil {
		return "", "", err
	}
	pretty, err := yaml.JSONToYAML(written)
	return string(pretty), etag, err
}

// edit shows an editor with what there is.
func (k kind) edit(p *page) error {
	if err := p.need("update " + k.right); err != nil {
		return err
	}
	name := p.r.PathValue("name")
	b := k.body(name)
	var err error
	if b.Text, b.ETag, err = p.current(k, name); err != nil {
		return err
	}
	if b.Fields, err = p.fields(k.schema); err != nil {
		return err
	}
	return p.show("edit", "Edit "+name, b)
}

// create shows an editor with a new resource.
func (k kind) create(p *page) error {
	if err := p.need("create " + k.right); err != nil {
		return err
	}
	b := k.body("")
	b.Text = k.empty
	var err error
	if b.Fields, err = p.fields(k.schema); err != nil {
		return err
	}
	return p.show("edit", "New "+strings.ToLower(k.title), b)
}

// put checks or saves what an editor sent. Nothing is saved that was not shown as a
// difference before: the form that saves is on that page.
func (k kind) put(p *page) error {
	name, form := p.r.PathValue("name"), p.sent()
	b := k.body(name)
	b.Text, b.ETag = unixLines(form.Get("yaml")), form.Get("etag")
	save := form.Get("action") == "save"
	title := "Edit " + name
	if name == "" {
		title = "New " + strings.ToLower(k.title)
	}
	if form.Get("action") == "edit" {
		return k.again(p, title, b, nil)
	}
	r := loopback.Request{Method: http.MethodPost, Path: "/" + k.path, Body: []byte(b.Text), Header: http.Header{"Content-Type": {"application/yaml"}}}
	if name != "" {
		r.Method, r.Path = http.MethodPut, at(k.path, name)
		r.Header.Set("If-Match", b.ETag)
	}
	if !save {
		r.Query = url.Values{"dryRun": {"true"}}
	}
	var made struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	if _, err := p.send(p.r.Context(), p.token, r, &made); err != nil {
		if statusOf(err) == http.StatusPreconditionFailed {
			return k.overtaken(p, title, b, err)
		}
		return k.again(p, title, b, err)
	}
	if save {
		did := "saved"
		if name == "" {
			did = "created"
		}
		return p.to(Prefix+k.path+"/"+url.PathEscape(made.Metadata.Name), did)
	}
	was := ""
	if name != "" {
		var err error
		if was, _, err = p.current(k, name); err != nil {
			return err
		}
	}
	b.Checked, b.Diff = true, diff(was, b.Text)
	b.Same = was == b.Text
	return p.show("edit", title, b)
}

// again shows the editor with what was sent, and what is wrong with it.
func (k kind) again(p *page, title string, b *editBody, problem error) error {
	var err error
	if b.Fields, err = p.fields(k.schema); err != nil {
		return err
	}
	return p.showProblem("edit", title, b, problem)
}

// overtaken shows what somebody else has saved meanwhile as a difference to what was
// sent. Saving from there is made to that version.
func (k kind) overtaken(p *page, title string, b *editBody, problem error) error {
	was, etag, err := p.current(k, b.Name)
	if err != nil {
		return err
	}
	b.ETag, b.Diff = etag, diff(was, b.Text)
	return k.again(p, title, b, problem)
}

// remove deletes the version that its page has shown.
func (k kind) remove(p *page) error {
	name := p.r.PathValue("name")
	if err := p.write(http.MethodDelete, at(k.path, name), http.Header{"If-Match": {p.sent().Get("etag")}}, nil, nil); err != nil {
		return err
	}
	return p.to(Prefix+k.path, "deleted")
}

// schemaField is one thing that a resource may say.
type schemaField struct {
	Path, Type, Doc string
	Required        bool
}

// schemaNode is as much of a JSON Schema as is shown.
type schemaNode struct {
	Type        any
	Description string
	Enum        []any
	Required    []string
	Properties  map[string]schemaNode
	Items       *schemaNode
}

// fields are those of a resource's spec, as the API's document describes them.
func (p *page) fields(name string) ([]schemaField, error) {
	answer, err := loopback.Do(p.r.Context(), p.API, loopback.Request{Method: http.MethodGet, Path: "/openapi.json", Token: "Bearer " + p.token})
	if err != nil {
		return nil, err
	}
	if !answer.OK() {
		return nil, refusedBy(answer)
	}
	var document struct {
		Components struct{ Schemas map[string]json.RawMessage }
	}
	var schema schemaNode
	if err := json.Unmarshal(answer.Body, &document); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(document.Components.Schemas[name], &schema); err != nil {
		return nil, &refused{Problem: view.Problem{Status: http.StatusInternalServerError, Detail: "the API does not describe " + name}}
	}
	return schema.Properties["spec"].fields("spec."), nil
}

func (s schemaNode) fields(path string) []schemaField {
	var all []schemaField
	for _, name := range sortedKeys(s.Properties) {
		n := s.Properties[name]
		f := schemaField{Path: path + name, Type: n.kind(), Doc: n.Description}
		for _, r := range s.Required {
			f.Required = f.Required || r == name
		}
		all = append(all, f)
		all = append(all, n.fields(path+name+".")...)
		if n.Items != nil {
			all = append(all, n.Items.fields(path+name+"[].")...)
		}
	}
	return all
}
