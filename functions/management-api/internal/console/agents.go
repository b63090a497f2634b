package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// agentShort is an agent in a list.
type agentShort struct {
	Name     string
	Phase    harness.AgentPhase
	Wrong    []string // what its conditions say is not as it should be
	Features []feature
}

// feature is a block of an agent that can be switched.
type feature struct {
	Name  string
	Label string
	There bool
	On    bool
}

// agentFull is an agent with all that its resource says.
type agentFull struct {
	agentShort

	Description string
	Provider    string
	Model       string
	Status      v1alpha1.Status
}

// blocks are those that can be switched, and what people call them.
var blocks = [][2]string{{"guardrails", "Guardrails"}, {"mcpServers", "MCP servers"}, {"a2a", "Agent2Agent"}, {"harness", "Commands and channels"}, {"skills", "Skills"}}

// readAgent reads what is shown of an AiAgent. What it cannot read is not shown.
func readAgent(text json.RawMessage) agentFull {
	var object struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Spec   map[string]json.RawMessage `json:"spec"`
		Status v1alpha1.Status            `json:"status"`
	}
	_ = json.Unmarshal(text, &object)
	a := agentFull{agentShort: agentShort{Name: object.Metadata.Name, Phase: object.Status.Phase}, Status: object.Status}
	_ = json.Unmarshal(object.Spec["description"], &a.Description)
	var model struct{ Provider, Name string }
	if json.Unmarshal(object.Spec["model"], &model) == nil {
		a.Provider, a.Model = model.Provider, model.Name
	}
	for _, c := range object.Status.Conditions {
		if c.Status == v1alpha1.ConditionFalse {
			a.Wrong = append(a.Wrong, string(c.Type)+": "+c.Message)
		}
	}
	for _, b := range blocks {
		f := feature{Name: b[0], Label: b[1]}
		var block *struct {
			Enabled *bool `json:"enabled"`
		}
		if json.Unmarshal(object.Spec[b[0]], &block) == nil && block != nil {
			f.There, f.On = true, block.Enabled == nil || *block.Enabled
		}
		a.Features = append(a.Features, f)
	}
	return a
}

type agentsBody struct {
	Agents      []agentFull
	States      []ticked
	First, Next string
}

func (p *page) agents() error {
	query := p.r.URL.Query()
	var l list[json.RawMessage]
	if err := p.get("/agents", pick(query, "status", "after", "limit"), &l); err != nil {
		return err
	}
	b := agentsBody{States: tick(query["status"], "READY", "DEGRADED", "INVALID")}
	for _, one := range l.Items {
		b.Agents = append(b.Agents, readAgent(one))
	}
	b.First, b.Next = p.around(l.Next)
	return p.show("agents", "Agents", b)
}

type agentBody struct {
	agentFull
	Path      string
	ETag      string
	Halt      view.Halt
	Sandboxes list[view.Sandbox]
	Sessions  list[view.Session]
	Usage     list[view.Usage]
	Logs      list[view.LogEntry]
	Tokens    chart
}

// Today is what the agent has spent today.
func (b agentBody) Today() *view.Spent {
	if len(b.Usage.Items) == 0 {
		return nil
	}
	return &b.Usage.Items[0].Spent
}

func (p *page) agentBody() (*agentBody, error) {
	name := p.r.PathValue("name")
	b := &agentBody{Path: Prefix + "agents/" + url.PathEscape(name)}
	answer, err := p.fetch(at("agents", name), nil)
	if err != nil {
		return nil, err
	}
	b.agentFull, b.ETag = readAgent(answer.Body), answer.Header.Get("ETag")
	for _, ask := range []struct {
		path  string
		query url.Values
		into  any
	}{
		{at("agents", name, "/halt"), nil, &b.Halt},
		{at("agents", name, "/sandboxes"), url.Values{"limit": {"10"}}, &b.Sandboxes},
		{"/sessions", url.Values{"agent": {name}, "limit": {"10"}}, &b.Sessions},
		{at("agents", name, "/usage"), nil, &b.Usage},
		{at("agents", name, "/logs"), url.Values{"limit": {"10"}}, &b.Logs},
	} {
		if _, err := p.optional(ask.path, ask.query, ask.into); err != nil {
			return nil, err
		}
	}
	var points []point
	for i := len(b.Usage.Items) - 1; i >= 0; i-- {
		u := b.Usage.Items[i]
		points = append(points, point{u.Day, float64(u.Spent.Tokens)})
	}
	b.Tokens = newChart("Tokens by day", points)
	return b, nil
}

func (p *page) agent() error {
	b, err := p.agentBody()
	if err != nil {
		return err
	}
	return p.show("agent", "Agent "+b.Name, b)
}

// agentRefused shows the agent with what was refused of one of its forms.
func (p *page) agentRefused(err error) error {
	b, other := p.agentBody()
	if other != nil {
		return err
	}
	return p.showProblem("agent", "Agent "+b.Name, b, err)
}

// switchFeature switches one block.
func (p *page) switchFeature() error {
	name, form := p.r.PathValue("name"), p.sent()
	on, err := strconv.ParseBool(form.Get("on"))
	if err != nil {
		return p.agentRefused(&refused{Problem: view.Problem{Status: http.StatusUnprocessableEntity, Detail: "say whether it is to be on"}})
	}
	err = p.write(http.MethodPatch, at("agents", name, "/features"), http.Header{"If-Match": {form.Get("etag")}}, map[string]bool{form.Get("feature"): on}, nil)
	if err != nil {
		return p.agentRefused(err)
	}
	return p.to(Prefix+"agents/"+url.PathEscape(name), "switched")
}

// haltAgent halts an agent, or lets it go on.
func (p *page) haltAgent() error {
	name := p.r.PathValue("name")
	did, err := p.halting(at("agents", name, "/halt"))
	if err != nil {
		return p.agentRefused(err)
	}
	return p.to(Prefix+"agents/"+url.PathEscape(name), did)
}

func (p *page) halting(path string) (did string, err error) {
	switch p.sent().Get("halt") {
	case "true":
		return "halted", p.write(http.MethodPut, path, nil, map[string]string{"reason": unixLines(p.sent().Get("reason"))}, nil)
	case "false":
		return "going", p.write(http.MethodDelete, path, nil, nil, nil)
	}
	return "", &refused{Problem: view.Problem{Status: http.StatusUnprocessableEntity, Detail: "say whether it is to be halted"}}
}

func (p *page) halt() error {
	var h view.Halt
	if err := p.get("/halt", nil, &h); err != nil {
		return err
	}
	return p.show("halt", "Halt", h)
}

// haltAll halts the whole install, or lets it go on.
func (p *page) haltAll() error {
	did, err := p.halting("/halt")
	if err == nil {
		return p.to(Prefix+"halt", did)
	}
	var h view.Halt
	if p.get("/halt", nil, &h) != nil {
		return err
	}
	return p.showProblem("halt", "Halt", h, err)
}
