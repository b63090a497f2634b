package console_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"tuluat.ai/harness/functions/management-api/internal/access"
)

// A decision is the API's: with the digest of what was shown, its reason and scope, and
// who comes second is told who was first.
func TestDecisions(t *testing.T) {
	w := newWorld(t)
	session := w.say("coder", "hello")
	b := w.as(access.RoleAdmin)
	decision := func(id string, more url.Values) (string, url.Values) {
		path := "/console/approvals/" + id
		form := fields(t, b.see(path).page(t), path+"/decision")
		for k, v := range more {
			form[k] = v
		}
		return path + "/decision", form
	}
	first := string(w.asked(session, "rm -r build"))
	path, form := decision(first, url.Values{"decision": {"APPROVE"}, "reason": {"why\r\nnot"}, "scope": {"SESSION"}, "command": {"rm -r build"}})
	b.done(path, form, "approved")
	if got := w.Query(`SELECT concat_ws('|', state, decided_by, decided_via, reason, scope, (asked_input IS NULL)::text) FROM approvals WHERE approval_id = $1`, first); got != "APPROVED|admin|API|why\nnot|SESSION|true" {
		t.Errorf("approved: %s", got)
	}
	// The page of somebody who had it open meanwhile.
	a := b.post(path, form)
	if a.status != http.StatusConflict || !strings.Contains(text(a.page(t)), "by admin via API") {
		t.Errorf("a second decision: %d %s", a.status, alert(a.page(t)))
	}

	second := string(w.asked(session, "rm -r dist"))
	path, form = decision(second, url.Values{"decision": {"REJECT"}, "scope": {"ALWAYS"}})
	b.done(path, form, "rejected")
	if got := w.Query(`SELECT state FROM approvals WHERE approval_id = $1`, second); got != "REJECTED" {
		t.Errorf("rejected: %s", got)
	}

	// Another command than the one that was asked about, and what was asked is kept.
	third := string(w.asked(session, "\n rm -r /\n"))
	path, form = decision(third, url.Values{"decision": {"APPROVE"}, "command": {"rm -r\r\n./out"}})
	b.done(path, form, "approved")
	if got := w.Query(`SELECT concat(input->'arguments'->>'command', '|', asked_input->'arguments'->>'command') FROM approvals WHERE approval_id = $1`, third); got != "rm -r\n./out|\n rm -r /\n" {
		t.Errorf("changed: %q", got)
	}
	// An editor that was not touched changes nothing, whatever a browser makes of lines.
	fourth := string(w.asked(session, "\necho 1\necho 2\n"))
	page := b.see("/console/approvals/" + fourth).page(t)
	path, form = decision(fourth, url.Values{"decision": {"APPROVE"}})
	editor := find(page, "textarea", func(n *html.Node) bool { return attr(n, "name") == "command" })
	form.Set("command", crlf(editor[0].FirstChild.Data))
	form.Set("was", crlf(form.Get("was")))
	b.done(path, form, "approved")
	if got := w.Query(`SELECT (asked_input IS NULL)::text FROM approvals WHERE approval_id = $1`, fourth); got != "true" {
		t.Error("an editor that was not touched changed the command")
	}

	// What is another by now is not decided.
	fifth := string(w.asked(session, "make"))
	path, form = decision(fifth, url.Values{"decision": {"APPROVE"}})
	w.Exec(`UPDATE approvals SET digest = 'another' WHERE approval_id = $1`, fifth)
	if a := b.post(path, form); a.status != http.StatusConflict || w.Query(`SELECT state FROM approvals WHERE approval_id = $1`, fifth) != "PENDING" {
		t.Errorf("of another digest: %d", a.status)
	}
	// From the session's page, and back to it.
	sixth := string(w.asked(session, "make all"))
	quick := fields(t, b.see("/console/sessions/"+string(session)).page(t), "/console/approvals/"+sixth+"/decision")
	quick.Set("decision", "APPROVE")
	if to := b.done("/console/approvals/"+sixth+"/decision", quick, "approved"); !strings.HasPrefix(to, "/console/sessions/"+string(session)) {
		t.Errorf("from the session it goes to %s", to)
	}
	if got := w.Query(`SELECT count(*) FROM audit_log WHERE action LIKE 'decide approvals%'`); got != "5" {
		t.Errorf("%s entries in the audit log", got)
	}
}

