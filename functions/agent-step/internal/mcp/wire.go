package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"tuluat.ai/harness/functions/agent-step/internal/failure"
	"tuluat.ai/harness/shared/dial"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/secret"
)

// wire is one session with a server: the requests of the SDK with the agent's
// headers, bounded, and what went wrong with them, which the SDK says as text
// only. Nothing of it outlives close.
type wire struct {
	base    http.RoundTripper
	server  harness.MCPServer
	headers http.Header
	secrets []harness.Secret // the values of headers
	most    int64            // bytes of one answer

	session *sdk.ClientSession
	calling atomic.Bool // the call is being sent: what went wrong before did not run it

	life context.Context // of every request
	end  context.CancelFunc

	mu       sync.Mutex
	ended    bool
	problem  error // the first
	reached  bool  // a request of the call may have come to the server
	requests sync.WaitGroup
}

// What may be wrong with a request.
var (
	errEnded    = errors.New("the session with the server has ended")
	errTooLarge = errors.New("the answer is too large")
	errRedirect = errors.New("the server redirects elsewhere")
)

// statusError is an answer that is no success.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("the server answered %d", int(e)) }

// open prepares a session. It reads the agent's headers and talks to no server.
// harness.Invalid: they cannot be used; its message is for people.
func (s *Servers) open(ctx context.Context, agent harness.AgentName, server harness.MCPServer, most int64) (*wire, error) {
	headers, err := secret.ReadHeaders(ctx, s.Secrets, agent, server.Headers)
	if err != nil {
		return nil, err
	}
	w := &wire{base: s.transport, server: server, most: most, headers: headers, secrets: secret.HeaderSecrets(headers)}
	w.life, w.end = context.WithCancel(context.WithoutCancel(ctx))
	return w, nil
}

// resumes is how often the SDK fetches the rest of an answer that broke off, where
// the server keeps it: the tool is not called again by that.
const resumes = 2

// connect begins the session. It answers no request of the server's: neither for
// the model, nor for a person, nor for files.
func (w *wire) connect(ctx context.Context) (*sdk.ClientSession, error) {
	client := sdk.NewClient(&sdk.Implementation{Name: "tuluat-harness", Version: "1"}, &sdk.ClientOptions{
		Capabilities:   &sdk.ClientCapabilities{},
		MultiRoundTrip: &sdk.MultiRoundTripOptions{Disabled: true}, // it would call the tool again
	})
	session, err := client.Connect(ctx, &sdk.StreamableClientTransport{
		Endpoint: w.server.URL, HTTPClient: &http.Client{Transport: w, CheckRedirect: w.redirect}, MaxRetries: resumes, DisableStandaloneSSE: true, MaxEventSize: int(w.most),
	}, nil)
	w.session = session
	return session, err
}

// closing is how long the server is given to hear that the session is over.
const closing = 2 * time.Second

// close ends the session and waits for all that belongs to it.
func (w *wire) close() {
	timer := time.AfterFunc(closing, w.end)
	defer timer.Stop()
	if w.session != nil {
		_ = w.session.Close() // the session is over for us, whatever the server says
	}
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
	w.end()
	w.requests.Wait()
}

// redirect lets a request be sent on to another path of the same server. It is a
// request that was not served: the one that follows is the first.
func (w *wire) redirect(r *http.Request, via []*http.Request) error {
	from := via[0]
	if len(via) < 3 && r.Method == from.Method && r.URL.Scheme == from.URL.Scheme && r.URL.Host == from.URL.Host {
		return nil
	}
	w.fail(errRedirect)
	return http.ErrUseLastResponse
}

// fail remembers the first thing that went wrong.
func (w *wire) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.problem == nil {
		w.problem = err
	}
}

// next forgets what went wrong: all is well so far.
func (w *wire) next() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problem = nil
}

// call says that from now on a request may run the tool.
func (w *wire) call() {
	w.next()
	w.calling.Store(true)
}

// enter counts a request, unless the session is over.
func (w *wire) enter() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.requests.Add(1)
	}
	return !w.ended
}

// RoundTrip implements http.RoundTripper.
func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if !w.enter() {
		return nil, errEnded
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(w.life, func() { cancel(errEnded) })
	leave := sync.OnceFunc(func() { stop(); cancel(nil); w.requests.Done() })
	if w.calling.Load() {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: w.reach})
	}
	out := r.Clone(ctx)
	out.GetBody = nil // with it, Go's client may send the request once more by itself
	for name, values := range w.headers {
		if len(out.Header.Values(name)) == 0 { // the protocol's own stand
			out.Header[name] = values
		}
	}
	out.Header.Set("User-Agent", "tuluat-harness")
	response, err := w.base.RoundTrip(out)
	if err != nil {
		w.fail(err)
		leave()
		return nil, err
	}
	w.note(response.StatusCode)
	response.Body = &bounded{ReadCloser: response.Body, left: w.most, wire: w, leave: leave}
	return response, nil
}

// reach is called before the end of a request is sent.
func (w *wire) reach() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reached = true
}

// note remembers an answer that is no success. Older servers refuse the first
// question of the SDK, which then asks in their way.
func (w *wire) note(status int) {
	if status >= http.StatusBadRequest && (w.calling.Load() || status == http.StatusUnauthorized || status == http.StatusForbidden || status >= http.StatusInternalServerError) {
		w.fail(statusError(status))
	}
}

// bounded is an answer's body of which no more than left bytes are read.
type bounded struct {
	io.ReadCloser
	left  int64
	wire  *wire
	leave func()
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		b.wire.fail(errTooLarge)
		return 0, errTooLarge
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		b.wire.fail(err)
	}
	return n, err
}

func (b *bounded) Close() error {
	err := b.ReadCloser.Close()
	b.leave()
	return err
}

// rejected is the code under which the SDK reports that a request failed on its
// way: no answer of a server.
const rejected = -32005

// why says in words of our own why the server gave no answer. err is the SDK's.
func (w *wire) why(ctx context.Context, err error) error {
	w.mu.Lock()
	problem := w.problem
	w.mu.Unlock()
	status, refused := errors.AsType[statusError](problem)
	rpc, answered := errors.AsType[*jsonrpc.Error](err)
	answered = answered && rpc.Code != rejected && (problem == nil || refused && status < http.StatusInternalServerError)
	err = errors.New(w.redacted(err))
	switch {
	case failure.Stopped(ctx), errors.Is(problem, dial.ErrPrivate):
		return failure.Unanswered(ctx, problem, err)
	case errors.Is(problem, errTooLarge):
		return failure.TooLong(w.most, err)
	case errors.Is(problem, errRedirect):
		return failure.Redirected(err)
	case answered && !failure.Access(int(status)):
		return failure.Answered(rpc.Code, err)
	case refused:
		return failure.Status(int(status), err)
	case ctx.Err() != nil, problem != nil:
		return failure.Unanswered(ctx, problem, err)
	}
	return harness.Wrap(harness.Unavailable, err, "it gave no answer that is of the Model Context Protocol")
}

// redacted is err for a log: without the values of headers, and without an address
// that may hold more than an address.
func (w *wire) redacted(err error) string {
	text := strings.ReplaceAll(err.Error(), w.server.URL, "url")
	return cut(harness.Redact(harness.CleanText(text), w.secrets), 500)
}
