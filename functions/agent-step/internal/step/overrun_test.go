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

// limited is a bench whose agent asks for more where change's limits have no room,
// and whose model never ends by itself.
func limited(t *testing.T, change func(*harness.Agent), answers ...any) *bench {
	t.Helper()
	agent := coder()
	agent.Model.Name, agent.Budget = "m", harness.Budget{MaxSteps: 1000, MaxToolCalls: 1000, MaxTokens: 1_000_000, MaxSeconds: 3600, MaxExecutions: 1000, OnOverrun: harness.OverrunAsk}
	change(&agent)
	if answers == nil {
		for _, a := range looping(60) {
			r := a.(model.Response)
			r.Usage = model.Usage{InputTokens: 200, OutputTokens: 500}
			answers = append(answers, r)
		}
	}
	b := newBench(t, agent, answers...)
	b.options.ContextTokens = 100_000
	b.options.Prices = map[string]harness.Price{"m": {Input: 1_000_000, Output: 100_000_000}} // of 200 in and 500 out: 50200 millionths
	b.step = step.New(b.options)
	b.say("1", "go on for ever")
	return b
}

// usedOf is what the rows have of a limit: of the turn, the session, or the day.
func (b *bench) usedOf(scope harness.BudgetScope, kind harness.BudgetKind) int64 {
	b.t.Helper()
	turn := []string{"turn_steps", "turn_tool_calls", "0", "turn_tokens", "turn_cost", "turn_execution_millis", "turn_executions"}
	of := []string{"used_steps", "used_tool_calls", "used_millis", "used_tokens", "used_cost", "used_execution_millis"}
	switch scope {
	case harness.ScopeTurn:
		return b.number(`SELECT ` + turn[kind] + ` FROM sessions`)
	case harness.ScopeSession:
		return b.number(`SELECT ` + of[kind] + ` FROM sessions`)
	}
	return b.number(`SELECT COALESCE(max(`+of[kind]+`), 0) FROM budget_usage WHERE scope = $1`, scope)
}

