package step_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

func group(a *harness.ApprovalSpec) {
	a.Terms.Approvers = []harness.Approver{{User: "ann"}, {Channel: harness.ChannelWebhook, ChannelUserID: "boss"}, {Channel: harness.ChannelWebhook, ChannelUserID: "user"}}
}

// A process that dies once its decision is committed announces nothing; the outbox
// has all that is to be said.
func TestADecisionThatNobodyPublished(t *testing.T) {
	b := ask(t, asking(group), says("ok"))
	if _, err := b.decide("ann", postgres.Decision{}); err != nil { // its events are dropped here
		t.Fatal(err)
	}
	b.same("due", b.text(`SELECT (due_at <= now())::text FROM sessions WHERE session_id = $1`, b.session), "true")
	b.exec(`UPDATE outbox SET due_at = now()`)
	batch, err := b.store.TakeUnheard(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	types := map[event.Type]int{}
	for _, e := range batch {
		types[e.Event.Type]++
	}
	if types[event.ApprovalDecided] != 1 || types[event.MessageReply] == 0 {
		t.Fatalf("the outbox announces %v", types)
	}
	b.wake()
	b.same("executions", b.text(`SELECT count(*)::text FROM executions`), "1")
}

// A step that claims what was approved and dies before it commits leaves it to the
// next, and one whose lease is over commits nothing.
func TestAClaimOfWhatWasApprovedThatDies(t *testing.T) {
	b := ask(t, asking(group), says("ok"))
	b.same("tap", string(b.tap("t1", "boss", "boss", "a")), "DECIDED")
	dead, err := b.store.ClaimSession(t.Context(), b.session, postgres.Lease{Owner: "dead", For: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	b.exec(`UPDATE sessions SET lease_until = now() - interval '1 second' WHERE session_id = $1`, b.session)
	b.wake()
	b.same("executions", b.text(`SELECT count(*)::text FROM executions`), "1")
	late := postgres.StepCommit{Claim: dead, State: harness.SessionAwaitingExecution, Runs: []postgres.CallRun{{
		Call: dead.Calls[0].ID, Approval: dead.Calls[0].Approval.ID,
		NewExecution: postgres.NewExecution{ID: harness.NewExecutionID(time.Now()), Command: "deploy --all", Nonce: "n"},
	}}}
	if _, err := b.store.CommitStep(t.Context(), late); !errors.Is(err, postgres.ErrLeaseLost) {
		t.Fatalf("a commit under a lost lease: %v", err)
	}
	b.same("executions", b.text(`SELECT count(*)::text FROM executions`), "1")
}

// A process that dies after the commit that uses an approval up has announced no
// command: the row does, and no second one is made.
func TestACommandThatNobodyPublished(t *testing.T) {
	b := ask(t, asking(group), says("ok"))
	b.same("tap", string(b.tap("t1", "boss", "boss", "a")), "DECIDED")
	silent := step.New(step.Options{
		Store: b.store, Model: b.model, Log: slog.New(slog.DiscardHandler), ContextTokens: 10_000,
		Publish: func(context.Context, ...event.Event) {}, Lease: postgres.Lease{Owner: "silent", For: time.Minute},
	})
	if err := silent.Session(t.Context(), event.Event{Type: event.SessionDue, Payload: event.Payload{Session: b.session}}); err != nil {
		t.Fatal(err)
	}
	b.same("announced", b.text(`SELECT count(*)::text FROM outbox WHERE event_type = $1`, event.ExecutionRequested), "1")
	b.exec(`UPDATE sessions SET due_at = now() WHERE session_id = $1`, b.session) // a sweep that saw it too soon
	b.wake()
	b.same("executions", b.text(`SELECT count(*)::text FROM executions`), "1")
	b.finish(harness.ExecutionCompleted, 0, "done")
	b.wake()
	b.same("reply", b.reply(), "ok")
}

// Whatever a timer does is one transaction: nothing is half done, and two sweeps at
// once do it once.
func TestTimersAtOnce(t *testing.T) {
	b := ask(t, asking(group, func(a *harness.ApprovalSpec) {
		a.Terms.Reminders = []time.Duration{10 * time.Minute}
		a.Terms.EscalateAfter, a.Terms.EscalateTo = 20*time.Minute, []harness.Approver{{Channel: harness.ChannelWebhook, ChannelUserID: "chief"}}
	}), says("ok"))
	id := b.approval().ID
	atOnce := func() {
		t.Helper()
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() {
				if _, err := b.store.ApprovalTimer(t.Context(), id); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	b.exec(`UPDATE approvals SET reminders = ARRAY[now()], due_at = now()`)
	dying, die := context.WithCancel(t.Context())
	die()
	if _, err := b.store.ApprovalTimer(dying, id); err == nil {
		t.Fatal("a timer without time did something")
	}
	b.same("half a timer", b.text(`SELECT count(*)::text FROM replies WHERE text LIKE 'Reminder: %'`), "0")
	atOnce()
	b.same("reminders", b.text(`SELECT count(*)::text FROM replies WHERE text LIKE 'Reminder: %'`), "2")
	b.exec(`UPDATE approvals SET escalate_at = now(), due_at = now()`)
	atOnce()
	b.same("cards", b.text(`SELECT string_agg(s.chat, ' ' ORDER BY s.chat) FROM replies r JOIN sessions s USING (session_id) WHERE kind = 'CARD'`), "boss chat chief user")
	b.exec(`UPDATE approvals SET expires_at = now(), due_at = now()`)
	atOnce()
	b.same("outcomes", b.text(`SELECT string_agg(s.chat, ' ' ORDER BY s.chat) FROM replies r JOIN sessions s USING (session_id) WHERE kind = 'DECISION'`), "boss chat chief user")
	b.same("told", b.text(`SELECT count(*)::text FROM session_events WHERE kind = 'APPROVAL'`), "2")
}

// A reminder that comes too late is none.
func TestNoReminderOfWhatIsOver(t *testing.T) {
	b := ask(t, asking(group, func(a *harness.ApprovalSpec) { a.Terms.Reminders = []time.Duration{10 * time.Minute} }))
	b.exec(`UPDATE approvals SET reminders = ARRAY[now() - interval '1 minute'], expires_at = now(), due_at = now()`)
	b.timer(1)
	b.timer(0)
	b.same("reminders", b.text(`SELECT count(*)::text FROM replies WHERE text LIKE 'Reminder: %'`), "0")
	b.same("state", string(b.approval().State), "EXPIRED")
}

// every is a model that asks for one command, and is content with its result.
type every struct{}

func (every) Complete(_ context.Context, r model.Request) (model.Response, error) {
	if last := r.Turns[len(r.Turns)-1]; len(last.Results) > 0 {
		return model.Response{Text: "I see.", Stop: model.StopEnd}, nil
	}
	return calls(deploy), nil
}

// Many sessions ask in the chats of the same two people, who decide at once while
// their own conversations are worked: nobody sees a deadlock, and nothing is lost.
func TestNoDeadlockInOneApproversChat(t *testing.T) {
	const sessions, deciders = 24, 8
	b := newBench(t, asking(func(a *harness.ApprovalSpec) {
		a.Terms.Approvers = []harness.Approver{{User: "ann"}, {Channel: harness.ChannelWebhook, ChannelUserID: "boss"}, {Channel: harness.ChannelWebhook, ChannelUserID: "vice"}}
		a.Terms.EscalateAfter, a.Terms.EscalateTo = time.Minute, []harness.Approver{{Channel: harness.ChannelWebhook, ChannelUserID: "chief"}, {Channel: harness.ChannelWebhook, ChannelUserID: "adviser"}}
	}))
	worker := step.New(step.Options{
		Store: b.store, Model: every{}, Log: slog.New(slog.DiscardHandler), ContextTokens: 10_000,
		Publish: func(context.Context, ...event.Event) {}, Lease: postgres.Lease{Owner: "worker", For: time.Minute},
	})
	ctx := t.Context()
	say := func(chat string, n int) {
		_, _, err := b.store.Accept(ctx, harness.ChannelWebhook, postgres.Inbound{Arrivals: []postgres.Arrival{{
			Account: "hook", ProviderID: fmt.Sprintf("%s-%d", chat, n), Chat: chat, Message: harness.Message{ChannelUserID: chat, Text: "please deploy"},
		}}}, "")
		if err != nil {
			t.Error("accept: ", err)
		}
	}
	work := func() {
		due, err := b.store.DueSessions(ctx, "coder", 100)
		if err != nil {
			t.Error("due: ", err)
		}
		for _, e := range due {
			if err := worker.Session(ctx, e); err != nil {
				t.Error("step: ", err)
			}
		}
	}
	rows := func(sql string) []string {
		text := b.text(`SELECT COALESCE(string_agg(x, E'\n'), '') FROM (` + sql + `) q (x)`)
		if text == "" {
			return nil
		}
		return strings.Split(text, "\n")
	}
	finish := func() {
		if _, err := b.store.Pool().Exec(ctx, `WITH ended AS (UPDATE executions SET state = 'COMPLETED', exit_code = 0, ended_at = now() WHERE state = 'PENDING' RETURNING session_id)
			UPDATE sessions SET due_at = now() WHERE session_id IN (SELECT session_id FROM ended)`); err != nil {
			t.Log("finish: ", err) // this test's own statement takes no order
		}
	}
	var asking sync.WaitGroup
	for i := range sessions {
		asking.Go(func() { say(fmt.Sprintf("chat%d", i), 0) })
	}
	for _, chat := range []string{"boss", "vice", "chief"} { // they are people too
		asking.Go(func() { say(chat, 0) })
	}
	asking.Wait()
	stop := make(chan struct{})
	var all sync.WaitGroup
	during := func(do func(n int)) {
		all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
					do(n)
				}
			}
		})
	}
	for range 3 {
		during(func(int) { work() })
	}
	during(func(int) { finish() })
	during(func(n int) {
		if n < 30 {
			say("boss", n+1)
		}
		time.Sleep(5 * time.Millisecond)
	})
	pending := func() []string {
		return rows(`SELECT approval_id || '.' || substr(digest, 1, 12) FROM approvals WHERE state = 'PENDING' ORDER BY random() LIMIT 8`)
	}
	for d := range deciders {
		during(func(n int) {
			for i, p := range pending() {
				id, _, _ := strings.Cut(p, ".")
				verdict, state := "a", harness.ApprovalApproved
				if (n+i)%3 == 0 {
					verdict, state = "r", harness.ApprovalRejected
				}
				switch d % 4 {
				case 0, 1:
					who := []string{"boss", "vice"}[d%2]
					_, _, err := b.store.DecideByTap(ctx, postgres.Tap{Channel: harness.ChannelWebhook, Account: "hook", Chat: who, ProviderID: fmt.Sprintf("tap-%d-%d-%d", d, n, i), People: []string{who}, Payload: p + "." + verdict})
					if err != nil {
						t.Error("tap: ", err)
					}
				case 2:
					_, _, err := b.store.DecideApproval(ctx, postgres.Decision{ID: harness.ApprovalID(id), State: state, By: "ann", Via: harness.ChannelAPI})
					if err != nil && harness.KindOf(err) != harness.Conflict {
						t.Error("REST: ", err)
					}
				case 3:
					b.store.Pool().Exec(ctx, `UPDATE approvals SET escalate_at = now(), due_at = now() WHERE approval_id = $1 AND state = 'PENDING' AND escalate_at > now()`, id) //nolint:errcheck // the clock of this test
					if _, err := b.store.ApprovalTimer(ctx, harness.ApprovalID(id)); err != nil {
						t.Error("timer: ", err)
					}
				}
			}
			time.Sleep(3 * time.Millisecond)
		})
	}
	deadline := time.Now().Add(90 * time.Second)
	for left := []string{"all"}; len(left) > 0; time.Sleep(100 * time.Millisecond) {
		left = rows(`SELECT session_id || ' ' || state FROM sessions WHERE state NOT IN ('IDLE', 'COMPLETED') OR due_at IS NOT NULL`)
		if time.Now().After(deadline) || t.Failed() {
			t.Errorf("still %q", left)
			break
		}
	}
	close(stop)
	all.Wait()
	b.same("left", b.text(`SELECT count(*)::text FROM approvals WHERE state = 'PENDING'`), "0")
	b.same("approved without a command, or otherwise", b.text(`SELECT count(*)::text FROM approvals a WHERE
		(SELECT count(*) FROM executions e WHERE e.cause_id = a.tool_call_id) <> CASE a.state WHEN 'APPROVED' THEN 1 ELSE 0 END`), "0")
	b.same("cards without an outcome", b.text(`SELECT count(*)::text FROM replies c WHERE c.kind = 'CARD' AND NOT EXISTS (SELECT 1 FROM replies d WHERE d.message_id = c.message_id || 'o')`), "0")
	b.same("messages that wait", b.text(`SELECT count(*)::text FROM messages WHERE state <> 'DONE'`), "0")
	t.Logf("%s approvals, %s cards", b.text(`SELECT count(*)::text FROM approvals`), b.text(`SELECT count(*)::text FROM replies WHERE kind = 'CARD'`))
}
