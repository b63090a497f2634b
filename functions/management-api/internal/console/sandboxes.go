package console

import (
	"net/http"
	"net/url"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

type sandboxesBody struct {
	list[view.Sandbox]

	Agent  string
	States []ticked
	First  string
}

func (p *page) sandboxes() error {
	query := p.r.URL.Query()
	b := sandboxesBody{Agent: query.Get("agent"), States: tick(query["status"], "CREATING", "READY", "TERMINATING", "GONE")}
	if err := p.get("/sandboxes", pick(query, "agent", "session", "status", "after", "limit"), &b.list); err != nil {
		return err
	}
	b.First, b.Next = p.around(b.Next)
	return p.show("sandboxes", "Sandboxes", b)
}

type sandboxBody struct {
	view.Sandbox
	Commands []entry
	More     bool
	Key      string
	Command  string
	Path     string
}

// Lives reports whether it is there.
func (b sandboxBody) Lives() bool {
	return b.State != harness.SandboxGone && b.State != harness.SandboxTerminating
}

func (p *page) sandboxBody() (*sandboxBody, error) {
	id := p.r.PathValue("id")
	b := &sandboxBody{Key: random(), Path: Prefix + "sandboxes/" + url.PathEscape(id)}
	if err := p.get(at("sandboxes", id), nil, &b.Sandbox); err != nil {
		return nil, err
	}
	var l list[view.Execution]
	if _, err := p.optional(at("sandboxes", id, "/executions"), url.Values{"limit": {"20"}}, &l); err != nil {
		return nil, err
	}
	b.More = l.Next != ""
	full := p.r.URL.Query().Get("full")
	for _, e := range l.Items {
		more := b.Path + "?" + url.Values{"full": {string(e.ID)}}.Encode() + "#" + url.PathEscape(string(e.ID))
		shown, err := p.executed(e, string(e.ID) == full, true, more)
		if err != nil {
			return nil, err
		}
		b.Commands = append(b.Commands, shown)
	}
	return b, nil
}

func (p *page) sandbox() error {
	b, err := p.sandboxBody()
	if err != nil {
		return err
	}
	return p.show("sandbox", "Sandbox "+b.Name, b)
}

// sandboxOutput is the part of the page that grows.
func (p *page) sandboxOutput() error {
	b, err := p.sandboxBody()
	if err != nil {
		return err
	}
	return p.part("sandbox", "commands", b)
}

func (p *page) terminate() error {
	id := p.r.PathValue("id")
	if err := p.write(http.MethodDelete, at("sandboxes", id), nil, nil, nil); err != nil {
		return p.sandboxRefused(err, "")
	}
	return p.to(Prefix+"sandboxes/"+url.PathEscape(id), "terminated")
}

// run asks for a command in a sandbox.
func (p *page) run() error {
	id, form := p.r.PathValue("id"), p.sent()
	command := unixLines(form.Get("command"))
	if err := p.write(http.MethodPost, at("sandboxes", id, "/executions"), keyed(form), map[string]string{"command": command}, nil); err != nil {
		return p.sandboxRefused(err, command)
	}
	return p.to(Prefix+"sandboxes/"+url.PathEscape(id), "requested")
}

func (p *page) sandboxRefused(err error, command string) error {
	b, other := p.sandboxBody()
	if other != nil {
		return err
	}
	b.Command = command
	return p.showProblem("sandbox", "Sandbox "+b.Name, b, err)
}