// crlf is a text as a browser sends it, whose parser has dropped a first line end.
func crlf(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n"), "\n", "\r\n")
}

func TestSessionsAreWorkedWith(t *testing.T) {
	w := newWorld(t)
	b := w.as(access.RoleAdmin)
	form := fields(t, b.see("/console/sessions").page(t), "/console/sessions")
	form.Set("agent", "coder")
	form.Set("text", "one\r\ntwo")
	to := b.done("/console/sessions", form, "sent")
	if again := b.done("/console/sessions", form, "sent"); again != to {
		t.Errorf("a form that is sent twice makes %s and %s", to, again)
	}
	path, _, _ := strings.Cut(to, "?")
	id := strings.TrimPrefix(path, "/console/sessions/")
	if got := w.Query(`SELECT string_agg(text, '|') FROM messages WHERE session_id = $1`, id); got != "one\ntwo" {
		t.Errorf("the message is %q", got)
	}
	form = fields(t, b.see(path).page(t), path+"/send")
	form.Set("text", "three")
	b.done(path+"/send", form, "sent")
	b.done(path+"/send", form, "sent")
	if got := w.Query(`SELECT count(*) FROM messages WHERE session_id = $1`, id); got != "2" {
		t.Errorf("%s messages, want 2", got)
	}
	// What is refused comes back in its field.
	form.Set("text", " \n ")
	a := b.post(path+"/send", form)
	if a.status != http.StatusUnprocessableEntity || len(find(a.page(t), "div", func(n *html.Node) bool { return attr(n, "role") == "alert" })) != 1 {
		t.Errorf("an empty message: %d %s", a.status, alert(a.page(t)))
	}
	a = b.post("/console/sessions", url.Values{"agent": {"nobody-of-that-name"}, "text": {"keep <this>"}})
	if a.status != http.StatusUnprocessableEntity || !strings.Contains(words(a.page(t)), "keep <this>") {
		t.Errorf("an agent that there is not: %d %s", a.status, alert(a.page(t)))
	}
	b.done(path+"/pause", nil, "paused")
	form = fields(t, b.see(path).page(t), path+"/reply")
	form.Set("text", "a person here")
	b.done(path+"/reply", form, "replied")
	if got := w.Query(`SELECT author FROM messages WHERE session_id = $1 AND direction = 'OUTBOUND'`, id); got != "admin" {
		t.Errorf("the answer is of %q", got)
	}
	b.done(path+"/resume", nil, "resumed")
	b.done(path+"/cancel", nil, "cancelled")
	if got := w.Query(`SELECT state FROM sessions WHERE session_id = $1`, id); got != "CANCELLED" {
		t.Errorf("the session is %s", got)
	}
	if page := b.see(path).page(t); len(find(page, "form", func(n *html.Node) bool { return strings.HasPrefix(attr(n, "action"), path) })) != 0 {
		t.Error("a session that has ended can be worked with")
	}
}

