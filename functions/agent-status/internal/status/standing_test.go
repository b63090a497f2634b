package status

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

var (
	then = time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
	now  = then.Add(time.Hour)
)

// coder is an agent that runs commands and has a hook.
func coder() *harness.Agent {
	return &harness.Agent{Name: "coder", Harness: harness.HarnessSpec{
		Enabled: true, Type: harness.HarnessBoth, Sandbox: harness.DefaultSandbox(), MaxSandboxes: 1,
		Channels: []harness.ChannelSpec{{Type: harness.ChannelWebhook, Account: "coder", Secret: harness.SecretRef{Name: "hook", Key: "secret"}}},
	}}
}

func check(state harness.SecretState, reason string) []harness.SecretCheck {
	return []harness.SecretCheck{{Agent: "coder", Ref: harness.SecretRef{Name: "hook", Key: "secret"}, State: state, Reason: reason}}
}

// short is phase and conditions in one line each.
func short(s v1alpha1.Status) []string {
	lines := []string{string(s.Phase)}
	for _, c := range s.Conditions {
		lines = append(lines, strings.TrimSpace(strings.Join([]string{string(c.Type), string(c.Status), c.Reason, c.Message}, " ")))
	}
	return lines
}

func TestHowAnAgentStands(t *testing.T) {
	ready := postgres.AgentStatus{Name: "coder", Phase: harness.AgentReady, Revision: 2}
	tests := []struct {
		what string
		in   postgres.Standing
		want []string
	}{
		{
			"nobody has looked at its Secret",
			postgres.Standing{AgentStatus: ready, Agent: coder()},
			[]string{
				"READY", "Ready Unknown NotChecked the functions that need the agent's Secrets have not looked at them yet", "Accepted True Accepted", "Routed True Routed",
				"SecretsAvailable Unknown NotChecked the functions that need the agent's Secrets have not looked at them yet",
			},
		},
		{
			"all is well",
			postgres.Standing{AgentStatus: ready, Agent: coder(), Checks: check(harness.SecretAvailable, ""), Sandbox: &postgres.LastSandbox{CameUp: true, Reason: "IDLE"}},
			[]string{"READY", "Ready True Ready", "Accepted True Accepted", "Routed True Routed", "SecretsAvailable True Available", "SandboxAvailable True CameUp"},
		},
		{
			"without channels and commands nothing of them is said",
			postgres.Standing{AgentStatus: ready, Agent: &harness.Agent{Name: "coder"}, Sandbox: &postgres.LastSandbox{}},
			[]string{"READY", "Ready True Ready", "Accepted True Accepted"},
		},
		{
			"its Secret is missing",
			postgres.Standing{AgentStatus: ready, Agent: coder(), Checks: check(harness.SecretNotFound, "no Secret hook: create it")},
			[]string{
				"DEGRADED", "Ready False SecretNotFound no Secret hook: create it", "Accepted True Accepted", "Routed True Routed",
				"SecretsAvailable False SecretNotFound no Secret hook: create it",
			},
		},
		{
			"its image cannot be had",
			postgres.Standing{
				AgentStatus: ready, Agent: coder(), Checks: check(harness.SecretAvailable, ""),
				Sandbox: &postgres.LastSandbox{Reason: "START_TIMEOUT", Message: "the image x cannot be pulled"},
			},
			[]string{
				"DEGRADED", "Ready False StartTimeout the image x cannot be pulled", "Accepted True Accepted", "Routed True Routed", "SecretsAvailable True Available",
				"SandboxAvailable False StartTimeout the image x cannot be pulled",
			},
		},
		{
			"its image has no shell",
			postgres.Standing{
				AgentStatus: ready, Agent: coder(), Checks: check(harness.SecretAvailable, ""), Sandbox: &postgres.LastSandbox{CameUp: true, Message: "sh: not found"},
			},
			[]string{
				"DEGRADED", "Ready False CommandNotStarted sh: not found", "Accepted True Accepted", "Routed True Routed", "SecretsAvailable True Available",
				"SandboxAvailable False CommandNotStarted sh: not found",
			},
		},
		{
			"its hook is another's",
			postgres.Standing{
				AgentStatus: postgres.AgentStatus{Name: "coder", Phase: harness.AgentReady, Revision: 1, Reason: "RouteConflict: WEBHOOK coder belongs to the older agent a"},
				Agent:       coder(), Checks: check(harness.SecretAvailable, ""),
			},
			[]string{
				"DEGRADED", "Ready False RouteConflict WEBHOOK coder belongs to the older agent a", "Accepted True Accepted",
				"Routed False RouteConflict WEBHOOK coder belongs to the older agent a", "SecretsAvailable True Available",
			},
		},
		{
			"refused, with an older revision",
			postgres.Standing{
				AgentStatus: postgres.AgentStatus{Name: "coder", Phase: harness.AgentInvalid, Revision: 1, Reason: "spec.x is wrong: mend it"},
				Agent:       coder(), Checks: check(harness.SecretAvailable, ""),
			},
			[]string{
				"INVALID", "Ready False Refused spec.x is wrong: mend it\nUntil that is mended, revision 1 stays in use.",
				"Accepted False Refused spec.x is wrong: mend it\nUntil that is mended, revision 1 stays in use.", "Routed True Routed", "SecretsAvailable True Available",
			},
		},
		{
			"refused from the start",
			postgres.Standing{AgentStatus: postgres.AgentStatus{Name: "coder", Phase: harness.AgentInvalid, Reason: "spec.x is wrong: mend it"}},
			[]string{"INVALID", "Ready False Refused spec.x is wrong: mend it", "Accepted False Refused spec.x is wrong: mend it"},
		},
	}
	for _, test := range tests {
		if diff := cmp.Diff(test.want, short(statusOf(test.in, nil, now))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.what, diff)
		}
	}
}

