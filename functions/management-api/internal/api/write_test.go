package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/functions/management-api/internal/api"
	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/resource"
	"tuluat.ai/harness/shared/resource/resourcetest"
)

// watched is resources of which a test sees each write, and decides what comes of
// it: do does it.
type watched struct {
	resource.Store
	write func(do func() error) error
}

func (w *watched) seen(dryRun bool, do func() error) error {
	if dryRun || w.write == nil {
		return do()
	}
	return w.write(do)
}

func (w *watched) Create(ctx context.Context, r resource.Resource, dryRun bool) (made resource.Resource, err error) {
	err = w.seen(dryRun, func() error { made, err = w.Store.Create(ctx, r, dryRun); return err })
	return made, err
}

func (w *watched) Update(ctx context.Context, r resource.Resource, dryRun bool) (made resource.Resource, err error) {
	err = w.seen(dryRun, func() error { made, err = w.Store.Update(ctx, r, dryRun); return err })
	return made, err
}

func (w *watched) Patch(ctx context.Context, kind, name, version string, patch []byte, dryRun bool) (made resource.Resource, err error) {
	err = w.seen(dryRun, func() error { made, err = w.Store.Patch(ctx, kind, name, version, patch, dryRun); return err })
	return made, err
}

func (w *watched) Delete(ctx context.Context, kind, name, version string) error {
	return w.seen(false, func() error { return w.Store.Delete(ctx, kind, name, version) })
}

func newWatched(t *testing.T) (*world, *watched) {
	t.Helper()
	w := newWorld(t)
	w.stop()
	watch := &watched{}
	w.start("127.0.0.1:0", func(o *api.Options) { watch.Store, o.Resources = o.Resources, watch })
	return w, watch
}

const newAgent = `{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiAgent","metadata":{"name":"fresh"},"spec":{"description":"%s"}}`

// resourceWrites are the ways to write a resource.
func resourceWrites() map[string]request {
	any := map[string]string{"If-Match": "*"}
	const workflow = `{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiWorkflow","metadata":{"name":"release"},"spec":{"nodes":[{"id":"ask","type":"AGENT","agent":"coder","prompt":"p"},{"id":"last","type":"END"}],"edges":[{"from":"ask","to":"last"}]}}`
	return map[string]request{
		"create aiagents.tuluat.ai fresh":            {method: http.MethodPost, path: "/api/v1/agents", body: fmt.Sprintf(newAgent, "new")},
		"update aiagents.tuluat.ai coder":            {method: http.MethodPut, path: "/api/v1/agents/coder", body: strings.Replace(fmt.Sprintf(newAgent, "new"), "fresh", "coder", 1), header: any},
		"patch aiagents/features.tuluat.ai switched": {method: http.MethodPatch, path: "/api/v1/agents/switched/features", body: `{"harness":false}`, header: any},
		"delete aiagents.tuluat.ai spare":            {method: http.MethodDelete, path: "/api/v1/agents/spare", header: any},
		"update aiworkflows.tuluat.ai release":       {method: http.MethodPut, path: "/api/v1/workflows/release", body: workflow, header: any},
		"delete aiworkflows.tuluat.ai spare":         {method: http.MethodDelete, path: "/api/v1/workflows/spare", header: any},
	}
}

// audited are the entries of the audit, newest first.
func (w *world) audited() []view.AuditEntry {
	w.T.Helper()
	return decode[page[view.AuditEntry]](w.T, w.get("/audit"), http.StatusOK).Items
}