func (b *bench) number(sql string, args ...any) int64 {
	b.t.Helper()
	var n int64
	if err := b.store.Pool().QueryRow(b.t.Context(), sql, args...).Scan(&n); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// goOn works until nothing is due, ending every command after it ran for 200
// seconds, and looks after every step that no more is used than the limit and what
// was granted.
func (b *bench) goOn(scope harness.BudgetScope, kind harness.BudgetKind, limit int64) {
	b.t.Helper()
	for range 100 {
		if err := b.step.Session(b.t.Context(), event.Event{Type: event.SessionDue, Payload: event.Payload{Session: b.session}}); err != nil {
			b.t.Fatal(err)
		}
		granted := b.number(`SELECT COALESCE(sum(amount), 0)::bigint FROM budget_grants WHERE scope = $1 AND kind = $2`, scope, kind.Word())
		if used := b.usedOf(scope, kind); used > limit+granted {
			b.t.Fatalf("%s of %s: %d used, over %d and %d granted", kind.Word(), scope, used, limit, granted)
		}
		b.exec(`UPDATE executions SET state = 'COMPLETED', started_at = now() - interval '200 seconds', ended_at = now(), exit_code = 0 WHERE ended_at IS NULL`)
		b.exec(`UPDATE sessions SET due_at = now() WHERE state = 'AWAITING_EXECUTION'`)
		if b.text(`SELECT COALESCE(due_at <= now(), false)::text FROM sessions WHERE session_id = $1`, b.session) == "false" {
			return
		}
	}
	b.t.Fatal("it never stops")
}

func session(l harness.BudgetLimits) func(*harness.Agent) {
	return func(a *harness.Agent) { a.Budget.PerSession = &l }
}

func agentDay(l harness.BudgetLimits) func(*harness.Agent) {
	return func(a *harness.Agent) { a.Budget.PerAgentDay = &l }
}

func userDay(l harness.BudgetLimits) func(*harness.Agent) {
	return func(a *harness.Agent) { a.Budget.PerUserDay = &l }
}

// Of every scope and kind: asked at the limit, granted once, asked again at the
// next one, never above it, and BLOCKED where nobody grants.
func TestMoreIsAskedForAndGranted(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(*harness.Agent)
		scope harness.BudgetScope
		kind  harness.BudgetKind
		limit int64
	}{
		"steps, turn":          {func(a *harness.Agent) { a.Budget.MaxSteps = 3 }, harness.ScopeTurn, harness.KindSteps, 3},
		"calls, turn":          {func(a *harness.Agent) { a.Budget.MaxToolCalls = 3 }, harness.ScopeTurn, harness.KindToolCalls, 3},
		"commands, turn":       {func(a *harness.Agent) { a.Budget.MaxExecutions = 3 }, harness.ScopeTurn, harness.KindExecutions, 3},
		"tokens, turn":         {func(a *harness.Agent) { a.Budget.MaxTokens = 1800 }, harness.ScopeTurn, harness.KindTokens, 1800},
		"money, turn":          {func(a *harness.Agent) { a.Budget.MaxCost = 101_700 }, harness.ScopeTurn, harness.KindCost, 101_700},
		"command time, turn":   {func(a *harness.Agent) { a.Budget.MaxExecutionSeconds = 303 }, harness.ScopeTurn, harness.KindExecutionMillis, 303_000},
		"steps, session":       {session(harness.BudgetLimits{MaxSteps: 3}), harness.ScopeSession, harness.KindSteps, 3},
		"calls, session":       {session(harness.BudgetLimits{MaxToolCalls: 3}), harness.ScopeSession, harness.KindToolCalls, 3},
		"time, session":        {session(harness.BudgetLimits{MaxSeconds: 303}), harness.ScopeSession, harness.KindMillis, 303_000},
		"tokens, session":      {session(harness.BudgetLimits{MaxTokens: 1800}), harness.ScopeSession, harness.KindTokens, 1800},
		"money, session":       {session(harness.BudgetLimits{MaxCost: 101_700}), harness.ScopeSession, harness.KindCost, 101_700},
		"commands, session":    {session(harness.BudgetLimits{MaxExecutionSeconds: 303}), harness.ScopeSession, harness.KindExecutionMillis, 303_000},
		"steps, agent's day":   {agentDay(harness.BudgetLimits{MaxSteps: 3}), harness.ScopeAgentDay, harness.KindSteps, 3},
		"calls, agent's day":   {agentDay(harness.BudgetLimits{MaxToolCalls: 3}), harness.ScopeAgentDay, harness.KindToolCalls, 3},
		"time, agent's day":    {agentDay(harness.BudgetLimits{MaxSeconds: 303}), harness.ScopeAgentDay, harness.KindMillis, 303_000},
		"tokens, agent's day":  {agentDay(harness.BudgetLimits{MaxTokens: 1800}), harness.ScopeAgentDay, harness.KindTokens, 1800},
		"money, agent's day":   {agentDay(harness.BudgetLimits{MaxCost: 101_700}), harness.ScopeAgentDay, harness.KindCost, 101_700},
		"commands, agent's":    {agentDay(harness.BudgetLimits{MaxExecutionSeconds: 303}), harness.ScopeAgentDay, harness.KindExecutionMillis, 303_000},
		"steps, person's day":  {userDay(harness.BudgetLimits{MaxSteps: 3}), harness.ScopeUserDay, harness.KindSteps, 3},
		"calls, person's day":  {userDay(harness.BudgetLimits{MaxToolCalls: 3}), harness.ScopeUserDay, harness.KindToolCalls, 3},
		"time, person's day":   {userDay(harness.BudgetLimits{MaxSeconds: 303}), harness.ScopeUserDay, harness.KindMillis, 303_000},
		"tokens, person's day": {userDay(harness.BudgetLimits{MaxTokens: 1800}), harness.ScopeUserDay, harness.KindTokens, 1800},
		"money, person's day":  {userDay(harness.BudgetLimits{MaxCost: 101_700}), harness.ScopeUserDay, harness.KindCost, 101_700},
		"commands, person's":   {userDay(harness.BudgetLimits{MaxExecutionSeconds: 303}), harness.ScopeUserDay, harness.KindExecutionMillis, 303_000},
	} {
		t.Run(name, func(t *testing.T) {
			b := limited(t, c.set)
			asked := 0
			for round := range 3 {
				b.goOn(c.scope, c.kind, c.limit)
				b.same("state", b.state(), "AWAITING_APPROVAL")
				a := b.approval()
				q := b.text(`SELECT input->'budget'->>'scope' || ' ' || (input->'budget'->>'kind') || ' ' || (input->'budget'->>'limit') || ' ' || (input->'budget'->>'amount') FROM approvals WHERE approval_id = $1`, a.ID)
				b.same("what is asked", q, fmt.Sprintf("%s %s %d %d", c.scope, c.kind.Word(), c.limit*int64(round+1), c.limit))
				b.same("kind", string(a.Kind), "BUDGET")
				b.same("questions", b.text(`SELECT count(*) || ' ' || count(*) FILTER (WHERE state = 'PENDING') FROM approvals`), fmt.Sprint(round+1, " 1"))
				b.same("held", b.text(`SELECT COALESCE(max(reserved_steps + reserved_tool_calls + reserved_millis + reserved_tokens + reserved_cost + reserved_execution_millis), 0)::text FROM budget_usage`), "0")
				if len(b.model.asked) <= asked && c.kind != harness.KindTokens && c.kind != harness.KindCost {
					t.Errorf("round %d: the model was not asked again", round)
				}
				asked = len(b.model.asked)
				b.wake() // nothing is decided: nothing happens
				if round == 2 {
					break
				}
				b.same("tap", string(b.tap(fmt.Sprint("t", round), "chat", "user", "a")), "DECIDED")
			}
			b.same("grants", b.text(`SELECT count(*) || ' ' || sum(amount) || ' ' || count(*) FILTER (WHERE a.consumed_at IS NOT NULL) FROM budget_grants JOIN approvals a USING (approval_id)`), fmt.Sprint(2, " ", 2*c.limit, " ", 2))
			b.same("no", string(b.write("no", "chat", "user", b.approval().Code, harness.ApprovalRejected, "too dear")), "DECIDED")
			b.wake()
			if said := b.reply(); !strings.Contains(said, "used up") || !strings.HasSuffix(said, "webhook user said no. Their reason: too dear") {
				t.Errorf("the person is told %q", said)
			}
			b.same("ended", b.text(`SELECT state || ' ' || reason FROM sessions`), "BLOCKED "+b.reply())
			b.same("open calls", b.text(`SELECT count(*)::text FROM tool_calls WHERE state IN ('PENDING', 'RUNNING')`), "0")
		})
	}
}

