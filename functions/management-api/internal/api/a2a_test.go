package api_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/a2a"
	"github.com/a2aproject/a2a-go/a2aclient"
	"github.com/a2aproject/a2a-go/a2aclient/agentcard"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// peer is the official client, with a role's token.
func (w *world) peer(t *testing.T, role, agent string) (*a2aclient.Client, error) {
	t.Helper()
	through := &http.Client{Transport: bearer{token(role), w.client.Transport}}
	card, err := agentcard.NewResolver(through).Resolve(t.Context(), "http://"+w.address+"/a2a/"+agent)
	if err != nil {
		return nil, err
	}
	if card.URL != "http://api.example.com/a2a/"+agent || !card.Capabilities.Streaming || card.PreferredTransport != a2a.TransportProtocolJSONRPC || len(card.Security) != 1 {
		t.Errorf("the card: %+v", card)
	}
	card.URL = "http://" + w.address + "/a2a/" + agent // no resolver knows example.com
	return a2aclient.NewFromCard(t.Context(), card, a2aclient.WithJSONRPCTransport(through))
}

// expose puts agent into the folder as one whose block a2a is on.
func (w *world) expose(agent string) {
	w.file(agent+".yaml", fmt.Sprintf(agentYAML, agent)+"  a2a: {}\n")
}

func text(words string) *a2a.Message {
	return a2a.NewMessage(a2a.MessageRoleUser, a2a.TextPart{Text: words})
}

// answer ends the turn of a session as its agent does.
func (w *world) answer(session harness.SessionID, state harness.SessionState, reply string) {
	w.T.Helper()
	w.Exec(`UPDATE sessions SET due_at = now() WHERE session_id = $1`, session)
	claim, err := w.Store.ClaimSession(w.T.Context(), session, lease)
	if err != nil {
		w.T.Fatal(err)
	}
	c := postgres.StepCommit{Claim: claim, State: state, Start: claim.Turns[len(claim.Turns)-1].State == harness.MessagePending, Reply: []string{reply}, Step: &postgres.NewStep{ID: harness.NewStepID(time.Now()), Text: reply}}
	if state != harness.SessionIdle {
		c.Reason = reply
	}
	if _, err := w.Store.CommitStep(w.T.Context(), c); err != nil {
		w.T.Fatal(err)
	}
}

