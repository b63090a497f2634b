package workflow_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

func (b *bench) hears(text string) harness.SessionID {
	b.t.Helper()
	accepted, _, err := b.store.Accept(b.t.Context(), harness.ChannelWebhook, postgres.Inbound{Arrivals: []postgres.Arrival{{
		Account: "hook", ProviderID: harness.NewID("p", time.Now()), Chat: "chat",
		Message: harness.Message{ChannelUserID: "user", Text: text, Metadata: map[string]any{"lang": "en"}},
	}}}, "")
	if err != nil {
		b.t.Fatal(err)
	}
	b.drive()
	return accepted[0].Session
}

func deploy() harness.Workflow {
	return harness.Workflow{
		Name: "deploy",
		Inputs: []harness.WorkflowInput{
			{Name: "service", Type: harness.InputString, Required: true}, {Name: "copies", Type: harness.InputInteger},
		},
		Triggers: []harness.Trigger{{Type: harness.TriggerChannel, Agent: "coder", Pattern: `^/deploy (?P<service>\S+)( x(?P<copies>\S+))?$`}},
		Nodes: []harness.Node{
			{ID: "run", Type: harness.NodeShell, Agent: "coder", Command: `deploy "${input.service}" ${has(input.copies) ? input.copies : 1}`},
			{ID: "tell", Type: harness.NodeReply, Text: `${message.channelUserId} (${message.metadata.lang}): ${message.match["1"]} ${nodes.run.stdout}`},
			{ID: "end", Type: harness.NodeEnd, State: harness.SessionCompleted},
		},
		Edges: []harness.Edge{{From: "run", To: "tell"}, {From: "tell", To: "end"}},
	}
}

// A message that a trigger matches starts one run, whose replies go to its chat;
// the model does not see it. Others go to the agent as ever.
func TestAMessageStartsARun(t *testing.T) {
	b := newBench(t)
	b.put(deploy())
	session := b.hears("/deploy $(reboot)")
	if !cmp.Equal(b.commands, []string{"V1='$(reboot)'\nV2='1'\ndeploy \"${V1}\" ${V2}"}) || len(b.asked) > 0 {
		t.Errorf("ran %q, asked %q", b.commands, b.asked)
	}
	said := b.list(`SELECT text FROM messages WHERE session_id = $1 AND direction = 'OUTBOUND' ORDER BY seq`, session)
	if len(said) != 2 || !strings.HasPrefix(said[0], "I have started the workflow deploy (ses_") || said[1] != "user (en): $(reboot) out" {
		t.Errorf("said %q", said)
	}
	if got := b.list(`SELECT state || ' ' || (started->>'type') || ' ' || input::text FROM sessions WHERE origin_session = $1`, session); !cmp.Equal(got, []string{`COMPLETED CHANNEL {"service": "$(reboot)"}`}) {
		t.Errorf("runs %q", got)
	}
	b.hears("/deploy web x3")
	if got := b.commands[len(b.commands)-1]; got != "V1='web'\nV2='3'\ndeploy \"${V1}\" ${V2}" {
		t.Errorf("ran %q", got)
	}
	// What does not fit is said, and starts nothing.
	b.hears("/deploy web xmany")
	if got := b.list(`SELECT text FROM messages WHERE session_id = $1 AND direction = 'OUTBOUND' ORDER BY seq DESC LIMIT 1`, session); !cmp.Equal(got, []string{"I did not start the workflow deploy: copies is of another type."}) {
		t.Errorf("said %q", got)
	}
	b.hears("please deploy web")
	if n := len(b.list(`SELECT 1::text FROM sessions WHERE workflow_name IS NOT NULL`)); n != 2 || !cmp.Equal(b.asked[len(b.asked)-1], "please deploy web") {
		t.Errorf("%d runs, asked %q", n, b.asked)
	}
}

// What a workflow asks its agents starts no other run, whatever it says.
func TestNoRunStartsAnotherByItsPrompts(t *testing.T) {
	b := newBench(t)
	w := deploy()
	w.Nodes[0] = harness.Node{ID: "run", Type: harness.NodeAgent, Agent: "coder", Prompt: "/deploy again"}
	w.Nodes[1].Text = "${nodes.run.text}"
	b.put(w)
	b.hears("/deploy web")
	if n := len(b.list(`SELECT 1::text FROM sessions WHERE workflow_name IS NOT NULL`)); n != 1 || !cmp.Equal(b.asked, []string{"/deploy again"}) {
		t.Errorf("%d runs, asked %q", n, b.asked)
	}
}

// The process dies between claim and commit of the turn that starts a run.
func TestARunIsStartedOnceThroughCrashes(t *testing.T) {
	b := newBench(t)
	b.put(deploy())
	accepted, _, err := b.store.Accept(t.Context(), harness.ChannelWebhook, postgres.Inbound{Arrivals: []postgres.Arrival{{
		Account: "hook", ProviderID: "p1", Chat: "chat", Message: harness.Message{ChannelUserID: "user", Text: "/deploy web"},
	}}}, "")
	if err != nil {
		t.Fatal(err)
	}
	lost, err := b.store.ClaimSession(t.Context(), accepted[0].Session, postgres.Lease{Owner: "dead", For: time.Minute})
	if err != nil || len(lost.Triggers) != 1 {
		t.Fatalf("%+v %v", lost, err)
	}
	b.exec(`UPDATE sessions SET lease_until = now() - interval '1 second', due_at = now()`)
	b.drive()
	if n := len(b.list(`SELECT 1::text FROM workflow_starts`)); n != 1 || len(b.commands) != 1 {
		t.Errorf("%d runs, ran %q", n, b.commands)
	}
}
