package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// agentText is the text of an agent that has the given hooks.
func agentText(name, source, prompt string, hooks ...string) postgres.AgentText {
	a := &harness.Agent{
		Name: harness.AgentName(name), SystemPrompt: prompt, Budget: harness.DefaultBudget(),
		Harness: harness.HarnessSpec{Enabled: true, Type: harness.HarnessChannel, Sandbox: harness.DefaultSandbox(), MaxSandboxes: 1},
	}
	for _, hook := range hooks {
		a.Harness.Channels = append(a.Harness.Channels, harness.ChannelSpec{
			Type: harness.ChannelWebhook, Account: hook, Secret: harness.SecretRef{Name: name, Key: "k"},
			Senders: harness.ChannelSenders{Policy: harness.SendersOpen},
		})
	}
	return postgres.AgentText{Name: a.Name, Source: source, Agent: a}
}

func refusedText(name, source, reason string) postgres.AgentText {
	return postgres.AgentText{Name: harness.AgentName(name), Source: source, Reason: reason}
}

// putAgents runs PutAgents twice: the second run must find nothing to do.
func putAgents(t *testing.T, s *postgres.Store, broken []postgres.BrokenSource, texts ...postgres.AgentText) []postgres.AgentStatus {
	t.Helper()
	ctx := context.Background()
	changed, events, err := s.PutAgents(ctx, texts, broken)
	if err != nil {
		t.Fatal(err)
	}
	if len(events) != len(changed) {
		t.Fatalf("%d events for %d changes", len(events), len(changed))
	}
	before := postgrestest.Dump(t, s, "agents", "agent_revisions", "channel_routes", "outbox")
	again, _, err := s.PutAgents(ctx, texts, broken)
	if err != nil || len(again) != 0 {
		t.Fatalf("the same again changed %v, %v", again, err)
	}
	if diff := cmp.Diff(before, postgrestest.Dump(t, s, "agents", "agent_revisions", "channel_routes", "outbox")); diff != "" {
		t.Fatalf("the same again changed rows:\n%s", diff)
	}
	return changed
}

// routesNow lists hook=agent.
func routesNow(t *testing.T, s *postgres.Store) string {
	t.Helper()
	var text string
	if err := s.Pool().QueryRow(context.Background(),
		`SELECT COALESCE(string_agg(account || '=' || agent_name, ' ' ORDER BY account), '') FROM channel_routes WHERE channel <> 'API'`).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}

