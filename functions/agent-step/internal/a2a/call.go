package a2a

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/a2a"

	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// The methods of the protocol that are used.
const (
	methodSend = "message/send"
	methodGet  = "tasks/get"
)

// arguments are those of both tools.
type arguments struct {
	Text    string `json:"text"`
	Context string `json:"context"`
	Task    string `json:"task"`
}

// Call implements step.Tools.
func (p *Peers) Call(ctx context.Context, c *postgres.Claim, call step.RemoteCall) step.Outcome {
	peer, ok := find(c.Agent, call.Remote)
	if !ok {
		return failed("Not run: the agent does not have this tool any more.")
	}
	in, wrong := read(call)
	if wrong != "" {
		return failed("Not run: " + wrong)
	}
	known, ok, err := p.book.Kept(ctx, c.Session.Agent, peer.Name, peer.Digest())
	if err != nil || !ok {
		return failed(notRun(peer, harness.Errorf(harness.Unavailable, "its card is not known here")))
	}
	w, err := p.open(ctx, c.Session.Agent, peer)
	if err != nil {
		return failed(notRun(peer, err))
	}
	var event a2a.Event
	if call.Remote.Tool == toolTask {
		event, err = w.task(ctx, known.URL, a2a.TaskID(in.Task))
	} else {
		event, err = w.send(ctx, known.URL, call.ID, in)
	}
	if err != nil {
		p.Log.Warn("a call of a peer failed", "agent", string(c.Session.Agent), "server", peer.Name, "err", err)
		return w.unanswered(call.Remote.Tool, err)
	}
	if task, ok := event.(*a2a.Task); ok {
		return p.follow(ctx, w, known.URL, task)
	}
	return step.Outcome{State: harness.ToolCallDone, Text: w.text(event.TaskInfo(), event)}
}

// read reads the arguments of a call, or says what is wrong with them.
func read(call step.RemoteCall) (in arguments, wrong string) {
	decoder := json.NewDecoder(bytes.NewReader(call.Arguments))
	decoder.DisallowUnknownFields()
	switch err := decoder.Decode(&in); {
	case err != nil:
		return in, "the arguments are not the texts that this tool takes."
	case call.Remote.Tool == toolTask && in.Task == "":
		return in, "the argument task is missing: it is the task of an earlier answer."
	case call.Remote.Tool == toolSend && strings.TrimSpace(in.Text) == "":
		return in, "the argument text is missing."
	}
	return in, ""
}

// send sends the message of a call. Its id is the call's, so that a peer that gets it
// twice can tell.
func (w *wire) send(ctx context.Context, address string, id harness.ToolCallID, in arguments) (a2a.Event, error) {
	blocking, history := false, 0
	return w.call(ctx, address, methodSend, a2a.MessageSendParams{
		Message: &a2a.Message{ID: string(id), Role: a2a.MessageRoleUser, ContextID: in.Context, TaskID: a2a.TaskID(in.Task), Parts: a2a.ContentParts{a2a.TextPart{Text: in.Text}}},
		Config:  &a2a.MessageSendConfig{Blocking: &blocking, HistoryLength: &history},
	})
}

// task asks how a task stands.
func (w *wire) task(ctx context.Context, address string, id a2a.TaskID) (a2a.Event, error) {
	history := 0
	return w.call(ctx, address, methodGet, a2a.TaskQueryParams{ID: id, HistoryLength: &history})
}

// follow waits until the task goes on no more by itself, or the call's time is over.
// A look that fails is made again: it changes nothing at the peer.
func (p *Peers) follow(ctx context.Context, w *wire, address string, task *a2a.Task) step.Outcome {
	var problem error
	for pause := p.LookAfter; !settled(task.Status.State); pause = min(2*pause, lookEvery) {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return w.unfinished(task, problem)
		}
		event, err := w.task(ctx, address, task.ID)
		switch {
		case err == nil:
			next := event.(*a2a.Task)
			next.ID = task.ID // it is what was asked for
			task, problem = next, nil
		case ctx.Err() != nil:
			return w.unfinished(task, problem)
		case harness.KindOf(err) != harness.Unavailable: // it will not be otherwise
			p.Log.Warn("a task of a peer cannot be looked at", "server", w.peer.Name, "err", err)
			o := w.unanswered(toolTask, err)
			o.Text = w.text(task, nil) + "\n" + o.Text
			return o
		default:
			problem = err
		}
	}
	return w.ended(task)
}

// settled reports whether nothing comes of a task by itself.
func settled(s a2a.TaskState) bool {
	return s.Terminal() || s == a2a.TaskStateInputRequired || s == a2a.TaskStateAuthRequired
}

func failed(note string) step.Outcome {
	return step.Outcome{State: harness.ToolCallFailed, Note: note}
}

func notRun(peer harness.Peer, err error) string {
	return fmt.Sprintf("Not run: the agent %s cannot be asked now: %s.", peer.Name, harness.MessageOf(err))
}

