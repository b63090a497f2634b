package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

func put(t *testing.T, s *postgres.Store, texts ...postgres.AgentText) {
	t.Helper()
	if _, _, err := s.PutAgents(context.Background(), texts, nil); err != nil {
		t.Fatal(err)
	}
}

func standing(t *testing.T, s *postgres.Store, name harness.AgentName) postgres.Standing {
	t.Helper()
	all, err := s.Standings(context.Background(), name)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d standings, %v", len(all), err)
	}
	return all[0]
}

// Whatever a status shows makes it dirty, and nothing else does.
func TestWhatMakesAStatusDirty(t *testing.T) {
	s := postgrestest.New(t)
	ctx := context.Background()
	text := agentText("a", "agents/a", "one", "h1")
	text.Generation = 1
	put(t, s, text)
	digest := text.Agent.Harness.Sandbox.Digest()
	run(t, s, `INSERT INTO sessions (session_id, agent_name, channel, account, chat, state) VALUES ('ses_1', 'a', 'WEBHOOK', 'h1', 'c', 'IDLE')`)
	for _, step := range []struct {
		what, sql string
		dirty     bool
		check     func(postgres.Standing) bool
	}{
		{"at first", `SELECT 1`, true, func(a postgres.Standing) bool {
			return a.Revision == 1 && a.Generation == 1 && a.Sandbox == nil && a.Execution == nil
		}},
		{"a session that is touched", `UPDATE sessions SET updated_at = now(), due_at = now()`, false, nil},
		{"a message waits", `UPDATE sessions SET state = 'PENDING'`, true, func(a postgres.Standing) bool { return a.Sessions == 1 }},
		{"it is worked", `UPDATE sessions SET state = 'RUNNING'`, false, nil},
		{
			"a sandbox comes up", `INSERT INTO sandboxes (sandbox_id, sandbox_name, agent_name, session_id, spec, spec_digest, state, expires_at)
			VALUES ('sbx_1', 'n', 'a', 'ses_1', '{}', '` + digest + `', 'CREATING', now())`, true,
			func(a postgres.Standing) bool { return a.Sandboxes == 1 && a.Sandbox == nil },
		},
		{
			"it is up", `UPDATE sandboxes SET state = 'READY', sandbox_uid = 'u'`, true,
			func(a postgres.Standing) bool { return *a.Sandbox == postgres.LastSandbox{CameUp: true} },
		},
		{"it is used", `UPDATE sandboxes SET last_activity_at = now(), updated_at = now()`, false, nil},
		{"no command starts in it", `UPDATE sandboxes SET message = 'no shell'`, true, func(a postgres.Standing) bool { return a.Sandbox.Message == "no shell" }},
		{
			"a command is asked for", `INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce)
			VALUES ('exe_1', 'ses_1', 'a', 'API', 'x', 'true', '{}', 'd', 1, 'PENDING', 'n')`, true,
			func(a postgres.Standing) bool {
				return a.Execution.State == harness.ExecutionPending && !a.Execution.At.IsZero()
			},
		},
		{"its sandbox is another spec's", `UPDATE sandboxes SET spec_digest = 'older'`, true, func(a postgres.Standing) bool { return a.Sandbox == nil }},
		{"it is gone", `UPDATE sandboxes SET state = 'GONE', ended_at = now()`, true, func(a postgres.Standing) bool { return a.Sandboxes == 0 }},
	} {
		run(t, s, step.sql)
		a := standing(t, s, "a")
		if a.Dirty() != step.dirty || step.check != nil && !step.check(a) {
			t.Errorf("%s: dirty %v, %+v", step.what, a.Dirty(), a)
		}
		names, err := s.StatusDirty(ctx, time.Hour, 10)
		if err != nil || (len(names) == 1) != step.dirty {
			t.Errorf("%s: the sweep finds %v, %v", step.what, names, err)
		}
		if err := s.StatusIs(ctx, []postgres.Standing{a}); err != nil || standing(t, s, "a").Dirty() {
			t.Errorf("%s: still dirty, %v", step.what, err)
		}
	}
	text.Generation = 2
	put(t, s, text)
	if a := standing(t, s, "a"); !a.Dirty() || a.Generation != 2 || a.Revision != 1 {
		t.Errorf("another generation: %+v", a)
	}
	put(t, s)
	if all, err := s.Standings(ctx); err != nil || len(all) != 0 {
		t.Errorf("deleted: %v, %v", all, err)
	}
}

func TestAgentsOfAFolderHaveNoStatus(t *testing.T) {
	s := postgrestest.New(t)
	put(t, s, agentText("a", "a.yaml", "one"))
	if all, err := s.Standings(context.Background()); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
}

