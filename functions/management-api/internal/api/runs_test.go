package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

func (w *world) flow() {
	w.T.Helper()
	flow := &harness.Workflow{
		Name: "release", Start: "ask", MaxVisits: 10, Inputs: []harness.WorkflowInput{{Name: "service", Type: harness.InputString, Required: true}},
		Nodes: []harness.Node{{ID: "ask", Type: harness.NodeAgent, Agent: "coder", Prompt: "p"}, {ID: "end", Type: harness.NodeEnd, State: harness.SessionCompleted}},
		Edges: []harness.Edge{{From: "ask", To: "end"}},
	}
	broken := postgres.WorkflowText{Name: "broken", Reason: "spec.nodes are missing"}
	if _, err := w.Store.PutWorkflows(w.T.Context(), []postgres.WorkflowText{{Name: "release", Workflow: flow}, broken}, nil); err != nil {
		w.T.Fatal(err)
	}
}

func TestStartingARun(t *testing.T) {
	w := newWorld(t)
	w.flow()
	start := func(key, body string) answer {
		return w.do(request{method: http.MethodPost, path: "/api/v1/sessions", body: body, header: map[string]string{"Idempotency-Key": key}})
	}
	a := start("k", `{"workflow":"release","input":{"service":"web"}}`)
	var took accepted
	if err := json.Unmarshal([]byte(a.body), &took); err != nil || a.status != http.StatusAccepted || took.Session == "" {
		t.Fatalf("%d %s %v", a.status, a.body, err)
	}
	var s view.Session
	if err := json.Unmarshal([]byte(w.get("/sessions/"+string(took.Session)).body), &s); err != nil || s.Workflow != "release" || s.WorkflowRevision != 1 || s.Agent != "coder" || string(s.Input) != `{"service":"web"}` {
		t.Errorf("%+v %v", s, err)
	}
	var again accepted
	if err := json.Unmarshal([]byte(start("k", `{"workflow":"release","input":{"service":"web"}}`).body), &again); err != nil || again.Session != took.Session {
		t.Errorf("a repeat: %+v %v", again, err)
	}
	problem(t, start("k", `{"workflow":"release","input":{"service":"other"}}`), http.StatusConflict)
	problem(t, w.post("/sessions/"+string(took.Session)+"/messages", `{"text":"hello"}`), http.StatusConflict)
	for name, c := range map[string]struct {
		body string
		code int
		want []string
	}{
		"unknown":       {`{"workflow":"none"}`, 422, []string{"#/workflow"}},
		"never READY":   {`{"workflow":"broken"}`, 422, []string{"#/workflow"}},
		"no input":      {`{"workflow":"release"}`, 422, []string{"#/input/service"}},
		"another type":  {`{"workflow":"release","input":{"service":1}}`, 422, []string{"#/input/service"}},
		"another input": {`{"workflow":"release","input":{"service":"","x":1}}`, 422, []string{"#/input/x"}},
		"no object":     {`{"workflow":"release","input":[]}`, 422, []string{"#/input"}},
		"both":          {`{"workflow":"release","agent":"coder","text":"t"}`, 422, []string{"#/workflow"}},
		"neither":       {`{}`, 422, []string{"#/agent"}},
		"only input":    {`{"agent":"coder","text":"t","input":{}}`, 422, []string{"#/input"}},
		"large":         {fmt.Sprintf(`{"workflow":"release","input":{"service":"%s"}}`, strings.Repeat("x", 300<<10)), 422, []string{"#/input"}},
		"huge":          {fmt.Sprintf(`{"workflow":"release","input":{"service":"%s"}}`, strings.Repeat("x", 10<<20)), 413, nil},
	} {
		if diff := cmp.Diff(c.want, pointers(problem(t, w.post("/sessions", c.body), c.code))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if a := w.do(request{method: http.MethodPost, path: "/api/v1/sessions/" + string(took.Session) + "/cancel"}); a.status != http.StatusOK {
		t.Errorf("cancel: %d %s", a.status, a.body)
	}
}