// unanswered is what the model is told of a request without an answer.
func (w *wire) unanswered(tool string, err error) step.Outcome {
	if r, ok := errors.AsType[*refusal](err); ok {
		return step.Outcome{
			State: harness.ToolCallFailed, Note: fmt.Sprintf("The agent %s refused (error %d).", w.peer.Name, r.Code), Text: harness.Redact(r.Message, w.secrets),
		}
	}
	switch {
	case tool == toolTask:
		return failed(fmt.Sprintf("How the task stands at the agent %s is not known: %s.", w.peer.Name, harness.MessageOf(err)))
	case !w.reached.Load(), harness.KindOf(err) == harness.Denied:
		return failed(notRun(w.peer, err))
	case harness.KindOf(err) == harness.Exhausted:
		return failed(fmt.Sprintf("The agent %s answered, but %s, so it was not read. Ask for less.", w.peer.Name, harness.MessageOf(err)))
	}
	return failed(fmt.Sprintf("There is no answer of the agent %s: %s. It may have the message, which was not sent again.", w.peer.Name, harness.MessageOf(err)))
}

// unfinished is what the model is told of a task that takes longer than the call.
func (w *wire) unfinished(task *a2a.Task, problem error) step.Outcome {
	note := fmt.Sprintf("The agent %s has not ended the task yet. Ask for it later by %s__%s, with the task below.", w.peer.Name, w.peer.Name, toolTask)
	if problem != nil {
		note += fmt.Sprintf(" When it was last asked, %s.", harness.MessageOf(problem))
	}
	return step.Outcome{State: harness.ToolCallDone, Note: note, Text: w.text(task, task)}
}

// ended is what the model is told of a task that goes on no more by itself.
func (w *wire) ended(task *a2a.Task) step.Outcome {
	o := step.Outcome{State: harness.ToolCallFailed, Text: w.text(task, task)}
	name := w.peer.Name
	switch task.Status.State {
	case a2a.TaskStateCompleted:
		o.State, o.Note = harness.ToolCallDone, fmt.Sprintf("The agent %s has completed the task.", name)
	case a2a.TaskStateInputRequired:
		o.State, o.Note = harness.ToolCallDone, fmt.Sprintf("The agent %s asks for something before it goes on. You may answer by %s__%s with the task and the context below; what only a person can say, ask them.", name, name, toolSend)
	case a2a.TaskStateAuthRequired:
		o.Note = fmt.Sprintf("The agent %s wants to know by other means who asks. You cannot give it credentials: tell the person.", name)
	case a2a.TaskStateRejected:
		o.Note = fmt.Sprintf("The agent %s refuses the task.", name)
	case a2a.TaskStateCanceled:
		o.Note = fmt.Sprintf("The task was cancelled at the agent %s.", name)
	default:
		o.Note = fmt.Sprintf("The agent %s says that the task failed.", name)
	}
	return o
}

// text is what a peer says: the names to go on by, then its words, of a task first
// what it made and then what it says of it. All of it is data.
func (w *wire) text(id a2a.TaskInfoProvider, said a2a.Event) string {
	info := id.TaskInfo()
	var lines []string
	if info.TaskID != "" {
		lines = append(lines, "task: "+string(info.TaskID))
	}
	if info.ContextID != "" {
		lines = append(lines, "context: "+info.ContextID)
	}
	switch e := said.(type) {
	case *a2a.Message:
		lines = append(lines, words(e.Parts)...)
	case *a2a.Task:
		for _, artifact := range e.Artifacts {
			if artifact != nil {
				lines = append(lines, words(artifact.Parts)...)
			}
		}
		if e.Status.Message != nil {
			lines = append(lines, words(e.Status.Message.Parts)...)
		}
	}
	return harness.Redact(harness.CleanText(strings.Join(lines, "\n")), w.secrets)
}

// words are the texts of parts, and of all else what it is.
func words(parts a2a.ContentParts) []string {
	var all []string
	for _, part := range parts {
		switch p := part.(type) {
		case a2a.TextPart:
			all = append(all, p.Text)
		case a2a.DataPart:
			text, err := json.Marshal(p.Data)
			if err == nil {
				all = append(all, fmt.Sprintf("[Data, %d bytes of JSON: it is not shown.]", len(text)))
			}
		case a2a.FilePart:
			switch f := p.File.(type) {
			case a2a.FileBytes:
				all = append(all, fmt.Sprintf("[A file, %s, about %d bytes: it is not shown.]", mimeType(f.MimeType), base64.StdEncoding.DecodedLen(len(f.Bytes))))
			case a2a.FileURI:
				all = append(all, fmt.Sprintf("[A file elsewhere, %s: it is not fetched.]", mimeType(f.MimeType)))
			}
		}
	}
	return all
}

// mimeType is a type as a peer says it, short.
func mimeType(said string) string {
	if said == "" {
		return "of unknown type"
	}
	return cut(harness.CleanText(said), 100)
}