// The turn's own time is that of people who do not answer, too, but not of those
// who decide.
func TestMoreTimeForATurn(t *testing.T) {
	b := limited(t, func(a *harness.Agent) { a.Budget.MaxSeconds = 60 }, calls(`{"command": "a"}`), says("Done."))
	b.wake()
	b.finish(harness.ExecutionCompleted, 0, "")
	b.exec(`UPDATE sessions SET turn_started_at = now() - interval '70 seconds'`)
	b.wake()
	b.same("state", b.state(), "AWAITING_APPROVAL")
	b.same("the result is kept", b.text(`SELECT state || ' ' || result FROM tool_calls`), "DONE exit code 0")
	b.exec(`UPDATE sessions SET waiting_since = now() - interval '1 hour', turn_started_at = turn_started_at - interval '1 hour'`)
	b.same("tap", string(b.tap("t1", "chat", "user", "a")), "DECIDED")
	b.wake()
	b.wake()
	b.same("reply", b.reply(), "Done.")
}

// The card says what it is about, and offers what makes sense of it.
func TestTheCardOfAnOverrun(t *testing.T) {
	b := limited(t, session(harness.BudgetLimits{MaxSteps: 1}))
	b.exec(`UPDATE messages SET text = E'deploy with top-secret-value\nApproved: 100 steps'`)
	b.goOn(harness.ScopeSession, harness.KindSteps, 1)
	card := b.text(`SELECT text FROM replies WHERE kind = 'CARD'`)
	for _, words := range []string{
		"Agent coder asks for more: its limit of 1 steps is used up.", "This conversation has used 1 steps of a limit of 1 steps.", "Approved, 1 steps are added once.",
		`Asked for: "deploy with [secret] Approved: 100 steps"`, "So far: 1 steps, 700 tokens, a cost of 0.0502", "approve " + b.approval().Code,
	} {
		if !strings.Contains(card, words) {
			t.Errorf("the card lacks %q:\n%s", words, card)
		}
	}
	b.same("choices", b.text(`SELECT string_agg(c->>'title', ',') FROM replies, jsonb_array_elements(choices) c WHERE kind = 'CARD'`), "Approve,Reject")
	b.same("a tampered tap", string(b.tap("t1", "chat", "user", "s")), "REFUSED")
	if said := b.reply(); !strings.Contains(said, "this can be approved once, not for the session or always") {
		t.Errorf("it says %q", said)
	}
	b.same("undecided", b.text(`SELECT state FROM approvals`), "PENDING")
}

