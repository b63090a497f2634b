//go:build !local

package driver

import (
	"log/slog"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

func newLocal(Options, *slog.Logger) (sandbox.Driver, error) {
	return nil, harness.Errorf(harness.Invalid, `SANDBOX_DRIVER is "local", which this build does not have: local sandboxes are for development and are compiled in by the build tag "local" only`)
}