func TestTheLifeOfAnAgent(t *testing.T) {
	s := postgrestest.New(t)
	steps := []struct {
		what   string
		broken []postgres.BrokenSource
		texts  []postgres.AgentText
		want   []postgres.AgentStatus // changed
		routes string
	}{
		{
			"comes up", nil,
			[]postgres.AgentText{agentText("a", "a.yaml", "one", "h1"), refusedText("b", "b.yaml", "spec.x is wrong")},
			[]postgres.AgentStatus{{Name: "a", Phase: "READY", Revision: 1}, {Name: "b", Phase: "INVALID", Reason: "spec.x is wrong"}},
			"h1=a",
		},
		{
			"another text is another revision, and its hooks move with it", nil,
			[]postgres.AgentText{agentText("a", "a.yaml", "two", "h2"), agentText("b", "b.yaml", "")},
			[]postgres.AgentStatus{{Name: "a", Phase: "READY", Revision: 2}, {Name: "b", Phase: "READY", Revision: 1}},
			"h2=a",
		},
		{
			"an invalid text leaves the older revision and its hooks in use", nil,
			[]postgres.AgentText{refusedText("a", "a.yaml", "spec.y is wrong"), agentText("b", "b.yaml", "")},
			[]postgres.AgentStatus{{Name: "a", Phase: "INVALID", Revision: 2, Reason: "spec.y is wrong"}},
			"h2=a",
		},
		{
			"the old text again is the old revision", nil,
			[]postgres.AgentText{agentText("a", "a.yaml", "two", "h2"), agentText("b", "b.yaml", "")},
			[]postgres.AgentStatus{{Name: "a", Phase: "READY", Revision: 2}},
			"h2=a",
		},
		{
			"a file that cannot be opened changes nothing",
			[]postgres.BrokenSource{{Source: "a.yaml"}},
			[]postgres.AgentText{agentText("b", "b.yaml", "")},
			nil, "h2=a",
		},
		{
			"a file that is not YAML keeps its agents and says so",
			[]postgres.BrokenSource{{Source: "a.yaml", Reason: "not YAML"}},
			[]postgres.AgentText{agentText("b", "b.yaml", "")},
			[]postgres.AgentStatus{{Name: "a", Phase: "INVALID", Revision: 2, Reason: "not YAML"}},
			"h2=a",
		},
		{
			"two definitions of one name: neither is taken", nil,
			[]postgres.AgentText{agentText("a", "a.yaml", "two", "h2"), agentText("b", "b.yaml", ""), agentText("a", "c.yaml", "three", "h3")},
			[]postgres.AgentStatus{{Name: "a", Phase: "INVALID", Revision: 2, Reason: "metadata.name is defined 2 times (a.yaml, c.yaml): keep one of them"}},
			"h2=a",
		},
		{
			"gone", nil,
			[]postgres.AgentText{agentText("b", "b.yaml", "")},
			[]postgres.AgentStatus{{Name: "a", Phase: "DELETED", Revision: 2, Reason: "its resource is gone"}},
			"",
		},
		{
			"back", nil,
			[]postgres.AgentText{agentText("b", "b.yaml", ""), agentText("a", "a.yaml", "two", "h2")},
			[]postgres.AgentStatus{{Name: "a", Phase: "READY", Revision: 2}},
			"h2=a",
		},
		{
			"an invalid text that is switched off switches off what is in use", nil,
			[]postgres.AgentText{agentText("b", "b.yaml", ""), {Name: "a", Source: "a.yaml", Reason: "spec.y is wrong", Off: true}},
			[]postgres.AgentStatus{{Name: "a", Phase: "INVALID", Revision: 3, Reason: "spec.y is wrong"}},
			"",
		},
		{
			"which only a valid text switches on", nil,
			[]postgres.AgentText{agentText("b", "b.yaml", ""), refusedText("a", "a.yaml", "spec.y is wrong")},
			nil, "",
		},
		{
			"mended", nil,
			[]postgres.AgentText{agentText("b", "b.yaml", ""), agentText("a", "a.yaml", "two", "h2")},
			[]postgres.AgentStatus{{Name: "a", Phase: "READY", Revision: 4}},
			"h2=a",
		},
	}
	for _, step := range steps {
		got := putAgents(t, s, step.broken, step.texts...)
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Fatalf("%s: changed (-want +got):\n%s", step.what, diff)
		}
		if got := routesNow(t, s); got != step.routes {
			t.Fatalf("%s: routes %q, want %q", step.what, got, step.routes)
		}
	}
	if all, err := s.Agents(context.Background()); err != nil || len(all) != 2 {
		t.Errorf("agents %v, %v", all, err)
	}
}

func TestTheOlderAgentKeepsTheChannel(t *testing.T) {
	s := postgrestest.New(t)
	putAgents(t, s, nil, agentText("z", "z.yaml", "", "h"))
	conflict := postgres.AgentStatus{Name: "a", Phase: "READY", Revision: 1, Reason: "RouteConflict: WEBHOOK h belongs to the older agent z: name another account here, or remove that channel there"}
	got := putAgents(t, s, nil, agentText("z", "z.yaml", "", "h"), agentText("a", "a.yaml", "", "h", "own"))
	if diff := cmp.Diff([]postgres.AgentStatus{conflict}, got); diff != "" || routesNow(t, s) != "h=z own=a" {
		t.Fatalf("%s\nroutes %s", diff, routesNow(t, s))
	}
	// An invalid text of the holder changes nothing; giving the hook up does.
	putAgents(t, s, nil, refusedText("z", "z.yaml", "bad"), agentText("a", "a.yaml", "", "h", "own"))
	if routesNow(t, s) != "h=z own=a" {
		t.Fatalf("routes %s", routesNow(t, s))
	}
	got = putAgents(t, s, nil, agentText("z", "z.yaml", ""), agentText("a", "a.yaml", "", "h", "own"))
	want := []postgres.AgentStatus{{Name: "a", Phase: "READY", Revision: 1}, {Name: "z", Phase: "READY", Revision: 2}}
	if diff := cmp.Diff(want, got); diff != "" || routesNow(t, s) != "h=a own=a" {
		t.Fatalf("%s\nroutes %s", diff, routesNow(t, s))
	}
	// Two that come at once: by name. One that comes back is the younger.
	putAgents(t, s, nil, agentText("z", "z.yaml", "", "n"), agentText("m", "m.yaml", "", "n"))
	putAgents(t, s, nil, agentText("z", "z.yaml", "", "n"))
	putAgents(t, s, nil, agentText("z", "z.yaml", "", "n"), agentText("m", "m.yaml", "", "n"))
	if routesNow(t, s) != "n=z" {
		t.Fatalf("routes %s", routesNow(t, s))
	}
}

