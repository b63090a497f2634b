package console

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// sessionBody is one session with what happened in it.
type sessionBody struct {
	view.Session
	Entries []entry
	Earlier string // address of what is before that
	Next    string // address of what follows
	Last    bool   // what is shown goes to the end, and grows
	Key     string
	Text    string // of a form that was refused
	Path    string
	Input   string
	Graph   *graph
}

// Live reports whether something may still happen.
func (b sessionBody) Live() bool { return b.Last && !b.State.Ended() }

// Talks reports whether messages may be sent to it here.
func (b sessionBody) Talks() bool {
	return b.Workflow == "" && b.Channel == harness.ChannelAPI && !b.State.Ended()
}

// Ended reports whether it is over.
func (b sessionBody) Ended() bool { return b.State.Ended() }

// entry is one thing that happened, ready to be shown.
type entry struct {
	view.Entry
	Text     block
	Result   block
	Stdout   block
	Stderr   block
	Models   []view.ModelAttempt
	Tokens   int64
	Approval *approvalBody // shadows that of Entry
}

// Mine reports whether it is of the agent's side.
func (e entry) Mine() bool {
	return e.Message != nil && e.Message.Direction == harness.Outbound
}

const (
	entriesPage = 200
	outputTail  = 4000

	// mostPrinted is of how many commands, the newest, a page shows what they have
	// printed: each is one or two questions to the API, which counts them.
	mostPrinted = 12
)

func (p *page) session() error {
	b, err := p.sessionBody()
	if err != nil {
		return err
	}
	return p.show("session", "Session "+string(b.ID), b)
}

// sessionTimeline is the part of the page that grows.
func (p *page) sessionTimeline() error {
	b, err := p.sessionBody()
	if err != nil {
		return err
	}
	return p.part("session", "growing", b)
}

func (p *page) liveSession() error {
	return p.follow(at("sessions", p.r.PathValue("id"), "/events"), nil)
}

