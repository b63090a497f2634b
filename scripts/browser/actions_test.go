//go:build browser

package browser_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// stage is what actions are done to, each made by one before.
type stage struct {
	agent, workflow, session, approval, sandbox string
	letters                                     [2]string
}

// at fills what the stage has into a path.
func (s *stage) at(path string) string {
	return strings.NewReplacer("{agent}", s.agent, "{workflow}", s.workflow, "{session}", s.session, "{approval}", s.approval, "{sandbox}", s.sandbox,
		"{letter}", s.letters[0], "{other}", s.letters[1]).Replace(path)
}

// remove takes away a resource of whatever version, if it is there.
func (s *stage) remove(path string) error {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodDelete, dev.URL+"/api/v1/"+path, nil)
	if err != nil {
		return err
	}
	request.Header = http.Header{"Authorization": {"Bearer " + dev.token}, "If-Match": {"*"}}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

const (
	agentText = `apiVersion: tuluat.ai/v1alpha1
kind: AiAgent
metadata: {name: %s}
spec:
  description: made by hand
  harness: {type: CODE, sandbox: {egress: none}}
  approvals: {policy: always}
`
	workflowText = `apiVersion: tuluat.ai/v1alpha1
kind: AiWorkflow
metadata: {name: %s}
spec:
  description: made by hand
  inputs: [{name: what, type: string, required: true}]
  nodes:
    - {id: ask, type: AGENT, agent: %s, prompt: "hello ${input.what}"}
    - {id: end, type: END}
  edges: [{from: ask, to: end}]
`
)