func TestOnlyOnceByTheAPI(t *testing.T) {
	b := limited(t, func(a *harness.Agent) {
		a.Budget.PerSession = &harness.BudgetLimits{MaxSteps: 1}
		a.Approvals = &harness.ApprovalSpec{Policy: harness.ApproveNever, Terms: harness.ApprovalTerms{Approvers: []harness.Approver{{User: "ann"}}, Timeout: time.Hour}}
	})
	b.goOn(harness.ScopeSession, harness.KindSteps, 1)
	for _, scope := range []harness.ApprovalScope{harness.GrantSession, harness.GrantAlways} {
		if _, err := b.decide("ann", postgres.Decision{Scope: scope}); harness.KindOf(err) != harness.Invalid {
			t.Errorf("scope %s: %v, want Invalid", scope, err)
		}
	}
	if _, err := b.decide("ann", postgres.Decision{Arguments: []byte(`{"command": "x"}`), Digest: b.approval().Digest}); harness.KindOf(err) != harness.Invalid {
		t.Errorf("changed: %v, want Invalid", err)
	}
	if a, err := b.decide("ann", postgres.Decision{Scope: harness.GrantOnce}); err != nil || a.State != harness.ApprovalApproved {
		t.Errorf("once: %+v, %v", a, err)
	}
	b.same("no standing grant", b.text(`SELECT count(*)::text FROM approval_grants`), "0")
}

// However the question ends, the turn does, and the next message has its own.
func TestMoreIsNotGranted(t *testing.T) {
	for name, c := range map[string]struct {
		end   func(b *bench)
		state string
		words string
	}{
		"rejected": {func(b *bench) { b.tap("t1", "chat", "user", "r") }, "BLOCKED", "I asked for more, and webhook user said no."},
		"expired": {func(b *bench) {
			b.exec(`UPDATE approvals SET expires_at = now(), due_at = now()`)
			b.timer(1)
		}, "BLOCKED", "I asked for more, and nobody decided in time."},
		"cancelled": {func(b *bench) {
			b.exec(`SELECT cancel_approvals(ARRAY(SELECT approval_id FROM approvals), '', 'test')`)
		}, "BLOCKED", "I asked for more, and the question was cancelled."},
	} {
		t.Run(name, func(t *testing.T) {
			b := limited(t, func(a *harness.Agent) { a.Budget.MaxSteps = 1 }, calls(`{"command": "a"}`), says("Second."))
			b.goOn(harness.ScopeTurn, harness.KindSteps, 1)
			c.end(b)
			b.say("2", "and now?")
			b.wake()
			if said := b.reply(); !strings.Contains(said, c.words) {
				t.Errorf("the person is told %q, want %q", said, c.words)
			}
			b.wake()
			b.same("the next turn", b.reply(), "Second.")
			b.same("grants", b.text(`SELECT count(*)::text FROM budget_grants`), "0")
		})
	}
	t.Run("proceed", func(t *testing.T) {
		b := limited(t, func(a *harness.Agent) {
			a.Budget.MaxSteps = 1
			a.Approvals = &harness.ApprovalSpec{Policy: harness.ApproveNever, Terms: harness.ApprovalTerms{Timeout: time.Hour, OnTimeout: harness.TimeoutProceed}}
		}, calls(`{"command": "a"}`), says("Done."))
		b.goOn(harness.ScopeTurn, harness.KindSteps, 1)
		b.exec(`UPDATE approvals SET expires_at = now(), due_at = now()`)
		b.timer(1)
		b.goOn(harness.ScopeTurn, harness.KindSteps, 1)
		b.same("reply", b.reply(), "Done.")
	})
}

