package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// The reasons of conditions that no other package has a word for.
const (
	reasonAccepted      = "Accepted"
	reasonRefused       = "Refused"
	reasonRouted        = "Routed"
	reasonRouteConflict = "RouteConflict"
	reasonNotChecked    = "NotChecked"
	reasonAvailable     = "Available"
	reasonCameUp        = "CameUp"
	reasonNoCommand     = "CommandNotStarted"
	reasonOldImage      = "ImageNotRenewed"
	reasonReady         = "Ready"
	reasonHalted        = "Halted"
	reasonNotYet        = "NotInThisRelease"
	reasonAgents        = "AgentsAvailable"
	reasonNoAgent       = "AgentNotFound"
	reasonNoShell       = "AgentRunsNoCommands"
)

// statusOf says how an agent stands as its resource's status shows it. before
// are the conditions that the resource shows now: one whose status stays keeps
// its time. It is pure.
func statusOf(s postgres.Standing, before []v1alpha1.Condition, now time.Time) v1alpha1.Status {
	conditions := slices.Concat(accepted(s), routed(s), secrets(s), skills(s), sandboxes(s), running(s))
	status := v1alpha1.Status{
		Phase: s.Phase, ObservedGeneration: s.Generation, Revision: s.Revision, ActiveSessions: s.Sessions, ActiveSandboxes: s.Sandboxes,
		Conditions: append([]v1alpha1.Condition{ready(conditions)}, conditions...),
	}
	if s.Execution != nil {
		at := s.Execution.At.UTC().Truncate(time.Second)
		status.LastExecutionAt, status.LastExecutionStatus = &at, s.Execution.State
	}
	if s.Phase == harness.AgentReady && slices.ContainsFunc(conditions, func(c v1alpha1.Condition) bool { return c.Status == v1alpha1.ConditionFalse }) {
		status.Phase = harness.AgentDegraded
	}
	stamp(status.Conditions, before, s.Generation, now)
	return status
}

// workflowStatus is the status of a workflow: problems is what is wrong with its
// text, and w how its rows stand.
func workflowStatus(generation int64, problems string, w postgres.WorkflowStanding, before []v1alpha1.Condition, now time.Time) v1alpha1.WorkflowStatus {
	status := v1alpha1.WorkflowStatus{Phase: harness.AgentReady, ObservedGeneration: generation, ActiveSessions: w.Sessions}
	word := condition(v1alpha1.ConditionAccepted, v1alpha1.ConditionTrue, reasonAccepted, "")
	if problems != "" {
		status.Phase = harness.AgentInvalid
		if w.Revision > 0 {
			problems += fmt.Sprintf("\nUntil that is mended, revision %d stays in use.", w.Revision)
		}
		word = condition(v1alpha1.ConditionAccepted, v1alpha1.ConditionFalse, reasonRefused, problems)
	}
	conditions := append([]v1alpha1.Condition{word}, workflowAgents(w)...)
	status.Conditions = append([]v1alpha1.Condition{ready(conditions)}, conditions...)
	if status.Phase == harness.AgentReady && status.Conditions[0].Status != v1alpha1.ConditionTrue {
		status.Phase = harness.AgentDegraded
	}
	stamp(status.Conditions, before, generation, now)
	return status
}

// workflowAgents says whether the agents are there that the revision in use names.
func workflowAgents(w postgres.WorkflowStanding) []v1alpha1.Condition {
	kind := v1alpha1.ConditionAgents
	switch {
	case w.Revision == 0:
		return nil
	case len(w.Missing) > 0:
		return []v1alpha1.Condition{condition(kind, v1alpha1.ConditionFalse, reasonNoAgent,
			"there is no such AiAgent, or it never was READY: "+strings.Join(postgres.Names(w.Missing), ", "))}
	case len(w.Shells) > 0:
		return []v1alpha1.Condition{condition(kind, v1alpha1.ConditionFalse, reasonNoShell,
			"nodes of type SHELL need an agent whose harness is of type CODE or BOTH: "+strings.Join(postgres.Names(w.Shells), ", "))}
	}
	return []v1alpha1.Condition{condition(kind, v1alpha1.ConditionTrue, reasonAgents, "")}
}

// stamp dates conditions: one that has not flipped keeps its time.
func stamp(conditions, before []v1alpha1.Condition, generation int64, now time.Time) {
	for i := range conditions {
		c := &conditions[i]
		c.ObservedGeneration, c.LastTransitionTime = generation, now.UTC().Truncate(time.Second)
		for _, old := range before {
			if old.Type == c.Type && old.Status == c.Status && !old.LastTransitionTime.IsZero() {
				c.LastTransitionTime = old.LastTransitionTime.UTC()
			}
		}
	}
}

