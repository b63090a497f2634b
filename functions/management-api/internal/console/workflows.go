package console

import (
	"encoding/json"
	"net/http"
	"net/url"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

type workflowShort struct {
	Name, Description string
	Nodes             int
	Phase             string
	Wrong             []string
}

type workflowsBody struct {
	Workflows   []workflowShort
	First, Next string
}

func (p *page) workflows() error {
	var l list[json.RawMessage]
	if err := p.get("/workflows", pick(p.r.URL.Query(), "after", "limit"), &l); err != nil {
		return err
	}
	var b workflowsBody
	for _, one := range l.Items {
		b.Workflows = append(b.Workflows, readWorkflow(one))
	}
	b.First, b.Next = p.around(l.Next)
	return p.show("workflows", "Workflows", b)
}

// readWorkflow reads what is shown of an AiWorkflow in a list.
func readWorkflow(text json.RawMessage) workflowShort {
	name, f := readFlow(text)
	a := readAgent(text) // the status of both kinds is one
	return workflowShort{Name: name, Description: f.Description, Nodes: len(f.Nodes), Phase: string(a.Phase), Wrong: a.Wrong}
}

type workflowBody struct {
	workflowShort
	Path, ETag string
	Graph      *graph
	Runs       list[view.Session]
	Inputs     []runInput
	Key        string
	Input      string
}

// runInput is what a run takes.
type runInput struct {
	Name, Type string
	Required   bool
}

func (p *page) workflowBody() (*workflowBody, error) {
	name := p.r.PathValue("name")
	answer, err := p.fetch(at("workflows", name), nil)
	if err != nil {
		return nil, err
	}
	b := &workflowBody{workflowShort: readWorkflow(answer.Body), Path: Prefix + "workflows/" + url.PathEscape(name), ETag: answer.Header.Get("ETag"), Key: random()}
	_, f := readFlow(answer.Body)
	b.Graph = draw(f)
	input := map[string]any{}
	for _, in := range f.Inputs {
		b.Inputs = append(b.Inputs, runInput{in.Name, in.Type, in.Required})
		input[in.Name] = map[string]any{"string": "", "integer": 0, "number": 0, "boolean": false, "list": []any{}, "object": map[string]any{}}[in.Type]
	}
	text, err := json.MarshalIndent(input, "", "  ")
	if err != nil {
		return nil, err
	}
	b.Input = string(text)
	b.Runs, err = p.runs(name)
	return b, err
}

// runs are those of a workflow among the newest sessions, for which lists of the API
// have no filter.
func (p *page) runs(name string) (list[view.Session], error) {
	var all, found list[view.Session]
	if _, err := p.optional("/sessions", url.Values{"limit": {"200"}}, &all); err != nil {
		return found, err
	}
	for _, s := range all.Items {
		if string(s.Workflow) == name && len(found.Items) < 20 {
			found.Items = append(found.Items, s)
		}
	}
	return found, nil
}

func (p *page) workflow() error {
	b, err := p.workflowBody()
	if err != nil {
		return err
	}
	return p.show("workflow", "Workflow "+b.Name, b)
}

// startRun starts a run with the input of its form.
func (p *page) startRun() error {
	name, form := p.r.PathValue("name"), p.sent()
	var begun struct {
		Session harness.SessionID `json:"session"`
	}
	text := unixLines(form.Get("input"))
	err := p.write(http.MethodPost, "/sessions", keyed(form), map[string]any{"workflow": name, "input": rawOr(text)}, &begun)
	if err == nil {
		return p.to(Prefix+"sessions/"+url.PathEscape(string(begun.Session)), "started")
	}
	b, other := p.workflowBody()
	if other != nil {
		return err
	}
	b.Input = text
	return p.showProblem("workflow", "Workflow "+name, b, err)
}

// rawOr is text as JSON, or as a text that the API refuses.
func rawOr(text string) any {
	if json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	return text
}
