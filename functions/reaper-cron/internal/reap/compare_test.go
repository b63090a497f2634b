package reap

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/sandbox"
)

// The rows are read before and after the objects, so that a sandbox which comes
// or goes while the sweep looks is neither leaked nor lost.
func TestCompare(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	row := func(name string, state harness.SandboxState) postgres.SandboxRecord {
		return postgres.SandboxRecord{Name: name, State: state}
	}
	object := func(name string, age time.Duration) sandbox.Found {
		return sandbox.Found{Name: name, CreatedAt: now.Add(-age)}
	}
	before := []postgres.SandboxRecord{
		row("fine", harness.SandboxReady), row("lost", harness.SandboxReady), row("starting", harness.SandboxCreating),
		row("ending", harness.SandboxTerminating), row("ended", harness.SandboxReady), row("dead", harness.SandboxReady), row("dying", harness.SandboxReady),
	}
	objects := []sandbox.Found{object("fine", time.Hour), object("leaked", 61*time.Second), object("young", 59*time.Second), object("new", time.Hour)}
	dead, dying := object("dead", time.Hour), object("dying", time.Hour)
	dead.EndedAt, dying.EndedAt = now.Add(-endedGrace-time.Second), now.Add(-endedGrace+time.Second)
	objects = append(objects, dead, dying)
	after := []postgres.SandboxRecord{
		row("fine", harness.SandboxReady), row("lost", harness.SandboxReady), row("starting", harness.SandboxReady), row("new", harness.SandboxReady),
		row("dead", harness.SandboxReady), row("dying", harness.SandboxReady),
	}
	leaked, lost := compare(before, objects, after, now)
	var got [2][]string
	for _, f := range leaked {
		got[0] = append(got[0], f.Name)
	}
	for _, r := range lost {
		got[1] = append(got[1], r.Name)
	}
	slices.Sort(got[1])
	// "ended" is GONE by now; saying so again changes nothing.
	if diff := cmp.Diff([2][]string{{"leaked"}, {"dead", "ended", "lost"}}, got); diff != "" {
		t.Error(diff)
	}
}
