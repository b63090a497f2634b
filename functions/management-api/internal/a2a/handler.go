package a2a

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/a2a"

	"tuluat.ai/harness/functions/management-api/internal/loopback"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// OnGetTask returns a task as it stands.
func (p *peer) OnGetTask(ctx context.Context, q *a2a.TaskQueryParams) (*a2a.Task, error) {
	s, err := p.look(ctx, q.ID)
	return s.task, err
}

// OnListTasks is not offered: GET /api/v1/sessions lists what there is.
func (p *peer) OnListTasks(context.Context, *a2a.ListTasksRequest) (*a2a.ListTasksResponse, error) {
	return nil, a2a.NewError(a2a.ErrUnsupportedOperation, "tasks are not listed here: the API lists sessions")
}

// OnCancelTask ends the session of a task.
func (p *peer) OnCancelTask(ctx context.Context, in *a2a.TaskIDParams) (*a2a.Task, error) {
	s, err := p.look(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if s.task.Status.State.Terminal() {
		return nil, a2a.NewError(a2a.ErrTaskNotCancelable, "the task has ended already")
	}
	var ended view.Session
	if err := p.ask(ctx, loopback.Request{Method: http.MethodPost, Path: "/sessions/" + url.PathEscape(s.task.ContextID) + "/cancel"}, &ended); err != nil {
		return nil, err
	}
	s, err = p.look(ctx, in.ID)
	return s.task, err
}

// OnSendMessage begins a task, or decides what one waits for. It waits for the
// task's end when the peer asks it to, and no longer than WaitTime: a task that is
// not done by then is answered as it is.
func (p *peer) OnSendMessage(ctx context.Context, in *a2a.MessageSendParams) (a2a.SendMessageResult, error) {
	id, err := p.send(ctx, in)
	if err != nil {
		return nil, err
	}
	blocking := in.Config == nil || in.Config.Blocking == nil || *in.Config.Blocking
	if !blocking {
		s, err := p.look(ctx, id)
		return s.task, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.WaitTime)
	defer cancel()
	var last *a2a.Task
	for s, err := range p.follow(ctx, id) {
		if err != nil {
			return nil, err
		}
		last = s.task
	}
	if last == nil {
		return nil, a2a.NewError(a2a.ErrServerError, "the task has begun and could not be looked at: ask for it by tasks/get").WithDetails(map[string]any{"taskId": id})
	}
	return last, nil
}

// OnSendMessageStream is OnSendMessage, and tells of the task until it ends or waits
// for a decision.
func (p *peer) OnSendMessageStream(ctx context.Context, in *a2a.MessageSendParams) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		id, err := p.send(ctx, in)
		if err != nil {
			yield(nil, err)
			return
		}
		p.tell(ctx, id, yield)
	}
}

// OnResubscribeToTask tells of a task from now on.
func (p *peer) OnResubscribeToTask(ctx context.Context, in *a2a.TaskIDParams) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) { p.tell(ctx, in.ID, yield) }
}

// tell yields the task, then what changes of it.
func (p *peer) tell(ctx context.Context, id a2a.TaskID, yield func(a2a.Event, error) bool) {
	ctx, cancel := context.WithTimeout(ctx, p.StreamTime)
	defer cancel()
	told := false
	for s, err := range p.follow(ctx, id) {
		if err != nil {
			yield(nil, err)
			return
		}
		task := s.task
		if !told {
			told = true
			first := *task
			first.Artifacts = nil
			if !yield(&first, nil) {
				return
			}
		}
		for _, artifact := range task.Artifacts {
			if !yield(&a2a.TaskArtifactUpdateEvent{TaskID: task.ID, ContextID: task.ContextID, Artifact: artifact, LastChunk: true}, nil) {
				return
			}
		}
		if !yield(&a2a.TaskStatusUpdateEvent{TaskID: task.ID, ContextID: task.ContextID, Status: task.Status, Final: settled(task)}, nil) {
			return
		}
	}
}

// settled reports whether nothing comes of a task by itself.
func settled(t *a2a.Task) bool {
	return t.Status.State.Terminal() || t.Status.State == a2a.TaskStateInputRequired
}

// follow yields a task as it is, and again whenever its status is another, until it
// is settled or ctx or the process ends.
func (p *peer) follow(ctx context.Context, id a2a.TaskID) iter.Seq2[standing, error] {
	return func(yield func(standing, error) bool) {
		select {
		case p.waits <- struct{}{}:
			defer func() { <-p.waits }()
		default:
			yield(standing{}, a2a.NewError(a2a.ErrServerError, "too many tasks are followed here: ask for the task by tasks/get").WithDetails(map[string]any{"taskId": id}))
			return
		}
		tick := time.NewTicker(p.LookEvery)
		defer tick.Stop()
		last := ""
		for {
			s, err := p.look(ctx, id)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil && last == "":
				yield(s, err)
				return
			case err == nil: // a look that failed later is made again
				if now := string(s.task.Status.State) + statusText(s.task); now != last {
					last = now
					if !yield(s, nil) {
						return
					}
				}
				if settled(s.task) {
					return
				}
			}
			select {
			case <-tick.C:
			case <-p.Drain:
				return
			case <-ctx.Done():
				return
			}
		}
	}
}

func statusText(t *a2a.Task) string {
	if t.Status.Message == nil {
		return ""
	}
	text, _ := words(t.Status.Message)
	return text
}

