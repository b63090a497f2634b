package api_test

import (
	"net/http"
	"testing"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// What the sweep compared last is shown to who may look, without any right in the
// places that it compared.
func TestLeaks(t *testing.T) {
	w := newWorld(t)
	w.Exec(`UPDATE comparisons SET tally = '{"known": 4, "there": 5, "leaked": 1, "lost": 2, "removed": 3, "oldestAt": "2026-01-02T03:04:05Z", "examples": ["workspace-1"]}', compared_at = now(), reason = 'why' WHERE kind = 'VOLUME'`)
	w.Exec(`INSERT INTO sweep_reports (started_at, findings) VALUES (now(), '{"volumes": {"found": 3, "done": 2, "left": 1, "reason": "refused"}, "archive": {"found": 1, "done": 0, "left": 1, "note": "no bucket"}}')`)
	w.Exec(`UPDATE sweeps SET completed_at = now() - interval '90 seconds'`)
	leaks := decode[page[view.Leaks]](t, w.get("/leaks"), http.StatusOK)
	if len(leaks.Items) != len(harness.ObjectKinds()) {
		t.Fatalf("%+v", leaks)
	}
	for _, l := range leaks.Items {
		if (l.Kind == harness.ObjectVolume) != (l.ComparedAt != nil) {
			t.Errorf("%+v", l)
		}
		if l.Kind == harness.ObjectVolume && (l.Known != 4 || l.There != 5 || l.Leaked != 1 || l.Lost != 2 || l.Removed != 3 || l.OldestAt == nil || len(l.Examples) != 1 || l.Reason != "why") {
			t.Errorf("%+v", l)
		}
	}
	sweep := decode[view.Sweep](t, w.get("/sweep"), http.StatusOK)
	if sweep.CompletedAt == nil || sweep.AgeSeconds == nil || *sweep.AgeSeconds < 90 || len(sweep.Items) != 2 || sweep.Items[0].Note != "no bucket" || sweep.Items[1].Reason != "refused" {
		t.Errorf("%+v", sweep)
	}
	for role, want := range map[string]int{access.RoleViewer: http.StatusOK, access.RoleOperator: http.StatusOK, access.RoleApprover: http.StatusForbidden, access.RoleAdmin: http.StatusOK} {
		for _, path := range []string{"/api/v1/leaks", "/api/v1/sweep"} {
			if a := w.do(request{method: http.MethodGet, path: path, role: role}); a.status != want {
				t.Errorf("%s as %s: %s", path, role, a)
			}
		}
	}
}

// Where a provider sends updates to is recorded, and what is no such place is refused
// with the field.
func TestWebhooksAreRecorded(t *testing.T) {
	w := newWorld(t)
	record := func(body string, role string) answer {
		return w.do(request{method: http.MethodPost, path: "/api/v1/channels/webhooks", body: body, role: role})
	}
	for body, want := range map[string]string{
		`{"channel":"TELEGRAM","account":" ","url":""}`:                          "#/account",
		`{"channel":"TELEGRAM","account":"a/b","url":""}`:                        "#/account",
		`{"channel":"TELEGRAM","account":"a","url":"agents"}`:                    "#/url",
		`{"channel":"TELEGRAM","account":"a","url":"https://u:p@agents.test/x"}`: "#/url",
		`{"channel":"TELEGRAM","account":"a","url":"https://agents.test/?k=v"}`:  "#/url",
		`{"channel":"API","account":"a","url":""}`:                               "#/channel",
	} {
		p := decode[view.Problem](t, record(body, ""), http.StatusUnprocessableEntity)
		if len(p.Errors) != 1 || p.Errors[0].Pointer != want {
			t.Errorf("%s: %+v", body, p)
		}
	}
	if a := record(`{"channel":"TELEGRAM","account":"a_bot","url":"https://agents.test/x"}`, access.RoleViewer); a.status != http.StatusForbidden {
		t.Errorf("a viewer: %s", a)
	}
	const rows = `SELECT COALESCE(string_agg(object_name || ' ' || state || ' ' || registered_url, ', '), 'none') FROM outside_objects`
	if got := w.Query(rows); got != "none" {
		t.Errorf("what was refused is recorded: %s", got)
	}
	for _, c := range []struct{ url, want string }{
		{"https://agents.test/x", "TELEGRAM/a_bot MADE https://agents.test/x"}, {"https://agents.test/y", "TELEGRAM/a_bot MADE https://agents.test/y"}, {"", "TELEGRAM/a_bot GONE https://agents.test/y"},
	} {
		if a := record(`{"channel":"TELEGRAM","account":"a_bot","url":"`+c.url+`"}`, access.RoleOperator); a.status != http.StatusNoContent {
			t.Errorf("%q: %s", c.url, a)
		}
		if got := w.Query(rows); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}
