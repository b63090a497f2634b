package api

import (
	"cmp"
	"context"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/functions/management-api/internal/logs"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

type letterStore interface {
	ListDeadLetters(ctx context.Context, f postgres.DeadLetterFilter, after view.Place, limit int) ([]view.DeadLetter, error)
	GetDeadLetter(ctx context.Context, id int64) (view.DeadLetter, error)
	ReplayDeadLetter(ctx context.Context, id int64, by postgres.Audit) (view.DeadLetter, event.Event, error)
	DiscardDeadLetter(ctx context.Context, id int64, by postgres.Audit) (view.DeadLetter, error)
}

type recordStore interface {
	logs.Store
	MarkLogs(ctx context.Context, before postgres.LogMark) (postgres.LogMark, error)
	ListChannels(ctx context.Context, after string, limit int) ([]view.ChannelAccount, error)
	ListAudit(ctx context.Context, f postgres.AuditFilter, after view.Place, limit int) ([]view.AuditEntry, error)
}

type (
	listLettersInput struct {
		Page
		Status []postgres.DeadLetterState `query:"status,explode" nullable:"false" enum:"OPEN,MOOT,REPLAYED,DISCARDED"`
		Type   string                     `query:"type" maxLength:"256" doc:"of the event"`
	}
	letterInput struct {
		ID int64 `path:"id" minimum:"1"`
	}
	letterOutput  struct{ Body view.DeadLetter }
	locatedLetter struct {
		Location string `header:"Location"`
		Body     view.DeadLetter
	}
	// LogsInput says which log entries.
	LogsInput struct {
		Page
		Period
		Session harness.SessionID `query:"session" maxLength:"64"`
		Level   []harness.Level   `query:"level,explode" nullable:"false" enum:"DEBUG,INFO,WARN,ERROR"`
		Text    string            `query:"text" maxLength:"200" doc:"in the message, in any case"`
		Follow  bool              `query:"follow" doc:"answer with a mark, for who goes on with what comes"`
		Mark    string            `query:"mark" maxLength:"64" doc:"of the answer before, instead of a later and later since: the answer has all that may be new, and some that is not, which the ids tell"`
	}
	logsOutput struct{ Body logPage }
	logPage    struct {
		Items []view.LogEntry `json:"items" nullable:"false"`
		Next  string          `json:"next,omitempty" doc:"the after of the next page; without it this is the last"`
		Mark  string          `json:"mark,omitempty" doc:"of a first page with follow or a mark: the mark of who asks the next time. An entry that is committed late, behind newer ones, is in that answer"`
	}
	listLogsInput struct {
		LogsInput
		Agent harness.AgentName `query:"agent" maxLength:"63"`
	}
	agentLogsInput struct {
		NameInput
		LogsInput
	}
	listChannelsInput struct{ Page }
	listAuditInput    struct {
		Page
		Since  time.Time `query:"since" doc:"not before"`
		Actor  string    `query:"actor" maxLength:"256"`
		Object string    `query:"object" maxLength:"256"`
	}
	noInput      struct{}
	whoamiOutput struct{ Body whoami }
	whoamiInput  struct {
		Rights bool `query:"rights" doc:"say also what the caller may do"`
	}
	whoami struct {
		Name   string   `json:"name"`
		Groups []string `json:"groups" nullable:"false"`
		Rights []string `json:"rights,omitempty" doc:"with rights=true: each right of an operation that the caller has on all resources of its kind, as x-tuluat-right spells it. Who has one on a single resource by its name does not see that here"`
	}
	versionOutput struct{ Body versions }
	versions      struct {
		Version string `json:"version" doc:"of what serves"`
		API     string `json:"api" doc:"of the paths"`
		Client  string `json:"client" doc:"the oldest command line that fits"`
	}
)

func (a *api) registerLetters() {
	register(a, "list-dead-letters", a.listLetters)
	register(a, "get-dead-letter", a.getLetter)
	register(a, "replay-dead-letter", a.replayLetter)
	register(a, "discard-dead-letter", a.discardLetter)
}

func (a *api) registerRecords() {
	register(a, "list-channels", a.listChannels)
	register(a, "list-audit", a.listAudit)
	register(a, "whoami", a.whoami)
	register(a, "version", a.version)
}

func (a *api) listLetters(ctx context.Context, in *listLettersInput) (*listOutput[view.DeadLetter], error) {
	if _, err := sequence(in.place); err != nil {
		return nil, err
	}
	rows, err := a.Store.ListDeadLetters(ctx, postgres.DeadLetterFilter{States: in.Status, Type: in.Type}, in.place, in.more())
	if err != nil {
		return nil, err
	}
	return paged(&in.Page, rows, func(d view.DeadLetter) view.Place { return numbered(d.ReceivedAt, d.ID) }), nil
}

func numbered(at time.Time, id int64) view.Place {
	return view.Place{At: at, ID: strconv.FormatInt(id, 10)}
}

func (a *api) getLetter(ctx context.Context, in *letterInput) (*letterOutput, error) {
	d, err := a.Store.GetDeadLetter(ctx, in.ID)
	return &letterOutput{d}, err
}

func (a *api) replayLetter(ctx context.Context, in *letterInput) (*locatedLetter, error) {
	letter, again, err := a.Store.ReplayDeadLetter(ctx, in.ID, by(ctx, access.Replay, access.DeadLetters))
	if err != nil {
		return nil, err
	}
	a.Publish(ctx, again)
	return &locatedLetter{Location: location("deadletters", strconv.FormatInt(in.ID, 10)), Body: letter}, nil
}

func (a *api) discardLetter(ctx context.Context, in *letterInput) (*letterOutput, error) {
	letter, err := a.Store.DiscardDeadLetter(ctx, in.ID, by(ctx, access.Delete, access.DeadLetters))
	return &letterOutput{letter}, err
}

func (a *api) logs(ctx context.Context, in *LogsInput, agent harness.AgentName) (*logsOutput, error) {
	if err := in.check(a.Now()); err != nil {
		return nil, err
	}
	if _, err := sequence(in.place); err != nil {
		return nil, err
	}
	mark, err := postgres.ParseLogMark(in.Mark)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "the request is not valid", view.ProblemField{Pointer: "query/mark", Detail: "is not the mark of an answer"})
	}
	f := postgres.LogFilter{Agent: agent, Session: in.Session, Levels: in.Level, Text: in.Text, Since: in.Since, Until: in.Until}
	if mark.Settled.After(f.Since) {
		f.Since = mark.Settled
	}
	follows := (in.Follow || in.Mark != "") && in.place.ID == ""
	if follows { // before the page, which has what is settled by then
		if mark, err = a.Store.MarkLogs(ctx, mark); err != nil {
			return nil, err
		}
	}
	rows, next, err := a.records.List(ctx, f, in.place, in.Limit)
	if err != nil {
		return nil, err
	}
	page := part(&in.Page, rows, next).Body
	out := &logsOutput{Body: logPage{Items: page.Items, Next: page.Next}}
	if follows {
		out.Body.Mark = mark.String()
	}
	return out, nil
}

