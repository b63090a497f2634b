package a2a

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"

	"github.com/a2aproject/a2a-go/a2a"

	"tuluat.ai/harness/functions/agent-step/internal/failure"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/secret"
)

const (
	maxAnswer = 2 << 20 // bytes of one answer: a step makes four calls and a process works eight steps
	maxID     = 1024    // bytes of what a peer calls a task or a context
)

// wire are the requests of one call, or for one card.
type wire struct {
	http    *http.Client
	peer    harness.Peer
	headers http.Header
	secrets []harness.Secret // the values of headers
	reached atomic.Bool      // a request may have come to the peer
}

// open prepares requests to a peer. It reads the agent's headers and talks to no
// peer. harness.Invalid: they cannot be used; its message is for people.
func (p *Peers) open(ctx context.Context, agent harness.AgentName, peer harness.Peer) (*wire, error) {
	headers, err := secret.ReadHeaders(ctx, p.Secrets, agent, peer.Headers)
	if err != nil {
		return nil, err
	}
	return &wire{http: p.http, peer: peer, headers: headers, secrets: secret.HeaderSecrets(headers)}, nil
}

// do makes one request and returns the body of its answer, at most most bytes. The
// error's message says in words of our own why there is none.
func (w *wire) do(ctx context.Context, method, address string, body []byte, most int64) ([]byte, error) {
	trace := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { w.reached.Store(true) }})
	r, err := http.NewRequestWithContext(trace, method, address, bytes.NewReader(body))
	if err != nil { // its text holds the address
		return nil, harness.Errorf(harness.Invalid, "its address is none")
	}
	r.GetBody = nil // with it, Go's client may send the request once more by itself
	r.Header = w.headers.Clone()
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "tuluat-harness")
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	response, err := w.http.Do(r)
	if err != nil {
		return nil, w.broken(ctx, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, most+1))
	status := response.StatusCode
	switch {
	case failure.Access(status):
		return nil, failure.Status(status, nil)
	case status >= 300 && status < 400:
		return nil, failure.Redirected(nil)
	case err != nil:
		return nil, w.broken(ctx, err)
	case int64(len(text)) > most:
		return nil, failure.TooLong(most, nil)
	case status >= 400 && status < 500 && method == http.MethodPost && refusalOf(text) != nil:
		return text, nil // some say so twice
	case status != http.StatusOK:
		return nil, failure.Status(status, nil)
	}
	return text, nil
}

// broken says why a request has no answer.
func (w *wire) broken(ctx context.Context, err error) error {
	if request, ok := errors.AsType[*url.Error](err); ok { // it holds the address
		err = request.Err
	}
	return failure.Unanswered(ctx, err, errors.New(cut(harness.Redact(harness.CleanText(err.Error()), w.secrets), 500)))
}

// refusal is an error in the terms of JSON-RPC.
type refusal struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (r *refusal) Error() string { return fmt.Sprintf("error %d", r.Code) }

type answer struct {
	Result json.RawMessage `json:"result"`
	Error  *refusal        `json:"error"`
}

func refusalOf(text []byte) *refusal {
	var a answer
	if json.Unmarshal(text, &a) != nil {
		return nil
	}
	return a.Error
}

// call makes one request of JSON-RPC. An error that is a *refusal is the peer's own.
func (w *wire) call(ctx context.Context, address, method string, params any) (a2a.Event, error) {
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": "1", "method": method, "params": params})
	if err != nil {
		return nil, harness.Wrap(harness.Internal, err, "the request cannot be written")
	}
	text, err := w.do(ctx, http.MethodPost, address, body, maxAnswer)
	if err != nil {
		return nil, err
	}
	var a answer
	if err := json.Unmarshal(text, &a); err != nil {
		return nil, harness.Errorf(harness.Unavailable, noProtocol)
	}
	if a.Error != nil {
		return nil, failure.Answered(int64(a.Error.Code), a.Error)
	}
	event, err := result(method, a.Result)
	if err != nil {
		return nil, harness.Errorf(harness.Unavailable, noProtocol)
	}
	return event, nil
}

const noProtocol = "it gave no answer that is of the Agent2Agent protocol 0.3"

// result reads the task or the message of an answer.
func result(method string, text json.RawMessage) (a2a.Event, error) {
	var event a2a.Event
	var err error
	if method == methodGet { // always a task, and not always said so
		var task *a2a.Task
		err = json.Unmarshal(text, &task)
		event = task
		if task == nil {
			return nil, errors.New("there is no task")
		}
	} else {
		event, err = a2a.UnmarshalEventJSON(text)
	}
	if err != nil {
		return nil, err
	}
	id, named := event.TaskInfo(), true
	switch e := event.(type) {
	case *a2a.Task:
		named = e.ID != ""
	case *a2a.Message:
	default:
		return nil, errors.New("it is neither a task nor a message")
	}
	if !named || len(id.TaskID) > maxID || len(id.ContextID) > maxID {
		return nil, errors.New("a name in it is missing or too long")
	}
	return event, nil
}
