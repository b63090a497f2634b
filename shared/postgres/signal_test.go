package postgres_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

const someRun = "0f3b7b0e-6c3f-4b53-8d4e-1c3c2a8c9f10"

// linked starts a session that names a Temporal workflow.
func linked(t *testing.T, s *postgres.Store, chat, key string, link *harness.TemporalLink) (postgres.Accepted, error) {
	t.Helper()
	accepted, _, err := s.Accept(context.Background(), harness.ChannelAPI, postgres.Inbound{Arrivals: []postgres.Arrival{{
		Account: "a", ProviderID: key, Chat: chat, Temporal: link, Message: harness.Message{Channel: harness.ChannelAPI, ChannelUserID: "ann", Text: "text " + key},
	}}}, "")
	if err != nil {
		return postgres.Accepted{}, err
	}
	return accepted[0], nil
}

func asked(t *testing.T, s *postgres.Store, id string, session harness.SessionID) {
	t.Helper()
	run(t, s, `INSERT INTO approvals (approval_id, session_id, agent_name, node_id, title, digest, state) VALUES ('`+id+`', '`+string(session)+`', 'a', 'n1', 't', 'd-`+id+`', 'PENDING')`)
}

func decide(t *testing.T, s *postgres.Store, id harness.ApprovalID, state harness.ApprovalState) {
	t.Helper()
	if _, _, err := s.DecideApproval(context.Background(), postgres.Decision{ID: id, State: state, By: "ann", Via: harness.ChannelAPI, Reason: "why " + string(id)}); err != nil {
		t.Fatal(err)
	}
}

// signalling is a store with agent a and session ses, linked to workflow w.
func signalling(t *testing.T) (*postgres.Store, harness.SessionID) {
	t.Helper()
	s := postgrestest.New(t)
	put(t, s, agentText("a", "a.yaml", ""))
	accepted, err := linked(t, s, "c", "k1", &harness.TemporalLink{Namespace: "orders", WorkflowID: "w"})
	if err != nil {
		t.Fatal(err)
	}
	return s, accepted.Session
}

// A session is linked when it is opened, and only then.
func TestSessionsAreLinkedOnce(t *testing.T) {
	ctx := context.Background()
	s, session := signalling(t)
	link := harness.TemporalLink{Namespace: "orders", WorkflowID: "w"}
	if got, err := s.GetSession(ctx, session); err != nil || got.Temporal == nil || *got.Temporal != link {
		t.Errorf("%+v, %v", got.Temporal, err)
	}
	for name, test := range map[string]struct {
		link *harness.TemporalLink
		want error
	}{
		"the same": {&link, nil}, "none": {nil, nil}, "another": {&harness.TemporalLink{WorkflowID: "w"}, postgres.ErrLinked},
	} {
		before := value[int](t, s, `SELECT count(*) FROM messages`)
		accepted, err := linked(t, s, "c", name, test.link)
		if !errors.Is(err, test.want) || err == nil && accepted.Session != session {
			t.Errorf("%s: %+v, %v", name, accepted, err)
		}
		if after := value[int](t, s, `SELECT count(*) FROM messages`); (after == before) != (test.want != nil) {
			t.Errorf("%s: %d messages, then %d", name, before, after)
		}
	}
	unlinked := say(t, s, "a", "d", "k2")
	if _, err := linked(t, s, "d", "k3", &link); !errors.Is(err, postgres.ErrLinked) {
		t.Errorf("a session that was opened without: %v", err)
	}
	if got, err := s.GetSession(ctx, unlinked.Session); err != nil || got.Temporal != nil {
		t.Errorf("%+v, %v", got.Temporal, err)
	}
	// A repeat has no effect.
	if again, err := linked(t, s, "c", "k1", &link); err != nil || again.Outcome != postgres.ArrivalDuplicate || again.Session != session {
		t.Errorf("%+v, %v", again, err)
	}
}

