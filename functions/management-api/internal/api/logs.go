package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/functions/management-api/internal/logs"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/stream"
)

type (
	// LogQuery says which entries, where they are not asked for by pages.
	LogQuery struct {
		Agent   harness.AgentName `query:"agent" maxLength:"63"`
		Session harness.SessionID `query:"session" maxLength:"64"`
		Level   []harness.Level   `query:"level,explode" nullable:"false" enum:"DEBUG,INFO,WARN,ERROR"`
		Text    string            `query:"text" maxLength:"200" doc:"in the message, in any case"`
	}
	watchLogsInput struct {
		LogQuery
		Since  time.Time `query:"since" doc:"first what has been since then; nothing: what comes"`
		Mark   string    `query:"mark" maxLength:"64" doc:"the id of an event, or the mark of a list: what may be new since then is sent, and some that is not, which the ids of entries tell"`
		Last   string    `header:"Last-Event-ID" maxLength:"64" doc:"the same, and wins"`
		Follow bool      `query:"follow" default:"true" doc:"go on with what comes; else end with what there is"`
	}
	exportLogsInput struct {
		LogQuery
		Period
	}
	checkArchiveInput struct{ Page }
	checkArchive      struct{ Body view.ArchiveCheck }
)

const typeLines = "application/x-ndjson"

func (q LogQuery) filter() postgres.LogFilter {
	return postgres.LogFilter{Agent: q.Agent, Session: q.Session, Levels: q.Level, Text: q.Text}
}

func (a *api) registerLogs() {
	register(a, "list-logs", a.listLogs)
	register(a, "list-agent-logs", a.listAgentLogs)
	register(a, "watch-logs", a.watchLogs, func(op *huma.Operation) {
		op.Responses["200"] = &huma.Response{
			Description: "Events: log with LogEntry",
			Content:     map[string]*huma.MediaType{typeEvents: {Schema: &huma.Schema{Type: huma.TypeString}}},
		}
	})
	register(a, "export-logs", a.exportLogs, func(op *huma.Operation) {
		op.Responses["200"] = &huma.Response{
			Description: "A LogEntry in JSON on each line",
			Content:     map[string]*huma.MediaType{typeLines: {Schema: &huma.Schema{Type: huma.TypeString}}},
		}
	})
	register(a, "check-archive", a.checkArchive)
}

func (a *api) watchLogs(_ context.Context, in *watchLogsInput) (*watchOutput, error) {
	if err := (Period{Since: in.Since}).check(a.Now()); err != nil {
		return nil, err
	}
	text, pointer := in.Mark, "query/mark"
	if in.Last != "" {
		text, pointer = in.Last, "header/Last-Event-ID"
	}
	mark, err := postgres.ParseLogMark(text)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "the request is not valid", view.ProblemField{Pointer: pointer, Detail: "is no mark of the log"})
	}
	feed := &logFeed{api: a, filter: in.filter(), from: in.Since, mark: mark}
	options := stream.Options{Follow: in.Follow, Drain: a.Drain, Life: a.StreamTime, Now: a.Now}
	return &watchOutput{Body: func(hc huma.Context) {
		a.serveEvents(hc, "watch-logs", func(ctx context.Context, w http.ResponseWriter) error { return stream.Feed(ctx, w, feed, options) })
	}}, nil
}

// logFeed is the log as it grows. A look reaches as far back as the mark of the one
// before says: an entry may become visible behind newer ones.
type logFeed struct {
	*api
	filter postgres.LogFilter
	from   time.Time // nothing older
	mark   postgres.LogMark
	seen   map[int64]bool // entries of the last look
}

// maxLook is how many entries one look of a feed holds.
const maxLook = 20_000

// Next implements stream.FeedSource.
func (f *logFeed) Next(ctx context.Context) ([]stream.FeedEvent, bool, error) {
	mark, err := f.Store.MarkLogs(ctx, f.mark)
	if err != nil {
		return nil, false, err
	}
	if f.from.IsZero() && f.mark.Number == 0 {
		f.from = mark.At
	}
	f.filter.Since = f.from
	if f.mark.Settled.After(f.from) {
		f.filter.Since = f.mark.Settled
	}
	var found []view.LogEntry
	for after, more := (view.Place{}), true; more; more = after.ID != "" {
		var page []view.LogEntry
		if page, after, err = f.records.List(ctx, f.filter, after, 1000); err != nil {
			return nil, false, err
		}
		if found = append(found, page...); len(found) > maxLook {
			return nil, false, harness.Errorf(harness.Exhausted, "more than %d log entries at once: ask for fewer, or export them", maxLook)
		}
	}
	before := f.seen
	f.seen, f.mark = make(map[int64]bool, len(found)), mark
	var events []stream.FeedEvent
	for _, v := range slices.Backward(found) {
		if f.seen[v.ID] = true; !before[v.ID] {
			events = append(events, stream.FeedEvent{Name: "log", Data: v})
		}
	}
	if len(events) > 0 { // who leaves before the last one gets them all again
		events[len(events)-1].ID = mark.String()
	}
	return events, false, nil
}

// exportPage is how many entries of an export are in memory.
const exportPage = 5000

func (a *api) exportLogs(ctx context.Context, in *exportLogsInput) (*watchOutput, error) {
	if err := in.check(a.Now()); err != nil {
		return nil, err
	}
	f := in.filter()
	f.Since, f.Until = in.Since, in.Until
	first, next, err := a.records.List(ctx, f, view.Place{}, exportPage) // while a problem can still be answered
	if err != nil {
		return nil, err
	}
	return &watchOutput{Body: func(hc huma.Context) {
		r, w := humago.Unwrap(hc)
		release, err := a.streams.take(callerName(r.Context()))
		if err != nil {
			a.answer(hc, "export-logs", err)
			return
		}
		defer release()
		w.Header().Set("Content-Type", typeLines)
		w.WriteHeader(http.StatusOK)
		ctx, cancel := context.WithTimeout(r.Context(), a.StreamTime)
		defer cancel()
		if err := a.export(ctx, w, f, first, next); err != nil {
			if r.Context().Err() == nil {
				a.Log.Error("export cut off", "request", access.RequestID(ctx), "kind", string(harness.KindOf(err)), "err", err)
			}
			panic(http.ErrAbortHandler) // so that nobody takes it for whole
		}
	}}, nil
}

func (a *api) export(ctx context.Context, w http.ResponseWriter, f postgres.LogFilter, page []view.LogEntry, next view.Place) error {
	controller := http.NewResponseController(w)
	for {
		var text bytes.Buffer
		lines := json.NewEncoder(&text)
		for _, v := range page {
			if err := lines.Encode(v); err != nil {
				return err
			}
		}
		if err := controller.SetWriteDeadline(a.Now().Add(writeTime)); err != nil {
			return err
		}
		if _, err := w.Write(text.Bytes()); err != nil {
			return err
		}
		if err := controller.Flush(); err != nil {
			return err
		}
		if next.ID == "" {
			return controller.SetWriteDeadline(time.Time{})
		}
		var err error
		if page, next, err = a.records.List(ctx, f, next, exportPage); err != nil {
			return err
		}
	}
}

func (a *api) checkArchive(ctx context.Context, in *checkArchiveInput) (*checkArchive, error) {
	out, err := a.records.Check(ctx, in.place.ID, in.Limit)
	if err != nil {
		return nil, err
	}
	if out.Next != "" {
		out.Next = in.next(view.Place{ID: out.Next})
	}
	return &checkArchive{out}, nil
}

// newRecords is where the API reads logs and output from.
func newRecords(o Options) *logs.Reader { return logs.NewReader(o.Store, o.Objects) }
