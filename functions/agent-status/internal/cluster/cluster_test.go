package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"k8s.io/client-go/rest"

	"tuluat.ai/harness/functions/agent-status/internal/cluster"
	"tuluat.ai/harness/functions/agent-status/internal/image"
	"tuluat.ai/harness/functions/agent-status/internal/status"
	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
	"tuluat.ai/harness/shared/resource"
	"tuluat.ai/harness/shared/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a reconciler between an API server and a real database.
type rig struct {
	*status.Reconciler
	t      *testing.T
	server *resourcetest.Server
	store  *postgres.Store
	images string
	looks  *image.Skills // at images of skills
	log    bytes.Buffer  // of the first process

	mu   sync.Mutex
	said []event.Event
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, server: resourcetest.New(t), store: postgrestest.New(t), images: t.TempDir(), looks: &image.Skills{}}
	r.Reconciler = r.process(slog.New(slog.NewTextHandler(&r.log, nil)))
	return r
}

// another is one more process of the function.
func (r *rig) another() *status.Reconciler {
	return r.process(slog.New(slog.DiscardHandler))
}

func (r *rig) process(log *slog.Logger) *status.Reconciler {
	r.t.Helper()
	c, err := cluster.New(&rest.Config{Host: r.server.URL}, resource.Options{Namespace: "agents", Limits: v1alpha1.DefaultLimits(), ImagesDir: r.images}, r.skillImages)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(c.Close)
	return status.New(status.Options{
		Source: c, Resources: c, Store: r.store, Log: log, Metrics: prometheus.NewRegistry(), Now: time.Now,
		Publish: func(_ context.Context, events ...event.Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.said = append(r.said, events...)
		},
	})
}

// reconcile delivers a resource event, and then the event that a write of ours
// makes: that must write nothing.
func (r *rig) reconcile() []string {
	r.t.Helper()
	if err := r.Reconcile(context.Background(), event.Event{ID: "1", Type: event.ResourceUpdate}); err != nil {
		r.t.Fatal(err)
	}
	patched := r.server.Patched()
	if err := r.Reconcile(context.Background(), event.Event{ID: "2", Type: event.ResourceUpdate}); err != nil {
		r.t.Fatal(err)
	}
	if echoes := r.server.Patched(); len(echoes) > 0 {
		r.t.Fatalf("the event of our own write caused %v", echoes)
	}
	return patched
}

func (r *rig) changed(agent harness.AgentName) []string {
	r.t.Helper()
	if err := r.Changed(context.Background(), event.Event{ID: "1", Type: event.SessionChanged, Agent: agent}); err != nil {
		r.t.Fatal(err)
	}
	return r.server.Patched()
}

func (r *rig) sql(sql string) {
	r.t.Helper()
	if _, err := r.store.Pool().Exec(context.Background(), sql); err != nil {
		r.t.Fatal(err)
	}
}

// timePasses ends the time within which a status is not written again.
func (r *rig) timePasses() {
	r.sql(`UPDATE agent_statuses SET written_at = written_at - interval '10 seconds'`)
}

func (r *rig) status(name string) v1alpha1.Status {
	r.t.Helper()
	var s v1alpha1.Status
	r.server.Object("aiagents", name, "status", &s)
	return s
}

func (r *rig) condition(name string, kind v1alpha1.ConditionType) v1alpha1.Condition {
	r.t.Helper()
	for _, c := range r.status(name).Conditions {
		if c.Type == kind {
			return c
		}
	}
	return v1alpha1.Condition{}
}

func (r *rig) session(id, agent, state string) {
	r.t.Helper()
	r.sql(fmt.Sprintf(`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state) VALUES ('%[1]s', '%[2]s', 'WEBHOOK', '%[2]s', '%[1]s', '%[3]s')
		ON CONFLICT (session_id) DO UPDATE SET state = EXCLUDED.state`, id, agent, state))
}

