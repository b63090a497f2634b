package reap_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/functions/reaper-cron/internal/reap"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// direct makes a subscriber that gets session.due and message.received directly.
func (w *world) direct() *listener {
	w.t.Helper()
	sink := listen(w.t)
	w.options.Direct = map[reap.Sink][]string{{Type: event.SessionDue}: {sink.URL}, {Type: event.MessageReceived}: {sink.URL}}
	return sink
}

// The broker gets an announcement twice; then its subscriber gets it. What has
// no direct address goes to the broker for ever.
func TestWhatTheBrokerDoesNotDeliverGoesDirectly(t *testing.T) {
	w := newWorld(t)
	w.agent()
	sink := w.direct()
	w.session("ses_1", `due_at = now() - interval '1 hour', lease_token = 5`)
	w.announcement("message.received:msg_1", event.MessageReceived, "ses_1", `due_at = now() - interval '1 minute'`)
	w.announcement("execution.finished:exe_1", event.ExecutionFinished, "ses_1", `due_at = now() - interval '1 minute'`)
	ids := []string{"execution.finished:exe_1", "message.received:msg_1", "session.due:ses_1:5"}
	timePasses := func() {
		w.sql(`UPDATE outbox SET due_at = now()`, `UPDATE sessions SET announced_at = announced_at - interval '1 minute'`)
	}
	w.pass()
	if diff := cmp.Diff(ids, w.broker.heard()); diff != "" || len(sink.heard()) > 0 {
		t.Fatalf("the broker first (-want +got):\n%s", diff)
	}
	timePasses()
	w.pass()
	if diff := cmp.Diff(ids[:1], w.broker.heard()); diff != "" {
		t.Errorf("the broker then (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(ids[1:], sink.heard()); diff != "" {
		t.Errorf("the subscriber (-want +got):\n%s", diff)
	}
	// Somebody hears, and more work comes: the broker has another chance.
	claim, err := w.store.ClaimSession(context.Background(), "ses_1", postgres.Lease{Owner: "t", For: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	w.sql(`UPDATE sessions SET due_at = now() - interval '1 hour', lease_owner = NULL, lease_until = NULL`)
	timePasses()
	w.pass()
	if diff := cmp.Diff([]string{"session.due:ses_1:6"}, w.broker.heard()); diff != "" || claim.Token != 6 || len(sink.heard()) > 0 {
		t.Errorf("after a claim (-want +got):\n%s", diff)
	}
}

func TestARefusingBrokerIsPassedBy(t *testing.T) {
	w := newWorld(t)
	w.agent()
	sink := w.direct()
	w.broker.status = 500
	w.session("ses_1", `due_at = now() - interval '1 hour'`)
	w.announcement("message.reply:msg_1", event.MessageReply, "ses_1", `due_at = now() - interval '1 minute'`)
	got := w.pass()
	if f := got["sessions"]; f.Done != 1 || f.Error != "" {
		t.Errorf("sessions: %+v", f)
	}
	if f := got["announcements"]; f.Left != 1 || f.Error == "" {
		t.Errorf("announcements without a direct address: %+v", f)
	}
	if diff := cmp.Diff([]string{"session.due:ses_1:0"}, sink.heard()); diff != "" {
		t.Error(diff)
	}
	if attempts := query[int](w, `SELECT attempts FROM outbox WHERE due_at > now()`); attempts != 2 {
		t.Errorf("the announcement that failed has %d attempts: it must be due again later", attempts)
	}
}

// A subscriber works within the request: one that is still at it when we stop
// waiting has taken the event.
func TestASlowSubscriberHasTakenTheEvent(t *testing.T) {
	w := newWorld(t)
	w.agent()
	sink := w.direct()
	sink.hold = make(chan struct{})
	defer close(sink.hold)
	w.session("ses_1", `due_at = now() - interval '1 hour', announced_at = now() - interval '1 hour', announced_token = lease_token`)
	if got := w.pass(); got["sessions"].Done != 1 || got["sessions"].Error != "" {
		t.Errorf("sessions: %+v", got["sessions"])
	}
	if len(w.broker.heard()) > 0 {
		t.Error("the broker got it a third time")
	}
}

// A timer that falls due while the request stays is announced then, not a
// minute later; when nothing falls due the request ends.
func TestShortTimers(t *testing.T) {
	w := newWorld(t)
	w.agent()
	w.options.Stay = 30 * time.Second
	w.session("ses_soon", `due_at = now() + interval '2 seconds', retry_at = now() + interval '2 seconds'`)
	w.session("ses_later", `due_at = now() + interval '1 hour', retry_at = now() + interval '1 hour'`)
	began := time.Now()
	done := make(chan error, 1)
	go func() { done <- w.sweep(w.options) }()
	// The session is claimed once it has been woken: then nothing keeps the sweep.
	for query[bool](w, `SELECT announced_at IS NULL FROM sessions WHERE session_id = 'ses_soon'`) {
		select {
		case err := <-done:
			t.Fatalf("the request ended before the timer: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	if woken := time.Since(began); woken < 1500*time.Millisecond {
		t.Errorf("woken after %v, before it was due", woken)
	}
	w.sql(`UPDATE sessions SET due_at = NULL, retry_at = NULL WHERE session_id = 'ses_soon'`)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 25*time.Second {
		t.Errorf("the request stayed %v for nothing", took)
	}
	if diff := cmp.Diff([]string{"session.due:ses_soon:0"}, w.broker.heard()); diff != "" {
		t.Error(diff)
	}
	if reports := query[int](w, `SELECT count(*) FROM sweep_reports`); reports != 1 {
		t.Errorf("%d reports of one pass", reports)
	}
}

func TestStayZeroIsOnePass(t *testing.T) {
	w := newWorld(t)
	w.agent()
	w.session("ses_soon", `due_at = now() + interval '10 seconds', retry_at = now() + interval '10 seconds'`)
	began := time.Now()
	w.pass()
	if took := time.Since(began); took > 8*time.Second || len(w.broker.heard()) > 0 {
		t.Errorf("one pass took %v", took)
	}
}

// A drain ends the wait at once and gives the lease back.
func TestDrain(t *testing.T) {
	w := newWorld(t)
	w.agent()
	w.options.Stay = time.Minute
	w.session("ses_soon", `due_at = now() + interval '50 seconds', retry_at = now() + interval '50 seconds'`)
	done := make(chan error, 1)
	go func() { done <- w.sweep(w.options) }()
	for query[int](w, `SELECT count(*) FROM sweep_reports`) == 0 { // the pass is over, the wait begins
		select {
		case err := <-done:
			t.Fatalf("the request did not stay: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	close(w.stop)
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the drain did not end the request")
	}
	if held := query[bool](w, `SELECT lease_owner IS NOT NULL FROM sweeps`); held {
		t.Error("the lease is kept")
	}
	// A pass that begins while the process drains does nothing and is not full.
	w.neglectNothingButASession()
	if err := w.sweep(w.options); err != nil {
		t.Error(err)
	}
	if len(w.broker.heard()) > 0 {
		t.Error("a draining process began work")
	}
}

func (w *world) neglectNothingButASession() {
	w.t.Helper()
	w.session("ses_due", `due_at = now() - interval '1 hour'`)
}

// Whoever loses the lease while it stays stops: somebody else sweeps.
func TestALostLeaseEndsTheRequest(t *testing.T) {
	w := newWorld(t)
	w.agent()
	w.options.Store = &thief{Store: w.store, w: w}
	w.session("ses_due", `due_at = now() - interval '1 hour'`)
	if err := w.sweep(w.options); err != nil {
		t.Errorf("a lost lease is no failure of the delivery: %v", err)
	}
	if token := query[int](w, `SELECT lease_token FROM sweeps WHERE lease_owner = 'thief'`); token != 2 {
		t.Errorf("the thief's lease was taken away: token %d", token)
	}
	if reports := query[int](w, `SELECT count(*) FROM sweep_reports`); reports != 0 {
		t.Error("a pass without the lease was reported")
	}
}

// thief takes the lease away in the middle of a pass.
type thief struct {
	*postgres.Store
	w *world
}

func (s *thief) CompleteIdle(ctx context.Context, limit int) (int, error) {
	s.w.sql(`UPDATE sweeps SET lease_owner = 'thief', lease_token = lease_token + 1, lease_until = now() + interval '1 hour'`)
	return s.Store.CompleteIdle(ctx, limit)
}

// One wake for all statuses that are behind, and none while none is.
func TestStatusesThatAreBehindAreFreshenedByOneWake(t *testing.T) {
	w := newWorld(t)
	var texts []postgres.AgentText
	for _, name := range []harness.AgentName{"coder", "other", "third"} {
		texts = append(texts, postgres.AgentText{Name: name, Source: "test", Generation: 1, Agent: &harness.Agent{Name: name}})
	}
	if _, _, err := w.store.PutAgents(context.Background(), texts, nil); err != nil {
		t.Fatal(err)
	}
	standings, err := w.store.Standings(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.store.StatusIs(context.Background(), standings); err != nil {
		t.Fatal(err)
	}
	if got := w.pass()["agent_status"]; got != (postgres.Finding{}) || len(w.broker.heard()) > 0 {
		t.Fatalf("nothing is behind: %+v", got)
	}
	sink := listen(t)
	w.options.Direct = map[reap.Sink][]string{{Type: event.SessionChanged}: {sink.URL}}
	w.session("ses_1", `updated_at = now()`)
	w.sql(`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state) VALUES ('ses_2', 'other', 'WEBHOOK', 'o', 'c', 'RUNNING')`)
	if got := w.pass()["agent_status"]; got != (postgres.Finding{Found: 2, Done: 2}) {
		t.Errorf("two are behind: %+v", got)
	}
	if heard := sink.heard(); len(heard) != 1 || !strings.HasPrefix(heard[0], "session.changed:sweep:") || len(w.broker.heard()) > 0 {
		t.Errorf("woken: %v", heard)
	}
	if _, err := w.store.ClaimStatus(context.Background(), "coder", postgres.StatusEvery); err != nil {
		t.Fatal(err)
	}
	if got := w.pass()["agent_status"]; got.Found != 1 {
		t.Errorf("one that somebody writes just now is left to them: %+v", got)
	}
}

// A decision that a Temporal workflow waits for is announced again when its
// backoff is over, by the broker twice, then to everybody who hears decisions.
func TestSignalsAreAnnounced(t *testing.T) {
	w := newWorld(t)
	w.agent()
	one, two := listen(t), listen(t)
	w.options.Direct = map[reap.Sink][]string{{Type: event.ApprovalDecided}: {one.URL, two.URL}}
	w.session("ses_1", `state = 'IDLE', temporal = '{"workflowId": "w"}'`)
	w.sql(`INSERT INTO approvals (approval_id, session_id, agent_name, title, digest, state, decided_at) SELECT 'apr_1', session_id, agent_name, 't', 'd', 'APPROVED', now() FROM sessions`,
		`SELECT plan_signal('apr_1')`, `DELETE FROM outbox`, `UPDATE temporal_signals SET due_at = now() + interval '1 hour'`)
	w.pass()
	if got := w.broker.heard(); len(got) > 0 {
		t.Errorf("before it is due: %v", got)
	}
	w.sql(`UPDATE temporal_signals SET due_at = now()`)
	want := []string{"approval.decided:apr_1:signal"}
	for range 2 {
		w.pass()
		if diff := cmp.Diff(want, w.broker.heard()); diff != "" || len(one.heard())+len(two.heard()) > 0 {
			t.Errorf("the broker first (-want +got):\n%s", diff)
		}
		w.sql(`UPDATE outbox SET due_at = now()`)
	}
	w.pass()
	if got := w.broker.heard(); len(got) > 0 {
		t.Errorf("the broker a third time: %v", got)
	}
	for _, sink := range []*listener{one, two} {
		if diff := cmp.Diff(want, sink.heard()); diff != "" {
			t.Errorf("a subscriber (-want +got):\n%s", diff)
		}
	}
}
