package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

type approvalsBody struct {
	list[view.Approval]

	Agent       string
	States      []ticked
	Here, First string
}

func (p *page) approvals() error {
	query := p.r.URL.Query()
	b := approvalsBody{Agent: query.Get("agent"), Here: p.r.URL.RequestURI()}
	asked := pick(query, "agent", "session", "status", "after", "limit")
	if !query.Has("status") && !query.Has("all") {
		asked.Set("status", string(harness.ApprovalPending))
	}
	b.States = tick(asked["status"], "PENDING", "APPROVED", "REJECTED", "EXPIRED", "CANCELLED")
	if err := p.get("/approvals", asked, &b.list); err != nil {
		return err
	}
	b.First, b.Next = p.around(b.Next)
	return p.show("approvals", "Approvals", b)
}

// approvalBody is one approval and what a decider needs to see of it.
type approvalBody struct {
	view.Approval
	Command  block  // exactly, with what hides made visible; nothing of what is no command
	Input    block  // the whole of what will run, as JSON
	Asked    string // what was asked, where a decider changed it
	Image    string
	Question string
	Remote   *harness.RemoteTool
	Spec     *harness.SandboxSpec
	Tool     string
	Facts    []fact

	May      bool // decide: nobody decides what is not shown to its end
	Editable bool // what is approved may be changed
	Repeats  bool // a decision may hold for longer
	Edit     string
	Reason   string // of a form that was refused
	Next     string
}

// Waits reports whether it can be decided still.
func (b approvalBody) Waits() bool { return b.State == harness.ApprovalPending }

// wholeText is how much of a command is shown to who decides, without being asked
// for all of it.
const wholeText = 32 << 10

// approvalOf shows an approval, and at most so many bytes of what it is about.
func (p *page) approvalOf(a view.Approval, most int) approvalBody {
	path := Prefix + "approvals/" + url.PathEscape(string(a.ID))
	b := approvalBody{Approval: a, Next: path}
	b.Input = blockOf(indented(a.Input), most, path+"?full=1")
	b.May = p.who.may("decide approvals") && !b.Input.Cut
	if len(a.AskedInput) > 0 {
		b.Asked, _ = cut(indented(a.AskedInput), most)
	}
	var subject harness.ApprovalSubject
	if json.Unmarshal(a.Input, &subject) != nil {
		return b
	}
	b.Tool, b.Question, b.Remote, b.Spec, b.Repeats = subject.Tool, subject.Question, subject.Remote, subject.Sandbox, subject.Repeats()
	command, err := harness.ShellCommand(subject.Arguments)
	switch {
	case subject.Tool == harness.ToolExecuteShell && err == nil:
		b.Command = blockOf(harness.Visible(command), most, path+"?full=1")
		// An editor shows no character that hides, so nobody edits beside one.
		b.Edit, b.Editable = command, b.Waits() && a.Quorum <= 1 && !b.Input.Cut && !strings.ContainsFunc(command, func(r rune) bool { return hides(r) || joins(r) })
	case len(subject.Arguments) > 0:
		b.Command = blockOf(harness.Visible(subject.Tool+" "+string(subject.Arguments)), most, path+"?full=1")
	}
	b.May = b.May && !b.Command.Cut
	if s := subject.Sandbox; s != nil {
		b.Image = s.Image
		if b.Image == "" && s.ImageRef != "" {
			b.Image = "image " + s.ImageRef
		}
	}
	for name, value := range a.Context {
		text, err := json.Marshal(value)
		if s, ok := value.(string); ok {
			text, err = []byte(s), nil
		}
		if err == nil {
			b.Facts = append(b.Facts, fact{name, string(text)})
		}
	}
	sortFacts(b.Facts)
	return b
}

// indented is JSON for people, with what hides made visible.
func indented(text json.RawMessage) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if len(text) == 0 || encoder.Encode(text) != nil {
		return plain(string(text))
	}
	return plain(strings.TrimSuffix(b.String(), "\n"))
}

func (p *page) approval() error {
	var a view.Approval
	if err := p.get(at("approvals", p.r.PathValue("id")), nil, &a); err != nil {
		return err
	}
	most := wholeText
	if p.r.URL.Query().Has("full") {
		most = fullText * 8
	}
	return p.show("approval", "Approval", p.approvalOf(a, most))
}

// decide approves or rejects what its form shows: the digest says what that was.
func (p *page) decide() error {
	id, form := p.r.PathValue("id"), p.sent()
	body := map[string]any{"decision": form.Get("decision"), "digest": form.Get("digest")}
	if reason := strings.TrimSpace(form.Get("reason")); reason != "" {
		body["reason"] = unixLines(reason)
	}
	did := "rejected"
	if form.Get("decision") == "APPROVE" {
		did = "approved"
		if scope := form.Get("scope"); scope != "" && scope != string(harness.GrantOnce) {
			body["scope"] = scope
		}
		// Only who opened the editor and changed what is in it changes what runs.
		if edit := unixLines(form.Get("command")); form.Has("command") && edit != unixLines(form.Get("was")) {
			body["arguments"] = map[string]string{"command": edit}
		}
	}
	err := p.write(http.MethodPost, at("approvals", id, "/decision"), nil, body, nil)
	if err == nil {
		return p.to(p.back(Prefix+"approvals/"+url.PathEscape(id)), did)
	}
	var a view.Approval
	if p.get(at("approvals", id), nil, &a) != nil {
		return err
	}
	b := p.approvalOf(a, wholeText)
	b.Reason = form.Get("reason")
	return p.showProblem("approval", "Approval", b, err)
}

// unixLines is what a form sent, with line ends as they were before: browsers send
// CR LF.
func unixLines(text string) string { return strings.ReplaceAll(text, "\r\n", "\n") }
