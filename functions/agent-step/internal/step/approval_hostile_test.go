package step_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// A decision and the end of its session: whatever comes first, nothing runs.
func TestDecisionsRaceACancel(t *testing.T) {
	for range 6 {
		b := ask(t, asking(group))
		a := b.approval()
		var all sync.WaitGroup
		all.Go(func() {
			if _, _, err := b.store.CancelSession(t.Context(), b.session, postgres.Audit{Actor: "bob"}); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() { b.press("t1", "boss", "boss", fmt.Sprintf("%s.%s.a", a.ID, a.Digest[:12])) })
		all.Go(func() {
			_, _, err := b.store.DecideApproval(t.Context(), postgres.Decision{ID: a.ID, State: harness.ApprovalApproved, By: "ann", Via: harness.ChannelAPI})
			if err != nil && harness.KindOf(err) != harness.Conflict {
				t.Error(err)
			}
		})
		all.Wait()
		b.wake()
		b.same("session", b.state(), "CANCELLED")
		if a := b.approval(); a.State != harness.ApprovalApproved && a.State != harness.ApprovalCancelled {
			t.Fatalf("the approval is %s", a.State)
		}
		b.same("executions", b.text(`SELECT count(*)::text FROM executions`), "0")
		b.same("outcomes", b.text(`SELECT count(*)::text FROM replies WHERE kind = 'DECISION'`), b.text(`SELECT count(*)::text FROM replies WHERE kind = 'CARD'`))
	}
}

// What a person writes meanwhile waits its turn, also the end of the conversation.
func TestNewWhileItWaits(t *testing.T) {
	b := ask(t, asking(), says("Deployed."))
	b.say("2", "/new")
	b.wake()
	b.same("state", b.state(), "AWAITING_APPROVAL")
	b.same("tap", string(b.tap("t1", "chat", "user", "a")), "DECIDED")
	b.wake()
	b.finish(harness.ExecutionCompleted, 0, "done")
	b.wake()
	b.same("reply", b.reply(), "Deployed.")
	b.wake()
	b.same("state", b.state(), "COMPLETED")
	b.same("commands", b.text(`SELECT count(*)::text FROM executions`), "1")
}

func TestTheAgentIsDeletedMeanwhile(t *testing.T) {
	b := ask(t, asking(group))
	b.exec(`UPDATE agents SET phase = 'DELETED'`)
	b.same("tap", string(b.tap("t1", "boss", "boss", "a")), "DECIDED")
	b.wake()
	b.same("reply", b.reply(), "This agent no longer exists.")
	b.same("executions", b.text(`SELECT count(*)::text FROM executions`), "0")
}

// Nobody is two people by being asked twice.
func TestEscalationToTheSamePerson(t *testing.T) {
	boss := harness.Approver{Channel: harness.ChannelWebhook, ChannelUserID: "boss"}
	b := ask(t, asking(func(a *harness.ApprovalSpec) {
		a.Terms.Approvers, a.Terms.Quorum = []harness.Approver{boss, {User: "ann"}}, 2
		a.Terms.EscalateAfter, a.Terms.EscalateTo = time.Minute, []harness.Approver{boss}
	}))
	b.exec(`UPDATE approvals SET escalate_at = now(), due_at = now()`)
	b.timer(1)
	b.same("cards", b.text(`SELECT string_agg(s.chat, ' ' ORDER BY s.chat) FROM replies r JOIN sessions s USING (session_id) WHERE kind = 'CARD'`), "boss chat")
	b.same("once", string(b.tap("t1", "boss", "boss", "a")), "DECIDED")
	b.same("twice", string(b.tap("t2", "boss", "boss", "a")), "REFUSED")
	b.same("state", string(b.approval().State), "PENDING")
	b.same("told", b.text(`SELECT string_agg(text, ' | ' ORDER BY seq) FROM replies r JOIN sessions s USING (session_id) WHERE s.chat = 'boss' AND kind = 'TEXT'`),
		"Noted: 1 of 2 have approved. | Nothing was done: you have said so already; 2 must approve.")
	if _, err := b.decide("ann", postgres.Decision{}); err != nil {
		t.Fatal(err)
	}
	b.same("decided", b.approval().DecidedBy, "webhook boss, ann")
}

func TestThirtyTwoApprovers(t *testing.T) {
	b := ask(t, asking(func(a *harness.ApprovalSpec) {
		for i := range 32 {
			a.Terms.Approvers = append(a.Terms.Approvers, harness.Approver{Channel: harness.ChannelWebhook, ChannelUserID: fmt.Sprint("p", i)})
		}
		a.Terms.Quorum = 31
	}))
	a := b.approval()
	var all sync.WaitGroup
	outcomes := make(chan postgres.TapOutcome, 32)
	for i := range 32 {
		all.Go(func() {
			who := fmt.Sprint("p", i)
			outcomes <- b.press("t"+who, who, who, fmt.Sprintf("%s.%s.a", a.ID, a.Digest[:12]))
		})
	}
	all.Wait()
	close(outcomes)
	refused := 0
	for o := range outcomes {
		if o == postgres.TapRefused {
			refused++
		}
	}
	if decided := b.approval(); decided.State != harness.ApprovalApproved || len(decided.Votes) != 31 || refused != 1 {
		t.Fatalf("%s by %d, %d refused", decided.State, len(decided.Votes), refused)
	}
	b.same("outcomes", b.text(`SELECT count(*)::text FROM replies WHERE kind = 'DECISION'`), "33") // with who asked
}

// A code that was used is answered with who used it; it is no message for the agent.
func TestACodeOfWhatIsDecided(t *testing.T) {
	b := ask(t, asking(group))
	code := b.approval().Code
	if _, err := b.decide("ann", postgres.Decision{}); err != nil {
		t.Fatal(err)
	}
	b.same("late", string(b.write("t1", "boss", "boss", code, harness.ApprovalRejected, "")), "REFUSED")
	if said := b.text(`SELECT r.text FROM replies r JOIN sessions s USING (session_id) WHERE s.chat = 'boss' AND r.kind = 'TEXT'`); !strings.Contains(said, "decided already: APPROVED by ann at ") {
		t.Fatalf("the loser is told %q", said)
	}
}

// Two questions may have the same code by chance: then it decides neither.
func TestTwoQuestionsOfOneCode(t *testing.T) {
	b := newBench(t, asking(), calls(deploy, `{"command": "deploy --none"}`))
	b.say("1", "please deploy both")
	b.wake()
	b.exec(`UPDATE approvals SET short_code = '123456'`)
	b.same("code", string(b.write("t1", "chat", "user", "123456", harness.ApprovalApproved, "")), "REFUSED")
	b.same("open", b.text(`SELECT count(*)::text FROM approvals WHERE state = 'PENDING'`), "2")
	b.same("tap", string(b.tap("t2", "chat", "user", "r")), "DECIDED")
	b.same("the other", string(b.write("t3", "chat", "user", "123456", harness.ApprovalApproved, "")), "DECIDED")
	b.same("decided", b.text(`SELECT string_agg(state, ' ' ORDER BY state) FROM approvals`), "APPROVED REJECTED")
}

// A repeat of an update has no effect, whatever has become of the question since.
func TestARepeatOfATapThatDidNotCount(t *testing.T) {
	b := ask(t, asking(func(a *harness.ApprovalSpec) {
		a.Terms.Approvers = []harness.Approver{{User: "ann"}}
		a.Terms.EscalateAfter, a.Terms.EscalateTo = time.Minute, []harness.Approver{{Channel: harness.ChannelWebhook, ChannelUserID: "user"}}
	}))
	b.same("too early", string(b.tap("t1", "chat", "user", "a")), "REFUSED")
	b.exec(`UPDATE approvals SET escalate_at = now(), due_at = now()`)
	b.timer(1)
	b.same("the same update", string(b.tap("t1", "chat", "user", "a")), "DUPLICATE")
	b.same("state", string(b.approval().State), "PENDING")
	b.same("votes", b.text(`SELECT count(*)::text FROM approval_votes`), "0")
	b.same("another", string(b.tap("t2", "chat", "user", "a")), "DECIDED")
}

// The approver's conversation ends meanwhile; the card in it still decides.
func TestTheApproversConversationEnds(t *testing.T) {
	b := ask(t, asking(group))
	b.exec(`UPDATE sessions SET state = 'COMPLETED', ended_at = now() WHERE chat = 'boss'`)
	b.same("tap", string(b.tap("t1", "boss", "boss", "r")), "DECIDED")
	b.same("told", b.text(`SELECT count(*)::text FROM replies r JOIN sessions s USING (session_id) WHERE s.chat = 'boss' AND kind = 'DECISION' AND r.state = 'PLANNED'`), "1")
	b.same("it stays ended", b.text(`SELECT state FROM sessions WHERE chat = 'boss'`), "COMPLETED")
}

// A person who is known by another name by the time they tap is the same person.
func TestTheApproverIsRenamed(t *testing.T) {
	b := ask(t, asking(group))
	b.exec(`INSERT INTO chat_aliases (channel, account, alias, chat) VALUES ('WEBHOOK', 'hook', 'new-boss', 'boss')`)
	b.same("tap", string(b.tap("t1", "new-boss", "new-boss", "a")), "DECIDED")
	b.same("by", b.approval().DecidedBy, "webhook boss")
}

// What a hostile client can put into a tap or a code breaks nothing.
func TestBytesThatAreNoText(t *testing.T) {
	b := ask(t, asking())
	a := b.approval()
	for i, payload := range []string{
		fmt.Sprintf("%s\x00.%s.a", a.ID, a.Digest[:12]), fmt.Sprintf("%s.%s\xff.a", a.ID, a.Digest[:11]), "apr_" + strings.Repeat("x", 1<<20) + "." + a.Digest[:12] + ".a", "apr_",
	} {
		if got := b.press(fmt.Sprint("bad", i), "chat", "user", payload); got != postgres.TapRefused {
			t.Errorf("payload %d: %s", i, got)
		}
	}
	b.same("code", string(b.write("t1", "chat", "user", a.Code, harness.ApprovalRejected, "a\x00b\xff"+strings.Repeat("long ", 1<<18))), "DECIDED")
	if reason := b.approval().Reason; !strings.HasPrefix(reason, "ab\uFFFD") || len(reason) > 9000 {
		t.Errorf("the reason has %d bytes: %.20q", len(reason), reason)
	}
}

// Arguments that are read in two ways are none.
func TestChangedToWhatIsNoCommand(t *testing.T) {
	b := ask(t, asking(operators))
	a := b.approval()
	for _, arguments := range []string{
		`null`, `[]`, `"rm"`, `7`, `{}`, `{"command":7}`, `{"command":null}`, `{"command":""}`, `{"command":" \n"}`, `{"Command":"x"}`, `{"command":"x","Command":"y"}`,
		`{"command":["x"]}`, `{"command":"a\u0000b"}`, `{"command":"x"} {"command":"y"}`, "{\"command\":\"\xff\"",
	} {
		if _, err := b.decide("ann", postgres.Decision{Arguments: json.RawMessage(arguments), Digest: a.Digest}); harness.KindOf(err) != harness.Invalid {
			t.Errorf("%s: %v", arguments, err)
		}
	}
	b.same("votes", b.text(`SELECT count(*)::text FROM approval_votes`), "0")
	b.same("state", string(b.approval().State), "PENDING")
}

// A thousand taps in one request: each has its answer, and a repeat of the request
// finds out fast that all of it is known.
func TestAThousandTaps(t *testing.T) {
	const n = 1000
	b := ask(t, asking())
	a := b.approval()
	tap := func(i int) postgres.TapOutcome {
		return b.press(fmt.Sprint("t", i), "chat", "user", fmt.Sprintf("%s.%s.a", a.ID, a.Digest[:12]))
	}
	began := time.Now()
	counts := map[postgres.TapOutcome]int{}
	for i := range n {
		counts[tap(i)]++
	}
	first := time.Since(began)
	began = time.Now()
	for i := range n {
		counts[tap(i)]++
	}
	t.Logf("%d taps took %s, all of them again %s", n, first.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	b.same("outcomes", fmt.Sprint(counts), "map[DECIDED:1 DUPLICATE:1000 REFUSED:999]")
}