// What ends a call's question ends this one.
func TestOthersEndTheQuestion(t *testing.T) {
	one := func(a *harness.Agent) { a.Budget.MaxSteps = 1 }
	t.Run("the session is cancelled", func(t *testing.T) {
		b := limited(t, one)
		b.goOn(harness.ScopeTurn, harness.KindSteps, 1)
		if _, _, err := b.store.CancelSession(t.Context(), b.session, postgres.Audit{Actor: "ann"}); err != nil {
			t.Fatal(err)
		}
		b.same("approval", b.text(`SELECT state || ' by ' || decided_by FROM approvals`), "CANCELLED by ann")
		b.same("late", string(b.tap("t1", "chat", "user", "a")), "REFUSED")
		b.wake()
		b.same("grants", b.text(`SELECT count(*)::text FROM budget_grants`), "0")
	})
	t.Run("a person answers instead", func(t *testing.T) {
		b := limited(t, one, calls(`{"command": "a"}`), says("Second."))
		b.goOn(harness.ScopeTurn, harness.KindSteps, 1)
		if _, err := b.store.PauseSession(t.Context(), b.session, postgres.Audit{Actor: "ann"}); err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := b.store.Reply(t.Context(), postgres.PersonReply{Session: b.session, Text: "Done by hand.", Author: "ann", Key: "k"}); err != nil {
			t.Fatal(err)
		}
		b.same("approval", b.text(`SELECT state || ' by ' || decided_by FROM approvals`), "CANCELLED by ann")
		if _, _, err := b.store.UnpauseSession(t.Context(), b.session, postgres.Audit{Actor: "ann"}); err != nil {
			t.Fatal(err)
		}
		b.say("2", "thanks")
		b.wake()
		b.same("reply", b.reply(), "Second.")
	})
	t.Run("/new", func(t *testing.T) { // waits its turn, as behind a call's
		b := limited(t, one)
		b.goOn(harness.ScopeTurn, harness.KindSteps, 1)
		b.say("2", "/new")
		b.wake()
		b.same("state", b.state(), "AWAITING_APPROVAL")
		b.same("no", string(b.tap("t1", "chat", "user", "r")), "DECIDED")
		b.wake()
		b.wake()
		b.same("state", b.state(), "COMPLETED")
	})
	t.Run("halt", func(t *testing.T) { // it waits, and is decided while it does
		b := limited(t, one, calls(`{"command": "a"}`), says("Done."))
		b.goOn(harness.ScopeTurn, harness.KindSteps, 1)
		if _, _, err := b.store.Halt(t.Context(), "coder", postgres.Audit{Actor: "ann"}, "stop"); err != nil {
			t.Fatal(err)
		}
		b.same("yes", string(b.tap("t1", "chat", "user", "a")), "DECIDED")
		b.wake()
		b.same("nothing goes on", b.text(`SELECT count(*)::text FROM budget_grants`), "0")
		if _, _, err := b.store.Resume(t.Context(), "coder", postgres.Audit{Actor: "ann"}); err != nil {
			t.Fatal(err)
		}
		b.goOn(harness.ScopeTurn, harness.KindSteps, 1)
		b.same("reply", b.reply(), "Done.")
	})
	t.Run("the agent is deleted", func(t *testing.T) {
		b := limited(t, one)
		b.goOn(harness.ScopeTurn, harness.KindSteps, 1)
		b.exec(`UPDATE agents SET phase = 'DELETED'`)
		b.exec(`UPDATE sessions SET due_at = now()`)
		b.wake()
		b.same("reply", b.reply(), "This agent no longer exists.")
		b.same("approval", b.text(`SELECT state FROM approvals`), "CANCELLED")
	})
}

