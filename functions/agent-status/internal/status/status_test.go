package status_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"tuluat.ai/harness/functions/agent-status/internal/status"
	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// rig is a reconciler over a folder and a real database.
type rig struct {
	*status.Reconciler
	t     *testing.T
	dir   string
	store *postgres.Store
	said  []event.Event
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, dir: t.TempDir(), store: postgrestest.New(t)}
	r.Reconciler = status.New(status.Options{
		Source: status.Folder{Path: r.dir, Limits: v1alpha1.DefaultLimits(), Images: noImages}, Store: r.store, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Publish: func(_ context.Context, events ...event.Event) { r.said = append(r.said, events...) },
	})
	return r
}

func (r *rig) write(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// deliver hands one event in twice; the second must change and say nothing.
func (r *rig) deliver() {
	r.t.Helper()
	e := event.Event{ID: "1", Type: event.Ping}
	if err := r.Reconcile(context.Background(), e); err != nil {
		r.t.Fatal(err)
	}
	tables := []string{"agents", "agent_revisions", "channel_routes", "outbox", "sessions", "workflows", "workflow_revisions", "workflow_triggers"}
	before, said := postgrestest.Dump(r.t, r.store, tables...), len(r.said)
	if err := r.Reconcile(context.Background(), e); err != nil {
		r.t.Fatal(err)
	}
	if diff := cmp.Diff(before, postgrestest.Dump(r.t, r.store, tables...)); diff != "" || len(r.said) != said {
		r.t.Fatalf("the second delivery changed rows or said something:\n%s", diff)
	}
}

// agents is "name PHASE revision" of every agent, reasons checked apart.
func (r *rig) agents() (lines []string, reasons map[string]string) {
	r.t.Helper()
	all, err := r.store.Agents(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	reasons = map[string]string{}
	for _, a := range all {
		lines = append(lines, string(a.Name)+" "+string(a.Phase))
		reasons[string(a.Name)] = a.Reason
	}
	return lines, reasons
}

func agentYAML(name string) string {
	return "apiVersion: tuluat.ai/v1alpha1\nkind: AiAgent\nmetadata: {name: " + name + "}\nspec:\n  harness:\n    type: CHANNEL\n    channels:\n" +
		"      - {type: WEBHOOK, name: " + name + ", secretRef: {name: " + name + "-hook, key: secret}, senders: {policy: open}}\n"
}

func TestSamplesBecomeAgents(t *testing.T) {
	r := newRig(t)
	samples, err := filepath.Glob("../../../../config/samples/*.yaml")
	if err != nil || len(samples) < 3 {
		t.Fatalf("%d samples, %v", len(samples), err)
	}
	for _, sample := range samples {
		text, err := os.ReadFile(sample)
		if err != nil {
			t.Fatal(err)
		}
		r.write(filepath.Base(sample), string(text))
	}
	if err := os.CopyFS(filepath.Join(r.dir, "skills"), os.DirFS("../../../../config/samples/skills")); err != nil {
		t.Fatal(err)
	}
	r.deliver()
	got, _ := r.agents()
	if diff := cmp.Diff([]string{"careful-shell READY", "plain-chat READY", "python-coder READY", "shell-helper READY", "skill-user READY", "tool-user READY"}, got); diff != "" {
		t.Error(diff)
	}
	accepted, _, err := r.store.Accept(context.Background(), harness.ChannelWebhook, postgres.Inbound{Arrivals: []postgres.Arrival{{
		Account: "python-coder", ProviderID: "1", Chat: "c", Message: harness.Message{Channel: harness.ChannelWebhook, ChannelUserID: "u", Text: "hi"},
	}}}, "")
	if err != nil || accepted[0].Outcome != postgres.ArrivalAccepted {
		t.Fatalf("a message to a sample: %+v, %v", accepted, err)
	}
	claim, err := r.store.ClaimSession(context.Background(), accepted[0].Session, postgres.Lease{Owner: "t", For: 1e9})
	if err != nil || claim.Agent == nil || !claim.Agent.Harness.CanExecute() || claim.Agent.Harness.Sandbox.ImageRef != "python" {
		t.Errorf("what a step reads: %+v, %v", claim, err)
	}
}

func TestOneBrokenPartHurtsOnlyItsOwn(t *testing.T) {
	r := newRig(t)
	r.write("two.yaml", agentYAML("a")+"---\n"+agentYAML("b"))
	r.write("other.yaml", agentYAML("c"))
	r.deliver()
	if len(r.said) != 3 {
		t.Fatalf("%d events for three new agents", len(r.said))
	}
	tests := []struct {
		what, file, text string
		want             []string
		reason           string // of b
	}{
		{"an invalid document", "two.yaml", agentYAML("a") + "---\n" + agentYAML("b") + "  budget: {maxSteps: 0}\n", []string{"a READY", "b INVALID", "c READY"}, "two.yaml: document 2, line 18: spec.budget.maxSteps is 0: use 1 to 1000, or leave it out for the default"},
		{"an unknown field", "two.yaml", agentYAML("a") + "---\n" + agentYAML("b") + "  colour: red\n", []string{"a READY", "b INVALID", "c READY"}, "two.yaml: document 2, line 18: spec.colour is not a field: the fields here are description, model, "},
		{"mended", "two.yaml", agentYAML("a") + "---\n" + agentYAML("b"), []string{"a READY", "b READY", "c READY"}, ""},
		{"torn YAML", "two.yaml", agentYAML("a") + "---\n{", []string{"a READY", "b INVALID", "c READY"}, "two.yaml: document 2: is not YAML: "},
		{"a document without a name", "two.yaml", agentYAML("a") + "---\n" + strings.Replace(agentYAML("b"), "{name: b}", "{}", 1), []string{"a READY", "b INVALID", "c READY"}, "two.yaml: document 2, line 12: metadata.name is missing: "},
		{"mended again", "two.yaml", agentYAML("a") + "---\n" + agentYAML("b"), []string{"a READY", "b READY", "c READY"}, ""},
		{"an empty file", "two.yaml", " \n", []string{"a READY", "b READY", "c READY"}, ""},
		{"a file of comments", "two.yaml", "# nothing here any more\n", []string{"a DELETED", "b DELETED", "c READY"}, "its resource is gone"},
		{"back", "two.yaml", agentYAML("a") + "---\n" + agentYAML("b"), []string{"a READY", "b READY", "c READY"}, ""},
	}
	for _, test := range tests {
		r.write(test.file, test.text)
		r.deliver()
		got, reasons := r.agents()
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", test.what, diff)
		}
		if !strings.HasPrefix(reasons["b"], test.reason) || (test.reason == "") != (reasons["b"] == "") {
			t.Fatalf("%s: reason %q", test.what, reasons["b"])
		}
	}
}

// What is switched off is off, whatever else is wrong with the text.
func TestATextThatIsRefusedIsSwitchedOff(t *testing.T) {
	r := newRig(t)
	enabled := func() string {
		t.Helper()
		var text string
		if err := r.store.Pool().QueryRow(context.Background(), `SELECT a.phase || ' ' || a.revision || ' ' || (r.spec->'harness'->>'enabled') FROM agents a JOIN agent_revisions r USING (agent_name, revision)`).Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	on, off := agentYAML("a"), strings.Replace(agentYAML("a"), "  harness:\n", "  harness:\n    enabled: false\n", 1)
	for _, step := range []struct{ text, want string }{
		{on, "READY 1 true"}, {on + "  colour: red\n", "INVALID 1 true"}, {off + "  colour: red\n", "INVALID 2 false"}, {on + "  colour: red\n", "INVALID 2 false"}, {off, "READY 2 false"}, {on, "READY 3 true"},
	} {
		r.write("a.yaml", step.text)
		if r.deliver(); enabled() != step.want {
			t.Errorf("is %s, want %s:\n%s", enabled(), step.want, step.text)
		}
	}
}

func TestWhatIsNoFileIsLeftAlone(t *testing.T) {
	r := newRig(t)
	r.write("a.yaml", agentYAML("a"))
	r.write(".hidden.yaml", agentYAML("hidden"))
	r.write("notes.txt", "not an agent")
	r.write("..data.yaml", "{")
	if err := os.Mkdir(filepath.Join(r.dir, "folder.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(r.dir, "pipe.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a.yaml", filepath.Join(r.dir, "dangling.yml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(r.dir, "dangling.yml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(r.dir, "dangling.yml")); err != nil {
		t.Fatal(err)
	}
	r.deliver()
	if got, _ := r.agents(); !cmp.Equal(got, []string{"a READY"}) {
		t.Errorf("agents %v", got)
	}
}

func TestAnUnreadableFolderDeletesNobody(t *testing.T) {
	r := newRig(t)
	r.write("a.yaml", agentYAML("a"))
	r.deliver()
	if err := os.Rename(r.dir, r.dir+"-away"); err != nil {
		t.Fatal(err)
	}
	if err := r.Reconcile(context.Background(), event.Event{}); harness.KindOf(err) != harness.Unavailable {
		t.Errorf("got %v, want Unavailable", err)
	}
	if got, _ := r.agents(); !cmp.Equal(got, []string{"a READY"}) {
		t.Errorf("agents %v", got)
	}
}

// downStore is a database that does not answer.
type downStore struct{ status.Store }

func (downStore) PutAgents(context.Context, []postgres.AgentText, []postgres.BrokenSource) ([]postgres.AgentStatus, []event.Event, error) {
	return nil, nil, harness.Wrap(harness.Unavailable, errors.New("refused"), "the database does not answer")
}

func TestNothingIsSaidUnlessItIsStored(t *testing.T) {
	r := newRig(t)
	r.write("a.yaml", agentYAML("a"))
	r.Store = downStore{}
	if err := r.Reconcile(context.Background(), event.Event{}); harness.KindOf(err) != harness.Unavailable || len(r.said) > 0 {
		t.Errorf("got %v and %d events", err, len(r.said))
	}
}

const workflowText = `apiVersion: tuluat.ai/v1alpha1
kind: AiWorkflow
metadata: {name: release}
spec:
  triggers: [{type: CHANNEL, agent: a, pattern: ^/release}]
  nodes: [{id: ask, type: AGENT, agent: a, prompt: "%s"}, {id: end, type: END}]
  edges: [{from: ask, to: end}]
`

// Workflows of a folder are kept as agents are: a wrong text leaves the revision
// in use, a broken file changes nothing, and one that is gone is DELETED.
func TestWorkflowsOfAFolder(t *testing.T) {
	r := newRig(t)
	stands := func(phase harness.AgentPhase, revision int64, reason, prompt string) {
		t.Helper()
		r.deliver()
		w, err := r.store.GetWorkflow(t.Context(), "release")
		if phase == harness.AgentDeleted {
			if harness.KindOf(err) != harness.NotFound {
				t.Errorf("%+v %v", w, err)
			}
			return
		}
		if err != nil || w.Phase != phase || w.Revision != revision || !strings.Contains(w.Reason, reason) || (reason == "") != (w.Reason == "") || w.Workflow.Nodes[0].Prompt != prompt {
			t.Errorf("%+v %v, want %s %d %q %q", w, err, phase, revision, reason, prompt)
		}
	}
	r.write("w.yaml", fmt.Sprintf(workflowText, "one"))
	stands(harness.AgentReady, 1, "", "one")
	standings, err := r.store.WorkflowStandings(t.Context())
	if _, missing := standings["release"].Missing["a"]; err != nil || !missing {
		t.Errorf("its agent is not there: %+v %v", standings, err)
	}
	r.write("w.yaml", fmt.Sprintf(workflowText, "${nodes.no.text}"))
	stands(harness.AgentInvalid, 1, `w.yaml: document 1, line 6: spec.nodes[0].prompt has ${nodes.no.text}, which looks at the node "no"`, "one")
	r.write("w.yaml", "{")
	stands(harness.AgentInvalid, 1, "w.yaml", "one")
	r.write("w.yaml", fmt.Sprintf(workflowText, "two")+"---\napiVersion: tuluat.ai/v1alpha1\nkind: AiAgent\nmetadata: {name: a}\n")
	stands(harness.AgentReady, 2, "", "two")
	if standings, err = r.store.WorkflowStandings(t.Context()); err != nil || len(standings["release"].Missing) > 0 {
		t.Errorf("its agent is there: %+v %v", standings, err)
	}
	if err := os.Remove(filepath.Join(r.dir, "w.yaml")); err != nil {
		t.Fatal(err)
	}
	stands(harness.AgentDeleted, 0, "", "")
	r.write("w.yaml", fmt.Sprintf(workflowText, "two"))
	stands(harness.AgentReady, 2, "", "two")
}