func (a *api) listLogs(ctx context.Context, in *listLogsInput) (*logsOutput, error) {
	return a.logs(ctx, &in.LogsInput, in.Agent)
}

func (a *api) listAgentLogs(ctx context.Context, in *agentLogsInput) (*logsOutput, error) {
	return a.logs(ctx, &in.LogsInput, harness.AgentName(in.Name))
}

func (a *api) listChannels(ctx context.Context, in *listChannelsInput) (*listOutput[view.ChannelAccount], error) {
	rows, err := a.Store.ListChannels(ctx, in.place.ID, in.more())
	if err != nil {
		return nil, err
	}
	return paged(&in.Page, rows, func(c view.ChannelAccount) view.Place { return view.Place{ID: string(c.Channel) + "/" + c.Account} }), nil
}

func (a *api) listAudit(ctx context.Context, in *listAuditInput) (*listOutput[view.AuditEntry], error) {
	if err := (Period{Since: in.Since}).check(a.Now()); err != nil {
		return nil, err
	}
	if _, err := sequence(in.place); err != nil {
		return nil, err
	}
	rows, err := a.Store.ListAudit(ctx, postgres.AuditFilter{Actor: in.Actor, Object: in.Object, Since: in.Since}, in.place, in.more())
	if err != nil {
		return nil, err
	}
	return paged(&in.Page, rows, func(e view.AuditEntry) view.Place { return numbered(e.CreatedAt, e.ID) }), nil
}

func (a *api) whoami(ctx context.Context, in *whoamiInput) (*whoamiOutput, error) {
	caller, ok := access.From(ctx)
	if !ok {
		return nil, refuse(http.StatusUnauthorized, "nobody is known to be calling")
	}
	groups := caller.Groups
	if groups == nil {
		groups = []string{}
	}
	out := &whoamiOutput{whoami{Name: caller.Name, Groups: groups}}
	if !in.Rights {
		return out, nil
	}
	for _, r := range allRights() {
		allowed, err := a.Access.Allow(ctx, caller, r)
		if err != nil {
			return nil, err
		}
		if allowed {
			out.Body.Rights = append(out.Body.Rights, r.String())
		}
	}
	return out, nil
}

// oldestClient is the oldest command line whose requests are understood.
const oldestClient = "0.1.0"

func (a *api) version(context.Context, *noInput) (*versionOutput, error) {
	return &versionOutput{versions{Version: cmp.Or(a.Version, builtFrom()), API: "v1", Client: oldestClient}}, nil
}

// builtFrom is the commit that the binary was built from.
func builtFrom() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}