// An approved command that has no room waits for its budget, runs once it is
// granted, and is not run where it is not.
func TestAnApprovedCommandWithoutRoom(t *testing.T) {
	for name, set := range map[string]func(*harness.Agent){
		"turn":    func(a *harness.Agent) { a.Budget.MaxExecutionSeconds = 301 },
		"session": session(harness.BudgetLimits{MaxExecutionSeconds: 301}),
		"day":     agentDay(harness.BudgetLimits{MaxExecutionSeconds: 301}),
		"person":  userDay(harness.BudgetLimits{MaxExecutionSeconds: 301}),
	} {
		for _, verdict := range []string{"a", "r"} {
			t.Run(name+" "+verdict, func(t *testing.T) {
				b := limited(t, func(a *harness.Agent) {
					set(a)
					a.Approvals = &harness.ApprovalSpec{Policy: harness.ApproveAlways, Terms: harness.ApprovalTerms{Timeout: time.Hour}}
				}, calls(`{"command": "one"}`, `{"command": "two"}`), says("Done."))
				b.wake()
				for i, id := range strings.Fields(b.text(`SELECT string_agg(approval_id || '.' || left(digest, 12) || '.a', ' ' ORDER BY seq) FROM approvals`)) {
					b.same("yes", string(b.press(fmt.Sprint("y", i), "chat", "user", id)), "DECIDED")
				}
				b.wake()
				b.same("one runs, one waits", b.text(`SELECT string_agg(state, ',' ORDER BY seq) FROM tool_calls`), "RUNNING,PENDING")
				b.same("state", b.state(), "AWAITING_APPROVAL")
				b.finish(harness.ExecutionCompleted, 0, "")
				b.wake()
				b.same("its result is kept", b.text(`SELECT string_agg(state, ',' ORDER BY seq) FROM tool_calls`), "DONE,PENDING")
				b.same("state", b.state(), "AWAITING_APPROVAL")
				b.same("decided", string(b.tap("more", "chat", "user", verdict)), "DECIDED")
				b.wake()
				if verdict == "r" {
					b.same("state", b.state(), "BLOCKED")
					b.same("commands", b.text(`SELECT string_agg(command, ',') FROM executions`), "one")
					if got := b.text(`SELECT result FROM tool_calls WHERE seq = 1`); !strings.HasPrefix(got, "Not run: I stopped: ") {
						t.Errorf("the call's result is %q", got)
					}
					return
				}
				b.wake()
				b.same("commands", b.text(`SELECT string_agg(command, ',' ORDER BY seq) FROM executions`), "one,two")
				b.exec(`UPDATE executions SET state = 'COMPLETED', exit_code = 0, ended_at = now() WHERE ended_at IS NULL`)
				b.exec(`UPDATE sessions SET due_at = now()`)
				b.wake()
				b.same("reply", b.reply(), "Done.")
			})
		}
	}
}

// broken is a store that does not know whether it has committed: the process died
// behind the commit, or before it.
type broken struct {
	step.Store
	before bool
}

var errDied = errors.New("died")

func (s broken) CommitStep(ctx context.Context, c postgres.StepCommit) ([]event.Event, error) {
	if !s.before {
		if _, err := s.Store.CommitStep(ctx, c); err != nil {
			return nil, err
		}
	}
	return nil, errDied
}

// A crash at any commit, before or behind it: asked once, granted once.
func TestACrashDoublesNoGrant(t *testing.T) {
	for _, before := range []bool{true, false} {
		for crash := range 8 {
			b := limited(t, session(harness.BudgetLimits{MaxSteps: 2}))
			died := step.New(func() step.Options { o := b.options; o.Store = broken{b.store, before}; return o }())
			for i := range 12 {
				s := b.step
				if i == crash {
					s = died
				}
				if err := s.Session(t.Context(), event.Event{Type: event.SessionDue, Payload: event.Payload{Session: b.session}}); err != nil && !errors.Is(err, errDied) {
					t.Fatal(err)
				}
				b.exec(`UPDATE sessions SET lease_until = now() - interval '1 second' WHERE lease_owner IS NOT NULL`)
				b.exec(`UPDATE executions SET state = 'COMPLETED', ended_at = now(), exit_code = 0 WHERE ended_at IS NULL`)
				b.exec(`UPDATE sessions SET due_at = now() WHERE state = 'AWAITING_EXECUTION'`)
				if b.text(`SELECT count(*)::text FROM approvals WHERE state = 'PENDING'`) == "1" && b.text(`SELECT count(*)::text FROM approvals`) == "1" {
					b.tap(fmt.Sprint("t", i), "chat", "user", "a")
				}
			}
			what := fmt.Sprintf("crash %d, before %v", crash, before)
			b.same(what+": asked, then at the next limit", b.text(`SELECT string_agg(state || ' ' || (input->'budget'->>'limit'), ', ' ORDER BY seq) FROM approvals`), "APPROVED 2, PENDING 4")
			b.same(what+": granted", b.text(`SELECT count(*) || ' ' || sum(amount) FROM budget_grants`), "1 2")
			if used := b.usedOf(harness.ScopeSession, harness.KindSteps); used > 4 {
				t.Errorf("%s: %d steps", what, used)
			}
		}
	}
}

