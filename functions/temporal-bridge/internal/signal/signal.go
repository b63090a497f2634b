// Package signal tells Temporal workflows what became of approvals, each once.
//
// A signal is a row. Temporal drops a second signal of one request id, but each
// run of a workflow knows only its own: so the run is committed before anything
// is sent, and a repeat, by whoever claims the row after a crash, goes to the same
// run with the same id. That a run has ended it says only of signals that it does
// not have: from then on the next run, if there is one, may have it.
package signal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// Name is the name of every signal that is sent.
const Name = "ApprovalSignal"

// Store keeps signals.
type Store interface {
	ClaimSignal(ctx context.Context, session harness.SessionID, lease postgres.Lease) (*postgres.SignalClaim, error)
	PinSignal(ctx context.Context, c *postgres.SignalClaim, run string) error
	MarkSignal(ctx context.Context, c *postgres.SignalClaim, o postgres.SignalOutcome) (harness.SignalState, error)
}

// Temporal is what is asked of its workflow service.
type Temporal interface {
	DescribeWorkflowExecution(ctx context.Context, in *workflowservice.DescribeWorkflowExecutionRequest, opts ...grpc.CallOption) (*workflowservice.DescribeWorkflowExecutionResponse, error)
	SignalWorkflowExecution(ctx context.Context, in *workflowservice.SignalWorkflowExecutionRequest, opts ...grpc.CallOption) (*workflowservice.SignalWorkflowExecutionResponse, error)
}

// Options are what a Sender needs.
type Options struct {
	Store     Store
	Temporal  Temporal // nil: nothing is sent
	Namespace string   // of sessions that name none
	Owner     string   // in leases
	Log       *slog.Logger
	Metrics   prometheus.Registerer
}

// Sender is the function.
type Sender struct {
	Options
	signals *prometheus.CounterVec
	off     sync.Once // told that nothing is sent
}

// New returns a Sender.
func New(o Options) *Sender {
	s := &Sender{Options: o, signals: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tuluat_signals_total", Help: "Attempts to tell a Temporal workflow of a decision, by the state of the signal afterwards.",
	}, []string{"state"})}
	o.Metrics.MustRegister(s.signals)
	return s
}

const (
	attemptTime = 20 * time.Second // of one attempt; it is over well before the lease
	leaseTime   = time.Minute
	markTime    = 5 * time.Second // for the statement that ends a claim
)

// Decided sends what waits for the workflow of the event's session. What Temporal
// does not take now is left to the sweep, when the row says.
func (s *Sender) Decided(ctx context.Context, e event.Event) error {
	if s.Temporal == nil {
		s.off.Do(func() { s.Log.Warn("TEMPORAL_ADDRESS is not set: no Temporal workflow is told of decisions") })
		return nil
	}
	session := e.Payload.Session
	if session == "" {
		return harness.Errorf(harness.Invalid, "the event names no session")
	}
	for ctx.Err() == nil {
		claim, err := s.Store.ClaimSignal(ctx, session, postgres.Lease{Owner: s.Owner, For: leaseTime})
		if errors.Is(err, postgres.ErrNothingDue) {
			return nil
		}
		if err != nil {
			return err
		}
		answered, err := s.attempt(ctx, claim)
		if err != nil && !errors.Is(err, postgres.ErrLeaseLost) {
			return err
		}
		if !answered {
			return nil // nor would it answer the next
		}
	}
	return nil
}

// attempt sends the claimed signal and marks what that came to. answered is false
// when Temporal said nothing about it.
func (s *Sender) attempt(ctx context.Context, c *postgres.SignalClaim) (answered bool, err error) {
	sending, cancel := context.WithTimeoutCause(ctx, attemptTime, fmt.Errorf("deadline of %s for Temporal", attemptTime))
	defer cancel()
	err = s.send(sending, c)
	if errors.Is(err, postgres.ErrLeaseLost) {
		return true, err
	}
	o := outcome(err, c.Attempts)
	if ctx.Err() != nil {
		o.Retry = 0 // we are ending, not Temporal
	}
	closing, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), markTime, errors.New("mark of a signal"))
	defer cancel()
	state, err := s.Store.MarkSignal(closing, c, o)
	if err != nil {
		return true, err
	}
	s.signals.WithLabelValues(string(state)).Inc()
	level := slog.LevelInfo
	if state != harness.SignalSent {
		level = slog.LevelWarn
	}
	s.Log.Log(ctx, level, "signal", "session", string(c.Session), "agent", string(c.Agent), "signal", string(c.ID), "workflow", c.Workflow, "run", c.Pinned,
		"state", string(state), "attempts", c.Attempts, "reason", o.Reason)
	return o.Sent || o.Refused, nil
}