// Only a condition that flips gets another time; counts and times are taken over.
func TestTimesStayUnlessAConditionFlips(t *testing.T) {
	s := postgres.Standing{
		AgentStatus: postgres.AgentStatus{Name: "coder", Phase: harness.AgentReady, Revision: 3}, Generation: 7, Agent: coder(),
		Sessions: 2, Sandboxes: 1, Execution: &postgres.LastExecution{State: harness.ExecutionRunning, At: then}, Checks: check(harness.SecretAvailable, ""),
	}
	first := statusOf(s, nil, then)
	s.Checks = check(harness.SecretEmpty, "no key")
	second := statusOf(s, first.Conditions, now)
	got := map[v1alpha1.ConditionType]time.Time{}
	for _, c := range second.Conditions {
		got[c.Type] = c.LastTransitionTime
		if c.ObservedGeneration != 7 {
			t.Errorf("%s is of generation %d", c.Type, c.ObservedGeneration)
		}
	}
	whole := func(t time.Time) time.Time { return t.Truncate(time.Second) }
	want := map[v1alpha1.ConditionType]time.Time{
		v1alpha1.ConditionReady: whole(now), v1alpha1.ConditionSecrets: whole(now), v1alpha1.ConditionAccepted: whole(then), v1alpha1.ConditionRouted: whole(then),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if second.ActiveSessions != 2 || second.ActiveSandboxes != 1 || second.Revision != 3 || second.ObservedGeneration != 7 ||
		!second.LastExecutionAt.Equal(whole(then)) || second.LastExecutionStatus != harness.ExecutionRunning {
		t.Errorf("%+v", second)
	}
	if !equal(second, statusOf(s, second.Conditions, now.Add(time.Hour))) {
		t.Error("an hour later without a change it is another status")
	}
}

func TestWorkflows(t *testing.T) {
	w := postgres.WorkflowStanding{WorkflowStatus: postgres.WorkflowStatus{Name: "w", Phase: harness.AgentReady, Revision: 1}, Sessions: 2}
	fine := workflowStatus(4, "", w, nil, then)
	if got := short(v1alpha1.Status{Phase: fine.Phase, Conditions: fine.Conditions}); !cmp.Equal(got, []string{"READY", "Ready True Ready", "Accepted True Accepted", "AgentsAvailable True AgentsAvailable"}) ||
		fine.ObservedGeneration != 4 || fine.ActiveSessions != 2 {
		t.Errorf("%q %+v", got, fine)
	}
	wrong := workflowStatus(5, "spec.start names no node", w, fine.Conditions, now)
	if got := short(v1alpha1.Status{Phase: wrong.Phase, Conditions: wrong.Conditions}); got[0] != "INVALID" || !strings.HasPrefix(got[1], "Ready False Refused spec.start names no node") ||
		!strings.Contains(got[2], "revision 1 stays in use") {
		t.Errorf("%q", got)
	}
	if !wrong.Conditions[0].LastTransitionTime.Equal(now.Truncate(time.Second)) || !wrong.Conditions[2].LastTransitionTime.Equal(then.Truncate(time.Second)) {
		t.Errorf("times: %+v", wrong.Conditions)
	}
	w.Missing = map[harness.AgentName]struct{}{"b": {}, "a": {}}
	alone := workflowStatus(4, "", w, nil, then)
	if got := short(v1alpha1.Status{Phase: alone.Phase, Conditions: alone.Conditions}); got[0] != "DEGRADED" || got[1] != "Ready False AgentNotFound there is no such AiAgent, or it never was READY: a, b" {
		t.Errorf("%q", got)
	}
	w.Missing, w.Shells = nil, map[harness.AgentName]struct{}{"c": {}}
	if got := workflowStatus(4, "", w, nil, then); got.Phase != harness.AgentDegraded || got.Conditions[0].Reason != "AgentRunsNoCommands" {
		t.Errorf("%+v", got)
	}
}
