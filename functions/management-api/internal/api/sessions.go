package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"unicode"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

type sessionStore interface {
	ListSessions(ctx context.Context, f postgres.SessionFilter, after view.Place, limit int) ([]view.Session, error)
	GetSession(ctx context.Context, id harness.SessionID) (view.Session, error)
	GetMessage(ctx context.Context, id harness.MessageID) (view.Message, error)
	ListMessages(ctx context.Context, session harness.SessionID, afterSeq int64, limit int) ([]view.Message, error)
	Timeline(ctx context.Context, session harness.SessionID, after view.Place, limit int) ([]view.Entry, view.Place, error)
	NewestTimeline(ctx context.Context, session harness.SessionID, before view.Place, limit int) ([]view.Entry, view.Place, error)
	CancelSession(ctx context.Context, id harness.SessionID, by postgres.Audit) (view.Session, []event.Event, error)
	GetWorkflow(ctx context.Context, name harness.WorkflowName) (postgres.WorkflowInUse, error)
	StartRun(ctx context.Context, r postgres.NewRun) (id harness.SessionID, started bool, events []event.Event, err error)
	Accept(ctx context.Context, channel harness.Channel, in postgres.Inbound, traceparent string) ([]postgres.Accepted, []event.Event, error)
}

type (
	// IDInput names a record.
	IDInput struct {
		ID string `path:"id" pattern:"^[0-9A-Za-z_-]{1,64}$" patternDescription:"an id"`
	}
	// KeyInput lets a request be repeated.
	KeyInput struct {
		Key         string `header:"Idempotency-Key" maxLength:"200" doc:"one of the caller's own: a repeat with the same has no effect, another request with it is refused"`
		TraceParent string `header:"Traceparent" hidden:"true"`
	}
	listSessionsInput struct {
		Page
		Period
		Status        []harness.SessionState `query:"status,explode" nullable:"false" enum:"PENDING,RUNNING,AWAITING_APPROVAL,AWAITING_EXECUTION,IDLE,COMPLETED,BLOCKED,FAILED,CANCELLED"`
		Agent         harness.AgentName      `query:"agent" maxLength:"63"`
		Channel       harness.Channel        `query:"channel" enum:"WHATSAPP,TELEGRAM,WEBHOOK,API"`
		ChannelUserID string                 `query:"channelUserId" maxLength:"256"`
	}
	startInput struct {
		KeyInput
		Body startBody
	}
	startBody struct {
		Agent harness.AgentName `json:"agent,omitempty" minLength:"1" maxLength:"63" doc:"whom the text is for"`
		Text  string            `json:"text,omitempty" minLength:"1" maxLength:"65536"`
		Chat  string            `json:"chat,omitempty" maxLength:"200" doc:"the caller's own name of the conversation, which means another one to another caller; without one it is a new one. The session's chat is it behind a digest of the caller's name"`

		Temporal *harness.TemporalLink `json:"temporal,omitempty" doc:"the Temporal workflow that gets the signal ApprovalSignal when an approval of the session ends. Refused where temporal-bridge is not installed"`
		Workflow harness.WorkflowName  `json:"workflow,omitempty" minLength:"1" maxLength:"63" doc:"the workflow of which a run is started, in place of agent and text"`
		Input    json.RawMessage       `json:"input,omitempty" doc:"of the run: an object, with the inputs that the workflow declares"`
	}
	sendInput struct {
		IDInput
		KeyInput
		Body sendBody
	}
	sendBody struct {
		Text string `json:"text" minLength:"1" maxLength:"65536"`
	}
	acceptedOutput struct {
		Location string `header:"Location" doc:"of the session"`
		Body     accepted
	}
	accepted struct {
		Session   harness.SessionID `json:"session"`
		Message   harness.MessageID `json:"message,omitempty" doc:"of a conversation"`
		Duplicate bool              `json:"duplicate" doc:"the Idempotency-Key was known"`
	}
	sessionInput       struct{ IDInput }
	listOfSessionInput struct {
		IDInput
		Page
	}
	timelineInput struct {
		IDInput
		Page
		Newest bool `query:"newest" doc:"newest first, from the end of the session: what happens meanwhile is on no page that follows"`
	}
	sessionOutput struct{ Body view.Session }
)

func (i IDInput) session() harness.SessionID { return harness.SessionID(i.ID) }