// mostRuns bounds how many runs of a workflow one attempt tries, each of which may
// end while it is asked.
const mostRuns = 3

// send returns nil once a run of the workflow has the signal.
func (s *Sender) send(ctx context.Context, c *postgres.SignalClaim) error {
	if c.Run != "" {
		return s.signal(ctx, c, c.Run)
	}
	ended := c.Pinned
	var refusal error
	if c.Pinned != "" {
		if refusal = s.signal(ctx, c, c.Pinned); !gone(refusal) {
			return refusal
		}
	}
	for range mostRuns {
		run, err := s.currentRun(ctx, c)
		if err != nil {
			return err
		}
		if run == ended {
			return refusal // the newest run there is
		}
		if err := s.Store.PinSignal(ctx, c, run); err != nil {
			return err
		}
		if refusal = s.signal(ctx, c, run); !gone(refusal) {
			return refusal
		}
		ended = run
	}
	return serviceerror.NewUnavailable("the workflow's runs end too fast")
}

func (s *Sender) currentRun(ctx context.Context, c *postgres.SignalClaim) (string, error) {
	found, err := s.Temporal.DescribeWorkflowExecution(ctx, &workflowservice.DescribeWorkflowExecutionRequest{
		Namespace: s.namespace(c), Execution: &commonpb.WorkflowExecution{WorkflowId: c.Workflow},
	})
	if err != nil {
		return "", err
	}
	run := found.GetWorkflowExecutionInfo().GetExecution().GetRunId()
	if run == "" { // a signal without a run would have no repeat that Temporal knows
		return "", serviceerror.NewInternal("Temporal does not say which run of the workflow is the current one")
	}
	return run, nil
}

func (s *Sender) signal(ctx context.Context, c *postgres.SignalClaim, run string) error {
	data, err := json.Marshal(Decision{
		Approval: c.Approval, Session: c.Session, State: c.State, DecidedBy: c.DecidedBy, DecidedVia: string(c.DecidedVia),
		Reason: c.Reason, DecidedAt: c.DecidedAt.UTC(), Digest: c.Digest, Node: c.Node,
	})
	if err != nil {
		return err
	}
	_, err = s.Temporal.SignalWorkflowExecution(ctx, &workflowservice.SignalWorkflowExecutionRequest{
		Namespace: s.namespace(c), WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: c.Workflow, RunId: run},
		SignalName: Name, RequestId: string(c.ID), Identity: s.Owner,
		Input: &commonpb.Payloads{Payloads: []*commonpb.Payload{{Metadata: map[string][]byte{"encoding": []byte("json/plain")}, Data: data}}},
	})
	return err
}

func (s *Sender) namespace(c *postgres.SignalClaim) string {
	if c.Namespace != "" {
		return c.Namespace
	}
	return s.Namespace
}

// Decision is what a signal says.
type Decision struct {
	Approval   harness.ApprovalID    `json:"approval"`
	Session    harness.SessionID     `json:"session"`
	State      harness.ApprovalState `json:"state"`
	DecidedBy  string                `json:"decidedBy"`
	DecidedVia string                `json:"decidedVia"`
	Reason     string                `json:"reason"`
	DecidedAt  time.Time             `json:"decidedAt"`
	Digest     string                `json:"digest"`
	Node       string                `json:"node"`
}

// outcome is what the attempt of that number came to.
func outcome(err error, attempt int) postgres.SignalOutcome {
	if err == nil {
		return postgres.SignalOutcome{Sent: true}
	}
	return postgres.SignalOutcome{Reason: err.Error(), Refused: refuses(err), Retry: backoff(attempt)}
}

const (
	firstBackoff = 5 * time.Second
	maxBackoff   = 10 * time.Minute
)

// backoff doubles from attempt 1 on.
func backoff(attempt int) time.Duration {
	return min(maxBackoff, firstBackoff<<min(max(attempt-1, 0), 10))
}

// gone reports whether Temporal knows no such run, or one that has ended.
func gone(err error) bool {
	_, gone := errors.AsType[*serviceerror.NotFound](err)
	return gone
}

// refuses reports whether trying again would not help if err holds.
func refuses(err error) bool {
	_, namespace := errors.AsType[*serviceerror.NamespaceNotFound](err)
	_, denied := errors.AsType[*serviceerror.PermissionDenied](err)
	_, invalid := errors.AsType[*serviceerror.InvalidArgument](err)
	return gone(err) || namespace || denied || invalid
}
