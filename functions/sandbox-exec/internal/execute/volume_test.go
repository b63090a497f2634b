//go:build local

package execute_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"tuluat.ai/harness/functions/sandbox-exec/internal/execute"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

// voluminous is a driver whose sandboxes all have a volume of their session. Before
// it makes one it looks for the row.
type voluminous struct {
	sandbox.Driver
	w    *world
	fail error
}

func (v *voluminous) VolumeOf(sb sandbox.Sandbox) string { return "volume-" + string(sb.Session) }

func (v *voluminous) Objects(context.Context, harness.ObjectKind) ([]sandbox.Object, error) {
	return nil, nil
}

func (v *voluminous) Remove(context.Context, harness.ObjectKind, sandbox.Object) error { return nil }

func (v *voluminous) Start(ctx context.Context, sb sandbox.Sandbox) (string, error) {
	if state := query[string](v.w, `SELECT COALESCE(max(state), 'NONE') FROM outside_objects WHERE object_name = 'volume-`+string(sb.Session)+`'`); state != "PENDING" {
		v.w.Errorf("a volume is made while its row is %s", state)
	}
	if v.fail != nil {
		return "", v.fail
	}
	return v.Driver.Start(ctx, sb)
}

// The row of a volume is there before the volume, and says that it was made after it.
func TestAVolumeHasItsRowFirst(t *testing.T) {
	for _, fail := range []error{nil, sandbox.Fail(harness.Unavailable, sandbox.ReasonStartFailed, "no", errors.New("no"))} {
		t.Run(fmt.Sprint(fail), func(t *testing.T) {
			w := newWorld(t)
			v := &voluminous{Driver: w.driver, w: w, fail: fail}
			w.options.Driver = v
			e := w.ask("ses_a", "echo hello")
			if err := execute.New(w.options).ExecutionRequested(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			want := "volume-ses_a MADE coder ses_a"
			if fail != nil {
				want = "volume-ses_a PENDING coder ses_a"
			}
			if got := query[string](w, `SELECT string_agg(object_name || ' ' || state || ' ' || agent_name || ' ' || session_id, ', ') FROM outside_objects`); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