// Two who decide at once, and wakes meanwhile: one decision, one grant.
func TestRacingDecisionsGrantOnce(t *testing.T) {
	for round := range 6 {
		b := limited(t, session(harness.BudgetLimits{MaxSteps: 1}))
		b.goOn(harness.ScopeSession, harness.KindSteps, 1)
		id := b.approval().ID
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() { b.press(fmt.Sprint("y", round, i), "chat", "user", fmt.Sprintf("%s.%s.a", id, b.digest(id))) })
			all.Go(func() { b.press(fmt.Sprint("n", round, i), "chat", "user", fmt.Sprintf("%s.%s.r", id, b.digest(id))) })
			all.Go(func() {
				if err := b.step.Session(t.Context(), event.Event{Type: event.SessionDue, Payload: event.Payload{Session: b.session}}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		b.goOn(harness.ScopeSession, harness.KindSteps, 1)
		a, err := b.store.GetApproval(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		want := map[harness.ApprovalState]string{harness.ApprovalApproved: "1 AWAITING_APPROVAL", harness.ApprovalRejected: "0 BLOCKED"}[a.State]
		b.same("grants and state after "+string(a.State), b.text(`SELECT count(*)::text FROM budget_grants`)+" "+b.state(), want)
	}
}

func (b *bench) digest(id harness.ApprovalID) string {
	return b.text(`SELECT left(digest, 12) FROM approvals WHERE approval_id = $1`, id)
}

// Many sessions of an agent that ask for more of its day at once: what is used is
// never more than the limit and every grant, and no grant is used twice.
func TestManyAskForTheDay(t *testing.T) {
	b := limited(t, agentDay(harness.BudgetLimits{MaxSteps: 4}), looping(200)...)
	var ids []harness.SessionID
	for i := range 4 {
		accepted, _, err := b.store.Accept(t.Context(), harness.ChannelWebhook, postgres.Inbound{Arrivals: []postgres.Arrival{{
			Account: "hook", ProviderID: fmt.Sprint("m", i), Chat: fmt.Sprint("chat", i), Message: harness.Message{ChannelUserID: fmt.Sprint("user", i), Text: "go on"},
		}}}, "")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, accepted[0].Session)
	}
	b.options.Log = slog.New(slog.DiscardHandler)
	for round := range 6 {
		var all sync.WaitGroup
		for _, id := range ids {
			all.Go(func() {
				for range 6 {
					if err := b.step.Session(t.Context(), event.Event{Type: event.SessionDue, Payload: event.Payload{Session: id}}); err != nil {
						t.Error(err)
					}
					b.exec(`UPDATE executions SET state = 'COMPLETED', ended_at = now(), exit_code = 0 WHERE ended_at IS NULL AND session_id = $1`, id)
					b.exec(`UPDATE sessions SET due_at = now() WHERE state = 'AWAITING_EXECUTION' AND session_id = $1`, id)
				}
			})
		}
		all.Wait()
		granted := b.number(`SELECT COALESCE(sum(amount), 0)::bigint FROM budget_grants`)
		if used := b.number(`SELECT used_steps + reserved_steps FROM budget_usage WHERE scope = 'AGENT_DAY'`); used > 4+granted {
			t.Fatalf("round %d: %d steps, over 4 and %d granted", round, used, granted)
		}
		b.same("granted once each", b.text(`SELECT (count(*) = count(DISTINCT approval_id) AND count(*) = (SELECT count(*) FROM approvals WHERE consumed_at IS NOT NULL))::text FROM budget_grants`), "true")
		rows := strings.Fields(b.text(`SELECT COALESCE(string_agg(a.approval_id || ',' || s.chat || ',' || m.channel_user_id, ' '), '') FROM approvals a JOIN sessions s USING (session_id) JOIN messages m USING (message_id) WHERE a.state = 'PENDING'`))
		if len(rows) == 0 {
			t.Fatalf("round %d: nobody asks", round)
		}
		for i, row := range rows[:1+round%len(rows)] {
			part := strings.Split(row, ",")
			b.press(fmt.Sprint("r", round, i), part[1], part[2], fmt.Sprintf("%s.%s.a", part[0], b.digest(harness.ApprovalID(part[0]))))
		}
	}
}
