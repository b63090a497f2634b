package signal_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.temporal.io/api/serviceerror"
	"go.uber.org/goleak"

	"tuluat.ai/harness/functions/temporal-bridge/internal/signal"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function/functiontest"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a database with a session that names workflow w, and a sender.
type world struct {
	*functiontest.Database
	sender *signal.Sender
}

func newWorld(t *testing.T, c signal.Connection) *world {
	t.Helper()
	w := &world{Database: functiontest.NewDatabase(t)}
	w.Agents("a")
	w.session("ses_1", `{"workflowId": "w"}`)
	client, err := signal.Connect(c, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	w.sender = signal.New(signal.Options{
		Store: w.Store, Temporal: client.WorkflowService(), Namespace: "standard", Owner: "test", Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Metrics: prometheus.NewRegistry(),
	})
	return w
}

func (w *world) session(id, link string) {
	w.T.Helper()
	w.Exec(`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state, temporal) VALUES ($1, 'a', 'API', 'a', $1, 'IDLE', $2)`, id, link)
}

// decide answers a new question of session ses_1 and returns the event.
func (w *world) decide(id string) event.Event {
	w.T.Helper()
	w.Exec(`INSERT INTO approvals (approval_id, session_id, agent_name, node_id, title, digest, state) VALUES ($1, 'ses_1', 'a', 'ask', 't', 'sha256:1', 'PENDING')`, id)
	_, events, err := w.Store.DecideApproval(context.Background(), postgres.Decision{
		ID: harness.ApprovalID(id), State: harness.ApprovalApproved, By: "ann", Via: harness.ChannelAPI, Reason: `it's "fine"`,
	})
	if err != nil || len(events) != 1 {
		w.T.Fatal(events, err)
	}
	return events[0]
}

// hear delivers e.
func (w *world) hear(e event.Event) {
	w.T.Helper()
	if err := w.sender.Decided(context.Background(), e); err != nil {
		w.T.Fatal(err)
	}
}

// later makes every backoff and lease a thing of the past.
func (w *world) later() {
	w.T.Helper()
	w.Exec(`UPDATE temporal_signals SET due_at = now(), lease_until = now() - interval '1 second' WHERE state = 'PENDING'`)
}

func (w *world) state() string {
	w.T.Helper()
	return w.Query(`SELECT string_agg(state || ' ' || attempts, '|' ORDER BY temporal_signal_id) FROM temporal_signals`)
}

// What was decided arrives as it was decided, and a repeat of the event changes
// nothing.
func TestADecisionArrivesOnce(t *testing.T) {
	f := serve(t)
	w := newWorld(t, signal.Connection{Address: f.address})
	e := w.decide("apr_1")
	w.hear(e)
	w.hear(e)
	if len(f.sent()) != 1 || w.state() != "SENT 1" {
		t.Fatalf("%d signals, %s", len(f.sent()), w.state())
	}
	s := f.sent()[0]
	at := w.Query(`SELECT to_char(decided_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US') FROM approvals`)
	decided, err := time.Parse("2006-01-02T15:04:05.999999", at)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%s %s %s %s %s %s %s", s.Namespace, s.WorkflowExecution.WorkflowId, s.WorkflowExecution.RunId, s.SignalName, s.RequestId, s.Input.Payloads[0].Metadata["encoding"], s.Input.Payloads[0].Data)
	want := `standard w run-1 ApprovalSignal sig_1 json/plain {"approval":"apr_1","session":"ses_1","state":"APPROVED","decidedBy":"ann","decidedVia":"API","reason":"it's \"fine\"","decidedAt":"` +
		decided.Format(time.RFC3339Nano) + `","digest":"sha256:1","node":"ask"}`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if logged := w.Query(`SELECT message FROM agent_execution_logs WHERE session_id = 'ses_1'`); logged != "the Temporal workflow w was told that approval apr_1 is APPROVED" {
		t.Error(logged)
	}
}

// A session's own namespace and run are used, and no run is asked for.
func TestTheSessionNamesTheRun(t *testing.T) {
	f := serve(t)
	w := newWorld(t, signal.Connection{Address: f.address})
	w.Exec(`UPDATE sessions SET temporal = '{"namespace": "orders", "workflowId": "w", "runId": "run-0"}'`)
	w.hear(w.decide("apr_1"))
	if len(f.sent()) != 1 || f.sent()[0].Namespace != "orders" || f.sent()[0].WorkflowExecution.RunId != "run-0" || f.requests != 1 {
		t.Errorf("%v, %d requests", f.sent(), f.requests)
	}
}

// Several that wait go out one after the other. When Temporal does not answer, the
// rest is not tried: it has its own announcements.
func TestWhatTemporalDoesNotTakeWaits(t *testing.T) {
	f := serve(t)
	w := newWorld(t, signal.Connection{Address: f.address})
	w.decide("apr_1")
	e := w.decide("apr_2")
	f.set(func() { f.answer = serviceerror.NewUnavailable("restarting") })
	w.hear(e)
	if got := w.state(); got != "PENDING 1|PENDING 0" || f.requests != 1 {
		t.Errorf("%s after %d requests", got, f.requests)
	}
	if due := w.Query(`SELECT (due_at - now() BETWEEN interval '3 seconds' AND interval '5 seconds')::text || reason FROM temporal_signals WHERE temporal_signal_id = 'sig_1'`); due != "truerestarting" {
		t.Errorf("due %s", due)
	}
	w.Exec(`UPDATE temporal_signals SET attempts = 40`)
	w.later()
	w.hear(e)
	if due := w.Query(`SELECT (max(due_at) - now() BETWEEN interval '9 minutes' AND interval '10 minutes')::text FROM temporal_signals`); due != "true" {
		t.Errorf("the longest backoff is more than ten minutes, or shorter: %s", w.Query(`SELECT max(due_at - now())::text FROM temporal_signals`))
	}
	w.later()
	f.set(func() { f.answer = nil })
	w.hear(e)
	if got := w.Query(`SELECT string_agg(state, ' ') FROM temporal_signals`); got != "SENT SENT" || len(f.sent()) != 2 {
		t.Errorf("%s, %d signals", got, len(f.sent()))
	}
}

// A refusal fails the signal when it has been the answer for long, not before.
func TestRefusals(t *testing.T) {
	for name, refusal := range map[string]error{
		"no workflow": serviceerror.NewNotFound("no such workflow"), "no namespace": serviceerror.NewNamespaceNotFound("standard"),
		"no right": serviceerror.NewPermissionDenied("not yours", ""), "no sense": serviceerror.NewInvalidArgument("bad id"),
	} {
		t.Run(name, func(t *testing.T) {
			f := serve(t)
			w := newWorld(t, signal.Connection{Address: f.address})
			f.set(func() { f.answer = refusal })
			e := w.decide("apr_1")
			w.hear(e)
			w.later()
			w.hear(e)
			if got := w.state(); got != "PENDING 2" {
				t.Fatalf("at once: %s", got)
			}
			w.Exec(`UPDATE temporal_signals SET refused_at = now() - interval '5 minutes'`)
			w.later()
			w.hear(e)
			w.hear(e)
			if got := w.state(); got != "FAILED 3" {
				t.Errorf("after five minutes: %s", got)
			}
			if logged := w.Query(`SELECT message FROM agent_execution_logs WHERE level = 'ERROR'`); !strings.HasPrefix(logged, "the Temporal workflow w is never told that approval apr_1 is APPROVED: ") || !strings.HasSuffix(logged, refusal.Error()) {
				t.Error(logged)
			}
		})
	}
	// Whoever has no right today may have it tomorrow, and so may who is not known.
	f := serve(t)
	w := newWorld(t, signal.Connection{Address: f.address})
	f.set(func() { f.answer = serviceerror.NewUnimplemented("old server") })
	e := w.decide("apr_1")
	w.Exec(`UPDATE temporal_signals SET refused_at = now() - interval '1 hour'`)
	w.hear(e)
	if got := w.state(); got != "PENDING 1" {
		t.Errorf("what is no refusal: %s", got)
	}
}

// Temporal took the signal, its answer was lost, and the workflow has gone on in a
// new run: the repeat goes to the run that has it.
func TestARepeatGoesToTheSameRun(t *testing.T) {
	f := serve(t)
	w := newWorld(t, signal.Connection{Address: f.address})
	f.set(func() { f.lost = serviceerror.NewUnavailable("connection reset") })
	e := w.decide("apr_1")
	w.hear(e)
	f.set(func() { f.lost, f.current, f.ended["run-1"] = nil, "run-2", true })
	w.later()
	w.hear(e)
	if w.state() != "SENT 2" || len(f.sent()) != 1 {
		t.Errorf("%s, %d signals", w.state(), len(f.sent()))
	}
}

// The run that was to have the signal ended without it: the next one has it. When
// there is no next one, that is a refusal.
func TestTheNextRunIsTold(t *testing.T) {
	f := serve(t)
	w := newWorld(t, signal.Connection{Address: f.address})
	e := w.decide("apr_1")
	w.Exec(`UPDATE temporal_signals SET pinned_run = 'run-1'`)
	f.set(func() { f.ended["run-1"] = true })
	w.hear(e)
	if got := w.Query(`SELECT state || ' ' || pinned_run || ' ' || reason || ' ' || (refused_at IS NOT NULL) FROM temporal_signals`); got != "PENDING run-1 workflow execution already completed true" {
		t.Error(got)
	}
	f.set(func() { f.current = "run-2" })
	w.later()
	w.hear(e)
	if len(f.sent()) != 1 || f.sent()[0].WorkflowExecution.RunId != "run-2" || w.Query(`SELECT state || ' ' || pinned_run FROM temporal_signals`) != "SENT run-2" {
		t.Errorf("%s, %v", w.state(), f.sent())
	}
}

// A process that is told to end gives the signal back: it is due at once.
func TestAnEndingFunctionGivesTheSignalBack(t *testing.T) {
	f := serve(t)
	w := newWorld(t, signal.Connection{Address: f.address})
	e := w.decide("apr_1")
	f.set(func() { f.hold, f.held = make(chan struct{}), make(chan struct{}) })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.sender.Decided(ctx, e) }()
	<-f.held
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	close(f.hold)
	f.set(func() { f.hold = nil })
	if got := w.Query(`SELECT state || ' ' || (lease_owner IS NULL) || ' ' || (due_at <= now()) FROM temporal_signals`); got != "PENDING true true" {
		t.Error(got)
	}
	w.hear(e)
	if w.state() != "SENT 2" || len(f.sent()) != 1 {
		t.Errorf("%s, %d signals", w.state(), len(f.sent()))
	}
}

