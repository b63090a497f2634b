package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// asAgentStep is the store of agent-step, with its rights, and how a test
// prepares what the function may not.
func asAgentStep(t *testing.T) (*postgres.Store, func(sql string, args ...any)) {
	t.Helper()
	dsn := postgrestest.DSN(t)
	owner, err := postgres.Open(dsn, postgres.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(owner.Close)
	agent(t, owner)
	arrive(t, owner, "a")
	s, err := postgres.Open(dsn, postgres.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	run(t, s, `SET ROLE tuluat_agent_step`)
	return s, func(sql string, args ...any) {
		t.Helper()
		if _, err := owner.Pool().Exec(context.Background(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
}

// A call begins once: under the claim that holds the session, and under no other.
func TestRemoteCallsBeginOnce(t *testing.T) {
	ctx := context.Background()
	s, prepare := asAgentStep(t)
	due, err := s.DueSessions(ctx, "coder", 1)
	if err != nil || len(due) != 1 {
		t.Fatal(due, err)
	}
	session := due[0].Session
	claim, err := s.ClaimSession(ctx, session, lease)
	if err != nil {
		t.Fatal(err)
	}
	remote := &harness.RemoteTool{Block: harness.BlockMCP, Server: "m", Tool: "t", URL: "https://example.com/", Settings: "d"}
	step := &postgres.NewStep{ID: "stp_1"}
	for _, id := range []harness.ToolCallID{"call_1", "call_2"} {
		step.Calls = append(step.Calls, postgres.NewCall{CallOutcome: postgres.CallOutcome{ID: id, State: harness.ToolCallPending}, ProviderID: string(id), Name: "m__t", Arguments: "{}", Remote: remote})
	}
	step.Calls = append(step.Calls, postgres.NewCall{CallOutcome: postgres.CallOutcome{ID: "call_3", State: harness.ToolCallPending}, ProviderID: "p3", Name: "executeShell", Arguments: "{}"})
	if _, err := s.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionRunning, Start: true, Again: true, Step: step}); err != nil {
		t.Fatal(err)
	}
	calls := []harness.ToolCallID{"call_1", "call_3", "call_9"}
	if _, err := s.BeginCalls(ctx, claim, calls); !errors.Is(err, postgres.ErrLeaseLost) {
		t.Fatalf("under a claim that is over: %v", err)
	}
	claim, err = s.ClaimSession(ctx, session, lease)
	if err != nil {
		t.Fatal(err)
	}
	if c := claim.Calls[0]; c.Remote == nil || *c.Remote != *remote || c.BegunToken != nil {
		t.Fatalf("claimed as %+v", c)
	}
	prepare(`UPDATE agents SET halted_at = now()`)
	if begun, err := s.BeginCalls(ctx, claim, calls); err != nil || len(begun) != 0 {
		t.Fatalf("while halted began %v, %v", begun, err)
	}
	prepare(`UPDATE agents SET halted_at = NULL`)
	for _, want := range []string{"[call_1]", "[]"} { // no command, none that is not there, none twice
		if begun, err := s.BeginCalls(ctx, claim, calls); err != nil || fmt.Sprint(begun) != want {
			t.Fatalf("began %v, %v; want %s", begun, err, want)
		}
	}
	prepare(`UPDATE sessions SET lease_until = now() - interval '1 second'`)
	next, err := s.ClaimSession(ctx, session, lease)
	if err != nil {
		t.Fatal(err)
	}
	if c := next.Calls[0]; c.State != harness.ToolCallRunning || c.BegunToken == nil || *c.BegunToken != claim.Token || next.Calls[1].State != harness.ToolCallPending {
		t.Fatalf("the next claim reads %+v", next.Calls)
	}
}

// What is known of servers, of which settings and since when, with the rights of
// the function that keeps it.
func TestListings(t *testing.T) {
	ctx := context.Background()
	s, prepare := asAgentStep(t)
	both := []string{"a", "b"}
	put := func(keep []string, listings ...postgres.Listing) {
		t.Helper()
		if err := s.PutListings(ctx, "coder", harness.BlockMCP, keep, listings...); err != nil {
			t.Fatal(err)
		}
	}
	known := func() string {
		t.Helper()
		all, err := s.Listings(ctx, "coder", harness.BlockMCP)
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for _, name := range both {
			if l, ok := all[name]; ok {
				text += fmt.Sprintf("%s %s %s listed=%v fresh=%v %q; ", name, l.Digest, l.Offered, l.Listed, l.Fresh, l.Reason)
			}
		}
		return text
	}
	other := postgres.Listing{Server: "a", Digest: "9", Offered: json.RawMessage(`{"url": "u"}`)} // another block's, which nothing here touches
	if err := s.PutListings(ctx, "coder", harness.BlockA2A, []string{"a"}, other); err != nil {
		t.Fatal(err)
	}
	put(both, postgres.Listing{Server: "a", Digest: "1", Offered: json.RawMessage(`["x"]`)}, postgres.Listing{Server: "b", Digest: "1", Reason: "down"})
	for _, c := range []struct {
		do   func()
		want string
	}{
		{func() {}, `a 1 ["x"] listed=true fresh=true ""; b 1 [] listed=false fresh=true "down"; `},
		{func() { prepare(`UPDATE remote_servers SET tried_at = now() - interval '31 seconds'`) }, `a 1 ["x"] listed=true fresh=true ""; b 1 [] listed=false fresh=false "down"; `},
		{func() { put(both, postgres.Listing{Server: "a", Digest: "1", Reason: "slow"}) }, `a 1 ["x"] listed=true fresh=true "slow"; b 1 [] listed=false fresh=false "down"; `},
		{func() { prepare(`UPDATE remote_servers SET tried_at = now() - interval '31 seconds'`) }, `a 1 ["x"] listed=true fresh=false "slow"; b 1 [] listed=false fresh=false "down"; `},
		{func() { put(both, postgres.Listing{Server: "a", Digest: "2", Reason: "slow"}) }, `a 2 [] listed=false fresh=true "slow"; b 1 [] listed=false fresh=false "down"; `},
		{func() {
			put([]string{"b"}, postgres.Listing{Server: "b", Digest: "1", Offered: json.RawMessage(`[]`)})
		}, `b 1 [] listed=true fresh=true ""; `},
		{func() { prepare(`UPDATE remote_servers SET tried_at = now() - interval '601 seconds'`) }, `b 1 [] listed=true fresh=false ""; `},
	} {
		if c.do(); known() != c.want {
			t.Fatalf("got  %s\nwant %s", known(), c.want)
		}
	}
	if peers, err := s.Listings(ctx, "coder", harness.BlockA2A); err != nil || len(peers) != 1 || string(peers["a"].Offered) != `{"url": "u"}` || peers["a"].Digest != "9" {
		t.Fatalf("of the other block %+v, %v", peers, err)
	}
	if agents, err := s.AgentsWithServers(ctx); err != nil || len(agents) != 0 {
		t.Fatalf("%v, %v", agents, err)
	}
	prepare(`UPDATE agent_revisions SET spec = '{"name": "coder", "mcpServers": [{"name": "a", "url": "https://a", "headersSecretRef": {"name": "s", "key": "k"}}]}'`)
	if agents, err := s.AgentsWithServers(ctx); err != nil || len(agents) != 1 || agents[0].MCPServers[0].Headers.Name != "s" {
		t.Fatalf("%v, %v", agents, err)
	}
	prepare(`UPDATE agent_revisions SET spec = '{"name": "coder", "peers": [{"name": "a", "url": "https://a"}]}'`)
	if agents, err := s.AgentsWithServers(ctx); err != nil || len(agents) != 1 || len(agents[0].Peers) != 1 {
		t.Fatalf("%v, %v", agents, err)
	}
	if n, err := s.StoreSecretChecks(ctx, "agent-step", []harness.SecretCheck{{Agent: "coder", Ref: harness.SecretRef{Name: "s", Key: "k"}, State: harness.SecretAvailable}}); err != nil || n != 1 {
		t.Fatalf("%d, %v", n, err)
	}
}
