// Package driver chooses the sandbox driver of a process, the same way for every
// function that has one.
package driver

import (
	"log/slog"
	"strings"

	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

// The drivers.
const (
	Local      = "local"      // this machine, by bubblewrap; only in builds with the tag "local"
	Kubernetes = "kubernetes" // Pods
)

// Options say which driver a process has and what it needs.
type Options struct {
	Driver      string
	LocalDir    string   // where local sandboxes are kept
	LocalRunner string   // the runner's binary
	LocalBinds  []string // HOST:INSIDE folders that local sandboxes may write to; tests only
}

// Read reads the Options from the environment variables SANDBOX_DRIVER,
// SANDBOX_LOCAL_DIR, SANDBOX_LOCAL_RUNNER and SANDBOX_LOCAL_BINDS.
func Read(c *function.Config) Options {
	o := Options{Driver: c.OneOf("SANDBOX_DRIVER", Kubernetes, Local, Kubernetes)}
	if o.Driver != Local {
		return o
	}
	o.LocalDir = c.Required("SANDBOX_LOCAL_DIR", "the folder in which local sandboxes are kept")
	o.LocalRunner = c.Required("SANDBOX_LOCAL_RUNNER", "the path of the runner's binary")
	if binds := c.Text("SANDBOX_LOCAL_BINDS", ""); binds != "" {
		o.LocalBinds = strings.Split(binds, ",")
	}
	return o
}

// New returns the driver that o names. What a build cannot do is refused with
// what to do about it.
func New(o Options, log *slog.Logger) (sandbox.Driver, error) {
	switch o.Driver {
	case Local:
		return newLocal(o, log)
	case Kubernetes:
		return nil, harness.Errorf(harness.Invalid, "SANDBOX_DRIVER is %q, which is not in this build yet: use %q with a build that has the tag %q", o.Driver, Local, Local)
	default:
		return nil, harness.Errorf(harness.Invalid, "SANDBOX_DRIVER is %q: use %q or %q", o.Driver, Local, Kubernetes)
	}
}