// TestActions does everything that the console offers, by clicking, in an order in
// which one thing leads to another. That it was done is what the API says, or the
// page when it is opened again. What no row does is a fault: what there is to do is
// read from the console's templates and routes.
func TestActions(t *testing.T) {
	name := "clicked-" + strings.ToLower(rand.Text()[:8])
	s := &stage{agent: name, workflow: name}
	agent, workflow, session := "/console/agents/{agent}", "/console/workflows/{workflow}", "/console/sessions/{session}"
	var done []press
	before := breaches(t)
	t.Cleanup(func() { // where it broke off, what it has made is taken away
		for _, path := range []string{"workflows/", "agents/"} {
			if err := s.remove(path + name); err != nil {
				t.Error(err)
			}
		}
	})
	for _, row := range []struct {
		name, at string
		do       func(h *hand)
	}{
		{"sign out", "/console/", func(h *hand) {
			h.press(`form[action$="/sign-out"] button`, "You are signed out.")
			h.open(dev.URL+"/console/agents", signInForm.token)
		}},
		{"enter by the link", "", func(h *hand) {
			link, file := entry(h.t)
			h.open(link, inside)
			h.press(`form[action$="/enter"] button`, "")
			h.open(dev.URL+"/console/agents", ".who .name")
			if _, err := os.Stat(file); !os.IsNotExist(err) {
				h.t.Errorf("the link opens again: %v", err)
			}
			h.press(`form[action$="/sign-out"] button`, "You are signed out.")
		}},
		{"sign in", "/console/sign-in", func(h *hand) {
			h.write(signInForm.token, dev.token)
			h.press(signInForm.button, "")
			signedIn = dev.token
			h.open(dev.URL+"/console/approvals", ".who .name")
		}},
		{"colours", "/console/", func(h *hand) {
			for key, theme := range map[string]string{"d": "dark", "l": "light"} {
				h.pressed(`form[action$="/theme"] button`)
				h.leads(func() { h.write("#theme", key) })
				h.open(dev.URL+"/console/", inside)
				h.until(oneStep, "document.documentElement.dataset.theme === '"+theme+"'")
			}
			h.leads(func() { h.write("#theme", "a") })
		}},
		{"keys", "/console/", func(h *hand) {
			h.do(chromedp.KeyEvent("?"))
			h.until(oneStep, "document.getElementById('keys').open")
			h.pressed("#keys button")
			h.click("#keys button")
			h.until(oneStep, "!document.getElementById('keys').open")
		}},

		{"make an agent", "/console/agents/new", func(h *hand) {
			h.rewrite("#yaml", fmt.Sprintf(agentText, s.agent))
			h.press(`button[value=check]`, "")
			h.press(`button[value=edit]`, "")
			h.press(`button[value=check]`, "")
			h.press(`button[value=save]`, "Created.")
			h.proves("/agents/{agent}", `made by hand`, `"phase":"READY"`)
		}},
		{"change an agent", agent + "/edit", func(h *hand) {
			h.alter("#yaml", "made by hand", "changed by hand")
			h.press(`button[value=check]`, "")
			h.until(oneStep, "document.querySelector('.diff .minus').innerText.includes('made') && document.querySelector('.diff .plus').innerText.includes('changed')")
			h.proves("/agents/{agent}", `made by hand`)
			h.press(`button[value=save]`, "Saved.")
			h.proves("/agents/{agent}", `changed by hand`)
		}},
		{"switch a part of an agent, while it is edited", agent + "/edit", func(h *hand) {
			other := &hand{tab: newTab(h.t, views[2]), stage: s, done: h.done}
			other.open(dev.URL+s.at(agent), inside)
			other.press(`.switches button[aria-checked=true]`, "Switched.")
			other.proves("/agents/{agent}", `"enabled":false`)
			other.press(`.switches button[aria-checked=false]`, "Switched.")
			other.proves("/agents/{agent}", `"enabled":true`)
			h.alter("#yaml", "changed by hand", "changed too late")
			h.press(`button[value=check]`, "")
			h.until(oneStep, "document.getElementById('refusal').innerText.includes('changed by somebody else')")
			h.refused(http.StatusPreconditionFailed)
			h.proves("/agents/{agent}", `changed by hand`)
			h.press(`button[value=check]`, "")
			h.press(`button[value=save]`, "Saved.")
			h.proves("/agents/{agent}", `changed too late`)
		}},
		{"halt an agent", agent, func(h *hand) {
			h.click("#halt summary")
			h.write("#halt-reason", "it is loud")
			h.press("#halt button", "Halted.")
			h.proves("/agents/{agent}/halt", `"halted":true`, `it is loud`)
			h.press(`form[action$="/halt"] button.go`, "Going on.")
			h.proves("/agents/{agent}/halt", `"halted":false`)
		}},

		{"begin a session, and approve beside what is asked", "/console/sessions", func(h *hand) {
			h.click("details.new summary")
			h.write("#new-agent", s.agent)
			h.write("#new-text", "run: echo one")
			h.press("details.new button", "The message was sent.")
			s.session = strings.TrimPrefix(eval[string](h.tab, "location.pathname"), "/console/sessions/")
			h.asked()
			h.press(`.ask form.inline button.go`, "Approved.")
			h.proves("/approvals/{approval}", `"state":"APPROVED"`, `"decidedVia":"API"`)
			h.proves("/executions?session={session}", `"command":"echo one"`, `"state":"COMPLETED"`)
		}},
		{"reject beside what is asked", session, func(h *hand) {
			h.send("run: echo two")
			h.press(`.ask form.inline button.stop`, "Rejected.")
			h.proves("/approvals/{approval}", `"state":"REJECTED"`)
		}},
		{"reject with a reason", session, func(h *hand) {
			h.send("run: echo three")
			h.follows("/approvals/" + s.approval)
			h.write("#reason", "not today")
			h.press(`.decision button.stop`, "Rejected.")
			h.proves("/approvals/{approval}", `"state":"REJECTED"`, `not today`)
		}},
		{"approve for the session", session, func(h *hand) {
			h.send("run: echo four")
			h.follows("/approvals/" + s.approval)
			h.click(`input[value=SESSION]`)
			h.write(`input[value=SESSION]`, kb.Enter)
			h.proves("/approvals/{approval}", `"state":"PENDING"`)
			h.press(`.decision button.go`, "Approved.")
			h.proves("/approvals/{approval}", `"state":"APPROVED"`, `"scope":"SESSION"`)
		}},
		{"approve for always", session, func(h *hand) {
			h.send("run: echo five")
			h.follows("/approvals/" + s.approval)
			h.click(`input[value=ALWAYS]`)
			h.press(`.decision button.go`, "Approved.")
			h.proves("/approvals/{approval}", `"state":"APPROVED"`, `"scope":"ALWAYS"`)
		}},
		{"approve something else", session, func(h *hand) {
			h.send("run: echo six")
			h.follows("/approvals/" + s.approval)
			h.click("#edit summary")
			h.rewrite("#command", "echo seven")
			h.press(`.decision button.go`, "Approved.")
			h.proves("/approvals/{approval}", `"state":"APPROVED"`)
			h.proves("/executions?session={session}", `"command":"echo seven"`)
			if strings.Contains(h.api("/executions?session={session}"), "echo six") {
				h.t.Error("what was replaced has run")
			}
		}},
		{"what was approved for longer is not asked about", session, func(h *hand) {
			before := strings.Count(h.api("/approvals?session={session}"), `"digest"`)
			for n, word := range []string{"four", "five"} {
				h.say("#text", "run: echo "+word, `form[action$="/send"] button`, "The message was sent.")
				await(h.t, answerTime, "echo "+word+" a second time", func() bool {
					return strings.Count(h.api("/executions?session={session}&status=COMPLETED"), `"command":"echo `+word+`"`) == 2
				})
				if after := strings.Count(h.api("/approvals?session={session}"), `"digest"`); after != before {
					h.t.Errorf("command %d was asked about: %d approvals, then %d", n, before, after)
				}
			}
		}},
		{"take a session over, answer, hand it back", session, func(h *hand) {
			h.press(`form[action$="/pause"] button`, "You have taken")
			h.proves("/sessions/{session}", `"pausedAt"`)
			h.say("#text", "a person says this", `form[action$="/reply"] button`, "Your answer was sent.")
			h.proves("/sessions/{session}/messages?limit=200", `a person says this`)
			h.press(`form[action$="/resume"] button`, "The session is with its agent again.")
			if strings.Contains(h.api("/sessions/{session}"), `"pausedAt"`) {
				h.t.Error("it is still taken over")
			}
		}},
		{"run a command in a sandbox, and end it", "/console/sandboxes?agent={agent}&status=READY", func(h *hand) {
			h.follows("/console/sandboxes/")
			s.sandbox = strings.TrimPrefix(eval[string](h.tab, "location.pathname"), "/console/sandboxes/")
			h.say("#command", "echo by hand", `form[action$="/commands"] button`, "The command was asked for.")
			h.until(answerTime, "[...document.querySelectorAll('#commands li')].some((c) => c.innerText.includes('echo by hand') && c.innerText.includes('completed'))") // as the page renews itself
			h.proves("/executions?sandbox={sandbox}", `"command":"echo by hand"`, `"cause":"API"`)
			h.click("#terminate summary")
			h.press("#terminate button", "The sandbox is being terminated.")
			h.proves("/sandboxes/{sandbox}", `"state":"GONE"`)
		}},
		{"end a session", session, func(h *hand) {
			h.click("#cancel summary")
			h.press("#cancel button", "The session was ended.")
			h.proves("/sessions/{session}", `"state":"CANCELLED"`)
		}},

		{"make a workflow", "/console/workflows/new", func(h *hand) {
			h.rewrite("#yaml", fmt.Sprintf(workflowText, s.workflow, s.agent))
			h.press(`button[value=check]`, "")
			h.press(`button[value=save]`, "Created.")
			h.proves("/workflows/{workflow}", `made by hand`)
		}},
		{"change a workflow", workflow + "/edit", func(h *hand) {
			h.alter("#yaml", "made by hand", "changed by hand")
			h.press(`button[value=check]`, "")
			h.press(`button[value=save]`, "Saved.")
			h.proves("/workflows/{workflow}", `changed by hand`)
		}},
		{"run a workflow", workflow, func(h *hand) {
			h.alter("#input", `""`, `"world"`)
			h.press(`form[action$="/runs"] button`, "The run was started.")
			s.session = strings.TrimPrefix(eval[string](h.tab, "location.pathname"), "/console/sessions/")
			h.proves("/sessions/{session}", `"workflow":"{workflow}"`, `"world"`, `"state":"COMPLETED"`)
			h.until(answerTime, "document.getElementById('growing').innerText.includes('completed')") // as the page renews itself
		}},
		{"delete a workflow", workflow, func(h *hand) {
			h.click("#delete summary")
			h.press("#delete button", "Deleted.")
			h.gone("/workflows/{workflow}")
		}},

		{"send a dead letter again", "/console/deadletters/{letter}", func(h *hand) {
			h.press(`form[action$="/replay"] button`, "The event was sent again.")
			h.proves("/deadletters/{letter}", `"state":"REPLAYED"`, `"decidedBy"`)
		}},
		{"discard a dead letter", "/console/deadletters/{other}", func(h *hand) {
			h.click("#discard summary")
			h.press("#discard button", "The dead letter was discarded.")
			h.proves("/deadletters/{other}", `"state":"DISCARDED"`, `"decidedBy"`)
		}},
		{"halt everything, and let it go on", "/console/halt", func(h *hand) {
			h.t.Cleanup(func() { dev.call(t, http.MethodDelete, "/api/v1/halt", nil, nil) }) // whatever happens: others come behind
			h.write("#reason", "a storm")
			h.press("main button.stop", "Halted.")
			h.proves("/halt", `"halted":true`, `a storm`)
			h.press("main button.go", "Going on.")
			h.proves("/halt", `"halted":false`)
		}},
		{"delete an agent", agent, func(h *hand) {
			h.click("#delete summary")
			h.press("#delete button", "Deleted.")
			h.gone("/agents/{agent}")
		}},
	} {
		ok := t.Run(row.name, func(t *testing.T) {
			h := &hand{tab: newTab(t, views[2]), stage: s, done: &done}
			if strings.Contains(row.at, "/deadletters/") && s.letters[0] == "" {
				s.letters = deadLetters(t, s.session)
			}
			if row.at != "" {
				h.signIn()
				h.open(dev.URL+s.at(row.at), inside)
			}
			row.do(h)
		})
		if !ok {
			return // what follows builds on it
		}
	}
	t.Run("lists", func(t *testing.T) { filters(t, s, &done) })
	t.Run("channels", channelSteps)
	t.Run("nothing else is offered", func(t *testing.T) { complete(t, done) })
	if after := breaches(t); after != before {
		t.Errorf("%d breaches of the console's policy were reported", after-before)
	}
}
