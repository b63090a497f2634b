//go:build !local

package driver_test

import (
	"log/slog"
	"strings"
	"testing"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox/driver"
)

func TestABuildWithoutLocalSaysSo(t *testing.T) {
	_, err := driver.New(driver.Options{Driver: driver.Local, LocalDir: "/d", LocalRunner: "/r"}, slog.New(slog.DiscardHandler))
	if harness.KindOf(err) != harness.Invalid || !strings.Contains(err.Error(), "SANDBOX_DRIVER") || !strings.Contains(err.Error(), `tag "local"`) {
		t.Errorf("local without the tag: %v", err)
	}
}