func (a *api) registerSessions() {
	register(a, "list-sessions", a.listSessions)
	register(a, "start-session", a.startSession)
	register(a, "get-session", a.getSession)
	register(a, "list-session-messages", a.listMessages)
	register(a, "send-session-message", a.sendMessage)
	register(a, "list-session-timeline", a.timeline)
	register(a, "cancel-session", a.cancelSession)
}

func (a *api) listSessions(ctx context.Context, in *listSessionsInput) (*listOutput[view.Session], error) {
	if err := in.check(a.Now()); err != nil {
		return nil, err
	}
	rows, err := a.Store.ListSessions(ctx, postgres.SessionFilter{
		Agent: in.Agent, States: in.Status, Channel: in.Channel, ChannelUserID: in.ChannelUserID, Since: in.Since, Until: in.Until,
	}, in.place, in.more())
	if err != nil {
		return nil, err
	}
	return paged(&in.Page, rows, func(s view.Session) view.Place { return view.Place{At: s.CreatedAt, ID: string(s.ID)} }), nil
}

func (a *api) getSession(ctx context.Context, in *sessionInput) (*sessionOutput, error) {
	s, err := a.Store.GetSession(ctx, in.session())
	return &sessionOutput{s}, err
}

func (a *api) listMessages(ctx context.Context, in *listOfSessionInput) (*listOutput[view.Message], error) {
	after, err := sequence(in.place)
	if err != nil {
		return nil, err
	}
	if _, err := a.Store.GetSession(ctx, in.session()); err != nil {
		return nil, err
	}
	rows, err := a.Store.ListMessages(ctx, in.session(), after, in.more())
	if err != nil {
		return nil, err
	}
	return paged(&in.Page, rows, func(m view.Message) view.Place { return view.Place{ID: strconv.FormatInt(m.Seq, 10)} }), nil
}

// sequence is a place in a list that is ordered by numbers.
func sequence(p view.Place) (int64, error) {
	if p.ID == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(p.ID, 10, 64)
	if err != nil || n < 0 {
		return 0, refuseCursor()
	}
	return n, nil
}

func (a *api) timeline(ctx context.Context, in *timelineInput) (*listOutput[view.Entry], error) {
	if _, err := a.Store.GetSession(ctx, in.session()); err != nil {
		return nil, err
	}
	read := a.Store.Timeline
	if in.Newest {
		read = a.Store.NewestTimeline
	}
	rows, next, err := read(ctx, in.session(), in.place, in.Limit)
	if harness.KindOf(err) == harness.Invalid {
		return nil, refuseCursor()
	}
	if err != nil {
		return nil, err
	}
	return part(&in.Page, rows, next), nil
}

func (a *api) startSession(ctx context.Context, in *startInput) (*acceptedOutput, error) {
	switch {
	case in.Body.Workflow != "":
		return a.startRun(ctx, in)
	case len(in.Body.Input) > 0:
		return nil, refuseField("#/input", "is of a workflow's run: name the workflow, or remove it")
	case in.Body.Agent == "":
		return nil, refuseField("#/agent", "is missing: name an agent and a text, or a workflow")
	}
	key := a.identity(ctx, in.Key)
	chat := key // a repeat is about the same conversation
	if in.Body.Chat != "" {
		chat = digest(callerName(ctx))[:16] + "/" + in.Body.Chat // callers do not share names
	}
	if strings.ContainsFunc(chat, unicode.IsControl) {
		return nil, refuseField("#/chat", "has a control character")
	}
	if err := a.linkable(in.Body.Temporal); err != nil {
		return nil, err
	}
	out, err := a.accept(ctx, by(ctx, access.Create, access.Sessions), view.Session{Account: string(in.Body.Agent), Chat: chat, Temporal: in.Body.Temporal}, key, in.Body.Text, event.TraceParent(in.TraceParent))
	if errors.Is(err, postgres.ErrLinked) {
		return nil, refuse(http.StatusConflict, "the conversation is open already", view.ProblemField{Pointer: "#/temporal", Detail: "is not what the conversation was started with"})
	}
	return out, err
}

// linkable says what is wrong with a Temporal workflow that a session is to name.
func (a *api) linkable(link *harness.TemporalLink) error {
	if link == nil {
		return nil
	}
	if !a.Temporal {
		return refuseField("#/temporal", "cannot be kept: temporal-bridge is not installed, and nobody would tell the workflow")
	}
	if field, problem := link.Problem(); problem != "" {
		return refuseField("#/temporal/"+field, problem)
	}
	return nil
}