func TestOneClaimOfAStatusInItsTime(t *testing.T) {
	s := postgrestest.New(t)
	ctx := context.Background()
	text := agentText("a", "agents/a", "one")
	text.Generation = 1
	put(t, s, text)
	var mu sync.Mutex
	var tokens []time.Time
	var claiming sync.WaitGroup
	for range 8 {
		claiming.Go(func() {
			token, err := s.ClaimStatus(ctx, "a", time.Minute)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				tokens = append(tokens, token)
			} else if !errors.Is(err, postgres.ErrNothingDue) {
				t.Error(err)
			}
		})
	}
	claiming.Wait()
	if len(tokens) != 1 {
		t.Fatalf("%d claims", len(tokens))
	}
	a := standing(t, s, "a")
	if !a.Dirty() || a.Age > time.Minute {
		t.Errorf("claimed and not written: %+v", a)
	}
	if err := s.StatusWritten(ctx, "a", tokens[0].Add(-time.Second), a.Digest); err != nil || !standing(t, s, "a").Dirty() {
		t.Errorf("a claim that was overtaken has written: %v", err)
	}
	if err := s.StatusWritten(ctx, "a", tokens[0], a.Digest); err != nil || standing(t, s, "a").Dirty() {
		t.Errorf("written: %v", err)
	}
	renewed, err := s.RenewStatus(ctx, "a", tokens[0])
	if err != nil || !renewed.After(tokens[0]) {
		t.Errorf("renewed: %s, %v", renewed, err)
	}
	if _, err := s.RenewStatus(ctx, "a", tokens[0]); !errors.Is(err, postgres.ErrNothingDue) {
		t.Errorf("a claim that was overtaken is renewed: %v", err)
	}
	if err := s.StatusIsNot(ctx, standing(t, s, "a")); err != nil || !standing(t, s, "a").Dirty() {
		t.Errorf("another status is shown: %v", err)
	}
	if _, err := s.ClaimStatus(ctx, "a", 0); err != nil {
		t.Errorf("once the time is over: %v", err)
	}
}

func TestSecretChecksAreThoseOfTheirFunction(t *testing.T) {
	s := postgrestest.New(t)
	ctx := context.Background()
	put(t, s, agentText("a", "a.yaml", ""), agentText("b", "b.yaml", ""))
	check := func(agent harness.AgentName, name string, state harness.SecretState, reason string) harness.SecretCheck {
		return harness.SecretCheck{Agent: agent, Ref: harness.SecretRef{Name: name, Key: "k"}, State: state, Reason: reason}
	}
	mine := []harness.SecretCheck{check("a", "s1", harness.SecretAvailable, ""), check("b", "s1", harness.SecretDenied, "label it"), check("a", "s1", harness.SecretAvailable, "")}
	for _, step := range []struct {
		what, function string
		checks         []harness.SecretCheck
		want           int
	}{
		{"first", "webhook-ingest", mine, 2},
		{"another function's", "telegram-ingest", []harness.SecretCheck{check("a", "s1", harness.SecretNotFound, strings.Repeat("x", 9000)+"\x00")}, 1},
		{"again", "webhook-ingest", mine, 0},
		{"one is mended, one is named no more", "webhook-ingest", []harness.SecretCheck{check("b", "s1", harness.SecretAvailable, "")}, 2},
		{"none", "webhook-ingest", nil, 1},
	} {
		if got, err := s.StoreSecretChecks(ctx, step.function, step.checks); err != nil || got != step.want {
			t.Errorf("%s: %d rows changed, want %d, %v", step.what, got, step.want, err)
		}
	}
	var rows string
	if err := s.Pool().QueryRow(ctx, `SELECT string_agg(concat_ws(' ', function_name, agent_name, secret_name, state), ',') FROM secret_checks`).Scan(&rows); err != nil || rows != "telegram-ingest a s1 NOT_FOUND" {
		t.Errorf("%q, %v", rows, err)
	}
}

// Without a revision a refused agent is reached where its text says so, so that
// people are told; with one, where that says so.
func TestARefusedAgentIsReached(t *testing.T) {
	s := postgrestest.New(t)
	refused := refusedText("a", "a.yaml", "spec.x is wrong")
	refused.Channels = agentText("a", "", "", "h1").Agent.Harness.Channels
	other := refusedText("b", "b.yaml", "spec.y is wrong")
	other.Channels = agentText("b", "", "", "h1", "h2").Agent.Harness.Channels
	putAgents(t, s, nil, refused)
	changed := putAgents(t, s, nil, refused, other)
	want := []postgres.AgentStatus{{Name: "b", Phase: "INVALID", Reason: "spec.y is wrong\nRouteConflict: WEBHOOK h1 belongs to the agent a: name another account here, or remove that channel there"}}
	if diff := cmp.Diff(want, changed); diff != "" || routesNow(t, s) != "h1=a h2=b" {
		t.Errorf("%s, routes %s", diff, routesNow(t, s))
	}
	if conflicts, others := changed[0].Conflicts(); !strings.HasPrefix(conflicts, "WEBHOOK h1") || others != "spec.y is wrong" {
		t.Errorf("%q, %q", conflicts, others)
	}
	if putAgents(t, s, []postgres.BrokenSource{{Source: "a.yaml"}}, other); routesNow(t, s) != "h1=a h2=b" {
		t.Errorf("a file that cannot be read: routes %s", routesNow(t, s))
	}
	if putAgents(t, s, nil, agentText("a", "a.yaml", "", "h3"), other); routesNow(t, s) != "h1=b h2=b h3=a" {
		t.Errorf("mended: routes %s", routesNow(t, s))
	}
	// A younger agent that can be used is not kept from its account by one that cannot.
	if putAgents(t, s, nil, agentText("a", "a.yaml", "", "h3"), other, agentText("c", "c.yaml", "", "h1")); routesNow(t, s) != "h1=c h2=b h3=a" {
		t.Errorf("a younger agent that is ready: routes %s", routesNow(t, s))
	}
	if putAgents(t, s, nil, agentText("a", "a.yaml", "", "h3"), other); routesNow(t, s) != "h1=b h2=b h3=a" {
		t.Errorf("it is gone: routes %s", routesNow(t, s))
	}
	if putAgents(t, s, nil, refused, other); routesNow(t, s) != "h1=b h2=b h3=a" {
		t.Errorf("refused with a revision: routes %s", routesNow(t, s))
	}
	if putAgents(t, s, nil, other); routesNow(t, s) != "h1=b h2=b" {
		t.Errorf("deleted: routes %s", routesNow(t, s))
	}
}
