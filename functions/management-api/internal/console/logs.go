package console

import (
	"net/http"
	"net/url"
	"time"

	"tuluat.ai/harness/functions/management-api/internal/loopback"
	"tuluat.ai/harness/shared/harness/view"
)

type logsBody struct {
	list[view.LogEntry]

	Agent, Session, Text, Since, Until string
	Levels                             []ticked
	Here, First, Live, Download        string
}

// logs shows log entries: those of Postgres and those of the archive are one list.
func (p *page) logs() error {
	query := p.r.URL.Query()
	b := logsBody{
		Agent: query.Get("agent"), Session: query.Get("session"), Text: query.Get("text"), Since: query.Get("since"), Until: query.Get("until"),
		Levels: tick(query["level"], "DEBUG", "INFO", "WARN", "ERROR"), Here: p.r.URL.RequestURI(),
	}
	asked := logQuery(query)
	for _, name := range []string{"after", "limit"} {
		if v := query.Get(name); v != "" {
			asked.Set(name, v)
		}
	}
	if err := p.get("/logs", asked, &b.list); err != nil {
		return err
	}
	b.First, b.Next = p.around(b.Next)
	if b.First == "" && b.Until == "" {
		live := pick(query, "agent", "session", "level", "text")
		b.Live = (&url.URL{Path: Prefix + "live/logs", RawQuery: live.Encode()}).String()
	}
	b.Download = (&url.URL{Path: Prefix + "logs/download", RawQuery: logQuery(query).Encode()}).String()
	return p.show("logs", "Logs", b)
}

// logQuery is what of an address says which entries are meant.
func logQuery(query url.Values) url.Values {
	asked := pick(query, "agent", "session", "level", "text")
	for _, name := range []string{"since", "until"} {
		if at, ok := utc(query.Get(name)); ok {
			asked.Set(name, at)
		}
	}
	return asked
}

func (p *page) liveLogs() error {
	return p.follow("/logs/events", pick(p.r.URL.Query(), "agent", "session", "level", "text"))
}

// downloadLogs hands on the API's export as a file.
func (p *page) downloadLogs() error {
	h := p.w.Header()
	answer, err := loopback.Copy(p.r.Context(), p.API, loopback.Request{
		Method: http.MethodGet, Path: "/api/v1/logs/export", Query: logQuery(p.r.URL.Query()), Token: "Bearer " + p.token,
	}, p.w, func() {
		h.Set("Content-Type", "application/x-ndjson")
		h.Set("Content-Disposition", `attachment; filename="logs-`+p.Now().UTC().Format(time.DateOnly)+`.ndjson"`)
	})
	if err == nil && !answer.OK() {
		return refusedBy(answer)
	}
	return err
}