// A resource is written when its row is there, and the row then says what came of
// it; what changes nothing has none.
func TestTheRowIsThereBeforeItsResource(t *testing.T) {
	for what, r := range resourceWrites() {
		t.Run(what, func(t *testing.T) {
			w, watch := newWatched(t)
			files := w.files()
			var during []view.AuditEntry
			watch.write = func(do func() error) error {
				if diff := cmp.Diff(files, w.files()); diff != "" {
					t.Errorf("written before:\n%s", diff)
				}
				during = w.audited()
				return do()
			}
			dry := r
			dry.path += "?dryRun=true"
			if a := w.do(dry); a.status >= 300 || len(during) > 0 || len(w.audited()) > 0 {
				t.Fatalf("a dry run: %s, %+v", a, w.audited())
			}
			if a := w.do(r); a.status >= 300 || len(during) != 1 {
				t.Fatalf("%s, and while it was written the audit had %+v", a, during)
			}
			before, after := during[0], w.audited()[0]
			if before.State != view.AuditUnknown || after.State != view.AuditDone || before.ID != after.ID || after.Action+" "+after.Object != what || after.Actor != access.RoleAdmin || after.RequestID == "" {
				t.Errorf("%+v\nbecame %+v", before, after)
			}
			if create := r.method == http.MethodPost; create != (before.Before == nil) || string(before.Before) != string(after.Before) {
				t.Errorf("before: %s, then %s", before.Before, after.Before)
			}
			if deletes := r.method == http.MethodDelete; deletes != (after.After == nil) || deletes != (before.After == nil) {
				t.Errorf("after: intended %s, became %s", before.After, after.After)
			}
			if r.method == http.MethodPut || r.method == http.MethodPatch {
				if a := w.do(r); a.status >= 300 || len(w.audited()) != 1 {
					t.Errorf("again: %s, %+v", a, w.audited())
				}
			}
		})
	}
}

// What is refused by what there is by then is REFUSED, what nobody knows of stays
// UNKNOWN, also when the process ends, and what is refused at once has no row.
func TestWhatCameOfAWrite(t *testing.T) {
	for what, r := range resourceWrites() {
		w, watch := newWatched(t)
		files := w.files()
		for _, c := range []struct {
			name   string
			write  func(func() error) error
			status int
			state  view.AuditState
			reason string
		}{
			{"refused", func(func() error) error { return harness.Errorf(harness.Denied, "by a policy") }, http.StatusForbidden, view.AuditRefused, "by a policy"},
			{"away", func(func() error) error { return harness.Errorf(harness.Unavailable, "no answer") }, http.StatusServiceUnavailable, view.AuditUnknown, "no answer"},
			{"cut off", func(do func() error) error { _ = do(); panic(http.ErrAbortHandler) }, 0, view.AuditUnknown, ""},
		} {
			watch.write = c.write
			if c.status > 0 {
				problem(t, w.do(r), c.status)
			} else {
				w.hangsUp(r)
			}
			got := w.audited()[0]
			if got.State != c.state || got.Reason != c.reason || got.Action+" "+got.Object != what || (got.After == nil) != (r.method == http.MethodDelete) {
				t.Errorf("%s, %s: %+v", what, c.name, got)
			}
			if changed := !cmp.Equal(files, w.files()); changed != (c.status == 0) {
				t.Errorf("%s, %s: the files changed: %v", what, c.name, changed)
			}
		}
	}
	w, _ := newWatched(t)
	problem(t, w.post("/agents", `{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiAgent","metadata":{"name":"a"},"spec":{"harness":{"type":"ALL"}}}`), http.StatusUnprocessableEntity)
	problem(t, w.post("/agents", strings.Replace(fmt.Sprintf(newAgent, "x"), "fresh", "coder", 1)), http.StatusConflict)
	problem(t, w.do(request{method: http.MethodDelete, path: "/api/v1/agents/coder", header: map[string]string{"If-Match": `"1"`}}), http.StatusPreconditionFailed)
	problem(t, w.do(request{method: http.MethodDelete, path: "/api/v1/agents/none", header: map[string]string{"If-Match": "*"}}), http.StatusNotFound)
	if rows := w.audited(); len(rows) != 0 {
		t.Errorf("what was refused at once has rows: %+v", rows)
	}
}