const flow = `{"nodes": [{"id": "ask", "type": "AGENT", "agent": "a0", "prompt": "p"}, {"id": "end", "type": "END"}], "edges": [{"from": "ask", "to": "end"}]}`

const plain = `{"systemPrompt": "Say \"hi\" — Grüße, 🙂\u2028 and \u007f: it's # fine"}`

func TestPagesOfResourcesBecomeAgentsWithAStatus(t *testing.T) {
	r := newRig(t)
	for i := range 5 {
		r.server.Put("aiagents", fmt.Sprintf("a%d", i), plain)
	}
	r.server.Put("aiworkflows", "flow", flow)
	r.server.Put("aiworkflows", "torn", `{"nodes": []}`)
	r.server.Expired = true
	if got := r.reconcile(); len(got) != 7 {
		t.Errorf("patches: %v", got)
	}
	standings, err := r.store.Standings(context.Background())
	if err != nil || len(standings) != 5 {
		t.Fatalf("%d agents, %v", len(standings), err)
	}
	if got, want := standings[4].Agent.SystemPrompt, "Say \"hi\" — Grüße, 🙂\u2028 and \u007f: it's # fine"; got != want {
		t.Errorf("the text on its way: %q", got)
	}
	if s := r.status("a3"); s.Phase != harness.AgentReady || s.Revision != 1 || s.ObservedGeneration != 1 || s.Conditions[0].Status != v1alpha1.ConditionTrue {
		t.Errorf("%+v", s)
	}
	var flow, torn v1alpha1.WorkflowStatus
	r.server.Object("aiworkflows", "flow", "status", &flow)
	r.server.Object("aiworkflows", "torn", "status", &torn)
	if c := flow.Conditions; flow.Phase != harness.AgentReady || c[0].Status != v1alpha1.ConditionTrue || c[1].Status != v1alpha1.ConditionTrue {
		t.Errorf("a workflow: %+v", flow)
	}
	if c := torn.Conditions[1]; torn.Phase != harness.AgentInvalid || c.Status != v1alpha1.ConditionFalse || !strings.Contains(c.Message, "spec.nodes") {
		t.Errorf("a wrong workflow: %+v", torn)
	}
	r.server.Remove("aiagents", "a3")
	r.reconcile()
	if agents, err := r.store.Agents(context.Background()); err != nil || agents[3].Phase != harness.AgentDeleted {
		t.Errorf("%+v, %v", agents, err)
	}
}

// An API server that does not answer, or not with a list, says nothing about
// agents: none is deleted.
func TestAFailedListChangesNothing(t *testing.T) {
	r := newRig(t)
	r.server.Put("aiagents", "a", plain)
	r.reconcile()
	before := postgrestest.Dump(t, r.store, "agents", "agent_revisions", "channel_routes")
	for _, code := range []int{http.StatusInternalServerError, http.StatusForbidden, http.StatusNotFound, http.StatusUnauthorized} {
		r.server.Refuse = code
		if err := r.Reconcile(context.Background(), event.Event{Type: event.Ping}); harness.KindOf(err) != harness.Unavailable && harness.KindOf(err) != harness.NotFound {
			t.Errorf("%d: %v", code, err)
		}
	}
	r.server.Refuse = 0
	r.server.Close()
	if err := r.Reconcile(context.Background(), event.Event{Type: event.Ping}); harness.KindOf(err) != harness.Unavailable {
		t.Errorf("closed: %v", err)
	}
	if diff := cmp.Diff(before, postgrestest.Dump(t, r.store, "agents", "agent_revisions", "channel_routes")); diff != "" {
		t.Error(diff)
	}
}

