package reap_test

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// volumes is a place whose sandboxes have volumes that outlive them.
type volumes struct {
	*objects
	of []harness.SessionID
}

func (v *volumes) SweepVolumes(ctx context.Context, ended func(context.Context, []harness.SessionID) ([]harness.SessionID, error)) (int, error) {
	over, err := ended(ctx, v.of)
	if err != nil {
		return 0, err
	}
	v.of = slices.DeleteFunc(v.of, func(id harness.SessionID) bool { return slices.Contains(over, id) })
	return len(over), nil
}

// The rows say whose volumes go: a session that nobody writes to for a month is
// open until it is ended.
func TestVolumes(t *testing.T) {
	w := newWorld(t)
	w.agent()
	w.session("ses_idle", `state = 'IDLE', updated_at = now() - interval '30 days'`)
	w.session("ses_failed", `state = 'FAILED', updated_at = now() - interval '30 days'`)
	w.session("ses_completed", `state = 'COMPLETED', ended_at = now()`)
	w.session("ses_cancelled", `state = 'CANCELLED', ended_at = now()`)
	v := &volumes{objects: w.objects, of: []harness.SessionID{"ses_idle", "ses_failed", "ses_completed", "ses_cancelled", "ses_unknown"}}
	w.options.Driver = v
	w.pass()
	if got := w.pass()["volumes"]; got != (postgres.Finding{}) {
		t.Errorf("the second pass: %+v", got)
	}
	if diff := cmp.Diff([]harness.SessionID{"ses_idle", "ses_failed"}, v.of); diff != "" {
		t.Error(diff)
	}
}
