package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// Each role does with the ledger what its function does.
func TestRolesKeepTheLedger(t *testing.T) {
	ctx := context.Background()
	s, err := postgres.Open(postgrestest.DSN(t), postgres.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	put(t, s, agentText("a", "a.yaml", ""))
	first := say(t, s, "a", "one", "k1").Session
	running(t, s, first, "call_1", "exe_1")
	c := runIn(t, s, "exe_1")
	run(t, s, `INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all) VALUES ('TELEGRAM', 'a_bot', 'a', '{}', true)`)
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	run(t, s, `SET ROLE tuluat_sandbox_exec`)
	check("plan a volume", s.PlanVolume(ctx, "v", "a", first))
	check("a volume is made", s.VolumeMade(ctx, "v", "a", first))
	check("plan files", s.PlanFiles(ctx, c, []string{"media/1", "media/1", "media/2"}))
	check("store files", s.StoreMadeFiles(ctx, c, []postgres.MadeFile{{Path: "out/1", ObjectKey: "media/1", Attachment: harness.Attachment{Kind: harness.AttachmentDocument}}}))

	run(t, s, `SET ROLE tuluat_telegram_ingest`)
	unseen, err := s.UnseenWebhooks(ctx, harness.ChannelTelegram, 9)
	if check("unseen webhooks", err); len(unseen) != 1 || unseen[0].Account != "a_bot" || unseen[0].Agent != "a" {
		t.Errorf("unseen webhooks: %+v", unseen)
	}
	check("a webhook is seen", s.WebhookSeen(ctx, harness.ChannelTelegram, "a_bot", "https://x", "a"))

	run(t, s, `SET ROLE tuluat_reaper_cron`)
	volumes, err := s.OutsideVolumes(ctx)
	if check("volumes", err); len(volumes) != 1 || volumes[0].State != harness.ObjectMade || volumes[0].Session != first || volumes[0].Ended || !volumes[0].Used {
		t.Errorf("volumes: %+v", volumes)
	}
	if ours, err := s.RemoveVolume(ctx, "v"); ours || err != nil {
		t.Errorf("the volume of an open session may be removed: %t, %v", ours, err)
	}
	marked, err := s.OutsideGone(ctx, postgres.OutsideObject{Kind: harness.ObjectVolume, Name: "v", State: harness.ObjectPending}, "x")
	if check("gone", err); marked {
		t.Error("a row that has changed meanwhile is marked")
	}
	files, err := s.FilesToRemove(ctx, 9)
	if check("files to remove", err); len(files) != 0 {
		t.Errorf("young files are removed: %+v", files)
	}
	unknown, err := s.UnknownFiles(ctx, []string{"media/1", "media/2", "media/3"})
	if check("unknown files", err); !cmp.Equal(unknown, []string{"media/3"}) {
		t.Errorf("unknown files: %v", unknown)
	}
	stored, err := s.StoredFiles(ctx, "media/", 9)
	if check("stored files", err); !cmp.Equal(stored, []string{"media/1"}) {
		t.Errorf("stored files: %v", stored)
	}
	_, err = s.FileLost(ctx, "media/1")
	check("a file is lost", err)
	_, err = s.UnknownArchives(ctx, []string{"x"})
	check("unknown archives", err)
	_, err = s.VerifiedArchives(ctx, "", 9)
	check("verified archives", err)
	_, err = s.ArchiveLost(ctx, "x")
	check("an archive is lost", err)
	_, err = s.UnknownSandboxes(ctx, []string{"x"})
	check("unknown sandboxes", err)
	registered, err := s.Registrations(ctx, "", 9)
	if check("registrations", err); len(registered) != 1 || registered[0].Name != "TELEGRAM/a_bot" || !registered[0].Routed || registered[0].URL != "https://x" {
		t.Errorf("registrations: %+v", registered)
	}
	check("end a sandbox", s.EndSandbox(ctx, c.Sandbox.ID, "a", postgres.SandboxLost, "x"))
	_, err = s.DeleteOldObjects(ctx, time.Hour, 9)
	check("old objects", err)
	_, due, err := s.Comparing(ctx, harness.ObjectVolume, time.Hour)
	if check("comparing", err); !due {
		t.Error("what was never compared is not due")
	}
	check("keep", s.KeepComparing(ctx, harness.ObjectVolume, postgres.Comparison{Tally: view.Tally{Known: 2}, Next: "x"}))
	kept, due, err := s.Comparing(ctx, harness.ObjectVolume, time.Hour)
	if check("comparing", err); !due || kept.Known != 2 || kept.Next != "x" {
		t.Errorf("what is under way: %+v %t", kept, due)
	}
	check("not compared", s.NotCompared(ctx, harness.ObjectVolume, "down"))
	check("compared", s.Compared(ctx, harness.ObjectVolume, postgres.Comparison{Tally: view.Tally{Known: 3, Leaked: 1, Examples: []string{"v"}}, Reason: "why"}))
	if _, due, err = s.Comparing(ctx, harness.ObjectVolume, time.Hour); due || err != nil {
		t.Errorf("what was just compared is due: %v", err)
	}
	check("never compared", s.NeverCompared(ctx, []harness.ObjectKind{harness.ObjectFile}, "none"))

	run(t, s, `SET ROLE tuluat_management_api`)
	leaks, err := s.ListLeaks(ctx)
	if check("leaks", err); len(leaks) != len(harness.ObjectKinds()) || leaks[2].Kind != harness.ObjectVolume || leaks[2].Known != 3 || leaks[2].Reason != "why" || leaks[2].ComparedAt == nil || leaks[4].Reason != "none" {
		t.Errorf("leaks: %+v", leaks)
	}
	sweep, err := s.LastSweep(ctx)
	if check("sweep", err); sweep.CompletedAt != nil || sweep.AgeSeconds != nil {
		t.Errorf("sweep: %+v", sweep)
	}
	check("record a webhook", s.RecordWebhook(ctx, harness.ChannelTelegram, "a_bot", "", postgres.Audit{Actor: "ann", Action: "update channels.tuluat.ai"}))
	figures, err := s.Figures(ctx)
	if check("figures", err); len(figures.Leaks) != 1 || figures.Leaks[0].Leaked != 1 {
		t.Errorf("figures: %+v", figures.Leaks)
	}
	run(t, s, `RESET ROLE`)
	if state := query[string](t, s, `SELECT state || ' ' || reason FROM outside_objects WHERE kind = 'WEBHOOK'`); state != "GONE none is registered" {
		t.Errorf("the webhook is %s", state)
	}
}

// Files that were planned and that nothing came of are removed in time, those that
// attachments has are not, and one that is being removed is not planned again.
func TestPlannedFiles(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	put(t, s, agentText("a", "a.yaml", ""))
	running(t, s, say(t, s, "a", "one", "k1").Session, "call_1", "exe_1")
	c := runIn(t, s, "exe_1")
	if err := s.PlanFiles(ctx, c, []string{"media/kept", "media/left"}); err != nil {
		t.Fatal(err)
	}
	run(t, s, `INSERT INTO attachments (attachment_id, session_id, direction, kind, path, state, object_key) SELECT 'att_1', session_id, 'OUTBOUND', 'DOCUMENT', 'out/x', 'STORED', 'media/kept' FROM sessions`,
		`UPDATE outside_objects SET updated_at = now() - interval '20 minutes'`)
	if files, err := s.FilesToRemove(ctx, 9); err != nil || len(files) != 0 {
		t.Errorf("after 20 minutes: %+v, %v", files, err)
	}
	run(t, s, `UPDATE outside_objects SET updated_at = now() - interval '61 minutes'`)
	for range 2 { // the second time for who died
		files, err := s.FilesToRemove(ctx, 9)
		if err != nil || len(files) != 1 || files[0].Name != "media/left" || files[0].State != harness.ObjectRemoving {
			t.Fatalf("after an hour: %+v, %v", files, err)
		}
	}
	if err := s.PlanFiles(ctx, c, []string{"media/left", "media/new"}); harness.KindOf(err) != harness.Unavailable {
		t.Errorf("while one is removed: %v", err)
	}
	if marked, err := s.OutsideGone(ctx, postgres.OutsideObject{Kind: harness.ObjectFile, Name: "media/left", State: harness.ObjectRemoving}, ""); !marked || err != nil {
		t.Errorf("gone: %t, %v", marked, err)
	}
	if err := s.PlanFiles(ctx, c, []string{"media/left"}); err != nil {
		t.Errorf("after that: %v", err)
	}
	if got := query[string](t, s, `SELECT string_agg(object_name || ' ' || state, ', ' ORDER BY object_name) FROM outside_objects`); got != "media/left PENDING, media/new PENDING" {
		t.Errorf("rows: %s", got)
	}
	stale := *c
	stale.Token--
	if err := s.PlanFiles(ctx, &stale, []string{"media/x"}); !errors.Is(err, postgres.ErrLeaseLost) {
		t.Errorf("without the lease: %v", err)
	}
}

// Forgetting a person waits for their volumes, and takes their rows.
func TestForgettingWaitsForVolumes(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	put(t, s, agentText("a", "a.yaml", ""))
	session := say(t, s, "a", "one", "k1").Session
	user := query[string](t, s, `SELECT channel_user_id FROM messages LIMIT 1`)
	channel := harness.Channel(query[string](t, s, `SELECT channel FROM sessions LIMIT 1`))
	if err := s.PlanVolume(ctx, "v", "a", session); err != nil {
		t.Fatal(err)
	}
	f, err := s.Forget(ctx, channel, user, postgres.Audit{Actor: "ben", Action: "forget people.tuluat.ai"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ForgetBegin(ctx, f.ID); err != nil {
		t.Fatal(err)
	}
	if n, err := s.ForgetWaits(ctx, f.ID); n != 1 || err != nil {
		t.Errorf("it waits for %d, %v", n, err)
	}
	if ours, err := s.RemoveVolume(ctx, "v"); !ours || err != nil {
		t.Errorf("the volume may not be removed: %t, %v", ours, err)
	}
	if _, err := s.OutsideGone(ctx, postgres.OutsideObject{Kind: harness.ObjectVolume, Name: "v", State: harness.ObjectRemoving}, "x"); err != nil {
		t.Fatal(err)
	}
	if n, err := s.ForgetWaits(ctx, f.ID); n != 0 || err != nil {
		t.Errorf("then it waits for %d, %v", n, err)
	}
	if err := s.ForgetSession(ctx, f.ID, session); err != nil {
		t.Fatal(err)
	}
	if n := query[string](t, s, `SELECT count(*)::text FROM outside_objects`); n != "0" {
		t.Errorf("%s rows are left", n)
	}
	if report := query[string](t, s, `SELECT report::text FROM forget_requests`); !strings.Contains(report, `"outside_objects": 1`) {
		t.Errorf("the report is %s", report)
	}
}
