//go:build e2e

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

const (
	workflowName = "e2e-release"
	bobsNumber   = "15552000012"
)

// workflowYAML asks an agent, a human and a shell, one after the other. Who
// decides is not who starts it.
const workflowYAML = `apiVersion: tuluat.ai/v1alpha1
kind: AiWorkflow
metadata:
  name: ` + workflowName + `
spec:
  inputs:
    - {name: topic, type: string, required: true}
  triggers:
    - {type: CHANNEL, agent: ` + sampleAgent + `, pattern: "^/release (?P<topic>.+)$"}
  nodes:
    - {id: propose, type: AGENT, agent: ` + sampleAgent + `, prompt: "Say something of ${input.topic}."}
    - id: agree
      type: APPROVAL
      text: "Is this to be released? ${nodes.propose.text}"
      approval:
        timeout: 30m
        approvers: [{channel: WHATSAPP, channelUserId: "` + bobsNumber + `"}]
    - id: release
      type: SHELL
      agent: ` + sampleAgent + `
      command: |
        cat /proc/sys/kernel/hostname
        printf '%s\n' "${nodes.propose.text}" | grep -o 'something of [a-z ]*'
    - {id: tell, type: REPLY, text: "Released: ${nodes.release.stdout}"}
    - {id: done, type: END}
  edges:
    - {from: propose, to: agree}
    - {from: agree, to: release}
    - {from: release, to: tell}
    - {from: tell, to: done}
`

// journeyWorkflow: from no pod at all, a message on WhatsApp starts a run of a
// workflow, an agent answers, a human is asked on WhatsApp and taps a button, a
// command runs in a Pod, and who wrote is told. Nothing runs while the human
// thinks, and nothing when all is told.
func journeyWorkflow(t *testing.T, s *system) {
	ctx := t.Context()
	viewer := s.caller(ctx, t, "viewer")
	_, err := s.cluster.kubectl(ctx, workflowYAML, "-n", s.agents(), "apply", "-f", "-")
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if _, err := s.cluster.kubectl(ctx, "", "-n", s.agents(), "delete", "aiworkflow", workflowName); err != nil {
			t.Error(err)
		}
	})
	must(t, s.awaitWorkflow(ctx, workflowName))
	bob, err := s.outside.onWhatsApp(ctx, sampleNumber, bobsNumber)
	must(t, err)
	_, hello, err := bob.ask(ctx, patience, "hello") // within the day in which he may be written to
	must(t, err)
	ann, err := s.outside.onWhatsApp(ctx, sampleNumber, "15552000011")
	must(t, err)
	must(t, s.atZero(ctx))

	asked, started, err := ann.ask(ctx, patience, "/release the moon")
	must(t, err)
	_, rest, _ := strings.Cut(started.Text, workflowName+" (")
	run, _, ok := strings.Cut(rest, ")")
	if !ok {
		t.Fatalf("the trigger is answered with %q", started.Text)
	}
	s.figures.add("workflow", "message to run started, from zero", short(started.At.Sub(asked.At)), "")
	waits, err := ann.within(ctx, started)
	must(t, err)
	if !strings.Contains(waits.Text, "I go on when this is approved by whatsapp "+bobsNumber) {
		t.Errorf("who wrote is told %q while the approver is asked", waits.Text)
	}
	card, err := bob.within(ctx, hello)
	must(t, err)
	s.figures.add("workflow", "message to the approver's card, from zero", short(card.At.Sub(asked.At)), "")
	t.Logf("the card: %.200q with %v", card.Text, card.Choices)
	if !strings.Contains(card.Text, "Is this to be released?") || !strings.Contains(card.Text, "something of the moon") {
		t.Errorf("the card says %q", card.Text)
	}

	began := time.Now()
	must(t, s.atZero(ctx))
	s.figures.add("workflow", "asked to 0 pods, while the human thinks", short(time.Since(began)), "")
	tapped, err := bob.press(ctx, card, "Approve")
	must(t, err)
	decided, err := ann.within(ctx, waits)
	must(t, err)
	if !strings.Contains(decided.Text, "Approved by whatsapp "+bobsNumber) {
		t.Errorf("who wrote is told %q of the decision", decided.Text)
	}
	told, err := ann.within(ctx, decided)
	must(t, err)
	s.figures.add("workflow", "tap to who wrote is told, from zero", short(told.At.Sub(tapped.At)), "")
	t.Logf("told: %.200q", told.Text)
	pod, text, _ := strings.Cut(strings.TrimPrefix(told.Text, "Released: "), "\n")
	if !strings.HasPrefix(told.Text, "Released: ") || strings.TrimSpace(text) != "something of the moon" {
		t.Errorf("who wrote is told %q", told.Text)
	}
	s.checkPodOf(t, pod)
	outcome, err := bob.within(ctx, tapped)
	must(t, err)
	if !strings.Contains(outcome.Text, "Approved by whatsapp "+bobsNumber) {
		t.Errorf("the approver is told %q", outcome.Text)
	}

	s.checkRun(t, viewer, run)
	began = time.Now()
	must(t, s.atZero(ctx))
	s.figures.add("workflow", "told to 0 pods", short(time.Since(began)), "")
}

