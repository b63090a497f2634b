// Package source chooses where a function's secrets are kept.
package source

import (
	"time"

	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/secret"
	"tuluat.ai/harness/shared/secret/kubernetes"
)

// Options say where.
type Options struct {
	kubernetes bool
	namespace  string
	getenv     func(string) string
}

// Read takes SECRETS (environment or kubernetes) and SECRETS_NAMESPACE, the
// namespace of the agents, from a function's configuration.
func Read(c *function.Config, getenv func(string) string) Options {
	return Options{
		kubernetes: c.OneOf("SECRETS", "environment", "environment", "kubernetes") == "kubernetes",
		namespace:  c.Text("SECRETS_NAMESPACE", "tuluat-agents"),
		getenv:     getenv,
	}
}

// Reader is a source of lists and of whole values.
type Reader interface {
	secret.Source
	secret.Texts
}

// Open returns the source. It talks to nobody yet.
func Open(o Options, now func() time.Time) (Reader, error) {
	if o.kubernetes {
		return kubernetes.InCluster(o.namespace, o.getenv, now)
	}
	return secret.Environment(o.getenv), nil
}
