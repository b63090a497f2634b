package postgres_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// sends is the lease of a sender whose receiver can be asked what arrived.
var sends = postgres.ReplyLease{Lease: lease, Begins: true}

// answered is a session whose one message was answered in parts.
func answered(t *testing.T, s *postgres.Store, callback string, parts ...string) (harness.SessionID, event.Event) {
	t.Helper()
	ctx := context.Background()
	agent(t, s)
	if _, err := s.Pool().Exec(ctx, `UPDATE channel_routes SET spec = jsonb_build_object('callbackURL', $1::text)`, callback); err != nil {
		t.Fatal(err)
	}
	session := arrive(t, s, "a")[0].Session
	claim, err := s.ClaimSession(ctx, session, lease)
	if err != nil {
		t.Fatal(err)
	}
	events, err := s.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionIdle, Start: true, Reply: parts})
	if err != nil || len(events) != 1 {
		t.Fatalf("commit: %v %v", events, err)
	}
	return session, events[0]
}

func TestRepliesAreClaimedInOrder(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	session, announced := answered(t, s, "https://example.test/", "one", "two")
	if due, err := s.RepliesDue(ctx, 10); err != nil || len(due) != 0 {
		t.Fatalf("a reply that is announced is due to the sweep: %v %v", due, err)
	}
	first, err := s.ClaimReply(ctx, session, sends)
	if err != nil || first.Text != "one" || first.Part != 1 || first.Parts != 2 || first.State != harness.ReplyPlanned || first.Attempts != 1 ||
		first.InReplyTo != "a" || first.Spec.CallbackURL != "https://example.test/" || first.Session.Chat != "chat" || first.ChannelUserID != "user" {
		t.Fatalf("claim %+v %v", first, err)
	}
	if _, err := s.ClaimReply(ctx, session, sends); !errors.Is(err, postgres.ErrNothingDue) {
		t.Fatalf("a second claim of the session: %v", err)
	}
	if _, err := s.MarkReply(ctx, first, postgres.ReplyOutcome{State: harness.ReplyPlanned, Retry: time.Hour}, &sends); !errors.Is(err, postgres.ErrNothingDue) {
		t.Fatalf("the part behind one that waits: %v", err)
	}
	if _, err := s.Pool().Exec(ctx, `UPDATE replies SET due_at = now()`); err != nil {
		t.Fatal(err)
	}
	due, err := s.RepliesDue(ctx, 10)
	if err != nil || len(due) != 1 || !reflect.DeepEqual(due[0], announced) {
		t.Fatalf("due %+v %v, want once %+v", due, err, announced)
	}
	crashed, err := s.ClaimReply(ctx, session, sends)
	if err != nil || crashed.State != harness.ReplyPlanned || crashed.Attempts != 2 {
		t.Fatalf("an attempt that surely failed is not ambiguous: %+v %v", crashed, err)
	}
	if _, err := s.Pool().Exec(ctx, `UPDATE replies SET lease_until = now() - interval '1 second' WHERE lease_owner IS NOT NULL`); err != nil {
		t.Fatal(err)
	}
	again, err := s.ClaimReply(ctx, session, sends)
	if err != nil || again.ID != first.ID || again.State != harness.ReplyUnknown || again.Attempts != 3 {
		t.Fatalf("after a crash: %+v %v", again, err)
	}
	if _, err := s.MarkReply(ctx, crashed, postgres.ReplyOutcome{State: harness.ReplySent}, &sends); !errors.Is(err, postgres.ErrLeaseLost) {
		t.Fatalf("a mark under a lost lease: %v", err)
	}
	second, err := s.MarkReply(ctx, again, postgres.ReplyOutcome{State: harness.ReplySent, ProviderID: "p"}, &sends)
	if err != nil || second.Text != "two" || second.State != harness.ReplyPlanned {
		t.Fatalf("the next: %+v %v", second, err)
	}
	if _, err := s.MarkReply(ctx, second, postgres.ReplyOutcome{State: harness.ReplyFailed, Reason: "no"}, nil); !errors.Is(err, postgres.ErrNothingDue) {
		t.Fatalf("the last mark: %v", err)
	}
	var states string
	if err := s.Pool().QueryRow(ctx, `SELECT string_agg(state || provider_id || reason, ' ' ORDER BY part) FROM replies WHERE lease_owner IS NULL`).Scan(&states); err != nil || states != "SENTp FAILEDno" {
		t.Fatalf("stored %s %v", states, err)
	}
}

func TestAMailboxIsFilledAtOnce(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	session, announced := answered(t, s, "", "one", "two")
	for range 2 {
		if _, err := s.ClaimReply(ctx, session, sends); !errors.Is(err, postgres.ErrNothingDue) {
			t.Fatalf("a part of a mailbox was claimed: %v", err)
		}
	}
	for range 2 {
		if err := s.MarkFetched(ctx, session, []harness.MessageID{announced.Payload.Message}); err != nil {
			t.Fatal(err)
		}
	}
	var delivered, left int
	if err := s.Pool().QueryRow(ctx, `SELECT count(*) FILTER (WHERE state = 'DELIVERED'), (SELECT count(*) FROM outbox WHERE subject = $1) FROM replies`, announced.Payload.Message).
		Scan(&delivered, &left); err != nil || delivered != 2 || left != 0 {
		t.Fatalf("%d delivered, %d announcements left, %v", delivered, left, err)
	}
}

func TestFetchingDoesNotDeliverWhatACallbackGets(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	session, announced := answered(t, s, "https://example.test/", "one")
	if err := s.MarkFetched(ctx, session, []harness.MessageID{announced.Payload.Message}); err != nil {
		t.Fatal(err)
	}
	if claim, err := s.ClaimReply(ctx, session, sends); err != nil || claim.Text != "one" {
		t.Fatalf("claim %+v %v", claim, err)
	}
}

func TestRoute(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	if _, err := s.Pool().Exec(ctx, `UPDATE channel_routes SET spec = '{"callbackURL": "u", "secretRef": {"name": "n", "key": "k"}}'`); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Route(ctx, harness.ChannelWebhook, "hook"); err != nil || r.Agent != "coder" || r.Spec.CallbackURL != "u" || r.Spec.Secret.Key != "k" {
		t.Fatalf("route %+v %v", r, err)
	}
	if _, err := s.Route(ctx, harness.ChannelTelegram, "hook"); harness.KindOf(err) != harness.NotFound {
		t.Fatalf("another channel's account: %v", err)
	}
}