// awaitWorkflow waits until the newest spec of a workflow is READY.
func (s *system) awaitWorkflow(ctx context.Context, name string) error {
	state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
		text, err := s.cluster.kubectl(ctx, "", "-n", s.agents(), "get", "aiworkflow", name, "-o", "json")
		if err != nil {
			return false, err.Error()
		}
		var r standing
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			return false, err.Error()
		}
		return r.Status.ObservedGeneration == r.Metadata.Generation && ready(r), r.String()
	})
	if !ok {
		return fmt.Errorf("workflow %s after %s: %s", name, patience, state)
	}
	return nil
}

// within waits for our side's first line after another.
func (p *phone) within(ctx context.Context, after person.Line) (person.Line, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return p.answer(ctx, after)
}

// get asks the management API, and reads its answer into out.
func (s *system) get(ctx context.Context, token, path string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	status, answer, err := s.ingress.send(ctx, "management-api", http.MethodGet, path, http.Header{"Authorization": {"Bearer " + token}}, nil)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("GET %s: %d %s", path, status, answer)
	}
	return json.Unmarshal(answer, out)
}

// checkRun compares what the API shows of the run with what happened.
func (s *system) checkRun(t *testing.T, token, id string) {
	t.Helper()
	ctx := t.Context()
	var run view.Session
	state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
		if err := s.get(ctx, token, "/api/v1/sessions/"+id, &run); err != nil {
			return false, err.Error()
		}
		return run.State == harness.SessionCompleted, fmt.Sprint(run.State, " ", run.Reason)
	})
	if !ok {
		t.Errorf("the run is %s", state)
	}
	if string(run.Workflow) != workflowName || string(run.Input) != `{"topic":"the moon"}` {
		t.Errorf("the run is of %s with %s", run.Workflow, run.Input)
	}
	var timeline struct{ Items []view.Entry }
	must(t, s.get(ctx, token, "/api/v1/sessions/"+id+"/timeline?limit=200", &timeline))
	t.Log(printTimeline(timeline.Items))
	var visits, commands, decisions []string
	for i, e := range timeline.Items {
		if i > 0 && e.At.Before(timeline.Items[i-1].At) {
			t.Errorf("%s %s stands behind what came later", e.Kind, e.ID)
		}
		switch e.Kind {
		case view.EntryVisit:
			visits = append(visits, fmt.Sprintf("%s %d %s %d", e.Visit.Node, e.Visit.Number, e.Visit.State, e.Visit.Attempts))
		case view.EntryExecution:
			commands = append(commands, fmt.Sprint(e.Execution.Cause, " ", e.Execution.State))
		case view.EntryApproval:
			a := e.Approval
			decisions = append(decisions, fmt.Sprint(a.CurrentNode, " ", a.State, " by ", a.DecidedBy, " via ", a.DecidedVia))
		}
	}
	for _, c := range []struct {
		what      string
		got, want []string
	}{
		{"visits", visits, []string{"propose 1 DONE 1", "agree 1 DONE 1", "release 1 DONE 1", "tell 1 DONE 1", "done 1 DONE 1"}},
		{"commands", commands, []string{"NODE_VISIT COMPLETED"}},
		{"decisions", decisions, []string{"agree APPROVED by whatsapp " + bobsNumber + " via WHATSAPP"}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("the timeline's %s are %q, want %q", c.what, c.got, c.want)
		}
	}
}

// printTimeline is a timeline as a table.
func printTimeline(entries []view.Entry) string {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "\nafter\tkind\twhat\tstate\tand")
	for _, e := range entries {
		what, state, more := "", "", ""
		switch {
		case e.Visit != nil:
			what, state, more = e.Visit.Node, string(e.Visit.State), string(e.Visit.Output)
		case e.Execution != nil:
			what, state, more = string(e.Execution.ID), string(e.Execution.State), e.Execution.Command
		case e.Approval != nil:
			what, state, more = e.Approval.CurrentNode, string(e.Approval.State), "by "+e.Approval.DecidedBy+" via "+e.Approval.DecidedVia
		case e.Message != nil:
			what, state, more = string(e.Message.Direction), string(e.Message.State), e.Message.Text
		}
		if len(more) > 100 {
			more = more[:100] + "…"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%q\n", short(e.At.Sub(entries[0].At)), e.Kind, what, state, more)
	}
	_ = table.Flush() // to memory
	return text.String()
}
