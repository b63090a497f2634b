package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// called makes replies go somewhere: those without a callback wait to be fetched.
const called = `UPDATE channel_routes SET spec = '{"callbackURL": "https://example.test/"}'`

// The life of a draft, each part of it by the role whose it is: it is written under
// the session's claim, shown under its own, and gives its place to the reply.
func TestDraftsByTheirRoles(t *testing.T) {
	ctx := context.Background()
	s, err := postgres.Open(postgrestest.DSN(t), postgres.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	agent(t, s)
	run(t, s, called)
	session := arrive(t, s, "a")[0].Session
	as := func(role string) {
		t.Helper()
		run(t, s, `RESET ROLE`, `SET ROLE tuluat_`+role)
	}
	as("agent_step")
	claim, err := s.ClaimSession(ctx, session, lease)
	if err != nil {
		t.Fatal(err)
	}
	message := claim.Turns[0].Message
	for _, text := range []string{"one", "one two"} {
		if err := s.WriteDraft(ctx, claim, text); err != nil {
			t.Fatal(err)
		}
	}
	stale := *claim
	stale.Token--
	if err := s.WriteDraft(ctx, &stale, "three"); !errors.Is(err, postgres.ErrLeaseLost) {
		t.Errorf("a claim that is over writes: %v", err)
	}

	want := postgres.Draft{Session: session, Message: message, Revision: 2, Text: "one two"}
	as("management_api")
	if d, err := s.Draft(ctx, session); err != nil || d != want {
		t.Errorf("seen %+v, %v", d, err)
	}
	as("webhook_ingest")
	if d, err := s.ChatDraft(ctx, claim.Channel, claim.Account, claim.Chat); err != nil || d != want {
		t.Errorf("seen in the chat %+v, %v", d, err)
	}
	if _, err := s.ChatDraft(ctx, claim.Channel, claim.Account, "another"); harness.KindOf(err) != harness.NotFound {
		t.Errorf("seen in another chat: %v", err)
	}

	as("telegram_ingest")
	shown, err := s.ClaimDraft(ctx, message, lease)
	if err != nil || shown.Text != "one two" || shown.Revision != 2 || shown.ProviderID != "" || shown.InReplyTo != "a" || shown.Session.Chat != "chat" || shown.Spec == nil {
		t.Fatalf("claimed %+v, %v", shown, err)
	}
	if _, err := s.ClaimDraft(ctx, message, lease); !errors.Is(err, postgres.ErrNothingDue) {
		t.Errorf("claimed twice: %v", err)
	}
	as("agent_step")
	if _, err := s.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionIdle, Start: true, Reply: []string{"one two three"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteDraft(ctx, claim, "late"); !errors.Is(err, postgres.ErrLeaseLost) {
		t.Errorf("after the answer: %v", err)
	}
	as("telegram_ingest")
	if _, err := s.ClaimReply(ctx, session, sends); !errors.Is(err, postgres.ErrNothingDue) {
		t.Errorf("the reply is claimed while its draft is shown: %v", err)
	}
	if waits, err := s.MarkDraft(ctx, shown, postgres.DraftOutcome{State: harness.ReplySent, ProviderID: "77", Shown: true}); err != nil || !waits {
		t.Errorf("marked: %v %v", waits, err)
	}
	if _, err := s.MarkDraft(ctx, shown, postgres.DraftOutcome{State: harness.ReplySent}); !errors.Is(err, postgres.ErrLeaseLost) {
		t.Errorf("marked twice: %v", err)
	}
	if _, err := s.ClaimDraft(ctx, message, lease); !errors.Is(err, postgres.ErrNothingDue) {
		t.Errorf("claimed after the answer: %v", err)
	}
	reply, err := s.ClaimReply(ctx, session, sends)
	if err != nil || !reply.Drafted || reply.Draft == nil || reply.Draft.ProviderID != "77" || reply.Draft.Late {
		t.Fatalf("the reply is %+v, %v", reply, err)
	}
	if _, err := s.MarkReply(ctx, reply, postgres.ReplyOutcome{State: harness.ReplyPlanned}, nil); !errors.Is(err, postgres.ErrNothingDue) {
		t.Fatal(err)
	}
	as("whatsapp_ingest") // any channel's function may claim with a draft there
	if reply, err = s.ClaimReply(ctx, session, sends); err != nil || reply.Draft == nil {
		t.Fatalf("after an attempt that failed the reply is %+v, %v", reply, err)
	}
	as("webhook_ingest")
	if _, err := s.MarkReply(ctx, reply, postgres.ReplyOutcome{State: harness.ReplySent, ProviderID: "77"}, nil); !errors.Is(err, postgres.ErrNothingDue) {
		t.Fatal(err)
	}
	run(t, s, `RESET ROLE`)
	if left := value[int](t, s, `SELECT count(*) FROM drafts`); left != 0 {
		t.Errorf("%d drafts are left", left)
	}
}

// What a turn left that ended without an answer goes with the next draft of its
// session, or after a day.
func TestDraftsThatBecameNothing(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	session := arrive(t, s, "a")[0].Session
	claim, err := s.ClaimSession(ctx, session, lease)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WriteDraft(ctx, claim, "one"); err != nil {
		t.Fatal(err)
	}
	run(t, s, `UPDATE drafts SET state = 'SENT', provider_id = '77'`,
		`UPDATE messages SET state = 'DONE'`, `UPDATE sessions SET lease_owner = NULL, lease_until = NULL, state = 'IDLE', due_at = NULL`)
	arrive(t, s, "b")
	if claim, err = s.ClaimSession(ctx, session, lease); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteDraft(ctx, claim, "another"); err != nil {
		t.Fatal(err)
	}
	if got := value[string](t, s, `SELECT string_agg(text || ' ' || state, ',') FROM drafts`); got != "another PLANNED" {
		t.Errorf("drafts %q", got)
	}
	for _, step := range []struct {
		keep time.Duration
		want int
	}{{time.Hour, 0}, {0, 1}, {0, 0}} {
		if n, err := s.DeleteOldDrafts(ctx, step.keep, 100); err != nil || n != step.want {
			t.Errorf("those older than %s: %d deleted, %v, want %d", step.keep, n, err, step.want)
		}
	}
}

// A chat that begins to show a draft while the answer commits is not forgotten.
func TestADraftIsClaimedWhileTheAnswerCommits(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	run(t, s, called)
	session := arrive(t, s, "a")[0].Session
	claim, err := s.ClaimSession(ctx, session, lease)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WriteDraft(ctx, claim, "one"); err != nil {
		t.Fatal(err)
	}
	tx, err := s.Pool().Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }() // after Commit it does nothing
	if _, err := tx.Exec(ctx, `UPDATE drafts SET state = 'UNKNOWN', lease_owner = 'x', lease_token = 1, lease_until = now() + interval '1 minute', sent_at = now()`); err != nil {
		t.Fatal(err)
	}
	committed := make(chan error, 1)
	go func() {
		_, err := s.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionIdle, Start: true, Reply: []string{"one two"}})
		committed <- err
	}()
	for value[int](t, s, `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`) == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-committed; err != nil {
		t.Fatal(err)
	}
	if _, err := s.ClaimReply(ctx, session, sends); !errors.Is(err, postgres.ErrNothingDue) {
		t.Errorf("the reply does not wait for the draft on its way: %v", err)
	}
	if waits, err := s.MarkDraft(ctx, &postgres.DraftClaim{Message: claim.Turns[0].Message, Token: 1}, postgres.DraftOutcome{State: harness.ReplySent, ProviderID: "77"}); err != nil || !waits {
		t.Fatalf("marked: %v, %v", waits, err)
	}
	if reply, err := s.ClaimReply(ctx, session, sends); err != nil || reply.Draft == nil {
		t.Errorf("the reply is %+v, %v", reply, err)
	}
}
