package reap_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tuluat.ai/harness/functions/reaper-cron/internal/reap"
	"tuluat.ai/harness/shared/archive"
	"tuluat.ai/harness/shared/archive/archivetest"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/kubernetes"
	"tuluat.ai/harness/shared/sandbox/kubernetes/kubetest"
)

// ledger is a world with a bucket and an API server. Its sweep looks two days
// later, when nothing that was just made is young any more.
type ledger struct {
	*archived
	server *kubetest.Server
	driver *kubernetes.Driver
}

func newLedger(t *testing.T) *ledger {
	w := &ledger{archived: newArchived(t)}
	w.options.Now = func() time.Time { return time.Now().Add(48 * time.Hour) }
	w.outside()
	return w
}

// outside makes a new API server and a new bucket, in which nothing is.
func (w *ledger) outside() {
	w.t.Helper()
	w.server = kubetest.New(w.t, "sandboxes")
	w.files, w.bucket = archivetest.New(w.t)
	images := w.t.TempDir()
	if err := os.WriteFile(filepath.Join(images, "default"), []byte("registry.example/python:3\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	var err error
	w.driver, err = kubernetes.New(kubernetes.Options{Config: w.server.Config(), Namespace: "sandboxes", RunnerImage: "registry.example/runner:1", ImagesDir: images})
	if err != nil {
		w.t.Fatal(err)
	}
	w.options.Driver, w.options.Objects = w.driver, w.files
}

// start starts a sandbox as sandbox-exec does, without any row.
func (w *ledger) start(name string, session harness.SessionID, change func(*harness.SandboxSpec)) sandbox.Sandbox {
	w.t.Helper()
	sb := sandbox.Sandbox{ID: harness.SandboxID("sbx_" + name), Name: name, Agent: "coder", Session: session, Spec: harness.DefaultSandbox(), ExpiresAt: time.Now().Add(time.Hour)}
	change(&sb.Spec)
	uid, err := w.driver.Start(w.t.Context(), sb)
	if err != nil {
		w.t.Fatal(err)
	}
	sb.UID = uid
	return sb
}

func persistent(s *harness.SandboxSpec) { s.Workdir = "persistent" }

func listed(s *harness.SandboxSpec) {
	s.Egress, s.EgressAllow = harness.EgressAllowlist, []harness.EgressRule{{CIDR: "203.0.113.0/24"}}
}

// volume makes a session, a row of its volume if state is not empty, and the volume
// if exists.
func (w *ledger) volume(session, columns string, state harness.ObjectState, exists bool) {
	w.t.Helper()
	w.session(session, columns)
	name := w.driver.VolumeOf(sandbox.Sandbox{Session: harness.SessionID(session), Spec: harness.SandboxSpec{Workdir: "persistent"}})
	if state != "" {
		if err := w.store.PlanVolume(w.t.Context(), name, "coder", harness.SessionID(session)); err != nil {
			w.t.Fatal(err)
		}
		w.sql(fmt.Sprintf(`UPDATE outside_objects SET state = '%s', updated_at = now() - interval '2 days' WHERE object_name = '%s'`, state, name))
	}
	if exists {
		if err := w.driver.Terminate(w.t.Context(), w.start("v-"+strings.TrimPrefix(session, "ses_"), harness.SessionID(session), persistent)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// file makes what a key of the bucket has: a row of its plan, the object, and an
// attachment in a state.
func (w *ledger) file(key string, planned, put bool, attachment string) {
	w.t.Helper()
	if planned {
		w.sql(fmt.Sprintf(`INSERT INTO outside_objects (kind, object_name, state, agent_name, session_id, updated_at) VALUES ('FILE', '%s', 'PENDING', 'coder', 'ses_kept', now() - interval '2 days')`, key))
	}
	if put {
		w.bucket.Set(key, []byte("x"))
	}
	if id, state, ok := strings.Cut(attachment, " "); ok {
		stored := key
		if state != "STORED" {
			stored = ""
		}
		w.sql(fmt.Sprintf(`INSERT INTO attachments (attachment_id, session_id, direction, kind, path, state, object_key) VALUES ('%s', 'ses_kept', 'OUTBOUND', 'DOCUMENT', 'out/x', '%s', '%s')`, id, state, stored))
	}
}

// seed leaves what a crash between any two of row, object, mark, deletion and mark
// leaves, of every kind, beside what is as it should be.
func (w *ledger) seed() {
	w.t.Helper()
	const open, over = `state = 'IDLE'`, `state = 'COMPLETED', ended_at = now()`
	w.volume("ses_kept", open, harness.ObjectMade, true)
	w.volume("ses_planned", open, harness.ObjectPending, false) // row
	w.volume("ses_put", open, harness.ObjectPending, true)      // row, object
	w.volume("ses_over", over, harness.ObjectMade, true)
	w.volume("ses_ending", over, harness.ObjectRemoving, true) // mark of the deletion
	w.volume("ses_ended", over, harness.ObjectRemoving, false) // deletion
	w.volume("ses_early", over, harness.ObjectPending, true)   // the session ended before the mark
	w.volume("ses_rowless", over, "", true)                    // of rows that are of yesterday
	w.volume("ses_before", open, "", true)                     // of a release that wrote none
	w.volume("ses_vanished", open, harness.ObjectMade, false)  // somebody else removed it
	w.sandbox("lost", `state = 'READY'`, false)
	stray := w.start("stray", "ses_kept", listed) // its row is of yesterday
	w.sandbox("bare", `state = 'READY', spec = '{"idleSeconds": 300, "egress": "allowlist"}'`, false)
	w.sql(fmt.Sprintf(`UPDATE sandboxes SET sandbox_uid = '%s' WHERE sandbox_id = 'sbx_bare'`, w.start("bare", "ses_of_bare", func(*harness.SandboxSpec) {}).UID))
	w.sandbox("listed", `state = 'READY', spec = '{"idleSeconds": 300, "egress": "allowlist"}'`, false)
	w.sql(fmt.Sprintf(`UPDATE sandboxes SET sandbox_uid = '%s' WHERE sandbox_id = 'sbx_listed'`, w.start("listed", "ses_of_listed", listed).UID))
	for _, p := range w.server.Policies() {
		if p.Name == stray.Name { // one whose Pod the collector of garbage never knew
			p.Name, p.UID, p.OwnerReferences = "orphan", "", []metav1.OwnerReference{}
			p.ResourceVersion = ""
			w.server.Create("networkpolicies", &p)
		}
	}
	w.file("media/ses_kept/out/planned", true, false, "")
	w.file("media/ses_kept/out/put", true, true, "")
	w.file("media/ses_kept/out/stored", true, true, "att_stored STORED")
	w.file("media/ses_kept/out/fine", false, true, "att_fine STORED")
	w.file("media/ses_kept/out/missing", false, false, "att_missing STORED")
	w.file("media/ses_kept/att_fetched", false, true, "att_fetched REQUESTED")
	w.file("media/ses_kept/att_failed", false, true, "att_failed FAILED")
	w.file("media/ses_gone/out/nobodys", false, true, "")
	w.bucket.Set("logs/v1/entries/there", []byte("x"))
	w.bucket.Set("logs/v1/entries/unknown", []byte("x"))
	w.sql(`INSERT INTO log_archives (object_key, kind, agent_name, state, digest, size_bytes, day, part, first_at, first_log_id, last_at, last_log_id)
		VALUES ('logs/v1/entries/there', 'ENTRIES', 'coder', 'VERIFIED', '', 0, now(), 1, now(), 1, now(), 1)`)
	w.bucket.Begin(archive.Upload{Key: "media/ses_kept/half", ID: "1", StartedAt: time.Now()})
	w.bucket.Begin(archive.Upload{Key: "logs/v1/young", ID: "2", StartedAt: time.Now().Add(47 * time.Hour)})
	w.bucket.Begin(archive.Upload{Key: "theirs/half", ID: "3", StartedAt: time.Now()})
}

// again makes the next pass compare the bucket.
func (w *ledger) again() { w.sql(`UPDATE comparisons SET compared_at = NULL`) }

// leaks are what the last comparisons came to.
func (w *ledger) leaks() map[harness.ObjectKind]view.Leaks {
	w.t.Helper()
	all, err := w.store.ListLeaks(w.t.Context())
	if err != nil || len(all) != len(harness.ObjectKinds()) {
		w.t.Fatal(all, err)
	}
	of := map[harness.ObjectKind]view.Leaks{}
	for i, l := range all {
		if of[l.Kind] = l; l.Kind != harness.ObjectKinds()[i] {
			w.t.Errorf("%s is at %d", l.Kind, i)
		}
	}
	return of
}

// converged fails unless every kind came to 0 leaked and 0 lost, and rows and what
// exists agree.
func (w *ledger) converged(what string) {
	w.t.Helper()
	for kind, l := range w.leaks() {
		if l.Leaked != 0 || l.Lost != 0 || l.ComparedAt == nil || len(l.Examples) != 0 || l.OldestAt != nil {
			w.t.Errorf("%s: %s: %+v", what, kind, l)
		}
	}
	var claims, policies, pods []string
	for _, c := range w.server.Claims() {
		claims = append(claims, c.Annotations["tuluat.ai/session"])
	}
	for _, p := range w.server.Policies() {
		policies = append(policies, p.Name)
	}
	for _, p := range w.server.Pods() {
		pods = append(pods, p.Name)
	}
	slices.Sort(claims)
	got := map[string]string{
		"volumes": strings.Join(claims, " "), "policies": strings.Join(policies, " "), "bucket": strings.Join(w.bucket.Keys(), " "), "pods": strings.Join(pods, " "),
		"uploads":   fmt.Sprint(w.bucket.Uploads()),
		"rows":      query[string](w.world, `SELECT string_agg(substr(session_id, 5) || ' ' || state || CASE WHEN state = 'GONE' THEN ' ' || reason ELSE '' END, ', ' ORDER BY session_id) FROM outside_objects WHERE kind = 'VOLUME'`),
		"files":     query[string](w.world, `SELECT count(*) || ' planned' FROM outside_objects WHERE kind = 'FILE' AND state <> 'GONE'`),
		"stored":    query[string](w.world, `SELECT string_agg(attachment_id || ' ' || state, ', ' ORDER BY attachment_id) FROM attachments`),
		"sandboxes": query[string](w.world, `SELECT string_agg(sandbox_name || ' ' || state || ' ' || reason, ', ' ORDER BY sandbox_name) FROM sandboxes`),
	}
	want := map[string]string{
		"volumes": "ses_before ses_kept ses_put", "policies": "listed", "pods": "listed", "uploads": "2",
		"bucket": "logs/v1/entries/there media/ses_kept/att_fetched media/ses_kept/out/fine media/ses_kept/out/stored",
		"rows": "before MADE, early GONE the session has ended, ended GONE the session has ended, ending GONE the session has ended, kept MADE, over GONE the session has ended, " +
			"planned GONE it was never made, put MADE, vanished GONE LOST",
		"files": "0 planned", "stored": "att_failed FAILED, att_fetched REQUESTED, att_fine STORED, att_missing FAILED, att_stored STORED",
		"sandboxes": "bare GONE LOST, listed READY , lost GONE LOST",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("%s: %s", what, diff)
	}
}

// A sweep over what crashes have left of every kind removes what has no owner,
// marks rows without an object, and says so.
func TestRowsAndObjectsOfEveryKind(t *testing.T) {
	w := newLedger(t)
	w.seed()
	first := w.pass()
	want := map[harness.ObjectKind][2]int64{ // removed, marked
		harness.ObjectSandbox: {1, 1}, harness.ObjectNetworkPolicy: {1, 1}, harness.ObjectVolume: {1, 1}, harness.ObjectArchive: {1, 0}, harness.ObjectFile: {2, 1}, harness.ObjectUpload: {1, 0}, harness.ObjectWebhook: {0, 0},
	}
	for kind, l := range w.leaks() {
		if got := [2]int64{l.Removed, l.Marked}; got != want[kind] || l.Leaked != 0 || l.Lost != 0 {
			t.Errorf("%s: %+v, want %v removed and marked", kind, l, want[kind])
		}
	}
	for item, f := range map[string]postgres.Finding{
		"leaks":            {Found: 2, Done: 2, Objects: 1, Rows: 1},
		"network_policies": {Found: 2, Done: 2, Objects: 1, Rows: 1},
		"bucket_archive":   {Found: 1, Done: 1},
		"bucket_files":     {Found: 3, Done: 3},
		"planned_files":    {Found: 2, Done: 2},
		"uploads":          {Found: 1, Done: 1},
	} {
		if first[item] != f {
			t.Errorf("%s: %+v, want %+v", item, first[item], f)
		}
	}
	w.settle()
	w.converged("afterwards")
	for item := range w.pass() {
		if item == "leaks" || item == "volumes" || strings.HasPrefix(item, "bucket") {
			t.Errorf("a later pass: %s has found something", item)
		}
	}
}

// settle sweeps until what one pass marks another has removed.
func (w *ledger) settle() {
	w.t.Helper()
	for range 3 {
		w.sql(`UPDATE sandboxes SET updated_at = now() - interval '1 hour' WHERE state = 'TERMINATING'`)
		w.again()
		w.pass()
	}
}

// kill is a process that dies at a call: before it, or after it and before it knows.
type kill struct {
	mu        sync.Mutex
	calls, at int
	after     bool
}

func (k *kill) call(do func() error) error {
	k.mu.Lock()
	k.calls++
	dead, now := k.calls > k.at, k.calls == k.at
	k.mu.Unlock()
	switch {
	case dead, now && !k.after:
		return errKilled
	case now:
		return errors.Join(do(), errKilled)
	}
	return do()
}

type killedStore struct {
	reap.Store
	*kill
}

func (k killedStore) VolumeMade(ctx context.Context, name string, agent harness.AgentName, session harness.SessionID) error {
	return k.call(func() error { return k.Store.VolumeMade(ctx, name, agent, session) })
}

func (k killedStore) RemoveVolume(ctx context.Context, name string) (ours bool, err error) {
	err = k.call(func() error { ours, err = k.Store.RemoveVolume(ctx, name); return err })
	return ours, err
}

func (k killedStore) OutsideGone(ctx context.Context, o postgres.OutsideObject, reason string) (marked bool, err error) {
	err = k.call(func() error { marked, err = k.Store.OutsideGone(ctx, o, reason); return err })
	return marked, err
}

func (k killedStore) FilesToRemove(ctx context.Context, limit int) (files []postgres.OutsideObject, err error) {
	err = k.call(func() error { files, err = k.Store.FilesToRemove(ctx, limit); return err })
	return files, err
}

func (k killedStore) FileLost(ctx context.Context, key string) (marked bool, err error) {
	err = k.call(func() error { marked, err = k.Store.FileLost(ctx, key); return err })
	return marked, err
}

func (k killedStore) EndSandbox(ctx context.Context, id harness.SandboxID, agent harness.AgentName, reason, message string) error {
	return k.call(func() error { return k.Store.EndSandbox(ctx, id, agent, reason, message) })
}

func (k killedStore) SandboxGone(ctx context.Context, id harness.SandboxID, agent harness.AgentName, reason string) (events []event.Event, err error) {
	err = k.call(func() error { events, err = k.Store.SandboxGone(ctx, id, agent, reason); return err })
	return events, err
}

func (k killedStore) Compared(ctx context.Context, kind harness.ObjectKind, c postgres.Comparison) error {
	return k.call(func() error { return k.Store.Compared(ctx, kind, c) })
}

type killedDriver struct {
	*kubernetes.Driver
	*kill
}

func (k killedDriver) Terminate(ctx context.Context, sb sandbox.Sandbox) error {
	return k.call(func() error { return k.Driver.Terminate(ctx, sb) })
}

func (k killedDriver) Remove(ctx context.Context, kind harness.ObjectKind, o sandbox.Object) error {
	return k.call(func() error { return k.Driver.Remove(ctx, kind, o) })
}

type killedBucket struct {
	reap.Objects
	*kill
}

func (k killedBucket) Delete(ctx context.Context, key string) error {
	return k.call(func() error { return k.Objects.Delete(ctx, key) })
}

func (k killedBucket) Abort(ctx context.Context, u archive.Upload) error {
	return k.call(func() error { return k.Objects.Abort(ctx, u) })
}

// A sweep that is killed before or after any of its writes and removals, over what
// crashes have left of every kind: later passes come to 0 leaked and 0 lost.
func TestTheLedgerKilledAnywhere(t *testing.T) {
	w := newLedger(t)
	for at := 1; ; at++ {
		over := false
		for _, after := range []bool{false, true} {
			w.sql(`TRUNCATE sessions, sandboxes, attachments, outside_objects, log_archives, sweep_reports CASCADE`, `UPDATE comparisons SET tally = '{}', compared_at = NULL, progress = NULL, reason = ''`)
			w.outside()
			w.seed()
			k := &kill{at: at, after: after}
			o := w.options
			o.Store, o.Driver, o.Objects = killedStore{w.store, k}, killedDriver{w.driver, k}, killedBucket{w.files, k}
			if err := w.sweep(o); err != nil {
				t.Fatal(err)
			}
			over = k.calls < at
			w.sql(`UPDATE outside_objects SET updated_at = now() - interval '2 days'`)
			w.settle()
			w.converged(fmt.Sprintf("killed at %d (%t)", at, after))
		}
		if t.Failed() {
			return
		}
		if over {
			if at < 20 {
				t.Errorf("only %d places to be killed at", at)
			}
			return
		}
	}
}

// What is young is left alone: its row, or its object, may be on its way.
func TestWhatIsYoungIsLeftAlone(t *testing.T) {
	w := newLedger(t)
	w.options.Now = time.Now
	w.session("ses_kept", `state = 'IDLE'`)
	w.volume("ses_over", `state = 'COMPLETED', ended_at = now()`, "", true)
	w.session("ses_new", `state = 'IDLE'`)
	if err := w.store.PlanVolume(t.Context(), "workspace-x", "coder", "ses_new"); err != nil {
		t.Fatal(err)
	}
	w.bucket.Set("media/ses_kept/x", []byte("x"))
	w.sql(`INSERT INTO outside_objects (kind, object_name, state, agent_name, session_id) VALUES ('FILE', 'media/ses_kept/y', 'PENDING', 'coder', 'ses_kept')`)
	w.bucket.Begin(archive.Upload{Key: "media/ses_kept/half", ID: "1", StartedAt: time.Now()})
	w.pass()
	for kind, l := range w.leaks() {
		if l.Removed != 0 || l.Marked != 0 || l.Leaked != 0 || l.Lost != 0 || l.ComparedAt == nil {
			t.Errorf("%s: %+v", kind, l)
		}
	}
	if n := len(w.server.Claims()); n != 1 || w.bucket.Uploads() != 1 || len(w.bucket.Keys()) != 1 {
		t.Errorf("%d volumes, %d uploads, %v", n, w.bucket.Uploads(), w.bucket.Keys())
	}
	if n := query[int](w.world, `SELECT count(*) FROM outside_objects WHERE state = 'PENDING'`); n != 2 {
		t.Errorf("%d rows are left, want 2", n)
	}
}

// Rows that know almost nothing of the bucket are rather wrong themselves: nothing
// is removed, and that is told.
func TestABucketOfSomebodyElse(t *testing.T) {
	w := newLedger(t)
	for i := range 30 {
		w.bucket.Set(fmt.Sprintf("logs/v1/entries/%02d", i), []byte("x"))
	}
	if got := w.pass()["bucket_archive"]; got.Found != 30 || got.Left != 30 {
		t.Errorf("%+v", got)
	}
	if l := w.leaks()[harness.ObjectArchive]; l.Leaked != 30 || l.Removed != 0 || l.Reason == "" || l.OldestAt == nil || len(l.Examples) != 5 {
		t.Errorf("%+v", l)
	}
	if n := len(w.bucket.Keys()); n != 30 {
		t.Errorf("%d objects are left, want 30", n)
	}
}

// An object of the archive that is gone stays lost, pass after pass, until it is
// back: what it had is nowhere else.
func TestAMissingArchiveStaysLost(t *testing.T) {
	w := newLedger(t)
	w.sql(`INSERT INTO log_archives (object_key, kind, agent_name, state, digest, size_bytes, day, part, first_at, first_log_id, last_at, last_log_id)
		VALUES ('logs/v1/entries/there', 'ENTRIES', 'coder', 'VERIFIED', '', 0, now(), 1, now(), 1, now(), 1)`)
	for range 2 {
		w.again()
		w.pass()
		if l := w.leaks()[harness.ObjectArchive]; l.Lost != 1 || l.Known != 1 || l.There != 0 || !slices.Equal(l.Examples, []string{"logs/v1/entries/there"}) {
			t.Errorf("%+v", l)
		}
	}
	w.bucket.Set("logs/v1/entries/there", []byte("x"))
	w.again()
	w.pass()
	if l := w.leaks()[harness.ObjectArchive]; l.Lost != 0 || l.There != 1 || l.Reason != "" {
		t.Errorf("when it is back: %+v", l)
	}
}

// A bucket of several pages is compared over as many passes as it takes, each row
// and object once.
func TestABucketOfManyPages(t *testing.T) {
	w := newLedger(t)
	const n = 2300
	for i := range n {
		w.bucket.Set(fmt.Sprintf("media/ses_kept/out/%05d", i), []byte("x"))
	}
	w.session("ses_kept", `state = 'IDLE'`)
	w.sql(fmt.Sprintf(`INSERT INTO attachments (attachment_id, session_id, direction, kind, path, state, object_key)
		SELECT 'att_' || i, 'ses_kept', 'OUTBOUND', 'DOCUMENT', 'out/' || i, 'STORED', 'media/ses_kept/out/' || lpad(i::text, 5, '0') FROM generate_series(5, %d) i`, n+4))
	w.bucket.Fail(func(method, key string) int { // one bad moment, on the second page
		if method == "GET" && key == "/"+archivetest.Name && query[int](w.world, `SELECT count(*) FROM comparisons WHERE progress->>'next' = 'media/ses_kept/out/00999'`) == 1 && query[int](w.world, `SELECT count(*) FROM comparisons WHERE reason <> '' AND kind = 'FILE'`) == 0 {
			return 403
		}
		return 0
	})
	if got := w.pass()["bucket_files"]; got.Error == "" {
		t.Errorf("the first pass: %+v", got)
	}
	if l := w.leaks()[harness.ObjectFile]; l.ComparedAt != nil || l.Reason == "" {
		t.Errorf("after a failure: %+v", l)
	}
	w.pass()
	if l := w.leaks()[harness.ObjectFile]; l.There != n || l.Known != n || l.Removed != 5 || l.Marked != 5 || l.Leaked != 0 || l.Lost != 0 {
		t.Errorf("%+v", l)
	}
}

// A webhook of an account that no agent has is told of until it is taken away.
func TestWebhooksOfNobody(t *testing.T) {
	w := newLedger(t)
	ctx := t.Context()
	for _, account := range []string{"kept_bot", "left_bot"} {
		if err := w.store.WebhookSeen(ctx, harness.ChannelTelegram, account, "https://agents.example/"+account, "coder"); err != nil {
			t.Fatal(err)
		}
	}
	w.sql(`INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all) VALUES ('TELEGRAM', 'kept_bot', 'coder', '{}', true)`)
	w.pass()
	if l := w.leaks()[harness.ObjectWebhook]; l.Known != 2 || l.Leaked != 1 || !slices.Equal(l.Examples, []string{"TELEGRAM/left_bot"}) || l.OldestAt == nil || l.Reason == "" {
		t.Errorf("%+v", l)
	}
	if err := w.store.RecordWebhook(ctx, harness.ChannelTelegram, "left_bot", "", postgres.Audit{}); err != nil {
		t.Fatal(err)
	}
	w.pass()
	if l := w.leaks()[harness.ObjectWebhook]; l.Known != 1 || l.Leaked != 0 || l.Reason != "" {
		t.Errorf("%+v", l)
	}
}

// Without a bucket and without volumes there is nothing to compare, and that is said.
func TestNothingToCompare(t *testing.T) {
	w := newWorld(t)
	w.sql(`UPDATE comparisons SET compared_at = now(), tally = '{"leaked": 3}'`)
	w.pass()
	all, err := w.store.ListLeaks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		compared := l.Kind == harness.ObjectSandbox || l.Kind == harness.ObjectWebhook
		if (l.ComparedAt != nil) != compared || (l.Reason == "") != compared || l.Leaked != 0 {
			t.Errorf("%+v", l)
		}
	}
}