// Whatever ends an approval plans its signal in the same commit, once; what ends
// no approval, or that of a session without a workflow, plans none.
func TestTheEndOfAnApprovalPlansASignal(t *testing.T) {
	ctx := context.Background()
	s, session := signalling(t)
	other := say(t, s, "a", "d", "k2").Session
	for id, of := range map[string]harness.SessionID{"apr_1": session, "apr_2": session, "apr_3": session, "apr_4": session, "apr_5": other} {
		asked(t, s, id, of)
	}
	run(t, s, `SELECT plan_signal('apr_1')`, `SELECT plan_signal('apr_none')`)
	if n := value[int](t, s, `SELECT count(*) FROM temporal_signals`); n != 0 {
		t.Errorf("%d signals of open questions", n)
	}
	decide(t, s, "apr_1", harness.ApprovalApproved)
	decide(t, s, "apr_2", harness.ApprovalRejected)
	decide(t, s, "apr_5", harness.ApprovalApproved)
	if _, _, err := s.DecideApproval(ctx, postgres.Decision{ID: "apr_1", State: harness.ApprovalRejected, By: "ben"}); harness.KindOf(err) != harness.Conflict {
		t.Errorf("the second decision: %v", err)
	}
	run(t, s, `UPDATE approvals SET state = 'EXPIRED', decided_at = now() WHERE approval_id = 'apr_3' RETURNING plan_signal(approval_id)`, `SELECT plan_signal('apr_3')`)
	if _, _, err := s.CancelSession(ctx, session, postgres.Audit{Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	want := "sig_1 apr_1 orders w  PENDING|sig_2 apr_2 orders w  PENDING|sig_3 apr_3 orders w  PENDING|sig_4 apr_4 orders w  PENDING"
	if got := value[string](t, s, `SELECT string_agg(concat_ws(' ', temporal_signal_id, approval_id, namespace, workflow_id, temporal_run, state), '|' ORDER BY temporal_signal_id) FROM temporal_signals`); got != want {
		t.Errorf("signals %s, want %s", got, want)
	}
	// Announced until it is claimed, whatever happens to the session's own announcement.
	if got := value[string](t, s, `SELECT string_agg(event_id || ' ' || subject, '|' ORDER BY event_id) FROM outbox WHERE subject LIKE 'sig%' AND session_id = $1`, session); strings.Count(got, "|") != 3 || !strings.HasPrefix(got, "approval.decided:apr_1:signal sig_1|") {
		t.Errorf("announcements %s", got)
	}
}

// A conversation that a workflow run of ours has opened is linked as the run is.
func TestARunLinksItsConversations(t *testing.T) {
	s, session := signalling(t)
	child := say(t, s, "a", "d", "k2").Session
	run(t, s, `INSERT INTO node_visits (visit_id, session_id, seq, node_id, visit, state) VALUES ('vis_1', '`+string(session)+`', 1, 'ask', 1, 'WAITING')`,
		`UPDATE sessions SET parent_visit = 'vis_1' WHERE session_id = '`+string(child)+`'`)
	asked(t, s, "apr_1", child)
	decide(t, s, "apr_1", harness.ApprovalApproved)
	if got := value[string](t, s, `SELECT workflow_id || ' ' || session_id FROM temporal_signals`); got != "w "+string(child) {
		t.Errorf("signal %s", got)
	}
}

func TestSignalsAreClaimedAndMarked(t *testing.T) {
	ctx := context.Background()
	s, session := signalling(t)
	asked(t, s, "apr_1", session)
	asked(t, s, "apr_2", session)
	decide(t, s, "apr_2", harness.ApprovalRejected)
	decide(t, s, "apr_1", harness.ApprovalApproved)
	c, err := s.ClaimSignal(ctx, session, lease)
	if err != nil {
		t.Fatal(err)
	}
	if c.ID != "sig_1" || c.Attempts != 1 || c.Namespace != "orders" || c.Workflow != "w" || c.Run != "" || c.Pinned != "" || c.Approval != "apr_1" || c.Session != session || c.Agent != "a" || c.Node != "n1" ||
		c.State != harness.ApprovalApproved || c.DecidedBy != "ann" || c.DecidedVia != harness.ChannelAPI || c.Reason != "why apr_1" || c.Digest != "d-apr_1" || time.Since(c.DecidedAt) > time.Minute {
		t.Errorf("%+v", c)
	}
	second, err := s.ClaimSignal(ctx, session, lease)
	if err != nil || second.ID != "sig_2" {
		t.Fatalf("%+v, %v", second, err)
	}
	if _, err := s.ClaimSignal(ctx, session, lease); !errors.Is(err, postgres.ErrNothingDue) {
		t.Errorf("a third claim: %v", err)
	}
	if n := value[int](t, s, `SELECT count(*) FROM outbox WHERE subject LIKE 'sig%'`); n != 0 {
		t.Errorf("%d announcements of claimed signals", n)
	}
	if err := s.PinSignal(ctx, c, someRun); err != nil || c.Pinned != someRun {
		t.Errorf("pinned %q, %v", c.Pinned, err)
	}
	// Its process dies: who comes next goes on with the same run, and the dead one writes nothing.
	run(t, s, `UPDATE temporal_signals SET lease_until = now() - interval '1 second' WHERE temporal_signal_id = 'sig_1'`)
	again, err := s.ClaimSignal(ctx, session, lease)
	if err != nil || again.ID != "sig_1" || again.Attempts != 2 || again.Pinned != someRun {
		t.Fatalf("%+v, %v", again, err)
	}
	if _, err := s.MarkSignal(ctx, c, postgres.SignalOutcome{Sent: true}); !errors.Is(err, postgres.ErrLeaseLost) {
		t.Errorf("mark under the lost claim: %v", err)
	}
	if err := s.PinSignal(ctx, c, someRun); !errors.Is(err, postgres.ErrLeaseLost) {
		t.Errorf("pin under the lost claim: %v", err)
	}
	if state, err := s.MarkSignal(ctx, again, postgres.SignalOutcome{Sent: true}); err != nil || state != harness.SignalSent {
		t.Errorf("%s, %v", state, err)
	}
	if _, err := s.MarkSignal(ctx, again, postgres.SignalOutcome{Reason: "late"}); !errors.Is(err, postgres.ErrLeaseLost) {
		t.Errorf("the second mark: %v", err)
	}
	if state, err := s.MarkSignal(ctx, second, postgres.SignalOutcome{Reason: "Temporal is down", Retry: time.Hour}); err != nil || state != harness.SignalPending {
		t.Errorf("%s, %v", state, err)
	}
	if _, err := s.ClaimSignal(ctx, session, lease); !errors.Is(err, postgres.ErrNothingDue) {
		t.Errorf("before the backoff is over: %v", err)
	}
	if logs := value[string](t, s, `SELECT string_agg(level || ' ' || message, '|') FROM agent_execution_logs WHERE session_id = $1`, session); logs != "INFO the Temporal workflow w was told that approval apr_1 is APPROVED" {
		t.Errorf("logs %s", logs)
	}
}

// A refusal is believed when every answer has been one for long enough; an answer
// that is none begins anew.
func TestRefusalsAreBelievedInTime(t *testing.T) {
	ctx := context.Background()
	s, session := signalling(t)
	asked(t, s, "apr_1", session)
	decide(t, s, "apr_1", harness.ApprovalApproved)
	attempt := func(o postgres.SignalOutcome, ago string) harness.SignalState {
		t.Helper()
		run(t, s, `UPDATE temporal_signals SET refused_at = refused_at - interval '`+ago+`'`)
		c, err := s.ClaimSignal(ctx, session, lease)
		if err != nil {
			t.Fatal(err)
		}
		state, err := s.MarkSignal(ctx, c, o)
		if err != nil {
			t.Fatal(err)
		}
		return state
	}
	refused := postgres.SignalOutcome{Reason: "no such workflow\x00", Refused: true}
	var got []string
	for _, a := range []struct {
		o   postgres.SignalOutcome
		ago string
	}{
		{refused, "0"}, {refused, "4 minutes"}, {postgres.SignalOutcome{Reason: "down"}, "9 minutes"}, {refused, "9 minutes"}, {refused, "4 minutes"}, {refused, "61 seconds"},
	} {
		got = append(got, string(attempt(a.o, a.ago)))
	}
	if want := "PENDING PENDING PENDING PENDING PENDING FAILED"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
	if reason := value[string](t, s, `SELECT state || ' ' || reason || ' ' || (ended_at IS NOT NULL) FROM temporal_signals`); reason != "FAILED no such workflow true" {
		t.Error(reason)
	}
	const told = "the Temporal workflow w is not told yet that approval apr_1 is APPROVED: no such workflow"
	want := "WARN " + told + "|WARN " + told + "|ERROR the Temporal workflow w is never told that approval apr_1 is APPROVED: no such workflow"
	if logs := value[string](t, s, `SELECT string_agg(level || ' ' || message, '|' ORDER BY log_id) FROM agent_execution_logs`); logs != want {
		t.Errorf("logs %s", logs)
	}
	if _, err := s.ClaimSignal(ctx, session, lease); !errors.Is(err, postgres.ErrNothingDue) {
		t.Errorf("a signal that has failed: %v", err)
	}
}

// The sweep finds what nobody announces: after a backoff, and after a crash.
func TestSignalsDue(t *testing.T) {
	ctx := context.Background()
	s, session := signalling(t)
	for _, id := range []string{"apr_1", "apr_2", "apr_3", "apr_4", "apr_5"} {
		asked(t, s, id, session)
		decide(t, s, harness.ApprovalID(id), harness.ApprovalApproved)
	}
	due := func() (ids []string) {
		t.Helper()
		events, err := s.SignalsDue(ctx, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Type != event.ApprovalDecided || e.Session != session || e.Payload.Session != session || e.Agent != "a" || e.Channel != harness.ChannelAPI {
				t.Errorf("%+v", e)
			}
			ids = append(ids, e.ID)
		}
		slices.Sort(ids)
		return ids
	}
	if ids := due(); len(ids) != 0 {
		t.Errorf("what is announced already: %v", ids)
	}
	run(t, s, `DELETE FROM outbox WHERE subject LIKE 'sig%'`,
		`UPDATE temporal_signals SET due_at = now() + interval '1 hour' WHERE temporal_signal_id = 'sig_2'`,
		`UPDATE temporal_signals SET lease_owner = 'x', lease_until = now() + interval '1 hour' WHERE temporal_signal_id = 'sig_3'`,
		`UPDATE temporal_signals SET lease_owner = 'x', lease_until = now() - interval '1 second' WHERE temporal_signal_id = 'sig_4'`,
		`UPDATE temporal_signals SET state = 'SENT', ended_at = now() WHERE temporal_signal_id = 'sig_5'`)
	if ids := due(); strings.Join(ids, " ") != "approval.decided:apr_1:signal approval.decided:apr_4:signal" {
		t.Errorf("due %v", ids)
	}
	if ids := due(); len(ids) != 0 {
		t.Errorf("announced twice: %v", ids)
	}
	// What nobody claims the outbox repeats; what is settled it forgets.
	run(t, s, `UPDATE outbox SET due_at = now(), created_at = now() - interval '1 hour' WHERE subject LIKE 'sig%'`, `UPDATE temporal_signals SET state = 'SENT', ended_at = now() WHERE temporal_signal_id = 'sig_1'`)
	if _, err := s.DeleteMootAnnouncements(ctx, 10); err != nil {
		t.Fatal(err)
	}
	unheard, err := s.TakeUnheard(ctx, 10)
	if err != nil || len(unheard) != 1 || unheard[0].ID != "approval.decided:apr_4:signal" {
		t.Errorf("%+v, %v", unheard, err)
	}
}

// The bridge sends with its role, and reads nothing of what was asked or said.
func TestTemporalBridgeDoesItsWork(t *testing.T) {
	ctx := context.Background()
	s, err := postgres.Open(postgrestest.DSN(t), postgres.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	put(t, s, agentText("a", "a.yaml", ""))
	run(t, s, `SET ROLE tuluat_management_api`)
	accepted, err := linked(t, s, "c", "k1", &harness.TemporalLink{WorkflowID: "w"})
	if err != nil {
		t.Fatal(err)
	}
	run(t, s, `RESET ROLE`)
	asked(t, s, "apr_1", accepted.Session)
	run(t, s, `SET ROLE tuluat_management_api`)
	decide(t, s, "apr_1", harness.ApprovalApproved)
	run(t, s, `SET ROLE tuluat_temporal_bridge`)
	c, err := s.ClaimSignal(ctx, accepted.Session, lease)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.PinSignal(ctx, c, someRun); err != nil {
		t.Error(err)
	}
	if _, err := s.MarkSignal(ctx, c, postgres.SignalOutcome{Reason: "down"}); err != nil {
		t.Error(err)
	}
	for _, sql := range []string{
		`SELECT input FROM approvals`, `SELECT title FROM approvals`, `SELECT * FROM messages`, `SELECT * FROM sessions`, `SELECT payload FROM outbox`, `UPDATE approvals SET state = 'APPROVED'`,
		`UPDATE temporal_signals SET workflow_id = 'x'`, `INSERT INTO temporal_signals SELECT * FROM temporal_signals`, `DELETE FROM temporal_signals`,
	} {
		_, err := s.Pool().Exec(ctx, sql)
		if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg.Code != "42501" {
			t.Errorf("%s: %v", sql, err)
		}
	}
	run(t, s, `SET ROLE tuluat_reaper_cron`)
	if _, err := s.SignalsDue(ctx, 10); err != nil {
		t.Error(err)
	}
	if _, _, err := s.NextDue(ctx, time.Minute); err != nil {
		t.Error(err)
	}
	if _, err := s.DeleteMootAnnouncements(ctx, 10); err != nil {
		t.Error(err)
	}
}