func (p *page) sessionBody() (*sessionBody, error) {
	id := p.r.PathValue("id")
	b := &sessionBody{Key: random(), Path: Prefix + "sessions/" + url.PathEscape(id)}
	if err := p.get(at("sessions", id), nil, &b.Session); err != nil {
		return nil, err
	}
	found, err := p.timeline(id, b)
	if err != nil {
		return nil, err
	}
	if len(b.Session.Input) > 0 {
		b.Input = indented(b.Session.Input)
	}
	full, commands := p.r.URL.Query().Get("full"), 0
	for _, e := range found {
		if e.Execution != nil {
			commands++
		}
	}
	for _, e := range found {
		if e.Execution != nil {
			commands--
		}
		shown, err := p.entryOf(b, e, e.ID == full, commands < mostPrinted)
		if err != nil {
			return nil, err
		}
		b.Entries = append(b.Entries, shown)
	}
	if b.Workflow != "" {
		if b.Graph, err = p.runGraph(b.Session, found); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// timeline reads the entries that the address asks for, in the order in which they
// happened: the last ones or those before a place, or else from the begin or a place on.
func (p *page) timeline(id string, b *sessionBody) ([]view.Entry, error) {
	asked := p.r.URL.Query()
	query := url.Values{"limit": {strconv.Itoa(entriesPage)}}
	newest, before, after := !asked.Has("begin") && !asked.Has("after"), asked.Get("before"), asked.Get("after")
	if newest {
		query.Set("newest", "true")
		after = before
	}
	if after != "" {
		query.Set("after", after)
	}
	var l list[view.Entry]
	if err := p.get(at("sessions", id, "/timeline"), query, &l); err != nil {
		return nil, err
	}
	there := func(name string) string { return b.Path + "?" + url.Values{name: {l.Next}}.Encode() }
	switch {
	case newest:
		slices.Reverse(l.Items)
		if b.Last = before == ""; !b.Last {
			b.Next = b.Path
		}
		if l.Next != "" {
			b.Earlier = there("before")
		}
	case l.Next == "":
		b.Last = true
	default:
		b.Next = there("after")
	}
	return l.Items, nil
}

// entryOf reads what an entry needs to be shown. What a command has printed is
// behind a link unless printed.
func (p *page) entryOf(b *sessionBody, e view.Entry, full, printed bool) (entry, error) {
	query := pick(p.r.URL.Query(), "after", "before", "begin") // where the entry is among those shown
	query.Set("full", e.ID)
	more := fmt.Sprintf("%s?%s#%s", b.Path, query.Encode(), url.PathEscape(e.ID))
	shown := entry{Entry: e}
	switch {
	case e.Message != nil:
		shown.Text = blockOf(e.Message.Text, shownOf(full), more)
	case e.Step != nil:
		shown.Text, shown.Models, shown.Tokens = blockOf(e.Step.Text, shownOf(full), more), e.Step.ModelAttempts, e.Step.InputTokens+e.Step.OutputTokens
	case e.ToolCall != nil:
		shown.Text, shown.Result = blockOf(callText(*e.ToolCall), shownOf(full), more), blockOf(e.ToolCall.Result, shownOf(full), more)
	case e.Execution != nil:
		executed, err := p.executed(*e.Execution, full, printed, more)
		executed.Entry = e
		return executed, err
	case e.Approval != nil:
		a := p.approvalOf(*e.Approval, longText)
		a.Next = b.Path
		shown.Approval = &a
	case e.Visit != nil:
		shown.Text = blockOf(e.Visit.Input, shownOf(full), more)
		if len(e.Visit.Output) > 0 {
			shown.Result = blockOf(indented(e.Visit.Output), shownOf(full), more)
		}
	}
	return shown, nil
}

// executed is a command with what it has printed, or where that is.
func (p *page) executed(e view.Execution, full, printed bool, more string) (shown entry, err error) {
	shown.Execution, shown.Text = &e, blockOf(harness.Visible(e.Command), shownOf(full), more)
	if !full && !printed {
		shown.Stdout, shown.Stderr = elsewhere(e.StdoutBytes, more), elsewhere(e.StderrBytes, more)
		return shown, nil
	}
	if shown.Stdout, err = p.printed(e, "stdout", e.StdoutBytes, full, more); err == nil {
		shown.Stderr, err = p.printed(e, "stderr", e.StderrBytes, full, more)
	}
	return shown, err
}

// elsewhere is what is shown on a page of its own.
func elsewhere(size int64, more string) block {
	if size == 0 {
		return block{}
	}
	return block{Size: int(size), More: more}
}

// callText is what the model asked for.
func callText(c view.ToolCall) string {
	if c.Name == harness.ToolExecuteShell {
		if command, err := harness.ShellCommand([]byte(c.Arguments)); err == nil {
			return harness.Visible(command)
		}
	}
	return c.Arguments
}

// printed is what a command has printed: the end of it while it runs or of a long
// one, all of it where that is asked for.
func (p *page) printed(e view.Execution, stream string, size int64, full bool, more string) (block, error) {
	from, most := max(0, size-outputTail), outputTail
	if full {
		from, most = 0, fullText
	}
	b := block{Size: int(size)}
	if e.StartedAt == nil || size == 0 && e.EndedAt != nil || !p.who.may("get executions") {
		return b, nil
	}
	var out view.Output
	if err := p.get(at("executions", string(e.ID), "/output"), url.Values{
		"stream": {stream}, "offset": {strconv.FormatInt(from, 10)}, "max": {strconv.Itoa(most)},
	}, &out); err != nil {
		switch statusOf(err) {
		case http.StatusForbidden, http.StatusNotFound, http.StatusServiceUnavailable: // what is archived, and no archive
			return b, nil
		case http.StatusTooManyRequests: // the rest of the page is worth something
			return elsewhere(size, more), nil
		}
		return b, err
	}
	if b.Size = int(out.Total); from > 0 && !full {
		b.More = more
	}
	b.Cut = full && out.Total > fullText
	b.Text = output(string(out.Data))
	return b, nil
}

// sendMessage sends a message to a session of channel API.
func (p *page) sendMessage() error { return p.say("/messages", "sent") }

// reply answers in the agent's place.
func (p *page) reply() error { return p.say("/reply", "replied") }

func (p *page) say(action, did string) error {
	id, form := p.r.PathValue("id"), p.sent()
	text := unixLines(form.Get("text"))
	err := p.write(http.MethodPost, at("sessions", id, action), keyed(form), map[string]string{"text": text}, nil)
	if err == nil {
		return p.to(Prefix+"sessions/"+url.PathEscape(id), did)
	}
	return p.sessionRefused(err, text)
}

// sessionRefused shows the session with what was refused of its form.
func (p *page) sessionRefused(err error, text string) error {
	b, other := p.sessionBody()
	if other != nil {
		return err
	}
	b.Text = text
	return p.showProblem("session", "Session "+string(b.ID), b, err)
}

func (p *page) cancelSession() error { return p.actOn("/cancel", "cancelled") }
func (p *page) pauseSession() error  { return p.actOn("/pause", "paused") }
func (p *page) resumeSession() error { return p.actOn("/resume", "resumed") }

func (p *page) actOn(action, did string) error {
	id := p.r.PathValue("id")
	if err := p.write(http.MethodPost, at("sessions", id, action), nil, nil, nil); err != nil {
		return p.sessionRefused(err, "")
	}
	return p.to(Prefix+"sessions/"+url.PathEscape(id), did)
}
