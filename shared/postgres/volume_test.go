package postgres_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

func TestEndedSessions(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	ids := []harness.SessionID{"ses_unknown"}
	want := []harness.SessionID{"ses_unknown"}
	for _, state := range []harness.SessionState{
		harness.SessionPending, harness.SessionRunning, harness.SessionAwaitingApproval, harness.SessionAwaitingExecution, harness.SessionIdle,
		harness.SessionCompleted, harness.SessionBlocked, harness.SessionFailed, harness.SessionCancelled,
	} {
		id := harness.SessionID("ses_" + state)
		session(t, s, string(id), `state = '`+string(state)+`'`)
		ids = append(ids, id)
		if state.Ended() {
			want = append(want, id)
		}
	}
	session(t, s, "ses_not_asked_for", `state = 'COMPLETED'`)
	got, err := s.EndedSessions(ctx, ids)
	sorted := cmp.Transformer("set", func(ids []harness.SessionID) map[harness.SessionID]bool {
		set := map[harness.SessionID]bool{}
		for _, id := range ids {
			set[id] = true
		}
		return set
	})
	if diff := cmp.Diff(want, got, sorted); diff != "" || err != nil || len(got) != 3 {
		t.Error(diff, err)
	}
	if got, err := s.UnknownSessions(ctx, ids); err != nil || len(got) != 1 || got[0] != "ses_unknown" {
		t.Errorf("unknown: %v, %v", got, err)
	}
	if got, err := s.EndedSessions(ctx, nil); err != nil || len(got) != 0 {
		t.Errorf("of none: %v, %v", got, err)
	}
}
