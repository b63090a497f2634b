package reap_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// A bucket that has almost nothing of what rows rely on is rather the wrong one: a
// name that somebody mistyped for an hour must not cost every file.
func TestRowsOfAnotherBucket(t *testing.T) {
	w := newLedger(t)
	w.session("ses_kept", `state = 'IDLE'`)
	for i := range 60 {
		w.file(fmt.Sprintf("media/ses_kept/out/%02d", i), false, i%10 == 0, fmt.Sprintf("att_%02d STORED", i))
	}
	if got := w.pass()["bucket_files"]; got.Found != 54 || got.Left != 54 {
		t.Errorf("%+v", got)
	}
	if l := w.leaks()[harness.ObjectFile]; l.Known != 60 || l.There != 6 || l.Lost != 54 || l.Marked != 0 || l.Reason == "" || len(l.Examples) != 5 {
		t.Errorf("%+v", l)
	}
	const stored = `SELECT count(*) FROM attachments WHERE state = 'STORED'`
	if n := query[int](w.world, stored); n != 60 {
		t.Fatalf("%d files are STORED after a look at the wrong bucket, want 60", n)
	}
	for i := range 60 { // the right one, in which one is really lost
		if i != 7 {
			w.bucket.Set(fmt.Sprintf("media/ses_kept/out/%02d", i), []byte("x"))
		}
	}
	w.again()
	w.pass()
	if l := w.leaks()[harness.ObjectFile]; l.Known != 60 || l.There != 59 || l.Lost != 0 || l.Marked != 1 || l.Reason != "" {
		t.Errorf("%+v", l)
	}
}

// Files that an empty bucket lacked are there again when it has them, but for one
// that a guardrail has kept back meanwhile.
func TestFilesAreFoundAgain(t *testing.T) {
	w := newLedger(t)
	w.session("ses_kept", `state = 'IDLE'`)
	for i := range 10 {
		w.file(fmt.Sprintf("media/ses_kept/out/%02d", i), false, false, fmt.Sprintf("att_%02d STORED", i))
	}
	if got := w.pass()["bucket_files"]; got.Found != 10 || got.Done != 10 {
		t.Errorf("%+v", got)
	}
	const states = `SELECT string_agg(state, ' ' ORDER BY state) FROM (SELECT DISTINCT state || count(*) OVER (PARTITION BY state) AS state FROM attachments) x`
	if got := query[string](w.world, states); got != "FAILED10" {
		t.Fatalf("got %s, want all FAILED", got)
	}
	w.sql(`UPDATE attachments SET reason = 'withheld', lost_at = NULL WHERE attachment_id = 'att_04'`)
	for i := range 10 {
		w.bucket.Set(fmt.Sprintf("media/ses_kept/out/%02d", i), []byte("x"))
	}
	w.again()
	if got := w.pass()["bucket_files"]; got.Found != 9 || got.Done != 9 {
		t.Errorf("%+v", got)
	}
	if got := query[string](w.world, states); got != "FAILED1 STORED9" {
		t.Errorf("got %s, want the one that is kept back FAILED", got)
	}
	w.again()
	if got, ok := w.pass()["bucket_files"]; ok {
		t.Errorf("a later pass found %+v", got)
	}
}

// What no row knows since the rows were restored from an old copy is left for a day,
// however old it is.
func TestObjectsSinceTheCopy(t *testing.T) {
	w := newLedger(t)
	w.session("ses_kept", `state = 'IDLE'`)
	for i := range 9 {
		w.file(fmt.Sprintf("media/ses_kept/out/%02d", i), true, true, fmt.Sprintf("att_%02d STORED", i))
	}
	const later = "media/ses_later/out/1"
	w.file(later, false, true, "")
	w.bucket.Age(later, 72*time.Hour)
	w.sql(`SELECT count(*) FROM restored()`)
	for _, c := range []struct {
		after time.Duration
		keys  int
	}{{0, 10}, {23 * time.Hour, 10}, {25 * time.Hour, 9}} {
		w.options.Now = func() time.Time { return time.Now().Add(c.after) }
		w.again()
		w.pass()
		if n := len(w.bucket.Keys()); n != c.keys || (n == 9) == slices.Contains(w.bucket.Keys(), later) {
			t.Errorf("%s after the restoration %d objects are left, want %d", c.after, n, c.keys)
		}
	}
}

// Rows that know almost no session of the volumes that are there are rather another
// installation's, or of an old copy: no volume is removed, and that is told.
func TestVolumesOfSomebodyElse(t *testing.T) {
	w := newLedger(t)
	w.volume("ses_over", `state = 'COMPLETED', ended_at = now()`, "", true)
	for i := range 6 {
		name := fmt.Sprintf("theirs-%d", i)
		if err := w.driver.Terminate(t.Context(), w.start(name, harness.SessionID("ses_"+name), persistent)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		w.pass()
		l := w.leaks()[harness.ObjectVolume]
		if n := len(w.server.Claims()); n != 6 || l.Leaked != 6 || l.Reason == "" || l.OldestAt == nil {
			t.Fatalf("%d volumes are left, want 6: %+v", n, l)
		}
	}
	// A few of nobody beside many of sessions that are known are leaks.
	for i := range 8 {
		w.volume(fmt.Sprintf("ses_ours%d", i), `state = 'IDLE'`, harness.ObjectMade, true)
	}
	w.pass()
	if l := w.leaks()[harness.ObjectVolume]; len(w.server.Claims()) != 8 || l.Leaked != 0 || l.Removed != 6 || l.Reason != "" {
		t.Errorf("%d volumes are left, want 8: %+v", len(w.server.Claims()), l)
	}
}

// A volume of today whose session does not exist is left for a day: the rows may have
// been restored from a copy of yesterday.
func TestVolumesSinceTheCopy(t *testing.T) {
	w := newLedger(t)
	w.options.Now = func() time.Time { return time.Now().Add(23 * time.Hour) }
	if err := w.driver.Terminate(t.Context(), w.start("today", "ses_today", persistent)); err != nil {
		t.Fatal(err)
	}
	w.volume("ses_over", `state = 'COMPLETED', ended_at = now()`, "", true)
	w.pass()
	if l := w.leaks()[harness.ObjectVolume]; len(w.server.Claims()) != 1 || l.Removed != 1 || l.Leaked != 0 {
		t.Errorf("%d volumes are left, want that of today: %+v", len(w.server.Claims()), l)
	}
}