func (a *api) sendMessage(ctx context.Context, in *sendInput) (*acceptedOutput, error) {
	s, err := a.Store.GetSession(ctx, in.session())
	if err != nil {
		return nil, err
	}
	if s.Workflow != "" {
		return nil, refuse(http.StatusConflict, "the session is a run of the workflow "+string(s.Workflow)+", which takes no messages")
	}
	if s.Channel != harness.ChannelAPI {
		return nil, refuse(http.StatusConflict, "the session is of channel "+string(s.Channel)+": its messages come from there")
	}
	return a.accept(ctx, by(ctx, access.Update, access.Sessions), s, a.identity(ctx, in.Key), in.Body.Text, event.TraceParent(in.TraceParent))
}

// accept commits one message to a session, of which the id may be missing, then
// announces it.
func (a *api) accept(ctx context.Context, audit postgres.Audit, to view.Session, key, text, trace string) (*acceptedOutput, error) {
	text = harness.CleanText(text)
	if strings.TrimSpace(text) == "" {
		return nil, refuseField("#/text", "is empty")
	}
	in := postgres.Inbound{Audit: audit, Arrivals: []postgres.Arrival{{
		Account: to.Account, ProviderID: key, Chat: to.Chat, Only: to.ID,
		Message: harness.Message{Channel: harness.ChannelAPI, ChannelUserID: callerName(ctx), Text: text},
	}}}
	if to.ID == "" {
		in.Arrivals[0].Temporal = to.Temporal
	}
	var one postgres.Accepted
	for range 2 { // of two at once the second knows the first only at the next look
		all, events, err := a.Store.Accept(ctx, harness.ChannelAPI, in, trace)
		if err != nil {
			return nil, err
		}
		a.Publish(ctx, events...)
		if one = all[0]; one.Outcome != postgres.ArrivalDuplicate || one.Message != "" {
			break
		}
	}
	switch {
	case one.Outcome == postgres.ArrivalUnrouted:
		return nil, refuseField("#/agent", "is no agent that takes messages: there is none, or it was never READY")
	case one.Outcome == postgres.ArrivalDenied:
		return nil, harness.Errorf(harness.Denied, "the caller may not talk to this agent")
	case one.Outcome == postgres.ArrivalEnded:
		return nil, refuse(http.StatusConflict, "the session has ended: start another")
	case one.Message == "":
		return nil, refuseField("#/text", "holds something that cannot be stored")
	case one.Outcome == postgres.ArrivalDuplicate:
		if err := a.sameMessage(ctx, one, to, key, text); err != nil {
			return nil, err
		}
	}
	return &acceptedOutput{
		Location: location("sessions", string(one.Session)),
		Body:     accepted{Session: one.Session, Message: one.Message, Duplicate: one.Outcome == postgres.ArrivalDuplicate},
	}, nil
}

// sameMessage reports whether known is what its key is used for again.
func (a *api) sameMessage(ctx context.Context, known postgres.Accepted, to view.Session, key, text string) error {
	message, err := a.Store.GetMessage(ctx, known.Message)
	if err != nil {
		return err
	}
	session, err := a.Store.GetSession(ctx, known.Session)
	if err != nil {
		return err
	}
	// A named conversation may have been started by another request.
	link := to.Temporal
	if link == nil && to.Chat != key {
		link = session.Temporal
	}
	if to.ID == "" && !reflect.DeepEqual(link, session.Temporal) || message.Text != text || session.Chat != to.Chat || to.ID != "" && session.ID != to.ID {
		return refuse(http.StatusConflict, "the Idempotency-Key belongs to another message",
			view.ProblemField{Pointer: "header/Idempotency-Key", Detail: "was used with another text, session, chat or Temporal workflow"})
	}
	return nil
}

func (a *api) cancelSession(ctx context.Context, in *sessionInput) (*sessionOutput, error) {
	s, events, err := a.Store.CancelSession(ctx, in.session(), by(ctx, access.Cancel, access.Sessions))
	if err != nil {
		return nil, err
	}
	a.Publish(ctx, events...)
	return &sessionOutput{s}, nil
}

// identity is what a repeat of the request has too: of the caller's key, which
// means nothing to other callers, else a fresh one.
func (a *api) identity(ctx context.Context, key string) string {
	if key == "" {
		return harness.NewID("api", a.Now())
	}
	return "api_" + digest(callerName(ctx) + "\x00" + key)[:32]
}
