package event_test

import (
	"strings"
	"testing"

	"tuluat.ai/harness/shared/event"
)

func TestTraceParent(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for value, want := range map[string]string{
		good: good, "": "", good + "-x": "", strings.ToUpper(good): "", "01" + good[2:]: "", good[:35] + "_" + good[36:]: "",
		"00-00000000000000000000000000000000-b7ad6b7169203331-01": "", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01": "",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0\n": "",
	} {
		if got := event.TraceParent(value); got != want {
			t.Errorf("TraceParent(%q) = %q", value, got)
		}
	}
}