// An agent is changed by the difference that was shown, of the version that was shown,
// and as its author wrote it.
func TestAgentsAreEdited(t *testing.T) {
	w := newWorld(t)
	b := w.as(access.RoleAdmin)
	page := b.see("/console/agents/coder/edit").page(t)
	form := fields(t, page, "/console/agents/coder/edit")
	was := strings.TrimPrefix(find(page, "textarea", nil)[0].FirstChild.Data, "\n")
	if !strings.Contains(was, "# why this agent is there") || !strings.Contains(text(page), "spec.harness.sandbox.cpu") {
		t.Fatalf("the editor has %q, or no help", was)
	}
	form.Set("yaml", crlf(strings.Replace(was, "cpu: 500m", "cpu: 99", 1)))
	form.Set("action", "check")
	a := b.post("/console/agents/coder/edit", form)
	if p := text(a.page(t)); a.status != http.StatusUnprocessableEntity || !strings.Contains(p, "#/spec/harness/sandbox/cpu") || !strings.Contains(words(a.page(t)), "cpu: 99") {
		t.Fatalf("too much: %d %s", a.status, p)
	}
	form.Set("yaml", crlf(strings.Replace(was, "cpu: 500m", "cpu: 750m", 1)))
	a = b.post("/console/agents/coder/edit", form)
	page = a.page(t)
	var marked []string
	for _, l := range find(page, "li", func(n *html.Node) bool { return attr(n, "class") == "plus" || attr(n, "class") == "minus" }) {
		marked = append(marked, text(l))
	}
	if want := []string{"- sandbox: {cpu: 500m}", "+ sandbox: {cpu: 750m}"}; a.status != http.StatusOK || !slices.Equal(marked, want) {
		t.Fatalf("the difference: %d %q, want %q", a.status, marked, want)
	}
	if got := w.read("coder.yaml"); !strings.Contains(got, "cpu: 500m") {
		t.Errorf("to check has changed the agent: %s", got)
	}
	save := fields(t, page, "/console/agents/coder/edit")
	save.Set("yaml", crlf(strings.TrimPrefix(find(page, "textarea", nil)[0].FirstChild.Data, "\n")))
	save.Set("action", "save")
	b.done("/console/agents/coder/edit", save, "saved")
	if got := w.read("coder.yaml"); got != strings.Replace(was, "cpu: 500m", "cpu: 750m", 1) {
		t.Errorf("saved as %q", got)
	}
	// Who had the old version open is told, and shown what is different.
	save.Set("yaml", strings.Replace(was, "runs things", "ran things", 1))
	a = b.post("/console/agents/coder/edit", save)
	if p := text(a.page(t)); a.status != http.StatusPreconditionFailed || !strings.Contains(p, "- sandbox: {cpu: 750m}") || !strings.Contains(p, "changed by somebody else") {
		t.Errorf("an old version: %d %s", a.status, p)
	}
	// Switches.
	path := "/console/agents/coder"
	form = nil
	for _, f := range find(b.see(path).page(t), "form", func(f *html.Node) bool { return attr(f, "action") == path+"/features" }) {
		one := url.Values{}
		for _, i := range find(f, "input", nil) {
			one.Set(attr(i, "name"), attr(i, "value"))
		}
		if one.Get("feature") == "harness" {
			form = one
			if s := find(f, "button", nil)[0]; attr(s, "role") != "switch" || attr(s, "aria-checked") != "true" {
				t.Errorf("the switch is %v", s.Attr)
			}
		}
	}
	b.done(path+"/features", form, "switched")
	if got := w.read("coder.yaml"); !strings.Contains(got, "enabled: false\n    type: CODE") || !strings.Contains(got, "# off for a while") {
		t.Errorf("switched: %s", got)
	}
	if a := b.post(path+"/features", form); a.status != http.StatusPreconditionFailed {
		t.Errorf("switched from an old page: %d", a.status)
	}
	// A new one, and away with it.
	form = fields(t, b.see("/console/agents/new").page(t), "/console/agents/new")
	form.Set("yaml", "apiVersion: tuluat.ai/v1alpha1\nkind: AiAgent\nmetadata: {name: fresh}\nspec: {description: new, model: {provider: anthropic, name: large}}\n")
	form.Set("action", "save")
	if to := b.done("/console/agents/new", form, "created"); !strings.HasPrefix(to, "/console/agents/fresh?") {
		t.Errorf("made at %s", to)
	}
	for name, model := range map[string]string{"fresh": "Modelanthropic large", "coder": "Modelthe platform's"} {
		if shown := text(b.see("/console/agents/" + name).page(t)); !strings.Contains(shown, model) {
			t.Errorf("%s does not say %q: %s", name, model, shown)
		}
	}
	b.done("/console/agents/fresh/delete", fields(t, b.see("/console/agents/fresh").page(t), "/console/agents/fresh/delete"), "deleted")
	if a := b.get("/console/agents/fresh"); a.status != http.StatusNotFound {
		t.Errorf("deleted: %d", a.status)
	}
	b.done(path+"/halt", url.Values{"halt": {"true"}, "reason": {"too loud"}}, "halted")
	if !strings.Contains(text(b.see(path).page(t)), "Halted by admin") {
		t.Error("the page does not say that the agent is halted")
	}
	b.done(path+"/halt", url.Values{"halt": {"false"}}, "going")
}