func TestAStatusChangeWakesSessionsThatWait(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	putAgents(t, s, nil, agentText("coder", "a.yaml", "one", "hook"), agentText("other", "o.yaml", "", "hook2"))
	id := arrive(t, s, "a")[0].Session
	wait := func() {
		t.Helper()
		claim, err := s.ClaimSession(ctx, id, lease)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionPending, Retry: 1 << 40}); err != nil {
			t.Fatal(err)
		}
	}
	due := func() (due bool) {
		t.Helper()
		if err := s.Pool().QueryRow(ctx, `SELECT due_at <= now() AND retry_at IS NULL FROM sessions WHERE session_id = $1`, id).Scan(&due); err != nil {
			t.Fatal(err)
		}
		return due
	}
	wait()
	putAgents(t, s, nil, refusedText("coder", "a.yaml", "bad"), agentText("other", "o.yaml", "new", "hook2"))
	if due() {
		t.Error("a refused text and another agent's revision must not wake the session")
	}
	putAgents(t, s, nil, agentText("coder", "a.yaml", "one", "hook"), agentText("other", "o.yaml", "new", "hook2"))
	if !due() {
		t.Error("INVALID to READY must wake it")
	}
	wait()
	_, events, err := s.PutAgents(ctx, []postgres.AgentText{agentText("coder", "a.yaml", "two", "hook"), agentText("other", "o.yaml", "new", "hook2")}, nil)
	if err != nil || !due() {
		t.Errorf("a new revision must wake it: %v", err)
	}
	if len(events) != 1 || events[0].Type != event.AgentStatusChanged || events[0].Payload != (event.Payload{Agent: "coder", Revision: 2}) ||
		!strings.HasPrefix(events[0].ID, "agent.status.changed:coder:") {
		t.Errorf("events %+v", events)
	}
}

// Ten at once, each with a different idea of the prompt: every state in between
// is whole, revisions have no holes, and one route is left.
func TestConcurrentReconciles(t *testing.T) {
	s := postgrestest.New(t)
	var running sync.WaitGroup
	errs := make(chan error, 10)
	for i := range 10 {
		running.Go(func() {
			_, _, err := s.PutAgents(context.Background(), []postgres.AgentText{agentText("a", "a.yaml", fmt.Sprint("prompt ", i), "h"), agentText("b", "b.yaml", "", "h")}, nil)
			errs <- err
		})
	}
	running.Wait()
	for range 10 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	var revisions, newest int
	if err := s.Pool().QueryRow(context.Background(), `SELECT count(*), max(revision) FROM agent_revisions WHERE agent_name = 'a'`).Scan(&revisions, &newest); err != nil || revisions != 10 || newest != 10 {
		t.Errorf("%d revisions up to %d, %v", revisions, newest, err)
	}
	if routesNow(t, s) != "h=a" {
		t.Errorf("routes %s", routesNow(t, s))
	}
}

func TestHostileTextIsStored(t *testing.T) {
	s := postgrestest.New(t)
	got := putAgents(t, s, []postgres.BrokenSource{{Source: "\xff.yaml", Reason: "\x00"}}, refusedText("a", "a\xff\x00.yaml", strings.Repeat("é", 10_000)+"\x00"))
	if len(got) != 1 || len(got[0].Reason) > 8<<10 {
		t.Errorf("got %d agents", len(got))
	}
}