// The official client talks to an agent: a task that ends, one of the same context
// that fails, one that waits for a decision, one that is cancelled.
func TestPeersTalkToAnAgent(t *testing.T) {
	w := newWorld(t)
	w.expose("coder")
	client, err := w.peer(t, access.RoleAdmin, "coder")
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	no := false
	begun, err := client.SendMessage(ctx, &a2a.MessageSendParams{Message: text("hello"), Config: &a2a.MessageSendConfig{Blocking: &no}})
	task, ok := begun.(*a2a.Task)
	if err != nil || !ok || task.Status.State != a2a.TaskStateSubmitted || task.ContextID == "" {
		t.Fatalf("begun: %+v, %v", begun, err)
	}
	session := harness.SessionID(task.ContextID)

	// It is followed to its end, and whoever follows it later sees the same.
	said := make(chan string)
	go func() {
		var seen []string
		for e, err := range client.ResubscribeToTask(ctx, &a2a.TaskIDParams{ID: task.ID}) {
			switch e := e.(type) {
			case *a2a.Task:
				seen = append(seen, "task "+string(e.Status.State))
			case *a2a.TaskArtifactUpdateEvent:
				seen = append(seen, e.Artifact.Parts[0].(a2a.TextPart).Text)
			case *a2a.TaskStatusUpdateEvent:
				seen = append(seen, fmt.Sprint(e.Status.State, e.Final))
			default:
				seen = append(seen, fmt.Sprint(err))
			}
		}
		said <- strings.Join(seen, ", ")
	}()
	time.Sleep(100 * time.Millisecond) // the follower has begun, or sees the end at once
	w.answer(session, harness.SessionIdle, "hello yourself")
	if got := <-said; !strings.HasSuffix(got, "hello yourself, completedtrue") || !strings.HasPrefix(got, "task ") {
		t.Errorf("followed: %s", got)
	}
	task, err = client.GetTask(ctx, &a2a.TaskQueryParams{ID: task.ID})
	if err != nil || task.Status.State != a2a.TaskStateCompleted || len(task.Artifacts) != 1 || task.Artifacts[0].Parts[0].(a2a.TextPart).Text != "hello yourself" {
		t.Fatalf("ended: %+v, %v", task, err)
	}

	next := text("again")
	next.ContextID = task.ContextID
	begun, err = client.SendMessage(ctx, &a2a.MessageSendParams{Message: next, Config: &a2a.MessageSendConfig{Blocking: &no}})
	second, ok := begun.(*a2a.Task)
	if err != nil || !ok || second.ContextID != task.ContextID || second.ID == task.ID {
		t.Fatalf("in the same context: %+v, %v", begun, err)
	}
	repeated, err := client.SendMessage(ctx, &a2a.MessageSendParams{Message: next, Config: &a2a.MessageSendConfig{Blocking: &no}})
	if err != nil || repeated.(*a2a.Task).ID != second.ID {
		t.Errorf("repeated: %+v, %v", repeated, err)
	}
	w.answer(session, harness.SessionFailed, "I could not")
	if s, err := client.GetTask(ctx, &a2a.TaskQueryParams{ID: second.ID}); err != nil || s.Status.State != a2a.TaskStateFailed {
		t.Errorf("failed: %+v, %v", s, err)
	}
	if s, err := client.GetTask(ctx, &a2a.TaskQueryParams{ID: task.ID}); err != nil || s.Status.State != a2a.TaskStateCompleted {
		t.Errorf("the one before: %+v, %v", s, err)
	}

	begun, err = client.SendMessage(ctx, &a2a.MessageSendParams{Message: text("build"), Config: &a2a.MessageSendConfig{Blocking: &no}})
	if err != nil {
		t.Fatal(err)
	}
	third := begun.(*a2a.Task)
	id := w.asked(harness.SessionID(third.ContextID))
	w.Exec(`UPDATE messages SET state = 'RUNNING' WHERE session_id = $1`, third.ContextID)
	w.Exec(`UPDATE sessions SET state = 'AWAITING_APPROVAL' WHERE session_id = $1`, third.ContextID)
	third, err = client.GetTask(ctx, &a2a.TaskQueryParams{ID: third.ID})
	if err != nil || third.Status.State != a2a.TaskStateInputRequired || !strings.Contains(third.Status.Message.Parts[0].(a2a.TextPart).Text, "rm -r build") ||
		third.Status.Message.Parts[1].(a2a.DataPart).Data["approval"] != string(id) {
		t.Fatalf("it waits: %+v, %v", third, err)
	}
	for name, m := range map[string]*a2a.Message{
		"no decision":      a2a.NewMessageForTask(a2a.MessageRoleUser, third, a2a.TextPart{Text: "yes please"}),
		"another approval": a2a.NewMessageForTask(a2a.MessageRoleUser, third, a2a.DataPart{Data: map[string]any{"decision": "APPROVE", "approval": "apr_other"}}),
		"another digest":   a2a.NewMessageForTask(a2a.MessageRoleUser, third, a2a.DataPart{Data: map[string]any{"decision": "APPROVE", "digest": "0"}}),
	} {
		if _, err := client.SendMessage(ctx, &a2a.MessageSendParams{Message: m}); !errors.Is(err, a2a.ErrInvalidParams) {
			t.Errorf("%s: %v", name, err)
		}
	}
	viewer, err := w.peer(t, access.RoleViewer, "coder")
	if err != nil {
		t.Fatal(err)
	}
	approve := a2a.NewMessageForTask(a2a.MessageRoleUser, third, a2a.TextPart{Text: "Approve"})
	if _, err := viewer.SendMessage(ctx, &a2a.MessageSendParams{Message: approve}); !errors.Is(err, a2a.ErrUnauthorized) {
		t.Errorf("a viewer decides: %v", err)
	}
	if _, err := viewer.SendMessage(ctx, &a2a.MessageSendParams{Message: text("hello")}); !errors.Is(err, a2a.ErrUnauthorized) {
		t.Errorf("a viewer talks: %v", err)
	}
	hidden, err := viewer.GetTask(ctx, &a2a.TaskQueryParams{ID: third.ID})
	if err != nil || hidden.Status.State != a2a.TaskStateInputRequired {
		t.Errorf("a viewer is told %+v, %v", hidden, err)
	}
	decided, err := client.SendMessage(ctx, &a2a.MessageSendParams{Message: approve, Config: &a2a.MessageSendConfig{Blocking: &no}})
	if err != nil || decided.(*a2a.Task).Status.State != a2a.TaskStateWorking { // the session has not been woken yet
		t.Errorf("approved: %+v, %v", decided, err)
	}
	if got := w.Query(`SELECT state || ' ' || decided_by FROM approvals WHERE approval_id = '` + string(id) + `'`); !strings.HasPrefix(got, "APPROVED ") {
		t.Errorf("the approval is %s", got)
	}
	cancelled, err := client.CancelTask(ctx, &a2a.TaskIDParams{ID: third.ID})
	if err != nil || cancelled.Status.State != a2a.TaskStateCanceled {
		t.Errorf("cancelled: %+v, %v", cancelled, err)
	}
	if _, err := client.CancelTask(ctx, &a2a.TaskIDParams{ID: task.ID}); !errors.Is(err, a2a.ErrTaskNotCancelable) {
		t.Errorf("one that has ended is cancelled: %v", err)
	}
}

