// Package tour leads a newcomer through the system that `make dev` runs: a page
// of five steps, each of which turns itself done when what it asks for has
// happened. What has happened is looked up where it leaves a trace: in the chats
// of the played messengers, in the management API, and among the requests that
// came through the public entry. Nobody is believed.
package tour

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// Options says what the tour looks at. All but Console are needed.
type Options struct {
	URL       string // of the public entry
	TokenFile string // of the management API
	Console   bool   // there is a web console
	WhatsApp  Messenger
	Telegram  Messenger
	Log       *slog.Logger
}

// Messenger is a played one.
type Messenger struct {
	URL     string                    // of the fake
	Agent   string                    // who answers there
	Account string                    // the agent's, as the fake calls it
	Lines   func() *person.Transcript // of the fake as it is now; nil: there is none
}

// People who are there from the start.
const (
	OnWhatsApp = "15550001111" // a phone number
	OnTelegram = 5_000_000_001 // a user id
)

// The steps, in their order.
const (
	stepWrite  = "write"
	stepRun    = "run"
	stepAsk    = "ask"
	stepDecide = "decide"
	stepLog    = "log"
)

// Step is one of them as a page shows it.
type Step struct {
	ID      string   `json:"id"`
	Title   string   `json:"-"`
	Do      string   `json:"-"`
	Write   string   `json:"-"`     // what to send; empty: nothing
	Links   []Link   `json:"links"` // where to do it, and where to look
	Command string   `json:"command"`
	Done    bool     `json:"done"`
	Proof   []string `json:"proof"` // what was found
}

// Link is one to another page.
type Link struct {
	Title string `json:"title"`
	URL   string `json:"url"`
}

// Tour is an http.Handler: the page.
type Tour struct {
	options Options
	client  *http.Client
	mux     *http.ServeMux

	mu    sync.Mutex
	found facts
	looks []look // at logs, the newest last
}

// look is somebody's at a page or a list.
type look struct {
	url *url.URL
	at  time.Time
}

// keepLooks is how many are remembered: whoever looks on is seen.
const keepLooks = 200

// facts are what was found since the tour began.
type facts struct {
	begun     time.Time
	whatsapp  int64 // the place in the transcript where it began
	placed    bool  // that is known
	message   *person.Line
	reply     *person.Line
	execution *execution
	approval  *approval // the newest
	entry     string    // of the log
	looked    string    // where somebody looked for it
}

// New returns a tour that begins now.
func New(o Options) *Tour {
	t := &Tour{options: o, client: &http.Client{Timeout: 10 * time.Second}, mux: http.NewServeMux()}
	t.again()
	t.routes()
	return t
}

// again forgets what was found.
func (t *Tour) again() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.found = facts{begun: time.Now()}
	t.place()
}

// place notes where the chats stood. A fake that is not there yet begins with
// nothing that is the tour's. t.mu is held.
func (t *Tour) place() {
	if lines := t.options.WhatsApp.Lines(); lines != nil && !t.found.placed {
		t.found.whatsapp, t.found.placed = lines.Version(), true
	}
}

// Saw notes a request of the public entry and the status of its answer. It may
// be called by several goroutines.
func (t *Tour) Saw(r *http.Request, status int) {
	if r.Method != http.MethodGet || status != http.StatusOK || r.Header.Get("User-Agent") == agent ||
		!strings.HasPrefix(r.URL.Path, "/api/v1/") && !strings.HasPrefix(r.URL.Path, "/console/") {
		return
	}
	seen := *r.URL
	t.mu.Lock()
	defer t.mu.Unlock()
	t.looks = append(t.looks, look{&seen, time.Now()})
	if len(t.looks) > 2*keepLooks {
		t.looks = append(t.looks[:0:0], t.looks[keepLooks:]...)
	}
}

// looked returns where somebody has looked at what was logged since a is decided;
// empty: nowhere yet. t.mu is held.
func (t *Tour) looked(a *approval) string {
	for _, l := range t.looks {
		if l.at.After(a.DecidedAt) && shows(l.url.Path, l.url.Query(), t.options.Telegram.Agent, a.Session) {
			return l.url.Path
		}
	}
	return ""
}

// shows reports whether a path shows what an agent or a session has logged.
func shows(path string, query url.Values, agent, session string) bool {
	switch path {
	case "/api/v1/agents/" + agent + "/logs", "/api/v1/sessions/" + session + "/timeline",
		"/console/sessions/" + session, "/console/agents/" + agent, "/console/agents/" + agent + "/logs":
		return true
	case "/api/v1/logs", "/api/v1/logs/events", "/api/v1/logs/export", "/console/logs":
		asked := query.Get("agent")
		return asked == "" || asked == agent
	}
	return false
}