// hangsUp asks for what ends without an answer.
func (w *world) hangsUp(r request) {
	w.T.Helper()
	q, err := http.NewRequestWithContext(w.T.Context(), r.method, "http://"+w.address+r.path, strings.NewReader(r.body))
	if err != nil {
		w.T.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer "+token(access.RoleAdmin))
	for name, value := range r.header {
		q.Header.Set(name, value)
	}
	if response, err := w.client.Do(q); err == nil {
		response.Body.Close()
		w.T.Errorf("answered %d", response.StatusCode)
	}
}

// A write of any version is made for the one that is there: what others write
// between is before it, never under it.
func TestAWriteOfAnyVersionIsRecordedAsItWas(t *testing.T) {
	w, watch := newWatched(t)
	times := 2
	watch.write = func(do func() error) error {
		if times--; times >= 0 {
			w.file("coder.yaml", strings.Replace(fmt.Sprintf(agentYAML, "coder"), "runs things", fmt.Sprint("others ", times), 1))
		}
		return do()
	}
	features := request{method: http.MethodPatch, path: "/api/v1/agents/coder/features", body: `{"harness":false}`, header: map[string]string{"If-Match": "*"}}
	if a := w.do(features); a.status != http.StatusOK || !strings.Contains(a.body, "others 0") {
		t.Fatal(a)
	}
	rows := w.audited()
	if len(rows) != 1 || rows[0].State != view.AuditDone || !strings.Contains(string(rows[0].Before), "others 0") || !strings.Contains(string(rows[0].After), `"enabled":false`) {
		t.Errorf("%+v", rows)
	}
	w.file("coder.yaml", fmt.Sprintf(agentYAML, "coder"))
	times = 100
	problem(t, w.do(features), http.StatusConflict)
	if rows = w.audited(); len(rows) != 2 || rows[0].State != view.AuditRefused {
		t.Errorf("%+v", rows)
	}
	times = 1
	features.header = map[string]string{"If-Match": w.get("/agents/coder").header.Get("ETag")}
	problem(t, w.do(features), http.StatusPreconditionFailed)
	if rows = w.audited(); len(rows) != 3 || rows[0].State != view.AuditRefused || rows[0].Reason == "" {
		t.Errorf("%+v", rows)
	}
}

// A cluster's resources have their rows as those of a folder have.
func TestRowsOfAClustersResources(t *testing.T) {
	w := newWorld(t)
	w.stop()
	server := resourcetest.New(t)
	cluster, err := resource.NewCluster(&rest.Config{Host: server.URL}, resource.Options{Namespace: "agents", Limits: v1alpha1.DefaultLimits(), UserAgent: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	for _, name := range []string{"coder", "spare", "switched"} {
		server.Put("aiagents", name, `{"description": "old", "harness": {"enabled": true, "type": "CODE"}}`)
	}
	for _, name := range []string{"release", "spare"} {
		server.Put("aiworkflows", name, `{"nodes": [{"id": "end", "type": "END"}]}`)
	}
	w.start("127.0.0.1:0", func(o *api.Options) { o.Resources = cluster })
	writes := resourceWrites()
	for what, r := range writes {
		before := len(w.audited())
		if a := w.do(r); a.status >= 300 {
			t.Fatalf("%s: %s", what, a)
		}
		rows := w.audited()
		if len(rows) != before+1 || rows[0].Action+" "+rows[0].Object != what || rows[0].State != view.AuditDone {
			t.Errorf("%s: %d rows, the last %+v", what, len(rows)-before, rows[0])
		}
		if (rows[0].Before == nil) != (r.method == http.MethodPost) || (rows[0].After == nil) != (r.method == http.MethodDelete) || cmp.Equal(rows[0].Before, rows[0].After) {
			t.Errorf("%s: from %s to %s", what, rows[0].Before, rows[0].After)
		}
		if r.method != http.MethodPut && r.method != http.MethodPatch {
			continue
		}
		if a := w.do(r); a.status >= 300 || len(w.audited()) != before+1 {
			t.Errorf("%s again: %s", what, a)
		}
	}
	first := w.do(request{method: http.MethodPost, path: "/api/v1/agents", body: strings.Replace(fmt.Sprintf(newAgent, "x"), "fresh", "keyed", 1), header: map[string]string{"Idempotency-Key": "k"}})
	again := w.do(request{method: http.MethodPost, path: "/api/v1/agents", body: strings.Replace(fmt.Sprintf(newAgent, "x"), "fresh", "keyed", 1), header: map[string]string{"Idempotency-Key": "k"}})
	if first.status != http.StatusCreated || again.status != http.StatusCreated || again.header.Get("ETag") != first.header.Get("ETag") || again.header.Get("ETag") == `""` {
		t.Errorf("%v %s\nthen %v %s", first.header, first, again.header, again)
	}
}

// Without its row nothing is written.
func TestNoResourceIsWrittenWithoutItsRow(t *testing.T) {
	w := newWorld(t)
	files := w.files()
	w.Exec(`ALTER TABLE audit_log ADD CONSTRAINT nobody CHECK (actor <> 'admin')`)
	for what, r := range resourceWrites() {
		problem(t, w.do(r), http.StatusInternalServerError)
		if diff := cmp.Diff(files, w.files()); diff != "" {
			t.Errorf("%s:\n%s", what, diff)
		}
	}
}

// A create that is repeated under its key has no effect and gets the answer of the
// first, whatever became of that.
func TestCreatesAreDoneOncePerKey(t *testing.T) {
	w, watch := newWatched(t)
	create := func(path, body, key, role string) answer {
		return w.do(request{method: http.MethodPost, path: "/api/v1" + path, body: body, role: role, header: map[string]string{"Idempotency-Key": key}})
	}
	rows := func(state view.AuditState) int {
		n := 0
		for _, e := range w.audited() {
			if e.State == state && strings.HasPrefix(e.Action, "create ") {
				n++
			}
		}
		return n
	}
	named := func(name string) string { return strings.Replace(fmt.Sprintf(newAgent, "new"), "fresh", name, 1) }
	same := func(what string, first, again answer) {
		t.Helper()
		if first.status != http.StatusCreated || again.status != http.StatusCreated || again.header.Get("Location") != first.header.Get("Location") || again.header.Get("ETag") != first.header.Get("ETag") {
			t.Errorf("%s: %v %s\nthen %v %s", what, first.header, first, again.header, again)
		}
		one, two := decode[map[string]any](t, first, http.StatusCreated), decode[map[string]any](t, again, http.StatusCreated)
		if diff := cmp.Diff(one, two); diff != "" {
			t.Errorf("%s:\n%s", what, diff)
		}
	}
	const flow = `{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiWorkflow","metadata":{"name":"fresh"},"spec":{"nodes":[{"id":"ask","type":"AGENT","agent":"coder","prompt":"p"},{"id":"end","type":"END"}],"edges":[{"from":"ask","to":"end"}]}}`
	first, flows := create("/agents", named("fresh"), "k", ""), create("/workflows", flow, "w", "")
	same("an agent", first, create("/agents", named("fresh"), "k", ""))
	same("a workflow", flows, create("/workflows", flow, "w", ""))
	if n := rows(view.AuditDone); n != 2 {
		t.Errorf("%d rows of two creates", n)
	}
	for what, a := range map[string]answer{
		"another body": create("/agents", named("other"), "k", ""), "another kind": create("/workflows", flow, "k", ""), "the agent under a workflow's": create("/agents", named("fresh"), "w", ""),
	} {
		if p := problem(t, a, http.StatusConflict); !cmp.Equal(pointers(p), []string{"header/Idempotency-Key"}) {
			t.Errorf("%s: %+v", what, p)
		}
	}
	if p := problem(t, create("/agents", named("fresh"), "k", access.RoleOperator), http.StatusForbidden); len(p.Errors) > 0 {
		t.Errorf("%+v", p)
	}
	if p := problem(t, create("/agents", named("fresh"), "another", ""), http.StatusConflict); len(p.Errors) > 0 {
		t.Errorf("another key: %+v", p)
	}
	// The first answer holds when the resource is another by now, or gone.
	any := map[string]string{"If-Match": "*"}
	decode[object](t, w.do(request{method: http.MethodPut, path: "/api/v1/agents/fresh", body: fmt.Sprintf(newAgent, "changed"), header: any}), http.StatusOK)
	same("of what was changed", first, create("/agents", named("fresh"), "k", ""))
	w.do(request{method: http.MethodDelete, path: "/api/v1/agents/fresh", header: any})
	same("of what is gone", first, create("/agents", named("fresh"), "k", ""))
	if w.get("/agents/fresh").status != http.StatusNotFound {
		t.Error("it was created again")
	}
	// What was refused has used no key.
	problem(t, create("/agents", strings.Replace(named("second"), `"description":"new"`, `"colour":1`, 1), "s", ""), http.StatusUnprocessableEntity)
	decode[object](t, create("/agents", named("second"), "s", ""), http.StatusCreated)
	watch.write = func(func() error) error { return harness.Errorf(harness.Denied, "by a policy") }
	problem(t, create("/agents", named("denied"), "d", ""), http.StatusForbidden)
	watch.write = nil
	decode[object](t, create("/agents", strings.Replace(named("denied"), "new", "allowed", 1), "d", ""), http.StatusCreated)
	// Of what was cut off nobody knows, until it is asked for again.
	for name, does := range map[string]bool{"undone": false, "done": true} {
		watch.write = func(do func() error) error {
			if does {
				if err := do(); err != nil {
					t.Error(err)
				}
			}
			return harness.Errorf(harness.Unavailable, "no answer")
		}
		problem(t, create("/agents", named(name), name, ""), http.StatusServiceUnavailable)
		watch.write = nil
		if n := rows(view.AuditUnknown); n != 1 {
			t.Errorf("%s: %d rows that nobody knows of", name, n)
		}
		again := create("/agents", named(name), name, "")
		if decode[object](t, again, http.StatusCreated); again.header.Get("ETag") != w.get("/agents/"+name).header.Get("ETag") || rows(view.AuditUnknown) != 0 {
			t.Errorf("%s: %s", name, again)
		}
		same(name, again, create("/agents", named(name), name, ""))
	}
	// Somebody else's of that name is not what the key made.
	watch.write = func(func() error) error {
		w.file("taken.yaml", fmt.Sprintf(agentYAML, "taken"))
		return harness.Errorf(harness.Unavailable, "no answer")
	}
	problem(t, create("/agents", named("taken"), "t", ""), http.StatusServiceUnavailable)
	watch.write = nil
	problem(t, create("/agents", named("taken"), "t", ""), http.StatusConflict)
	if n := rows(view.AuditUnknown); n != 1 {
		t.Errorf("%d rows that nobody knows of", n)
	}
}

// Of many at once with one key all get the one that was made.
func TestCreatesAtOnce(t *testing.T) {
	w := newWorld(t)
	answers := make(chan answer, 8)
	var all sync.WaitGroup
	for range cap(answers) {
		all.Go(func() {
			answers <- w.do(request{method: http.MethodPost, path: "/api/v1/agents", body: fmt.Sprintf(newAgent, "once"), header: map[string]string{"Idempotency-Key": "k"}})
		})
	}
	all.Wait()
	close(answers)
	tag := w.get("/agents/fresh").header.Get("ETag")
	for a := range answers {
		if a.status != http.StatusCreated || a.header.Get("ETag") != tag {
			t.Errorf("ETag %s, want %s: %s", a.header.Get("ETag"), tag, a)
		}
	}
	if rows := w.audited(); len(rows) != 1 || rows[0].State != view.AuditDone {
		t.Errorf("%+v", rows)
	}
}

// If-Match is a list of ETags and compares strongly (RFC 9110, 13.1.1).
func TestIfMatch(t *testing.T) {
	w := newWorld(t)
	tag := w.get("/agents/coder").header.Get("ETag")
	for header, want := range map[string]int{
		tag: 200, `"x", ` + tag: 200, tag + `,"x"`: 200, `W/"x" , ` + tag + `,`: 200, `, ` + tag: 200, "*": 200, ` * `: 200,
		"W/" + tag: 412, `W/"x", W/` + tag: 412, `"x"`: 412, `"x","y"`: 412, `""`: 412, `"a,b"`: 412,
		strings.Trim(tag, `"`): 422, `*, ` + tag: 422, tag + `, *`: 422, tag + `x`: 422, tag + tag: 422, `"x`: 422, `w/` + tag: 422, `W/*`: 422, `W/`: 422, `'x'`: 422, `,`: 428,
	} {
		a := w.do(request{method: http.MethodPatch, path: "/api/v1/agents/coder/features?dryRun=true", body: `{"harness":false}`, header: map[string]string{"If-Match": header}})
		if want == http.StatusOK {
			decode[object](t, a, want)
			continue
		}
		p := problem(t, a, want)
		if weak := strings.Contains(header, "W/\""); want == http.StatusPreconditionFailed && weak != strings.Contains(p.Detail, "weak") || weak != cmp.Equal(pointers(p), []string{"header/If-Match"}) && want == http.StatusPreconditionFailed {
			t.Errorf("%s: %+v", header, p)
		}
	}
}

func TestBodiesAreNotEncoded(t *testing.T) {
	w := newWorld(t)
	body := `{"agent":"coder","text":"x"}`
	for coding, want := range map[string]int{"identity": 202, "Identity": 202, "identity, identity": 202, "gzip": 415, "deflate": 415, "identity, gzip": 415} {
		a := w.do(request{method: http.MethodPost, path: "/api/v1/sessions", body: body, header: map[string]string{"Content-Encoding": coding}})
		if want == http.StatusAccepted {
			decode[accepted](t, a, want)
		} else if p := problem(t, a, want); !cmp.Equal(pointers(p), []string{"header/Content-Encoding"}) || a.header.Get("Accept-Encoding") != "identity" {
			t.Errorf("%s: %v %s", coding, a.header, a)
		}
	}
	session := decode[page[view.Session]](t, w.get("/sessions"), http.StatusOK).Items[0].ID
	decode[view.Session](t, w.do(request{method: http.MethodPost, path: "/api/v1/sessions/" + string(session) + "/cancel", header: map[string]string{"Content-Encoding": "gzip"}}), http.StatusOK) // of nothing
}

// A timeline is the same whatever the size of its pages.
func TestPagesOfATimeline(t *testing.T) {
	w := newWorld(t)
	session := w.rows().session
	read := func(limit int, newest bool) (all []view.Entry) {
		for next := ""; ; {
			p := decode[page[view.Entry]](t, w.get(fmt.Sprintf("/sessions/%s/timeline?newest=%t&limit=%d&after=%s", session, newest, limit, next)), http.StatusOK)
			all = append(all, p.Items...)
			if next = p.Next; next == "" {
				return all
			}
		}
	}
	whole := read(200, false)
	if diff := cmp.Diff(whole, read(1, false)); diff != "" || len(whole) != 5 {
		t.Errorf("%d entries:\n%s", len(whole), diff)
	}
	slices.Reverse(whole)
	for _, limit := range []int{1, 200} {
		if diff := cmp.Diff(whole, read(limit, true)); diff != "" {
			t.Errorf("newest first, %d at a time:\n%s", limit, diff)
		}
	}
	next := decode[page[view.Entry]](t, w.get("/sessions/"+string(session)+"/timeline?newest=true&limit=1"), http.StatusOK).Next
	problem(t, w.get("/sessions/"+string(session)+"/timeline?limit=1&after="+next), http.StatusBadRequest) // of the other way
}

// Who follows the log by the marks of its answers gets what is committed late.
func TestMarksOfTheLog(t *testing.T) {
	w := newWorld(t)
	type logs struct {
		Items      []view.LogEntry
		Next, Mark string
	}
	look := func(query string) logs { return decode[logs](t, w.get("/logs?limit=200"+query), http.StatusOK) }
	if l := look(""); l.Mark != "" {
		t.Errorf("a mark that nobody asked for: %s", l.Mark)
	}
	mark := look("&follow=true").Mark
	tx, err := w.Store.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // it is committed
	entry := func(message string) string {
		return fmt.Sprintf(`SELECT log_entry('coder', '', '', 'INFO', '%s', '')`, message)
	}
	if _, err := tx.Exec(t.Context(), entry("late")); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		w.Exec(entry(fmt.Sprint("new", i)))
		l := look("&mark=" + mark)
		if mark = l.Mark; len(l.Items) == 0 || l.Items[0].Message != fmt.Sprint("new", i) {
			t.Errorf("%+v", l)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, e := range look("&mark=" + mark).Items {
		if e.Message == "late" {
			found++
		}
	}
	if found != 1 {
		t.Errorf("the late entry is there %d times", found)
	}
	paged := decode[logs](t, w.get("/logs?limit=1&mark="+mark), http.StatusOK)
	if second := decode[logs](t, w.get("/logs?limit=1&mark="+mark+"&after="+paged.Next), http.StatusOK); paged.Mark == "" || second.Mark != "" || len(second.Items) != 1 {
		t.Errorf("%+v, then %+v", paged, second)
	}
}

// An agent's block is switched off whatever else is wrong with its text.
func TestSwitchingOffWhatIsInvalid(t *testing.T) {
	w := newWorld(t)
	text := fmt.Sprintf(agentYAML, "coder") + "  colour: red # wrong\n"
	w.file("coder.yaml", text)
	features := func(body string) answer {
		return w.do(request{method: http.MethodPatch, path: "/api/v1/agents/coder/features", body: body, header: map[string]string{"If-Match": "*"}})
	}
	if a := features(`{"harness":false}`); a.status != http.StatusOK || !strings.Contains(a.body, `"enabled":false`) || w.files()["coder.yaml"] != strings.Replace(text, "enabled: true", "enabled: false", 1) {
		t.Errorf("%s\n%s", a, w.files()["coder.yaml"])
	}
	if p := problem(t, features(`{"harness":true}`), http.StatusUnprocessableEntity); !cmp.Equal(pointers(p), []string{"#/spec/colour"}) {
		t.Errorf("%+v", p)
	}
	if rows := w.audited(); len(rows) != 1 || !json.Valid(rows[0].After) {
		t.Errorf("%+v", rows)
	}
}