// Who is no peer, and what is no message.
func TestPeersAreRefused(t *testing.T) {
	w := newWorld(t)
	if _, err := w.peer(t, access.RoleAdmin, "coder"); err == nil {
		t.Error("an agent without the block is a peer")
	}
	w.expose("coder")
	w.expose("spare")
	if _, err := w.peer(t, nobody, "coder"); err == nil {
		t.Error("somebody without a right sees the card")
	}
	if a := w.do(request{method: http.MethodGet, path: "/a2a/coder/.well-known/agent-card.json", header: map[string]string{"Authorization": ""}}); a.status != http.StatusUnauthorized {
		t.Errorf("a stranger sees the card: %s", a)
	}
	client, err := w.peer(t, access.RoleAdmin, "coder")
	if err != nil {
		t.Fatal(err)
	}
	other := w.say("spare", "hello")
	foreign := text("hello")
	foreign.ContextID = string(other.Session)
	ended := text("approve")
	ended.TaskID = a2a.TaskID(string(other.Session) + "." + string(other.Message))
	for name, c := range map[string]struct {
		m    *a2a.Message
		want error
	}{
		"no text":                      {text("  "), a2a.ErrInvalidParams},
		"a file":                       {a2a.NewMessage(a2a.MessageRoleUser, a2a.FilePart{File: a2a.FileBytes{Bytes: "aGk="}}), a2a.ErrUnsupportedContentType},
		"another agent's context":      {foreign, a2a.ErrInvalidParams},
		"another agent's task":         {ended, a2a.ErrTaskNotFound},
		"a task that is none":          {&a2a.Message{ID: "m", Role: a2a.MessageRoleUser, TaskID: "x", Parts: a2a.ContentParts{a2a.TextPart{Text: "approve"}}}, a2a.ErrTaskNotFound},
		"a context that is none":       {&a2a.Message{ID: "m", Role: a2a.MessageRoleUser, ContextID: "../agents/coder", Parts: a2a.ContentParts{a2a.TextPart{Text: "x"}}}, a2a.ErrInvalidParams},
		"a messageId that is too long": {&a2a.Message{ID: strings.Repeat("m", 191), Role: a2a.MessageRoleUser, Parts: a2a.ContentParts{a2a.TextPart{Text: "x"}}}, a2a.ErrInvalidParams},
	} {
		if _, err := client.SendMessage(t.Context(), &a2a.MessageSendParams{Message: c.m}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	w.file("coder.yaml", fmt.Sprintf(agentYAML, "coder")+"  a2a: {enabled: false}\n")
	if _, err := client.SendMessage(t.Context(), &a2a.MessageSendParams{Message: text("hello")}); err == nil {
		t.Error("an agent whose block is switched off answers")
	}
}