// Somebody else claimed the signal while we were slow: we write nothing, and
// Temporal drops the second of two.
func TestALostLeaseWritesNothing(t *testing.T) {
	f := serve(t)
	w := newWorld(t, signal.Connection{Address: f.address})
	e := w.decide("apr_1")
	f.set(func() { f.hold, f.held = make(chan struct{}), make(chan struct{}) })
	done := make(chan error, 1)
	go func() { done <- w.sender.Decided(context.Background(), e) }()
	<-f.held
	w.Exec(`UPDATE temporal_signals SET lease_token = lease_token + 1, lease_owner = 'another', lease_until = now() + interval '1 hour'`)
	f.set(func() { close(f.hold); f.hold = nil })
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := w.Query(`SELECT state || ' ' || lease_owner FROM temporal_signals`); got != "PENDING another" {
		t.Error(got)
	}
	w.later()
	w.hear(e)
	if w.state() != "SENT 2" || len(f.sent()) != 1 {
		t.Errorf("%s, %d signals", w.state(), len(f.sent()))
	}
}

func TestAnEventWithoutASession(t *testing.T) {
	f := serve(t)
	w := newWorld(t, signal.Connection{Address: f.address})
	if err := w.sender.Decided(context.Background(), event.Event{ID: "1", Type: event.ApprovalDecided}); harness.KindOf(err) != harness.Invalid {
		t.Errorf("got %v", err)
	}
	w.hear(event.Event{ID: "1", Type: event.ApprovalDecided, Payload: event.Payload{Session: "ses_none"}})
	w.Store.Close()
	if err := w.sender.Decided(context.Background(), event.Event{ID: "1", Type: event.ApprovalDecided, Payload: event.Payload{Session: "ses_1"}}); err == nil || errors.Is(err, postgres.ErrNothingDue) {
		t.Errorf("without a database: %v", err)
	}
}
