package step_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

// asking is an agent that asks before every command.
func asking(change ...func(*harness.ApprovalSpec)) harness.Agent {
	agent := coder()
	agent.Approvals = &harness.ApprovalSpec{Policy: harness.ApproveAlways, Terms: harness.ApprovalTerms{Timeout: time.Hour}}
	for _, c := range change {
		c(agent.Approvals)
	}
	return agent
}

const deploy = `{"command": "deploy --all"}`

func (b *bench) approval() view.Approval {
	b.t.Helper()
	a, err := b.store.GetApproval(b.t.Context(), harness.ApprovalID(b.text(`SELECT approval_id FROM approvals ORDER BY created_at DESC, approval_id DESC LIMIT 1`)))
	if err != nil {
		b.t.Fatal(err)
	}
	return a
}

// tap says what user does to the newest approval's card in chat.
func (b *bench) tap(id, chat, user, verdict string) postgres.TapOutcome {
	b.t.Helper()
	a := b.approval()
	return b.press(id, chat, user, fmt.Sprintf("%s.%s.%s", a.ID, a.Digest[:12], verdict))
}

func (b *bench) press(id, chat, user, payload string) postgres.TapOutcome {
	b.t.Helper()
	outcome, _, err := b.store.DecideByTap(b.t.Context(), postgres.Tap{
		Channel: harness.ChannelWebhook, Account: "hook", Chat: chat, ProviderID: id, People: []string{user}, Payload: payload,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return outcome
}

func (b *bench) write(id, chat, user, code string, state harness.ApprovalState, reason string) postgres.TapOutcome {
	b.t.Helper()
	outcome, _, err := b.store.DecideByTap(b.t.Context(), postgres.Tap{
		Channel: harness.ChannelWebhook, Account: "hook", Chat: chat, ProviderID: id, People: []string{user}, Code: code, State: state, Reason: reason,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return outcome
}

func (b *bench) same(what, got, want string) {
	b.t.Helper()
	if got != want {
		b.t.Fatalf("%s: got %q, want %q", what, got, want)
	}
}

// ask brings a bench to where its model's command waits for a human.
func ask(t *testing.T, agent harness.Agent, answers ...any) *bench {
	t.Helper()
	b := newBench(t, agent, append([]any{calls(deploy)}, answers...)...)
	b.say("1", "please deploy")
	b.wake()
	b.same("state", b.state(), "AWAITING_APPROVAL")
	b.same("executions", b.text(`SELECT count(*)::text FROM executions`), "0")
	return b
}

func TestAnApprovedCommandRunsOnce(t *testing.T) {
	b := ask(t, asking(), says("Deployed."))
	b.same("card", b.text(`SELECT kind || ' ' || state || ' ' || jsonb_array_length(choices) FROM replies`), "CARD PLANNED 3")
	if card := b.text(`SELECT text FROM replies`); !strings.Contains(card, "deploy --all") || !strings.Contains(card, "approve "+b.approval().Code) {
		t.Fatalf("the card says %q", card)
	}
	b.same("turn's person decides", fmt.Sprint(b.approval().Approvers), "[webhook user]")
	b.wake() // nothing is decided: nothing happens
	b.same("tap", string(b.tap("t1", "chat", "user", "a")), "DECIDED")
	b.same("the same tap again", string(b.tap("t1", "chat", "user", "a")), "DUPLICATE")
	b.wake()
	b.same("state", b.state(), "AWAITING_EXECUTION")
	b.same("command", b.text(`SELECT command FROM executions`), "deploy --all")
	b.same("used up", b.text(`SELECT (consumed_at IS NOT NULL)::text FROM approvals`), "true")
	b.finish(harness.ExecutionCompleted, 0, "done\n")
	b.wake()
	b.same("reply", b.reply(), "Deployed.")
	b.same("cards and outcomes", b.text(`SELECT string_agg(kind, ' ' ORDER BY seq) FROM replies`), "CARD DECISION TEXT")
	if outcome := b.text(`SELECT text FROM replies WHERE kind = 'DECISION'`); !strings.Contains(outcome, "Approved by webhook user") {
		t.Fatalf("the outcome says %q", outcome)
	}
}

func TestARejectedCommandNeverRuns(t *testing.T) {
	b := ask(t, asking(), says("Then I will not."))
	b.same("code", string(b.write("t1", "chat", "user", b.approval().Code, harness.ApprovalRejected, "not on a Friday")), "DECIDED")
	b.wake()
	b.same("result", b.text(`SELECT state || ': ' || result FROM tool_calls`), "DENIED: Not run: a human said no. Their reason: not on a Friday")
	b.same("executions", b.text(`SELECT count(*)::text FROM executions`), "0")
	b.same("reply", b.reply(), "Then I will not.")
}

func TestTimeIsOver(t *testing.T) {
	for _, c := range []struct {
		action  harness.TimeoutAction
		state   string // of the call
		outcome string
	}{
		{harness.TimeoutReject, "EXPIRED", "it is not done"},
		{harness.TimeoutProceed, "RUNNING", "it goes on"},
	} {
		t.Run(string(c.action), func(t *testing.T) {
			b := ask(t, asking(func(a *harness.ApprovalSpec) {
				a.Terms.OnTimeout, a.Terms.Reminders = c.action, []time.Duration{10 * time.Minute, 30 * time.Minute}
			}), says("Nobody answered."))
			b.exec(`UPDATE approvals SET reminders[1] = now(), due_at = now()`)
			b.timer(1)
			b.timer(0)
			b.same("reminded once", b.text(`SELECT count(*)::text FROM replies WHERE text LIKE 'Reminder: %'`), "1")
			b.exec(`UPDATE approvals SET expires_at = now(), due_at = now()`)
			b.timer(1)
			b.same("decided late", string(b.tap("late", "chat", "user", "a")), "REFUSED")
			b.wake()
			b.same("call", b.text(`SELECT state FROM tool_calls`), c.state)
			if outcome := b.text(`SELECT text FROM replies WHERE kind = 'DECISION'`); !strings.Contains(outcome, c.outcome) {
				t.Fatalf("the outcome says %q", outcome)
			}
			if c.action == harness.TimeoutReject {
				b.same("the model is told", b.text(`SELECT result FROM tool_calls`), "Not run: nobody decided in time. It timed out; nobody said no.")
			}
		})
	}
	t.Run("wait", func(t *testing.T) {
		b := ask(t, asking(func(a *harness.ApprovalSpec) { a.Terms.OnTimeout = harness.TimeoutWait }))
		b.same("never due", b.text(`SELECT (due_at IS NULL AND expires_at IS NULL)::text FROM approvals`), "true")
	})
}

// timer lets n approvals that are due have what they are due for.
func (b *bench) timer(n int) {
	b.t.Helper()
	due, err := b.store.ApprovalsDue(b.t.Context(), 10)
	if err != nil || len(due) != n {
		b.t.Fatalf("due %v, %v; want %d", due, err, n)
	}
	for _, id := range due {
		if _, err := b.store.ApprovalTimer(b.t.Context(), id); err != nil {
			b.t.Fatal(err)
		}
	}
}

func TestEscalation(t *testing.T) {
	b := ask(t, asking(func(a *harness.ApprovalSpec) {
		a.Terms.Approvers = []harness.Approver{{Channel: harness.ChannelWebhook, ChannelUserID: "boss"}}
		a.Terms.EscalateAfter, a.Terms.EscalateTo = 20*time.Minute, []harness.Approver{{Channel: harness.ChannelWebhook, ChannelUserID: "chief"}}
	}))
	b.same("asked", b.text(`SELECT string_agg(s.chat || ':' || r.kind || ':' || jsonb_array_length(r.choices), ' ' ORDER BY s.chat) FROM replies r JOIN sessions s USING (session_id)`), "boss:CARD:3 chat:CARD:0")
	b.same("too early", string(b.tap("t0", "chief", "chief", "a")), "REFUSED")
	b.exec(`UPDATE approvals SET escalate_at = now(), due_at = now()`)
	b.timer(1)
	b.timer(0)
	b.same("asked then", b.text(`SELECT string_agg(s.chat, ' ' ORDER BY s.chat) FROM replies r JOIN sessions s USING (session_id) WHERE kind = 'CARD'`), "boss chat chief")
	b.same("decides", string(b.tap("t1", "chief", "chief", "a")), "DECIDED")
	b.same("every chat is told", b.text(`SELECT string_agg(s.chat, ' ' ORDER BY s.chat) FROM replies r JOIN sessions s USING (session_id) WHERE kind = 'DECISION'`), "boss chat chief")
	b.same("the boss is late", string(b.tap("t2", "boss", "boss", "r")), "REFUSED")
	if said := b.text(`SELECT r.text FROM replies r JOIN sessions s USING (session_id) WHERE s.chat = 'boss' AND r.kind = 'TEXT'`); !strings.Contains(said, "APPROVED by webhook chief at ") {
		t.Fatalf("the loser is told %q", said)
	}
}

// What is not exactly what was asked, of whom and where, changes nothing.
func TestWhoMayNotDecide(t *testing.T) {
	b := ask(t, asking())
	a := b.approval()
	b.exec(`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state) VALUES ('ses_other', 'coder', 'WEBHOOK', 'hook', 'other', 'IDLE')`)
	good := fmt.Sprintf("%s.%s.a", a.ID, a.Digest[:12])
	for i, c := range []struct{ name, chat, user, payload string }{
		{"another in the chat", "chat", "mallory", good},
		{"a forwarded card", "other", "user", good},
		{"another digest", "chat", "user", fmt.Sprintf("%s.%s.a", a.ID, strings.Repeat("0", 12))},
		{"another approval", "chat", "user", fmt.Sprintf("%sx.%s.a", a.ID, a.Digest[:12])},
		{"another verdict", "chat", "user", fmt.Sprintf("%s.%s.x", a.ID, a.Digest[:12])},
		{"a part more", "chat", "user", good + ".a"},
		{"SQL", "chat", "user", "apr_' OR true --." + a.Digest[:12] + ".a"},
	} {
		if got := b.press(fmt.Sprint("bad", i), c.chat, c.user, c.payload); got != postgres.TapRefused {
			t.Errorf("%s: %s", c.name, got)
		}
	}
	if got := b.write("bad-code", "other", "user", a.Code, harness.ApprovalApproved, ""); got != postgres.TapNotAsked {
		t.Errorf("a code in another chat: %s", got)
	}
	for name, d := range map[string]postgres.Decision{
		"no approver":    {By: "system:admin", Groups: []string{"system:masters"}},
		"another digest": {By: "user", Digest: strings.Repeat("0", 64)},
	} {
		d.ID, d.State, d.Via = a.ID, harness.ApprovalApproved, harness.ChannelAPI
		if _, _, err := b.store.DecideApproval(t.Context(), d); harness.KindOf(err) != harness.Denied {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.same("votes", b.text(`SELECT count(*)::text FROM approval_votes`), "0")
	b.same("state", string(b.approval().State), "PENDING")
	b.same("executions", b.text(`SELECT count(*)::text FROM executions`), "0")
}

func operators(a *harness.ApprovalSpec) {
	a.Terms.Approvers = []harness.Approver{{Group: "ops"}, {User: "ann"}}
}

func (b *bench) decide(by string, d postgres.Decision) (view.Approval, error) {
	b.t.Helper()
	d.By, d.Via = by, harness.ChannelAPI
	if d.ID == "" {
		d.ID = b.approval().ID
	}
	if d.State == "" {
		d.State = harness.ApprovalApproved
	}
	a, _, err := b.store.DecideApproval(b.t.Context(), d)
	return a, err
}

func TestChangedBeforeItIsApproved(t *testing.T) {
	b := ask(t, asking(operators), says("Done."))
	asked := b.approval()
	change := json.RawMessage(`{"command":"deploy --one"}`)
	if _, err := b.decide("ann", postgres.Decision{Arguments: change}); harness.KindOf(err) != harness.Invalid {
		t.Fatalf("without a digest: %v", err)
	}
	if _, err := b.decide("ann", postgres.Decision{Arguments: json.RawMessage(`{"command":"x","y":1}`), Digest: asked.Digest}); harness.KindOf(err) != harness.Invalid {
		t.Fatalf("with a broken command: %v", err)
	}
	after, err := b.decide("ann", postgres.Decision{Arguments: change, Digest: asked.Digest})
	if err != nil || after.Digest == asked.Digest || after.AskedInput == nil {
		t.Fatalf("%+v, %v", after, err)
	}
	b.wake()
	b.same("command", b.text(`SELECT command FROM executions`), "deploy --one")
	b.finish(harness.ExecutionCompleted, 0, "")
	b.wake()
	b.same("the model is told", b.text(`SELECT result FROM tool_calls`), "[A human changed the command before approving it. This ran: deploy --one]\nexit code 0")
}

func TestScopes(t *testing.T) {
	again := func(b *bench, n int) {
		b.wake()
		b.finish(harness.ExecutionCompleted, 0, "")
		b.model.answers = []any{calls(`{ "command" : "deploy --all" }`), calls(`{"command": "deploy --all "}`)}
		b.wake() // the same, spelled in another way: runs
		b.same("state", b.state(), "AWAITING_EXECUTION")
		b.finish(harness.ExecutionCompleted, 0, "")
		b.wake() // one blank more: asks
		b.same("state", b.state(), "AWAITING_APPROVAL")
		b.same("questions", b.text(`SELECT count(*)::text FROM approvals`), fmt.Sprint(n))
	}
	t.Run("session", func(t *testing.T) {
		b := ask(t, asking())
		b.same("tap", string(b.tap("t1", "chat", "user", "s")), "DECIDED")
		again(b, 2)
	})
	t.Run("always", func(t *testing.T) {
		b := ask(t, asking(operators))
		if _, err := b.decide("ann", postgres.Decision{Scope: harness.GrantAlways}); err != nil {
			t.Fatal(err)
		}
		again(b, 2)
		granted, err := b.store.Granted(t.Context(), "coder", "ses_another", []string{b.text(`SELECT digest FROM approval_grants`)})
		if err != nil || len(granted) != 1 {
			t.Fatalf("in another session: %v, %v", granted, err)
		}
	})
}

func TestQuorum(t *testing.T) {
	two := func(a *harness.ApprovalSpec) { operators(a); a.Terms.Quorum = 2 }
	b := ask(t, asking(two))
	if a, err := b.decide("ann", postgres.Decision{}); err != nil || a.State != harness.ApprovalPending || len(a.Votes) != 1 {
		t.Fatalf("the first: %+v, %v", a, err)
	}
	if _, err := b.decide("ann", postgres.Decision{}); harness.KindOf(err) != harness.Conflict {
		t.Fatalf("the first again: %v", err)
	}
	if a, err := b.decide("bob", postgres.Decision{Groups: []string{"ops"}}); err != nil || a.State != harness.ApprovalApproved || a.DecidedBy != "ann, bob" {
		t.Fatalf("the second: %+v, %v", a, err)
	}
	b = ask(t, asking(two))
	_, _ = b.decide("ann", postgres.Decision{})
	if a, err := b.decide("ann", postgres.Decision{State: harness.ApprovalRejected, Reason: "I was wrong"}); err != nil || a.State != harness.ApprovalRejected {
		t.Fatalf("one who rejects is enough: %+v, %v", a, err)
	}
}

// What is approved is what was asked: an agent that changes meanwhile asks anew.
func TestTheAgentChangesMeanwhile(t *testing.T) {
	b := ask(t, asking(), says("I see."))
	changed := asking()
	changed.Harness.Sandbox.Egress = harness.EgressNone
	if _, err := b.store.Pool().Exec(t.Context(), `UPDATE agent_revisions SET spec = $1`, changed); err != nil {
		t.Fatal(err)
	}
	b.same("tap", string(b.tap("t1", "chat", "user", "a")), "DECIDED")
	b.wake()
	b.same("executions", b.text(`SELECT count(*)::text FROM executions`), "0")
	if got := b.text(`SELECT state || ' ' || result FROM tool_calls`); !strings.HasPrefix(got, "FAILED Not run: what was approved is not what would run now") {
		t.Fatalf("the model is told %q", got)
	}
}

func TestACancelledSessionIsNotDecided(t *testing.T) {
	b := ask(t, asking())
	if _, _, err := b.store.CancelSession(t.Context(), b.session, postgres.Audit{Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	b.same("tap", string(b.tap("t1", "chat", "user", "a")), "REFUSED")
	b.same("approval", b.text(`SELECT state || ' by ' || decided_by FROM approvals`), "CANCELLED by ann")
	b.same("card", b.text(`SELECT count(*)::text FROM replies WHERE kind = 'DECISION' AND text LIKE '%cancelled by ann%'`), "1")
	b.same("executions", b.text(`SELECT count(*)::text FROM executions`), "0")
}

func TestPolicies(t *testing.T) {
	for _, c := range []struct {
		name  string
		set   func(*harness.ApprovalSpec)
		asked bool
	}{
		{"never", func(a *harness.ApprovalSpec) { a.Policy = harness.ApproveNever }, false},
		{"by tool", func(a *harness.ApprovalSpec) { a.Policy, a.Tools = harness.ApproveByTool, []string{"executeShell"} }, true},
		{"by another tool", func(a *harness.ApprovalSpec) { a.Policy, a.Tools = harness.ApproveByTool, []string{"other"} }, false},
		{"pattern", func(a *harness.ApprovalSpec) { a.Policy, a.Patterns = harness.ApprovePattern, []string{`^deploy\b`} }, true},
		{"another pattern", func(a *harness.ApprovalSpec) { a.Policy, a.Patterns = harness.ApprovePattern, []string{`^rm\b`} }, false},
		{"a broken pattern", func(a *harness.ApprovalSpec) { a.Policy, a.Patterns = harness.ApprovePattern, []string{`(`} }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, asking(c.set), calls(deploy))
			b.say("1", "go")
			b.wake()
			want := map[bool]string{true: "AWAITING_APPROVAL", false: "AWAITING_EXECUTION"}[c.asked]
			b.same("state", b.state(), want)
		})
	}
}

// Everybody at once: one decision, one start at most, and every card says it.
func TestRacingDecisions(t *testing.T) {
	for round := range 8 {
		b := ask(t, asking(func(a *harness.ApprovalSpec) {
			a.Terms.Approvers = []harness.Approver{{Group: "ops"}, {Channel: harness.ChannelWebhook, ChannelUserID: "boss"}, {Channel: harness.ChannelWebhook, ChannelUserID: "user"}}
		}), says("ok"))
		a := b.approval()
		b.exec(`UPDATE approvals SET expires_at = now() + interval '5 milliseconds', due_at = now() + interval '5 milliseconds'`)
		var all sync.WaitGroup
		won := make(chan string, 100)
		for i := range 12 {
			verdict, state := "a", harness.ApprovalApproved
			if (i+round)%2 == 1 {
				verdict, state = "r", harness.ApprovalRejected
			}
			for _, who := range []string{"boss", "user"} {
				all.Go(func() {
					chat := map[string]string{"boss": "boss", "user": "user"}[who]
					if b.press(fmt.Sprintf("%s%d", who, i), chat, who, fmt.Sprintf("%s.%s.%s", a.ID, a.Digest[:12], verdict)) == postgres.TapDecided {
						won <- who
					}
				})
			}
			all.Go(func() {
				if _, _, err := b.store.DecideApproval(t.Context(), postgres.Decision{ID: a.ID, State: state, By: fmt.Sprint("op", i), Groups: []string{"ops"}, Via: harness.ChannelAPI}); err == nil {
					won <- "op"
				}
			})
			all.Go(func() {
				if _, err := b.store.ApprovalTimer(t.Context(), a.ID); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		close(won)
		for b.approval().State == harness.ApprovalPending {
			if _, err := b.store.ApprovalTimer(t.Context(), a.ID); err != nil {
				t.Fatal(err)
			}
		}
		decided := b.approval()
		if n := len(won); n > 1 || n == 1 != (decided.State != harness.ApprovalExpired) {
			t.Fatalf("%d won, and it is %s", n, decided.State)
		}
		b.same("outcomes", b.text(`SELECT count(*)::text FROM replies WHERE kind = 'DECISION'`), b.text(`SELECT count(*)::text FROM replies WHERE kind = 'CARD'`))
		b.wake()
		want := "0"
		if decided.State == harness.ApprovalApproved {
			want = "1"
		}
		b.same("executions", b.text(`SELECT count(*)::text FROM executions`), want)
	}
}