func TestBadInputEndsInAConditionThatSaysWhatToMend(t *testing.T) {
	r := newRig(t)
	for _, image := range []string{"default", "python", "rust", "..data"} {
		if err := os.WriteFile(filepath.Join(r.images, image), []byte("example.org/"+image), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bad := map[string]struct{ sandbox, want string }{
		"image-ref": {`{"imageRef": "perl"}`, "spec.harness.sandbox.imageRef"},
		"cpu":       {`{"cpu": "400"}`, "spec.harness.sandbox.cpu"},
		"ttl":       {`{"ttlSeconds": -5}`, "spec.harness.sandbox.ttlSeconds"},
		"two":       {`{"image": "example.org/x:1", "imageRef": "python"}`, "spec.harness.sandbox.image"},
		"field":     {`{"colour": "red"}`, "spec.harness.sandbox.colour"},
	}
	for name, b := range bad {
		r.server.Put("aiagents", name, `{"harness": {"type": "BOTH", "sandbox": `+b.sandbox+`, "channels": [{"type": "WEBHOOK", "name": "`+name+`",
			"secretRef": {"name": "hook", "key": "secret"}, "senders": {"policy": "allowlist", "allow": ["u"]}}]}}`)
	}
	r.server.Put("aiagents", "fine", `{"harness": {"type": "CODE", "sandbox": {"imageRef": "rust"}}}`)
	r.reconcile()
	if s := r.status("fine"); s.Phase != harness.AgentReady {
		t.Errorf("an image the platform has: %+v", s)
	}
	for name, b := range bad {
		c := r.condition(name, v1alpha1.ConditionAccepted)
		if c.Status != v1alpha1.ConditionFalse || !strings.HasPrefix(c.Message, b.want+" ") || strings.Contains(c.Message, "line ") || r.status(name).Phase != harness.AgentInvalid {
			t.Errorf("%s: %+v", name, c)
		}
		accepted, _, err := r.store.Accept(context.Background(), harness.ChannelWebhook, postgres.Inbound{Arrivals: []postgres.Arrival{{
			Account: name, ProviderID: "1", Chat: "u", Message: harness.Message{Channel: harness.ChannelWebhook, ChannelUserID: "u", Text: "hi"},
		}}}, "")
		if err != nil || accepted[0].Outcome != postgres.ArrivalAccepted {
			t.Fatalf("%s: a message of an allowed sender: %+v, %v", name, accepted, err)
		}
		claim, err := r.store.ClaimSession(context.Background(), accepted[0].Session, postgres.Lease{Owner: "t", For: time.Minute})
		if err != nil || claim.Agent != nil || !strings.HasPrefix(claim.Refused, b.want) {
			t.Errorf("%s: what the step can answer with: %+v, %v", name, claim, err)
		}
	}
}

// A cluster without the CRD of workflows, or with an API server that does not
// list them, has agents all the same; workflows stay as they are.
func TestAFailedListOfWorkflowsKeepsNoAgentBack(t *testing.T) {
	r := newRig(t)
	r.server.Put("aiworkflows", "flow", flow)
	r.server.Put("aiagents", "a", plain)
	r.reconcile()
	var before, after v1alpha1.WorkflowStatus
	r.server.Object("aiworkflows", "flow", "status", &before)
	for i, code := range []int{http.StatusNotFound, http.StatusForbidden, http.StatusInternalServerError} {
		r.server.RefuseWorkflows = code
		name := fmt.Sprint("new", i)
		r.server.Put("aiagents", name, plain)
		if got := r.reconcile(); !slices.Equal(got, []string{"aiagents/" + name}) {
			t.Errorf("%d: patches %v", code, got)
		}
	}
	r.server.Remove("aiagents", "new0")
	r.reconcile()
	if agents, err := r.store.Agents(context.Background()); err != nil || agents[1].Phase != harness.AgentDeleted {
		t.Errorf("an agent that is gone: %+v, %v", agents, err)
	}
	r.server.Object("aiworkflows", "flow", "status", &after)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(r.log.String(), "aiworkflows cannot be listed") {
		t.Errorf("the log: %s", &r.log)
	}
}

// Deleted and applied again within ten seconds of a write, a resource is of the
// same text and shows nothing, and only the rows say that it was written.
func TestAReplacedResourceGetsItsStatus(t *testing.T) {
	r := newRig(t)
	r.server.Put("aiagents", "a", plain)
	r.reconcile()
	want := r.status("a")
	r.server.Remove("aiagents", "a")
	r.reconcile()
	r.server.Put("aiagents", "a", plain)
	if got := r.reconcile(); len(got) > 0 {
		t.Fatalf("within ten seconds: %v", got)
	}
	r.timePasses()
	if dirty, err := r.store.StatusDirty(context.Background(), postgres.StatusEvery, 10); err != nil || !slices.Equal(dirty, []harness.AgentName{"a"}) {
		t.Errorf("the sweep would not find it: %v, %v", dirty, err)
	}
	if got := r.changed(""); len(got) != 1 {
		t.Errorf("the sweep's wake: %v", got)
	}
	if got := r.status("a"); got.Phase != want.Phase || got.Revision != 1 || len(got.Conditions) != len(want.Conditions) {
		t.Errorf("%+v", got)
	}
	r.timePasses()
	if got := r.changed(""); len(got) > 0 {
		t.Errorf("once it is written: %v", got)
	}
}

// After a conflict what is written is what the rows say by then, and by nobody
// whose claim was overtaken.
func TestAConflictIsNotAnsweredByAnOlderStanding(t *testing.T) {
	for what, test := range map[string]struct {
		between  string // rows that change between the read and the write
		want     []string
		sessions int // that the status has then
	}{
		"the rows changed":        {`UPDATE sessions SET state = 'IDLE' WHERE session_id = 'ses_2'`, []string{"aiagents/a"}, 1},
		"the claim was overtaken": {`UPDATE agent_statuses SET written_at = now()`, nil, 0},
	} {
		r := newRig(t)
		r.server.Put("aiagents", "a", plain)
		r.reconcile()
		r.session("ses_1", "a", "RUNNING")
		r.session("ses_2", "a", "RUNNING")
		r.timePasses()
		once := sync.OnceFunc(func() {
			r.server.Touch("aiagents", "a")
			r.sql(test.between)
		})
		r.server.Before = func(request *http.Request) {
			if request.Method == http.MethodPatch {
				once()
			}
		}
		if got := r.changed("a"); !slices.Equal(got, test.want) {
			t.Errorf("%s: patches %v", what, got)
		}
		if got := r.status("a").ActiveSessions; got != test.sessions {
			t.Errorf("%s: the status has %d sessions", what, got)
		}
		standings, err := r.store.Standings(context.Background(), "a")
		if err != nil || standings[0].Dirty() != (test.want == nil) {
			t.Errorf("%s: %+v, %v", what, standings, err)
		}
	}
}

// Counts follow, at most one write in ten seconds and none without a change.
func TestAStatusFollowsTheRowsAndIsWrittenSeldom(t *testing.T) {
	r := newRig(t)
	r.server.Put("aiagents", "a", plain)
	r.reconcile()
	first := r.condition("a", v1alpha1.ConditionReady)
	if got := r.changed("a"); len(got) > 0 {
		t.Errorf("nothing changed: %v", got)
	}
	r.session("ses_1", "a", "RUNNING")
	if got := r.changed("a"); len(got) > 0 {
		t.Errorf("within ten seconds: %v", got)
	}
	if dirty, err := r.store.StatusDirty(context.Background(), postgres.StatusEvery, 10); err != nil || len(dirty) != 0 {
		t.Errorf("the sweep would wake us within ten seconds: %v, %v", dirty, err)
	}
	r.timePasses()
	if dirty, err := r.store.StatusDirty(context.Background(), postgres.StatusEvery, 10); err != nil || len(dirty) != 1 {
		t.Errorf("the sweep would not find it: %v, %v", dirty, err)
	}
	if got := r.changed(""); len(got) != 1 || r.status("a").ActiveSessions != 1 { // as the sweep wakes
		t.Errorf("the sweep's wake: %v, %+v", got, r.status("a"))
	}
	for range 50 {
		r.session("ses_1", "a", "IDLE")
		r.changed("a")
		r.session("ses_1", "a", "RUNNING")
	}
	r.timePasses()
	if got := r.changed("a"); len(got) > 0 {
		t.Errorf("it is as it was written: %v", got)
	}
	r.sql(`INSERT INTO sandboxes (sandbox_id, sandbox_name, agent_name, session_id, spec, spec_digest, state, expires_at) VALUES ('sbx_1', 'n', 'a', 'ses_1', '{}', 'd', 'CREATING', now())`)
	r.sql(`INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce)
		VALUES ('exe_1', 'ses_1', 'a', 'API', 'x', 'true', '{}', 'd', 1, 'PENDING', 'n')`)
	if got := r.changed("a"); len(got) != 1 {
		t.Errorf("a sandbox and an execution: %v", got)
	}
	if s := r.status("a"); s.ActiveSandboxes != 1 || s.LastExecutionStatus != harness.ExecutionPending || s.LastExecutionAt == nil || r.condition("a", v1alpha1.ConditionReady) != first {
		t.Errorf("%+v", s)
	}
}

// A request that waits for the ten seconds to end serves all who come meanwhile.
func TestAShortWaitServesAll(t *testing.T) {
	r := newRig(t)
	r.server.Put("aiagents", "a", plain)
	r.reconcile()
	r.session("ses_1", "a", "RUNNING")
	r.sql(`UPDATE agent_statuses SET written_at = now() - interval '9 seconds'`)
	began := time.Now()
	var requests sync.WaitGroup
	for range 20 {
		requests.Go(func() {
			if err := r.Changed(context.Background(), event.Event{Type: event.SessionChanged, Agent: "a"}); err != nil {
				t.Error(err)
			}
		})
	}
	requests.Wait()
	if got := r.server.Patched(); len(got) != 1 || r.status("a").ActiveSessions != 1 || time.Since(began) > 4*time.Second {
		t.Errorf("%v after %s", got, time.Since(began))
	}
}

// Several processes at once: the row decides who writes.
func TestTwoProcessesWriteOnce(t *testing.T) {
	r := newRig(t)
	r.server.Put("aiagents", "a", plain)
	r.reconcile()
	r.session("ses_1", "a", "RUNNING")
	r.timePasses()
	processes := []*status.Reconciler{r.another(), r.another(), r.another(), r.another()}
	var running sync.WaitGroup
	for _, p := range processes {
		running.Go(func() {
			if err := p.Changed(context.Background(), event.Event{Type: event.SandboxChanged, Agent: "a"}); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	if got := r.server.Patched(); len(got) != 1 {
		t.Errorf("patches: %v", got)
	}
}

// Between our read and our write somebody changes the resource, or removes it.
func TestAConflictIsReadAgainAndOneThatIsGoneIsLeft(t *testing.T) {
	r := newRig(t)
	r.server.Put("aiagents", "a", plain)
	r.reconcile()
	for _, test := range []struct {
		what    string
		between func()
		want    []string
	}{
		{"changed", func() { r.server.Touch("aiagents", "a") }, []string{"aiagents/a"}},
		{"removed", func() { r.server.Remove("aiagents", "a") }, nil},
	} {
		r.sql(`UPDATE sessions SET state = 'COMPLETED'`)
		r.session("ses_"+test.what, "a", "RUNNING")
		r.sql(`UPDATE agents SET reason = '` + test.what + `'`)
		r.timePasses()
		once := sync.OnceFunc(test.between)
		r.server.Before = func(request *http.Request) {
			if request.Method == http.MethodPatch {
				once()
			}
		}
		if got := r.changed("a"); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v", test.what, got)
		}
	}
}

// A status that somebody else has spoilt is mended by the next full look.
func TestAForeignStatusIsMended(t *testing.T) {
	r := newRig(t)
	r.server.Put("aiagents", "a", plain)
	r.reconcile()
	want := r.status("a")
	r.server.SetField("aiagents", "a", "status", map[string]any{"phase": "NONSENSE", "colour": "red", "conditions": want.Conditions})
	r.timePasses()
	r.reconcile()
	if diff := cmp.Diff(want, r.status("a")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Missing Secrets are looked for again at every tick, at once for all agents, and what is found of it
// shows.
func TestSecretsAreLookedAtAgain(t *testing.T) {
	r := newRig(t)
	hook := `{"harness": {"type": "CHANNEL", "channels": [{"type": "WEBHOOK", "name": "%s", "secretRef": {"name": "hook", "key": "secret"}, "senders": {"policy": "open"}}]}}`
	r.server.Put("aiagents", "a", fmt.Sprintf(hook, "a"))
	r.server.Put("aiagents", "b", fmt.Sprintf(hook, "b"))
	r.reconcile()
	if c := r.condition("a", v1alpha1.ConditionSecrets); c.Status != v1alpha1.ConditionUnknown {
		t.Errorf("%+v", c)
	}
	asked := func() int {
		r.said = nil
		if err := r.Reconcile(context.Background(), event.Event{Type: event.Ping}); err != nil {
			t.Fatal(err)
		}
		for _, e := range r.said {
			if e.Type != event.AgentStatusChanged || e.Agent != "" {
				t.Errorf("%+v", e)
			}
		}
		return len(r.said)
	}
	check := harness.SecretCheck{Agent: "a", Ref: harness.SecretRef{Name: "hook", Key: "secret"}, State: harness.SecretNotFound, Reason: "no Secret hook: create it"}
	for _, test := range []struct {
		state  harness.SecretState
		reason string
		status v1alpha1.ConditionStatus
		phase  harness.AgentPhase
		asked  int
	}{
		{harness.SecretNotFound, "no Secret hook: create it", v1alpha1.ConditionFalse, harness.AgentDegraded, 1},
		{harness.SecretAvailable, "", v1alpha1.ConditionTrue, harness.AgentReady, 0},
	} {
		check.State, check.Reason = test.state, test.reason
		other := check
		other.Agent = "b"
		if changed, err := r.store.StoreSecretChecks(context.Background(), "webhook-ingest", []harness.SecretCheck{check, other}); err != nil || changed != 2 {
			t.Fatalf("%d, %v", changed, err)
		}
		r.timePasses()
		if got := r.changed(""); len(got) != 2 {
			t.Errorf("%s: %v", test.state, got)
		}
		if c := r.condition("a", v1alpha1.ConditionSecrets); c.Status != test.status || c.Message != test.reason || r.status("a").Phase != test.phase {
			t.Errorf("%s: %+v", test.state, r.status("a"))
		}
		if got := asked(); got != test.asked {
			t.Errorf("%s: %d events at a tick", test.state, got)
		}
	}
}

// Many events at once cost two looks, not many.
func TestEventsShareALook(t *testing.T) {
	r := newRig(t)
	r.server.Put("aiagents", "a", plain)
	r.reconcile()
	r.server.Lists = 0
	var requests sync.WaitGroup
	entered := make(chan struct{})
	once := sync.OnceFunc(func() { <-entered })
	r.server.Before = func(*http.Request) { once() }
	var here atomic.Int64
	for range 50 {
		requests.Go(func() {
			here.Add(1)
			if err := r.Reconcile(context.Background(), event.Event{Type: event.ResourceAdd}); err != nil {
				t.Error(err)
			}
		})
	}
	for here.Load() < 50 {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(200 * time.Millisecond) // from the count to the line they stand in
	close(entered)
	requests.Wait()
	if r.server.Lists > 4 { // two kinds each
		t.Errorf("%d lists for 50 events", r.server.Lists)
	}
}