// steps is how far the tour is.
func (t *Tour) steps() []Step {
	t.mu.Lock()
	f := t.found
	t.mu.Unlock()
	o := t.options
	all := []Step{
		{
			ID: stepWrite, Title: "Write to an agent on WhatsApp", Write: "run: uname -a",
			Do:      "Open the phone. You are Ada there, and you write to " + o.WhatsApp.Agent + ", an agent that writes Python and runs commands. Send it this:",
			Links:   []Link{{"Ada's phone on WhatsApp", phone(o.WhatsApp, OnWhatsApp, "run: uname -a")}},
			Command: "echo 'run: uname -a' | go run ./scripts/tuluat chat " + o.WhatsApp.Agent + " --via whatsapp",
		},
		{
			ID: stepRun, Title: "See what it ran",
			Do:      "The phone signed your message as the provider would, a function woke up, the model asked for a command, and the command ran in a sandbox without a network. The answer is on the phone. What ran is kept:",
			Command: "go run ./scripts/tuluat session list --agent " + o.WhatsApp.Agent,
		},
		{
			ID: stepAsk, Title: "Write to an agent that asks first", Write: "run: date",
			Do:      "Now Telegram. " + o.Telegram.Agent + " runs nothing that a human has not approved. Send it this, and a question with buttons comes back:",
			Links:   []Link{{"Ada's phone on Telegram", phone(o.Telegram, fmt.Sprint(OnTelegram), "run: date")}},
			Command: "echo 'run: date' | go run ./scripts/tuluat chat " + o.Telegram.Agent + " --via telegram",
		},
		{
			ID: stepDecide, Title: "Decide",
			Do:      "Approve it or reject it, with the buttons on the phone. This agent asks whoever wrote to it; others name their approvers, who decide in the console, by the CLI or in a chat. It is one record, and nothing waits in memory meanwhile.",
			Links:   []Link{{"Ada's phone on Telegram", phone(o.Telegram, fmt.Sprint(OnTelegram), "")}},
			Command: "go run ./scripts/tuluat approval list",
		},
		{
			ID: stepLog, Title: "Find it in the log",
			Do:      "Who asked for what, who agreed, what it printed: each agent has a log, live and archived. Look this one up.",
			Command: "go run ./scripts/tuluat logs " + o.Telegram.Agent,
		},
	}
	if o.Console {
		console := func(title, path string) Link { return Link{title, o.URL + "/console" + path} }
		if f.execution != nil {
			all[1].Links = append(all[1].Links, console("The conversation in the console", "/sessions/"+url.PathEscape(f.execution.Session)))
		}
		all[3].Links = append(all[3].Links, console("It waits in the console too", "/approvals"))
		if f.approval != nil {
			all[4].Links = append(all[4].Links, console("The conversation in the console", "/sessions/"+url.PathEscape(f.approval.Session)))
		}
	}
	all[1].Links = append(all[1].Links, Link{"The management API", o.URL + "/docs"})
	f.prove(all)
	return all
}

// prove marks the steps that are done.
func (f facts) prove(all []Step) {
	done := func(i int, proof ...string) { all[i].Done, all[i].Proof = true, proof }
	if f.message != nil {
		done(0, fmt.Sprintf("%s wrote %q; the webhook's signature was verified and the message is committed (%s).", f.message.Name, cut(f.message.Text), f.message.Ticks))
	}
	if f.message != nil && f.reply != nil && f.execution != nil {
		done(1, fmt.Sprintf("%q ended with %s after %s in sandbox %s.", cut(f.execution.Command), strings.ToLower(f.execution.State), f.execution.took(), f.execution.Sandbox),
			fmt.Sprintf("The answer on the phone: %q (%s).", cut(f.reply.Text), f.reply.Ticks))
	}
	if f.approval != nil {
		done(2, fmt.Sprintf("Approval %s is the question: %s %s", f.approval.ID, cut(f.approval.Title), cut(string(f.approval.Input.Arguments))))
	}
	if f.approval.decided() {
		done(3, fmt.Sprintf("%s by %s, via %s.", f.approval.State, f.approval.DecidedBy, f.approval.DecidedVia))
	}
	if f.looked != "" && f.entry != "" {
		done(4, "Somebody looked at "+f.looked+".", "In it: "+cut(f.entry))
	}
}

func (f facts) over() bool {
	return f.looked != "" && f.entry != "" && f.reply != nil && f.execution != nil
}

// phone is a link to a phone on which somebody writes to m's agent.
func phone(m Messenger, chat, text string) string {
	query := url.Values{"account": {m.Account}}
	if text != "" {
		query.Set("text", text)
	}
	return m.URL + "/phone/?" + query.Encode() + "#" + url.PathEscape(chat)
}

// cut is the first words of a text, in one line.
func cut(text string) string {
	const most = 160
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}

// look finds out what has happened since the last look. What cannot be asked now
// is asked again.
func (t *Tour) look(ctx context.Context) {
	t.mu.Lock()
	t.place()
	f := t.found
	t.mu.Unlock()
	f.chats(t.options.WhatsApp)
	if err := t.records(ctx, &f); err != nil && ctx.Err() == nil {
		t.options.Log.Debug("the tour could not ask the management API", "err", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.found.begun.Equal(f.begun) {
		return // it began again meanwhile
	}
	if f.approval.decided() && f.looked == "" {
		f.looked = t.looked(f.approval)
	}
	t.found = f
}
