package console

import (
	"net/http"
	"net/url"

	"tuluat.ai/harness/shared/harness/view"
)

type lettersBody struct {
	list[view.DeadLetter]

	Type   string
	States []ticked
	First  string
}

func (p *page) letters() error {
	query := p.r.URL.Query()
	b := lettersBody{Type: query.Get("type"), States: tick(query["status"], "OPEN", "MOOT", "REPLAYED", "DISCARDED")}
	if err := p.get("/deadletters", pick(query, "type", "status", "after", "limit"), &b.list); err != nil {
		return err
	}
	b.First, b.Next = p.around(b.Next)
	return p.show("letters", "Dead letters", b)
}

type letterBody struct {
	view.DeadLetter
	Payload string
	Words   block
	Path    string
}

func (p *page) letterBody() (*letterBody, error) {
	id := p.r.PathValue("id")
	b := &letterBody{Path: Prefix + "deadletters/" + url.PathEscape(id)}
	if err := p.get(at("deadletters", id), nil, &b.DeadLetter); err != nil {
		return nil, err
	}
	b.Payload = indented(b.DeadLetter.Payload)
	b.Words = blockOf(b.Cause, shownOf(p.r.URL.Query().Has("full")), b.Path+"?full=1")
	return b, nil
}

func (p *page) letter() error {
	b, err := p.letterBody()
	if err != nil {
		return err
	}
	return p.show("letter", "Dead letter "+p.r.PathValue("id"), b)
}

func (p *page) replay() error  { return p.settle("/replay", "replayed") }
func (p *page) discard() error { return p.settle("/discard", "discarded") }

func (p *page) settle(action, did string) error {
	id := p.r.PathValue("id")
	err := p.write(http.MethodPost, at("deadletters", id, action), nil, nil, nil)
	if err == nil {
		return p.to(Prefix+"deadletters/"+url.PathEscape(id), did)
	}
	b, other := p.letterBody()
	if other != nil {
		return err
	}
	return p.showProblem("letter", "Dead letter "+id, b, err)
}
