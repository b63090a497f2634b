package a2a

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/a2aproject/a2a-go/a2a"

	"tuluat.ai/harness/functions/management-api/internal/loopback"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// taskID names a message of a session. A peer takes it as it is.
func taskID(session harness.SessionID, message harness.MessageID) a2a.TaskID {
	return a2a.TaskID(string(session) + "." + string(message))
}

func readTaskID(id a2a.TaskID) (harness.SessionID, harness.MessageID, error) {
	session, message, ok := strings.Cut(string(id), ".")
	if !ok || session == "" || message == "" {
		return "", "", a2a.NewError(a2a.ErrTaskNotFound, "there is no such task")
	}
	return harness.SessionID(session), harness.MessageID(message), nil
}

// standing is a task as the rows have it now.
type standing struct {
	task    *a2a.Task
	session view.Session
	waiting []view.Approval // what its session waits for, if it is this task that does
}

// look reads a task. One of another agent is not there.
func (p *peer) look(ctx context.Context, id a2a.TaskID) (standing, error) {
	session, message, err := readTaskID(id)
	if err != nil {
		return standing{}, err
	}
	var s standing
	if err := p.ask(ctx, loopback.Request{Method: http.MethodGet, Path: "/sessions/" + url.PathEscape(string(session))}, &s.session); err != nil {
		return s, err
	}
	if s.session.Agent != p.agent || s.session.Workflow != "" {
		return s, a2a.NewError(a2a.ErrTaskNotFound, "there is no such task of this agent")
	}
	said, answers, err := p.messages(ctx, session, message)
	if err != nil {
		return s, err
	}
	s.task = &a2a.Task{ID: id, ContextID: string(session), History: []*a2a.Message{{
		ID: string(said.ID), Role: a2a.MessageRoleUser, ContextID: string(session), TaskID: id, Parts: a2a.ContentParts{a2a.TextPart{Text: said.Text}},
	}}}
	state, text := a2a.TaskStateWorking, ""
	switch {
	case s.session.State == harness.SessionCancelled && said.State != harness.MessageDone:
		state, text = a2a.TaskStateCanceled, s.session.Reason
	case said.State == harness.MessagePending:
		state = a2a.TaskStateSubmitted
	case said.State == harness.MessageDone && len(answers) == 0 && s.session.State == harness.SessionCancelled:
		state, text = a2a.TaskStateCanceled, s.session.Reason
	case said.State == harness.MessageDone:
		state = a2a.TaskStateCompleted
		if failed(s.session.State) && s.session.Reason != "" && len(answers) > 0 && answers[len(answers)-1].Text == s.session.Reason {
			state, text = a2a.TaskStateFailed, s.session.Reason
		}
	case s.session.State == harness.SessionAwaitingApproval:
		hidden := false
		if s.waiting, hidden, err = p.waiting(ctx, session); err != nil {
			return s, err
		}
		if hidden || len(s.waiting) > 0 { // once all is decided, the session goes on by itself
			state, text = a2a.TaskStateInputRequired, question(s.waiting)
		}
	}
	at := s.session.UpdatedAt
	s.task.Status = a2a.TaskStatus{State: state, Timestamp: &at}
	if text != "" {
		s.task.Status.Message = &a2a.Message{
			ID: fmt.Sprintf("%s.%s", id, state), Role: a2a.MessageRoleAgent, ContextID: string(session), TaskID: id,
			Parts: append(a2a.ContentParts{a2a.TextPart{Text: text}}, asData(s.waiting)...),
		}
	}
	if state == a2a.TaskStateCompleted {
		artifact := &a2a.Artifact{ID: a2a.ArtifactID("answer"), Name: "answer"}
		for _, answer := range answers {
			artifact.Parts = append(artifact.Parts, a2a.TextPart{Text: answer.Text})
		}
		if len(artifact.Parts) > 0 {
			s.task.Artifacts = []*a2a.Artifact{artifact}
		}
	}
	return s, nil
}

func failed(s harness.SessionState) bool {
	return s == harness.SessionFailed || s == harness.SessionBlocked
}

// messages finds a message of a session and what answers it.
func (p *peer) messages(ctx context.Context, session harness.SessionID, id harness.MessageID) (said view.Message, answers []view.Message, err error) {
	after := ""
	for {
		var page struct {
			Items []view.Message `json:"items"`
			Next  string         `json:"next"`
		}
		query := url.Values{"limit": {"200"}}
		if after != "" {
			query.Set("after", after)
		}
		if err := p.ask(ctx, loopback.Request{Method: http.MethodGet, Path: "/sessions/" + url.PathEscape(string(session)) + "/messages", Query: query}, &page); err != nil {
			return said, nil, err
		}
		for _, m := range page.Items {
			switch {
			case m.ID == id && m.Direction == harness.Inbound:
				said = m
			case m.InReplyTo == id && m.Direction == harness.Outbound:
				answers = append(answers, m)
			}
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if said.ID == "" {
		return said, nil, a2a.NewError(a2a.ErrTaskNotFound, "there is no such task")
	}
	return said, answers, nil
}

// waiting is what a session waits for. From a caller who may not list approvals it is
// hidden: they learn only that it does.
func (p *peer) waiting(ctx context.Context, session harness.SessionID) (open []view.Approval, hidden bool, err error) {
	answer, err := loopback.Do(ctx, p.API, loopback.Request{
		Method: http.MethodGet, Path: "/api/v1/approvals", Query: url.Values{"session": {string(session)}, "status": {string(harness.ApprovalPending)}}, Token: p.token,
	})
	switch {
	case err != nil, answer.Status == http.StatusForbidden:
		return nil, true, nil //nolint:nilerr // of a path that is ours: it cannot be
	case !answer.OK():
		return nil, false, refused(answer)
	}
	var page struct {
		Items []view.Approval `json:"items"`
	}
	if err := json.Unmarshal(answer.Body, &page); err != nil {
		return nil, false, a2a.NewError(a2a.ErrInternalError, "the API's answer cannot be read")
	}
	return page.Items, false, nil
}

const howToDecide = `Send a message of this task with the text "approve" or "reject", and behind reject the reason if there is one; or a data part {"decision": "APPROVE" or "REJECT", "reason", "approval", "digest"}.`

func question(waiting []view.Approval) string {
	if len(waiting) == 0 {
		return "A human is asked first."
	}
	var text strings.Builder
	for _, a := range waiting {
		fmt.Fprintf(&text, "%s %s\n", a.Title, a.Input)
	}
	return text.String() + howToDecide
}

// asData are the approvals for a peer that is a program.
func asData(waiting []view.Approval) a2a.ContentParts {
	var parts a2a.ContentParts
	for _, a := range waiting {
		data := map[string]any{"approval": string(a.ID), "title": a.Title, "input": a.Input, "digest": a.Digest}
		if a.ExpiresAt != nil {
			data["expiresAt"] = a.ExpiresAt
		}
		parts = append(parts, a2a.DataPart{Data: data})
	}
	return parts
}