// send puts a message into its session: a new one, the one of its context, or as
// the decision of its task. A repeat of it has no effect.
func (p *peer) send(ctx context.Context, in *a2a.MessageSendParams) (a2a.TaskID, error) {
	m := in.Message
	if m == nil {
		return "", a2a.NewError(a2a.ErrInvalidParams, "message is missing")
	}
	if in.Config != nil && in.Config.PushConfig != nil {
		return "", a2a.NewError(a2a.ErrPushNotificationNotSupported, "this agent sends no push notifications: follow the task by a stream, or ask for it")
	}
	if m.TaskID != "" {
		return m.TaskID, p.decide(ctx, m)
	}
	text, err := words(m)
	if err != nil {
		return "", err
	}
	body, path := map[string]any{"text": text}, "/sessions"
	if m.ContextID == "" {
		body["agent"] = p.agent
	} else {
		var s view.Session
		path += "/" + url.PathEscape(m.ContextID)
		if err := p.ask(ctx, loopback.Request{Method: http.MethodGet, Path: path}, &s); err != nil {
			return "", err
		}
		if s.Agent != p.agent {
			return "", a2a.NewError(a2a.ErrInvalidParams, "the context is not one of this agent")
		}
		path += "/messages"
	}
	content, err := json.Marshal(body)
	if err != nil {
		return "", a2a.NewError(a2a.ErrInvalidParams, "the message cannot be read")
	}
	header := http.Header{}
	if m.ID != "" {
		if len(m.ID) > 190 || strings.ContainsFunc(m.ID, func(r rune) bool { return r < ' ' || r > '~' }) {
			return "", a2a.NewError(a2a.ErrInvalidParams, "messageId has more than 190 characters or others than ASCII")
		}
		header.Set("Idempotency-Key", "a2a-"+m.ID)
	}
	var accepted struct {
		Session harness.SessionID `json:"session"`
		Message harness.MessageID `json:"message"`
	}
	if err := p.ask(ctx, loopback.Request{Method: http.MethodPost, Path: path, Header: header, Body: content}, &accepted); err != nil {
		return "", err
	}
	return taskID(accepted.Session, accepted.Message), nil
}

// words are the text of a message. What is no text is refused rather than dropped.
func words(m *a2a.Message) (string, error) {
	var texts []string
	for _, part := range m.Parts {
		switch part := part.(type) {
		case a2a.TextPart:
			texts = append(texts, part.Text)
		case a2a.DataPart:
			text, err := json.Marshal(part.Data)
			if err != nil {
				return "", a2a.NewError(a2a.ErrInvalidParams, "a data part cannot be read")
			}
			texts = append(texts, string(text))
		default:
			return "", a2a.NewError(a2a.ErrUnsupportedContentType, "this agent takes text and data parts only")
		}
	}
	if strings.TrimSpace(strings.Join(texts, "")) == "" {
		return "", a2a.NewError(a2a.ErrInvalidParams, "the message has no text")
	}
	return strings.Join(texts, "\n"), nil
}

// decision is a message as an answer to an approval.
type decision struct {
	Decision string             `json:"decision"`
	Reason   string             `json:"reason,omitempty"`
	Digest   string             `json:"digest,omitempty"`
	Approval harness.ApprovalID `json:"approval,omitempty"`
}

func readDecision(m *a2a.Message) (decision, error) {
	var d decision
	if len(m.Parts) == 1 {
		switch part := m.Parts[0].(type) {
		case a2a.DataPart:
			text, err := json.Marshal(part.Data)
			if err == nil && json.Unmarshal(text, &d) == nil && (d.Decision == "APPROVE" || d.Decision == "REJECT") {
				return d, nil
			}
		case a2a.TextPart:
			word, reason, _ := strings.Cut(strings.TrimSpace(part.Text), " ")
			switch d.Reason = strings.TrimSpace(reason); {
			case strings.EqualFold(word, "approve") && d.Reason == "":
				d.Decision = "APPROVE"
				return d, nil
			case strings.EqualFold(word, "reject"):
				d.Decision = "REJECT"
				return d, nil
			}
		}
	}
	return d, a2a.NewError(a2a.ErrInvalidParams, "the message is no decision. "+howToDecide)
}

// decide takes a message of a task as the decision that it waits for.
func (p *peer) decide(ctx context.Context, m *a2a.Message) error {
	s, err := p.look(ctx, m.TaskID)
	if err != nil {
		return err
	}
	if m.ContextID != "" && m.ContextID != s.task.ContextID {
		return a2a.NewError(a2a.ErrInvalidParams, "the task is not of the context")
	}
	switch {
	case s.task.Status.State.Terminal():
		return a2a.NewError(a2a.ErrUnsupportedOperation, "the task has ended: send the message without taskId, in its context")
	case s.task.Status.State != a2a.TaskStateInputRequired:
		return a2a.NewError(a2a.ErrUnsupportedOperation, "the task waits for no decision: send the message without taskId, in its context, and it is answered afterwards")
	}
	d, err := readDecision(m)
	if err != nil {
		return err
	}
	of := slices.DeleteFunc(s.waiting, func(a view.Approval) bool { return d.Approval != "" && d.Approval != a.ID })
	switch {
	case len(of) == 0:
		return a2a.NewError(a2a.ErrInvalidParams, "the task waits for no such approval, or you may not see it")
	case len(of) > 1:
		return a2a.NewError(a2a.ErrInvalidParams, "the task waits for several approvals: send a data part that names one as approval").WithDetails(map[string]any{"waiting": asData(of)})
	}
	d.Approval = of[0].ID
	path := "/approvals/" + url.PathEscape(string(d.Approval)) + "/decision"
	d.Approval = ""
	body, err := json.Marshal(d)
	if err != nil {
		return a2a.NewError(a2a.ErrInvalidParams, "the decision cannot be read")
	}
	var decided view.Approval
	return p.ask(ctx, loopback.Request{Method: http.MethodPost, Path: path, Body: body}, &decided)
}