func (w *world) read(name string) string {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.folder, name))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(text)
}

func TestOtherActions(t *testing.T) {
	w := newWorld(t)
	f := w.fill("hello")
	b := w.as(access.RoleAdmin)
	letter := "/console/deadletters/" + f.letter
	b.done(letter+"/replay", nil, "replayed")
	if got := w.Query(`SELECT state || decided_by FROM dead_letters WHERE dead_letter_id = $1`, f.letter); got != "REPLAYEDadmin" {
		t.Errorf("replayed: %s", got)
	}
	other := w.deadLetter(f.session, "again")
	b.done("/console/deadletters/"+other+"/discard", nil, "discarded")
	box := "/console/sandboxes/" + f.sandbox
	form := fields(t, b.see(box).page(t), box+"/commands")
	form.Set("command", "uname -a")
	b.done(box+"/commands", form, "requested")
	b.done(box+"/commands", form, "requested")
	if got := w.Query(`SELECT count(*) FROM executions WHERE command = 'uname -a' AND cause = 'API'`); got != "1" {
		t.Errorf("%s commands, want 1", got)
	}
	b.done(box+"/terminate", nil, "terminated")
	if got := w.Query(`SELECT state FROM sandboxes WHERE sandbox_id = $1`, f.sandbox); got != "TERMINATING" {
		t.Errorf("the sandbox is %s", got)
	}
	b.done("/console/halt", url.Values{"halt": {"true"}, "reason": {"a storm"}}, "halted")
	if home := text(b.see("/console/").page(t)); !strings.Contains(home, "Everything is halted") || !strings.Contains(home, "a storm") {
		t.Error("the home page does not say that everything is halted")
	}
	b.done("/console/halt", url.Values{"halt": {"false"}}, "going")
	a := b.post("/console/workflows/release/runs", url.Values{"input": {"{}"}})
	if a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, "</html>") {
		t.Errorf("a run without what it needs: %d %s", a.status, alert(a.page(t)))
	}
	a = b.get("/console/logs/download?agent=coder")
	var entry struct{ Message string }
	line, _, _ := strings.Cut(a.body, "\n")
	if a.status != http.StatusOK || !strings.HasPrefix(a.header.Get("Content-Disposition"), "attachment") || a.header.Get("Content-Type") != "application/x-ndjson" || json.Unmarshal([]byte(line), &entry) != nil || entry.Message == "" {
		t.Errorf("the download: %d %v %s", a.status, a.header, a.body)
	}
	if a := b.get("/console/logs/download?level=NONE"); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, "</html>") {
		t.Errorf("a download of nothing: %d", a.status)
	}
}

// Themes are the browser's to keep.
func TestTheme(t *testing.T) {
	b := newWorld(t).as(access.RoleViewer)
	if a := b.post("/console/theme", url.Values{"theme": {"dark"}, "next": {"/console/sessions"}}); a.status != http.StatusSeeOther || a.header.Get("Location") != "/console/sessions" {
		t.Errorf("%d %v", a.status, a.header)
	}
	if page := b.see("/console/sessions").page(t); len(find(page, "html", func(n *html.Node) bool { return attr(n, "data-theme") == "dark" })) != 1 {
		t.Error("the page is not dark")
	}
	b.post("/console/theme", url.Values{"theme": {"\"><script>"}})
	if page := b.see("/console/").page(t); len(find(page, "html", func(n *html.Node) bool { return attr(n, "data-theme") == "dark" })) != 1 {
		t.Error("a theme that there is not was taken")
	}
}
