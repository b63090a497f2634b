package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"tuluat.ai/harness/functions/management-api/internal/access"
)

// A reader that comes first has what waits; one that comes back has what was asked
// or has ended since, and both have what comes while they read.
func TestTheInboxIsFollowed(t *testing.T) {
	w := newWorld(t)
	session := w.say("coder", "hello").Session
	first, second := w.asked(session), w.asked(session)
	c := w.open("/api/v1/approvals/events", "")
	var last string
	waits := map[string]bool{}
	for range 2 {
		e, ok := c.next()
		if !ok || e.name != "approval" || e.data["state"] != "PENDING" {
			t.Fatalf("%+v", e)
		}
		waits[fmt.Sprint(e.data["id"])], last = true, e.id
	}
	if !waits[string(first)] || !waits[string(second)] || last == "" {
		t.Fatalf("what waits is %v, and the place %q", waits, last)
	}
	third := w.asked(session)
	// Those asked while what waits was read may come again; what is new must come.
	find := func(c *connection, id, state string) string {
		t.Helper()
		for {
			e, ok := c.next()
			if !ok {
				t.Fatalf("%s is never %s", id, state)
			}
			if e.id == "" {
				t.Fatalf("an event without a place: %+v", e)
			}
			if e.data["id"] == id && e.data["state"] == state {
				return e.id
			}
		}
	}
	find(c, string(third), "PENDING")
	c.close()
	w.Exec(`UPDATE approvals SET state = 'EXPIRED', decided_at = now() WHERE approval_id = $1`, first)
	c = w.open("/api/v1/approvals/events", last)
	find(c, string(third), "PENDING")
	last = find(c, string(first), "EXPIRED")
	c.close()
	c = w.open("/api/v1/approvals/events?agent=nobody", last)
	c.close()
	w.Exec(`UPDATE approvals SET state = 'CANCELLED', decided_at = now() WHERE approval_id = $1`, second)
	c = w.open("/api/v1/approvals/events?agent=coder&after="+last, "")
	find(c, string(second), "CANCELLED")
}

func TestWhoMayDecideIsNamed(t *testing.T) {
	w := newWorld(t)
	id := w.asked(w.say("coder", "hello").Session)
	w.Exec(`UPDATE approvals SET approvers = '[{"user": "ann"}, {"group": "ops"}, {"channel": "TELEGRAM", "channelUserId": "5"}]'`)
	path := "/api/v1/approvals/" + string(id) + "/decision"
	for _, c := range []struct {
		body    string
		status  int
		pointer string
		says    string
	}{
		{`{"decision":"APPROVE"}`, http.StatusForbidden, "", "only user ann, group ops, telegram 5 may decide this"},
		{`{"decision":"REJECT","scope":"SESSION"}`, http.StatusUnprocessableEntity, "#/scope", "goes with APPROVE"},
		{`{"decision":"REJECT","arguments":{"command":"x"}}`, http.StatusUnprocessableEntity, "#/arguments", "APPROVE"},
		{`{"decision":"APPROVE","arguments":{"command":"x"}}`, http.StatusUnprocessableEntity, "#/digest", "goes with arguments"},
		{`{"decision":"APPROVE","scope":"EVER"}`, http.StatusUnprocessableEntity, "#/scope", ""},
		{`{"decision":"PERHAPS"}`, http.StatusUnprocessableEntity, "#/decision", ""},
	} {
		a := w.do(request{method: http.MethodPost, path: path, body: c.body, role: access.RoleApprover})
		if a.status != c.status || !strings.Contains(a.body, c.says) || c.pointer != "" && !strings.Contains(a.body, `"`+c.pointer+`"`) {
			t.Errorf("%s: %d %s; want %d, %q at %q", c.body, a.status, a.body, c.status, c.says, c.pointer)
		}
	}
	if got := w.Query(`SELECT state FROM approvals`); got != "PENDING" {
		t.Errorf("it is %s", got)
	}
}

func TestWhatWaitsIsCounted(t *testing.T) {
	w := newWorld(t)
	if a := w.do(request{method: http.MethodGet, path: "/api/v1/approvals/counts", role: access.RoleViewer}); a.status != http.StatusOK || !strings.Contains(a.body, `"agents":[]`) || !strings.Contains(a.body, `"pending":0`) {
		t.Errorf("without any: %d %s", a.status, a.body)
	}
	session := w.say("coder", "hello").Session
	w.asked(session)
	w.asked(session)
	if a := w.do(request{method: http.MethodGet, path: "/api/v1/approvals/counts", role: access.RoleViewer}); a.status != http.StatusOK || strings.Count(a.body, `"pending":2`) != 2 || !strings.Contains(a.body, `"agent":"coder"`) || !strings.Contains(a.body, `"oldestRequestedAt"`) {
		t.Errorf("two: %d %s", a.status, a.body)
	}
}
