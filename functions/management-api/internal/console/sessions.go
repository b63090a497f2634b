package console

import (
	"net/http"
	"net/url"
	"slices"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

type sessionsBody struct {
	list[view.Session]

	Agent, Channel, Person, Since string
	States                        []ticked
	Status                        []string
	Channels                      []harness.Channel
	Here, First                   string

	Key, NewAgent, NewText string
}

// ticked is a box of a form.
type ticked struct {
	Name string
	On   bool
}

func tick(chosen []string, names ...string) []ticked {
	all := make([]ticked, len(names))
	for i, n := range names {
		all[i] = ticked{n, slices.Contains(chosen, n)}
	}
	return all
}

func (p *page) sessions() error {
	body, err := p.sessionsBody()
	if err != nil {
		return err
	}
	return p.show("sessions", "Sessions", body)
}

// sessionsBody lists the sessions that the address asks for.
func (p *page) sessionsBody() (*sessionsBody, error) {
	query := p.r.URL.Query()
	b := &sessionsBody{
		Agent: query.Get("agent"), Channel: query.Get("channel"), Person: query.Get("channelUserId"), Since: query.Get("since"), Status: query["status"],
		States:   tick(query["status"], "PENDING", "RUNNING", "AWAITING_APPROVAL", "AWAITING_EXECUTION", "IDLE", "COMPLETED", "BLOCKED", "FAILED", "CANCELLED"),
		Channels: []harness.Channel{harness.ChannelWhatsApp, harness.ChannelTelegram, harness.ChannelWebhook, harness.ChannelAPI},
		Key:      random(), Here: p.r.URL.RequestURI(), NewAgent: query.Get("agent"),
	}
	if p.r.Method != http.MethodGet {
		b.Here = Prefix + "sessions"
	}
	asked := pick(query, "agent", "channel", "channelUserId", "status", "after", "limit")
	if since, ok := utc(b.Since); ok {
		asked.Set("since", since)
	}
	if err := p.get("/sessions", asked, &b.list); err != nil {
		return nil, err
	}
	b.First, b.Next = p.around(b.Next)
	return b, nil
}

// pick is what of an address goes on to the API: names that say something.
func pick(query url.Values, names ...string) url.Values {
	picked := url.Values{}
	for _, name := range names {
		for _, v := range query[name] {
			if v != "" {
				picked.Add(name, v)
			}
		}
	}
	return picked
}

// utc reads what a browser sends of a time.
func utc(text string) (string, bool) {
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC().Format(time.RFC3339), true
		}
	}
	return "", false
}

// around are the addresses of the first and the next page of a list.
func (p *page) around(after string) (first, next string) {
	query := p.r.URL.Query()
	query.Del("said")
	here := func() string { return (&url.URL{Path: p.r.URL.Path, RawQuery: query.Encode()}).String() }
	if query.Has("after") {
		query.Del("after")
		first = here()
	}
	if after != "" {
		query.Set("after", after)
		next = here()
	}
	return first, next
}

// startSession sends the first message of a session.
func (p *page) startSession() error {
	var begun struct {
		Session harness.SessionID `json:"session"`
	}
	form := p.sent()
	body := map[string]string{"agent": form.Get("agent"), "text": unixLines(form.Get("text"))}
	err := p.write(http.MethodPost, "/sessions", keyed(form), body, &begun)
	if err == nil {
		return p.to(Prefix+"sessions/"+url.PathEscape(string(begun.Session)), "sent")
	}
	shown, other := p.sessionsBody()
	if other != nil {
		return err
	}
	shown.Key, shown.NewAgent, shown.NewText = form.Get("key"), body["agent"], body["text"]
	return p.showProblem("sessions", "Sessions", shown, err)
}

// keyed gives a form that was sent twice the answer of the first time.
func keyed(form url.Values) http.Header {
	if key := form.Get("key"); key != "" && len(key) <= 64 {
		return http.Header{"Idempotency-Key": {"console-" + key}}
	}
	return http.Header{}
}
