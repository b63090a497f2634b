package api_test

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// What a turn itself waits for is in the inbox and the timeline as what it is, is
// decided like any other, and only for once.
func TestATurnsOwnQuestion(t *testing.T) {
	w := newWorld(t)
	session := w.say("coder", "go").Session
	id := w.asked(session)
	w.Exec(`UPDATE approvals a SET kind = 'BUDGET', tool_call_id = NULL, message_id = (SELECT message_id FROM messages m WHERE m.session_id = a.session_id ORDER BY seq LIMIT 1),
		input = '{"agent": "coder", "question": "more?", "budget": {"scope": "TURN", "kind": "STEPS", "limit": 2, "used": 2, "reserved": 0, "amount": 2, "subject": "msg_1"}}' WHERE approval_id = $1`, id)
	list := decode[page[view.Approval]](t, w.get("/approvals?status=PENDING"), http.StatusOK)
	if len(list.Items) != 1 || list.Items[0].Kind != harness.ApprovalOfBudget || list.Items[0].Message == "" {
		t.Fatalf("the inbox: %+v", list.Items)
	}
	path := "/approvals/" + string(id) + "/decision"
	for body, field := range map[string]string{
		`{"decision":"APPROVE","scope":"SESSION"}`: "#/scope", `{"decision":"APPROVE","scope":"ALWAYS"}`: "#/scope",
		`{"decision":"APPROVE","digest":"` + list.Items[0].Digest + `","arguments":{"command":"x"}}`: "#/arguments",
	} {
		if p := problem(t, w.post(path, body), http.StatusUnprocessableEntity); !cmp.Equal(pointers(p), []string{field}) {
			t.Errorf("%s: %+v", body, p)
		}
	}
	if a := decode[view.Approval](t, w.post(path, `{"decision":"APPROVE","scope":"ONCE"}`), http.StatusOK); a.State != harness.ApprovalApproved || a.Kind != harness.ApprovalOfBudget {
		t.Errorf("%+v", a)
	}
}
