package api

import (
	"cmp"
	"context"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

type letterStore interface {
	ListDeadLetters(ctx context.Context, f postgres.DeadLetterFilter, after view.Place, limit int) ([]view.DeadLetter, error)
	GetDeadLetter(ctx context.Context, id int64) (view.DeadLetter, error)
	ReplayDeadLetter(ctx context.Context, id int64, by string) (view.DeadLetter, event.Event, error)
	DiscardDeadLetter(ctx context.Context, id int64, by string) (view.DeadLetter, error)
}

type recordStore interface {
	ListLogs(ctx context.Context, f postgres.LogFilter, after view.Place, limit int) ([]view.LogEntry, view.Place, error)
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
	whoami       struct {
		Name   string   `json:"name"`
		Groups []string `json:"groups" nullable:"false"`
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
	register(a, "list-logs", a.listLogs)
	register(a, "list-agent-logs", a.listAgentLogs)
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
	before, err := a.Store.GetDeadLetter(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	after, again, err := a.Store.ReplayDeadLetter(ctx, in.ID, callerName(ctx))
	if err != nil {
		return nil, err
	}
	a.Publish(ctx, again)
	id := strconv.FormatInt(in.ID, 10)
	a.audit(ctx, access.Right{Verb: access.Replay, Resource: access.DeadLetters}, id, before, after)
	return &locatedLetter{Location: location("deadletters", id), Body: after}, nil
}

func (a *api) discardLetter(ctx context.Context, in *letterInput) (*letterOutput, error) {
	before, err := a.Store.GetDeadLetter(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	after, err := a.Store.DiscardDeadLetter(ctx, in.ID, callerName(ctx))
	if err != nil {
		return nil, err
	}
	a.audit(ctx, access.Right{Verb: access.Delete, Resource: access.DeadLetters}, strconv.FormatInt(in.ID, 10), before, after)
	return &letterOutput{after}, nil
}

func (a *api) logs(ctx context.Context, in *LogsInput, agent harness.AgentName) (*listOutput[view.LogEntry], error) {
	if err := in.check(a.Now()); err != nil {
		return nil, err
	}
	if _, err := sequence(in.place); err != nil {
		return nil, err
	}
	rows, next, err := a.Store.ListLogs(ctx, postgres.LogFilter{
		Agent: agent, Session: in.Session, Levels: in.Level, Text: in.Text, Since: in.Since, Until: in.Until,
	}, in.place, in.Limit)
	if err != nil {
		return nil, err
	}
	out := &listOutput[view.LogEntry]{Body: list[view.LogEntry]{Items: rows}}
	if rows == nil {
		out.Body.Items = []view.LogEntry{}
	}
	if next.ID != "" {
		out.Body.Next = in.next(next)
	}
	return out, nil
}

func (a *api) listLogs(ctx context.Context, in *listLogsInput) (*listOutput[view.LogEntry], error) {
	return a.logs(ctx, &in.LogsInput, in.Agent)
}

func (a *api) listAgentLogs(ctx context.Context, in *agentLogsInput) (*listOutput[view.LogEntry], error) {
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

func (a *api) whoami(ctx context.Context, _ *noInput) (*whoamiOutput, error) {
	caller, ok := access.From(ctx)
	if !ok {
		return nil, refuse(http.StatusUnauthorized, "nobody is known to be calling")
	}
	groups := caller.Groups
	if groups == nil {
		groups = []string{}
	}
	return &whoamiOutput{whoami{Name: caller.Name, Groups: groups}}, nil
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