func condition(kind v1alpha1.ConditionType, status v1alpha1.ConditionStatus, reason, message string) v1alpha1.Condition {
	return v1alpha1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

// ready sums the other conditions up: the first that is False, else the first
// that nobody knows.
func ready(conditions []v1alpha1.Condition) v1alpha1.Condition {
	for _, status := range []v1alpha1.ConditionStatus{v1alpha1.ConditionFalse, v1alpha1.ConditionUnknown} {
		for _, c := range conditions {
			if c.Status == status {
				return condition(v1alpha1.ConditionReady, status, c.Reason, c.Message)
			}
		}
	}
	return condition(v1alpha1.ConditionReady, v1alpha1.ConditionTrue, reasonReady, "")
}

func accepted(s postgres.Standing) []v1alpha1.Condition {
	if s.Phase != harness.AgentInvalid {
		return []v1alpha1.Condition{condition(v1alpha1.ConditionAccepted, v1alpha1.ConditionTrue, reasonAccepted, "")}
	}
	_, why := s.Conflicts()
	if s.Revision > 0 {
		why += fmt.Sprintf("\nUntil that is mended, revision %d stays in use.", s.Revision)
	}
	return []v1alpha1.Condition{condition(v1alpha1.ConditionAccepted, v1alpha1.ConditionFalse, reasonRefused, why)}
}

func routed(s postgres.Standing) []v1alpha1.Condition {
	conflicts, _ := s.Conflicts()
	switch {
	case conflicts != "":
		return []v1alpha1.Condition{condition(v1alpha1.ConditionRouted, v1alpha1.ConditionFalse, reasonRouteConflict, conflicts)}
	case s.Agent == nil || !s.Agent.Harness.CanChat() || len(s.Agent.Harness.Channels) == 0:
		return nil
	}
	return []v1alpha1.Condition{condition(v1alpha1.ConditionRouted, v1alpha1.ConditionTrue, reasonRouted, "")}
}

// running says that the kill switch is thrown, and nothing while it is not.
func running(s postgres.Standing) []v1alpha1.Condition {
	if s.Halted == "" {
		return nil
	}
	return []v1alpha1.Condition{condition(v1alpha1.ConditionRunning, v1alpha1.ConditionFalse, reasonHalted, s.Halted)}
}

// secretRefs are the Secrets that the revision in use names, each once.
func secretRefs(a *harness.Agent) []harness.SecretRef {
	var named []harness.SecretRef
	if a == nil || !a.Harness.CanChat() {
		return nil
	}
	for _, c := range a.Harness.Channels {
		for _, ref := range channel.Refs(c) {
			if !slices.Contains(named, ref) {
				named = append(named, ref)
			}
		}
	}
	return named
}

// secrets sums up what the functions that need them found of the Secrets.
func secrets(s postgres.Standing) []v1alpha1.Condition {
	named := secretRefs(s.Agent)
	if len(named) == 0 {
		return nil
	}
	unchecked := 0
	var missing []harness.SecretCheck
	for _, ref := range named {
		known := false
		for _, c := range s.Checks {
			if c.Ref != ref {
				continue
			}
			known = true
			if c.State != harness.SecretAvailable && !slices.Contains(missing, c) {
				missing = append(missing, c)
			}
		}
		if !known {
			unchecked++
		}
	}
	kind := v1alpha1.ConditionSecrets
	switch {
	case len(missing) > 0:
		words := make([]string, len(missing))
		for i, c := range missing {
			words[i] = c.Reason
		}
		return []v1alpha1.Condition{condition(kind, v1alpha1.ConditionFalse, "Secret"+camel(string(missing[0].State)), strings.Join(words, "\n"))}
	case unchecked > 0:
		return []v1alpha1.Condition{condition(kind, v1alpha1.ConditionUnknown, reasonNotChecked, "the functions that need the agent's Secrets have not looked at them yet")}
	}
	return []v1alpha1.Condition{condition(kind, v1alpha1.ConditionTrue, reasonAvailable, "")}
}

// skills says which images the skills of the revision in use are from, and which
// of them could not be looked at again.
func skills(s postgres.Standing) []v1alpha1.Condition {
	var all, old []string
	if s.Agent == nil {
		return nil
	}
	for _, skill := range s.Agent.Skills {
		if skill.Image == "" {
			continue
		}
		all = append(all, fmt.Sprintf("%s is of %s", skill.Name, skill.Image))
		if o, isOld := s.OldImages[skill.Name]; isOld {
			old = append(old, fmt.Sprintf("%s is of %s as of %s: %s", skill.Name, skill.Image, o.At.UTC().Format(time.RFC3339), o.Reason))
		}
	}
	switch {
	case len(old) > 0:
		return []v1alpha1.Condition{condition(v1alpha1.ConditionSkills, v1alpha1.ConditionFalse, reasonOldImage, strings.Join(old, "\n"))}
	case len(all) > 0:
		return []v1alpha1.Condition{condition(v1alpha1.ConditionSkills, v1alpha1.ConditionTrue, reasonAvailable, strings.Join(all, "\n"))}
	}
	return nil
}

// lacking reports whether a Secret that the agent names is not known to be available.
func lacking(s postgres.Standing) bool {
	found := secrets(s)
	return len(found) > 0 && found[0].Status != v1alpha1.ConditionTrue
}

func sandboxes(s postgres.Standing) []v1alpha1.Condition {
	if s.Agent == nil || !s.Agent.Harness.CanExecute() || s.Sandbox == nil {
		return nil
	}
	kind, b := v1alpha1.ConditionSandboxes, s.Sandbox
	switch {
	case !b.CameUp:
		message := cmp.Or(b.Message, "the last sandbox did not come up ("+b.Reason+")")
		return []v1alpha1.Condition{condition(kind, v1alpha1.ConditionFalse, cmp.Or(camel(b.Reason), "StartFailed"), message)}
	case b.Message != "":
		return []v1alpha1.Condition{condition(kind, v1alpha1.ConditionFalse, reasonNoCommand, b.Message)}
	}
	return []v1alpha1.Condition{condition(kind, v1alpha1.ConditionTrue, reasonCameUp, "")}
}

// camel makes START_FAILED StartFailed.
func camel(word string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(word, "_") {
		if part != "" {
			b.WriteString(part[:1] + strings.ToLower(part[1:]))
		}
	}
	return b.String()
}
