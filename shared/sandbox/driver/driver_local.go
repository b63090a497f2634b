//go:build local

package driver

import (
	"log/slog"

	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/local"
)

func newLocal(o Options, log *slog.Logger) (sandbox.Driver, error) {
	d, err := local.New(local.Options{Dir: o.LocalDir, Runner: o.LocalRunner, Binds: o.LocalBinds, Log: log})
	if err != nil {
		return nil, err // and not a typed nil
	}
	return d, nil
}
